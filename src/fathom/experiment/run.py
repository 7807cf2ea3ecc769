"""Run a spec into a run directory."""

import platform
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

import fathom
from fathom.core.engine import Record, train
from fathom.experiment import store
from fathom.experiment.spec import Spec, build


def run(spec: Spec, out: Path) -> Generator[store.Row, None, None]:
    """Train as the spec says; yield a row per round and trial, and leave the run directory `out`.

    The directory is made once everything has been checked. It is readable at any time: records are appended
    as they come, and the summary is written when the run ends, also when it is stopped early.
    """
    algorithm, federation, test = build(spec)
    keys = jnp.stack([jax.random.key(spec.seed + trial) for trial in range(spec.trials)])
    records = train(
        algorithm, federation, key=keys, rounds=spec.rounds, cohort=spec.cohort, test=test, every=spec.every
    )
    store.create(out, spec)
    return _rows(spec, out, records)


def _rows(spec: Spec, out: Path, records: Iterator[Record]) -> Generator[store.Row, None, None]:
    rows: list[store.Row] = []
    done = 0
    try:
        for record in records:
            row = store.row(record)
            if row["metrics"] is not None:
                rows.append(row)
            if record.trial == spec.trials - 1:
                store.append(out, rows)
                rows, done = [], record.round
            yield row
    finally:
        store.summarise(out, spec, done == spec.rounds, environment())


def environment() -> store.Row:
    """What a figure was made with."""
    return {
        "fathom": fathom.__version__,
        "jax": jax.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "devices": [device.device_kind for device in jax.devices()],
    }
