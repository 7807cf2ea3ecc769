"""The picture of the paper's bound along a run: its four terms, its betas, and lr beside 1/L."""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fathom.report.read import Run
from fathom.report.series import COLOURS
from fathom.report.theory import BETAS, TERMS, measure

SHOWN = 3  # runs on a page
POINTS = 200  # of a curve


def section(runs: Sequence[Run]) -> str:
    """A part of the report, as HTML; nothing where no run has records enough."""
    parts = []
    for run in runs[:SHOWN]:
        try:
            found = measure(run.path)
            picture = _embedded(found)
        except (ValueError, ArithmeticError):
            continue
        values = ", ".join(f"{name} ≈ {constant['value']:.3g}" for name, constant in found["constants"].items())
        told = html.escape(f"{run.name}, trial {found['trials'][0]['trial'] + 1}: {values}, all of them estimates.")
        parts.append(f'<p class="note">{told}</p><img alt="{told}" style="max-width:100%" src="{picture}">')
    if not parts:
        return ""
    note = html.escape(
        "The least squared gradient norm so far is at most the sum of four terms, if L, sigma, G and D are as they are "
        "estimated here; `fathom theory` says how, and takes others. The betas are as printed: they divide the terms."
    )
    if len(runs) > SHOWN:
        note += f" Shown for the first {SHOWN} runs."
    return f'<section><h2>The paper\'s bound</h2><p class="note">{note}</p>{"".join(parts)}</section>'


def _embedded(found: dict[str, Any]) -> str:
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "fathom"}):  # the same page from the same run
        figure(found).savefig(file, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(file.getvalue()).decode()


def figure(found: dict[str, Any]) -> Figure:
    """Draw what `theory.measure` found, of the first trial."""
    made = Figure(figsize=(9.6, 3.6), dpi=140, layout="constrained")
    bound, factors, rates = made.subplots(1, 3)
    trial = found["trials"][0]
    _lines(bound, trial, (*TERMS, "bound"), "Terms of the bound")
    bound.set_yscale("log")
    _lines(factors, trial, BETAS, "Betas, as printed")
    _lines(rates, trial, ("lr",), "Client learning rate, and 1/L")
    rates.axhline(found["lr_limit"], color="#888888", linewidth=1, linestyle="--")
    rates.annotate(
        f"1/L ≈ {found['lr_limit']:.3g}" if found["constants"]["L"]["estimated"] else f"1/L = {found['lr_limit']:.3g}",
        (0.97, found["lr_limit"]), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
        va="bottom", color="#666666", fontsize=8,
    )  # fmt: skip
    rates.set_ylim(0, 1.2 * max(found["lr_limit"], *trial["lr"]))
    return made


def _lines(axis: Axes, trial: dict[str, Any], names: tuple[str, ...], title: str) -> None:
    axis.set_title(title, loc="left", fontsize=9)
    axis.grid(color="#d9d9d9", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_xlabel("round")
    for name, colour in zip(names, (*COLOURS[:4], "#222222"), strict=False):
        thin = np.unique(np.linspace(0, len(trial["round"]) - 1, POINTS).astype(int))
        axis.plot(np.array(trial["round"])[thin], np.array(trial[name])[thin], color=colour, linewidth=1.6, label=name)
    if len(names) > 1:
        axis.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.08), ncols=3, frameon=False)
