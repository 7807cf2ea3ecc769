"""A look at a data set: a contact sheet of some clients' images, or some clients' sentences."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fathom.data.disk import DataError, DataSet
from fathom.data.text import END

DIGITS_AND_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def picture(data: DataSet, path: Path, clients: int = 8, each: int = 16) -> Path:
    """Draw the first images of some clients, a row each, with their labels."""
    train = data.splits["train"]
    places = np.linspace(0, len(train) - 1, min(clients, len(train))).astype(int)
    figure = Figure(figsize=(each * 0.62, len(places) * 0.86 + 0.4), dpi=120, layout="constrained")
    axes = np.reshape(figure.subplots(len(places), each, squeeze=False), (len(places), each))
    for row, place in zip(axes, places, strict=True):
        features = train.client(train.ids[place])
        for axis in row:
            axis.axis("off")
        for axis, image, label in zip(row, features["x"], features["y"], strict=False):
            axis.imshow(image, cmap="gray")
            axis.set_title(_name(data, int(label)), fontsize=8, pad=2)
        row[0].text(-0.3, 0.5, train.ids[place], transform=row[0].transAxes, fontsize=7, ha="right", va="center")
    figure.suptitle(f"{data.meta['name']}: the first images of {len(places)} of {len(train)} clients", fontsize=10)
    figure.savefig(path)
    return path


def sentences(data: DataSet, clients: int = 5, each: int = 3) -> list[tuple[str, list[str]]]:
    """Some clients and their first sentences, as the task will see them."""
    words = [
        "",
        "",
        "",
        *data.meta.get("vocabulary", []),
        "▢",
    ]  # padding, begin, end; a box for words out of vocabulary
    train = data.splits["train"]
    tokens = train.examples["tokens"]
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu" or "vocabulary" not in data.meta:
        raise DataError(f"{data.path}: tokens of {tokens.dtype} {tokens.shape} are not sentences. Import them again.")
    places = np.linspace(0, len(train) - 1, min(clients, len(train))).astype(int)
    shown = []
    for place in places:
        tokens = train.client(train.ids[place])["tokens"][:each]
        shown.append(
            (train.ids[place], [" ".join(words[min(t, len(words) - 1)] for t in line if t > END) for line in tokens])
        )
    return shown


def _name(data: DataSet, label: int) -> str:
    classes = data.meta.get("classes")
    names = DIGITS_AND_LETTERS if classes == len(DIGITS_AND_LETTERS) else classes
    return str(names[label]) if isinstance(names, list | str) and 0 <= label < len(names) else str(label)
