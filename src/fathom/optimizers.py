"""Client steps as optax transforms, and the server steps by name.

A client step is an `optax.GradientTransformationExtraArgs` that is given the round's `learning_rate` and the
`reference` x_t it started from with every gradient. A server step is any optax transformation: it is given the
weighted mean of x_t - x_i as its gradient.
"""

from typing import Any

import jax
import optax


def sgd() -> optax.GradientTransformationExtraArgs:
    """Plain SGD, the client step of FedAvg (McMahan et al. 2016): x <- x - lr g.

    >>> sgd().update(2.0, sgd().init(1.0), 1.0, learning_rate=0.5, reference=1.0)[0]
    -1.0
    """

    def update(updates: Any, state: Any, params: Any = None, *, learning_rate: Any = None, **_: Any) -> tuple[Any, Any]:
        return jax.tree.map(lambda g: -learning_rate * g, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def momentum(decay: float = 0.9, nesterov: bool = False) -> optax.GradientTransformationExtraArgs:
    """SGD with momentum inside a client's local work; the velocity starts at zero every round.

    >>> momentum(decay=0.9).init(1.0)
    (TraceState(trace=...), EmptyState())
    """
    return optax.chain(optax.trace(decay, nesterov), sgd())


def fedprox(mu: float = 0.01) -> optax.GradientTransformationExtraArgs:
    """SGD on the local loss plus mu/2 |x - x_t|^2 (FedProx, Li et al. 2018).

    >>> fedprox(mu=0.5).update(2.0, fedprox().init(1.0), 3.0, learning_rate=1.0, reference=1.0)[0]
    -3.0
    """

    def update(
        updates: Any, state: Any, params: Any = None, *, learning_rate: Any = None, reference: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        pulled = jax.tree.map(lambda g, x, r: g + mu * (x - r), updates, params, reference)
        return jax.tree.map(lambda g: -learning_rate * g, pulled), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def fedavg(learning_rate: float = 1.0) -> optax.GradientTransformation:
    """The server steps to the weighted mean of the clients' models (McMahan et al. 2016).

    >>> float(fedavg().update(2.0, fedavg().init(1.0))[0])
    -2.0
    """
    return optax.sgd(learning_rate)


def fedavgm(learning_rate: float = 10**-0.5, momentum: float = 0.9) -> optax.GradientTransformation:
    """Momentum at the server (Hsu et al. 2019); the rate is Reddi et al.'s best for EMNIST.

    >>> step = fedavgm()
    """
    return optax.sgd(learning_rate, momentum)


def fedadam(
    learning_rate: float = 10**-2.5, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-4
) -> optax.GradientTransformation:
    """Adam at the server (Reddi et al. 2020, their best rates for EMNIST), with Adam's bias correction.

    >>> step = fedadam(learning_rate=0.01)
    """
    return optax.adam(learning_rate, b1, b2, eps)


def fedyogi(
    learning_rate: float = 10**-2.5, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-4
) -> optax.GradientTransformation:
    """Yogi at the server (Reddi et al. 2020, their best rates for EMNIST).

    >>> step = fedyogi()
    """
    return optax.yogi(learning_rate, b1, b2, eps)


def fedadagrad(learning_rate: float = 0.1, eps: float = 0.01) -> optax.GradientTransformation:
    """Adagrad at the server (Reddi et al. 2020, their best rates for EMNIST).

    >>> step = fedadagrad()
    """
    return optax.adagrad(learning_rate, initial_accumulator_value=0.0, eps=eps)


# By name, for specs and the command line.
CLIENT = {"sgd": sgd, "momentum": momentum, "fedprox": fedprox}
SERVER = {
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
}
