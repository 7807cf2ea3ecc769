"""Three rounds of FATHOM that every device should do alike, beside the same in numpy."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fathom

# Clients whose loss is the mean of sum(CURVE (x - c)^2) / 2 over their points c; a batch holds all of them.
CURVE = np.array([1.5, 0.2])
POINTS = [np.stack([np.sin(i + np.arange(n)), np.cos(3.0 * i + np.arange(n))], 1) for i, n in enumerate((4, 6, 8))]
START = np.array([3.0, -2.0])
LR, EPOCHS, BATCH, ROUNDS = 0.5, 40.0, 64.0, 3
TOLERANCE = 1e-4


def run(device: Any) -> dict[str, Any]:
    """Train on one device and compare with numpy: whether it is right, what is not, and the seconds it took."""
    began, expected = time.perf_counter(), reference()
    try:
        found = engine(device)
        wrong = [
            f"{k} {found[k]:.6g}, not {v:.6g}" for k, v in expected.items() if not abs(found[k] / v - 1) < TOLERANCE
        ]
        told = "; ".join(wrong)
    except Exception as error:  # whatever a broken installation may come up with
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return {"device": str(device), "ok": not told, "told": told, "seconds": round(time.perf_counter() - began, 2)}


def engine(device: Any) -> dict[str, float]:
    """The loss after the last round, and what the tuner proposes for the next."""

    def loss(x: Any, batch: Any, key: Any = None) -> Any:
        return jnp.sum(CURVE * (x - batch["c"]) ** 2, -1) / 2

    task = fathom.Task(lambda key: jnp.asarray(START, jnp.float32), loss, lambda x, batch: {"loss": loss(x, batch)})
    points = [p.astype(np.float32) for p in POINTS]
    algorithm = fathom.federated(
        task,
        tuner=fathom.tuners.fathom(),
        hparams=fathom.HParams(LR, EPOCHS, BATCH),
        client_opt=fathom.optimizers.sgd(),
        server_opt=optax.sgd(1.0),
    )
    records = fathom.train(
        algorithm,
        fathom.Federation.from_arrays({str(i): {"c": p} for i, p in enumerate(points)}),
        key=jax.random.key(0),
        rounds=ROUNDS,
        cohort=len(points),
        test={"c": np.concatenate(points)},
        every=ROUNDS,
        devices=[device],
    )
    last = list(records)[-1]
    hparams = {name: float(value[0]) for name, value in last.next_hparams._asdict().items()}
    return {"loss": float((last.metrics or {})["loss"]), **hparams}


def reference() -> dict[str, float]:
    """The same in numpy, as the paper has it."""
    x, past, (lr, epochs, batch) = START, np.zeros(2), (LR, EPOCHS, BATCH)
    sizes = np.array([len(p) for p in POINTS])
    for _ in range(ROUNDS):
        ends, least = [], []
        for points in POINTS:
            here, alignment = x, np.inf
            for _ in range(int(np.ceil(epochs * len(points) / np.floor(batch + 0.5)))):
                gradient = CURVE * (here - points.mean(0))
                here = here - lr * gradient
                alignment = min(alignment, _cosine(gradient, x - here))
            ends.append(here)
            least.append(alignment)
        update = x - np.average(ends, axis=0, weights=sizes)
        agreement, alignment = _cosine(update, past), np.average(least, weights=sizes)
        lr, epochs = lr * np.exp(0.01 * agreement), epochs * np.exp(0.01 * (agreement + alignment))
        batch = batch * np.exp(-0.1 * alignment)
        x, past = x - update, (past + update) / 2
    loss = np.mean(np.sum(CURVE * (x - np.concatenate(POINTS)) ** 2, 1)) / 2
    return {"loss": float(loss), "lr": float(lr), "epochs": float(epochs), "batch": float(batch)}


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms > 0 else 0.0
