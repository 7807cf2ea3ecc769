"""`fathom data`: get data in, and look at it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fathom.cli_errors import fail

app = typer.Typer(name="data", help="Import data sets, and look at them.", no_args_is_help=True)
NAME = Annotated[str, typer.Argument(help="The data set's name (see `fathom data list`).")]

# The paper's Table 4, to compare with.
PAPER = {
    "femnist": "EMNIST-62: 3,400 clients, 671,585 training and 77,483 test examples",
    "stackoverflow": "Stack Overflow: 342,477 training clients, 135,818,730 examples; 204,088 test clients, 16,586,035",
}


@app.command("import")
def import_(
    kind: Annotated[str, typer.Argument(help="The format; a wrong one lists what there is.")],
    paths: Annotated[list[Path], typer.Argument(help="Its files, or a folder.")],
    name: Annotated[str, typer.Option(help="What to call the data set.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the format; may be repeated.")
    ] = None,
) -> None:
    """Read files in a known format into a data set that tasks can train on."""
    from fathom.data import disk
    from fathom.data.importers import importer
    from fathom.experiment.spec import SpecError, arguments, set_option

    console = Console()
    try:
        read = importer(kind)
        options: dict[str, Any] = {}
        for assignment in set_ or []:
            set_option(options, assignment)
        if "paths" in options:
            raise SpecError("--set paths: files are named after the format, not with --set.")
        options = arguments(f"import {kind}", read, {"paths": paths, **options})
        with console.status(f"importing {kind} ..."):
            imported = read(**options)
            disk.write(name, imported.splits, imported.meta)
        _describe(console, name)
    except (SpecError, ValueError) as error:
        fail(str(error))


@app.command()
def download(
    which: Annotated[str, typer.Argument(metavar="femnist|stackoverflow", help="The paper's data set to fetch.")],
    name: Annotated[
        str | None, typer.Option(help="What to call the data set; by default as it is called here.")
    ] = None,
) -> None:
    """Fetch a public data set of TensorFlow Federated, check it, and import it; stopped, it goes on where it was."""
    from rich import progress

    from fathom.data import download as downloads

    console = Console()
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    try:
        source = downloads.source_of(which)
        with progress.Progress(*columns, console=console) as bars:
            lines: dict[str, progress.TaskID] = {}

            def watch(doing: str, done: int, total: int | None) -> None:
                if doing not in lines:
                    lines[doing] = bars.add_task(doing, total=total, completed=done)
                bars.update(lines[doing], total=total, completed=done)

            def note(line: str) -> None:
                console.print(line, markup=False, highlight=False, soft_wrap=True)

            downloads.download(name or which, source, watch, note)
        _describe(console, name or which)
    except ValueError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail(f"stopped; {downloads.folder()} keeps what has arrived, and the same command goes on from there.", 130)


@app.command("list")
def list_() -> None:
    """List the data sets there are."""
    from fathom.data import disk

    if not disk.names():
        Console().print(f"none yet in {disk.home()}; make one with `fathom data import`", soft_wrap=True)
    for name in disk.names():
        try:
            train = disk.open_set(name).meta["splits"]["train"]
            told = f"{train['clients']:,} clients, {train['examples']:,} training examples"
        except ValueError as error:
            told = f"cannot be used: {error}"
        Console().print(f"[bold]{name:<20}[/bold]{told}", soft_wrap=True)


@app.command()
def info(name: NAME) -> None:
    """Show a data set's statistics, beside those of the paper's Table 4."""
    try:
        _describe(Console(), name)
    except ValueError as error:
        fail(str(error))


@app.command()
def check(name: NAME) -> None:
    """Read a whole data set and compare it with the hashes taken when it was made."""
    from fathom.data import disk

    try:
        with Console().status(f"reading {name} ..."):
            disk.check(name)
    except ValueError as error:
        fail(str(error))
    Console().print(f"{name} is as it was made")


@app.command()
def show(
    name: NAME,
    out: Annotated[Path | None, typer.Option(help="Where to draw images; by default NAME.png.")] = None,
    clients: Annotated[int, typer.Option(help="How many clients to show.", min=1)] = 8,
) -> None:
    """Draw some clients' images as a contact sheet, or print some clients' sentences."""
    from fathom.data import disk
    from fathom.data import show as shows

    console = Console()
    try:
        data = disk.open_set(name)
        if "tokens" in data.splits["train"].examples:
            for client, lines in shows.sentences(data, clients):
                console.print(f"[bold]{client}[/bold]")
                for line in lines:
                    console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(f"drew {shows.picture(data, out or Path(f'{name}.png'), clients)}", soft_wrap=True)
    except ValueError as error:
        fail(str(error))


@app.command()
def partition(
    paths: Annotated[
        list[Path],
        typer.Argument(help="An .npz file with arrays x and y, and maybe x_test and y_test; or .parquet files."),
    ],
    name: Annotated[str, typer.Option(help="What to call the data set.")],
    by: Annotated[str, typer.Option(help="iid, shards or dirichlet.")] = "dirichlet",
    clients: Annotated[int, typer.Option(help="How many clients to make.", min=1)] = 100,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="alpha, per_client or seed; label, a column.")
    ] = None,
) -> None:
    """Make clients for data that has none."""
    from fathom.data import disk
    from fathom.data.partition import PARTITIONS
    from fathom.data.single import partitioned
    from fathom.experiment.spec import SpecError, arguments, choose, set_option

    try:
        options: dict[str, Any] = {}
        for assignment in set_ or []:
            set_option(options, assignment)
        label = options.pop("label", None)
        method = choose("partition", by, PARTITIONS)
        options = arguments(f"partition {by}", method, {"labels": None, "clients": clients, **options})
        disk.write(name, *partitioned(paths, method, options, label))
        _describe(Console(), name)
    except (SpecError, ValueError) as error:
        fail(str(error))


def _describe(console: Console, name: str) -> None:
    from fathom.data import disk

    data = disk.open_set(name)
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for column in ("split", "clients", "examples", "mean", "smallest", "median", "largest"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split, facts in data.meta["splits"].items():
        low, _, middle, _, high = facts["sizes"]
        numbers = (facts["clients"], facts["examples"], round(facts["mean_size"], 1), low, middle, high)
        table.add_row(split, *(f"{number:,}" for number in numbers))
    console.print(table)
    text = "tokens" in data.splits["train"].examples
    console.print(f"the paper's {PAPER['stackoverflow' if text else 'femnist']}", style="dim", soft_wrap=True)
    for key in ("source", "licence", "preprocessing"):
        if key in data.meta:
            console.print(f"{key}: {data.meta[key]}", highlight=False, soft_wrap=True)
    console.print(f"in {data.path}", highlight=False, soft_wrap=True)
