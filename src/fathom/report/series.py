"""The numbers behind the charts: means and ranges over trials, and how clients spread."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from fathom.report.read import LAST, Row, Run

POINTS = 2400  # of all curves of one kind, so that a page stays small
BINS = 14
# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes tell runs apart without colours.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
COSTS = ("gradients", "bytes")
CURVES = ("accuracy", "lr", "epochs", "batch", "steps", "agreement", "alignment", "gain")


def style(place: int) -> dict[str, str]:
    """The colour and the dashes of a run, by its place among those shown."""
    return {"colour": COLOURS[place % len(COLOURS)], "dash": DASHES[(place + place // len(COLOURS)) % len(DASHES)]}


def value(row: Row, name: str) -> float | None:
    """A number of a row, by the name of its curve."""
    if name == "accuracy":
        return row["metrics"].get("accuracy") if row["metrics"] else None
    return row["bytes_up"] + row["bytes_down"] if name == "bytes" else row[name]


def curves(run: Run, points: int = POINTS) -> dict[str, Any]:
    """The evaluated rounds of a run: mean cost so far, and mean, lowest and highest trial of every curve."""
    by_round = _by_round(run.measured, bool(run.spec.get("stop_at_target")))
    rounds = _thin(sorted(by_round), points)
    found: dict[str, Any] = {"round": rounds, "thinned": len(rounds) < len(by_round)}
    for name in COSTS:
        found[name] = [round(fmean(value(row, name) or 0 for row in by_round[number])) for number in rounds]
    for name in CURVES:
        values = [[v for row in by_round[n] if (v := value(row, name)) is not None] for n in rounds]
        found[name] = {
            "mean": [_short(fmean(v)) if v else None for v in values],
            "low": [_short(min(v, default=None)) for v in values],
            "high": [_short(max(v, default=None)) for v in values],
        }
    return found


def _by_round(rows: Sequence[Row], held: bool) -> dict[int, list[Row]]:
    """The rows of every round, a row per trial; `held`: a trial that has stopped counts on with its last row."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["round"], []).append(row)
    latest: dict[int, Row] = {}
    for number in sorted(found) if held else ():
        latest |= {row["trial"]: row for row in found[number]}
        found[number] = list(latest.values())
    return found


def described(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the charts need to know of each run."""
    return [
        {
            "name": run.name,
            **style(place),
            "target": run.spec["target"],
            "trials": len({row["trial"] for row in run.measured}),
            "undone": [[row["round"], row["lr"]] for row in run.rows if row["rolled_back"]][-200:],
            "curves": curves(run, max(40, POINTS // len(runs))),
        }
        for place, run in enumerate(runs)
    ]


def clients(runs: Sequence[Run]) -> dict[str, Any]:
    """How the clients of the last recorded rounds spread: for each run, the share of them in every bin.

    The clients of all trials count, and every time that one was sampled; those that did not answer, or whose update was
    set aside, do not.
    """
    found = {}
    for name in ("loss", "steps", "examples"):
        values = [_of_clients(run, name) for run in runs]
        edges = _edges([v for some in values for v in some], whole=name != "loss")
        shares = []
        for some in values:
            counts = [0] * (len(edges) - 1)
            for v in some:
                place = int((v - edges[0]) / (edges[1] - edges[0]))
                counts[min(max(place, 0), len(counts) - 1)] += 1
            shares.append([_short(count / len(some)) if some else None for count in counts])
        found[name] = {"edges": edges, "shares": shares, "counts": [len(some) for some in values]}
    return found


def last_rounds(run: Run) -> tuple[int, int] | None:
    """The first and the last of the rounds whose clients are shown."""
    rounds = sorted({row["round"] for row in run.rows if row["clients"]})[-LAST:]
    return (rounds[0], rounds[-1]) if rounds else None


def _of_clients(run: Run, name: str) -> list[float]:
    span = last_rounds(run)
    rows = [row for row in run.rows if row["clients"] and span and row["round"] >= span[0]]
    columns = (name, "steps", "examples")
    each = (one for row in rows for one in zip(*(row["clients"][key] for key in columns), strict=False))
    return [v for v, steps, examples in each if v is not None and steps and examples]


def _edges(values: list[float], whole: bool) -> list[float]:
    """Where bins of the same width begin and end; for whole numbers, between them."""
    values = [v for v in values if abs(v) < 1e15]
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    if whole:
        width = math.ceil((high - low + 1) / BINS)
        count = math.ceil((high - low + 1) / width)
        return [low - 0.5 + width * i for i in range(count + 1)]
    width = (high - low) / BINS or abs(low) or 1.0
    return [low + width * i for i in range((BINS if high > low else 1) + 1)]


def _thin(rounds: list[int], points: int) -> list[int]:
    if len(rounds) <= points:
        return rounds
    return [rounds[round(i * (len(rounds) - 1) / (points - 1))] for i in range(points)]


def _short(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.5g}")
