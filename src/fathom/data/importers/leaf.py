"""Data sets of LEAF, from its JSON files."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fathom.data import text
from fathom.data.disk import Clients, DataError
from fathom.data.federation import is_text
from fathom.data.importers.checks import CHARACTERS, check_share, check_text, drawn, greys, labels
from fathom.data.importers.reading import First, Import, about, kept, reading, role

MARKS = {"<BOS>", "<EOS>", "<PAD>"}  # that LEAF puts into Reddit's sentences; fathom has ids of its own for them
Make = Callable[[Path, str, list[Any], list[Any]], dict[str, np.ndarray]]  # (file, user, x, y) to features


def leaf(
    paths: Sequence[Path],
    *,
    vocabulary: int = 10_000,
    sentences: int = 128,
    length: int = 20,
    test_share: float = 0.1,
) -> Import:
    """Data of LEAF: its data folder with train/ and test/, or .json files; images, numbers, or text to predict."""
    check_share(test_share)
    check_text(sentences, length)
    train, test = _files(paths)
    share = 0.0 if test else test_share
    sample = next((x[0] for path in train for _, x, _ in _clients(path) if x), None)
    facts: dict[str, Any] = {}
    limit = None
    if _is_text(sample):
        words = text.vocabulary(text.count(_training_text(train, share, sentences)), vocabulary)
        make, limit, facts["vocabulary"] = _encoder(words, length), sentences, words
        told = f"the first {sentences} sentences of each training client; the first {length} words of each; no labels"
    elif isinstance(sample, list) and len(sample) == 28 * 28:
        make, facts["classes"] = _image, CHARACTERS
        told = "pixels from 0 to 1 stored as 0 to 255, paper 255 and ink 0"
    else:
        make, told = _numbers, "features as they are"
    told += f"; {share:g} of each client's examples drawn for testing" if share else ""
    meta = about("leaf", [*train, *test], told, **facts)
    first: First = []
    splits = {"train": _split(train, make, meta, first, lambda user, rows: ~drawn(user, rows, share), limit)}
    if test:  # LEAF splits by sample or by user, and users that are split off are never trained on
        name = "test" if _users(train) & _users(test) else "unseen"
        splits[name] = _split(test, make, meta, first, lambda user, rows: np.ones(rows, bool))
    elif share:  # a client that has nothing for testing is not empty, so it is counted nowhere
        splits["test"] = _split(train, make, {"skipped_empty": 0}, first, lambda user, rows: drawn(user, rows, share))
    return Import(splits, meta)


def _files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Training and test files, by the folder they are in or by their names."""
    if not paths:
        raise DataError("leaf needs a folder or .json files to import; none was given.")
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder; check the path.")
        folders = [path / "train", path / "test"] if (path / "train").is_dir() else [path]
        found += [path] if path.is_file() else [file for part in folders for file in sorted(part.glob("*.json"))]
    test = [path for path in found if path.parent.name == "test" or role(path) == "test"]
    train = [path for path in found if path not in test]
    if not train:
        raise DataError(f"{paths[0]}: there are no training .json files in it; run LEAF's preprocess.sh first.")
    return train, test


def _users(files: Sequence[Path]) -> set[str]:
    """The clients of these files."""
    users: set[str] = set()
    for path in files:
        with reading(path):
            content = path.read_text(encoding="utf-8")
            first = re.match(r'\s*\{\s*"users"\s*:\s*', content)  # then it is decoded alone: examples are much longer
            if first:
                found = json.JSONDecoder().raw_decode(content, first.end())[0]
            else:
                whole = json.loads(content)
                found = whole.get("users") if isinstance(whole, dict) else None
            if not isinstance(found, list) or not all(isinstance(user, str) for user in found):
                raise DataError(f"{path} has no list of 'users'; it is not a file of LEAF's data.")
            users |= set(found)
    return users


