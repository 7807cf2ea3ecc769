"""Two archives that fathom is tested with: FEMNIST as .npz files, and Stack Exchange users as JSON lines."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fathom.data import text
from fathom.data.disk import Clients, DataError
from fathom.data.importers.checks import CHARACTERS, NIST, check_text, labels
from fathom.data.importers.lines import json_lines
from fathom.data.importers.reading import Import, about, by_role, described, kept, reading, same_clients
from fathom.data.limits import npz

ARRAYS = ("images", "labels", "client_offsets", "client_ids")


def femnist(paths: Sequence[Path]) -> Import:
    """FEMNIST as .npz files, train and test: images, labels, client_offsets and client_ids."""
    files = by_role("femnist-npz", paths, ("train", "test"), ["train"])
    if "test" in files:
        same_clients(files["train"], _ids(files["train"]), files["test"], _ids(files["test"]))
    meta = about("femnist-npz", files.values(), "none: uint8, paper 255 and ink 0", classes=CHARACTERS, licence=NIST)
    return Import({split: kept(path, _writers(path), meta) for split, path in files.items()}, meta)


def stackexchange(paths: Sequence[Path], *, vocabulary: int = 10_000, sentences: int = 128, length: int = 20) -> Import:
    """Stack Exchange users as JSON lines (.jsonl.xz), with their .word_count file."""
    check_text(sentences, length)
    files = by_role("stackexchange", paths, ("train", "word_count"), ["train", "word_count"])
    words = text.vocabulary(files["word_count"], vocabulary)
    told = (
        f"the first {sentences} sentences of each training client, all others whole; the first {length} words of each"
    )
    meta = about("stackexchange", files.values(), told, vocabulary=words, licence="CC BY-SA")
    index, path = text.numbered(words), files["train"]

    def clients(split: str, limit: int | None) -> Clients:
        for user in _users(path):
            parts = slice(0, user["n_train"]), slice(user["n_train"], None)
            part = {"train": parts[0], "test": parts[1], "unseen": slice(None)}[split]
            own = user["sentences"][part]
            # A user with nothing to test on is not an empty one, and is left out without being counted.
            if user["held_out"] == (split == "unseen") and (own or split != "test"):
                yield user["user"], {"tokens": text.encode(own[:limit], index, length)}

    limits = {"train": sentences, "test": None, "unseen": None}
    return Import({split: kept(path, clients(split, limit), meta) for split, limit in limits.items()}, meta)


def _array(path: Path, archive: dict[str, np.ndarray], name: str) -> np.ndarray:
    if name not in archive:
        raise DataError(f"{path} has no {name!r}, only {described(archive)}; it needs {', '.join(ARRAYS)}.")
    return archive[name]


def _ids(path: Path) -> list[str]:
    with reading(path):
        return [str(client) for client in np.atleast_1d(_array(path, npz(path, ("client_ids",)), "client_ids"))]


def _writers(path: Path) -> Clients:
    archive = npz(path, ARRAYS)
    x, y, offsets, ids = (_array(path, archive, name) for name in ARRAYS)
    if ids.ndim != 1 or offsets.dtype.kind not in "iu":
        raise DataError(f"{path}: client_ids are {ids.dtype} {ids.shape}, client_offsets {offsets.dtype}; repair them.")
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28):
        raise DataError(f"{path}: images are {x.dtype} {x.shape}; they need to be uint8 (n, 28, 28).")
    if y.shape != (len(x),):
        raise DataError(f"{path}: there are {len(x)} images and labels of shape {y.shape}; give one label for each.")
    rising = offsets.shape == (len(ids) + 1,) and offsets[0] == 0 and bool((np.diff(offsets) >= 0).all())
    if not rising or offsets[-1] != len(x):
        raise DataError(
            f"{path}: client_offsets of shape {offsets.shape} do not divide {len(x)} images among {len(ids)} clients; "
            "they rise from 0 to the number of images."
        )
    for client, start, stop in zip(map(str, ids), offsets, offsets[1:], strict=False):
        yield client, {"x": x[start:stop], "y": labels(path, client, y[start:stop], stop - start)}


def _users(path: Path) -> Iterator[dict[str, Any]]:
    for number, user in json_lines(path):
        own, n_train = user.get("sentences"), user.get("n_train")
        good = isinstance(user.get("user"), str) and isinstance(user.get("held_out"), bool)
        if not good or not isinstance(own, list) or not all(isinstance(sentence, str) for sentence in own):
            raise DataError(f"{path}: line {number} needs a user, held_out (true or false) and sentences; repair it.")
        if not isinstance(n_train, int) or not 0 <= n_train <= len(own):
            raise DataError(
                f"{path}: line {number}: user {user['user']!r} has n_train={n_train} of {len(own)} sentences; repair."
            )
        yield user
