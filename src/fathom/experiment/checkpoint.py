"""Checkpoints: the last few states of a run, each whole or not at all, written by orbax while the run goes on.

A checkpoint has two parts: `state`, the bytes of every array of the server's state, one after another; and `facts` in
JSON: the round, what was counted so far, what the run was made with, and a digest of all of it. Nothing in it is code.
"""

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fathom.core.engine import Snapshot, Totals
from fathom.core.types import Algorithm, ServerState
from fathom.data import Federation
from fathom.experiment.spec import Spec, SpecError

FOLDER = "checkpoints"
FORMAT = 9
KEPT = 3
VERSION = "another version of fathom"
Facts = dict[str, Any]


class StoppedError(RuntimeError):
    """A run that had to stop, and can go on later."""


def facts(spec: Spec, federation: Federation, environment: Facts) -> Facts:
    """What a checkpoint must have been made with to be gone on from."""
    clients = repr((federation.ids, federation.sizes.tolist())).encode()
    return {
        "format": FORMAT,
        "spec": hashlib.sha256(spec.toml().encode()).hexdigest(),
        "data": zlib.crc32(clients),
        **{name: environment[name] for name in ("fathom", "jax", "devices")},
    }


class Writer:
    """Writes checkpoints in the background; a context manager."""

    def __init__(self, out: Path, facts: Facts) -> None:
        import orbax.checkpoint as ocp

        logging.getLogger("absl").setLevel(logging.CRITICAL)  # what goes wrong is said by us
        self.ocp, self.facts = ocp, facts
        folder = (out / FOLDER).absolute()
        folder.mkdir(exist_ok=True)
        several = jax.process_count() > 1
        hosts = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0} if several else None, barrier_sync_key_prefix="fathom"
        )
        self.manager = ocp.CheckpointManager(
            folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, create=False, cleanup_tmp_directories=not several, multiprocessing_options=hosts
            ),
        )

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.manager.close()  # waits for what is being written
        except Exception as error:
            if kind is None:
                raise _stopped(error) from error

    def save(self, snapshot: Snapshot) -> None:
        """Begin to write a snapshot, once the one before is written."""
        state = _pack(snapshot.states)
        told = {
            **self.facts,
            "round": snapshot.round,
            "totals": snapshot.totals._asdict(),
            "seconds": snapshot.seconds,
        }
        told["digest"] = _digest(told, state)
        args = self.ocp.args
        parts = args.Composite(state=args.StandardSave({"bytes": state}), facts=args.JsonSave(told))
        try:
            self.manager.save(snapshot.round, args=parts, force=True)
        except Exception as error:
            raise _stopped(error) from error


def forget_after(out: Path, number: int) -> None:
    """Remove the checkpoints of later rounds, which will be made again; each at once, or not at all."""
    for later in saved(out):
        if later > number:
            gone = out / FOLDER / f"{later}.gone"
            os.replace(out / FOLDER / str(later), gone)
            shutil.rmtree(gone, ignore_errors=True)


class Found(NamedTuple):
    """A checkpoint that can be gone on from."""

    snapshot: Snapshot
    note: str  # why the run may go on to other bits; empty if it does not


def load(out: Path, algorithm: Algorithm, keys: Any, cohort: int, facts: Facts, at: int | None) -> Found | None:
    """The checkpoint of round `at`, by default the last one; None where there is none yet.

    One that cannot be used is an error, which names the newest that can.
    """
    rounds = saved(out)
    if at is not None and at not in rounds:
        there = f"there are those of rounds {', '.join(map(str, rounds))}" if rounds else "there is none"
        raise SpecError(f"--from {at}: {out} has no checkpoint of round {at}; {there}.")
    if not rounds:
        return None
    like = jax.eval_shape(jax.vmap(lambda key: algorithm.init(key, cohort)), keys)
    wanted = rounds[-1] if at is None else at
    try:
        return _read(out, wanted, like, facts)
    except SpecError as error:
        remedy = f"start again with `fathom run {out / 'spec.toml'}`."
        for earlier in reversed(rounds[: rounds.index(wanted)]):
            with contextlib.suppress(SpecError):
                _read(out, earlier, like, facts)
                remedy = f"the one of round {earlier} is good: go on from it with --from {earlier}."
                break
        raise SpecError(f"{error}; {remedy}") from error


def saved(out: Path) -> list[int]:
    """The rounds that have a checkpoint."""
    folder = out / FOLDER
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)


def _read(out: Path, number: int, like: ServerState, facts: Facts) -> Found:
    import orbax.checkpoint as ocp

    where = f"{out}: the checkpoint of round {number}"
    size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(_plain_shapes(like)))
    folder = (out / FOLDER / str(number)).absolute()
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            told = ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(folder / "facts")
            if not isinstance(told, dict):
                raise ValueError("no facts")
    except Exception as error:
        raise SpecError(f"{where} is damaged") from error
    for name, other in {"format": VERSION, "fathom": VERSION, "spec": "another spec", "data": "other data"}.items():
        if told.get(name) != facts[name]:
            values = f" ({told.get(name)!r}, this is {facts[name]!r})" if other == VERSION else ""
            raise SpecError(f"{where} is of {other}{values}")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            target = {"bytes": np.zeros(size, np.uint8)}
            handler = ocp.StandardCheckpointHandler()
            state = ocp.Checkpointer(handler).restore(folder / "state", args=ocp.args.StandardRestore(target))["bytes"]
        digest = told.pop("digest")
        if state.shape != (size,) or digest != _digest(told, state) or told["round"] != number:
            raise ValueError("the digest differs")
        snapshot = Snapshot(number, _unpack(state, like), Totals(**told["totals"]), float(told["seconds"]))
    except Exception as error:
        raise SpecError(f"{where} is damaged") from error
    changed = [name for name in ("jax", "devices") if told.get(name) != facts[name]]
    note = f"{' and '.join(changed)} differ from what the run began with: it goes on, up to rounding" if changed else ""
    return Found(snapshot, note)


def _pack(states: ServerState) -> np.ndarray:
    leaves = jax.device_get(jax.tree.leaves(jax.tree.map(_plain, states)))
    return np.concatenate([np.ascontiguousarray(leaf).reshape(-1).view(np.uint8) for leaf in leaves])


def _unpack(state: np.ndarray, like: ServerState) -> ServerState:
    at, leaves = 0, []
    for leaf in jax.tree.leaves(_plain_shapes(like)):
        count = math.prod(leaf.shape) * leaf.dtype.itemsize
        leaves.append(state[at : at + count].view(leaf.dtype).reshape(leaf.shape))
        at += count
    keys, form = jax.tree.flatten(like)
    pairs = zip(leaves, keys, strict=True)
    return jax.tree.unflatten(form, [jax.random.wrap_key_data(a) if _is_key(k) else jnp.asarray(a) for a, k in pairs])


def _plain_shapes(like: ServerState) -> Any:
    return jax.eval_shape(lambda tree: jax.tree.map(_plain, tree), like)


def _plain(leaf: Any) -> Any:
    """An array as numbers, also where it is a random key."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _digest(told: Facts, state: np.ndarray) -> str:
    text = json.dumps(told, sort_keys=True)
    return hashlib.sha256(text.encode() + np.ascontiguousarray(state).data.tobytes()).hexdigest()


def _stopped(error: Exception) -> StoppedError:
    told = (str(error).splitlines() or [type(error).__name__])[0]
    return StoppedError(f"a checkpoint could not be written: {told}")