def _clients(path: Path) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Each client's x and y as they are."""
    with reading(path):
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict) or not {"users", "user_data"} <= data.keys():
            raise DataError(f"{path} has no 'users' and 'user_data'; it is not a file of LEAF's data.")
        if not isinstance(data["users"], list) or not isinstance(data["user_data"], dict):
            raise DataError(f"{path}: 'users' is not a list or 'user_data' not an object; it is not a file of LEAF's.")
        for user in data["users"]:
            if not isinstance(user, str) or not is_text(user):
                raise DataError(f"{path}: client id {user!r} is not text; write ids as UTF-8.")
            own = data["user_data"].get(user)
            own = own if isinstance(own, dict) else {}
            lengths = [len(own[name]) if isinstance(own.get(name), list) else None for name in "xy"]
            if None in lengths or lengths[0] != lengths[1]:
                raise DataError(
                    f"{path}: client {user!r} has {lengths[0]} x and {lengths[1]} y; it needs lists of one length."
                )
            yield user, own["x"], own["y"]


def _split(
    files: Sequence[Path],
    make: Make,
    meta: dict[str, Any],
    first: First,
    pick: Callable[[str, int], np.ndarray],
    limit: int | None = None,
) -> Clients:
    """The examples that `pick` chooses of each client, at most `limit`."""
    seen: set[str] = set()

    def clients(path: Path) -> Clients:
        for user, x, y in _clients(path):
            features = make(path, user, x, y) if x else {"x": np.zeros(0)}
            yield user, {name: feature[pick(user, len(x))][:limit] for name, feature in features.items()}

    for path in files:
        yield from kept(path, clients(path), meta, first, seen)


def _image(path: Path, user: str, x: list[Any], y: list[Any]) -> dict[str, np.ndarray]:
    wrong = [i for i, pixels in enumerate(x) if not isinstance(pixels, list) or len(pixels) != 28 * 28]
    if wrong:
        raise DataError(f"{path}: client {user!r}, example {wrong[0]} is not an image of 784 pixels; repair it.")
    pixels = np.array(x, float).reshape(-1, 28, 28)
    return {"x": greys(path, user, pixels), "y": labels(path, user, y, len(x))}


def _numbers(path: Path, user: str, x: list[Any], y: list[Any]) -> dict[str, np.ndarray]:
    try:
        values = np.array(x, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: client {user!r} cannot be read: its x is not rows of numbers ({error}).") from error
    with reading(path, f"client {user!r}"):
        return {"x": values, "y": labels(path, user, y, len(x), 1 << 31)}


def _is_text(sample: Any) -> bool:
    while isinstance(sample, list) and sample:
        sample = sample[0]
    return isinstance(sample, str)


def _training_text(files: Sequence[Path], share: float, limit: int) -> Iterator[text.Sentence]:
    for path in files:
        for user, x, y in _clients(path):
            own = [_sentence(path, user, *example) for example in zip(x, y, strict=True)]
            yield from [own[i] for i in np.flatnonzero(~drawn(user, len(x), share))[:limit]]


def _encoder(words: list[str], length: int) -> Make:
    index = text.numbered(words)

    def make(path: Path, user: str, x: list[Any], y: list[Any]) -> dict[str, np.ndarray]:
        own = [_sentence(path, user, *example) for example in zip(x, y, strict=True)]
        return {"tokens": text.encode(own, index, length)}

    return make


def _sentence(path: Path, user: str, x: Any, y: Any) -> text.Sentence:
    """The words of one example: a text, a tweet's record (Sentiment140), or (lists of) words (Reddit)."""
    if isinstance(x, str) and isinstance(y, str) and len(y) == 1:
        raise DataError(f"{path}: client {user!r} has characters to predict, as in Shakespeare; fathom predicts words.")
    if isinstance(x, str) and x.endswith((".jpg", ".png")):
        raise DataError(f"{path}: client {user!r} has names of images, as in CelebA; import the images themselves.")
    if isinstance(x, list) and len(x) == 5 and x[3] == user:  # id, date, query, user, text
        x = x[4]
    words = _flat(x) if isinstance(x, list) else [x]
    if not all(isinstance(word, str) for word in words):
        raise DataError(f"{path}: client {user!r} has {str(x)[:40]!r} where text should be; repair or drop it.")
    return x if isinstance(x, str) else [word for word in words if word not in MARKS]


def _flat(words: list[Any]) -> list[Any]:
    """The words of lists in lists, however deep."""
    flat, left = [], list(reversed(words))
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += reversed(part)
        else:
            flat.append(part)
    return flat
