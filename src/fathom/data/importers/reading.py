"""What every importer does: find its files, read them, and refuse in one line what cannot be used."""

import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fathom.data.disk import Clients
from fathom.data.federation import check_client, narrowed
from fathom.data.limits import DataError, reading

ROLES = {"train": "train", "test": "test", "heldout": "unseen", "wordcount": "word_count", "wordcounts": "word_count"}
ROLE = re.compile(r"(?<![a-z])(train|test|held_?out|word_?counts?)(?![a-z])")


class Import(NamedTuple):
    """What an importer makes: clients by split, read while they are written, and what is known about them."""

    splits: dict[str, Clients]
    meta: dict[str, Any]  # "skipped_empty" grows while the splits are read


def about(kind: str, paths: Iterable[Path], preprocessing: str, **facts: Any) -> dict[str, Any]:
    """The meta data of an import."""
    source = [path.resolve().name for path in paths]
    return {"kind": kind, "source": source, "preprocessing": preprocessing, "skipped_empty": 0, **facts}


def check_files(kind: str, paths: Sequence[Path], most: int | None = None) -> list[Path]:
    """The paths, all of them files that are there."""
    if not paths:
        raise DataError(f"{kind} needs files to import; none was given.")
    if most and len(paths) > most:
        raise DataError(f"{kind} takes at most {most} files; {len(paths)} were given.")
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: there is no such file; check the path.")
        if not path.is_file():
            raise DataError(f"{path} is not a file; {kind} takes files, so name those in it.")
    return list(paths)


def role(path: Path) -> str | None:
    """What a file is for, if its name says so: train, test, unseen or word_count."""
    match = ROLE.search(path.name.lower())
    return ROLES[match[1].replace("_", "")] if match else None


def by_role(kind: str, paths: Sequence[Path], roles: Sequence[str], required: Collection[str]) -> dict[str, Path]:
    """Files by what they are for; those whose names do not say so take the first roles left, in the order given."""
    files: dict[str, Path] = {}
    for path in sorted(check_files(kind, paths, len(roles)), key=lambda path: role(path) is None):
        part = role(path) or next(name for name in roles if name not in files)
        if part not in roles:
            raise DataError(f"{path} is named like a {part} file; {kind} takes {', '.join(roles)}.")
        if part in files:
            raise DataError(f"{path} and {files[part]} are both named like the {part} file; {kind} takes one.")
        files[part] = path
    missing = [name for name in required if name not in files]
    if missing:
        raise DataError(f"{kind} needs a {missing[0]} file; only {', '.join(map(str, files.values()))} was given.")
    return {name: files[name] for name in roles if name in files}


First = list[tuple[str, dict[str, np.ndarray]]]  # the client that others must be like, once it is known


def kept(
    path: Path, clients: Clients, meta: dict[str, Any], first: First | None = None, seen: set[str] | None = None
) -> Clients:
    """The clients that have examples, each of them once and like the first.

    Where splits or files share them, `first` holds the first client, and `seen` the ids that earlier files had.
    """
    seen = set() if seen is None else seen
    first = [] if first is None else first
    with reading(path):
        for client, features in clients:
            if not isinstance(client, str):
                raise DataError(f"{path}: client id {client!r} is not text; write ids as UTF-8.")
            if client in seen:
                raise DataError(f"{path}: client {client!r} appears twice; client ids must be unique.")
            seen.add(client)
            if features and not any(len(feature) for feature in features.values()):
                meta["skipped_empty"] += 1
                continue
            try:
                arrays = {name: narrowed(feature, client, name) for name, feature in features.items()}
                if not first:
                    first.append((client, {name: array[:0] for name, array in arrays.items()}))
                check_client(client, arrays, *first[0])
            except ValueError as error:
                raise DataError(f"{path}: {error}") from error
            yield client, arrays


def same_clients(train: Path, train_ids: Collection[str], test: Path, test_ids: Collection[str]) -> None:
    """Refuse a test file that has none of the training clients: the two files are of different data sets."""
    if test_ids and not set(test_ids).intersection(train_ids):
        raise DataError(
            f"{test} has none of the clients of {train} (its first is {next(iter(test_ids))!r}); give files that match."
        )


def described(names: Iterable[Any]) -> str:
    """What there is, for a message: some of these names."""
    found = [repr(str(name)) for name in itertools.islice(names, 9)]
    return ", ".join(found[:8]) + (", ..." if len(found) > 8 else "") or "nothing"
