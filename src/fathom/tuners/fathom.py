"""FATHOM: hypergradients of client learning rate, epochs and batch size (Kan, "Federated Hypergradient Descent").

Comments name the symbols of the paper. The two forms are the two readings it allows; `docs/paper.md` says how
they differ and why the first is the default.
"""

import jax
import jax.numpy as jnp
import optax

from fathom.core.trees import cosine, weighted_mean
from fathom.core.types import Form, HParams, Key, Params, RoundStats, Tuner


def fathom(
    form: Form = "reference",
    lr_rate: float = 0.01,
    epochs_rate: float = 0.01,
    batch_rate: float = 0.1,
    smoothing: float = 0.5,
) -> Tuner:
    """The paper's: adapt lr, E and B from a good start, by normalised exponentiated hypergradient steps.

    `form="reference"` is what the paper's Table 1 was made with, `form="printed"` the equations as typeset.
    `lr_rate`, `epochs_rate`, `batch_rate` are gamma_eta, gamma_E, gamma_B; `smoothing` is alpha.

    It reads the mean update and the mean alignment of the clients and nothing else, so it works under secure
    aggregation. It keeps no copy of the hyperparameters: each step starts from what the round used, so a bound
    put around it (`clamp`) holds the state itself and nothing winds up behind it.

    >>> tuner = fathom()
    """

    def init(key: Key, hparams: HParams, params: Params) -> tuple[HParams, Params]:
        return hparams, jax.tree.map(jnp.zeros_like, params)

    def update(key: Key, stats: RoundStats, smoothed: Params) -> tuple[HParams, Params]:
        lr, epochs, batch = stats.hparams
        agreement = cosine(stats.update, smoothed)  # -H-bar_t = -N-bar_t
        alignment = weighted_mean(stats.clients.alignment, stats.clients.examples)  # -G-bar_t
        if form == "printed":
            alignment = lr * alignment
        proposal = HParams(
            lr=lr * jnp.exp(lr_rate * agreement),
            epochs=epochs * jnp.exp(epochs_rate * (agreement + alignment)),
            batch=batch * jnp.exp(-batch_rate * alignment),
        )
        return proposal, optax.tree.update_moment(stats.update, smoothed, smoothing, 1)  # Delta-bar_{t,sm}

    return Tuner(init, update, form=form, smoothing=smoothing)
