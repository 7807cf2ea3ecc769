"""A federation: the examples of many clients, each client's own rows contiguous."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients and their examples."""

    ids: tuple[str, ...]  # one per client
    starts: np.ndarray  # (clients,) int64: each client's first row
    sizes: np.ndarray  # (clients,) int64: its number of rows
    examples: dict[str, np.ndarray]  # (rows, ...) per feature; in memory, or mapped from disk

    @classmethod
    def from_arrays(cls, clients: Mapping[Any, Mapping[str, Any]]) -> "Federation":
        """Make a federation from a mapping of client id to a dict of equal-length arrays.

        >>> Federation.from_arrays({"a": {"x": [[0.0], [1.0]], "y": [0, 1]}, "b": {"x": [[2.0]], "y": [1]}})
        Federation of 2 clients, 3 examples: x float32 (1,), y int32 ()
        """
        if not clients:
            raise ValueError("a federation needs at least one client; the mapping given is empty.")
        arrays = {
            str(client): {name: narrowed(value, client, name) for name, value in features.items()}
            for client, features in clients.items()
        }
        if len(arrays) < len(clients):
            raise ValueError("two client ids are the same when written as text; give each client its own.")
        first_id, first = next(iter(arrays.items()))
        for client, features in arrays.items():
            check_client(client, features, first_id, first)
        sizes = np.array([len(next(iter(features.values()))) for features in arrays.values()], np.int64)
        examples = {name: np.concatenate([features[name] for features in arrays.values()]) for name in first}
        return cls(tuple(arrays), np.cumsum(sizes) - sizes, sizes, examples)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        features = ", ".join(f"{n} {a.dtype} {a.shape[1:]}" for n, a in self.examples.items())
        return f"Federation of {len(self)} clients, {self.sizes.sum()} examples: {features}"

    @cached_property
    def _index(self) -> dict[str, int]:
        return {client: place for place, client in enumerate(self.ids)}

    def client(self, client_id: Any) -> dict[str, np.ndarray]:
        """One client's examples."""
        (place,) = self.places([client_id])
        rows = slice(self.starts[place], self.starts[place] + self.sizes[place])
        return {name: feature[rows] for name, feature in self.examples.items()}

    def places(self, client_ids: Sequence[Any]) -> np.ndarray:
        """Where these clients stand in the federation."""
        unknown = [client for client in client_ids if str(client) not in self._index]
        if unknown:
            raise ValueError(
                f"client {unknown[0]!r} is not in the federation; its ids run from {self.ids[0]!r} to {self.ids[-1]!r}."
            )
        return np.array([self._index[str(client)] for client in client_ids], np.int64)

    def names(self, places: np.ndarray) -> np.ndarray:
        """A number for each of these clients that depends on its id alone, (n,) uint32."""
        return np.array([zlib.crc32(self.ids[place].encode()) for place in places], np.uint32)


def narrowed(value: Any, client: Any, name: str) -> np.ndarray:
    """The value as an array of a type that devices take: 64-bit numbers become 32-bit ones."""
    array = np.asarray(value)
    narrow = {"f": np.float32, "i": np.int32, "u": np.uint32}.get(array.dtype.kind)
    if narrow is None and array.dtype.kind != "b":
        raise ValueError(f"client {client!r}: {name!r} holds {array.dtype}; give numbers or booleans.")
    if narrow is None or array.dtype.itemsize < 8:
        return array
    if array.dtype.kind in "iu" and array.size and not (array == array.astype(narrow)).all():
        raise ValueError(f"client {client!r}: {name!r} holds integers beyond 32 bits; number them anew.")
    return array.astype(narrow)


def check_client(client: str, features: dict[str, np.ndarray], first_id: str, first: dict[str, np.ndarray]) -> None:
    """Refuse a client that does not fit the first one, or whose data cannot be trained on."""
    if not is_text(client):
        raise ValueError(f"client {client!r}: its id is not text; write ids as UTF-8.")
    if features.keys() != first.keys():
        raise ValueError(
            f"client {client!r} has features {sorted(features)}, client {first_id!r} has {sorted(first)}; "
            "every client needs the same."
        )
    if not features:
        raise ValueError(f"client {client!r} has no features; give at least one array.")
    lengths = {name: len(feature) if feature.ndim else None for name, feature in features.items()}
    if len(set(lengths.values())) > 1 or None in lengths.values():
        raise ValueError(f"client {client!r} has features of lengths {lengths}; they need one row per example.")
    if 0 in lengths.values():
        raise ValueError(f"client {client!r} has no examples; leave empty clients out.")
    for name, feature in features.items():
        if feature.shape[1:] != first[name].shape[1:] or feature.dtype != first[name].dtype:
            raise ValueError(
                f"client {client!r}: {name!r} has rows of {feature.dtype} {feature.shape[1:]}, client "
                f"{first_id!r} of {first[name].dtype} {first[name].shape[1:]}; every client needs the same."
            )
        if feature.dtype.kind == "f" and not np.isfinite(feature).all():
            row = int(np.argwhere(~np.isfinite(feature))[0, 0])
            raise ValueError(
                f"client {client!r}: {name!r} is not finite in example {row}; repair or drop that example."
            )


def is_text(client: str) -> bool:
    """Whether an id is text that can be written: half of a pair of surrogates cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in client)


def pooled(federation: Federation) -> dict[str, np.ndarray]:
    """The examples of all clients, one after another."""
    rows = _rows(federation.starts, federation.sizes)
    return {name: feature[rows] for name, feature in federation.examples.items()}


def split(federation: Federation, share: float = 0.1) -> tuple[Federation, dict[str, np.ndarray]]:
    """Set the last `share` of every client's examples aside as one test set; a client keeps at least one."""
    kept = np.maximum(np.ceil(federation.sizes * (1 - share) - 1e-9), 1).astype(np.int64)
    aside = replace(federation, starts=federation.starts + kept, sizes=federation.sizes - kept)
    return replace(federation, sizes=kept), pooled(aside)


def at_least(federation: Federation, examples: int) -> Federation:
    """The clients that have at least so many examples."""
    (places,) = np.nonzero(federation.sizes >= examples)
    if not len(places):
        raise ValueError(f"no client has {examples} examples; the largest has {federation.sizes.max()}. Ask for fewer.")
    ids = tuple(federation.ids[place] for place in places)
    return replace(federation, ids=ids, starts=federation.starts[places], sizes=federation.sizes[places])


def _rows(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The rows of clients that start there and have so many, one client after another."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(sizes.sum())
