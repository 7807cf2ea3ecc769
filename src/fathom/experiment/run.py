"""Run a spec into a run directory, or go on with one."""

import os
import platform
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

import fathom
from fathom.core.engine import Record, train
from fathom.data.cache import folder
from fathom.experiment import checkpoint, privacy, store, trackers
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


class Start(NamedTuple):
    """Where a run that was stopped goes on."""

    at: int | None = None  # the round whose checkpoint is taken; None for the last


class Run(NamedTuple):
    """A run that is ready to go."""

    rows: Generator[store.Row, None, None]  # a row per round and trial
    done: int  # rounds that an earlier start has done
    past: list[store.Row]  # their records
    note: str  # what should be known before it goes on; mostly empty


def prepare(
    spec: Spec,
    out: Path,
    *,
    leads: bool = True,
    resume: Start | None = None,
    every: float = 30.0,
    log: Sequence[str] = (),
) -> Run:
    """Check everything, make the run directory `out` or find the place in it, and be ready to train.

    The directory is readable at any time: records are appended as they come, checkpoints written every `every` seconds
    and at the end, and the summary when the run ends, also when it is stopped early. A host that does not lead
    writes nothing. log: trackers that are told the records, too.
    """
    trackers.check(log)
    algorithm, federation, test = build(spec)
    keys = jnp.stack([jax.random.key(spec.seed + trial) for trial in range(spec.trials)])
    if algorithm.privacy:
        privacy.account(algorithm.privacy, len(federation), spec.cohort, spec.rounds)  # or say what is missing
    facts = checkpoint.facts(spec, federation, environment())
    found, past, lock = None, [], None
    if resume is None:
        if leads:
            store.create(out, spec)
            lock = store.Lock(out)
    else:
        lock = store.Lock(out) if leads else None
        found = checkpoint.load(out, algorithm, keys, spec.cohort, facts, resume.at)
        if leads:
            past = _set_back(out, spec, found.snapshot.round if found else 0)
    records = train(
        algorithm,
        federation,
        key=keys,
        rounds=spec.rounds,
        cohort=spec.cohort,
        test=test,
        every=spec.every,
        until=partial(store.reached, spec) if spec.stop_at_target else None,
        start=found and found.snapshot,
        snapshots=every if leads else None,
    )
    done = found.snapshot.round if found else 0
    if done == spec.rounds:
        records = iter(())

    def given_away(rounds: int) -> store.Row | None:
        return algorithm.privacy and privacy.account(algorithm.privacy, len(federation), spec.cohort, rounds)

    if leads:
        rows = _rows(spec, out, records, done, len(federation), facts, given_away, log, past, lock)
    else:
        rows = (store.row(record) for record in records)
    return Run(rows, done, past, found.note if found else "")


def _set_back(out: Path, spec: Spec, done: int) -> list[store.Row]:
    """Leave in a run directory what is of the rounds done, and return their records."""
    try:
        checkpoint.forget_after(out, done)  # first: records without a checkpoint are made again, the reverse is not so
        past = store.cut(out, spec, done)
        (out / "summary.json").unlink(missing_ok=True)  # it is not what the records are of any more
        return past
    except OSError as error:
        raise SpecError(f"{out} cannot be written: {error.strerror}; make room, and resume again.") from error


def _rows(
    spec: Spec,
    out: Path,
    records: Iterator[Record],
    done: int,
    clients: int,
    facts: store.Row,
    given_away: Callable,
    log: Sequence[str],
    past: list[store.Row],
    lock: store.Lock | None,  # held until the last row
) -> Generator[store.Row, None, None]:
    rows: list[store.Row] = []
    ended: set[int] = set()  # in this round
    running = set(range(spec.trials)) - {row["trial"] for row in past if store.ends(spec, row)}
    stopped: Exception | None = None
    diverged = False
    try:
        with checkpoint.Writer(out, facts) as writer, trackers.opened(log, out, spec, past) as track:
            for record in records:
                row = store.row(record)
                if row["metrics"] is not None or row["rolled_back"]:
                    rows.append(row)
                whole = record.trial == max(running)  # of the round, all trials are here
                if store.ends(spec, row):
                    ended.add(record.trial)
                if whole:
                    store.append(out, rows)  # before the checkpoint: what it goes on from has been recorded
                    for one in rows:
                        track(one)
                    rows, done = [], record.round
                    running -= ended  # only now, when it is recorded
                    if record.snapshot:
                        writer.save(record.snapshot)
                yield row
    except FloatingPointError:
        diverged = True
        raise
    except (OSError, checkpoint.StoppedError) as error:
        stopped = error
    finally:
        try:
            store.summarise(out, spec, not running, diverged, clients, environment(), given_away(done))
        except (OSError, SpecError) as error:
            stopped = stopped or error
    if stopped:
        what = getattr(stopped, "strerror", None) or stopped
        raise checkpoint.StoppedError(
            f"stopped after round {done} of {spec.rounds}: {what}; once that is mended (is the disk full?), "
            f"go on with `fathom run --resume {out}`."
        ) from stopped


def set_up(jobs: int) -> None:
    """Use all cores, as far as there are jobs for them, and keep what is compiled."""
    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", min(os.cpu_count() or 1, jobs))
    keep_programs()


def keep_programs() -> None:
    """Keep compiled programs in the user's cache folder: a second start compiles nothing."""
    jax.config.update("jax_compilation_cache_dir", str(folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def environment() -> store.Row:
    """What a figure was made with."""
    return {
        "fathom": fathom.__version__,
        "jax": jax.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "devices": [device.device_kind for device in jax.devices()],
    }
