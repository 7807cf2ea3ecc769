"""The picture of runs: accuracy, learning rate, epochs and batch size over the rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fathom.report.read import Run, read_all
from fathom.report.series import curves, style

PANELS = {
    "accuracy": "Test accuracy",
    "lr": "Client learning rate",
    "epochs": "Local epochs E",
    "batch": "Batch size B",
}
DASHES: dict[str, Any] = {
    "solid": "-", "dash": "--", "dot": ":", "dashdot": "-.", "longdash": (0, (8, 2))
}  # fmt: skip
FAR = 30.0  # times the largest other value: a start that would flatten a curve


def draw(outs: Sequence[Path], path: Path, kind: str = "png") -> Path:
    """Draw run directories, one colour each, into a picture at `path`."""
    runs = read_all(outs)
    with matplotlib.rc_context({"font.size": 10, "axes.edgecolor": "#888888", "text.color": "#222222"}):
        figure = Figure(figsize=(9.6, 6.0), dpi=140, layout="constrained")
        axes = figure.subplots(2, 2, sharex=True)
        for axis, name in zip(axes.flat, PANELS, strict=True):
            _panel(axis, name, runs)
        for axis in axes[1]:
            axis.set_xlabel("round")
        if len(runs) > 1 and any(run.measured for run in runs):
            axes[0, 0].legend(loc="lower right", frameon=False)
        figure.suptitle(_plain(_title(runs)), fontweight="bold")
        figure.savefig(path, format=kind)
    return path


def _title(runs: list[Run]) -> str:
    first = runs[0].spec
    trials = first["trials"]
    shown = "1 trial" if trials == 1 else f"mean and range of {trials} trials"
    tuners = {run.spec["tuner"]["name"] for run in runs}
    tuner = f", tuner {tuners.pop()}" if len(tuners) == 1 else ""
    return f"{first['task']['name']}{tuner}: {first['cohort']} clients a round, {shown}"


def _labels(runs: list[Run]) -> list[str]:
    """Runs by their tuners, or by their names where tuners do not tell them apart."""
    tuners = [run.spec["tuner"]["name"] for run in runs]
    if len(set(tuners)) < len(runs):
        return [run.name for run in runs]
    return ["fixed (FedAvg)" if tuner == "fixed" else tuner for tuner in tuners]


def _panel(axis: Axes, name: str, runs: list[Run]) -> None:
    axis.set_title(PANELS[name], loc="left", fontsize=10)
    axis.grid(color="#d9d9d9", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    values = []
    for place, (run, label) in enumerate(zip(runs, _labels(runs), strict=True)):
        values += _curve(axis, run, name, style(place), _plain(label), tell=len(runs) < 3)
    levels = {run.spec["target"] if name == "accuracy" else run.spec["hparams"][name] for run in runs}
    common = len(levels) == 1  # or every curve shows where it begins
    levels = {level for level in levels if name == "accuracy" or not _aloof(level, values)}
    if common and levels:
        (level,) = levels
        axis.axhline(level, color="#888888", linewidth=0.8)
        label = f"target {level:.0%}" if name == "accuracy" else f"start {level:g}"
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "va": "top"}
        axis.annotate(label, (0.97, level), (0, -3), color="#666666", fontsize=9, **place)
    if name == "accuracy":
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_ylim(0, 1)
    else:
        _scale(axis, [*levels, *values])


def _curve(axis: Axes, run: Run, name: str, look: dict[str, str], label: str, tell: bool) -> list[float]:
    """Draw the mean over trials and their range, and tell where it ends; return the values drawn."""
    found = curves(run)
    rounds, colour = found["round"], look["colour"]
    if not rounds:
        return []
    low, mean, high = (np.array(found[name][part], float) for part in ("low", "mean", "high"))
    axis.fill_between(rounds, low, high, color=colour, alpha=0.2, linewidth=0)
    marker = "o" if len(rounds) < 3 else None
    axis.plot(rounds, mean, color=colour, linewidth=1.8, linestyle=DASHES[look["dash"]], marker=marker, label=label)
    if tell:
        end = f"{mean[-1]:.1%}" if name == "accuracy" else f"{mean[-1]:.3g}"
        axis.annotate(end, (rounds[-1], mean[-1]), (4, 0), textcoords="offset points", va="center", color=colour)
    begin = int(name != "accuracy" and _aloof(low[0], high[1:].tolist()))
    return [*low[begin:].tolist(), *high[begin:].tolist()]


def _aloof(start: float, values: list[float]) -> bool:
    """Whether a start is so far above all that follows that it would flatten it; `plumb` begins that far above."""
    finite = [value for value in values if np.isfinite(value)]
    return bool(finite) and start > FAR * max(finite)


def _scale(axis: Axes, values: list[float]) -> None:
    """Leave room around the values; go over to a logarithmic axis where they span more than a decade."""
    values = [value for value in values if np.isfinite(value) and value > 0]
    if not values:
        return
    low, high = min(values), max(values)
    if high > 10 * low:
        axis.set_yscale("log")
    axis.set_ylim(low * 0.85, high * 1.15)


def _plain(text: str) -> str:
    """A text in which nothing is taken for a formula, and which a legend does not leave out."""
    return text.replace("$", r"\$").lstrip("_") or "-"
