"""Data sets on disk: folders of memory-mapped arrays that open at once, whatever their size.

    NAME/
      meta.json         name, kind, source, licence, preprocessing, statistics and a content hash of every split
      train/            a federation: what clients train on
        clients.json    their ids
        offsets.npy     client i has rows offsets[i] to offsets[i + 1]
        x.npy, ...      one file per feature, the rows of a client contiguous
      test/             held-out examples of the same clients
      unseen/           clients that are kept out of training altogether

A split that a data set does not have is not there. A data set is written aside and renamed when it is complete.
"""

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs

from fathom.data.federation import Federation, check_client, narrowed
from fathom.data.limits import DataError, check_inside, check_name, mapped

SPLITS = ("train", "test", "unseen")
FORMAT = 1
Clients = Iterable[tuple[str, Mapping[str, Any]]]  # (client id, features), one client after another


@dataclass(frozen=True)
class DataSet:
    """A data set that has been opened; its arrays are still on disk."""

    path: Path
    meta: dict[str, Any]
    splits: dict[str, Federation]


def home() -> Path:
    """Where data sets are kept: $FATHOM_DATA, or the platform's place for data."""
    return Path(os.environ.get("FATHOM_DATA") or platformdirs.user_data_path("fathom"))


def names() -> list[str]:
    """The data sets there are."""
    return sorted(path.parent.name for path in home().glob("*/meta.json"))


