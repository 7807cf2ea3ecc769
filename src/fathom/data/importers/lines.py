"""Text as a table: a CSV file or JSON lines with a user and a text in each row."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fathom.data import text as words
from fathom.data.disk import Clients, DataError
from fathom.data.importers.checks import check_share, check_text, for_testing
from fathom.data.importers.reading import Import, about, check_files, described, kept, reading
from fathom.data.limits import Unpacked

PACKED = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def text(
    paths: Sequence[Path],
    *,
    user: str = "user",
    text: str = "text",
    test_share: float = 0.1,
    vocabulary: int = 10_000,
    sentences: int = 128,
    length: int = 20,
) -> Import:
    """Text by user: .csv files with a header, or JSON lines, also as .gz, .xz or .bz2; a row is a sentence."""
    check_share(test_share)
    check_text(sentences, length)
    check_files("text", paths)
    # Rows of a user may be anywhere, so the text is held until all of it is read.
    users: dict[str, list[str]] = {}
    for path in paths:
        for name, line in rows(path, user, text):
            users.setdefault(name, [])
            if line.strip():
                users[name].append(line)
    training = (line for own in users.values() for line in _part(own, test_share, False)[:sentences])
    chosen = words.vocabulary(words.count(training), vocabulary)
    told = f"the first {sentences} sentences of each training client; the first {length} words of each"
    told += f"; the last {test_share:g} of each client's sentences for testing" if test_share else ""
    meta = about("text", paths, told, vocabulary=chosen)
    index = words.numbered(chosen)

    def clients(testing: bool, limit: int | None) -> Clients:
        for name, own in users.items():
            yield name, {"tokens": words.encode(_part(own, test_share, testing)[:limit], index, length)}

    splits = {"train": kept(paths[0], clients(False, sentences), meta)}
    if test_share:  # a client that has nothing for testing is not empty, so it is counted nowhere
        splits["test"] = kept(paths[0], clients(True, None), {"skipped_empty": 0})
    return Import(splits, meta)


def open_text(path: Path) -> IO[str]:
    """A text file, unpacked if its name says that it is packed."""
    packed = PACKED.get(path.suffix.lower())
    file = io.BufferedReader(Unpacked(path, packed), 1 << 16) if packed else path.open("rb")  # pyright: ignore[reportArgumentType]
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, with their line numbers."""
    with reading(path), open_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            with reading(path, f"line {number}"):
                record = json.loads(line)
            if not isinstance(record, dict):
                raise DataError(f"{path}: line {number} is {line[:40]!r}; it needs to be a JSON object.")
            yield number, record


def rows(path: Path, user: str, text: str) -> Iterator[tuple[str, str]]:
    """The user and the text of each row."""
    kinds = {suffix.lower() for suffix in path.suffixes}
    if not kinds & {".csv", ".jsonl", ".ndjson", ".json"}:
        raise DataError(f"{path}: its name says neither CSV nor JSON lines; name it .csv or .jsonl (and .gz or .xz).")
    for number, record in _table(path) if ".csv" in kinds else json_lines(path):
        missing = [name for name in (user, text) if record.get(name) is None]
        if missing:
            raise DataError(f"{path}: line {number} has no {missing[0]!r}, only {described(record)}; name the columns.")
        if not isinstance(record[text], str) or not isinstance(record[user], str | int) or record[user] == "":
            raise DataError(
                f"{path}: line {number} has user {record[user]!r} and {type(record[text]).__name__} for {text!r}; "
                "give an id and a text."
            )
        yield str(record[user]), record[text]


def _table(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with reading(path), open_text(path) as file:
        table = csv.DictReader(file, strict=True)
        for record in table:
            yield table.line_num, {str(name): value for name, value in record.items()}


def _part(own: list[str], share: float, testing: bool) -> list[str]:
    """A client's last sentences for testing, or the others."""
    kept = len(own) - for_testing(len(own), share)
    return own[kept:] if testing else own[:kept]
