"""The paper's Table 1 and its figures, from the runs that `fathom reproduce` made."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fathom.paper import Experiment, Row
from fathom.report import compare
from fathom.report.read import RunError, read
from fathom.report.series import value

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
CURVES = ("accuracy", "lr", "epochs", "batch")


class Cell(NamedTuple):
    """What a method came to in a row."""

    rounds: list[int]  # to the target, of the trials that reached it
    gradients: list[int]
    trials: int
    spent: int  # gradients that all trials computed, and
    seconds: float  # how long that took, compiling too
    finished: bool
    first: dict[str, int]  # rounds and gradients of a sweep that was needed before; empty where none was
    runs: list[dict[str, Any]]  # summaries

    def mean(self, measure: str) -> float:
        """The mean over the trials that reached the target, and what had to be spent before."""
        return fmean(getattr(self, measure)) + self.first.get(measure, 0)


class Table1(NamedTuple):
    """One task's part of the table, as it was run here."""

    task: str
    target: float
    clients: int
    experiment: Experiment
    methods: list[str]
    rows: dict[str, dict[str, Cell]]


def collect(out: Path, task: str, experiment: Experiment) -> Table1 | None:
    """What is there of a task's runs under `out`; None where there is nothing."""
    rows: dict[str, dict[str, Cell]] = {}
    for name in experiment.rows:
        cells = {method: _cell(out / task / name / method) for method in COLUMNS}
        if found := {method: cell for method, cell in cells.items() if cell}:
            rows[name] = found
    summaries = [summary for cells in rows.values() for cell in cells.values() for summary in cell.runs]
    if not summaries:
        return None
    targets, clients = ({summary[key] for summary in summaries} for key in ("target", "clients"))
    for what, values in (("targets", targets), ("numbers of clients", clients)):
        if len(values) > 1:
            raise RunError(f"{out / task}: the runs have different {what}, {values}; keep each in a folder of its own.")
    methods = [method for method in COLUMNS if any(method in cells for cells in rows.values())]
    return Table1(task, targets.pop(), clients.pop(), experiment, methods, rows)


def _cell(folder: Path) -> Cell | None:
    runs = _summaries(folder.glob("seeds-*"))
    sweep = _summaries(folder.glob("sweep/*/seeds-*"))
    if not runs:
        return None
    trials = [trial for run in runs for trial in run["trials"]]
    hits = [trial for trial in trials if trial["rounds_to_target"] is not None]
    tried = [trial for run in sweep for trial in run["trials"]]
    first = {key: sum(trial[key] for trial in tried) for key in MEASURES} if tried else {}
    return Cell(
        rounds=[trial["rounds_to_target"] for trial in hits],
        gradients=[trial["gradients_to_target"] for trial in hits],
        trials=len(trials),
        spent=sum(trial["gradients"] for trial in trials + tried),
        seconds=sum(run["seconds"] for run in runs + sweep),
        finished=all(run["finished"] for run in runs),
        first=first,
        runs=runs,
    )


