"""The paper's convergence bound along a run: its constants, its four terms and the check lr <= 1/L.

The terms are the sums of the rearranged inequality in the paper's appendix, over the first T rounds:

    progress = 2D / sum(lr K)                      deviation 1 = L sum(lr^2 K) / (m sum(lr K)) (sigma^2 + G^2)
    deviation 2 = 5 L^2 sum(lr^3 K^2) / sum(lr K) sigma^2       deviation 3 = 5 L^2 sum(lr^3 K^3) / sum(lr K) G^2

and their sum bounds the least squared norm of the gradient so far. The betas are those the paper prints; its
next line multiplies Lemma 1's terms, at the means of lr and K, by them. The sums say that it has to divide.

lr_t and K_t (the mean over the clients that answered) are measured in the rounds that have a record. In the rounds
between, those of the last record before are taken, and before the first record those of the first.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Series = dict[str, np.ndarray]
TERMS = ("progress", "deviation 1", "deviation 2", "deviation 3")
BETAS = ("beta 0", "beta 1", "beta 2", "beta 3")
HOW = {  # where an estimate comes from, and its weakness
    "L": "largest drift / (lr K)^2 / (2 loss) of a client: at least this, if losses are not negative; maybe far more",
    "sigma": "from the slope of drift / (lr K)^2 over 1/K within a cohort; too high if gradients fall along a path",
    "G": "largest cohort mean of drift / (lr K)^2 - sigma^2 / K; too low if gradients fall along a path",
    "D": "first recorded training loss less the least; of cohorts that differ, and not from round 0",
}


class Constants(NamedTuple):
    """What the bound needs to know of the problem."""

    L: float  # Lipschitz constant of the clients' gradients
    sigma: float  # standard deviation of a batch's gradient
    G: float  # bound on the norm of a client's gradient
    D: float  # f(x_0) - f(x_T)


class Record(NamedTuple):
    """What the bound needs of one record; arrays have an entry for each client that answered."""

    round: int
    trial: int
    lr: float
    loss: float
    steps: np.ndarray  # K_i
    squared: np.ndarray  # drift / (lr K_i)^2: squared norm of the mean gradient along a client's path
    losses: np.ndarray  # mean along that path


def betas(lr: np.ndarray, steps: np.ndarray) -> Series:
    """beta_0 to beta_3 as printed, over the first 1, 2, ... rounds.

    >>> {name: round(float(values[-1]), 3) for name, values in betas(np.array([0.2, 0.1]), np.array([4, 8])).items()}
    {'beta 0': 0.889, 'beta 1': 1.0, 'beta 2': 1.125, 'beta 3': 1.266}
    """
    rounds = np.arange(1, len(lr) + 1)
    work, mean_lr, mean_steps = np.cumsum(lr * steps), np.cumsum(lr) / rounds, np.cumsum(steps) / rounds
    found = (
        work / (rounds * mean_lr * mean_steps),
        work * mean_lr / np.cumsum(lr**2 * steps),
        work * mean_lr**2 * mean_steps / np.cumsum(lr**3 * steps**2),
        work * mean_lr**2 * mean_steps**2 / np.cumsum(lr**3 * steps**3),
    )
    return dict(zip(BETAS, found, strict=True))


def terms(lr: np.ndarray, steps: np.ndarray, clients: float, constants: Constants) -> Series:
    """The four terms of the bound over the first 1, 2, ... rounds; `clients` is m."""
    smooth, noise, square, fall = constants.L, constants.sigma**2, constants.G**2, constants.D
    work = np.cumsum(lr * steps)
    found = (
        2 * fall / work,
        smooth * np.cumsum(lr**2 * steps) / (clients * work) * (noise + square),
        5 * smooth**2 * np.cumsum(lr**3 * steps**2) / work * noise,
        5 * smooth**2 * np.cumsum(lr**3 * steps**3) / work * square,
    )
    return dict(zip(TERMS, found, strict=True))


def estimate(trials: list[list[Record]]) -> Constants:
    """L, sigma, G and D from records, one list per trial; HOW says how, and how they are wrong.

    A client's update is lr times the sum of its K gradients, so drift / (lr K)^2 is about |grad|^2 + sigma^2 / K.
    A loss that is never negative has |grad|^2 <= 2 L loss, along a path as at a point.
    """
    records = [record for trial in trials for record in trial]
    inverse = [1 / r.steps - np.mean(1 / r.steps) for r in records]  # within a record, so that time plays no part
    spread = sum(float(np.sum(x**2)) for x in inverse)
    product = sum(float(np.sum(x * r.squared)) for x, r in zip(inverse, records, strict=True))
    noise = max(product / spread, 0.0) if spread > 1e-12 else 0.0
    square = max(float(np.mean(r.squared - noise / r.steps)) for r in records)
    smooth = max(float(np.max(r.squared / np.where(r.losses > 1e-6, 2 * r.losses, np.inf))) for r in records)
    falls = [trial[0].loss - min(record.loss for record in trial) for trial in trials]
    return Constants(smooth, noise**0.5, max(square, 0.0) ** 0.5, float(np.mean(falls)))


def measure(out: Path, given: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The bound along a run, at its recorded rounds; `given` are constants to take in place of estimates."""
    given = given or {}
    for name, value in given.items():
        if not (np.isfinite(value) and (value > 0 if name == "L" else value >= 0)):
            raise ValueError(f"{name}={value:g} must be finite and {'above' if name == 'L' else 'at least'} 0.")
    spec, trials = _read(out)
    constants = estimate(trials)._replace(**given)
    if not constants.L > 0:
        raise ValueError(f"{out}: no client has a positive loss, from which L would be estimated; give --smoothness.")
    clients = float(np.mean([len(record.steps) for trial in trials for record in trial]))
    return {
        "task": spec["task"]["name"],
        "tuner": spec["tuner"]["name"],
        "rounds": max(trial[-1].round for trial in trials),
        "clients": clients,
        "constants": {
            name: {"value": value, "estimated": name not in given, "how": "given" if name in given else HOW[name]}
            for name, value in constants._asdict().items()
        },
        "lr_limit": 1 / constants.L,
        "trials": [_along(trial, clients, constants) for trial in trials],
        "notes": _notes(spec, trials),
    }


