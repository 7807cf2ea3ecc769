"""The paper's Table 1 with ours beside it, in Markdown, LaTeX and JSON."""

import json
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fathom.paper import Row
from fathom.report.reproduced import Cell, Table1, best
from fathom.report.tables import flat

COLUMNS = {
    "fathom": "FATHOM",
    "fedavg": "FedAvg",
    "printed": "FATHOM, as printed",
    "decay": "FedAvg, lr x .998",
    "fedadam": "FedAdam",
    "grid": "FedAvg, best of grid",
}
PUBLISHED = ("fathom", "fedavg", "printed")  # the paper's methods, and both readings of its own
MEASURES = {"rounds": "Rounds", "gradients": "Local gradients"}


def spread(cell: Cell | None, measure: str, trials: int = 0) -> str:
    """Mean ± sd, NA where no trial reached the target, and how many did where not all did; or were fewer than usual."""
    if cell is None:
        return "not run"
    values = getattr(cell, measure)
    if not cell.finished:
        return f"unfinished ({len(values)} of {cell.trials} so far)"
    if not values:
        return "NA"
    told = short(fmean(values)) + (f" ± {short(stdev(values), 2)}" if len(values) > 1 else "")
    if cell.first:
        told += f" after {short(cell.first[measure])}"
    if len(values) < cell.trials:
        return f"{told} ({len(values)} of {cell.trials} trials)"
    return f"{told} ({cell.trials} {'trial' if cell.trials == 1 else 'trials'})" if cell.trials < trials else told


def short(value: float, digits: int = 3) -> str:
    """A number as the paper writes it: 739, 64K, 2.2M."""
    value = float(f"{value:.{digits}g}") if value >= 1e4 else value
    for size, letter in ((1e6, "M"), (1e4, "K")):
        if value >= size:
            return f"{value / (1e6 if letter == 'M' else 1e3):g}{letter}"
    return f"{value:.0f}"


def ratio(top: float | None, bottom: float | None) -> str:
    """How many times as much; nothing where one is not known."""
    return f"{top / bottom:.2f}" if top and bottom else "-"


class Block(NamedTuple):
    """A table of text."""

    title: str
    rows: list[list[str]]  # the header first
    bold: list[int]  # the place of the best in each row but the header; 0 where none is


def blocks(table: Table1) -> list[Block]:
    """The paper's table beside ours, for rounds and for gradients; and the methods that it has not."""
    made = []
    for measure, name in MEASURES.items():
        methods = [method for method in PUBLISHED if method in table.methods]
        header = [
            "start",
            *(COLUMNS[m] for m in methods),
            "FATHOM / FedAvg",
            "in the paper",
            "its FATHOM",
            "its FedAvg",
        ]
        made.append(_block(f"{name} to the target", header, table, measure, methods, True))
    for measure, name in MEASURES.items():
        methods = [method for method in table.methods if method != "printed"]
        if set(methods) - set(PUBLISHED):
            header = ["start", *(COLUMNS[m] for m in methods)]
            title = f"{name} to the target, beside others"
            made.append(_block(title, header, table, measure, methods, False))
    return made


def _block(title: str, header: list[str], table: Table1, measure: str, methods: list[str], beside: bool) -> Block:
    rows, bold = [header], []
    for name, found in table.rows.items():
        cells = {method: found[method] for method in methods if method in found}
        if not beside and not set(cells) - set(PUBLISHED):
            continue
        row = table.experiment.rows[name]
        line = [row.title, *(spread(cells.get(method), measure, table.trials) for method in methods)]
        if beside:
            pair = [cells.get(m) for m in ("fathom", "fedavg")]
            ours = [fmean(cell.values(measure)) if cell and cell.whole else None for cell in pair]
            theirs = [row.published[m][measure][0] if m in row.published else None for m in ("fathom", "fedavg")]
            line += [ratio(*ours), ratio(*theirs), *(_published(row, m, measure) for m in ("fathom", "fedavg"))]
        winner = best(cells, measure)
        rows.append(line)
        bold.append(1 + methods.index(winner) if winner else 0)
    return Block(title, rows, bold)


def _published(row: Row, method: str, measure: str) -> str:
    if method not in row.published:
        return "NA"
    mean, deviation = row.published[method][measure]
    return f"{short(mean)} ± {short(deviation)}"


def caption(table: Table1) -> str:
    """What the table is of: which data, which target, how many trials, on what."""
    paper = table.experiment
    data = f"a subset: {table.part}" if table.data == table.task and table.clients != paper.clients else table.part
    target = f"target {table.target:.4g} test accuracy"
    if table.target != paper.target:
        target += f" (the paper's is {paper.target:.4g})"
    start = paper.rows["baseline"].spec
    hparams = start["hparams"]
    base = f"LR_0 = {hparams['lr']:g}, BS_0 = {hparams['batch']:g}, NCPR = {start['cohort']}"
    trials = f"{table.trials} {'trial' if table.trials == 1 else 'trials'} unless said otherwise"
    return f"{table.task}, {data}; {target}; {table.limits}; {trials}. The baseline starts from {base}."


