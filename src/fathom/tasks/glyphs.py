"""Character recognition over synthetic writers: 62 classes, a small convolutional network."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fathom.core.types import Array, Batch, Key, Params, Task
from fathom.data import Federation, glyphs, split
from fathom.data.cache import cached
from fathom.tasks.layers import conv, dense, max_pool, weights

VERSION = 2  # of the drawings; a new one leaves old caches alone


def load(writers: int = 300, heterogeneity: float = 1.0, seed: int = 0) -> tuple[Task, Federation, Batch]:
    """The task, its writers, and a tenth of each writer's images as the test set.

    heterogeneity: 0 makes every writer draw from the same hand and mix of characters, 1 is natural.
    """

    def drawn() -> dict[str, np.ndarray]:
        made = Federation.from_arrays(glyphs.make(writers, heterogeneity, seed))
        return {"sizes": made.sizes, **made.examples}

    if writers < 1:
        raise ValueError(f"writers={writers} must be at least 1.")
    arrays = cached(f"glyphs-{VERSION}-{writers}-{heterogeneity!r}-{seed}", drawn)
    sizes = arrays.pop("sizes")
    ids = tuple(f"writer_{i:03d}" for i in range(writers))
    federation = Federation(ids, np.cumsum(sizes) - sizes, sizes, arrays)
    return Task(init, loss, metrics), *split(federation)


def init(key: Key) -> Params:
    """First parameters of the network, 115,582 of them."""
    shapes = {"conv1": (5, 5, 1, 16), "conv2": (3, 3, 16, 32), "dense1": (800, 128), "dense2": (128, 62)}
    keys = jax.random.split(key, len(shapes))
    return {name: weights(k, *shape) for (name, shape), k in zip(shapes.items(), keys, strict=True)}


def logits(params: Params, x: Array) -> Array:
    """(n, 28, 28) uint8 images to (n, 62) scores."""
    x = x[..., None].astype(jnp.float32) / 255
    x = max_pool(jax.nn.relu(conv(params["conv1"], x)))  # (n, 12, 12, 16)
    x = max_pool(jax.nn.relu(conv(params["conv2"], x)))  # (n, 5, 5, 32)
    x = jax.nn.relu(dense(params["dense1"], x.reshape(x.shape[0], -1)))
    return dense(params["dense2"], x)


def loss(params: Params, batch: Batch, key: Key) -> Array:
    """Cross entropy of each image."""
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, batch["x"]), batch["y"])


def metrics(params: Params, batch: Batch) -> dict[str, Array]:
    """Whether each image is recognised, and its loss."""
    scores = logits(params, batch["x"])
    right = jnp.argmax(scores, -1) == batch["y"]
    return {"accuracy": right, "loss": optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"])}
