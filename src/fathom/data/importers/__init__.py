"""Importers: from the formats that federated data comes in to clients and their examples."""

import difflib
import importlib
from collections.abc import Callable

from fathom.data.disk import DataError
from fathom.data.importers.reading import Import

# Module and function of each kind of source. They are looked up when asked for, because some need an optional library.
IMPORTERS = {
    "tff-emnist": "tff:emnist",
    "tff-stackoverflow": "tff:stackoverflow",
    "fedjax-sqlite": "fedjax:sqlite",
    "leaf": "leaf:leaf",
    "parquet": "parquet:parquet",
    "text": "lines:text",
    "images": "images:images",
    "femnist-npz": "archives:femnist",
    "stackexchange": "archives:stackexchange",
}

__all__ = ["IMPORTERS", "Import", "importer"]


def importer(kind: str) -> Callable[..., Import]:
    """The importer of a kind of source: a function of paths and options; its first docstring line says what it reads.

    >>> importer("leaf").__name__
    'leaf'
    """
    if kind not in IMPORTERS:
        near = difflib.get_close_matches(kind, IMPORTERS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DataError(f"there is no kind {kind!r}; choose from {', '.join(IMPORTERS)}.{hint}")
    module, function = IMPORTERS[kind].split(":")
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), function)
    except ImportError as error:
        raise DataError(
            f"importing {kind!r} needs {error.name}, which is missing; pip install 'fathom[data]'."
        ) from error
