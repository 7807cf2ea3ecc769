"""Damaged specs, assignments and records, and data sets on disk."""

import io
import json
import os
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fathom.data import disk, show
from fathom.experiment import spec as specs
from fathom.experiment import store
from fuzz_files import Files, put, some_damaged
from fuzz_mutations import WEIRD, as_json, as_toml, bent, damaged, odd_array

# A data set on disk


@cache
def written(tokens: bool) -> Files:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FATHOM_DATA"], before = folder, os.environ.get("FATHOM_DATA")
        try:
            x = (
                {"tokens": np.full((2, 21), 3, np.uint16)}
                if tokens
                else {"x": np.ones((2, 4, 4), np.uint8), "y": np.arange(2)}
            )
            facts = {"vocabulary": ["the", "cat"]} if tokens else {"classes": ["a", "b"]}
            own = [("a", x), ("b", x)]
            data = disk.write("mine", {"train": own, "test": own}, facts)
            return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(data.path.rglob("*")) if p.is_file()}
        finally:
            os.environ.pop("FATHOM_DATA") if before is None else os.environ.update(FATHOM_DATA=before)


def federation(rng: Random) -> Files:
    files = dict(written(rng.random() < 0.5))
    for name in rng.sample(list(files), rng.choice((1, 1, 1, 2))):
        if name.endswith(".json") and rng.random() < 0.7:
            files[name] = as_json(bent(rng, json.loads(files[name])))
        elif name.endswith(".npy") and rng.random() < 0.5:
            array, out = np.load(io.BytesIO(files[name])), io.BytesIO()
            np.save(out, odd_array(rng, array))
            files[name] = out.getvalue()
        elif rng.random() < 0.1:
            del files[name]
        elif rng.random() < 0.05:
            files[f"{name}/x"] = files.pop(name)  # a folder where a file should be
        else:
            files[name] = damaged(rng, files[name])
    return files


def opens(files: Files, folder: Path) -> None:
    put(files, disk.home())
    data = disk.open_set("mine")
    for split in data.splits.values():
        repr(split)
        for client in split.ids:
            split.client(client)
        split.names(np.arange(len(split)))
    if "tokens" in data.splits["train"].examples:
        show.sentences(data)
    disk.check("mine")


# Specs and records

SPEC: dict[str, Any] = {
    **{"rounds": 10, "cohort": 5, "trials": 2, "seed": 3, "every": 2, "target": 0.6},
    "task": {"name": "glyphs", "writers": 30, "heterogeneity": 0.5, "seed": 1},
    "hparams": {"lr": 0.1, "epochs": 1.0, "batch": 20.0},
    "tuner": {"name": "fathom", "form": "printed", "lr_rate": 0.5},
    "clamp": {"low": {"lr": 0.01}, "high": {"lr": 0.4, "epochs": 5.0, "batch": 100.0}},
    "client_opt": {"name": "fedprox", "mu": 0.1},
    "server_opt": {"name": "fedadam", "learning_rate": 0.1},
    "aggregate": {"name": "trimmed_mean", "fraction": 0.2},
    **{"guard": False, "dropout": 0.1, "stragglers": 0.2},
}
DECAY = {"name": "exponential_decay", "init_value": 0.1, "transition_steps": 10, "decay_rate": 0.9, "staircase": True}
WARM = {"name": "warmup_cosine_decay", "init_value": 0.1, "peak_value": 0.2, "warmup_steps": 2, "decay_steps": 9}
SCHEDULED = {
    **SPEC,
    "task": {"name": "femnist", "data": "mine"},
    "tuner": {"name": "schedule", "lr": DECAY, "batch": WARM},
}


def tree(rng: Random) -> Any:
    spec = dict(rng.choice((SPEC, SCHEDULED)))
    for key in rng.sample(list(spec), rng.randrange(len(spec))):
        del spec[key]
    bad = bent(rng, spec)
    return bad if isinstance(bad, dict) else spec


def spec_file(rng: Random) -> Files:
    content = as_toml(tree(rng))
    if rng.random() < 0.03:
        content = b"[" + b".".join([rng.choice((b"a", b"task", b"rounds"))] * 5000) + b"]\nx=1\n"
    return some_damaged(rng, {"spec.toml": content}, 0.7)


def resolves(raw: Any, folder: Path) -> None:
    """A spec that is accepted is one that can be written down and read again."""
    spec = specs.resolve(raw)
    assert specs.resolve(tomllib.loads(spec.toml())) == spec


ASSIGNMENTS = (
    *("rounds=5", "tuner.form=printed", "hparams.lr=0.2", "clamp.high.lr = 0.3", "seed=7", "task.writers=20"),
    *("server_opt=fedadam", "target=0.5", "task.heterogeneity=0.1", "client_opt={name='fedprox', mu=0.2}"),
)


def assignment(rng: Random) -> list[str]:
    keys = [
        *SPEC,
        "tuner.form",
        "hparams.lr",
        "clamp.high.lr",
        "task.name",
        "tuner.lr.name",
        "rounds.x",
        ".".join("a" * 3000),
        "a..b",
        ".",
        "",
    ]
    made = [rng.choice(ASSIGNMENTS)] if rng.random() < 0.5 else []
    for _ in range(1 - len(made) + rng.choice((0, 0, 1))):
        value = as_toml({"v": rng.choice(WEIRD)}).decode("utf-8", "surrogatepass").partition("=")[2].strip("\n")
        made.append(f"{rng.choice(keys)}{rng.choice(('=', '=', '=', ' = ', '', '=='))}{value}")
    return [
        damaged(rng, text.encode("utf-8", "replace")).decode(errors="replace") if rng.random() < 0.5 else text
        for text in made
    ]


def sets(texts: list[str], folder: Path) -> None:
    raw: dict[str, Any] = {"task": "glyphs", "tuner": "fathom"}
    for text in texts:
        specs.set_option(raw, text)
    resolves(raw, folder)


RECORD = {
    **{
        "round": 1,
        "trial": 0,
        "lr": 0.1,
        "epochs": 1.0,
        "batch": 20.0,
        "next_lr": 0.1,
        "next_epochs": 1.0,
        "next_batch": 19.5,
    },
    **{"agreement": 0.5, "alignment": 0.1, "gain": 0.4, "loss": 3.5, "metrics": {"accuracy": 0.4}},
    **{"gradients": 100, "bytes_up": 9},
    **{
        "bytes_down": 9,
        "seconds": 0.5,
        "rejected": 0,
        "rolled_back": False,
        "clients": {"steps": [1, 2], "loss": [3.0, None]},
    },
}


def records(rng: Random) -> Files:
    rows = [{**RECORD, "round": number} for number in range(1, 5)]
    content = b"".join(as_json(bent(rng, row) if rng.random() < 0.3 else row) + b"\n" for row in rows)
    return some_damaged(rng, {"records.jsonl": content}, 0.7)


def reads(files: Files, folder: Path) -> None:
    put(files, folder)
    store.read_rows(folder)
