"""Data sets of FedJAX, from its SQLite files."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from fathom.data import text
from fathom.data.disk import Clients, DataError
from fathom.data.importers.checks import CHARACTERS, check_text, greys, labels
from fathom.data.importers.reading import First, Import, about, by_role, described, kept, reading, same_clients
from fathom.data.limits import MOST, inflated

ARRAY, TEXTS = 1, 4  # FedJAX's extension types of msgpack that can be a feature: numbers, and byte strings

NUMBERS = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float16",
    "float32",
    "float64",
)


def sqlite(paths: Sequence[Path], *, vocabulary: int = 10_000, sentences: int = 128, length: int = 20) -> Import:
    """Federated data of FedJAX: train, test and held-out .sqlite files; text needs a .word_count file too."""
    check_text(sentences, length)
    files = by_role("fedjax-sqlite", paths, ("train", "test", "unseen", "word_count"), ["train"])
    words = text.vocabulary(files["word_count"], vocabulary) if "word_count" in files else None
    if "test" in files:
        same_clients(files["train"], _ids(files["train"]), files["test"], _ids(files["test"]))
    first = next((features for _, features in _clients(files["train"])), {})
    if words:
        facts: dict[str, Any] = {"vocabulary": words, "licence": "CC BY-SA"}
        told = f"the first {sentences} sentences of each training client; the first {length} words of each"
    elif {"pixels", "label"} <= first.keys():
        facts, told = {"classes": CHARACTERS}, "pixels from 0 to 1 stored as 0 to 255, paper 255 and ink 0"
    else:
        facts, told = {}, "features as they are"
    meta = about("fedjax-sqlite", files.values(), told, **facts)
    index = text.numbered(words) if words else None
    shared: First = []
    splits = {
        split: kept(files[split], _examples(files[split], index, length, limit), meta, shared)
        for split, limit in {"train": sentences, "test": None, "unseen": None}.items()
        if split in files
    }
    return Import(splits, meta)


def _examples(path: Path, index: Mapping[str, int] | None, length: int, limit: int | None) -> Clients:
    for client, features in _clients(path):
        if index is not None:
            yield client, {"tokens": text.encode(_sentences(path, client, features)[:limit], index, length)}
            continue
        texts = [name for name, value in features.items() if isinstance(value, list)]
        if texts:
            raise DataError(f"{path}: client {client!r}: {texts[0]!r} is text; add the .word_count file to import it.")
        if {"pixels", "label"} <= features.keys():
            x = greys(path, client, features.pop("pixels"))
            features = {"x": x, "y": labels(path, client, features.pop("label"), len(x)), **features}
        yield client, features


def _sentences(path: Path, client: str, features: Mapping[str, Any]) -> list[str]:
    if not isinstance(features.get("tokens"), list):
        raise DataError(
            f"{path}: client {client!r} has {described(features)}, and no 'tokens' that are text; "
            "leave the .word_count file out."
        )
    return [line.decode(errors="replace") for line in features["tokens"]]


@contextmanager
def _connect(path: Path) -> Iterator[sqlite3.Connection]:
    """A database to read from: a plain table of plain values, since a view or a computed column is a program."""
    # Immutable: the file is only read, so nothing is locked or created beside it.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as database:
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST)
        database.execute("PRAGMA trusted_schema = OFF")
        found = database.execute("SELECT type, sql FROM sqlite_master WHERE name = 'federated_data'").fetchall()
        hidden = [row for row in database.execute("PRAGMA table_xinfo(federated_data)") if row[-1]]
        if len(found) != 1 or found[0][0] != "table" or "VIRTUAL" in str(found[0][1]).upper() or hidden:
            raise DataError(f"{path} has no plain table federated_data; write it with FedJAX's builder.")
        yield database


def _ids(path: Path) -> list[str]:
    with reading(path), _connect(path) as database:
        return [_name(client) for (client,) in database.execute("SELECT client_id FROM federated_data")]


def _name(client: bytes | str) -> str:
    return client.decode() if isinstance(client, bytes) else str(client)


def _clients(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each client's features: arrays of numbers, or lists of byte strings."""
    with reading(path), _connect(path) as database:
        rows = database.execute("SELECT client_id, data, num_examples FROM federated_data ORDER BY rowid")
        for name, data, count in rows:
            client = _name(name)
            if not isinstance(data, bytes):
                raise DataError(f"{path}: client {client!r} has no data; write it with FedJAX's builder.")
            with reading(path, f"client {client!r}"):
                features = msgpack.unpackb(inflated(path, f"client {client!r}", data), ext_hook=_feature, raw=False)
            if not isinstance(features, dict) or not all(isinstance(f, np.ndarray | list) for f in features.values()):
                raise DataError(f"{path}: client {client!r} is not a dict of arrays; write it with FedJAX's builder.")
            lengths = {key: len(feature) if np.ndim(feature) else None for key, feature in features.items()}
            if set(lengths.values()) - {count}:
                raise DataError(f"{path}: client {client!r} has {count} examples, but features of {lengths} rows.")
            yield client, features


def _feature(code: int, data: bytes) -> Any:
    """An array of numbers or a list of byte strings from FedJAX's msgpack; anything else is refused."""
    parts = msgpack.unpackb(data, raw=True) if code in (ARRAY, TEXTS) else None
    kinds = (list, bytes, bytes) if code == ARRAY else (list, list)
    if not isinstance(parts, list) or [type(part) for part in parts] != [*kinds]:
        raise ValueError(f"extension type {code} is not an array")
    if not all(isinstance(size, int) and size >= 0 for size in parts[0]):
        raise ValueError(f"{parts[0]} is not a shape")
    if code == ARRAY:
        shape, name, buffer = parts
        if name.decode() not in NUMBERS:
            raise ValueError(f"arrays of {name.decode()} are not numbers")
        return np.frombuffer(buffer, name.decode()).reshape(shape)
    shape, values = parts
    if shape != [len(values)] or not all(isinstance(value, bytes) for value in values):
        raise ValueError(f"text of shape {shape} with {len(values)} values is not one text for each example")
    return values
