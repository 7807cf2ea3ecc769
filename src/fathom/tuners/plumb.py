"""FATHOM from any start: lr is checked against what steps really bring, E and B against what clients have in common.

Ours, not the paper's; `docs/any-start.md` derives it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fathom.core.trees import cosine, divide, dot, unit, weighted_mean
from fathom.core.types import Array, HParams, Key, Params, RoundStats, State, Tuner

MUCH, LITTLE = 0.6, 0.25  # of what was foretold: between them a learning rate is as it should be
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


def plumb(
    check_rate: float = 0.5,
    lr_rate: float = 0.1,
    epochs_rate: float = 0.5,
    batch_rate: float = 2.0,
    smoothing: float = 0.9,
) -> Tuner:
    """Adapt lr, E and B from any start, with FATHOM's signals and two more.

    Clients go through their last batch once more and send home by how much its loss was to fall and by how much it did.
    Where most of it came true steps are too short, where little did too long; between the two FATHOM's agreement
    decides. Noise alone can make that negative, so by itself it lowers the learning rate no faster than 1 / t.
    Batches shrink only as far as rounds agree and clients do, and grow where clients have nothing in common: more work
    of one's own is of no use to those who pull apart. The learning rate goes with the square root of the batch. Epochs
    are drawn to what that consensus makes worth their work, less than one where rounds undo each other; the first
    value is soon forgotten. Clients also cut single steps that promise the impossible: a first learning rate may be
    too large.

    `check_rate` and `epochs_rate` are the part of the way to go in a round, between 0 and 1. It reads the mean update
    and sums over clients, so it works under secure aggregation.

    >>> tuner = plumb()
    """

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, State]:
        nothing = jax.tree.map(jnp.zeros_like, params)
        return hparams, Past(nothing, jnp.ones((), jnp.int32), jnp.asarray(hparams.batch), jnp.zeros(()))

    def update(key: Key, stats: RoundStats, past: Past) -> tuple[HParams, Past]:
        lr, epochs, batch = stats.hparams
        agreement = cosine(stats.update, past.direction)  # -H-bar_t
        alignment = weighted_mean(stats.clients.alignment, stats.clients.examples)  # -G-bar_t
        alone, together = consensus(stats)

        common = jnp.minimum(jnp.maximum(agreement, 0.0), together - COMMON)
        most = jnp.maximum(past.size, mean_size(stats))
        whole = most * jnp.maximum(epochs, 1.0)  # all of a client's work as one batch
        held = jnp.minimum(batch, whole)
        smaller = jnp.minimum(batch_rate * jnp.minimum(alignment, common), jnp.log(jnp.maximum(held, 1.0)))
        size = jnp.where(smaller > 0, held, jnp.minimum(batch, AMPLE * whole)) * jnp.exp(-smaller)
        wider = 0.5 * jnp.log(jnp.minimum(size, whole) / jnp.minimum(past.batch, whole))

        longer = jnp.maximum(lr_rate * agreement, -1 / past.rounds) + check_rate * verdict(stats) + wider
        more = epochs_rate * (WORTH * jnp.minimum(agreement, alone) - jnp.log(epochs))
        proposal = HParams(lr * jnp.exp(longer), epochs * jnp.exp(more), size)
        direction = optax.tree.update_moment(unit(stats.update), past.direction, smoothing, 1)
        heard = jnp.any(stats.clients.examples > 0)  # silence tells nothing
        return jax.tree.map(
            lambda new, old: jnp.where(heard, new, old),
            (proposal, Past(direction, past.rounds + 1, size, most)),
            (stats.hparams, past),
        )

    return Tuner(init, update, smoothing=smoothing, directions=True, scalars_up=4, checks=True)


def verdict(stats: RoundStats) -> Array:
    """How much longer steps should be, as the logarithm of a factor: 0 where they brought LITTLE to MUCH of it all.

    Above, what would bring the gain down to MUCH were the loss a parabola, on which 1 - gain grows with the learning
    rate. Below, as much less as the gain is below LITTLE, down to -1 where steps brought nothing.
    """
    foretold = weighted_mean(stats.clients.foretold, stats.clients.examples)
    gain = divide(weighted_mean(stats.clients.gained, stats.clients.examples), foretold)
    longer = -jnp.log(jnp.clip((1 - gain) / (1 - MUCH), jnp.exp(-LEAP), 1.0))
    shorter = jnp.clip((LITTLE - gain) / LITTLE, 0.0, 1.0)
    return jnp.where(foretold > 0, longer - shorter, 0.0)  # 0 where nobody answered


def mean_size(stats: RoundStats) -> Array:
    """How many examples a client of this round has."""
    sizes = stats.clients.examples.astype(jnp.float32)
    return divide(jnp.sum(sizes), jnp.sum(sizes > 0))


def consensus(stats: RoundStats) -> tuple[Array, Array]:
    """The cosine of what clients have in common with the update of one of them, and with the mean of them all.

    |mean|^2 = sum p_i^2 |Delta_i|^2 + sum over i != j of p_i p_j Delta_i . Delta_j, and only the last is shared: what
    is a client's own, its noise and its data, is in the first. Of m clients with as many examples each, the last has
    m (m - 1) of the m^2 pairs; where sizes differ it has fewer, and too little is taken for shared. A client by itself
    has nobody to differ from: 1.
    """
    weights = stats.clients.examples.astype(jnp.float32)
    count = jnp.maximum(jnp.sum(weights > 0), 1)
    own = jnp.sum(divide(weights, jnp.sum(weights)) ** 2 * stats.clients.drift)
    pairs = 1 - divide(own, dot(stats.update, stats.update))  # of |mean|^2
    share = jnp.where(count > 1, jnp.clip(pairs * count / jnp.maximum(count - 1, 1), 0.0, 1.0), 1.0)
    return jnp.sqrt(share / (count - (count - 1) * share)), jnp.sqrt(share)
