"""The picture of runs: accuracy, learning rate, epochs and batch size over the rounds."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
PANELS = {
    "accuracy": "Test accuracy",
    "lr": "Client learning rate",
    "epochs": "Local epochs E",
    "batch": "Batch size B",
}


def draw(outs: Sequence[Path], path: Path) -> Path:
    """Draw run directories, one colour each, into a picture at `path`."""
    specs = [tomllib.loads((out / "spec.toml").read_text()) for out in outs]
    rows = [[row for row in _rows(out) if row["metrics"] is not None] for out in outs]
    with matplotlib.rc_context({"font.size": 10, "axes.edgecolor": "#888888", "text.color": "#222222"}):
        figure = Figure(figsize=(9.6, 6.0), dpi=140, layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for axis, name in zip(axes.flat, PANELS, strict=True):
            _panel(axis, name, specs, rows)
        for axis in axes[1]:
            axis.set_xlabel("round")
        if len(outs) > 1:
            axes[0, 0].legend(loc="lower right", frameon=False)
        figure.suptitle(_title(specs), fontweight="bold")
        figure.savefig(path)
    return path


def _rows(out: Path) -> list[dict[str, Any]]:
    path = out / "records.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _title(specs: list[dict[str, Any]]) -> str:
    first = specs[0]
    trials = first["trials"]
    shown = "1 trial" if trials == 1 else f"mean and range of {trials} trials"
    tuner = f", tuner {first['tuner']['name']}" if len(specs) == 1 else ""
    return f"{first['task']['name']}{tuner}: {first['cohort']} clients a round, {shown}"


def _panel(axis: Axes, name: str, specs: list[dict[str, Any]], runs: list[list[dict[str, Any]]]) -> None:
    axis.set_title(PANELS[name], loc="left", fontsize=10)
    axis.grid(color="#d9d9d9", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    values = []
    for spec, rows, colour in zip(specs, runs, COLOURS, strict=False):
        tuner = spec["tuner"]["name"]
        values += _curve(axis, rows, name, colour, "fixed (FedAvg)" if tuner == "fixed" else tuner)
    level = specs[0]["target"] if name == "accuracy" else specs[0]["hparams"][name]
    axis.axhline(level, color="#888888", linewidth=1, linestyle="--")
    label = f"target {level:.0%}" if name == "accuracy" else f"start {level:g}"
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "va": "top"}
    axis.annotate(label, (0.97, level), (0, -3), color="#666666", fontsize=9, **place)
    if name == "accuracy":
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_ylim(0, 1)
    else:
        _scale(axis, [level, *values])


def _curve(axis: Axes, rows: list[dict[str, Any]], name: str, colour: str, label: str) -> list[float]:
    """Draw the mean over trials and their range; return the values drawn."""
    rounds = sorted({row["round"] for row in rows})
    values = [[_value(row, name) for row in rows if row["round"] == number] for number in rounds]
    if not rounds:
        return []
    low, mean, high = (np.array([f(v) for v in values]) for f in (np.min, np.mean, np.max))
    axis.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.plot(rounds, mean, color=colour, linewidth=1.8, marker="o" if len(rounds) < 3 else None, label=label)
    end = f"{mean[-1]:.1%}" if name == "accuracy" else f"{mean[-1]:.3g}"
    axis.annotate(end, (rounds[-1], mean[-1]), (4, 0), textcoords="offset points", va="center", color=colour)
    return [*low.tolist(), *high.tolist()]


def _scale(axis: Axes, values: list[float]) -> None:
    """Leave room around the values; go over to a logarithmic axis where they span more than a decade."""
    values = [value for value in values if np.isfinite(value) and value > 0]
    low, high = min(values), max(values)
    if high > 10 * low:
        axis.set_yscale("log")
    axis.set_ylim(low * 0.85, high * 1.15)


def _value(row: dict[str, Any], name: str) -> float:
    value = row["metrics"].get(name) if name == "accuracy" else row[name]
    return np.nan if value is None else value
