"""Runs for other tools: tables as Markdown, records as CSV, summaries and curves as JSON."""

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fathom.finite import finite
from fathom.report.compare import measures, verdict
from fathom.report.read import NUMBERS, WHOLE, Run, printable
from fathom.report.series import curves
from fathom.report.tables import state, tables, to_markdown


def markdown(runs: Sequence[Run]) -> str:
    """The tables of the report."""
    return "\n".join(to_markdown(table) for table in tables(runs))


def table(runs: Sequence[Run]) -> str:
    """The records as CSV: a line per run, round and trial; empty where nothing was measured."""
    metrics = list(dict.fromkeys(name for run in runs for row in run.measured for name in row["metrics"]))
    clients = ("steps", "answered", "sampled")  # mean local steps, clients that answered, clients that were asked
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["run", *WHOLE, *NUMBERS, "rolled_back", *clients, *(_cell(f"test_{name}") for name in metrics)])
    for run in runs:
        for row in run.rows:
            numbers = [row[name] for name in (*WHOLE, *NUMBERS)]
            tested = [(row["metrics"] or {}).get(name) for name in metrics]
            lines.writerow([_cell(run.name), *numbers, int(row["rolled_back"]), *(row[n] for n in clients), *tested])
    return text.getvalue()


def document(runs: Sequence[Run]) -> str:
    """What the runs came to and their curves, as JSON."""
    found = measures(runs)
    told = [
        {
            "name": run.name,
            "state": run.state,
            "told": state(run),
            "spec": run.spec,
            "summary": run.summary,
            "damaged_line": run.records.damaged or None,
            "curves": curves(run, points=len(run.rows) + 1),
        }
        for run in runs
    ]
    verdicts = {
        measure.title: {
            "verdict": verdict(measure) if len(runs) > 1 else None,
            "values": {result.run: result.values for result in measure.results},
        }
        for measure in found
    }
    return json.dumps(finite({"runs": told, "measures": verdicts}), indent=1, default=str, allow_nan=False) + "\n"


def write(path: Path, text: str) -> Path:
    """Write a whole file, or leave the one that is there."""
    if path.exists() and not path.is_file():  # a device, or a folder, which says so
        path.write_text(text, encoding="utf-8", errors="replace")
        return path
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8", errors="replace")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _cell(text: str) -> str:
    """A text that a spreadsheet does not take for a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
