"""Run a spec into a run directory."""

import os
import platform
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp

import fathom
from fathom.core.engine import Record, train
from fathom.experiment import store
from fathom.experiment.spec import Spec, SpecError, build

HOSTS = ("FATHOM_COORDINATOR", "FATHOM_HOSTS", "FATHOM_HOST")


def join() -> bool:
    """Join the processes on other hosts; whether this is the first, the one that writes and prints.

    Who they are is said by the variables HOSTS: host:port of the first, how many there are, and which this is,
    from 0. Without them jax asks the cluster: SLURM, Open MPI, Kubernetes, a TPU pod.
    """
    given = {name: os.environ[name] for name in HOSTS if os.environ.get(name)}
    for name in HOSTS:
        if given and name not in given:
            raise SpecError(f"--hosts: {name} is not set, {' and '.join(given)} is; set {', '.join(HOSTS)} or none.")
    try:
        if given:
            address, count, which = given.values()
            jax.distributed.initialize(address, int(count), int(which), cluster_detection_method="deactivate")
        else:
            jax.distributed.initialize()
    except (ValueError, IndexError) as error:
        told = ", ".join(f"{name}={value}" for name, value in given.items()) or "no cluster was found"
        raise SpecError(
            f"--hosts: {told}; give FATHOM_COORDINATOR=host:port, FATHOM_HOSTS=n and FATHOM_HOST=0 to n-1."
        ) from error
    return jax.process_index() == 0


def run(spec: Spec, out: Path | None) -> Generator[store.Row, None, None]:
    """Train as the spec says; yield a row per round and trial, and leave the run directory `out`, if one is named.

    The directory is made once everything has been checked. It is readable at any time: records are appended
    as they come, and the summary is written when the run ends, also when it is stopped early.
    """
    algorithm, federation, test = build(spec)
    keys = jnp.stack([jax.random.key(spec.seed + trial) for trial in range(spec.trials)])
    records = train(
        algorithm, federation, key=keys, rounds=spec.rounds, cohort=spec.cohort, test=test, every=spec.every
    )
    if out is None:
        return (store.row(record) for record in records)
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
