"""An LSTM with a gradient of its own, fast with one set of weights per client.

What a recurrent layer costs on a GPU is reading its weights, once for every word and client. Left to automatic
differentiation, the backward pass also reads and writes a gradient as large as the weights at every word. Here it only
works out the gradient of the gates, and the weights' gradient is one matrix product over all words at the end.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fathom.core.types import Array, Params

UNROLL = 4  # words in one turn of the loop: fewer small copies on a GPU


@jax.custom_vjp
def lstm(params: Params, x: Array) -> Array:
    """(n, length, in) to the states (n, length, hidden), from w (in + hidden, 4 hidden) and b (4 hidden,).

    The four parts of w are the input gate, the new value, the forget gate, which is given 1 more, and the output gate.
    The weights are read in the precision of x, and what they are multiplied with is rounded to it, too; the states and
    the weights' gradient are float32.
    """
    return _forward(params, x)[1][0]


def _states(params: Params, x: Array) -> tuple[tuple[()], tuple[Array, Array, Array]]:
    """All states h and c, (n, length, hidden), and the gates' values, (n, length, 4 hidden)."""
    inputs, hidden = x.shape[-1], params["b"].shape[0] // 4
    w = params["w"].astype(x.dtype)
    recurrent = _apart(w[inputs:])

    def word(state: tuple[Array, Array], given: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        h, c = state
        i, g, f, o = jnp.split(given + _product(h, recurrent), 4, -1)
        i, g, f, o = jax.nn.sigmoid(i), jnp.tanh(g), jax.nn.sigmoid(f + 1), jax.nn.sigmoid(o)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, jnp.concatenate([i, g, f, o], -1))

    zero = jnp.zeros((x.shape[0], hidden))
    _, states = jax.lax.scan(word, (zero, zero), (_product(x, w[:inputs]) + params["b"]).swapaxes(0, 1), unroll=UNROLL)
    return (), jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), states)


def _gradients(params: Params, rows: tuple[Array, ...]) -> tuple[Params, Array]:
    """The gradients of params, summed over rows, and of x, from that of the states h."""
    x, h, c, gates, dh = rows
    inputs, w = x.shape[-1], params["w"].astype(x.dtype)
    back = _apart(w[inputs:].T)

    def word(later: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (dh, dc), (c, c_before, gates, dh_out) = later, at
        i, g, f, o = jnp.split(gates, 4, -1)
        dh, tanh_c = dh + dh_out, jnp.tanh(c)
        dc = dc + dh * o * (1 - tanh_c**2)
        d = [dc * g * i * (1 - i), dc * i * (1 - g**2), dc * c_before * f * (1 - f), dh * tanh_c * o * (1 - o)]
        d = jnp.concatenate(d, -1)
        return (_product(d, back), dc * f), d

    def before(states: Array) -> Array:
        return jnp.pad(states, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    zero = jnp.zeros_like(h[:, 0])
    words = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), (c, before(c), gates, dh))
    d = jax.lax.scan(word, (zero, zero), words, reverse=True, unroll=UNROLL)[1].swapaxes(0, 1)
    dw = jnp.einsum("nti,ntg->ig", jnp.concatenate([x.astype(h.dtype), before(h)], -1), d)
    return {"w": dw, "b": jnp.sum(d, (0, 1))}, _product(d, w[:inputs].T).astype(x.dtype)


def _product(a: Array, b: Array) -> Array:
    """a @ b in the precision of b, summed up in float32."""
    return jnp.matmul(a.astype(b.dtype), b, preferred_element_type=jnp.float32)


def _apart(part: Array) -> Array:
    """A part of the weights, cut out before the loop over words and not anew in each turn."""
    return jax.lax.optimization_barrier(part)


def one_call(function: Callable[[Params, Any], tuple[Any, Any]]) -> Callable[[Params, Any], tuple[Any, Any]]:
    """`function(params, rows)`, which `jax.vmap` over more rows calls once with all of them.

    It returns what is summed over rows, and what there is for each row. Without this the sum would be made for every
    row by itself first: a gradient as large as the weights for each example.
    """
    merged = jax.custom_batching.custom_vmap(function)

    @merged.def_vmap
    def rule(size: int, batched: Any, params: Params, rows: Any) -> tuple[Any, Any]:
        of_params, of_rows = batched
        if any(jax.tree.leaves(of_params)):  # weights differ too
            axes = jax.tree.map(lambda there: 0 if there else None, batched)
            out = jax.vmap(function, in_axes=tuple(axes), axis_size=size)(params, rows)
            return out, jax.tree.map(lambda _: True, out)
        rows = jax.tree.map(lambda leaf, there: leaf if there else jnp.stack([leaf] * size), rows, of_rows)
        sums, each = function(params, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows))
        each = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), each)
        return (sums, each), (jax.tree.map(lambda _: False, sums), jax.tree.map(lambda _: True, each))

    return merged


_forward, _backward = one_call(_states), one_call(_gradients)


def _lstm_forward(params: Params, x: Array) -> tuple[Array, Any]:
    _, states = _forward(params, x)
    return states[0], (params, x, *states)


def _lstm_backward(saved: Any, dh: Array) -> tuple[Params, Array]:
    params, *rows = saved
    return _backward(params, (*rows, dh))


lstm.defvjp(_lstm_forward, _lstm_backward)
