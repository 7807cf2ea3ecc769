"""Next-word prediction on Federated Stack Overflow, or on any imported text."""

from fathom.core.types import Batch, Task
from fathom.data import Federation
from fathom.tasks import nextword
from fathom.tasks.imported import load_imported

LENGTH = 20  # words of a sentence


def load(
    data: str = "stackoverflow",
    least: int = 1,
    test_examples: int = 20_000,
    embedding: int = 96,
    hidden: int = 670,
    precision: nextword.Precision = "default",
) -> tuple[Task, Federation, dict[str, Batch]]:
    """The task on an imported data set: its users with at least `least` sentences, and its test sets.

    A test set larger than `test_examples` is sampled down to that, always the same way. `embedding` and `hidden` are
    the sizes of the paper's network. precision: of the recurrent layer in training: "default" is TF32 on recent
    GPUs and float32 elsewhere; "bfloat16" reads its weights in 16 bits, which is faster on a GPU. Parameters and their
    updates are float32.
    """
    meta, federation, tests = load_imported(data, {"tokens": (LENGTH + 1,)}, least, test_examples)
    return nextword.task(len(meta["vocabulary"]), embedding, hidden, precision), federation, tests
