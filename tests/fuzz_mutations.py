"""Damage: to bytes, to trees of values as JSON and TOML have them, and to arrays."""

import json
import math
from random import Random
from typing import Any

import numpy as np
import tomli_w

DIGITS, DEEP, INFINITE, NESTED = (
    "@digits@",
    "@deep@",
    "@infinite@",
    "@nested@",
)  # put in as text, since no library would write them
PLAIN = {DIGITS: "9" * 5000, DEEP: "[" * 3000 + "]" * 3000, INFINITE: "1e999", NESTED: "[" * 700 + '"the"' + "]" * 700}
WEIRD = [
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 1 << 20_000),
    *(0.5, -0.0, 1e-320, 1e300, math.nan, math.inf, -math.inf),
    *("", "x", "../x", "/etc/x", "..", "a/b", "a\0b", "\ud800", "é", "a\nb", "x" * 20_000, "1", "nan", "name", "train"),
    *([], {}, [[]], [None], {"": {}}, {"name": []}, [1, "x", [2.0]], [{}] * 3, DIGITS, DEEP, INFINITE),
]
TOKENS = (
    b"0 1 -1 nan inf -inf true false null NaN Infinity [ ] { } \" ' = . , : \\ # \n \r\n \0 \t ../ / \xff "
    b"\xef\xbb\xbf \xed\xa0\x80 \\ud800 1e999 -0 0x 1979-05-27 [[ ]] \"\"\" ''' name O <f8 |O shape descr "
    b"\x80\x04 PK\x03\x04 \x93NUMPY"
).split(b" ")
DTYPES = ["b1", "i1", "i2", "i4", "i8", "u1", "u8", "f2", "f4", "f8", "c8", "S3", "U2"]


def damaged(rng: Random, data: bytes) -> bytes:
    """Some bytes, after one to four accidents."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 4, 8, 64, 512))
        near = data[at : at + size]
        accident = rng.randrange(11)
        if accident == 0:
            data = data[:at]
        elif accident == 1:
            data = data[at:] if rng.random() < 0.3 else data[:at] + data[at + size :]
        elif accident == 2:
            data = data[:at] + near * rng.choice((2, 3, 50)) + data[at + size :]
        elif accident == 3:
            data = data[:at] + rng.choice(TOKENS) + data[at:]
        elif accident == 4:
            data = data[:at] + rng.choice(TOKENS) + data[at + size :]
        elif accident == 5:
            data = data[:at] + rng.randbytes(len(near)) + data[at + size :]
        elif accident == 6:
            number = rng.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80, 2**62)).to_bytes(8, rng.choice(("little", "big")))
            data = data[:at] + number[: len(near)] + data[at + size :]
        elif accident == 7:
            other = rng.randrange(len(data) + 1)
            data = data[:at] + data[other : other + size] + data[at:]
        elif accident == 8 and rng.random() < 0.1:
            data = rng.choice((b"", b"\0" * 100, b"[" * 20_000, b"x" * 200_000, b'{"a":' * 5000, b"9" * 6000))
        elif data:  # a bit flips
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    return data


def bent(rng: Random, tree: Any) -> Any:
    """A tree of values with some of them swapped, dropped, doubled or renamed."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = _bend(rng, tree)
    return tree


def _bend(rng: Random, tree: Any) -> Any:
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key, copy = rng.choice(list(tree)), dict(tree)
        change = rng.randrange(12)
        if change == 0:
            del copy[key]
        elif change == 1:
            copy[_text(rng)] = copy.pop(key)
        elif change == 2:
            copy[_text(rng)] = rng.choice([*tree.values(), rng.choice(WEIRD)])
        elif change == 3:
            copy[key] = rng.choice(list(tree.values()))
        else:
            copy[key] = _bend(rng, copy[key])
        return copy
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        at, change = rng.randrange(len(tree)), rng.randrange(8)
        if change < 2:
            return tree[:at] + tree[at + 1 :] if change else tree + tree
        if change == 2:
            return [*tree[:at], rng.choice(WEIRD), *tree[at:]]
        return [*tree[:at], _bend(rng, tree[at]), *tree[at + 1 :]]
    if isinstance(tree, int | float) and not isinstance(tree, bool) and rng.random() < 0.3:
        return rng.choice((-tree, tree + 1, tree - 1, tree * 1000, [tree], f"{tree:g}" if abs(tree) < 1e300 else ""))
    return rng.choice(WEIRD)


def _text(rng: Random) -> str:
    return rng.choice([value for value in WEIRD if isinstance(value, str)])


def as_json(tree: Any) -> bytes:
    """JSON, with what Python would not write."""
    return _plain(json.dumps(_short(tree)))


def as_toml(tree: dict[str, Any]) -> bytes:
    """TOML, with what tomli_w would not write."""
    return _plain(tomli_w.dumps(_sayable(tree)))


def _plain(text: str) -> bytes:
    for mark, plain in PLAIN.items():
        text = text.replace(f'"{mark}"', plain)
    return text.encode("utf-8", "surrogatepass")


def _short(tree: Any) -> Any:
    """Without the integers that Python does not write."""
    if isinstance(tree, dict):
        return {str(key): _short(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_short(value) for value in tree]
    return DIGITS if isinstance(tree, int) and abs(tree) > 1 << 10_000 else tree


def _sayable(tree: Any) -> Any:
    """Without what TOML does not have."""
    if isinstance(tree, dict):
        return {key: _sayable(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_sayable(value) for value in tree]
    return _short("nothing" if tree is None else tree)


def odd_array(rng: Random, like: np.ndarray) -> np.ndarray:
    """An array that is not quite like another, or not at all."""
    shape, change = list(like.shape), rng.randrange(7)
    if change == 0 and shape:
        shape[rng.randrange(len(shape))] = rng.choice((0, 1, 7))
    elif change == 1:
        shape = shape[1:] if rng.random() < 0.5 else [*shape, rng.choice((0, 1, 2))]
    elif change == 2:
        with np.errstate(all="ignore"):
            return like.astype(rng.choice(DTYPES)) if like.dtype.kind in "biuf" else like[:0]
    elif change == 3 and like.dtype.kind in "iuf" and like.size:
        like = like.copy()
        low, high = (-1e38, np.nan) if like.dtype.kind == "f" else (np.iinfo(like.dtype).min, np.iinfo(like.dtype).max)
        like.flat[rng.randrange(like.size)] = rng.choice((low, high, 0))
        return like
    elif change == 4:
        return like[:-1]
    elif change == 5:
        return np.array(rng.choice((b"x", "x", 1.5, 7, True, 1j)))
    return np.resize(like, shape) if like.size else np.zeros(shape, like.dtype)
