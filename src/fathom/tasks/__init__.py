"""What is learned, by name: a federation, a model and a metric, with settings that suit them."""

import difflib
from collections.abc import Callable
from typing import Any, NamedTuple

from fathom.core.types import Batch, HParams, Task
from fathom.data import Federation
from fathom.tasks import docstrings, femnist, glyphs, stackoverflow, synthetic


class Defaults(NamedTuple):
    """How a task is run unless told otherwise."""

    hparams: HParams  # of the first round
    high: HParams  # what a tuner may go up to
    cohort: int
    rounds: int
    every: int
    target: float  # test accuracy that "rounds to target" is about


class Entry(NamedTuple):
    """A task that can be asked for by name."""

    load: Callable[..., tuple[Task, Federation, Batch]]
    defaults: Defaults
    summary: str


TASKS = {
    "glyphs": Entry(
        glyphs.load,
        Defaults(HParams(0.1, 1.0, 20.0), HParams(0.5, 10.0, 5096.0), cohort=10, rounds=120, every=5, target=0.6),
        "62 handwritten characters, 300 synthetic writers, a small CNN; drawn on your machine, no download",
    ),
    "synthetic": Entry(
        synthetic.load,
        Defaults(HParams(0.01, 1.0, 20.0), HParams(0.5, 10.0, 5096.0), cohort=10, rounds=200, every=5, target=0.7),
        "Synthetic(alpha, beta) of LEAF: logistic regression, milliseconds a round",
    ),
    "docstrings": Entry(
        docstrings.load,
        Defaults(HParams(0.3, 1.0, 8.0), HParams(1.0, 10.0, 5096.0), cohort=10, rounds=100, every=10, target=0.15),
        "next words of the standard library's docstrings, a client per module, a small LSTM; no download",
    ),
    "femnist": Entry(
        femnist.load,
        Defaults(HParams(0.1, 1.0, 20.0), HParams(0.5, 10.0, 5096.0), cohort=10, rounds=1500, every=10, target=0.86),
        "the paper's: 62 characters of real writers, its CNN; needs `fathom data import` first",
    ),
    "stackoverflow": Entry(
        stackoverflow.load,
        Defaults(HParams(0.32, 1.0, 16.0), HParams(1.0, 10.0, 5096.0), cohort=50, rounds=1500, every=10, target=0.23),
        "the paper's: next-word prediction on users' sentences, its LSTM; needs `fathom data import` first",
    ),
}


def load(name: str, **options: Any) -> tuple[Task, Federation, Batch]:
    """A task by name: the Task, its Federation, and a test set.

    >>> task, federation, test = load("synthetic", clients=3)
    >>> len(federation)
    3
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no task {name!r}; choose from {', '.join(TASKS)}.{hint}")
    return TASKS[name].load(**options)
