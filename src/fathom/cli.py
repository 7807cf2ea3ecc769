"""The command line: parse, call, print."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fathom import cli_bench, cli_data, cli_doctor, cli_report, cli_reproduce, cli_theory
from fathom.cli_errors import fail

app = typer.Typer(
    name="fathom",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    help="Federated learning that tunes itself while it trains.\n\n"
    "[bold]fathom run[/bold] trains a small CNN over 300 synthetic writers, and finds the clients' learning rate, "
    "local epochs and batch size as it goes. It leaves a picture. Nothing needs to be downloaded."
)
def main() -> None:
    """All commands."""


@app.command(
    help="Train on a task and watch its hyperparameters adapt.\n\n"
    "Settings that are not given come from the task, or from the spec file. The run directory holds spec.toml (all "
    "settings: run it again with `fathom run DIR/spec.toml`), records.jsonl, checkpoints, summary.json and curves.png. "
    "A run that was stopped, or killed, goes on with `fathom run --resume DIR`, to the same results.",
    epilog="Examples:\n\n"
    "  fathom run                                     the embedded task; nothing has to be set\n\n"
    "  fathom run --tuner fathom                      the same with FATHOM as in the paper\n\n"
    "  fathom run --tuner fixed                       the same with plain FedAvg\n\n"
    "  fathom run --tuner fathom --lr 0.05 --trials 3 from another start, three trials in one program\n\n"
    "  fathom run --set server_opt.name=fedadam       with Adam at the server\n\n"
    "  fathom run --aggregate median --dropout 0.1    a tenth of the clients vanish, a few may lie\n\n"
    "  fathom run runs/mine/spec.toml                 a run again, from its spec\n\n"
    "  fathom run --resume runs/mine                  a run that was stopped, from where it was",
)
def run(
    task: Annotated[
        str | None, typer.Argument(help="A task's name (see `fathom tasks`) or a SPEC.toml.", show_default="glyphs")
    ] = None,
    tuner: Annotated[
        str | None,
        typer.Option(
            help="What moves the hyperparameters (see `fathom tuners`): `plumb` needs no start, `fathom` is the "
            "paper's, `fixed` is FedAvg.",
            show_default="plumb; fathom with --aggregate private",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of communication.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients sampled each round.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Client learning rate of the first round; plumb finds these three itself.")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Local epochs of the first round; may be fractional.")] = None,
    batch: Annotated[float | None, typer.Option(help="Local batch size of the first round.")] = None,
    trials: Annotated[int | None, typer.Option(help="Independent trials, run together: seeds N, N+1, ...")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first trial.")] = None,
    target: Annotated[float | None, typer.Option(help="Test accuracy that `rounds to target` is about.")] = None,
    stop_at_target: Annotated[
        bool | None, typer.Option("--stop-at-target", help="End a trial when it has reached the target.")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    dropout: Annotated[float | None, typer.Option(help="How likely a sampled client is to vanish.")] = None,
    stragglers: Annotated[float | None, typer.Option(help="How likely one is to stop early.")] = None,
    aggregate: Annotated[
        str | None,
        typer.Option(
            help="How updates become one: mean, median, trimmed_mean, norm_bound or private (docs/reliability.md)."
        ),
    ] = None,
    guard: Annotated[
        bool | None,
        typer.Option(
            "--guard/--no-guard",
            help="Whether a run that diverges goes back to its last good state with half the lr.",
            show_default="--guard",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to make; by default one under runs/.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with the run in DIR, from its last checkpoint.")
    ] = None,
    from_: Annotated[
        int | None,
        typer.Option("--from", metavar="ROUND", help="With --resume: from the checkpoint of this round."),
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between checkpoints; 0 for one every round.")
    ] = 30.0,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the spec; may be repeated."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="TRACKER", help="Write the records to tensorboard, mlflow or wandb, too; repeatable."),
    ] = None,
    hosts: Annotated[
        bool,
        typer.Option(
            "--hosts",
            help="Work together with the same command on other hosts. SLURM, Open MPI and TPU pods are recognised; "
            "elsewhere set FATHOM_COORDINATOR=host:port, FATHOM_HOSTS=n, FATHOM_HOST=0 to n-1. Host 0 writes the run.",
        ),
    ] = False,
) -> None:
    """Train on a task."""
    from fathom.experiment import run as runs
    from fathom.experiment import spec as specs

    console = Console()
    settings = {
        "rounds": rounds,
        "cohort": cohort,
        "trials": trials,
        "seed": seed,
        "target": target,
        "stop_at_target": stop_at_target,
        "every": every,
        "dropout": dropout,
        "stragglers": stragglers,
        "aggregate": aggregate,
        "guard": guard,
    }
    start = {"lr": lr, "epochs": epochs, "batch": batch}
    try:
        if not checkpoint_every >= 0:
            raise specs.SpecError(f"--checkpoint-every {checkpoint_every:g} must be at least 0 seconds.")
        if resume:
            given = {"TASK": task, **settings, "tuner": tuner, **start, "out": out, "set": set_}
            _refuse(f"--resume goes on with the settings of {resume}", given)
            spec = specs.resolve(specs.read(resume / "spec.toml"))
        else:
            _refuse("there is no run to go on with; name its directory with --resume", {"from": from_})
            raw = specs.read(Path(task)) if task and task.endswith(".toml") else {"task": task or "glyphs"}
            raw |= {key: value for key, value in settings.items() if value is not None}
            if tuner is not None:
                specs.change_tuner(raw, tuner)
            for key, value in start.items():
                if value is not None:
                    specs.set_option(raw, f"hparams.{key}={value!r}")
            for assignment in set_ or []:
                specs.set_option(raw, assignment)
            spec = specs.resolve(raw)
        start_from = runs.Start(from_) if resume else None
        options = {"resume": start_from, "every": checkpoint_every, "log": log or []}
        _run(spec, resume or out or _fresh(spec), console, hosts, options)
    except specs.SpecError as error:
        fail(str(error))


def _refuse(why: str, options: dict[str, Any]) -> None:
    """Options that cannot be given here."""
    from fathom.experiment.spec import SpecError

    for name, value in options.items():
        if value is not None:
            raise SpecError(f"{why}; leave out {name if name.isupper() else '--' + name.replace('_', '-')}.")


def _run(spec: Any, out: Path, console: Console, hosts: bool, options: dict[str, Any]) -> None:
    import jax

    from fathom.experiment import run as runs
    from fathom.experiment.checkpoint import StoppedError

    runs.set_up(spec.cohort * spec.trials)
    if not hosts:
        try:
            return _lead(spec, out, console, options)
        except StoppedError as error:
            fail(str(error), code=1)
    first = runs.join()
    try:
        if first:
            return _lead(spec, out, console, options)
        for _ in runs.prepare(spec, out, leads=False, **options).rows:
            pass
    except FloatingPointError as error:  # on all hosts alike
        raise typer.Exit(1) from error
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, typer.Exit):
            raise
        # Not by way of the interpreter, which would wait for the others: they notice, and end too.
        told = (str(error).splitlines() or [type(error).__name__])[0]
        if isinstance(error, jax.errors.JaxRuntimeError):
            told = f"stopped, perhaps because another host did; see what that one says, and start all again. ({told})"
        print(f"fathom: host {jax.process_index()} of {jax.process_count()}: {told}", file=sys.stderr, flush=True)
        os._exit(2 if isinstance(error, ValueError) else 1)


def _lead(spec: Any, out: Path, console: Console, options: dict[str, Any]) -> None:
    """Run, show the run as it goes on, and draw its picture."""
    from fathom.experiment import run as runs
    from fathom.report import terminal

    title = f"{spec.task['name']}, tuner {spec.tuner['name']}: {spec.cohort} clients a round"
    done = 0
    try:
        with console.status("preparing the data ..."):
            ready = runs.prepare(spec, out, **options)
        if options["resume"]:
            console.print(f"going on with {out} after round {ready.done} of {spec.rounds}", highlight=False)
        if ready.note:
            console.print(f"note: {ready.note}.", highlight=False, soft_wrap=True)
        done = ready.done
        with closing(ready.rows), terminal.View(console, title, spec, ready.past) as view:
            for row in ready.rows:
                view.add(row)
                done = row["round"]
    except FloatingPointError as error:
        _draw(out)
        fail(f"{error} {out} holds what was measured.", code=1)
    except KeyboardInterrupt:
        written = (out / "spec.toml").exists()
        kept = f"go on with `fathom run --resume {out}`" if written else "nothing was written"
        print(f"fathom: stopped after round {done} of {spec.rounds}; {kept}.", file=sys.stderr, flush=True)
        if written:
            _draw(out)
        os._exit(130)  # not by way of the interpreter, which may crash when a compilation is cut short
    where = f"{out} (look at {out / 'curves.png'})" if _draw(out) else str(out)
    terminal.summary(console, json.loads((out / "summary.json").read_text()), where)


def _draw(out: Path) -> bool:
    """Draw a run's picture; whether it could be written."""
    from fathom.report import curves

    try:
        curves.draw([out], out / "curves.png")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"fathom: {out / 'curves.png'} could not be drawn: {why}", file=sys.stderr)
        return False
    return True


