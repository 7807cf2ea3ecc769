"""The picture of a run: accuracy, learning rate, epochs and batch size over the rounds."""

import json
import tomllib
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

INK, LINE, GRID = "#222222", "#0072B2", "#d9d9d9"  # a blue that colour-blind readers tell from the grey
PANELS = (
    ("accuracy", "Test accuracy"),
    ("lr", "Client learning rate"),
    ("epochs", "Local epochs E"),
    ("batch", "Batch size B"),
)


def draw(out: Path) -> Path:
    """Draw curves.png in a run directory, from the files that are there."""
    spec = tomllib.loads((out / "spec.toml").read_text())
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    with matplotlib.rc_context({"font.size": 10, "axes.edgecolor": "#888888", "text.color": INK}):
        figure = Figure(figsize=(9.6, 6.0), dpi=140, layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for axis, (name, title) in zip(axes.flat, PANELS, strict=True):
            axis.set_title(title, loc="left", fontsize=10)
            axis.grid(color=GRID, linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            values = _curve(axis, rows, name)
            if name == "accuracy":
                _level(axis, spec["target"], f"target {spec['target']:.0%}")
                axis.yaxis.set_major_formatter(PercentFormatter(1.0))
                axis.set_ylim(0, 1)
            else:
                start = spec["hparams"][name]
                _level(axis, start, f"start {start:g}")
                _scale(axis, [start, *values])
        for axis in axes[1]:
            axis.set_xlabel("round")
        trials = spec["trials"]
        shown = "1 trial" if trials == 1 else f"mean and range of {trials} trials"
        figure.suptitle(
            f"{spec['task']['name']}, tuner {spec['tuner']['name']}: {spec['cohort']} clients a round, {shown}",
            fontweight="bold",
        )
        path = out / "curves.png"
        figure.savefig(path)
    return path


def _curve(axis: Axes, rows: list[dict[str, Any]], name: str) -> list[float]:
    """Draw the mean over trials and their range; return the values drawn."""
    rounds = sorted({row["round"] for row in rows})
    values = [[_value(row, name) for row in rows if row["round"] == number] for number in rounds]
    if not rounds:
        return []
    low, mean, high = (np.array([f(v) for v in values]) for f in (np.min, np.mean, np.max))
    axis.fill_between(rounds, low, high, color=LINE, alpha=0.2, linewidth=0)
    axis.plot(rounds, mean, color=LINE, linewidth=1.8, marker="o" if len(rounds) < 3 else None)
    label = f"{mean[-1]:.1%}" if name == "accuracy" else f"{mean[-1]:.3g}"
    axis.annotate(label, (rounds[-1], mean[-1]), (4, 0), textcoords="offset points", va="center")
    return [*low.tolist(), *high.tolist()]


def _level(axis: Axes, value: float, label: str) -> None:
    """A dashed line across, with its name."""
    axis.axhline(value, color="#888888", linewidth=1, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axis.annotate(label, (0.01, value), (0, 3), color="#666666", fontsize=9, **place)


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
