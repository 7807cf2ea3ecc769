"""Small federated problems that the tests share: logistic regression, written for jax and for the reference."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fathom
from fathom import Cohort, HParams

FEATURES, CLASSES = 5, 3
START = (0.5 * np.cos(np.arange(FEATURES * CLASSES + CLASSES))).astype(np.float32)


def logistic(start=START, features=FEATURES, classes=CLASSES, dropout=0.0):
    """Softmax regression from given first parameters; with dropout, a loss that uses its key."""

    def init(key):
        w, b = start[: features * classes], start[features * classes :]
        return {"w": jnp.asarray(w).reshape(features, classes), "b": jnp.asarray(b)}

    def loss(params, batch, key):
        x = batch["x"]
        if dropout and key is not None:
            x = jnp.where(jax.random.bernoulli(key, 1 - dropout, x.shape), x, 0.0)
        return optax.softmax_cross_entropy_with_integer_labels(x @ params["w"] + params["b"], batch["y"])

    def metrics(params, batch):
        right = jnp.argmax(batch["x"] @ params["w"] + params["b"], -1) == batch["y"]
        return {"accuracy": right, "loss": loss(params, batch, None)}

    return fathom.Task(init, loss, metrics)


def clients(seed, sizes, features=FEATURES, classes=CLASSES):
    """Client data as the reference takes it: a list of (x, y)."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(features, classes))
    data = []
    for size in sizes:
        x = (rng.normal(size=(size, features)) + rng.normal(size=features)).astype(np.float32)
        y = np.argmax(x @ (true + 0.5 * rng.normal(size=true.shape)), 1).astype(np.int32)
        data.append((x, y))
    return data


def federation(data, rows=None):
    """The same as a Federation; filled up to `rows`, so that many federations share one compiled round."""
    made = fathom.Federation.from_arrays({i: {"x": x, "y": y} for i, (x, y) in enumerate(data)})
    extra = 0 if rows is None else rows - int(made.sizes.sum())
    padded = {k: np.concatenate([v, np.zeros((extra, *v.shape[1:]), v.dtype)]) for k, v in made.examples.items()}
    return fathom.Federation(made.ids, made.starts, made.sizes, padded)


def flat(params):
    return np.concatenate([np.ravel(params["w"]), np.ravel(params["b"])])


def algorithm(tuner=None, lr=0.1, epochs=1.0, batch=8.0, task=None, **options):
    """A run from these first values, also of a tuner that would have its own."""
    return fathom.federated(
        task or logistic(),
        tuner=(tuner or fathom.tuners.fathom())._replace(first=None),
        hparams=HParams(lr, epochs, batch),
        **options,
    )


def whole(fed, places=None):
    """A Cohort of these clients of a federation, of all by default."""
    places = np.arange(len(fed)) if places is None else np.asarray(places)
    start, size = fed.starts[places].astype(np.int32), fed.sizes[places].astype(np.int32)
    return Cohort(fed.examples, *(jnp.asarray(a) for a in (start, size, fed.names(places))))


def one_round(algo, state, cohort, **options):
    """algorithm.round, compiled."""
    return jax.jit(algo.round, static_argnames=("slots", "lanes", "order"))(state, cohort, **options)


def records(algo, fed, rounds=4, cohort=4, seed=0, **options):
    return list(fathom.train(algo, fed, key=jax.random.key(seed), rounds=rounds, cohort=cohort, **options))
