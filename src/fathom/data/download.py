"""The public archives of TensorFlow Federated: fetched, checked, unpacked and imported.

An archive is kept in the cache folder until its data set is complete, so that a download that was cut short goes on
where it stopped. Nothing is trusted but the SHA-256 that TensorFlow Federated publishes.
"""

import hashlib
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from fathom.data import cache, disk
from fathom.data.disk import DataError, DataSet
from fathom.data.importers import importer
from fathom.data.importers.reading import reading

BASE = "https://storage.googleapis.com/tff-datasets-public"
BLOCK = 1 << 16  # bytes that are held at a time


class Archive(NamedTuple):
    """A .tar.bz2 file, its hash, and what it holds."""

    file: str
    sha256: str
    members: tuple[str, ...]


class Source(NamedTuple):
    """Archives, and the importer that reads what is in them."""

    kind: str
    archives: tuple[Archive, ...]


SOURCES = {
    "femnist": Source(
        "tff-emnist",
        (
            Archive(
                "fed_emnist.tar.bz2",
                "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
                ("fed_emnist_train.h5", "fed_emnist_test.h5"),
            ),
        ),
    ),
    "stackoverflow": Source(
        "tff-stackoverflow",
        (
            Archive(
                "stackoverflow.word_count.tar.bz2",
                "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
                ("stackoverflow.word_count",),
            ),
            Archive(
                "stackoverflow.tar.bz2",
                "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2",
                ("stackoverflow_train.h5", "stackoverflow_test.h5", "stackoverflow_held_out.h5"),
            ),
        ),
    ),
}


class Patience(NamedTuple):
    """How long to wait, in seconds."""

    waits: tuple[float, ...] = (1, 2, 4, 8)  # before each new attempt; they start again when something has arrived
    timeout: float = 30  # for a server that says nothing


PATIENT = Patience()
# Told what is going on, how many bytes are done, and how many there are, if that is known.
Watch = Callable[[str, int, int | None], None]
Note = Callable[[str], None]  # told about each new attempt


def folder() -> Path:
    """Where archives are kept while they are needed."""
    return cache.folder() / "downloads"


def source_of(which: str) -> Source:
    """The source of that name."""
    if which not in SOURCES:
        raise DataError(f"{which!r} cannot be downloaded; choose from {', '.join(SOURCES)}.")
    return SOURCES[which]


def download(name: str, source: Source, watch: Watch, note: Note, patience: Patience = PATIENT) -> DataSet:
    """Fetch a source's archives and import them as the data set `name`."""
    disk.vacant(name)
    read = importer(source.kind)
    by_hand = manual(name, source)
    with _local(folder(), "FATHOM_CACHE"):
        folder().mkdir(parents=True, exist_ok=True)
        paths = [fetch(archive, by_hand, watch, note, patience) for archive in source.archives]
        with tempfile.TemporaryDirectory(dir=folder()) as aside:
            files = []
            for path, archive in zip(paths, source.archives, strict=True):
                files += unpack(path, archive, Path(aside), watch)
            watch(f"importing {name}", 0, None)
            imported = read(files)
            with _local(disk.home(), "FATHOM_DATA"):
                data = disk.write(name, imported.splits, imported.meta)
        for path in paths:
            path.unlink()
    return data


def manual(name: str, source: Source) -> str:
    """How to do without a connection, in one line."""
    fetched = " and ".join(f"{BASE}/{archive.file} (SHA-256 {archive.sha256})" for archive in source.archives)
    unpacked = " and ".join(f"`tar xjf {archive.file}`" for archive in source.archives)
    files = " ".join(member for archive in source.archives for member in archive.members)
    command = f"`fathom data import {source.kind} {files} --name {name}`"
    return f"By hand: fetch {fetched} on another machine, unpack with {unpacked}, then {command}."


def fetch(archive: Archive, by_hand: str, watch: Watch, note: Note, patience: Patience) -> Path:
    """The whole archive, with the right hash; what is there of it already is not fetched again."""
    path = folder() / archive.file
    if not path.exists():
        part = path.with_name(f"{archive.file}.part")
        _transfer(archive, part, by_hand, watch, note, patience)
        part.replace(path)
    found = _sha256(path)
    if found != archive.sha256:
        path.unlink()
        raise DataError(
            f"{_url(archive)} is not the file it should be: its SHA-256 is {found}, not {archive.sha256}. "
            "It was removed; try again."
        )
    return path


