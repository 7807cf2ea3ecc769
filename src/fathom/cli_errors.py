"""How the command line fails."""

import sys
from typing import NoReturn

import typer


def fail(message: str, code: int = 2) -> NoReturn:
    """One line to standard error, and an exit code."""
    sys.stdout.flush()
    print(f"fathom: {message}", file=sys.stderr)
    raise typer.Exit(code)
