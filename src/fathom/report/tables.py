"""The tables of a report: plain text in cells, for a page or for Markdown."""

import html
from collections.abc import Sequence
from typing import Any, NamedTuple

from fathom.report.compare import RULE, measures, spread, verdict
from fathom.report.read import Run, printable


class Table(NamedTuple):
    """A table, and what should be read with it."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""


def tables(runs: Sequence[Run]) -> list[Table]:
    """All tables there is something to say in."""
    made = (results(runs), verdicts(runs), trouble(runs), differences(runs), environment(runs))
    return [table for table in made if table.rows]


def results(runs: Sequence[Run]) -> Table:
    """What every run came to."""
    rows = [
        ["task", *(run.spec["task"]["name"] for run in runs)],
        ["tuner", *(_tuner(run.spec["tuner"]["name"]) for run in runs)],
        ["state", *(state(run) for run in runs)],
        ["trials", *(str(len({row["trial"] for row in run.measured})) for run in runs)],
    ]
    for measure in measures(runs):
        rows.append([measure.title, *(spread(result, measure.form) for result in measure.results)])
    rows.append(["seconds on the clock", *(_seconds(run) for run in runs)])
    every = " or ".join(str(number) for number in sorted({run.spec["every"] for run in runs}))
    note = (
        f"Mean ± standard deviation over trials. Whether the target is reached is looked at every {every} rounds. "
        "Seconds are those of all trials together, and count compiling and whatever else the machine did."
    )
    if any(run.spec.get("stop_at_target") for run in runs):
        note += " Trials stop at their target: in curves, one that has stopped counts on with its last values."
    return Table("What came of it", ["", *(run.name for run in runs)], rows, note)


def verdicts(runs: Sequence[Run]) -> Table:
    """Which run is better, by every measure; nothing for a single run."""
    rows = [[measure.title, verdict(measure)] for measure in measures(runs)] if len(runs) > 1 else []
    return Table("Which is better", ["", "verdict"], rows, RULE)


def trouble(runs: Sequence[Run]) -> Table:
    """Rounds undone, updates set aside, clients that did not answer, privacy, damage; whatever there was."""
    kinds = {
        "rounds undone": [sum(row["rolled_back"] for row in run.rows) for run in runs],
        "updates set aside": [sum({row["trial"]: row["rejected"] for row in run.rows}.values()) for run in runs],
        "clients that did not answer, in recorded rounds": [
            sum(row["sampled"] - row["answered"] for row in run.rows) for run in runs
        ],
    }
    rows = [[kind, *(f"{count:,}" for count in counts)] for kind, counts in kinds.items() if any(counts)]
    secrets = [_privacy(run) for run in runs]
    if any(secrets):
        rows.append(["privacy", *(told or "not private" for told in secrets)])
    damage = [f"line {run.records.damaged}; nothing after it is shown" if run.records.damaged else "" for run in runs]
    if any(damage):
        rows.append(["damaged records", *(told or "none" for told in damage)])
    return Table(
        "What went wrong, and what was given away", ["", *(run.name for run in runs)], rows, "All trials together."
    )


def differences(runs: Sequence[Run]) -> Table:
    """The settings that are not the same in all runs."""
    flats = [flat(run.spec) for run in runs]
    keys = list(dict.fromkeys(key for one in flats for key in one))
    rows = [[key, *(one.get(key, "not set") for one in flats)] for key in keys]
    rows = [row for row in rows if len(set(row[1:])) > 1]
    return Table("Settings that differ", ["", *(run.name for run in runs)], rows)


def environment(runs: Sequence[Run]) -> Table:
    """What the runs were made with; known once a run has ended."""
    flats = [flat(run.summary["environment"]) if run.summary else {} for run in runs]
    keys = list(dict.fromkeys(key for one in flats for key in one))
    rows = [[key, *(one.get(key, "known when the run ends") for one in flats)] for key in keys]
    return Table("Made with", ["", *(run.name for run in runs)], rows)


def state(run: Run) -> str:
    """Where a run stands."""
    total = run.spec["rounds"]
    if run.state == "finished":
        return f"finished, {run.done:,} rounds"
    return f"{'no end yet' if run.state == 'running' else 'stopped'}: round {run.done:,} of {total:,}"


def flat(table: dict[str, Any], before: str = "") -> dict[str, str]:
    """The keys of nested tables, joined by dots, and their values as text."""
    found = {}
    for key, item in table.items():
        if isinstance(item, dict):
            found |= flat(item, f"{before}{key}.")
        else:
            listed = isinstance(item, list)
            found[f"{before}{key}"] = ", ".join(dict.fromkeys(map(str, item))) if listed else str(item)
    return found


def to_html(table: Table) -> str:
    """A table as HTML, with everything in it escaped."""

    def line(cells: list[str], tag: str) -> str:
        first, *others = (html.escape(cell) for cell in cells)
        return f'<tr><th scope="row">{first}</th>' + "".join(f"<{tag}>{cell}</{tag}>" for cell in others) + "</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="table"><table><thead>{line(table.header, "th")}</thead><tbody>{body}</tbody></table></div>{note}'
    )


def to_markdown(table: Table) -> str:
    """A table as Markdown, with nothing in it that could be markup."""
    lines = [[_plain(cell) for cell in row] for row in (table.header, *table.rows)]
    lines.insert(1, ["---"] * len(table.header))
    body = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    return f"## {table.title}\n\n{body}\n" + (f"\n{_plain(table.note)}\n" if table.note else "")


def _plain(cell: str) -> str:
    cell = html.escape(printable(" ".join(cell.split())), quote=False)
    return "".join(f"\\{c}" if c in "\\`*[]|" else c for c in cell)


def _tuner(name: str) -> str:
    return "fixed (FedAvg)" if name == "fixed" else name


def _seconds(run: Run) -> str:
    return f"{max((row['seconds'] or 0 for row in run.rows), default=0):,.0f}"


def _privacy(run: Run) -> str:
    aggregate = run.spec.get("aggregate")
    if not isinstance(aggregate, dict) or aggregate.get("name") != "private":
        return ""
    facts = (run.summary or {}).get("privacy") if run.state != "running" else None
    if not isinstance(facts, dict) or not all(isinstance(facts.get(key), int | float) for key in ("epsilon", "delta")):
        return "private; epsilon is known when the run ends"
    return f"epsilon {facts['epsilon']:.3g} at delta {facts['delta']:g}, one client replaced"
