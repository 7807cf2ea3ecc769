"""Metrics over a test set, exact whatever the size of a batch."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from fathom.core.trees import divide
from fathom.core.types import Array, Batch, Params, Task


def chunks(test: Batch, size: int = 256, parts: int = 1) -> tuple[Batch, np.ndarray]:
    """Cut a test set into equal chunks, as many as `parts` divides, with a mask over what was added.

    Returns features of shape (chunks, size, ...) and a mask (chunks, size).
    """
    rows = len(next(iter(jax.tree.leaves(test))))
    size = min(size, -(-rows // parts))
    count = -(-rows // (size * parts)) * parts

    def cut(feature: Any) -> np.ndarray:
        feature = np.asarray(feature)
        added = np.repeat(feature[-1:], count * size - rows, axis=0)
        return np.concatenate([feature, added]).reshape(count, size, *feature.shape[1:])

    return jax.tree.map(cut, test), (np.arange(count * size) < rows).reshape(count, size)


@partial(jax.jit, static_argnames=("task", "mesh"))
def evaluate(task: Task, params: Params, test: Batch, mask: Array, mesh: Mesh | None = None) -> dict[str, Array]:
    """The metrics of each trial's parameters over a test set cut by `chunks`; each of shape (trials,)."""

    def sums(params: Params, test: Batch, mask: Array) -> dict[str, tuple[Array, Array]]:
        def chunk(batch_mask: tuple[Batch, Array]) -> dict[str, tuple[Array, Array]]:
            batch, mask = batch_mask
            return {k: _masked_sums(k, v, mask) for k, v in task.metrics(params, batch).items()}

        return jax.tree.map(lambda leaf: leaf.sum(0), jax.lax.map(chunk, (test, mask)))

    def every_trial(params: Params, test: Batch, mask: Array) -> dict[str, tuple[Array, Array]]:
        out = jax.lax.map(lambda x: sums(x, test, mask), params)
        return out if mesh is None else jax.lax.psum(out, mesh.axis_names)

    if mesh is not None:
        axis = mesh.axis_names[0]
        every_trial = jax.shard_map(
            every_trial, mesh=mesh, in_specs=(P(), P(axis), P(axis)), out_specs=P(), check_vma=False
        )
    return {name: divide(value, weight) for name, (value, weight) in every_trial(params, test, mask).items()}


def _masked_sums(name: str, value: Any, mask: Array) -> tuple[Array, Array]:
    """The sum of a metric over the rows that count, and the weight it is to be divided by."""
    value, weight = value if isinstance(value, tuple) else (value, jnp.ones(mask.shape))
    for part in (value, weight):
        if jnp.shape(part) != mask.shape:
            shapes = f"{jnp.shape(part)} for {mask.shape[0]} examples"
            raise ValueError(f"metric {name!r} has shape {shapes}; return one value per row, (n,).")
    return jnp.sum(jnp.where(mask, value, 0.0)), jnp.sum(jnp.where(mask, weight, 0.0))
