"""Synthetic(alpha, beta): logistic regression, milliseconds a round."""

import jax.numpy as jnp
import optax

from fathom.core.types import Array, Batch, Key, Params, Task
from fathom.data import Federation, split, synthetic
from fathom.data.synthetic import CLASSES, FEATURES
from fathom.tasks.layers import dense


def load(alpha: float = 1.0, beta: float = 1.0, clients: int = 100, seed: int = 0) -> tuple[Task, Federation, Batch]:
    """The task, its clients, and a tenth of each client's examples as the test set.

    alpha: how much the clients' true models differ; beta: how much their inputs do.
    """
    if clients < 1 or alpha < 0 or beta < 0:
        raise ValueError(f"clients={clients}, alpha={alpha}, beta={beta}: give at least one client, and no negatives.")
    return Task(init, loss, metrics), *split(Federation.from_arrays(synthetic.make(alpha, beta, clients, seed)))


def init(key: Key) -> Params:
    """All zero, as published."""
    return {"w": jnp.zeros((FEATURES, CLASSES)), "b": jnp.zeros(CLASSES)}


def loss(params: Params, batch: Batch, key: Key) -> Array:
    """Cross entropy of each example."""
    return optax.softmax_cross_entropy_with_integer_labels(dense(params, batch["x"]), batch["y"])


def metrics(params: Params, batch: Batch) -> dict[str, Array]:
    """Whether each example is classified right, and its loss."""
    right = jnp.argmax(dense(params, batch["x"]), -1) == batch["y"]
    return {"accuracy": right, "loss": loss(params, batch, None)}  # pyright: ignore[reportArgumentType]
