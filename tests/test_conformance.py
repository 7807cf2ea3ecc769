"""The recorded trajectories of the research code, matched by the engine that users run."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fathom
from fathom import HParams
from problems import logistic
from reference import run

VECTORS = Path(__file__).parent / "vectors"
START = (0.5 * np.cos(np.arange(44))).astype(np.float32)
HIGH = HParams(lr=0.5, epochs=10.0, batch=5096.0)


@pytest.fixture(scope="module")
def federation():
    data = np.load(VECTORS / "clients.npz")
    return fathom.Federation.from_arrays({i: {"x": data[f"x{i}"], "y": data[f"y{i}"]} for i in range(12)})


def recorded(name):
    return json.loads((VECTORS / f"{name}.json").read_text())["rounds"]


def trained(federation, tuner, rounds, **options):
    base = logistic(START, features=10, classes=4)

    def metrics(params, batch):
        """The loss, and the parameters themselves, so that they can be compared."""
        flat = jnp.concatenate([params["w"].ravel(), params["b"]])
        values = {**{f"first{i}": flat[i] for i in range(5)}, "norm": jnp.linalg.norm(flat)}
        shown = {name: jnp.broadcast_to(value, batch["y"].shape) for name, value in values.items()}
        return {"loss": base.loss(params, batch, None), **shown}

    task = base._replace(metrics=metrics)
    algorithm = fathom.federated(task, tuner=tuner, hparams=HParams(lr=0.1, epochs=1.0, batch=8.0))
    return fathom.train(
        algorithm,
        federation,
        key=jax.random.key(0),
        rounds=rounds,
        cohort=[range(12)] * rounds,
        order="cyclic",
        test=federation.examples,
        **options,
    )


def close(value, expected, tolerance=2e-5):
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", [{}, {"lanes": 5, "devices": jax.devices()[:1]}], ids=["default", "lanes"])
def test_fathom_matches_the_recorded_run(federation, options):
    expected = recorded("fathom_full")
    tuner = fathom.tuners.clamp(fathom.tuners.fathom(), high=HIGH)
    for want, got in zip(expected, trained(federation, tuner, len(expected), **options), strict=True):
        assert got.clients.steps.tolist() == want["K"]
        assert np.floor(got.hparams.batch[0] + 0.5) == want["B_int"]
        close(got.clients.alignment, want["client_min_cos"])
        close(got.agreement, want["c_glob"], 2e-4)
        close(got.alignment, want["c_loc"])
        for name, field in {"lr": "lr", "E": "epochs", "B": "batch"}.items():
            close(getattr(got.hparams, field), want[f"{name}_before"])
            close(getattr(got.next_hparams, field), want[f"{name}_after"])
        close(got.metrics["loss"], want["loss"])
        close([got.metrics[f"first{i}"] for i in range(5)], want["params_first5"])
        close(got.metrics["norm"], want["params_norm"])


def test_fedavg_matches_the_recorded_run(federation):
    expected = recorded("fedavg_full")
    for want, got in zip(expected, trained(federation, fathom.tuners.fixed(), len(expected)), strict=True):
        assert got.clients.steps.tolist() == want["K"]
        close(np.sqrt(got.clients.drift), want["client_delta_norm"])
        close(got.metrics["loss"], want["loss"])
        close([got.metrics[f"first{i}"] for i in range(5)], want["params_first5"])
        close(got.metrics["norm"], want["params_norm"])


@pytest.mark.parametrize("name", ["fathom_full", "fedavg_full"])
def test_the_reference_matches_the_recorded_runs_too(name):
    data = np.load(VECTORS / "clients.npz")
    clients = [(data[f"x{i}"].astype(float), data[f"y{i}"]) for i in range(12)]
    expected = recorded(name)
    got = run(START, clients, [range(12)] * len(expected), 0.1, 1.0, 8.0, tune=name == "fathom_full", high=HIGH)
    for want, have in zip(expected, got, strict=True):
        assert have["steps"] == want["K"]
        close(have["params"][:5], want["params_first5"])
        close(np.linalg.norm(have["params"]), want["params_norm"])
        if name == "fathom_full":
            close(have["next"], [want["lr_after"], want["E_after"], want["B_after"]])
