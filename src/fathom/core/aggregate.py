"""From client updates to one: the weighted mean, and robust and private forms of it.

Updates are summed in float32 as the clients finish. Only order statistics (median, trimmed mean) need them all at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fathom.core.trees import divide
from fathom.core.types import Array, ClientStats, Key, Params

ALIGNMENT_SHARE = 0.3  # of an alignment beside a clipped update, in what `private` bounds together


class Privacy(NamedTuple):
    """What has to be known to account for privacy."""

    noise: float  # standard deviation of the noise, over the most that one client can add to the sums
    delta: float


class Aggregator(NamedTuple):
    """What each update counts for, and what becomes of their sum."""

    weight: Callable[[Array], Array]  # from clients' numbers of examples to what their updates weigh
    factor: Callable[[Array], Array]  # from the norms of updates to what they are multiplied by
    combine: Callable[[Key, Params, Array], Params]  # from the weighted sum and the weights (cohort,) to the update
    signals: Callable[[Key, ClientStats], ClientStats]  # what the tuner may see of the clients
    needs_each: bool = False  # `combine` gets the clients' updates, (cohort, ...) per leaf, in place of their sum
    privacy: Privacy | None = None


def mean() -> Aggregator:
    """The mean of the updates, weighted by the clients' numbers of examples.

    >>> mean().combine(None, {"w": jnp.asarray([6.0])}, jnp.asarray([1.0, 2.0]))["w"].tolist()
    [2.0]
    """

    def combine(key: Key, total: Params, weights: Array) -> Params:
        return jax.tree.map(lambda leaf: divide(leaf, jnp.sum(weights)), total)  # Delta-bar_t

    return Aggregator(
        weight=lambda examples: examples.astype(jnp.float32),
        factor=jnp.ones_like,
        combine=combine,
        signals=lambda key, clients: clients,
    )


def median() -> Aggregator:
    """The median of the updates, coordinate by coordinate, every client counting alike (Yin et al. 2018).

    >>> updates = {"w": jnp.asarray([[1.0], [2.0], [1e9]])}
    >>> median().combine(None, updates, jnp.ones(3))["w"].tolist()
    [2.0]
    """
    return _order_statistic(lambda count: (count - 1) // 2)


def trimmed_mean(fraction: float = 0.1) -> Aggregator:
    """The mean without the largest and the smallest values, coordinate by coordinate (Yin et al. 2018).

    At either end `fraction` of the clients are left out, rounded up; every client counts alike.

    >>> updates = {"w": jnp.asarray([[1.0], [2.0], [3.0], [1e9]])}
    >>> trimmed_mean(0.25).combine(None, updates, jnp.ones(4))["w"].tolist()
    [2.5]
    """
    if not 0 <= fraction < 0.5:
        raise ValueError(f"fraction={fraction} must be at least 0 and less than 0.5.")
    return _order_statistic(
        lambda count: jnp.minimum(jnp.ceil(fraction * count - 1e-4).astype(jnp.int32), (count - 1) // 2)
    )


def norm_bound(aggregator: Aggregator, bound: float) -> Aggregator:
    """Shrink updates that are longer than `bound` to that length, whatever is then done with them.

    >>> norm_bound(mean(), 2.0).factor(jnp.asarray([1.0, 8.0])).tolist()
    [1.0, 0.25]
    """
    if not 0 < bound < float("inf"):
        raise ValueError(f"bound={bound} must be greater than 0 and finite.")
    return aggregator._replace(factor=lambda norm: aggregator.factor(norm) * _clip(norm, bound))


def bounded_mean(bound: float) -> Aggregator:
    """The weighted mean of updates shrunk to at most this length."""
    return norm_bound(mean(), bound)


def private(clip: float, noise: float, delta: float = 1e-5) -> Aggregator:
    """A mean that hides who took part: updates clipped, Gaussian noise added to their sum (McMahan et al. 2018).

    Every client counts alike, and the sum is divided by the size of the cohort, whoever answered. A client's update,
    over `clip`, and its alignment are bounded together, by B = sqrt(1 + ALIGNMENT_SHARE^2); both sums get noise
    of `noise` B. Nothing else of a client reaches the tuner or the server optimizer.
    """
    if not 0 < clip < float("inf"):
        raise ValueError(f"clip={clip} must be greater than 0 and finite.")
    if not 1e-3 <= noise < float("inf"):
        raise ValueError(f"noise={noise} must be at least 0.001 and finite; with less there is no privacy to speak of.")
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta} must be between 0 and 1.")
    deviation = noise * (1 + ALIGNMENT_SHARE**2) ** 0.5

    def combine(key: Key, total: Params, weights: Array) -> Params:
        leaves, form = jax.tree.flatten(total)
        keys = jax.random.split(jax.random.fold_in(key, 0), len(leaves))
        noisy = [
            leaf + clip * deviation * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)
        ]
        return jax.tree.unflatten(form, [leaf / weights.size for leaf in noisy])

    def signals(key: Key, clients: ClientStats) -> ClientStats:
        total = jnp.sum(jnp.where(clients.examples > 0, jnp.clip(clients.alignment, -1, 1), 0.0))
        total += deviation / ALIGNMENT_SHARE * jax.random.normal(jax.random.fold_in(key, 1))
        hidden = jax.tree.map(jnp.zeros_like, clients)
        return hidden._replace(
            examples=jnp.ones_like(clients.examples),
            alignment=jnp.full_like(clients.alignment, total / clients.examples.size),
        )

    return Aggregator(
        weight=lambda examples: (examples > 0).astype(jnp.float32),
        factor=lambda norm: _clip(norm, clip),
        combine=combine,
        signals=signals,
        privacy=Privacy(noise, delta),
    )


# By name, for specs and the command line.
AGGREGATORS = {
    "mean": mean,
    "median": median,
    "trimmed_mean": trimmed_mean,
    "norm_bound": bounded_mean,
    "private": private,
}


def add(total: Params, updates: Params, weights: Array, trials: Array) -> Params:
    """Add the lanes' updates, by weight, to the total of the trial each belongs to.

    total: (trials, ...) per leaf; updates: (lanes, ...); weights, trials: (lanes,). An update that weighs nothing adds
    nothing, even where it is not finite. A product with a one-hot matrix rather than a scatter: the order of the sum
    is then the same on every run.
    """

    def leaf(total: Array, update: Array) -> Array:
        own = trials == jnp.arange(total.shape[0])[:, None]  # (trials, lanes)
        update = jnp.where((weights > 0).reshape(-1, *[1] * (update.ndim - 1)), update, 0.0)
        return total + jnp.tensordot(jnp.where(own, weights, 0.0), update, 1, precision="highest")

    return jax.tree.map(leaf, total, updates)


def _clip(norm: Array, bound: float) -> Array:
    return jnp.minimum(1.0, bound / jnp.maximum(norm, 1e-30))


def _order_statistic(trim: Callable[[Array], Array]) -> Aggregator:
    """The mean of a coordinate's values without the `trim(count)` least and greatest of them."""

    def combine(key: Key, updates: Params, weights: Array) -> Params:
        present = weights > 0
        count = jnp.sum(present)
        rank, cut = jnp.arange(present.size), jnp.maximum(trim(count), 0)
        counted = (rank >= cut) & (rank < count - cut)

        def leaf(values: Array) -> Array:
            shape = (-1, *[1] * (values.ndim - 1))
            ordered = jnp.sort(jnp.where(present.reshape(shape), values, jnp.inf), 0)  # the absent come last
            total = jnp.sum(jnp.where(counted.reshape(shape), ordered, 0.0), 0)
            return divide(total, jnp.sum(counted).astype(jnp.float32))

        return jax.tree.map(leaf, updates)

    return mean()._replace(weight=lambda examples: (examples > 0).astype(jnp.float32), combine=combine, needs_each=True)
