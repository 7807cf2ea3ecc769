"""Tuners that need no signal, and those that wrap another."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fathom.core.types import Array, HParams, Key, Params, RoundStats, State, Tuner

Schedule = Callable[[Any], Any]  # from the number of rounds done to a value, as optax makes them

# What `schedule` can be given by name in a spec.
SCHEDULES = {
    "constant": optax.constant_schedule,
    "cosine_decay": optax.cosine_decay_schedule,
    "exponential_decay": optax.exponential_decay,
    "linear": optax.linear_schedule,
    "polynomial": optax.polynomial_schedule,
    "warmup_cosine_decay": optax.warmup_cosine_decay_schedule,
}

# The paper's runs kept E and B below these; lr below 0.5 on EMNIST and 1.0 on Stack Overflow.
LOW = HParams(lr=0.0, epochs=0.0, batch=1.0)
HIGH = HParams(lr=0.5, epochs=10.0, batch=5096.0)


def fixed() -> Tuner:
    """Leave the hyperparameters as they are: FedAvg (McMahan et al. 2016).

    >>> fixed().init(None, HParams(0.1, 1.0, 20.0), None)[0].lr
    0.1
    """
    return Tuner(
        lambda key, hparams, params: (hparams, ()),
        lambda key, stats, state: (stats.hparams, ()),
        scalars_up=0,
        scalars_down=0,
    )


def schedule(lr: Schedule | None = None, epochs: Schedule | None = None, batch: Schedule | None = None) -> Tuner:
    """Open-loop decay: each hyperparameter follows an optax schedule of the round, or stays as it started.

    >>> import optax
    >>> tuner = schedule(lr=optax.exponential_decay(0.1, transition_steps=1, decay_rate=0.998))
    """

    def at(done: Any, hparams: HParams) -> HParams:
        return HParams(
            *(
                value if rule is None else jnp.full_like(value, rule(done))
                for rule, value in zip((lr, epochs, batch), hparams, strict=True)
            )
        )

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, Array]:
        return at(0, hparams), jnp.zeros((), jnp.int32)

    def update(key: Key, stats: RoundStats, done: Array) -> tuple[HParams, Array]:
        return at(done + 1, stats.hparams), done + 1

    return Tuner(init, update, scalars_up=0)


def clamp(tuner: Tuner, low: HParams = LOW, high: HParams = HIGH) -> Tuner:
    """Keep what another tuner proposes inside a box; what it proposes next starts from the clamped value.

    >>> tuner = clamp(fixed(), high=HParams(lr=0.5, epochs=10.0, batch=5096.0))
    """

    def inside(hparams: HParams) -> HParams:
        return jax.tree.map(jnp.clip, hparams, low, high)

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, State]:
        first, state = tuner.init(key, hparams, params)
        return inside(first), state

    def update(key: Key, stats: RoundStats, state: State) -> tuple[HParams, State]:
        proposal, state = tuner.update(key, stats, state)
        return inside(proposal), state

    return tuner._replace(init=init, update=update)
