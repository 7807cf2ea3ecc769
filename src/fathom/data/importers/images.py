"""Images in folders: ROOT/client/class/image."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fathom.data.disk import Clients, DataError
from fathom.data.importers.checks import check_share, drawn, labels
from fathom.data.importers.reading import First, Import, about, kept, reading

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".tif", ".tiff", ".webp"}


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")  # others are not tried: some run a program
MOST = 1 << 26  # pixels of an image


def images(paths: Sequence[Path], *, side: int | None = None, test_share: float = 0.1) -> Import:
    """Images in folders by client and class, ROOT/client/class/image.png; `side` makes all of them side x side."""
    check_share(test_share)
    if side is not None and not 1 <= side <= 4096:
        raise DataError(f"side={side} is not the side of an image; give 1 to 4096.")
    if len(paths) != 1:
        raise DataError(f"images takes one folder; {len(paths)} were given.")
    (root,) = paths
    if not root.is_dir():
        raise DataError(f"{root}: there is no such folder; give the folder that holds a folder for each client.")
    clients = {folder.name: _pictures(folder) for folder in sorted(root.iterdir()) if _is_folder(folder)}
    classes = sorted({path.parent.name for files in clients.values() for path in files})
    if not classes:
        raise DataError(f"{root}: there are no images in folders of the form client/class/image; arrange them so.")
    told = f"grey from 0 to 255{f', resized to {side} x {side}' if side else ''}"
    told += f"; {test_share:g} of each client's images drawn for testing" if test_share else ""
    meta = about("images", paths, told, classes=classes)
    first: First = []
    splits = {"train": kept(root, _examples(root, clients, classes, side, test_share, False), meta, first)}
    if test_share:
        rest = _examples(root, clients, classes, side, test_share, True)
        splits["test"] = kept(root, rest, {"skipped_empty": 0}, first)
    return Import(splits, meta)


def decode(source: Any, name: Path, where: str = "", side: int | None = None) -> np.ndarray:
    """One image file, or its bytes, as (height, width) uint8 grey."""
    content = io.BytesIO(source) if isinstance(source, bytes) else source
    with reading(name, where), Image.open(content, formats=FORMATS) as image:
        if image.width * image.height > MOST:
            raise DataError(f"{name}: {where} {image.size} is an image of more than {MOST:,} pixels; make it smaller.")
        grey = image.convert("L")
        return np.asarray(grey.resize((side, side), Image.Resampling.LANCZOS) if side else grey)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _pictures(folder: Path) -> list[Path]:
    """The images of one client, by class and name."""
    files = [file for part in sorted(folder.iterdir()) if _is_folder(part) for file in sorted(part.iterdir())]
    return [file for file in files if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]


def _examples(
    root: Path, clients: dict[str, list[Path]], classes: list[str], side: int | None, share: float, testing: bool
) -> Clients:
    number = {name: label for label, name in enumerate(classes)}
    shape: tuple[int, ...] | None = None
    for client, files in clients.items():
        chosen = [files[i] for i in np.flatnonzero(drawn(client, len(files), share) == testing)]
        x = []
        for file in chosen:
            x.append(decode(file, file, side=side))
            shape = shape or x[-1].shape
            if x[-1].shape != shape:
                raise DataError(f"{file} is {x[-1].shape}, others are {shape} (height, width); use `side` to resize.")
        numbers = np.array([number[file.parent.name] for file in chosen], int)
        yield client, {"x": np.array(x), "y": labels(root, client, numbers, len(x), len(classes))}
