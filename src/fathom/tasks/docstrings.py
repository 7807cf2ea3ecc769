"""Next-word prediction on the docstrings of Python's standard library; a small LSTM, no download."""

import platform

import numpy as np

from fathom.core.types import Batch, Task
from fathom.data import Federation, docstrings, split, text
from fathom.data.cache import cached
from fathom.tasks import nextword

VERSION = 1  # of the way docstrings are read; a new one leaves old caches alone
LENGTH = 20


def load(
    vocabulary: int = 2000, sentences: int = 128, embedding: int = 48, hidden: int = 96
) -> tuple[Task, Federation, Batch]:
    """The task, a client per module with at most `sentences` sentences, and a tenth of each as the test set."""

    def read() -> dict[str, np.ndarray]:
        clients = {name: lines[:sentences] for name, lines in docstrings.make().items()}
        words = text.vocabulary(text.count(line for lines in clients.values() for line in lines), vocabulary)
        index = text.numbered(words)
        return {
            "names": np.array(list(clients)),
            "sizes": np.array([len(lines) for lines in clients.values()], np.int64),
            "tokens": np.concatenate([text.encode(lines, index, LENGTH) for lines in clients.values()]),
        }

    arrays = cached(f"docstrings-{VERSION}-{platform.python_version()}-{vocabulary}-{sentences}", read)
    sizes = arrays["sizes"]
    ids = tuple(arrays["names"].tolist())
    federation = Federation(ids, np.cumsum(sizes) - sizes, sizes, {"tokens": arrays["tokens"]})
    return nextword.task(vocabulary, embedding, hidden), *split(federation)