NOTE = (
    "Mean ± sd over the trials that reached the target; NA where none did. In bold what is better than every other "
    "column by more than noise (Welch's t-test, p times the number of pairs < .05). A ratio is of means, where all "
    "trials reached the target. The paper's own figures are of its own data and target."
)
SWEPT = "*after N*: what trying the grid cost before the run it chose could begin."


def markdown(table: Table1) -> str:
    """The table, for rounds and for local gradients, and what it took."""
    parts = [f"# Table 1: {table.task}", caption(table), NOTE]
    parts += [SWEPT] if "grid" in table.methods else []
    for block in blocks(table):
        rows = [list(row) for row in block.rows]
        for row, place in zip(rows[1:], block.bold, strict=True):
            row[place] = f"**{row[place]}**" if place else row[place]
        parts += [f"## {block.title}", _grid(rows)]
    parts += ["## What it took", _grid(effort(table)), _machine(table)]
    return "\n\n".join(parts) + "\n"


def effort(table: Table1) -> list[list[str]]:
    """Seconds and gradients a second, for every row and method."""
    rows = [["start", "method", "trials", "seconds", "gradients", "gradients a second"]]
    for name, cells in table.rows.items():
        for method, cell in cells.items():
            speed = short(cell.spent / cell.seconds) if cell.seconds else "-"
            told = [str(cell.trials), f"{cell.seconds:,.0f}", short(cell.spent), speed]
            rows.append([table.experiment.rows[name].title, COLUMNS[method], *told])
    return rows


def _machine(table: Table1) -> str:
    made = {
        ", ".join(
            value if key in ("platform", "devices") else f"{key} {value}" for key, value in flat(made).items() if value
        )
        for cells in table.rows.values()
        for cell in cells.values()
        for made in cell.made
    }
    return (
        "Seconds are of all trials together, compiling too, summed over runs; those that shared a machine slowed each "
        f"other down. Made with {'; '.join(sorted(made))}."
    )


def _grid(rows: Sequence[Sequence[str]]) -> str:
    marks = ["---"] * len(rows[0])
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], marks, *rows[1:]))


def latex(table: Table1) -> str:
    """The table as LaTeX; needs no package."""

    def plain(text: str) -> str:
        for sign, written in {"_": r"\_", "±": r"$\pm$", "%": r"\%", "<": "$<$"}.items():
            text = text.replace(sign, written)
        return text

    made = [plain(caption(table)), "", plain(NOTE), ""]
    for block in blocks(table):
        header, *body = block.rows
        made += [f"\\begin{{tabular}}{{l{'c' * (len(header) - 1)}}}", "\\hline"]
        made += [f"\\multicolumn{{{len(header)}}}{{l}}{{{block.title}}} \\\\"]
        made += [" & ".join(plain(cell) for cell in header) + r" \\ \hline"]
        for row, place in zip(body, block.bold, strict=True):
            told = [rf"\textbf{{{plain(c)}}}" if place and i == place else plain(c) for i, c in enumerate(row)]
            made.append(" & ".join(told) + r" \\")
        made += ["\\hline", "\\end{tabular}", ""]
    return "\n".join([*made, plain(_machine(table)), ""])


def document(table: Table1) -> str:
    """The table as JSON: every trial's numbers, the paper's, and the tables as they are printed."""
    rows = {}
    for name, cells in table.rows.items():
        rows[name] = {"published": table.experiment.rows[name].published}
        for method, cell in cells.items():
            rows[name][method] = {
                **{f"{measure}_to_target": _numbers(getattr(cell, measure)) for measure in MEASURES},
                "trials": cell.trials,
                "spent_before": cell.first,
                "gradients": cell.spent,
                "seconds": round(cell.seconds, 1),
                "finished": cell.finished,
            }
    head = {
        "task": table.task,
        "data": table.data,
        "target": table.target,
        "clients": table.clients,
        "caption": caption(table),
    }
    printed = [{"title": block.title, "rows": block.rows, "best": block.bold} for block in blocks(table)]
    return json.dumps({**head, "machine": _machine(table), "rows": rows, "tables": printed}, indent=1) + "\n"


def _numbers(values: list[int]) -> dict[str, Any]:
    sd = stdev(values) if len(values) > 1 else None
    return {"mean": fmean(values) if values else None, "sd": sd, "values": values}
