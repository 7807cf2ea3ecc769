"""Synthetic(alpha, beta): logistic regression whose clients differ in model and in data.

After Li et al., "Federated Optimization in Heterogeneous Networks" (2018), as LEAF (Caldas et al. 2018) has it.
"""

import numpy as np

FEATURES, CLASSES = 60, 10
LARGEST = 1000  # the published sizes have no bound, and a client of 20,000 now and then


def make(alpha: float = 1.0, beta: float = 1.0, clients: int = 100, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Make "client_000" -> {"x": (n, 60) float32, "y": (n,) int32}.

    alpha: how much the clients' true models differ; beta: how much their inputs do. Sizes are log-normal, from
    50 to 1000.
    """
    spread = np.diag(np.arange(1, FEATURES + 1) ** -1.2)  # Sigma: covariance of the inputs
    return {f"client_{i:03d}": _client(np.random.default_rng([seed, i]), alpha, beta, spread) for i in range(clients)}


def _client(rng: np.random.Generator, alpha: float, beta: float, spread: np.ndarray) -> dict[str, np.ndarray]:
    size = min(int(rng.lognormal(4, 2)) + 50, LARGEST)
    model_mean, input_mean = rng.normal(0, alpha**0.5), rng.normal(0, beta**0.5)  # u_k, B_k
    w, b = rng.normal(model_mean, 1, (FEATURES, CLASSES)), rng.normal(model_mean, 1, CLASSES)
    centre = rng.normal(input_mean, 1, FEATURES)  # v_k
    x = centre + rng.standard_normal((size, FEATURES)) * np.sqrt(np.diag(spread))
    return {"x": x.astype(np.float32), "y": np.argmax(x @ w + b, 1).astype(np.int32)}
