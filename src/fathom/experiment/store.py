"""A run directory: the whole truth of a run, in files that other tools can read.

spec.toml      what was run, fully resolved
records.jsonl  one line per evaluated round and trial
summary.json   what came of it, per trial and on the whole
"""

import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from fathom.core.engine import Record
from fathom.experiment.spec import Spec, SpecError

Row = dict[str, Any]


def create(out: Path, spec: Spec) -> None:
    """Make a run directory; refuse one that holds anything."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            what = "already holds a run" if (out / "spec.toml").exists() else "exists and is not an empty directory"
            raise SpecError(f"{out} {what}; nothing was overwritten. Choose another --out.")
        out.mkdir(parents=True, exist_ok=True)
        (out / "spec.toml").write_text(spec.toml())
        (out / "records.jsonl").touch()
    except OSError as error:
        raise SpecError(f"{out} cannot be written: {error.strerror}; choose another --out.") from error


def row(record: Record) -> Row:
    """A record as plain numbers: one value for the cohort where its clients agree, their mean where they differ."""
    clients = record.clients._asdict()
    return {
        "round": record.round,
        "trial": record.trial,
        **{name: _mean(value) for name, value in record.hparams._asdict().items()},
        **{f"next_{name}": _mean(value) for name, value in record.next_hparams._asdict().items()},
        "agreement": record.agreement,
        "alignment": record.alignment,
        "loss": record.loss,
        "metrics": record.metrics,
        "gradients": record.gradients,
        "bytes_up": record.bytes_up,
        "bytes_down": record.bytes_down,
        "seconds": round(record.seconds, 3),
        "clients": {name: [_short(v) for v in value.tolist()] for name, value in clients.items()},
    }


def append(out: Path, rows: list[Row]) -> None:
    """Add rows to the records."""
    with (out / "records.jsonl").open("a") as file:
        file.writelines(json.dumps(_finite(one), allow_nan=False) + "\n" for one in rows)


def read_rows(out: Path) -> list[Row]:
    """The records of a run directory."""
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def summarise(out: Path, spec: Spec, finished: bool, environment: Row) -> Row:
    """Work the records up into summary.json, and return it."""
    rows = read_rows(out)
    trials = [_trial([r for r in rows if r["trial"] == trial], spec) for trial in range(spec.trials)]
    trials = [trial for trial in trials if trial]
    reached = [trial for trial in trials if trial["rounds_to_target"] is not None]
    summary = {
        "task": spec.task["name"],
        "tuner": spec.tuner["name"],
        "target": spec.target,
        "finished": finished,
        "rounds": max((trial["rounds"] for trial in trials), default=0),
        "trials": trials,
        "reached_target": f"{len(reached)} of {len(trials)}",
        "rounds_to_target": _spread([trial["rounds_to_target"] for trial in reached]),
        "gradients_to_target": _spread([trial["gradients_to_target"] for trial in reached]),
        "final": {
            name: _spread([trial["final"][name] for trial in trials]) for name in (trials[0]["final"] if trials else {})
        },
        "seconds": max((trial["seconds"] for trial in trials), default=0.0),
        "environment": environment,
    }
    summary = _finite(summary)
    (out / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return summary


def _trial(rows: list[Row], spec: Spec) -> Row | None:
    """What one trial came to; None where nothing was measured."""
    if not rows:
        return None
    hit = next((r for r in rows if (r["metrics"].get("accuracy") or 0) >= spec.target), None)
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


def _finite(value: Any) -> Any:
    """The same with null in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
