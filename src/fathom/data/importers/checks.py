"""Checks of what is read and of how it is asked for: images, labels, text, shares for testing."""

import string
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fathom.data.disk import DataError

CHARACTERS = list(string.digits + string.ascii_uppercase + string.ascii_lowercase)  # EMNIST's 62 classes, in order
NIST = "NIST Special Database 19, a work of the United States government"


def greys(path: Path, client: str, pixels: Any) -> np.ndarray:
    """(n, 28, 28) pixels, paper 1 and ink 0, as uint8 with paper 255 and ink 0."""
    pixels = np.asarray(pixels)
    if pixels.shape[1:] != (28, 28) or pixels.dtype.kind != "f":
        raise DataError(
            f"{path}: client {client!r} has images of {pixels.dtype} {pixels.shape}; they need to be float (n, 28, 28)."
        )
    if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):  # written so that NaN is refused too
        raise DataError(
            f"{path}: client {client!r} has pixels from {pixels.min()} to {pixels.max()}; they need to be from 0 to 1."
        )
    return np.rint(255 * pixels).astype(np.uint8)


def labels(path: Path, client: str, values: Any, rows: int, classes: int = len(CHARACTERS)) -> np.ndarray:
    """(rows,) class numbers, checked, in as few bits as will do."""
    values = np.asarray(values)
    if values.shape != (rows,) or (rows and values.dtype.kind not in "iu"):
        raise DataError(
            f"{path}: client {client!r} has labels of {values.dtype} {values.shape} for {rows} examples; "
            "give one whole number for each."
        )
    wrong = np.flatnonzero((values < 0) | (values >= classes))
    if len(wrong):
        raise DataError(
            f"{path}: client {client!r}, example {wrong[0]} has label {values[wrong[0]]}; "
            f"labels are from 0 to {classes - 1}."
        )
    return values.astype(np.uint8 if classes <= 256 else np.int32)


def check_share(test_share: float) -> None:
    """Refuse a share of test examples that leaves nothing to train on."""
    if not 0 <= test_share < 1:
        raise DataError(f"test_share={test_share} is not a share; give a number from 0 up to, but not, 1.")


def check_text(sentences: int, length: int) -> None:
    """Refuse limits on text that leave nothing of it."""
    for name, value in {"sentences": sentences, "length": length}.items():
        if value < 1:
            raise DataError(f"{name}={value} leaves no text; give 1 or more.")


def for_testing(rows: int, share: float) -> int:
    """How many of a client's examples are for testing; at least one is left to train on."""
    return rows - max(int(np.ceil(rows * (1 - share) - 1e-9)), min(rows, 1))


def drawn(client: str, rows: int, share: float) -> np.ndarray:
    """Which of a client's examples are for testing, (rows,) bool: a draw that depends on the client's id alone."""
    chosen = np.random.default_rng(zlib.crc32(client.encode())).permutation(rows)[: for_testing(rows, share)]
    mask = np.zeros(rows, bool)
    mask[chosen] = True
    return mask
