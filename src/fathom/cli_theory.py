"""`fathom theory`: the paper's convergence bound, along a run."""

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fathom.cli_errors import fail

PLAIN: dict[str, Any] = {"highlight": False, "soft_wrap": True}
MEANING = {
    "lr": "client learning rate",
    "steps": "K, local steps, mean over clients",
    "progress": "2D / sum(lr K)",
    "deviation 1": "L sum(lr^2 K) / (m sum(lr K)) (sigma^2 + G^2)",
    "deviation 2": "5 L^2 sum(lr^3 K^2) / sum(lr K) sigma^2",
    "deviation 3": "5 L^2 sum(lr^3 K^3) / sum(lr K) G^2",
    "bound": "their sum, on the least |grad f|^2",
    "beta 0": "as printed; divides the progress of Lemma 1",
    "beta 1": "as printed; divides deviation 1",
    "beta 2": "as printed; divides deviation 2",
    "beta 3": "as printed; divides deviation 3",
}


def theory(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    smoothness: Annotated[float | None, typer.Option(metavar="L", help="Smoothness of the clients' losses.")] = None,
    noise: Annotated[float | None, typer.Option(metavar="SIGMA", help="Deviation of a batch's gradient.")] = None,
    gradient: Annotated[float | None, typer.Option(metavar="G", help="Bound on a client's gradient.")] = None,
    fall: Annotated[float | None, typer.Option(metavar="D", help="How far the loss falls, f(x_0) - f(x_T).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object with every recorded round.")] = False,
) -> None:
    """Show the paper's convergence bound along a run: its four terms, its betas, and whether lr <= 1/L.

    L, sigma, G and D are estimated from the records, roughly, unless they are given.
    """
    from fathom.report import theory as theories

    given = {"L": smoothness, "sigma": noise, "G": gradient, "D": fall}
    try:
        found = theories.measure(run, {name: value for name, value in given.items() if value is not None})
    except ValueError as error:
        fail(str(error))
    if as_json:
        print(json.dumps(found))
        return
    _show(Console(), found)


def _show(console: Console, found: dict[str, Any]) -> None:
    from fathom.report.terminal import sparkline

    trials = found["trials"]
    told = f"mean ± sd of {len(trials)} trials, curves of trial 1" if len(trials) > 1 else "1 trial"
    title = escape(f"{found['task']}, tuner {found['tuner']}, {found['rounds']} rounds: {told}")
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("at the end", justify="right", no_wrap=True)
    table.add_column("round by round", style="cyan", no_wrap=True)
    table.add_column("", style="dim", overflow="fold")
    for name, meaning in MEANING.items():
        table.add_row(name, _spread([trial[name][-1] for trial in trials]), sparkline(trials[0][name]), meaning)
        if name in ("steps", "bound"):
            table.add_row()
    console.print(table, highlight=False)
    console.print()
    for name, constant in found["constants"].items():
        sign = "≈" if constant["estimated"] else "="
        console.print(f"{name:<5} {sign} {constant['value']:<8.3g} [dim]{constant['how']}[/dim]", **PLAIN)
    console.print(_check(found), **PLAIN)
    largest = max(list(MEANING)[2:6], key=lambda name: trials[0][name][-1])
    console.print(f"the largest term at the end is {largest}", **PLAIN)
    for note in found["notes"]:
        console.print(f"[dim]{escape(note)}[/dim]", **PLAIN)


def _check(found: dict[str, Any]) -> str:
    """Whether every lr was at most 1/L."""
    limit = f"lr <= 1/L = {found['lr_limit']:.3g}"
    above = [trial for trial in found["trials"] if trial["rounds_above_limit"]]
    if not above:
        lower = " (L may be larger than its estimate)" if found["constants"]["L"]["estimated"] else ""
        return f"{limit} holds in every round{lower}"
    rounds = sum(trial["rounds_above_limit"] for trial in above)
    total = sum(trial["round"][-1] for trial in found["trials"])
    first = min(trial["first_above_limit"] for trial in above)
    return f"{limit} [bold]fails[/bold] in {rounds} of {total} rounds, first in round {first}"


def _spread(values: list[float]) -> str:
    shown = f"{fmean(values):.3g}"
    return f"{shown} ± {stdev(values):.2g}" if len(values) > 1 else shown
