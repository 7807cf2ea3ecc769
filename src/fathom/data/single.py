"""One data set without clients, as arrays in an .npz file."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fathom.data.disk import Clients, DataError
from fathom.data.partition import Rows


def partitioned(
    path: Path, method: Callable[..., Rows], options: dict[str, Any]
) -> tuple[dict[str, Clients], dict[str, Any]]:
    """Splits and meta of a data set whose training rows are shared out over clients.

    The file has arrays x and y, and x_test and y_test for a common test set, which is shared out evenly. Without one,
    a tenth of every client's rows is set aside.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{path} cannot be read as an .npz file of arrays: {error}.") from error
    if not {"x", "y"} <= arrays.keys() or len(arrays["x"]) != len(arrays["y"]) or arrays["y"].ndim != 1:
        shapes = {key: array.shape for key, array in arrays.items()}
        raise DataError(f"{path} has arrays {shapes}; it needs x and y with as many rows, y a label each.")
    clients = options["clients"]
    if clients > len(arrays["y"]):
        raise DataError(f"{path} has {len(arrays['y'])} examples, too few for {clients} clients; ask for fewer.")
    hands = method(**{**options, "labels": arrays["y"]})
    has_test = {"x_test", "y_test"} <= arrays.keys()
    cut = [len(rows) if has_test else max(int(np.ceil(0.9 * len(rows))), 1) for rows in hands]

    def named(parts: Rows, x: np.ndarray, y: np.ndarray) -> Clients:
        return ((f"client_{i:05d}", {"x": x[rows], "y": y[rows]}) for i, rows in enumerate(parts) if len(rows))

    train = named([rows[:n] for rows, n in zip(hands, cut, strict=True)], arrays["x"], arrays["y"])
    if has_test:
        tests = np.array_split(np.arange(len(arrays["y_test"])), clients)
        test = named(tests, arrays["x_test"], arrays["y_test"])
    else:
        test = named([rows[n:] for rows, n in zip(hands, cut, strict=True)], arrays["x"], arrays["y"])
    told = ", ".join(f"{key}={value}" for key, value in options.items() if key != "labels")
    meta = {"kind": "partition", "source": path.name, "preprocessing": f"{method.__name__} partition with {told}"}
    return {"train": train, "test": test}, meta