@app.command()
def tasks() -> None:
    """List the tasks there are, and how tuners that need a start begin on them (plumb, the default, needs none)."""
    from fathom.tasks import TASKS

    for name, entry in TASKS.items():
        d = entry.defaults
        start = f"start lr {d.hparams.lr:g}, E {d.hparams.epochs:g}, B {d.hparams.batch:g}"
        Console().print(
            f"[bold]{name:<14}[/bold]{entry.summary} ({d.cohort} clients a round, target {d.target:.0%}; {start})",
            highlight=False,
            soft_wrap=True,
        )


@app.command()
def tuners() -> None:
    """List the tuners there are."""
    from fathom.tuners import TUNERS

    for name, tuner in TUNERS.items():
        summary = (tuner.__doc__ or "").splitlines()[0]
        Console().print(f"[bold]{name:<12}[/bold]{summary}", highlight=False, soft_wrap=True)


def _fresh(spec: Any) -> Path:
    """A directory under runs/ that is not there yet."""
    stem = f"{spec.task['name']}-{spec.tuner['name']}"
    number = 1
    while (out := Path("runs") / f"{stem}-{number}").exists():
        number += 1
    return out


# Listed in this order by --help, after those above.
app.command()(cli_report.report)
app.command()(cli_report.watch)
app.command()(cli_reproduce.reproduce)
app.command()(cli_theory.theory)
app.command()(cli_bench.bench)
app.command()(cli_doctor.doctor)
app.add_typer(cli_data.app)
