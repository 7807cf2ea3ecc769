"""`python -m fathom` is the `fathom` command."""

from fathom.cli import app

app(prog_name="fathom")