def unpack(path: Path, archive: Archive, into: Path, watch: Watch) -> list[Path]:
    """The members that an archive should have, as files; what they are called in it does not say where they go."""
    size = path.stat().st_size
    with reading(path), path.open("rb") as file, tarfile.open(fileobj=file, mode="r|bz2") as members:
        for member in members:
            name = PurePosixPath(member.name)
            if name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                raise DataError(
                    f"{path} holds {member.name!r}, a link, a device or a path that leads out of its folder; "
                    "it is refused. Remove the archive and get it from another place."
                )
            content = members.extractfile(member)
            if content is None or name.name not in archive.members:
                continue
            with _local(into, "FATHOM_CACHE"), (into / name.name).open("wb") as out:
                while block := content.read(BLOCK):
                    out.write(block)
                    watch(f"unpacking {archive.file}", file.tell(), size)
    missing = [name for name in archive.members if not (into / name).exists()]
    if missing:
        raise DataError(f"{path} does not hold {missing[0]!r}; remove it and try again.")
    return [into / name for name in archive.members]


class _LostError(Exception):
    """A transfer that broke off, with the server's answer if there was a bad one."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(" ".join(reason.split()))
        self.status = status
        # A refusal will stay one, but for "too slow", "too many requests" and what is wrong with the server itself.
        self.for_good = 400 <= status < 500 and status not in (408, 429)


def _transfer(archive: Archive, part: Path, by_hand: str, watch: Watch, note: Note, patience: Patience) -> None:
    """Fetch what is not there yet, in as many attempts as it takes while each brings something new."""
    url, waits = _url(archive), iter(patience.waits)
    with part.open("ab") as file:
        most = file.tell()
        while True:
            have = file.tell()
            try:
                # No If-Range is needed: where the server's file has changed, the hash of the whole will tell.
                for start, total, block in _answer(url, have, patience.timeout):
                    if not block:
                        _cut(file, start)
                        _check_room(archive, part, start, total)
                    file.write(block)
                    watch(f"fetching {archive.file}", file.tell(), total)
                return
            except _LostError as lost:
                file.flush()
                if lost.status == 416 and have:  # there is nothing behind what is there: it is all, or it is too much
                    if _sha256(part) == archive.sha256:
                        return
                    _cut(file, 0)
                    continue
                if file.tell() > most:
                    most, waits = file.tell(), iter(patience.waits)
                wait = None if lost.for_good else next(waits, None)
                if wait is None:
                    there = file.tell()
                    kept = f" {there:,} bytes are kept, and the same command goes on from there." if there else ""
                    raise DataError(f"{url} cannot be fetched: {lost}.{kept} {by_hand}") from lost
                note(f"{lost}; trying again in {wait:g} s")
                time.sleep(wait)


def _answer(url: str, have: int, timeout: float) -> Iterator[tuple[int, int | None, bytes]]:
    """What a server sends from byte `have` on: where it starts, the size of the whole, and a block, first an empty one.

    A server that cannot start there starts at 0.
    """
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            start = done = have if response.status == 206 else 0
            total = None if response.length is None else start + response.length
            yield start, total, b""
            while done != total and (block := response.read1(BLOCK)):
                done += len(block)
                yield start, total, block
    except urllib.error.HTTPError as error:
        raise _LostError(f"the server answered {error.code} {error.reason}", error.code) from error
    except urllib.error.URLError as error:
        raise _LostError(f"there is no connection ({error.reason})") from error
    except (OSError, HTTPException) as error:
        raise _LostError(f"the connection was lost ({str(error) or type(error).__name__})") from error
    if total is not None and done < total:
        raise _LostError(f"the connection was closed after {done:,} of {total:,} bytes")


def _cut(file: IO[bytes], size: int) -> None:
    if file.tell() > size:
        file.seek(size)
        file.truncate()


def _check_room(archive: Archive, part: Path, start: int, total: int | None) -> None:
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - start > free:
        raise DataError(
            f"{archive.file} needs {total - start:,} more bytes in {part.parent}, which has {free:,} free; "
            "make room, or set FATHOM_CACHE to a folder that has it."
        )


def _url(archive: Archive) -> str:
    base = os.environ.get("FATHOM_MIRROR") or BASE
    if not base.startswith(("https://", "http://")):
        raise DataError(f"FATHOM_MIRROR={base!r} is not a web address; give one that starts with https:// or http://.")
    return f"{base.rstrip('/')}/{archive.file}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _local(where: Path, variable: str) -> Iterator[None]:
    """Turn a full disk, or a folder that cannot be written, into an error that says which and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise DataError(
            f"{error.filename or where}: {reason}; make room there, or set {variable} to another folder, and try again."
        ) from error
