"""The command line: parse, call, print."""

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fathom import cli_bench, cli_data
from fathom.cli_errors import fail

app = typer.Typer(
    name="fathom",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_data.app)
app.command()(cli_bench.bench)


@app.callback(
    help="Federated learning that tunes itself while it trains.\n\n"
    "[bold]fathom run[/bold] trains a small CNN over 300 synthetic writers, with FATHOM adapting the clients' learning "
    "rate, local epochs and batch size as it goes, and leaves a picture. Nothing needs to be downloaded."
)
def main() -> None:
    """All commands."""


@app.command(
    help="Train on a task and watch its hyperparameters adapt.\n\n"
    "Settings that are not given come from the task, or from the spec file. The run directory holds spec.toml (all "
    "settings: run it again with `fathom run DIR/spec.toml`), records.jsonl, summary.json and curves.png.",
    epilog="Examples:\n\n"
    "  fathom run                                     the embedded task, tuned by FATHOM\n\n"
    "  fathom run --tuner fixed                       the same with plain FedAvg\n\n"
    "  fathom run glyphs --lr 0.05 --trials 3         another start, three trials in one program\n\n"
    "  fathom run --set tuner.form=printed            the paper's equations as they are typeset\n\n"
    "  fathom run --set server_opt.name=fedadam       FATHOM with Adam at the server\n\n"
    "  fathom run runs/mine/spec.toml                 a run again, from its spec",
)
def run(
    task: Annotated[str, typer.Argument(help="A task's name (see `fathom tasks`) or a SPEC.toml.")] = "glyphs",
    tuner: Annotated[
        str | None,
        typer.Option(help="What moves the hyperparameters (see `fathom tuners`); `fixed` is FedAvg."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of communication.")] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients sampled each round.")] = None,
    lr: Annotated[float | None, typer.Option(help="Client learning rate of the first round.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Local epochs of the first round; may be fractional.")] = None,
    batch: Annotated[float | None, typer.Option(help="Local batch size of the first round.")] = None,
    trials: Annotated[int | None, typer.Option(help="Independent trials, run together: seeds N, N+1, ...")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first trial.")] = None,
    target: Annotated[float | None, typer.Option(help="Test accuracy that `rounds to target` is about.")] = None,
    every: Annotated[int | None, typer.Option(help="Rounds between evaluations.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to make; by default one under runs/.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any key of the spec; may be repeated."),
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
    from fathom.experiment import spec as specs

    console = Console()
    try:
        raw = specs.read(Path(task)) if task.endswith(".toml") else {"task": task}
        given = {
            "rounds": rounds,
            "cohort": cohort,
            "trials": trials,
            "seed": seed,
            "target": target,
            "every": every,
        }
        raw |= {key: value for key, value in given.items() if value is not None}
        if tuner is not None:
            raw["tuner"] = tuner
        for key, value in {"lr": lr, "epochs": epochs, "batch": batch}.items():
            if value is not None:
                specs.set_option(raw, f"hparams.{key}={value!r}")
        for assignment in set_ or []:
            specs.set_option(raw, assignment)
        spec = specs.resolve(raw)
        _run(spec, out or _fresh(spec), console, hosts)
    except specs.SpecError as error:
        fail(str(error))


def _run(spec: Any, out: Path, console: Console, hosts: bool) -> None:
    import jax

    from fathom.data.cache import folder

    if "JAX_NUM_CPU_DEVICES" not in os.environ:
        jax.config.update("jax_num_cpu_devices", min(os.cpu_count() or 1, spec.cohort * spec.trials))
    jax.config.update("jax_compilation_cache_dir", str(folder() / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a second start compiles nothing

    if not hosts:
        return _lead(spec, out, console)
    from fathom.experiment import run as runs

    first = runs.join()
    try:
        if first:
            return _lead(spec, out, console)
        for _ in runs.run(spec, None):
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


def _lead(spec: Any, out: Path, console: Console) -> None:
    """Run, show the run as it goes on, and draw its picture."""
    from fathom.experiment import run as runs
    from fathom.report import curves, terminal

    title = f"{spec.task['name']}, tuner {spec.tuner['name']}: {spec.cohort} clients a round"
    done = 0
    try:
        with console.status("preparing the data ..."):
            rows = runs.run(spec, out)
        with closing(rows), terminal.View(console, title, spec.rounds, spec.trials, spec.target) as view:
            for row in rows:
                view.add(row)
                done = row["round"]
    except FloatingPointError as error:
        curves.draw([out], out / "curves.png")
        fail(f"{error} {out} holds what was measured.", code=1)
    except KeyboardInterrupt:
        written = (out / "spec.toml").exists()
        kept = f"{out} holds what was measured" if written else "nothing was written"
        print(f"fathom: stopped after round {done} of {spec.rounds}; {kept}.", file=sys.stderr, flush=True)
        if written:
            curves.draw([out], out / "curves.png")
        os._exit(130)  # not by way of the interpreter, which may crash when a compilation is cut short
    picture = curves.draw([out], out / "curves.png")
    terminal.summary(console, json.loads((out / "summary.json").read_text()), f"{out} (look at {picture})")


@app.command()
def tasks() -> None:
    """List the tasks there are, and how they start."""
    from fathom.tasks import TASKS

    for name, entry in TASKS.items():
        d = entry.defaults
        start = f"lr {d.hparams.lr:g}, E {d.hparams.epochs:g}, B {d.hparams.batch:g}, {d.cohort} clients a round"
        Console().print(
            f"[bold]{name:<12}[/bold]{entry.summary} ({start}, target {d.target:.0%})",
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