def _summaries(folders: Iterable[Path]) -> list[dict[str, Any]]:
    found = []
    for folder in sorted(folders):
        if not (folder / "summary.json").is_file():
            continue
        try:
            found.append(json.loads((folder / "summary.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise RunError(f"{folder / 'summary.json'} cannot be read: {error}.") from error
    return found


def best(cells: dict[str, Cell], measure: str) -> str | None:
    """The method that is better than every other one, and by more than noise; None where that cannot be said.

    Only a method that reached the target in all trials can be; one that reached it in none is worse than those.
    """
    if len(cells) < 2 or any(not cell.finished or 0 < len(cell.rounds) < cell.trials for cell in cells.values()):
        return None
    whole = {name: cell for name, cell in cells.items() if cell.rounds}
    if not whole:
        return None
    first = min(whole, key=lambda name: whole[name].mean(measure))
    values = getattr(whole[first], measure)
    for name, cell in whole.items():
        if name == first or cell.first:  # a sweep's cost is no noise
            continue
        others = getattr(cell, measure)
        if min(len(values), len(others)) < 2 or compare.chance(values, others) >= compare.LEVEL:
            return None
    return first


def spread(cell: Cell | None, measure: str) -> str:
    """Mean ± sd, NA where no trial reached the target, and how many did where not all did."""
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
    return told if len(values) == cell.trials else f"{told} ({len(values)} of {cell.trials})"


def short(value: float, digits: int = 3) -> str:
    """A number as the paper writes it: 739, 64K, 2.2M."""
    for size, letter in ((1e6, "M"), (1e3, "K")):
        if value >= size and value >= 1e4:
            scaled = float(f"{value / size:.{digits}g}")
            return f"{scaled:g}{letter}"
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
        line = [row.title, *(spread(cells.get(method), measure) for method in methods)]
        if beside:
            pair = [cells.get(m) for m in ("fathom", "fedavg")]
            ours = [cell.mean(measure) if cell and cell.finished and cell.rounds else None for cell in pair]
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
    subset = f"a subset: {table.clients:,} of the paper's {paper.clients:,} clients"
    data = f"all {paper.clients:,} clients" if table.clients == paper.clients else subset
    target = f"target {table.target:.4g} test accuracy"
    if table.target != paper.target:
        target += f" (the paper's is {paper.target:.4g})"
    counts = sorted({cell.trials for cells in table.rows.values() for cell in cells.values()})
    trials = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    start = paper.rows["baseline"].spec
    hparams = start["hparams"]
    base = f"LR_0 = {hparams['lr']:g}, BS_0 = {hparams['batch']:g}, NCPR = {start['cohort']}"
    return f"{table.task}, {data}; {target}; {trials} trials. The baseline starts from {base}."


NOTE = (
    "Mean ± sd over the trials that reached the target; NA where none did. In bold what is better than every other "
    "column by more than noise (Welch's t-test, p < .05). The paper's own figures are of its own data and target."
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
    runs = [run for cells in table.rows.values() for cell in cells.values() for run in cell.runs]
    made = {
        f"fathom {e['fathom']}, jax {e['jax']}, Python {e['python']}, {', '.join(sorted(set(e['devices'])))}"
        for e in (run["environment"] for run in runs)
    }
    return (
        "Seconds are of all trials together, compiling too, on the clock: runs that shared a machine slowed each other "
        f"down. Made with {'; '.join(sorted(made))}."
    )


def _grid(rows: Sequence[Sequence[str]]) -> str:
    marks = ["---"] * len(rows[0])
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], marks, *rows[1:]))


def latex(table: Table1) -> str:
    """The table as LaTeX; needs no package."""

    def plain(text: str) -> str:
        for sign, written in {"_": r"\_", "±": r"$\pm$", "%": r"\%"}.items():
            text = text.replace(sign, written)
        return text

    made = [f"% {caption(table)}", f"% {NOTE}", f"% {_machine(table)}"]
    for block in blocks(table):
        header, *body = block.rows
        made += [f"\\begin{{tabular}}{{l{'c' * (len(header) - 1)}}}", "\\hline"]
        made += [f"\\multicolumn{{{len(header)}}}{{l}}{{{block.title}}} \\\\"]
        made += [" & ".join(plain(cell) for cell in header) + r" \\ \hline"]
        for row, place in zip(body, block.bold, strict=True):
            told = [rf"\textbf{{{plain(c)}}}" if place and i == place else plain(c) for i, c in enumerate(row)]
            made.append(" & ".join(told) + r" \\")
        made += ["\\hline", "\\end{tabular}", ""]
    return "\n".join(made)


def document(table: Table1) -> str:
    """The table as JSON: every trial's numbers, and the paper's."""
    rows = {}
    for name, cells in table.rows.items():
        rows[name] = {
            "published": table.experiment.rows[name].published,
            "better": {measure: best(cells, measure) for measure in MEASURES},
            **{
                method: {
                    "rounds_to_target": cell.rounds,
                    "gradients_to_target": cell.gradients,
                    "trials": cell.trials,
                    "spent_before": cell.first,
                    "gradients": cell.spent,
                    "seconds": round(cell.seconds, 1),
                    "finished": cell.finished,
                }
                for method, cell in cells.items()
            },
        }
    head = {"task": table.task, "target": table.target, "clients": table.clients, "caption": caption(table)}
    return json.dumps({**head, "rows": rows}, indent=1) + "\n"


def save_curves(out: Path) -> None:
    """Leave the curves of finished runs beside their summaries: what figures need of their records."""
    for path in sorted(out.glob("*/*/*/seeds-*")):
        if (path / "curves.json").exists() or not (path / "records.jsonl").exists():
            continue
        run = read(path)
        if run.state != "finished":
            continue
        trials: dict[int, dict[str, list[float | None]]] = {}
        for row in run.measured:
            own = trials.setdefault(row["trial"], {key: [] for key in ("round", *CURVES)})
            own["round"].append(row["round"])
            for key in CURVES:
                number = value(row, key)
                own[key].append(None if number is None else float(f"{number:.4g}"))
        (path / "curves.json").write_text(json.dumps(list(trials.values())) + "\n", encoding="utf-8")


def load_curves(folder: Path) -> list[dict[str, list[float]]]:
    """The curves of all trials of a row and method."""
    found = []
    for path in sorted(folder.glob("seeds-*/curves.json")):
        found += json.loads(path.read_text(encoding="utf-8"))
    return found


def band(trials: Sequence[dict[str, list[float]]], key: str) -> tuple[list[float], list[list[float]]]:
    """Rounds, and (lowest, mean, highest) of the trials; one that has stopped counts on with its last value."""
    rounds = sorted({number for trial in trials for number in trial["round"]})
    by_trial = [dict(zip(trial["round"], trial[key], strict=True)) for trial in trials]
    latest: list[float | None] = [None] * len(trials)
    rows = []
    for number in rounds:
        latest = [
            own.get(number) if own.get(number) is not None else last for own, last in zip(by_trial, latest, strict=True)
        ]
        known = [value for value in latest if value is not None]
        rows.append([min(known), fmean(known), max(known)] if known else [float("nan")] * 3)
    return rounds, [list(column) for column in zip(*rows, strict=True)]
