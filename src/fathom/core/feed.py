"""Keeps rounds supplied with clients: who takes part, and where the device finds their examples.

The next round's cohort is prepared while the devices work on this one: who is sampled does not depend on what is
learned. Small federations lie on every device as a whole. Of large ones, and where several hosts work together, only
the cohort's rows are read and sent, each client's to the one device that will work on it: a host reads no others.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from fathom.core.types import Batch, Cohort
from fathom.data import Federation

RESIDENT_BYTES = 1 << 30  # federations up to this size are put on every device once


class Supply(NamedTuple):
    """One round's clients."""

    places: list[np.ndarray]  # where they stand in the federation, a list per trial
    cohorts: Cohort  # each leaf but the examples (trials, cohort)
    dealt: np.ndarray | None  # which jobs each device does, from `deal`; None where any device can do any


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
    first: int,
    rounds: int,
    size: int,
    whole: Sharding,
    split: Sharding,
) -> Iterator[Supply]:
    """The clients of rounds `first` to `rounds`, their examples already on the devices.

    keys: the trials' keys, as numbers. size: the most clients a round has. whole, split: how arrays lie on the
    devices that are the same on all, or cut along their first axis.
    """
    resident = sum(feature.nbytes for feature in federation.examples.values()) <= RESIDENT_BYTES
    resident &= split.is_fully_addressable  # all devices are this host's own
    everything = put(federation.examples, whole) if resident else None
    devices = len(split.device_set)
    # Rows that a device can need: the k-th of its clients of a trial is at best the (k devices)-th largest of all.
    most = int(np.sort(federation.sizes)[::-1][:size:devices].sum()) * len(keys)

    def prepare(number: int) -> Supply:
        places = [sample(key, number) for key in keys]
        cohorts = _cohorts(federation, everything, places, size)
        if resident:
            return Supply(places, put(cohorts, whole), None)
        dealt = deal(cohorts.size, devices)
        asked, start = _local(federation, places, dealt, size)
        return Supply(places, cohorts._replace(examples=_rows(federation, asked, most, split), start=start), dealt)

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(prepare, first)
        for number in range(first, rounds + 1):
            supply = following.result()
            if number < rounds:
                following = pool.submit(prepare, number + 1)
            yield supply


def put(arrays: Any, sharding: Sharding) -> Any:
    """Send arrays that every host has to the devices; each host to its own."""
    if sharding.is_fully_addressable:
        return jax.device_put(arrays, sharding)
    return jax.tree.map(lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, leaf.__getitem__), arrays)


def deal(size: np.ndarray, devices: int) -> np.ndarray:
    """Which jobs each device does, (devices, n), from the clients' sizes, (trials, cohort).

    Jobs are numbered trial by trial; their count stands for none. Every trial's clients are dealt like cards, largest
    first. Steps would balance better than sizes where clients have hyperparameters of their own, but those are not
    known yet when the examples are sent.
    """
    trials, cohort = size.shape
    jobs = (np.argsort(-size, axis=1, kind="stable") + cohort * np.arange(trials)[:, None]).reshape(-1)
    return np.pad(jobs, (0, -len(jobs) % devices), constant_values=len(jobs)).reshape(-1, devices).T.astype(np.int32)


def _local(
    federation: Federation, places: list[np.ndarray], dealt: np.ndarray, size: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """Whose rows each device holds, in order; and where on its device a job's rows start, (trials, size)."""
    client = np.concatenate([np.pad(p, (0, size - len(p)), constant_values=-1) for p in places] + [np.array([-1])])
    start = np.zeros(len(client), np.int32)
    asked = []
    for jobs in dealt:
        there = jobs[client[jobs] >= 0]
        own, which = np.unique(client[there], return_inverse=True)
        start[there] = (np.cumsum(federation.sizes[own]) - federation.sizes[own])[which]
        asked.append(own)
    return asked, start[:-1].reshape(len(places), size)


def _rows(federation: Federation, asked: list[np.ndarray], most: int, split: Sharding) -> Batch:
    """The examples of each device's clients one after another, in arrays that have the same size every round."""

    def gather(feature: np.ndarray, index: Any) -> np.ndarray:
        """One device's part; `index` says which."""
        rows = np.zeros((most, *feature.shape[1:]), feature.dtype)
        at = 0
        for place in asked[(index[0].start or 0) // most]:
            part = feature[federation.starts[place] : federation.starts[place] + federation.sizes[place]]
            rows[at : at + len(part)] = part
            at += len(part)
        return rows

    return {
        name: jax.make_array_from_callback(
            (most * len(asked), *feature.shape[1:]), split, partial(gather, feature), dtype=feature.dtype
        )
        for name, feature in federation.examples.items()
    }


def _cohorts(federation: Federation, examples: Batch, places: list[np.ndarray], size: int) -> Cohort:
    """The trials' cohorts, filled up with absent clients to the same size; each leaf (trials, size)."""

    def filled(values: list[np.ndarray], dtype: type) -> np.ndarray:
        return np.stack([np.pad(v, (0, size - len(v))) for v in values]).astype(dtype)

    return Cohort(
        examples=examples,
        start=filled([federation.starts[p] for p in places], np.int32),
        size=filled([federation.sizes[p] for p in places], np.int32),
        client=filled([federation.names(p) for p in places], np.uint32),
    )
