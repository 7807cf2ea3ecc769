"""Data sets of TensorFlow Federated, from its HDF5 files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py

from fathom.data import text
from fathom.data.disk import Clients, DataError
from fathom.data.importers.checks import CHARACTERS, NIST, check_text, greys, labels
from fathom.data.importers.reading import Import, about, by_role, described, kept, reading, same_clients
from fathom.data.limits import check_size


def emnist(paths: Sequence[Path]) -> Import:
    """Federated EMNIST of TensorFlow Federated: fed_emnist_train.h5 and, if you have it, fed_emnist_test.h5."""
    files = by_role("tff-emnist", paths, ("train", "test"), ["train"])
    if "test" in files:
        same_clients(files["train"], _ids(files["train"]), files["test"], _ids(files["test"]))
    meta = about(
        "tff-emnist",
        files.values(),
        "pixels from 0 to 1 stored as 0 to 255, paper 255 and ink 0",
        classes=CHARACTERS,
        licence=NIST,
    )
    return Import({split: kept(path, _images(path), meta) for split, path in files.items()}, meta)


def stackoverflow(paths: Sequence[Path], *, vocabulary: int = 10_000, sentences: int = 128, length: int = 20) -> Import:
    """Stack Overflow of TensorFlow Federated: stackoverflow_train.h5, _test.h5, _held_out.h5 and .word_count."""
    check_text(sentences, length)
    roles = ("train", "test", "unseen", "word_count")
    files = by_role("tff-stackoverflow", paths, roles, ["train", "word_count"])
    words = text.vocabulary(files["word_count"], vocabulary)
    if "test" in files:
        same_clients(files["train"], _ids(files["train"]), files["test"], _ids(files["test"]))
    meta = about(
        "tff-stackoverflow",
        files.values(),
        f"the first {sentences} sentences of each training client, all others whole; the first {length} words of each",
        vocabulary=words,
        licence="CC BY-SA",
    )
    index = text.numbered(words)
    splits = {
        split: kept(files[split], _sentences(files[split], index, length, limit), meta)
        for split, limit in {"train": sentences, "test": None, "unseen": None}.items()
        if split in files
    }
    return Import(splits, meta)


def _images(path: Path) -> Clients:
    for client, arrays in _clients(path, ("pixels", "label")):
        x = greys(path, client, _stored(path, client, arrays, "pixels")[()])
        yield client, {"x": x, "y": labels(path, client, _stored(path, client, arrays, "label")[()], len(x))}


def _sentences(path: Path, index: dict[str, int], length: int, limit: int | None) -> Clients:
    for client, arrays in _clients(path, ("tokens",)):
        tokens = _stored(path, client, arrays, "tokens")
        if tokens.ndim != 1 or not h5py.check_string_dtype(tokens.dtype):
            raise DataError(
                f"{path}: client {client!r} has tokens of {tokens.dtype} {tokens.shape}; "
                "they need to be one text for each sentence."
            )
        # A word that is not UTF-8 becomes a word that no vocabulary has, as it is where bytes are compared.
        lines = [line.decode(errors="replace") for line in tokens[:limit]]
        yield client, {"tokens": text.encode(lines, index, length)}


def _ids(path: Path) -> list[str]:
    with reading(path), h5py.File(path, "r") as file:
        return list(_examples(path, file))


def _clients(path: Path, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Each client's group of HDF5 data sets, not read yet."""
    with reading(path), h5py.File(path, "r") as file:
        examples = _examples(path, file)
        for client in examples:
            with reading(path, f"client {client!r}"):
                group = _within(path, examples, client)
                missing = [name for name in names if name not in group]
                if missing:
                    raise DataError(
                        f"{path}: client {client!r} has no {missing[0]!r}, only {described(group)}; "
                        "is this another data set?"
                    )
            yield client, group


def _examples(path: Path, file: Any) -> Any:
    if "examples" not in file:
        raise DataError(f"{path} has no group 'examples', only {described(file)}; it is not a file of TFF's data.")
    return _within(path, file, "examples")


def _within(path: Path, group: Any, name: str) -> Any:
    """What has this name in a group, unless it is a link to another file."""
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        raise DataError(f"{path}: {name!r} is a link to another file; copy what it leads to into this one.")
    return group[name]


def _stored(path: Path, client: str, group: Any, name: str) -> Any:
    """An HDF5 data set, not read yet; its values are in this file, and not more than it could hold."""
    values = _within(path, group, name)
    if not isinstance(values, h5py.Dataset) or values.shape is None or values.external or values.is_virtual:
        raise DataError(
            f"{path}: client {client!r}: {name!r} is not a data set with values of its own; store them in it."
        )
    check_size(path, values.nbytes, where=f"client {client!r}")
    return values
