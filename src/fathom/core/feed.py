"""Keeps rounds supplied with clients: who takes part, and where the device finds their examples.

The next round's cohort is prepared while the device works on this one: who is sampled does not depend on what is
learned. Small federations lie on the device as a whole; of large ones only the cohort's rows are read and sent.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from fathom.core.types import Batch, Cohort
from fathom.data import Federation

RESIDENT_BYTES = 1 << 30  # federations up to this size are put on the device once


class Supply(NamedTuple):
    """One round's clients."""

    places: list[np.ndarray]  # where they stand in the federation, a list per trial
    cohorts: Cohort  # each leaf but the examples (trials, cohort)


Sampler = Callable[[Sequence[int], int], np.ndarray]  # from a key's data and a round to places


def sampler(federation: Federation, cohort: int | Sequence[Sequence[Any]], rounds: int) -> tuple[Sampler, int]:
    """Who takes part in each round, and the most clients a round has."""
    if not isinstance(cohort, int | np.integer | Sequence | np.ndarray) or isinstance(cohort, bool):
        raise ValueError(f"cohort={cohort!r} is neither a number of clients nor a list of client ids for every round.")
    total = len(federation)
    if isinstance(cohort, int | np.integer):
        if not 1 <= cohort <= total:
            remedy = "lower `cohort`" if cohort > total else "ask for at least one"
            raise ValueError(f"cohort={cohort} cannot be drawn from a federation of {total} clients; {remedy}.")
        return lambda key, number: np.random.default_rng([*key, number]).choice(total, cohort, False), int(cohort)
    if isinstance(cohort, str) or not all(isinstance(clients, Sequence | np.ndarray) for clients in cohort):
        raise ValueError(f"cohort={cohort!r} is neither a number of clients nor a list of client ids for every round.")
    if any(isinstance(clients, str) for clients in cohort):
        raise ValueError(f"cohort={cohort!r} lists clients; give a list of clients for every round.")
    if len(cohort) < rounds:
        raise ValueError(f"cohort lists the clients of {len(cohort)} rounds, rounds={rounds} needs as many lists.")
    listed = [federation.places(clients) for clients in cohort[:rounds]]
    for number, places in enumerate(listed, 1):
        if len(set(places.tolist())) < len(places):
            raise ValueError(f"cohort of round {number} names a client twice; name each once.")
    return lambda key, number: listed[number - 1], max(1, *(len(places) for places in listed))


def feed(
    federation: Federation,
    sample: Sampler,
    keys: Sequence[Sequence[int]],
    rounds: int,
    size: int,
    put: Callable[[Any], Any],
) -> Iterator[Supply]:
    """Every round's clients, their examples already on the device.

    keys: the trials' keys, as numbers. size: the most clients a round has. put: sends arrays to the device.
    """
    resident = sum(feature.nbytes for feature in federation.examples.values()) <= RESIDENT_BYTES
    everything = put(federation.examples) if resident else None
    most = np.sort(federation.sizes)[::-1][:size].sum() * len(keys)  # rows that a round can need

    def prepare(number: int) -> Supply:
        places = [sample(key, number) for key in keys]
        if resident:
            return Supply(places, _cohorts(federation, everything, places, federation.starts, size))
        asked = np.unique(np.concatenate(places))
        start = np.zeros(len(federation), np.int64)
        start[asked] = np.cumsum([0, *federation.sizes[asked]])[:-1]
        return Supply(places, _cohorts(federation, put(_rows(federation, asked, most)), places, start, size))

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(prepare, 1)
        for number in range(1, rounds + 1):
            supply = following.result()
            if number < rounds:
                following = pool.submit(prepare, number + 1)
            yield supply


def _rows(federation: Federation, places: np.ndarray, most: int) -> Batch:
    """These clients' examples one after another, in arrays that have the same size every round."""

    def gather(feature: np.ndarray) -> np.ndarray:
        rows = np.zeros((most, *feature.shape[1:]), feature.dtype)
        at = 0
        for place in places:
            part = feature[federation.starts[place] : federation.starts[place] + federation.sizes[place]]
            rows[at : at + len(part)] = part
            at += len(part)
        return rows

    return {name: gather(feature) for name, feature in federation.examples.items()}


def _cohorts(federation: Federation, examples: Batch, places: list[np.ndarray], start: np.ndarray, size: int) -> Cohort:
    """The trials' cohorts, filled up with absent clients to the same size; each leaf (trials, size)."""

    def filled(values: list[np.ndarray], dtype: type) -> np.ndarray:
        return np.stack([np.pad(v, (0, size - len(v))) for v in values]).astype(dtype)

    return Cohort(
        examples=examples,
        start=filled([start[p] for p in places], np.int32),
        size=filled([federation.sizes[p] for p in places], np.int32),
        client=filled([federation.names(p) for p in places], np.uint32),
    )
