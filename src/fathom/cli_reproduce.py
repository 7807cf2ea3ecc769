"""`fathom reproduce`: the paper's Table 1 and its figures, on the data at hand."""

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fathom.cli_errors import fail

PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}


def reproduce(
    task: Annotated[str, typer.Argument(help="femnist or stackoverflow.")],
    rows: Annotated[
        str | None, typer.Option(help="Rows of the table, such as baseline,lr,bs4.", show_default="all of the task's")
    ] = None,
    methods: Annotated[
        str,
        typer.Option(
            help="fathom; fedavg; printed: FATHOM by the equations as typeset; decay: FedAvg with lr x .998 a round; "
            "fedadam: at Reddi et al.'s rates; grid: FedAvg at the best of up to 12 settings, their cost counted."
        ),
    ] = "fathom,fedavg",
    trials: Annotated[int, typer.Option(help="Trials of each, run together; more can be asked for later.")] = 10,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Data set, as imported (`fathom data list`).")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Test accuracy to reach.", show_default="the paper's")] = None,
    out: Annotated[Path, typer.Option(help="Where runs, tables and figures go.")] = Path("runs/paper"),
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the runs' specs, such as task.least=20."),
    ] = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Whether to run what is missing first.")] = True,
) -> None:
    """Run the rows of the paper's Table 1, and make the table and the figures of what has been run.

    Ten trials from each start, for FATHOM and FedAvg, at most 2000 rounds (FEMNIST) or 1500 (Stack Overflow), evaluated
    every 5 rounds; a trial stops at its target. What is finished is not run again, and what was stopped goes on: give
    the same command again.
    """
    from fathom import paper
    from fathom.experiment import reproduce as reproduction
    from fathom.experiment.spec import SpecError

    console = Console()
    try:
        known = paper.experiments()
        _choose("task", [task], known)
        chosen = _choose("rows", rows.split(",") if rows else list(known[task].rows), known[task].rows)
        wanted = _choose("methods", methods.split(","), reproduction.METHODS)
        if trials < 1:
            raise SpecError(f"--trials {trials} must be at least 1.")
        changes = [*(set_ or [])]
        changes += [f"task.data={data}"] if data is not None else []
        changes += [f"target={target!r}"] if target is not None else []
        if run:
            for job in reproduction.jobs([known[task].rows[name] for name in chosen], wanted, trials, out, changes):
                _do(job, console)
        _tell(out, console, task)
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or out} cannot be written: {error.strerror}; choose another --out.")


def _choose(what: str, given: Sequence[str], there: Any) -> list[str]:
    from fathom.experiment.spec import SpecError

    for name in given:
        if name not in there:
            raise SpecError(f"{what}: there is no {name!r}; choose from {', '.join(there)}.")
    return list(dict.fromkeys(given))


def _do(job: Any, console: Console) -> None:
    """Run what is left of a job, and show it."""
    from fathom.experiment import run as runs
    from fathom.experiment.checkpoint import StoppedError
    from fathom.report import terminal

    runs.set_up(job.spec.cohort * job.spec.trials)
    spec = job.spec
    title = f"{spec.task['name']}, {job.row}, {job.method}: seeds {spec.seed} to {spec.seed + spec.trials - 1}"
    live = console if console.is_terminal else Console(quiet=True)  # ten trials would be too many lines
    with console.status("preparing the data ..."):
        ready = runs.prepare(spec, job.out, resume=runs.Start() if job.begun else None)
    if ready.note:
        console.print(f"note: {ready.note}.", **PLAIN)
    view = terminal.View(live, title, spec, ready.past)
    try:
        with closing(ready.rows), view:
            for row in ready.rows:
                view.add(row)
    except FloatingPointError as error:
        console.print(f"{title}: {error}", **PLAIN)
    except StoppedError as error:
        fail(f"{error} Then give this command again.", code=1)
    except KeyboardInterrupt:
        print(f"fathom: stopped in {job.out}; give the same command again to go on.", file=sys.stderr, flush=True)
        os._exit(130)
    console.print(f"{title}: {view.told()}", **PLAIN)


def _tell(out: Path, console: Console, task: str) -> None:
    """Write the tables and figures of all that is there, and print the table of one task."""
    from fathom import paper as papers
    from fathom.report import figures, paper, reproduced
    from fathom.report.export import write
    from fathom.report.read import RunError

    reproduced.save_curves(out)
    found = {name: reproduced.collect(out, name, experiment) for name, experiment in papers.experiments().items()}
    tables = {name: table for name, table in found.items() if table}
    if task not in tables:
        raise RunError(f"{out} has no finished run of {task}; run some first, without --no-run.")
    for name, table in tables.items():
        makers = {"md": paper.markdown, "tex": paper.latex, "json": paper.document}
        for ending, make in makers.items():
            write(out / f"table1-{name}.{ending}", make(table))
    for stem, figure in papers.figures().items():
        figures.draw(figure, tables, out, stem)
    for block in paper.blocks(tables[task]):
        shown = Table(title=block.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for place, column in enumerate(block.rows[0]):
            shown.add_column(column, justify="left" if place == 0 else "right", overflow="fold")
        for row, best in zip(block.rows[1:], block.bold, strict=True):
            shown.add_row(*(f"[bold green]{cell}[/]" if best and i == best else cell for i, cell in enumerate(row)))
        console.print(shown, highlight=False)
        console.print()
    console.print(paper.caption(tables[task]), **PLAIN)
    console.print(paper.NOTE, **PLAIN)
    console.print(f"written to {out}: table1-{task}.md, .tex, .json; figure1 to figure4 as .svg and .png", **PLAIN)
