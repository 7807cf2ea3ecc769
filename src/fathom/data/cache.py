"""Arrays made once and kept in the user's cache folder."""

import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs

Arrays = dict[str, np.ndarray]


def folder() -> Path:
    """Where things are kept: $FATHOM_CACHE, or the platform's place for caches."""
    return Path(os.environ.get("FATHOM_CACHE") or platformdirs.user_cache_path("fathom"))


def cached(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays kept under `name`; made and kept if they are not there, or cannot be read."""
    path = folder() / f"{name}.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written aside and renamed, so that nobody ever reads half a file.
        handle, aside = tempfile.mkstemp(dir=path.parent, suffix=".npz")
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        os.replace(aside, path)
    except OSError:
        pass  # a cache that cannot be written costs time, not the run
    return arrays
