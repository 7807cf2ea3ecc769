"""Next-word prediction with the paper's recurrent network (its Table 3), for any vocabulary.

A sentence is a row of word ids: 0 is padding, 1 begins and 2 ends a sentence, words follow, and the last id stands
for every word that is not in the vocabulary.
"""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import optax

from fathom.core.types import Array, Batch, Key, Params, Task
from fathom.data.text import END, FIRST, PAD
from fathom.tasks.layers import dense, weights
from fathom.tasks.recurrent import lstm

Precision = Literal["default", "bfloat16"]
EXPECTED_LENGTH = 13.3  # words of a sentence; the training loss is a sum over them, divided by this constant


def task(vocabulary: int = 10_000, embedding: int = 96, hidden: int = 670, precision: Precision = "default") -> Task:
    """Predict each next word of a sentence; `batch["tokens"]` is (n, length + 1) word ids.

    precision: of the recurrent layer in training: "bfloat16" has its weights read in 16 bits, which is faster on a GPU;
    parameters and their updates are float32 all the same.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"precision={precision!r} is not known; choose from {', '.join(get_args(Precision))}.")
    ids = FIRST + vocabulary + 1  # the last: out of vocabulary

    def init(key: Key) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "embed": jax.random.truncated_normal(keys[0], -2.0, 2.0, (ids, embedding)),
            "lstm": weights(keys[1], embedding + hidden, 4 * hidden),
            "project": weights(keys[2], hidden, embedding),
            "out": weights(keys[3], embedding, ids),
        }

    def loss(params: Params, batch: Batch, key: Key) -> Array:
        """Cross entropy summed over each sentence's words, over the expected length."""
        x, y = inputs_and_targets(batch["tokens"])
        logits = scores(params, x, jnp.bfloat16 if precision == "bfloat16" else jnp.float32)
        return jnp.sum(_cross_entropy(logits, y), -1) / EXPECTED_LENGTH

    def metrics(params: Params, batch: Batch) -> dict[str, Any]:
        x, y = inputs_and_targets(batch["tokens"])
        return counts(scores(params, x), y)

    return Task(init, loss, metrics, unit=20)


def inputs_and_targets(tokens: Array) -> tuple[Array, Array]:
    """(n, length + 1) ids to the words shown and the words to predict, (n, length) each."""
    tokens = tokens.astype(jnp.int32)
    return tokens[:, :-1], tokens[:, 1:]


def scores(params: Params, x: Array, dtype: Any = jnp.float32) -> Array:
    """(n, length) word ids to (n, length, ids) scores of the next word; the recurrent layer reads `dtype`."""
    states = lstm(params["lstm"], params["embed"][x].astype(dtype))
    return dense(params["out"], dense(params["project"], jnp.tanh(states)))


def counts(logits: Array, y: Array) -> dict[str, Any]:
    """Per sentence: words guessed right and words that count, and the loss and words it is over.

    `accuracy` allows only words as guesses; `accuracy_free` anything. Neither counts padding or ends of sentences as
    targets; a word out of the vocabulary counts, and is a miss.
    """
    ids = logits.shape[-1]
    is_word = (jnp.arange(ids) > END) & (jnp.arange(ids) < ids - 1)
    counted = (y != PAD) & (y != END)

    def right(guess: Array) -> tuple[Array, Array]:
        return jnp.sum((guess == y) & counted, -1), jnp.sum(counted, -1)

    return {
        "accuracy": right(jnp.argmax(jnp.where(is_word, logits, -jnp.inf), -1)),
        "accuracy_free": right(jnp.argmax(logits, -1)),
        "loss": (jnp.sum(_cross_entropy(logits, y), -1), jnp.sum(y != PAD, -1)),
    }


def _cross_entropy(logits: Array, y: Array) -> Array:
    """Of each word, (n, length); 0 for padding."""
    return jnp.where(y == PAD, 0.0, optax.softmax_cross_entropy_with_integer_labels(logits, y))
