"""Keeps a run from harm: from single clients, whose updates are set aside, and from itself, when it diverges."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fathom.core.trees import dot
from fathom.core.types import Array, HParams, Params, State

ABSURD = 100.0  # an update this many times as long as is usual is set aside
FLOOR = 1e-3  # of the model's norm: no update is usual that is shorter
MEMORY = 0.9  # of past losses in their smoothed mean
EXPLODED = 3.0  # a loss this many times what it is, or was at first, is a strike
STRIKES = 5  # in a row that show that it was not chance
CROWD = 3  # answers, none of which is finite, that show it at once


class Good(NamedTuple):
    """The part of a server's state that goes back to a good round."""

    params: Params
    opt: State
    hparams: HParams
    tuner: State
    smoothed: Params


class Guard(NamedTuple):
    """What is usual, to know by it what is not."""

    norm: Array  # of clients' updates: about the median of the last round
    first: Array  # the first round's loss; infinite until there is one
    loss: Array  # of the rounds so far, smoothed
    strikes: Array  # int32: rounds in a row that went wrong, or looked so
    good: Any  # the last state that did no worse than usual: Good, or () where nobody will go back


def init(good: Any, params: Params) -> Guard:
    """Before the first round a client's update is expected to be as long as the model is, or 1."""
    zero, infinite = jnp.zeros((), jnp.float32), jnp.full((), jnp.inf, jnp.float32)
    strikes = jnp.zeros((), jnp.int32)
    return Guard(jnp.maximum(jnp.sqrt(dot(params, params)), 1.0), infinite, zero, strikes, good)


def bound(guard: Guard, params: Params) -> Array:
    """The longest update that is not set aside."""
    return ABSURD * jnp.maximum(guard.norm, FLOOR * jnp.sqrt(dot(params, params)))


def sound(bound: Array, loss: Array, alignment: Array, drift: Array) -> Array:
    """Whether clients' results can be used: all numbers finite, and updates, of squared norm `drift`, within bounds."""
    return jnp.isfinite(loss) & jnp.isfinite(alignment) & jnp.isfinite(drift) & (jnp.sqrt(drift) <= bound)


def strikes(guard: Guard, loss: Array, answered: Array, rejected: Array) -> Array:
    """How many rounds in a row went wrong, with this one, of this median loss over its clients.

    A round goes wrong if its loss is EXPLODED times what is usual, and by more than 1; or if more than half of its
    answers were rejected: then it may not be they who are at fault. One such round may be chance, where cohorts are
    small and clients differ.
    """
    wrong = (loss > _high(guard)) | (2 * rejected > answered)
    return jnp.where(answered == 0, guard.strikes, jnp.where(wrong, guard.strikes + 1, 0))


def _high(guard: Guard) -> Array:
    """The loss above which a round goes wrong; infinite before there was a first."""
    return EXPLODED * jnp.maximum(jnp.abs(guard.loss), jnp.abs(guard.first)) + 1


def diverged(strikes: Array, answered: Array, broken: Array) -> Array:
    """Whether the run has diverged: too many strikes, or nothing finite from anybody."""
    return (strikes >= STRIKES) | ((answered >= CROWD) & (broken == answered))


def medians(values: Array, there: Array) -> Array:
    """Of each row, the median of the values that are there; NaN where none is."""
    ordered = jnp.sort(jnp.where(there, values, jnp.inf), 1)
    count = jnp.sum(there, 1)
    middle = jnp.stack([jnp.maximum(count - 1, 0) // 2, count // 2], 1)
    found = jnp.mean(jnp.take_along_axis(ordered, jnp.minimum(middle, values.shape[1] - 1), 1), 1)
    return jnp.where(count > 0, found, jnp.nan)


def learn(guard: Guard, struck: Array, bad: Array, before: Any, loss: Array, length: Array) -> Guard:
    """Take in a round that began at `before` and had this median loss, and this median length of updates, or NaN.

    What is usual moves by at most a factor of 10 up and 2 down a round, so that a few false clients cannot move it far.
    A loss too high counts as the highest that would not have been.
    """
    norm = jnp.where(jnp.isfinite(length), jnp.clip(length, guard.norm / 2, guard.norm * 10), guard.norm)
    begun = jnp.isfinite(guard.first)
    counted = ~bad & jnp.isfinite(loss)
    fine = counted & (struck == 0) & (~begun | (loss <= guard.loss))
    smoothed = jnp.where(begun, MEMORY * guard.loss + (1 - MEMORY) * jnp.minimum(loss, _high(guard)), loss)
    return Guard(
        norm=norm,
        first=jnp.where(counted & ~begun, loss, guard.first),
        loss=jnp.where(counted, smoothed, guard.loss),
        strikes=jnp.where(bad, 0, struck),
        good=jax.tree.map(lambda new, old: jnp.where(fine, new, old), before, guard.good),
    )


def go_back(good: Good, used: HParams) -> Good:
    """A good state with half the learning rate that did harm."""
    return good._replace(hparams=good.hparams._replace(lr=jnp.minimum(good.hparams.lr, used.lr) / 2))
