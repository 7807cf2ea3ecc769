"""Tables in Parquet files, with a column of client ids or without."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fathom.data.disk import Clients, DataError
from fathom.data.importers.checks import check_share, labels
from fathom.data.importers.images import decode
from fathom.data.importers.reading import First, Import, about, check_files, described, kept, reading, role
from fathom.data.importers.rowgroups import Rows, by_client, find

CLIENTS = ("writer_id", "client_id", "user", "user_id")  # names that a column of clients goes by
LABELS = ("character", "label", "y")
MOST = 1 << 16  # classes


def parquet(
    paths: Sequence[Path], *, client: str | None = None, label: str | None = None, test_share: float = 0.1
) -> Import:
    """Parquet files with columns of clients, labels, and images or numbers, such as flwrlabs/femnist."""
    check_share(test_share)
    train, test, schema = _parts(paths)
    client = _column(train[0], schema, client, CLIENTS, "client")
    label = _column(train[0], schema, label, LABELS, "label")
    features = _features(train[0], schema, (client, label))
    rows = {"train": find(train, client, label), **({"test": find(test, client, label)} if test else {})}
    classes = _classes(train[0], schema, label, [part.labels for part in rows.values()])
    share = 0.0 if test else test_share
    told = _told(features) + (f"; {share:g} of each client's rows drawn for testing" if share else "")
    meta = about("parquet", paths, told, classes=classes)
    first: First = []
    splits = {"train": kept(train[0], _examples(rows["train"], features, classes, share, False), meta, first)}
    if test:
        splits["test"] = kept(test[0], _examples(rows["test"], features, classes, 0.0, False), meta, first)
    elif share:
        splits["test"] = kept(train[0], _examples(rows["train"], features, classes, share, True), meta, first)
    return Import(splits, meta)


def whole(paths: Sequence[Path], label: str | None) -> tuple[dict[str, dict[str, np.ndarray]], list[str], str]:
    """All rows, whoever's they are, as arrays for training and maybe testing; the classes; what was done to them."""
    train, test, schema = _parts(paths)
    label = _column(train[0], schema, label, LABELS, "label")
    features = _features(train[0], schema, (*CLIENTS, label))
    files = {"train": train, **({"test": test} if test else {})}
    rows = {split: find(own, None, label) for split, own in files.items()}
    for split, part in rows.items():
        if not len(part.labels):
            raise DataError(f"{files[split][0]} has no rows; leave it out.")
    classes = _classes(train[0], schema, label, [part.labels for part in rows.values()])
    splits: dict[str, dict[str, np.ndarray]] = {}
    first: First = []
    for split, part in rows.items():
        groups = kept(files[split][0], _examples(part, features, classes, 0.0, False), {"skipped_empty": 0}, first)
        parts = [arrays for _, arrays in groups]
        splits[split] = {name: np.concatenate([arrays[name] for arrays in parts]) for name in parts[0]}
    return splits, classes, _told(features)


def _parts(paths: Sequence[Path]) -> tuple[list[Path], list[Path], Any]:
    """The files for training, those for testing, and the schema."""
    check_files("parquet", paths)
    test = [path for path in paths if role(path) == "test"]
    train = [path for path in paths if path not in test]
    if not train:
        raise DataError(f"{paths[0]} is named like a test file; parquet needs a training file too.")
    with reading(train[0]):
        return train, test, pq.read_schema(train[0])


def _told(features: dict[str, str]) -> str:
    return "images as grey from 0 to 255" if "x" in features.values() else "numbers as float32"


def _column(path: Path, schema: Any, name: str | None, known: Sequence[str], what: str) -> str:
    found = [column for column in ([name] if name else known) if column in schema.names]
    if not found:
        raise DataError(
            f"{path} has no {what} column {name or ' or '.join(known)}; it has {described(schema.names)}. "
            f"Name it with `{what}`."
        )
    return found[0]


def _is_image(kind: Any) -> bool:
    return pa.types.is_binary(kind) or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def _is_number(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _is_list(kind: Any) -> bool:
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and _is_number(kind.value_type)


def _features(path: Path, schema: Any, known: Sequence[str]) -> dict[str, str]:
    """From columns to features: the image if there is one, otherwise everything that is numbers."""
    others = {field.name: field.type for field in schema if field.name not in known}
    pictures = [name for name, kind in others.items() if _is_image(kind)]
    numbers = [name for name, kind in others.items() if _is_number(kind) or _is_list(kind)]
    if len(pictures) > 1 or not (pictures or numbers):
        raise DataError(f"{path}: of the columns {described(others)}, one needs to be an image or some numbers.")
    return {pictures[0]: "x"} if pictures else {name: name for name in numbers}


def _classes(path: Path, schema: Any, label: str, values: Sequence[np.ndarray]) -> list[str]:
    """The names of the classes: the labels if they are text, or what Hugging Face wrote beside numbers."""
    if values[0].dtype.kind not in "iu":
        names = sorted({value for part in values for value in part if isinstance(value, str)})
        if len(names) and all(isinstance(value, str) for part in values for value in part):
            return names
        raise DataError(f"{path}: {label!r} holds {schema.field(label).type}; labels are whole numbers or text.")
    if any(part.dtype.kind not in "iu" for part in values):
        raise DataError(f"{path}: {label!r} holds whole numbers here and something else for testing; use one of them.")
    count = max(int(part.max()) if len(part) else -1 for part in values) + 1
    if count > MOST:
        raise DataError(f"{path}: {label!r} goes up to {count - 1}; number the classes from 0, fewer than {MOST}.")
    with reading(path, "its Hugging Face description"):
        names = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        for key in ("info", "features", label, "names"):
            names = names.get(key) if isinstance(names, dict) else None
    good = isinstance(names, list) and len(names) >= count and all(isinstance(name, str) for name in names)
    return names if good and names else [str(number) for number in range(count)]


def _examples(rows: Rows, features: dict[str, str], classes: list[str], share: float, testing: bool) -> Clients:
    number = {name: place for place, name in enumerate(classes)}
    path = rows.groups[0][0]
    for client, places, table in by_client(rows, list(features), share, testing):
        x = {name: _values(path, client, table[column], places) for column, name in features.items()}
        y = rows.labels[places]
        y = y if y.dtype.kind in "iu" else np.array([number[value] for value in y])
        yield client, {**x, "y": labels(path, client, y, len(places), len(classes))}


def _values(path: Path, client: str, column: Any, places: np.ndarray) -> np.ndarray:
    """A column as an array: images as grey, numbers as float32."""
    where = f"client {client!r}, row"
    if column.null_count:
        row = places[np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]]
        raise DataError(f"{path}: {where} {row} has an empty cell; fill it in or drop the row.")
    if _is_image(column.type):
        cells = [cell["bytes"] if isinstance(cell, dict) else cell for cell in column.to_pylist()]
        images = [decode(cell, path, f"{where} {row}") for cell, row in zip(cells, places, strict=True)]
        for row, image in zip(places, images, strict=True):
            if image.shape != images[0].shape:
                raise DataError(
                    f"{path}: {where} {row} is an image of {image.shape}, others are {images[0].shape}; resize them."
                )
        return np.array(images)
    if _is_list(column.type):
        widths = pc.list_value_length(column).unique().to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
        if len(widths) > 1:
            raise DataError(f"{path}: client {client!r} has lists of {widths} numbers; they need one length.")
        flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.astype(np.float32).reshape(len(column), widths[0])
    return column.to_numpy().astype(np.float32)
