"""Layers as plain functions of arrays, written so that they stay fast with one set of weights per client."""

import jax
import jax.numpy as jnp

from fathom.core.types import Array, Key, Params


def conv(params: Params, x: Array) -> Array:
    """A valid convolution, (n, h, w, in) -> (n, h', w', out), with params w (kh, kw, in, out) and b (out,).

    As shifted slices and one matrix product: with weights of its own for every client `lax.conv` becomes a
    grouped convolution, which is slow on a GPU and slower still inside a loop on a CPU.
    """
    kh, kw, _, out = params["w"].shape
    h, w = x.shape[1] - kh + 1, x.shape[2] - kw + 1
    patches = jnp.concatenate([x[:, i : i + h, j : j + w] for i in range(kh) for j in range(kw)], -1)
    w, b = params["w"].reshape(-1, out).astype(x.dtype), params["b"].astype(x.dtype)
    return whole_gradient(patches @ w + b)


@jax.custom_vjp
def whole_gradient(x: Array) -> Array:
    """x itself; its gradient is written out once, where XLA would compute it anew for every use of it.

    On a GPU the gradient of a bias, a sum over all positions, is otherwise fused with what leads to it and runs at a
    fraction of the memory's speed.
    """
    return x


whole_gradient.defvjp(lambda x: (x, None), lambda _, g: (jax.lax.optimization_barrier(g),))


def dense(params: Params, x: Array) -> Array:
    """x @ w + b."""
    return x @ params["w"] + params["b"]


def max_pool(x: Array) -> Array:
    """The larger of every 2 x 2 block, (n, h, w, c) -> (n, h / 2, w / 2, c); h and w are even."""
    n, h, w, c = x.shape
    blocks = x.reshape(n, h // 2, 2, w // 2, 2, c)
    rows = jnp.maximum(blocks[:, :, 0], blocks[:, :, 1])
    return jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1])


def weights(key: Key, *shape: int) -> Params:
    """A layer's first parameters: truncated normal with sd 1 / sqrt(fan in), zero bias."""
    fan_in = 1
    for extent in shape[:-1]:
        fan_in *= extent
    w = jax.random.truncated_normal(key, -2.0, 2.0, shape) / jnp.sqrt(fan_in)
    return {"w": w, "b": jnp.zeros(shape[-1])}


def dropout(key: Key | None, rate: float, x: Array) -> Array:
    """Set a share of the values to 0 and scale up the rest; leave them all without a key.

    The mask is drawn from 8 bits a value, a quarter of the work: rates are kept to 1/256.
    """
    if key is None:
        return x
    keep = round((1 - rate) * 256)
    mask = jax.random.bits(key, x.shape, jnp.uint8) < keep
    return jnp.where(mask, x * (256 / keep), 0.0)
