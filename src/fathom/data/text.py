"""Sentences as rows of word ids, for next-word prediction.

Id 0 is padding, 1 begins and 2 ends a sentence, words follow from 3 on, most frequent first, and the last id stands
for every word that is not in the vocabulary: the numbering of TensorFlow Federated and of the paper.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fathom.data.disk import DataError

PAD, BEGIN, END = 0, 1, 2
FIRST = 3  # id of the most frequent word
MOST = np.iinfo(np.uint16).max - FIRST  # words that a vocabulary may have: ids are kept in 16 bits

Sentence = str | Sequence[str]  # words with white space between them, or the words themselves


def count(sentences: Iterable[Sentence]) -> Counter[str]:
    """How often each word occurs.

    >>> count(["to be or not to be"])["to"]
    2
    """
    counts: Counter[str] = Counter()
    for sentence in sentences:
        counts.update(words(sentence))
    return counts


def vocabulary(counts: Mapping[str, int] | Path | str, size: int = 10_000) -> list[str]:
    """The `size` most frequent words, most frequent first; counts may be a file of "word count" lines or JSON.

    >>> vocabulary({"a": 1, "b": 2, "c": 1}, 2)
    ['b', 'a']
    """
    if not 1 <= size <= MOST:
        raise DataError(f"vocabulary={size} is not between 1 and {MOST}; choose a size in between.")
    if isinstance(counts, Path | str):
        counts = read_counts(Path(counts))
    return sorted(counts, key=lambda word: -counts[word])[:size]  # stable: words that are as frequent keep their order


def numbered(words: Sequence[str]) -> dict[str, int]:
    """The id of each word of a vocabulary."""
    return {word: id for id, word in enumerate(words, FIRST)}


def encode(sentences: Iterable[Sentence], index: Mapping[str, int], length: int = 20) -> np.ndarray:
    """Sentences as (n, length + 1) uint16: begin, the first `length` words, end where there is room, padding.

    >>> encode(["to be", "be or not to be"], numbered(["to", "be"]), length=4)
    array([[1, 3, 4, 2, 0],
           [1, 4, 5, 5, 3]], dtype=uint16)
    """
    unknown = len(index) + FIRST
    rows = []
    for sentence in sentences:
        row = [BEGIN, *(index.get(word, unknown) for word in words(sentence)[:length]), END][: length + 1]
        rows.append(row + [PAD] * (length + 1 - len(row)))
    return np.array(rows, np.uint16).reshape(-1, length + 1)


def words(sentence: Sentence) -> Sequence[str]:
    """The words of a sentence."""
    return sentence.split() if isinstance(sentence, str) else sentence


def read_counts(path: Path) -> dict[str, int]:
    """Word counts from a file of "word count" lines, or of one JSON object."""
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}. Is it a file of word counts?") from error
    counts: dict[str, int] = {}
    if content.startswith("{") and content.rstrip().endswith("}"):
        try:
            counts = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} looks like JSON but cannot be read: {error}. It needs numbers by word.") from error
        for word, number in counts.items():
            if not isinstance(number, int | float) or not abs(number) < 1e18:
                raise DataError(f"{path}: {word!r} has the count {number!r}; give a number.")
    # Not splitlines(), which would also break lines at characters that may be part of a word.
    for number, line in enumerate([] if counts else content.split("\n"), 1):
        parts = line.rsplit(maxsplit=1)
        if parts and (len(parts) < 2 or not parts[1].isdecimal() or len(parts[1]) > 18):
            raise DataError(f"{path}: line {number} is {line[:60]!r}; a line needs a word, a space and its count.")
        if parts:
            counts.setdefault(parts[0], int(parts[1]))
    if not counts:
        raise DataError(f"{path} has no word counts; give a file of 'word count' lines.")
    return counts
