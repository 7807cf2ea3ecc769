"""From client updates to one: the weighted mean, gathered in float32 as the clients finish."""

import jax
import jax.numpy as jnp

from fathom.core.trees import divide
from fathom.core.types import Array, Params


def add(total: Params, updates: Params, weights: Array, trials: Array, sound: Array) -> Params:
    """Add the lanes' updates, by weight, to the total of the trial each belongs to.

    total: (trials, ...) per leaf; updates: (lanes, ...); weights, trials: (lanes,). sound: (lanes,), whether an
    update is finite; one that is not makes its own trial's total NaN and leaves the others alone. A product with a
    one-hot matrix rather than a scatter: the order of the sum is then the same on every run.
    """

    def leaf(total: Array, update: Array) -> Array:
        own = trials == jnp.arange(total.shape[0])[:, None]  # (trials, lanes)
        broken = jnp.any(own & ~sound & (weights > 0), 1)
        update = jnp.where(sound.reshape(-1, *[1] * (update.ndim - 1)), update, 0.0)
        added = jnp.tensordot(jnp.where(own, weights, 0.0), update, 1, precision="highest")
        return total + jnp.where(broken.reshape(-1, *[1] * (update.ndim - 1)), jnp.nan, added)

    return jax.tree.map(leaf, total, updates)


def mean(total: Params, weight: Array, like: Params) -> Params:
    """The weighted mean of one trial's updates, in the model's own precision; zero when nobody answered."""
    return jax.tree.map(lambda t, x: divide(t, weight).astype(x.dtype), total, like)
