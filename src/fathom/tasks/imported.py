"""Imported data sets, as tasks want them."""

from typing import Any

import numpy as np

from fathom.core.types import Batch
from fathom.data import Federation, at_least, disk, pooled


def load_imported(
    name: str, features: dict[str, tuple[int, ...]], least: int, test_examples: int
) -> tuple[dict[str, Any], Federation, dict[str, Batch]]:
    """A data set's meta, its training clients with at least `least` examples, and its test sets by name.

    features: what a task reads, and the shape of a row of each. Test sets larger than `test_examples` are sampled
    down, always the same way.
    """
    data = disk.open_set(name)
    for split, federation in data.splits.items():
        shapes = {key: feature.shape[1:] for key, feature in federation.examples.items()}
        if any(shapes.get(key) != shape for key, shape in features.items()):
            raise ValueError(f"data set {name!r} has {split} features {shapes}; this task needs {features}.")
    tests = {split: _sampled(data.splits[split], test_examples) for split in ("test", "unseen") if split in data.splits}
    if not tests:
        raise ValueError(f"data set {name!r} has no test examples; import it with some, or with a test share.")
    return data.meta, at_least(data.splits["train"], least), tests


def _sampled(federation: Federation, most: int) -> Batch:
    """At most so many examples of all clients together."""
    total = int(federation.sizes.sum())
    if total <= most:
        return pooled(federation)
    # The rows of an imported split are those of its clients, and no others.
    rows = np.sort(np.random.default_rng(0).choice(total, most, replace=False))
    return {key: feature[rows] for key, feature in federation.examples.items()}
