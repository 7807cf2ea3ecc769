"""From client updates to one: the weighted mean, gathered as the clients finish."""

import jax
import jax.numpy as jnp

from fathom.core.trees import divide
from fathom.core.types import Array, Params


def add(total: Params, updates: Params, weights: Array, trials: Array) -> Params:
    """Add the lanes' updates, by weight, to the total of the trial each belongs to.

    total: (trials, ...) per leaf; updates: (lanes, ...); weights, trials: (lanes,). A product with a one-hot
    matrix rather than a scatter: the order of the sum is then the same on every run.
    """

    def leaf(total: Array, update: Array) -> Array:
        share = jnp.where(trials == jnp.arange(total.shape[0])[:, None], weights, 0.0)  # (trials, lanes)
        added = jnp.tensordot(share.astype(update.dtype), update, 1, precision="highest")
        return total + added

    return jax.tree.map(leaf, total, updates)


def mean(total: Params, weight: Array) -> Params:
    """The weighted mean of one trial's updates; zero when nobody answered."""
    return jax.tree.map(lambda t: divide(t, weight).astype(t.dtype), total)
