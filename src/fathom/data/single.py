"""One data set without clients: arrays in an .npz file, or Parquet files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fathom.data.disk import Clients, DataError
from fathom.data.importers import importer
from fathom.data.limits import npz
from fathom.data.partition import Rows

Splits = dict[str, dict[str, np.ndarray]]  # features for training, and maybe for testing


def partitioned(
    paths: Sequence[Path], method: Callable[..., Rows], options: dict[str, Any], label: str | None = None
) -> tuple[dict[str, Clients], dict[str, Any]]:
    """Splits and meta of a data set whose training rows are shared out over clients.

    A common test set, x_test and y_test of an .npz file or the Parquet files whose names say so, is shared out evenly.
    Without one, a tenth of every client's rows is set aside. `label` names a column of Parquet files.
    """
    if any(path.suffix.lower() == ".parquet" for path in paths):
        importer("parquet")  # says what to install where a library is missing
        from fathom.data.importers.parquet import whole

        splits, classes, done = whole(paths, label)
        facts, steps = {"classes": classes}, [done]
    else:
        splits, facts, steps = _npz(paths, label), {}, []
    train, clients = splits["train"], options["clients"]
    if clients > len(train["y"]):
        raise DataError(f"{paths[0]} has {len(train['y'])} examples, too few for {clients} clients; ask for fewer.")
    hands = method(**{**options, "labels": train["y"]})
    cut = [len(rows) if "test" in splits else max(int(np.ceil(0.9 * len(rows))), 1) for rows in hands]

    def named(parts: Rows, features: dict[str, np.ndarray]) -> Clients:
        for i, rows in enumerate(parts):
            if len(rows):
                yield f"client_{i:05d}", {name: feature[rows] for name, feature in features.items()}

    if "test" in splits:
        test = named(np.array_split(np.arange(len(splits["test"]["y"])), clients), splits["test"])
    else:
        test = named([rows[n:] for rows, n in zip(hands, cut, strict=True)], train)
    told = ", ".join(f"{key}={value}" for key, value in options.items() if key != "labels")
    preprocessing = "; ".join([*steps, f"{method.__name__} partition with {told}"])
    source = ", ".join(path.name for path in paths)
    meta = {"kind": "partition", "source": source, "preprocessing": preprocessing, **facts}
    return {"train": named([rows[:n] for rows, n in zip(hands, cut, strict=True)], train), "test": test}, meta


def _npz(paths: Sequence[Path], label: str | None) -> Splits:
    if len(paths) > 1:
        raise DataError(f"partition takes one .npz file; {len(paths)} were given. Put all arrays into one.")
    if label:
        raise DataError(f"label={label!r} is a column of Parquet files; in {paths[0]} the labels are called y.")
    (path,) = paths
    arrays = npz(path)
    splits = {"train": _pair(path, arrays, "x", "y")}
    if {"x_test", "y_test"} <= arrays.keys():
        splits["test"] = _pair(path, arrays, "x_test", "y_test")
    return splits


def _pair(path: Path, arrays: dict[str, np.ndarray], x: str, y: str) -> dict[str, np.ndarray]:
    """Features and labels, row by row."""
    shapes = {key: array.shape for key, array in arrays.items()}
    if len(shapes.get(y, ())) != 1 or shapes.get(x, ())[:1] != shapes[y]:
        raise DataError(f"{path} has arrays {shapes}; it needs {x} and {y} with as many rows, {y} a label each.")
    for name in (x, y):
        if arrays[name].dtype.kind not in "biuf" or not np.isfinite(arrays[name]).all():
            raise DataError(f"{path}: {name} holds {arrays[name].dtype}, or NaN; it needs finite numbers.")
    return {"x": arrays[x], "y": arrays[y]}
