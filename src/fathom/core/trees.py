"""Dot products, cosines and weighted means over pytrees; the rest is `optax.tree`."""

import jax
import jax.numpy as jnp

from fathom.core.types import Array, Params


def dot(a: Params, b: Params) -> Array:
    """The inner product of two trees of the same shape, in float32."""
    products = jax.tree.map(lambda x, y: jnp.sum(x.astype(jnp.float32) * y.astype(jnp.float32)), a, b)
    return sum(jax.tree.leaves(products), jnp.zeros((), jnp.float32))


def cosine(a: Params, b: Params) -> Array:
    """The cosine of the angle between two trees; 0 where either is zero."""
    norms = jnp.sqrt(dot(a, a)) * jnp.sqrt(dot(b, b))
    return divide(dot(a, b), norms)


def unit(tree: Params) -> Params:
    """A tree's direction: itself over its length, in its own dtypes; zeros stay zeros."""
    length = jnp.sqrt(dot(tree, tree))
    return jax.tree.map(lambda leaf: divide(leaf, length).astype(leaf.dtype), tree)


def divide(a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return jnp.where(b == 0, 0.0, a / jnp.where(b == 0, 1.0, b))


def weighted_mean(values: Array, weights: Array) -> Array:
    """sum(w v) / sum(w) over the last axis; 0 where there is no weight, whatever the values there."""
    values = jnp.where(weights > 0, values, 0.0)
    return divide(jnp.sum(values * weights, -1), jnp.sum(weights, -1).astype(jnp.float32))
