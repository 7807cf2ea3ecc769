"""From client sizes and hyperparameters to whole numbers: steps, batch sizes, slots, the order of examples.

Every rounding of the library is in this file.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fathom.core.types import Array, Form, HParams, Key, Order

WIDTHS = (3, 6, 12, 24, 48)  # FATHOM tends to settle at batches of 5 or 6
SPLIT = (48, 12)  # those that batches may be split over
STEP, SUM = 8, 4  # what a slot costs beside its examples, in examples, and what is added where gradients are summed
HUGE = 1 << 40  # more examples than any client has
REACH, EASE = 4.0, 10  # of a checked step, and the rounds it takes to get there


class Plan(NamedTuple):
    """The local work asked of each client; every leaf has shape (cohort,)."""

    steps: Array  # K_i; 0 for a client that is not there
    batch: Array  # examples a step uses


def rounded(batch: Array) -> Array:
    """B for use: rounded half up, at least 1."""
    return jnp.maximum(jnp.floor(jnp.nan_to_num(batch, nan=1.0) + 0.5), 1).astype(jnp.int32)


def plan(size: Array, hparams: HParams, form: Form, order: Order, done: Array | float = 1.0) -> Plan:
    """How many steps of how many examples each client takes.

    K_i = max(ceil(E nu_i / B), 1) in the reference form, max(floor(E nu_i / B), 1) in the printed one, with B
    rounded but not yet capped at nu_i. Done in integers, so that 21 / 7 is 3 on every device. A shuffled batch
    never needs more than the client's nu_i distinct examples and is capped there; a cyclic one has exactly B
    rows, and goes round again. A trial that has diverged, whose hyperparameters are not numbers, does the least.

    A client that gets only a part `done` of its steps takes that many, rounded down.
    """
    asked = rounded(hparams.batch)
    work = jnp.nan_to_num(hparams.epochs) * size.astype(jnp.float32)  # E nu_i: examples to go through
    steps = jnp.floor(work).astype(jnp.int32) // asked
    if form == "reference":
        steps += work > (steps * asked).astype(jnp.float32)
    steps = jnp.maximum(steps, 1)
    steps = jnp.where(done < 1, jnp.floor(steps * done).astype(jnp.int32), steps)
    return Plan(
        jnp.where(size > 0, steps, 0),
        asked if order == "cyclic" else jnp.minimum(asked, size),
    )


def reach(done: Array) -> Array:
    """How much a step may promise to lower its batch's loss, over that loss, after so many rounds; where it is checked.

    A loss that is never negative and L-smooth has 2 L loss >= |gradient|^2, so that of SGD every learning rate below
    2 / L passes whole. The first rounds allow less: nobody has seen yet what steps bring.
    """
    return REACH * jnp.minimum((done + 0.5) / EASE, 1.0)


def failures(keys: Key, dropout: float, stragglers: float) -> Array:
    """The part of its steps that each client gets done: 0 if it vanishes, anything below 1 if it straggles, else 1."""

    def one(key: Key) -> Array:
        vanishes, straggles, part = jax.random.uniform(jax.random.fold_in(key, 2), (3,))
        return jnp.where(vanishes < dropout, 0.0, jnp.where(straggles < stragglers, part, 1.0))

    return jax.vmap(jax.vmap(one))(keys)


def shuffle(key: Key, size: Array, capacity: int) -> Array:
    """A random order of range(size), followed by the rest of range(capacity)."""
    row = jnp.arange(capacity)
    draw = jax.random.bits(key, (capacity,), jnp.uint32) >> 1
    return jnp.argsort(jnp.where(row < size, draw, jnp.uint32(2**31) + row.astype(jnp.uint32)))


def deal(work: Array, devices: int) -> Array:
    """Which jobs each device does, (devices, n), from how much work each is; their count stands for no job.

    They are dealt in turns, longest first, one to each device: in every turn the longest to the one with least to do.

    >>> deal(jnp.asarray([5, 9, 3, 1, 4]), 2).tolist()
    [[1, 2, 5], [0, 4, 3]]
    """
    count = work.shape[0]
    turns = jnp.pad(jnp.argsort(-work), (0, -count % devices), constant_values=count).reshape(-1, devices)
    work = jnp.append(work, 0).astype(jnp.float32)

    def turn(load: Array, jobs: Array) -> tuple[Array, Array]:
        given = jnp.zeros_like(jobs).at[jnp.argsort(load)].set(jobs)
        return load + work[given], given

    return jax.lax.scan(turn, jnp.zeros(devices), turns)[1].T


class Slots(NamedTuple):
    """How batches are cut for the device; Python values, fixed when a round is compiled."""

    width: int  # examples gone through together
    split: bool  # whether a batch may need several slots


ANY_BATCH = Slots(16, split=True)


def slots(batch: np.ndarray, first: np.ndarray, most: int | None = None) -> Slots:
    """Slots for clients with batches of these real-valued sizes, none of which uses more than `most` examples.

    As a rule the narrowest width on offer that takes every batch whole. Where some are much larger than others, as in
    trials that differ, narrow slots waste less than the larger batches lose by being split. Each is compiled once; on
    offer are those of WIDTHS and, so that a constant batch size wastes nothing, the one a run starts with.
    """
    sizes, home = (
        np.clip(np.floor(np.nan_to_num(b, nan=1.0) + 0.5), 1, most or HUGE).astype(np.int64) for b in (batch, first)
    )
    largest, home = int(sizes.max()), int(home.max())
    offered = sorted({*WIDTHS, home}) if home <= WIDTHS[-1] else WIDTHS
    whole = [Slots(width, split=False) for width in offered if width >= largest][:1]
    split = [Slots(width, split=True) for width in SPLIT if width < largest]

    def cost(slots: Slots) -> float:
        """Time per example, in that of one example of a wide slot."""
        return float(np.mean(-(-sizes // slots.width) * (slots.width + STEP + SUM * slots.split) / sizes))

    return min(whole + split, key=cost)
