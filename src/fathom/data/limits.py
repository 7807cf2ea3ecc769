"""Files come from strangers: what they may be called, how much they may unpack to, and arrays without pickles.

What is read is data, never a program, and nothing small may unpack to something that fills the memory.
"""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

MOST = 256 << 20  # bytes that any file may unpack to
RATIO = 100  # and how many times its size a larger one may
LINE = 2000  # characters of an error


class DataError(ValueError):
    """Data that cannot be used: which, what is wrong with it, and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(message: str, most: int = LINE) -> str:
    """A message in one line; where a value in it is very long, the middle is left out.

    >>> one_line("a\\nb")
    'a b'
    """
    message = message if message.isprintable() else "".join(c if c.isprintable() else " " for c in message)
    return message if len(message) <= most else f"{message[: most // 2]} ... {message[-most // 2 + 5 :]}"


@contextmanager
def reading(path: Path, where: str = "") -> Iterator[None]:
    """Turn what a library raises while it reads a file into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    # A broken file makes libraries raise all kinds of things, tokenize.TokenError and MemoryError among them.
    except Exception as error:
        reason = one_line(" ".join(str(error).split()), 300) or "no reason given"
        place = f"{path}: {where}" if where else str(path)
        raise DataError(
            f"{place} cannot be read ({type(error).__name__}: {reason}); check that the file is complete."
        ) from error


def check_size(path: Path, size: int, packed: int | None = None, where: str = "") -> None:
    """Refuse what would unpack to more than a file, or `packed` bytes of it, can hold."""
    most = max(MOST, RATIO * (path.stat().st_size if packed is None else packed))
    if size > most:
        place = f"{path}: {where}" if where else str(path)
        raise DataError(
            f"{place} unpacks to {size:,} bytes or more; for its size, at most {most:,} are read. Split it."
        )


def inflated(path: Path, where: str, packed: bytes) -> bytes:
    """What zlib packed, unless that is too much."""
    unpacker = zlib.decompressobj()
    content = unpacker.decompress(packed, max(MOST, RATIO * len(packed)) + 1)
    check_size(path, len(content), len(packed), where)
    if not unpacker.eof:
        raise ValueError("incomplete or truncated stream")
    return content


class Unpacked(io.RawIOBase):
    """A packed file as it is read, until that is too much."""

    def __init__(self, path: Path, opened: Callable[..., IO[bytes]]) -> None:
        self.path, self.file, self.done = path, opened(path, "rb"), 0

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Unpack some more."""
        block = self.file.read(len(buffer))
        self.done += len(block)
        check_size(self.path, self.done)
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        """Close the packed file too."""
        self.file.close()
        super().close()


def npz(path: Path, names: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or those of them with these names; none of them is allocated before it is there."""
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} cannot be read as an .npz file of arrays; check that the file is there and complete.")
    with reading(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = {name: info for name, info in members.items() if names is None or name in names}
        check_size(path, sum(info.file_size for info in wanted.values()))
        return {name: _array(path, name, archive, info) for name, info in wanted.items()}


def _array(path: Path, name: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    with reading(path, f"array {name!r}"), archive.open(info) as file:
        shape, fortran, dtype = _header(file)
        if dtype.kind not in "biufSU" or not dtype.itemsize:
            raise DataError(
                f"{path} cannot be read as arrays: {name!r} holds {dtype}; save numbers or text, never pickles "
                "(allow_pickle=False)."
            )
        count = math.prod(shape)
        if min(shape, default=0) < 0 or count * dtype.itemsize > info.file_size:
            raise DataError(f"{path}: array {name!r} has shape {shape}, more than is there; check the file.")
        flat = np.frombuffer(file.read(count * dtype.itemsize), dtype, count)
        return flat.reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of .npy is not known")
    return readers[version](file)


def mapped(path: Path, folder: Path) -> np.ndarray:
    """An array of numbers in a .npy file, mapped; the file must be in `folder`, and not only linked from there."""
    with check_inside(path, folder).open("rb") as file:
        shape, _, dtype = _header(file)
    if dtype.kind not in "biuf" or not shape:
        raise ValueError(f"{path.name} holds {dtype} {shape}; only rows of numbers are read, never pickles")
    return np.lib.format.open_memmap(path, "r")


def check_inside(path: Path, folder: Path) -> Path:
    """The path of a file that is in a folder, wherever links lead."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path.name} is a link that leads out of {folder}")
    if not path.is_file():
        raise ValueError(f"{path.name} is missing, or is not a file")
    return path


def check_name(name: Any, where: str) -> None:
    """Refuse the name of a feature that cannot be a file's name, or could lead out of a folder."""
    good = isinstance(name, str) and name.isprintable() and not set(name) & set('/\\:*?"<>|')
    if not good or not 1 <= len(name.encode()) <= 200 or name.startswith((".", " ")) or name == "offsets":
        raise DataError(
            f"{where}: {name!r} cannot be the name of a feature; rename it in letters, digits, '_' and '-'."
        )
