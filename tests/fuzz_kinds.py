"""The kinds of input that `fuzz.py` damages: how one is made from a draw, and who reads it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from fathom.data import disk
from fathom.data.importers import importer
from fathom.experiment import spec as specs
from fuzz_archives import archive, bomb, femnist, images, partitions, single, stackexchange, text, unpacks
from fuzz_files import Files, imports, put
from fuzz_runs import (
    assignment,
    federation,
    opens,
    reads,
    records,
    resolves,
    sets,
    spec_file,
    tree,
    written,
)
from fuzz_tables import fedjax, leaf, one_parquet, parquet, tff_emnist, tff_text, zeros


class Kind(NamedTuple):
    """How an input is made from a draw, and what is done with it in an empty folder."""

    make: Callable[[Random], Any]
    feed: Callable[[Any, Path], Any]


def _import(kind: str) -> Callable[[Files, Path], None]:
    return lambda files, folder: imports(kind, files, folder)


def _images(files: Files, folder: Path) -> None:
    put(files, folder)
    made = importer("images")([folder / "root"], test_share=0.3)
    disk.write("mine", made.splits, made.meta)


def warm() -> None:
    """Make what is made once."""
    for make in (bomb, zeros, one_parquet, partial(written, True), partial(written, False)):
        make()
    for kind in KINDS.values():
        kind.make(Random(0))


KINDS = {
    "spec file": Kind(spec_file, lambda files, folder: resolves(specs.read(put(files, folder)[0]), folder)),
    "spec values": Kind(tree, resolves),
    "set": Kind(assignment, sets),
    "tff-emnist": Kind(tff_emnist, _import("tff-emnist")),
    "tff-stackoverflow": Kind(tff_text, _import("tff-stackoverflow")),
    "fedjax-sqlite": Kind(fedjax, _import("fedjax-sqlite")),
    "leaf": Kind(leaf, _import("leaf")),
    "parquet": Kind(parquet, _import("parquet")),
    "text": Kind(text, _import("text")),
    "images": Kind(images, _images),
    "femnist-npz": Kind(femnist, _import("femnist-npz")),
    "stackexchange": Kind(stackexchange, _import("stackexchange")),
    "single": Kind(single, partitions),
    "federation": Kind(federation, opens),
    "archive": Kind(archive, unpacks),
    "records": Kind(records, reads),
}