def locate(name: str) -> Path:
    """The folder of a data set; a name is refused if it could lead out of the home of data sets."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        raise DataError(f"{name!r} is not a name for a data set; use letters, digits, '.', '_' and '-', at most 100.")
    return home() / name


def vacant(name: str) -> Path:
    """The folder that a new data set will have; a name that is taken is refused."""
    path = locate(name)
    if path.exists():
        raise DataError(
            f"there is a data set {name!r} already; nothing was changed. Choose another --name or remove {path}."
        )
    return path


def write(name: str, splits: Mapping[str, Clients], meta: Mapping[str, Any]) -> DataSet:
    """Write a data set from its clients, one at a time; nothing is left behind if that fails."""
    path = vacant(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=path.parent))
    try:
        facts = {split: _write_split(aside / split, clients) for split, clients in splits.items()}
        if not facts.get("train", {}).get("clients"):
            raise DataError(f"{name}: no client has training examples; nothing was imported.")
        full = {
            "format": FORMAT,
            "name": name,
            **meta,
            "splits": {s: fact for s, fact in facts.items() if fact["clients"]},
        }
        for split in splits.keys() - full["splits"].keys():
            shutil.rmtree(aside / split)
        (aside / "meta.json").write_text(json.dumps(full, indent=2) + "\n")
        aside.rename(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    return open_set(name)


def open_set(name: str) -> DataSet:
    """Open a data set by name."""
    path = locate(name)
    if not (path / "meta.json").exists():
        there = f"there are {', '.join(names())}" if names() else "there is none yet"
        raise DataError(f"there is no data set {name!r}; {there}. Make one with `fathom data import`.")
    try:
        meta = json.loads(check_inside(path / "meta.json", path).read_text(encoding="utf-8"))
        _check_meta(meta)
        splits = {split: _open_split(path / split, path) for split in SPLITS if split in meta["splits"]}
    except Exception as error:  # a damaged file makes json and numpy raise all kinds of things
        raise DataError(f"data set {name!r} in {path} cannot be read: {error}. Import it again.") from error
    return DataSet(path, meta, splits)


def check(name: str) -> None:
    """Read a whole data set and compare it with the hashes taken when it was written."""
    data = open_set(name)
    for split in data.splits:
        if _hash(data.path / split) != data.meta["splits"][split]["sha256"]:
            raise DataError(
                f"data set {name!r}: the files of {split!r} have changed since it was made. Import it again."
            )


def _write_split(folder: Path, clients: Clients) -> dict[str, Any]:
    """Write one split; return its statistics and hash."""
    folder.mkdir()
    files: dict[str, Any] = {}
    first: tuple[str, dict[str, np.ndarray]] | None = None
    ids: dict[str, None] = {}
    sizes = []
    try:
        for client, features in clients:
            arrays = {key: narrowed(value, client, key) for key, value in features.items()}
            first = first or (client, {key: array[:0] for key, array in arrays.items()})
            check_client(client, arrays, *first)
            for key in arrays:
                check_name(key, f"client {client!r}")
            if client in ids:
                raise DataError(f"client {client!r} appears twice; client ids must be unique.")
            ids[client] = None
            sizes.append(len(next(iter(arrays.values()))))
            for key, array in arrays.items():
                if key not in files:
                    files[key] = (folder / f"{key}.npy").open("wb")
                    _header(files[key], array, 0)
                files[key].write(np.ascontiguousarray(array).tobytes())
        for key, file in files.items():
            file.seek(0)
            _header(file, first[1][key], sum(sizes))  # pyright: ignore[reportOptionalSubscript]
    finally:
        for file in files.values():
            file.close()
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    (folder / "clients.json").write_text(json.dumps(list(ids)))
    facts = {"clients": len(sizes), "examples": int(sum(sizes)), "features": sorted(files)}
    if sizes:
        quantiles = np.percentile(sizes, [0, 25, 50, 75, 100]).astype(int).tolist()
        facts |= {"mean_size": float(np.mean(sizes)), "sizes": quantiles}
    return {**facts, "sha256": _hash(folder)}


def _header(file: Any, like: np.ndarray, rows: int) -> None:
    """A .npy header; numpy leaves room in it, so that it can be written again when the number of rows is known."""
    descr = np.lib.format.dtype_to_descr(like.dtype)
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": (rows, *like.shape[1:])}
    )


def _check_meta(meta: Any) -> None:
    """Refuse meta data that is not as `write` makes it."""
    if not isinstance(meta, dict) or meta.get("format") != FORMAT or not isinstance(meta.get("name"), str):
        raise ValueError(f"meta.json is not of format {FORMAT}")
    splits, words, classes = meta.get("splits"), meta.get("vocabulary", []), meta.get("classes", [])
    if not isinstance(splits, dict) or "train" not in splits or not splits.keys() <= set(SPLITS):
        raise ValueError(f"meta.json needs splits, {SPLITS[0]!r} and maybe others of {', '.join(SPLITS)}")
    for split, facts in splits.items():
        sizes = facts.get("sizes") if isinstance(facts, dict) else None
        numbers = [facts.get(key) for key in ("clients", "examples", "mean_size")] if isinstance(facts, dict) else []
        numbers += sizes if isinstance(sizes, list) and len(sizes) == 5 else [None]
        if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
            raise ValueError(f"meta.json lacks statistics of {split!r}")
        if not isinstance(facts.get("sha256"), str):
            raise ValueError(f"meta.json lacks the hash of {split!r}")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError("the vocabulary in meta.json is not a list of words")
    if not isinstance(classes, list | int):
        raise ValueError("the classes in meta.json are neither a list nor a number")


def _open_split(folder: Path, root: Path) -> Federation:
    ids = json.loads(check_inside(folder / "clients.json", root).read_text(encoding="utf-8"))
    if not isinstance(ids, list) or not all(isinstance(client, str) for client in ids) or len(set(ids)) < len(ids):
        raise ValueError(f"{folder.name}/clients.json is not a list of client ids, each of them once")
    ids = tuple(ids)
    "".join(ids).encode()  # an id that is not text is refused here
    offsets = mapped(folder / "offsets.npy", root)
    files = [path for path in sorted(folder.glob("*.npy")) if path.name != "offsets.npy"]
    examples = {path.stem: mapped(path, root) for path in files}
    lengths = {key: len(feature) for key, feature in examples.items()}
    if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets) or offsets[0] or (np.diff(offsets) < 1).any():
        raise ValueError(f"the offsets of {folder.name} do not rise from 0")
    offsets = np.array(offsets)
    if len(offsets) != len(ids) + 1 or not examples or set(lengths.values()) != {int(offsets[-1])}:
        raise ValueError(
            f"{folder.name} has {len(ids)} clients, {len(offsets)} offsets and features of lengths {lengths}"
        )
    return Federation(ids, offsets[:-1], np.diff(offsets), examples)


def _hash(folder: Path) -> str:
    """SHA-256 over the names and contents of a split's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file():
            raise DataError(f"{path} is not a file, and does not belong there. Import the data set again.")
        digest.update(path.name.encode(errors="surrogateescape") + b"\0")
        with path.open("rb") as file:
            for block in iter(_reader(file), b""):
                digest.update(block)
    return digest.hexdigest()


def _reader(file: Any) -> Callable[[], bytes]:
    return lambda: file.read(1 << 20)
