"""A run directory: the whole truth of a run, in files that other tools can read.

spec.toml      what was run, fully resolved
records.jsonl  one line per evaluated round and trial; rounds that were undone have one, too
checkpoints/   the last few states, to go on from
summary.json   what came of it, per trial and on the whole
"""

import contextlib
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from fathom.core.engine import Record
from fathom.experiment.spec import Spec, SpecError
from fathom.finite import finite

Row = dict[str, Any]
WHOLE = ("round", "trial", "gradients", "bytes_up", "bytes_down", "rejected")  # fields of a row, by what they hold
NUMBERS = (
    "lr", "epochs", "batch", "next_lr", "next_epochs", "next_batch", "agreement", "alignment", "gain", "loss",
    "seconds",
)  # fmt: skip
FIELDS = {*WHOLE, *NUMBERS, "metrics", "clients", "rolled_back"}


def create(out: Path, spec: Spec) -> None:
    """Make a run directory; refuse one that holds anything."""
    try:
        if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {"spec.toml.part"}):
            what = "already holds a run" if (out / "spec.toml").exists() else "exists and is not an empty directory"
            raise SpecError(f"{out} {what}; nothing was overwritten. Choose another --out.")
        out.mkdir(parents=True, exist_ok=True)
        replace(out / "spec.toml", spec.toml())
    except OSError as error:
        raise SpecError(f"{out} cannot be written: {error.strerror}; choose another --out.") from error


class Lock:
    """Keeps a run directory for one process, as long as this object lives or the process does."""

    def __init__(self, out: Path) -> None:
        self.handle = os.open(out, os.O_RDONLY)
        try:
            if fcntl:
                fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpecError(f"{out} is being run by another process; wait for it to end, or stop it first.") from error
        except OSError:  # a file system without locks
            pass

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.close(self.handle)


def row(record: Record) -> Row:
    """A record as plain numbers: one value for the cohort where its clients agree, their mean where they differ."""
    clients = {name: value for name, value in record.clients._asdict().items() if value is not None}
    return {
        "round": record.round,
        "trial": record.trial,
        **{name: _mean(value) for name, value in record.hparams._asdict().items()},
        **{f"next_{name}": _mean(value) for name, value in record.next_hparams._asdict().items()},
        "agreement": record.agreement,
        "alignment": record.alignment,
        "gain": record.gain,
        "loss": record.loss,
        "metrics": record.metrics,
        "gradients": record.gradients,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "seconds": round(record.seconds, 3),
        "rejected": record.rejected,
        "rolled_back": record.rolled_back,
        "clients": {name: [_short(v) for v in value.tolist()] for name, value in clients.items()},
    }


def reached(spec: Spec, metrics: Mapping[str, float | None] | None) -> bool:
    """Whether these metrics are at the target."""
    return ((metrics or {}).get("accuracy") or 0.0) >= spec.target


def ends(spec: Spec, row: Row) -> bool:
    """Whether a trial is done after this row."""
    return row["round"] == spec.rounds or (spec.stop_at_target and reached(spec, row["metrics"]))


def append(out: Path, rows: list[Row]) -> None:
    """Add rows to the records: all of them, or none and an OSError."""
    if not rows:
        return
    data = "".join(json.dumps(finite(one), allow_nan=False) + "\n" for one in rows).encode()
    with (out / "records.jsonl").open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(before)
            raise


def read_rows(out: Path) -> list[Row]:
    """The records of a run directory; one that is being written may end in a part of a line, which does not count."""
    rows, damaged = _read(out)
    if damaged:
        raise SpecError(
            f"{out / 'records.jsonl'}: line {damaged} is damaged; the records are not as fathom wrote them."
        )
    return rows


def cut(out: Path, spec: Spec, number: int) -> list[Row]:
    """Keep the records up to round `number`, and return them: those of later rounds will be made again."""
    rows, damaged = _read(out)
    kept = [row for row in rows if row["round"] <= number]
    there = {(row["round"], row["trial"]) for row in kept}
    ended = {row["trial"]: row["round"] for row in kept if ends(spec, row)}
    for done in range(1, number + 1):
        due = done % spec.every == 0 or done == spec.rounds
        running = [trial for trial in range(spec.trials) if done <= ended.get(trial, done)]
        if due and any((done, trial) not in there for trial in running):
            why = f"line {damaged} is damaged" if damaged else f"round {done} is missing"
            raise SpecError(
                f"{out / 'records.jsonl'}: {why}; go on from a checkpoint before round {done} with --from, "
                f"or start again with `fathom run {out / 'spec.toml'}`."
            )
    if number == 0 and (out / "records.jsonl").exists() and (out / "records.jsonl").stat().st_size:
        os.replace(
            out / "records.jsonl", out / "records.old.jsonl"
        )  # nothing to go on from, and nothing is thrown away
    replace(out / "records.jsonl", "".join(json.dumps(row) + "\n" for row in kept))
    return kept


