"""Run directories in the real format, written by hand."""

import json

import tomli_w


def row(number, trial, accuracy, **changes):
    """A line of the records."""
    made = {
        "round": number, "trial": trial, "lr": 0.1, "epochs": 1.0, "batch": 20.0, "next_lr": 0.1, "next_epochs": 1.0,
        "next_batch": 20.0, "agreement": 0.25, "alignment": 0.5, "gain": None, "loss": 1.5,
        "gradients": 100 * number + trial, "bytes_up": 3000 * number, "bytes_down": 2000 * number,
        "seconds": 2.0 * number, "rejected": 0, "rolled_back": False,
        "metrics": None if accuracy is None else {"accuracy": accuracy, "loss": 1.0},
        "clients": {
            "examples": [10, 20, 0], "steps": [4, 8, 0], "grads": [10, 20, 0], "loss": [1.0, 2.0, None],
            "alignment": [0.5, 0.5, None], "drift": [1.0, 1.0, None],
        },
    }  # fmt: skip
    return made | changes


def write(out, curves=((0.1, 0.4, 0.7),), finished=True, task="synthetic", tuner="fathom", rows=None, **spec):
    """A run with an accuracy every 5 rounds for every trial; return its directory."""
    out.mkdir(parents=True)
    made = {
        "rounds": 5 * len(curves[0]), "cohort": 3, "trials": len(curves), "seed": 0, "every": 5, "target": 0.6,
        "guard": True, "dropout": 0.0, "stragglers": 0.0, "task": {"name": task},
        "hparams": {"lr": 0.1, "epochs": 1.0, "batch": 20.0}, "tuner": {"name": tuner}, "client_opt": {"name": "sgd"},
        "server_opt": {"name": "fedavg", "learning_rate": 1.0}, "aggregate": {"name": "mean"},
    }  # fmt: skip
    if rows is None:
        rows = [row(5 * i + 5, trial, curves[trial][i]) for i in range(len(curves[0])) for trial in range(len(curves))]
    made["rounds"] = max([made["rounds"], *(one["round"] for one in rows)])
    made["trials"] = max([made["trials"], *(one["trial"] + 1 for one in rows)])
    (out / "spec.toml").write_text(tomli_w.dumps(made | spec))
    (out / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if finished is not None:
        environment = {"fathom": "0.1.0", "jax": "0.10.2", "devices": ["cpu", "cpu"]}
        summary = {"finished": finished, "privacy": None, "environment": environment}
        (out / "summary.json").write_text(json.dumps(summary))
    return out
