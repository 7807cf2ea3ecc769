"""Draw docs/any-start.png from results/any-start.jsonl: rounds to the target, FedAvg's settings beside plumb.

python docs/any_start_figure.py results/any-start.jsonl docs/any-start.png
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib
from matplotlib.figure import Figure

NEVER = 24.0  # where settings that do not arrive in every trial are drawn
SHOWN = ("digits", "letters", "small", "characters", "glyphs", "synthetic", "docstrings", "words")

source, picture = map(Path, sys.argv[1:])
cells: dict[str, dict[tuple, list]] = defaultdict(lambda: defaultdict(list))
for row in map(json.loads, source.read_text().splitlines()):
    if row["cohort"] == 10 and row["task"] in SHOWN and row["method"] in ("plumb", "grid"):
        cell = (row["method"], row["lr_0"], row["epochs_0"], row["batch_0"])
        cells[row["task"]][cell].append(row["end"]["rounds"])

matplotlib.rcParams |= {"font.size": 10, "text.color": "#222222", "axes.edgecolor": "#888888"}
figure = Figure(figsize=(9.6, 4.6), dpi=140, layout="constrained")
axis = figure.subplots()
for place, task in enumerate(SHOWN):
    (own,) = (rounds for cell, rounds in cells[task].items() if cell[0] == "plumb")
    fixed = [rounds for cell, rounds in cells[task].items() if cell[0] == "grid"]
    scale = mean(own)
    ratios = sorted(NEVER if None in rounds else mean(rounds) / scale for rounds in fixed)
    spots: dict[float, int] = defaultdict(int)  # those in one place stand above each other
    for ratio in ratios:
        spot = round(ratio, 1)
        lift = 0.09 * spots[spot]
        spots[spot] += 1
        look = {"color": "#d55e00", "marker": "x"} if ratio == NEVER else {"color": "#888888", "marker": "o"}
        axis.plot(ratio, place - lift, markersize=5, linestyle="none", alpha=0.8, **look)
    axis.plot([rounds / scale for rounds in own], [place] * len(own), "|", color="#0072b2", markersize=16)
    faster = sum(ratio < 1 for ratio in ratios)
    axis.annotate(f"{faster} of {len(fixed)}", (34, place), va="center", ha="center", annotation_clip=False)
axis.annotate("FedAvg's settings\nthat are faster", (34, -0.75), va="bottom", ha="center", annotation_clip=False)
axis.axvline(1, color="#0072b2", linewidth=1)
axis.set_xscale("log")
axis.set_xlim(0.45, 28)
axis.set_xticks([0.5, 1, 2, 4, 8, NEVER], ["1/2", "1", "2", "4", "8", "never"])
axis.minorticks_off()
axis.set_yticks(range(len(SHOWN)), SHOWN)
axis.set_ylim(len(SHOWN) - 0.5, -0.8)
axis.grid(axis="x", color="#d9d9d9", linewidth=0.6)
axis.spines[["top", "right"]].set_visible(False)
axis.set_xlabel("rounds to the target, over plumb's mean (blue: plumb's trials; grey: FedAvg, one dot a setting)")
figure.suptitle("plumb, told nothing, beside FedAvg with fixed settings: 10 clients a round", fontweight="bold")
figure.savefig(picture)
