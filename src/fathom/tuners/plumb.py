"""FATHOM without a start: lr is checked against what steps really bring, E and B against what clients have in common.

Ours, not the paper's; `docs/any-start.md` derives it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fathom.core.client import gain
from fathom.core.trees import cosine, divide, dot, unit, weighted_mean
from fathom.core.types import Array, HParams, Key, Params, RoundStats, State, Tuner

FIRST = HParams(lr=1000.0, epochs=1.0, batch=4.0)  # where every run begins: the steps that clients can bear
WHOLE = 1 / 3  # of what was foretold: what the first round's steps are taken to have brought at the right learning rate
MUCH, LITTLE = 0.6, 0.125  # of what was foretold: between them a learning rate is as it should be
LONE = 0.5  # as LITTLE, where a batch is a single example; in proportion to 1 / B between
MANY = 10.0  # clients: what fewer of them found may be chance, and makes steps longer in proportion only
LEAP = 4.0  # the most that the check alone may ask for, as the logarithm of a factor
COMMON = 0.1  # what clients must have in common, as a cosine: with less of it batches grow
AMPLE = 10.0  # batches of so many times what clients have grow no further
WORTH = 3.0  # the logarithm of the epochs that are worth their work where all clients, and all rounds, go the same way


class Past(NamedTuple):
    """What is known from the rounds before."""

    direction: Params  # of their updates, smoothed
    rounds: Array  # how many there were, and one more: t
    batch: Array  # what was proposed last; a bound may have held it
    size: Array  # the most examples that a round's clients had on average
    agreement: Array  # the cosine of an update with those before it, smoothed; 1 until there were two
    likeness: Array  # the cosine of two clients' updates, smoothed; may be below 0; 1 until there were two
    landed: Array  # whether the learning rate is more than a start


def plumb(
    check_rate: float = 0.5,
    lr_rate: float = 0.1,
    epochs_rate: float = 0.5,
    batch_rate: float = 2.0,
    smoothing: float = 0.9,
) -> Tuner:
    """Find lr, E and B without a start: FATHOM's signals and two more. The default of `fathom run`; ours.

    Clients go through their last batch once more and send home by how much its loss was to fall and by how much it did.
    In the first round they go as far as their losses let them, and what that brought tells the learning rate. From then
    on, where most of it came true steps are too short, where little did too long; between the two FATHOM's agreement
    decides. Batches shrink only as far as rounds agree and clients do, and grow where clients
    have nothing in common: more work of one's own is of no use to those who pull apart. The learning rate goes with the
    square root of the batch. Rounds that undo each other, which may be noise alone, calm the run, no faster than powers
    of t: batches grow until they are all of a client's work, and then the learning rate falls. Epochs are drawn to what
    consensus makes worth their work, less than one where rounds undo each other. Clients also cut single steps that
    promise the impossible.

    `check_rate` and `epochs_rate` are the part of the way to go in a round, between 0 and 1; `smoothing` is below 1.
    `lr_rate` is how fast agreement moves the learning rate and disagreement calms the run, through batches too;
    `batch_rate` is for all else that moves batches. It reads the mean update and sums over clients, so it works under
    secure aggregation. A box around it (`clamp`) holds for its first values, too.

    >>> plumb().first
    HParams(lr=1000.0, epochs=1.0, batch=4.0)
    """

    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing={smoothing:g} must be at least 0 and below 1, such as 0.9.")

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, State]:
        nothing = jax.tree.map(jnp.zeros_like, params)
        zero, one = jnp.zeros(()), jnp.ones(())
        past = Past(nothing, jnp.ones((), jnp.int32), jnp.asarray(hparams.batch), zero, one, one, jnp.zeros((), bool))
        return hparams, past

    def latest(value: Array, before: Array, number: Array) -> Array:
        """The mean of so many values, recent ones counting more; what was `before` where there is none yet."""
        newest = (1 - smoothing) / (1 - smoothing ** jnp.maximum(number, 1))  # all of it, where it is the first
        return jnp.where(number > 0, before + newest * (value - before), before)

    def update(key: Key, stats: RoundStats, past: Past) -> tuple[HParams, Past]:
        lr, epochs, batch = stats.hparams
        alignment = weighted_mean(stats.clients.alignment, stats.clients.examples)  # -G-bar_t
        agreement = latest(cosine(stats.update, past.direction), past.agreement, past.rounds - 1)  # -H-bar_t
        alike = latest(likeness(stats, past.likeness), past.likeness, past.rounds)
        alone, together = consensus(stats, alike)
        calmer = jnp.clip(-lr_rate * agreement, 0.0, 1 / past.rounds)  # what noise may ask for

        common = jnp.minimum(jnp.maximum(agreement, 0.0), together - COMMON)
        most = jnp.maximum(past.size, weighted_mean(stats.clients.examples, stats.clients.examples > 0))
        whole = most * jnp.maximum(epochs, 1.0)  # all of a client's work as one batch
        held = jnp.minimum(batch, whole)
        smaller = batch_rate * jnp.minimum(alignment, common) - 2 * calmer  # 2: while batches grow for it, lr stays
        smaller = jnp.minimum(smaller, jnp.log(jnp.maximum(held, 1.0)))
        size = jnp.where(smaller > 0, held, batch) * jnp.exp(-smaller)
        size = jnp.minimum(size, AMPLE * whole)
        wider = 0.5 * jnp.log(jnp.minimum(size, whole) / jnp.minimum(past.batch, whole))

        checked = jnp.where(past.landed, check_rate * verdict(stats), landing(stats))
        longer = lr_rate * jnp.maximum(agreement, 0.0) - calmer + checked + wider
        more = epochs_rate * (WORTH * jnp.minimum(agreement, alone) - jnp.log(epochs))
        proposal = HParams(lr * jnp.exp(longer), epochs * jnp.exp(more), size)
        direction = optax.tree.update_moment(unit(stats.update), past.direction, smoothing, 1)
        landed = past.landed | (gain(stats.clients) > 0)
        heard = jnp.any(stats.clients.examples > 0)  # silence tells nothing
        return jax.tree.map(
            lambda new, old: jnp.where(heard, new, old),
            (proposal, Past(direction, past.rounds + 1, size, most, agreement, alike, landed)),
            (stats.hparams, past),
        )

    return Tuner(init, update, first=FIRST, smoothing=smoothing, directions=True, scalars_up=4, checks=True)


def landing(stats: RoundStats) -> Array:
    """From the first learning rate, which is as large as can be, to one that is right: the logarithm of a factor.

    Steps were cut, so what they brought over what the whole of them had promised tells how long they really were, too.
    The first learning rate itself drops out, and with it the scale of the loss. Where steps were too short
    nevertheless, they become longer as in any other round; where they brought nothing, nothing is known yet.
    """
    found = gain(stats.clients)
    shorter = jnp.log(jnp.where(found > 0, jnp.minimum(found, WHOLE), WHOLE) / WHOLE)
    return shorter + jnp.maximum(verdict(stats), 0.0)


def verdict(stats: RoundStats) -> Array:
    """How much longer steps should be, as the logarithm of a factor: 0 where they brought little to MUCH of it all.

    Above, what would bring the gain down to MUCH were the loss a parabola, on which 1 - gain grows with the learning
    rate; in proportion, where clients are not MANY. Below, as much less as the gain is below what is little, down to -1
    where steps brought nothing. Little is LONE for single examples, which a step is to bring to their lowest point at
    most, and LITTLE for batches, whose noise steps do not follow all the way.
    """
    here = stats.clients.examples > 0
    batch = jnp.minimum(stats.hparams.batch, jnp.maximum(stats.clients.examples, 1))
    little = jnp.maximum(LITTLE, LONE / jnp.maximum(weighted_mean(batch, here), 1.0))
    found = gain(stats.clients)
    sure = jnp.minimum(jnp.sum(here) / MANY, 1.0)
    longer = -jnp.log(jnp.clip((1 - found) / (1 - MUCH), jnp.exp(-LEAP), 1.0)) * sure
    shorter = jnp.clip((little - found) / little, 0.0, 1.0)
    return jnp.where(jnp.isnan(found), 0.0, longer - shorter)  # 0 where nobody answered


def likeness(stats: RoundStats, otherwise: Array) -> Array:
    """The cosine of the updates of two clients of this round, on average; `otherwise` where no two moved.

    |sum p_i Delta_i|^2 = sum p_i^2 |Delta_i|^2 + sum over i != j of p_i p_j Delta_i . Delta_j. Over the first sum, what
    m clients came to is 1 where their updates are orthogonal, m where they are the same and 0 where they cancel out.
    """
    weights = stats.clients.examples.astype(jnp.float32)
    count = jnp.sum(weights > 0)
    own = jnp.sum(divide(weights, jnp.sum(weights)) ** 2 * stats.clients.drift)
    cosines = (divide(dot(stats.update, stats.update), own) - 1) / jnp.maximum(count - 1, 1)
    return jnp.where((count > 1) & (own > 0), jnp.minimum(cosines, 1.0), otherwise)


def consensus(stats: RoundStats, alike: Array) -> tuple[Array, Array]:
    """The cosine of what clients have in common with the update of one of them, and with the mean of this round's.

    Where what is each one's own is orthogonal to the rest, `alike`, the cosine of two updates, is the square of the
    first. In the mean of m clients the square of what is their own is m times smaller.
    """
    count = jnp.maximum(jnp.sum(stats.clients.examples > 0), 1)
    shared = jnp.maximum(alike, 0.0)
    return jnp.sqrt(shared), jnp.sqrt(count * shared / (1 + (count - 1) * shared))
