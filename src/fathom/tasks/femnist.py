"""Character recognition on Federated EMNIST-62, with the paper's convolutional network (its Table 2)."""

from contextlib import nullcontext
from functools import partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import optax

from fathom.core.types import Array, Batch, Key, Params, Task
from fathom.data import Federation
from fathom.tasks.imported import load_imported
from fathom.tasks.layers import conv, dense, dropout, max_pool, weights

Precision = Literal["default", "highest", "bfloat16"]
CLASSES = 62
SHAPES = {"conv1": (3, 3, 1, 32), "conv2": (3, 3, 32, 64), "dense1": (9216, 128), "dense2": (128, CLASSES)}


def load(
    data: str = "femnist", least: int = 1, test_examples: int = 100_000, precision: Precision = "default"
) -> tuple[Task, Federation, dict[str, Batch]]:
    """The task on an imported data set: its clients with at least `least` examples, and its test sets.

    A test set larger than `test_examples` is sampled down to that, always the same way. precision: of matrix products
    in training: "default" is TF32 on recent GPUs and float32 elsewhere; "highest" is float32; "bfloat16" keeps the
    convolutions' inputs and outputs in 16 bits, which is faster on a GPU. Parameters and their updates are float32.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision={precision!r} is not known; choose from {', '.join(get_args(Precision))}.")
    _, federation, tests = load_imported(data, {"x": (28, 28), "y": ()}, least, test_examples)
    classes = max(int(part["y"].max()) for part in (federation.examples, *tests.values())) + 1
    if classes > CLASSES:
        raise ValueError(f"data set {data!r} has labels up to {classes - 1}; this task has {CLASSES} classes, from 0.")
    return Task(init, partial(loss, precision=precision), metrics), federation, tests


def init(key: Key) -> Params:
    """First parameters of the network, 1,206,590 of them."""
    keys = jax.random.split(key, len(SHAPES))
    return {name: weights(k, *shape) for (name, shape), k in zip(SHAPES.items(), keys, strict=True)}


def network(params: Params, x: Array, key: Key | None = None) -> Array:
    """(n, 28, 28, 1) images with ink = 1 to (n, 62) scores; with dropout where a key is given.

    The convolutions are done in the precision of x.
    """
    keys = (None, None) if key is None else jax.random.split(key)
    x = jax.nn.relu(conv(params["conv1"], x))
    x = max_pool(jax.nn.relu(conv(params["conv2"], x)))  # (n, 12, 12, 64)
    x = dropout(keys[0], 0.25, x.astype(jnp.float32)).reshape(x.shape[0], -1)
    x = dropout(keys[1], 0.5, jax.nn.relu(dense(params["dense1"], x)))
    return dense(params["dense2"], x)


def ink(pixels: Array) -> Array:
    """(n, 28, 28) uint8 images, paper 255 and ink 0, to the network's input."""
    return 1 - pixels[..., None].astype(jnp.float32) / 255


def loss(params: Params, batch: Batch, key: Key, precision: Precision = "default") -> Array:
    """Cross entropy of each image."""
    x = ink(batch["x"]).astype(jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
    with jax.default_matmul_precision("highest") if precision == "highest" else nullcontext():
        scores = network(params, x, key)
    return optax.softmax_cross_entropy_with_integer_labels(scores, batch["y"].astype(jnp.int32))


def metrics(params: Params, batch: Batch) -> dict[str, Array]:
    """Whether each image is recognised, and its loss."""
    scores, y = network(params, ink(batch["x"])), batch["y"].astype(jnp.int32)
    return {
        "accuracy": jnp.argmax(scores, -1) == y,
        "loss": optax.softmax_cross_entropy_with_integer_labels(scores, y),
    }
