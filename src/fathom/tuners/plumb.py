"""FATHOM from any start: the learning rate is checked against what steps really bring.

Ours, not the paper's; `docs/any-start.md` derives it.
"""

import jax.numpy as jnp

from fathom.core.trees import cosine, divide, weighted_mean
from fathom.core.types import Array, HParams, Key, Params, RoundStats, State, Tuner
from fathom.tuners.fathom import fathom

MUCH, LITTLE = 0.75, 0.25  # of what was foretold: the usual bounds of trust-region methods
LEAP = 4.0  # the most that the check alone may ask for, as the logarithm of a factor


def plumb(
    lr_rate: float = 0.5,
    epochs_rate: float = 0.01,
    batch_rate: float = 1.0,
    smoothing: float = 0.9,
) -> Tuner:
    """Adapt lr, E and B from any start: FATHOM with a longer memory, and a check of the learning rate.

    Clients go through their last batch once more and send home by how much its loss was to fall and by how much it did.
    Where nearly all of it came true steps are too short, where little did too long; between the two FATHOM's agreement
    decides. Noise alone can make that negative, so by itself it lowers the learning rate no faster than 1 / t.
    Batches shrink, and clients take more steps on their own, only as far as rounds agree, too. Clients also cut single
    steps that promise the impossible: a first learning rate may be too large.

    It reads the mean update and three weighted means over clients, so it works under secure aggregation.

    >>> tuner = plumb()
    """
    inner = fathom(lr_rate=0.0, epochs_rate=epochs_rate, batch_rate=0.0, smoothing=smoothing)

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, State]:
        first, smoothed = inner.init(key, hparams, params)
        return first, (smoothed, jnp.ones((), jnp.int32))

    def update(key: Key, stats: RoundStats, state: State) -> tuple[HParams, State]:
        smoothed, number = state
        agreement = cosine(stats.update, smoothed)  # -H-bar_t
        alignment = weighted_mean(stats.clients.alignment, stats.clients.examples)  # -G-bar_t
        longer = jnp.maximum(lr_rate * agreement, -1 / number) + lr_rate * verdict(stats)
        smaller = batch_rate * jnp.minimum(alignment, jnp.maximum(agreement, 0.0))
        proposal, smoothed = inner.update(key, stats, smoothed)
        lr, batch = stats.hparams.lr * jnp.exp(longer), stats.hparams.batch * jnp.exp(-smaller)
        return proposal._replace(lr=lr, batch=batch), (smoothed, number + 1)

    return inner._replace(init=init, update=update, scalars_up=3, checks=True)


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