def _read(out: Path) -> tuple[list[Row], int]:
    """The rows up to the first line that is damaged, and that line's number; 0 where all are well."""
    path = out / "records.jsonl"
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}.") from error
    rows, seen = [], set()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        row = _parse(line)
        if row is None or (row["round"], row["trial"]) in seen:
            return rows, number
        seen.add((row["round"], row["trial"]))
        rows.append(row)
    return rows, 0


def replace(path: Path, text: str) -> None:
    """Write a whole file, or leave the one that is there."""
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _parse(line: bytes) -> Row | None:
    """A line of the records; None if it is not one."""
    try:
        row = json.loads(line, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or set(row) != FIELDS or not isinstance(row["rolled_back"], bool):
        return None
    whole = all(isinstance(row[name], int) and _number(row[name]) and row[name] >= 0 for name in WHOLE)
    numbers = all(row[name] is None or _number(row[name]) for name in NUMBERS)
    metrics, clients = row["metrics"], row["clients"]
    measured = metrics is None or (
        isinstance(metrics, dict) and all(value is None or _number(value) for value in metrics.values())
    )
    return row if whole and numbers and measured and isinstance(clients, dict) and row["round"] else None


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def read_summary(out: Path) -> Row | None:
    """The summary of a run directory; None before there is one."""
    path = out / "summary.json"
    try:
        summary = json.loads(path.read_bytes())
        if isinstance(summary["finished"], bool) and isinstance(summary["trials"], list):
            return {"diverged": False, **summary}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise SpecError(f"{path} is damaged; remove it, and go on with `fathom run --resume {out}`.")


def summarise(
    out: Path, spec: Spec, finished: bool, diverged: bool, clients: int, environment: Row, privacy: Row | None
) -> Row:
    """Work the records up into summary.json, and return it."""
    rows = read_rows(out)
    trials = [_trial([r for r in rows if r["trial"] == trial], spec) for trial in range(spec.trials)]
    trials = [trial for trial in trials if trial]
    reached = [trial for trial in trials if trial["rounds_to_target"] is not None]
    summary = {
        "task": spec.task["name"],
        "clients": clients,
        "tuner": spec.tuner["name"],
        "target": spec.target,
        "finished": finished,
        "diverged": diverged,
        "rounds": max((trial["rounds"] for trial in trials), default=0),
        "trials": trials,
        "reached_target": f"{len(reached)} of {len(trials)}",
        "rounds_to_target": _spread([trial["rounds_to_target"] for trial in reached]),
        "gradients_to_target": _spread([trial["gradients_to_target"] for trial in reached]),
        "final": {
            name: _spread([trial["final"][name] for trial in trials]) for name in (trials[0]["final"] if trials else {})
        },
        "seconds": max((trial["seconds"] for trial in trials), default=0.0),
        "privacy": privacy,
        "environment": environment,
    }
    summary = finite(summary)
    replace(out / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return summary


def _trial(rows: list[Row], spec: Spec) -> Row | None:
    """What one trial came to; None where nothing was measured."""
    undone = sum(row["rolled_back"] for row in rows)
    rows = [row for row in rows if row["metrics"] is not None]
    if not rows:
        return None
    hit = next((row for row in rows if reached(spec, row["metrics"])), None)
    last = rows[-1]
    return {
        "trial": last["trial"],
        "seed": spec.seed + last["trial"],
        "rounds": last["round"],
        "rounds_to_target": hit and hit["round"],
        "gradients_to_target": hit and hit["gradients"],
        "bytes_to_target": hit and hit["bytes_up"] + hit["bytes_down"],
        "gradients": last["gradients"],
        "final": last["metrics"],
        "hparams": {name: last[f"next_{name}"] for name in ("lr", "epochs", "batch")},
        "seconds": last["seconds"],
        "rejected": last["rejected"],
        "rounds_undone": undone,
    }


def _spread(values: list[float]) -> Row | None:
    """Mean and standard deviation over trials; None where there is nothing to average."""
    values = [value for value in values if value is not None]
    if not values:
        return None
    return {"mean": fmean(values), "sd": stdev(values) if len(values) > 1 else None, "trials": len(values)}


def _mean(values: np.ndarray) -> float:
    return _short(float(np.mean(values, dtype=np.float64))) if len(values) else math.nan


def _short(value: float) -> float:
    """Seven significant digits: all that float32 holds."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
