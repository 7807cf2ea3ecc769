"""FATHOM from any start: the learning rate is checked against what steps really bring.

`docs/any-start.md` derives it. It is ours, not the paper's.
"""

import jax
import jax.numpy as jnp
import optax

from fathom.core.trees import cosine, divide, weighted_mean
from fathom.core.types import Array, HParams, Key, Params, RoundStats, Tuner

MUCH, LITTLE = 0.75, 0.25  # of what was foretold: the usual bounds of trust-region methods
LEAP = 2.0  # the most that the check alone may ask for, as the logarithm of a factor


def plumb(
    lr_rate: float = 0.5,
    epochs_rate: float = 0.01,
    batch_rate: float = 0.2,
    smoothing: float = 0.9,
) -> Tuner:
    """Adapt lr, E and B from any start: FATHOM's signals with a longer memory, and a check of the learning rate.

    Clients go through their last batch once more and send home by how much its loss was to fall and by how much it did.
    Where nearly all of it came true steps are too short, where little did too long; between the two FATHOM's agreement
    decides. Clients also cut single steps that promise the impossible, so that no learning rate destroys a run.

    It reads four weighted sums over clients and nothing else, so it works under secure aggregation.

    >>> tuner = plumb()
    """

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, Params]:
        return hparams, jax.tree.map(jnp.zeros_like, params)

    def update(key: Key, stats: RoundStats, smoothed: Params) -> tuple[HParams, Params]:
        lr, epochs, batch = stats.hparams
        agreement = cosine(stats.update, smoothed)  # -H-bar_t, with a memory of some ten rounds
        alignment = weighted_mean(stats.clients.alignment, stats.clients.examples)  # -G-bar_t
        proposal = HParams(
            lr=lr * jnp.exp(lr_rate * (agreement + verdict(stats))),
            epochs=epochs * jnp.exp(epochs_rate * (agreement + alignment)),
            batch=batch * jnp.exp(-batch_rate * alignment),
        )
        return proposal, optax.tree.update_moment(stats.update, smoothed, smoothing, 1)

    return Tuner(init, update, smoothing=smoothing, scalars_up=3, checks=True)


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
