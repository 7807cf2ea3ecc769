"""The paper's figures: what happens over the rounds, in a panel per task and sweep."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from fathom.report.reproduced import Table1, band, load_curves
from fathom.report.series import COLOURS

LINES: dict[str, Any] = {"fathom": "-", "fedavg": "--"}
NAMES = {"stackoverflow": "Stack Overflow", "femnist": "FEMNIST"}


def draw(figure: Mapping[str, Any], tables: Mapping[str, Table1], out: Path, stem: str) -> list[Path]:
    """Draw one of the paper's figures from the runs under `out`, into `out`; as SVG and as PNG."""
    tasks = [task for task in figure["tasks"] if task in tables]
    style: Any = {"font.size": 9, "axes.edgecolor": "#888888", "text.color": "#222222", "svg.hashsalt": "fathom"}
    with matplotlib.rc_context(style):
        page = Figure(figsize=(3.7 * len(figure["sweeps"]), 0.9 + 2.7 * len(tasks)), dpi=140, layout="constrained")
        axes = page.subplots(len(tasks), len(figure["sweeps"]), squeeze=False)
        for line, task in zip(axes, tasks, strict=True):
            for axis, sweep in zip(line, figure["sweeps"], strict=True):
                _panel(axis, figure["quantity"], sweep, tables[task], out)
            own = tables[task].data
            line[0].set_ylabel(f"{NAMES.get(own, own)}\n{figure['title'].lower()}")
        for axis in axes[-1]:
            axis.set_xlabel("round")
        for axis, sweep in zip(axes[0], figure["sweeps"], strict=True):
            axis.set_title(sweep["title"], fontsize=10, fontweight="bold")
        if figure["quantity"] == "accuracy":
            pairs = zip(LINES.values(), ("FATHOM", "FedAvg"), strict=True)
            marks = [Line2D([], [], color="#444444", linestyle=line, label=label) for line, label in pairs]
            page.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False)
        what = figure["title"] if figure["quantity"] == "accuracy" else f"{figure['title']} under FATHOM"
        about = "; ".join(f"{NAMES.get(task, task)}: {tables[task].part}" for task in tasks)
        page.suptitle(f"{what}: {about}\nmean and range of the trials, each until its target", fontsize=9)
        made = [out / f"{stem}.{kind}" for kind in ("svg", "png")]
        for path in made:
            page.savefig(path, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    return made


def _panel(axis: Axes, quantity: str, sweep: Mapping[str, Any], table: Table1, out: Path) -> None:
    axis.grid(color="#d9d9d9", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    rows = [name for name in sweep["rows"] if name in table.rows]
    handles, values = [], []
    for place, name in enumerate(rows):
        colour = COLOURS[place]
        for method, line in LINES.items():
            cell = table.rows[name].get(method)
            trials = load_curves(out / table.task / name / method) if cell and cell.finished else []
            if not trials or (method == "fedavg" and quantity != "accuracy"):
                continue
            rounds, (low, mean, high) = band(trials, quantity)
            axis.fill_between(rounds, low, high, color=colour, alpha=0.18, linewidth=0)
            axis.plot(rounds, mean, color=colour, linestyle=line, linewidth=1.4)
            values += [*low, *high]
        if any(line.get_color() == colour for line in axis.lines):
            handles.append(Line2D([], [], color=colour, label=_label(table, name, sweep)))
    if quantity == "accuracy":
        axis.axhline(table.target, color="#888888", linewidth=0.8)
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axis.set_ylim(0.6 * table.target, min(1.0, 1.03 * table.target))  # how it comes near the target
    elif values and max(values) > 5 * min(values) > 0:
        axis.set_yscale("log")
    axis.legend(handles=handles, loc="best", frameon=False, fontsize=8)


def _label(table: Table1, name: str, sweep: Mapping[str, Any]) -> str:
    """What a row has of what is swept."""
    spec = table.experiment.rows[name].spec
    start = spec["hparams"]
    if "learning" in sweep["title"]:
        return f"LR_0 = {start['lr']:g}"
    return f"BS_0 = {start['batch']:g}" if "batch" in sweep["title"] else f"NCPR = {spec['cohort']}"
