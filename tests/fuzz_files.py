"""What the kinds of input share: files that are written and damaged, imports, clients, an image."""

import io
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from fathom.data import disk
from fathom.data.importers import importer
from fuzz_mutations import as_json, bent, damaged, odd_array

Image = pytest.importorskip("PIL.Image")
Files = dict[str, bytes]


def put(files: Files, folder: Path) -> list[Path]:
    """Write files into a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def some_damaged(rng: Random, files: Files, odds: float = 0.6) -> Files:
    """The files, with damage to the bytes of one of them more often than not."""
    if rng.random() > odds:
        return files
    name = rng.choice(list(files))
    return {**files, name: damaged(rng, files[name])}


def imports(kind: str, files: Files, folder: Path, **options: Any) -> None:
    """Import files as `fathom data import` does."""
    made = importer(kind)(put(files, folder), **options)
    disk.write("mine", made.splits, made.meta)


def clients(rng: Random, names: str = "ab") -> dict[str, dict[str, np.ndarray]]:
    """Writers of two images each, and one in four of them with something odd about an array."""
    draw = np.random.default_rng(rng.randrange(9))
    made = {}
    for name in names:
        own: dict[str, Any] = {
            "pixels": draw.random((2, 28, 28), np.float32),
            "label": draw.integers(0, 62, 2, np.int32),
        }
        if rng.random() < 0.25:
            key = rng.choice(list(own))
            own[key] = odd_array(rng, own[key])
        made[rng.choice((name, name, name, "é", "..", "a b")) if rng.random() < 0.1 else name] = own
    return made


COUNTS = b"the 30\ncat 20\nsat 10\n"
LINES = [b"the cat", b"sat dog", b"cat"]


def counts(rng: Random) -> bytes:
    """A file of word counts, as lines or as JSON."""
    return COUNTS if rng.random() < 0.7 else as_json(bent(rng, {"the": 30, "cat": 20, "sat": 10}))


@cache
def png(width: int = 4) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.arange(width * width, dtype=np.uint8).reshape(width, width)).save(out, "PNG")
    return out.getvalue()