def _along(records: list[Record], clients: float, constants: Constants) -> dict[str, Any]:
    """One trial: everything at its recorded rounds, and the rounds whose lr was above 1/L."""
    at = np.array([record.round for record in records])
    lr = np.array([record.lr for record in records])
    steps = np.array([np.mean(record.steps) for record in records])
    held = np.repeat(np.arange(len(at)), np.diff([0, *(at[1:] - 1), at[-1]]))  # the record that each round goes by
    found = {**betas(lr[held], steps[held]), **terms(lr[held], steps[held], clients, constants)}
    found["bound"] = np.sum([found[name] for name in TERMS], axis=0)
    above = np.flatnonzero(lr[held] * constants.L > 1) + 1
    return {
        "trial": records[0].trial,
        "round": at.tolist(),
        "lr": lr.tolist(),
        "steps": steps.tolist(),
        **{name: values[at - 1].tolist() for name, values in found.items()},
        "rounds_above_limit": len(above),
        "first_above_limit": int(above[0]) if len(above) else None,
    }


def _read(out: Path) -> tuple[dict[str, Any], list[list[Record]]]:
    """The spec and the records, one list per trial; rounds that were undone, or that nobody answered, are left out."""
    try:
        spec = tomllib.loads((out / "spec.toml").read_text(encoding="utf-8"))
        lines = (out / "records.jsonl").read_text(encoding="utf-8").split("\n")[:-1]  # the last may be half written
        count = spec["trials"]
        _notes(spec, [])
        records = [_record(json.loads(line)) for line in lines]
        beyond = next((r for r in records if r and not 1 <= r.round <= spec["rounds"]), None)
        if beyond:
            raise ValueError(f"a record of round {beyond.round} in a run of {spec['rounds']}")
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}; give a run's directory.") from error
    except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError) as error:
        told = " ".join(f"{type(error).__name__}, {error}".split())[:200]
        raise ValueError(f"{out} is not as fathom wrote it ({told}); give a run's directory.") from error
    kept = sorted((r for r in records if r is not None and len(r.steps)), key=lambda r: r.round)
    trials = [trial for i in range(count) if (trial := [r for r in kept if r.trial == i])]
    most = min((len(trial) for trial in trials), default=0)
    if most < 2:
        raise ValueError(f"{out} has {most} records of a trial; the bound needs 2: more rounds, or a lower --every.")
    return spec, trials


def _record(row: dict[str, Any]) -> Record | None:
    lr, loss = row["lr"], row["loss"]
    if row["rolled_back"] or not lr or loss is None:
        return None
    names = ("steps", "examples", "drift", "loss")
    steps, examples, drift, losses = (np.array(row["clients"][name], float) for name in names)
    there = (steps > 0) & (examples > 0) & np.isfinite(drift) & np.isfinite(losses)
    squared = drift[there] / (lr * steps[there]) ** 2
    return Record(int(row["round"]), row["trial"], float(lr), float(loss), steps[there], squared, losses[there])


def _notes(spec: dict[str, Any], trials: list[list[Record]]) -> list[str]:
    """Where a run is not what the bound is about."""
    notes = [f"m is the clients of a round, {spec['cohort']}; the paper's bound is for all clients taking part."]
    if spec["every"] > 1:
        notes.append(f"lr and K are measured every {spec['every']} rounds, and taken to stay so until the next record.")
    for part, plain in (("client_opt", "sgd"), ("server_opt", "fedavg"), ("aggregate", "mean")):
        if spec[part]["name"] != plain:
            notes.append(f"the bound is for {part} {plain!r}; this run has {spec[part]['name']!r}.")
    if spec["tuner"]["name"] == "plumb":
        notes.append("clients cut steps that promise too much, so L, sigma and G may be more than is shown.")
        notes.append(
            "its first round has a learning rate that no step goes by; the bound is of no use up to the second."
        )
    if all(len(set(record.steps)) == 1 for trial in trials for record in trial):
        notes.append(
            "all clients of a round take the same number of steps, which tells nothing of sigma: 0 unless given."
        )
    return notes
