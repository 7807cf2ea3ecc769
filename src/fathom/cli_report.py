"""`fathom report` and `fathom watch`: look at runs, finished or in progress."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fathom.cli_errors import fail

PICTURES = ("png", "svg")


class Format(StrEnum):
    """What a report can be written as."""

    html = "html"
    md = "md"
    csv = "csv"
    json = "json"
    png = "png"
    svg = "svg"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, to be shown side by side.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File to write; by default report.html, and text goes to the terminal."),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            help="html: a page to look at, offline. md: its tables. csv: the records. json: summaries and curves. "
            "png, svg: a figure.",
            show_default="what --out ends in, or html",
        ),
    ] = None,
) -> None:
    """Make a page of one run, or of several side by side; a run that is still going on will do."""
    from fathom.report.read import read_all

    ending = out.suffix[1:].lower() if out else ""
    try:
        if ending and not format and ending not in list(Format):
            raise ValueError(
                f"--out {out}: {ending!r} is not a format; choose from {', '.join(Format)}, or give --format."
            )
        kind = format or Format(ending or "html")
        found = read_all(runs)
        if kind in PICTURES:
            from fathom.report import curves

            return _told(curves.draw(runs, out or Path(f"report.{kind}"), kind))
        from fathom.report import export, page

        makers = {"html": page.page, "md": export.markdown, "csv": export.table, "json": export.document}
        text = makers[kind](found)
        if out is None and kind != Format.html:
            return print(text, end="")
        _told(export.write(out or Path("report.html"), text))
    except ValueError as error:
        fail(str(error))
    except OSError as error:
        fail(f"{out or error.filename} cannot be written: {error.strerror}; choose another --out.")


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="A folder of run directories, or one of them.", show_default="runs")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(help="Where to listen; 0 for any port that is free.", min=0, max=65535)] = 8675,
    host: Annotated[
        str, typer.Option(help="Address to listen on; only this machine can look unless you name another.")
    ] = "127.0.0.1",
) -> None:
    """Watch runs in the browser as they go on."""
    console = Console()
    try:
        from fathom.report import live  # or say what is not installed

        listener, address = live.listen(host, port)
        if not folder.is_dir():
            console.print(
                f"note: there is no folder {folder} yet; runs appear once there is.", markup=False, highlight=False
            )
        console.print(f"watching {folder} at {address} (Ctrl-C ends)", markup=False, highlight=False, soft_wrap=True)
        live.serve(folder, listener, host)
    except ValueError as error:
        fail(str(error))


def _told(path: Path) -> None:
    Console().print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)
