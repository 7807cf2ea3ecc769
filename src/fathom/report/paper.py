"""The paper's Table 1 and its figures, from the runs that `fathom reproduce` made."""

import json
import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fathom.paper import Experiment, Row
from fathom.report import compare
from fathom.report.read import RunError, read, settled
from fathom.report.series import value
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
VARIED = ("seed", "trials", "cohort", "hparams", "tuner", "clamp", "server_opt")  # from row to row, method to method
CURVES = ("accuracy", "lr", "epochs", "batch")


class Cell(NamedTuple):
    """What a method came to in a row."""

    rounds: list[int]  # to the target, of the trials that reached it
    gradients: list[int]
    trials: int
    spent: int  # gradients that all trials computed, and
    seconds: float  # how long that took, compiling too, one run after another
    finished: bool
    first: dict[str, int]  # rounds and gradients of a sweep that was needed before; empty where none was
    made: list[dict[str, Any]]  # environments

    def values(self, measure: str) -> list[int]:
        """Of the trials that reached the target, with what had to be spent before."""
        return [value + self.first.get(measure, 0) for value in getattr(self, measure)]

    @property
    def whole(self) -> bool:
        """Whether all trials are done, and reached the target."""
        return self.finished and bool(self.rounds) and len(self.rounds) == self.trials


class Table1(NamedTuple):
    """One task's part of the table, as it was run here."""

    task: str
    target: float
    clients: int
    limits: str  # rounds and evaluations
    experiment: Experiment
    methods: list[str]
    rows: dict[str, dict[str, Cell]]

    @property
    def trials(self) -> int:
        """The most trials that a cell has."""
        return max(cell.trials for cells in self.rows.values() for cell in cells.values())


def collect(out: Path, task: str, experiment: Experiment) -> Table1 | None:
    """What is there of a task's runs under `out`; None where there is nothing."""
    rows: dict[str, dict[str, Cell]] = {}
    specs: dict[Path, dict[str, Any]] = {}
    clients: set[int] = set()
    for name, method in product(experiment.rows, COLUMNS):
        runs, sweep = (_read(out / task / name / method, pattern) for pattern in ("seeds-*", "sweep/*/seeds-*"))
        done = [summary for _, _, summary in runs + sweep if summary]
        specs |= {path: spec for path, spec, _ in runs + sweep}
        clients |= {summary["clients"] for summary in done}
        if any(summary for _, _, summary in runs):
            rows.setdefault(name, {})[method] = _cell(runs, sweep)
    if not rows:
        return None
    first = next(iter(specs.values()))
    for path, spec in specs.items():
        unlike = [key for key in first.keys() | spec.keys() if key not in VARIED and first.get(key) != spec.get(key)]
        if unlike or len(clients) > 1:
            what = ", ".join(sorted(unlike)) or "number of clients"
            raise RunError(f"{path}: its {what} is not that of other runs in {out}; keep such runs in another folder.")
    limits = f"at most {first['rounds']:,} rounds, evaluated every {first['every']}"
    methods = [method for method in COLUMNS if any(method in cells for cells in rows.values())]
    return Table1(task, first["target"], clients.pop(), limits, experiment, methods, rows)


Found = tuple[Path, dict[str, Any], dict[str, Any] | None]  # a run directory, its spec and its summary


def _read(folder: Path, pattern: str) -> list[Found]:
    """The runs there; each seed once."""
    found: list[Found] = []
    seeds: set[tuple[Path, int]] = set()
    for path in sorted(folder.glob(pattern)):
        if not (path / "spec.toml").exists():  # killed before it began
            continue
        spec, summary = settled(path)
        own = {(path.parent, spec["seed"] + place) for place in range(min(spec["trials"], 10**6))}
        if own & seeds:
            raise RunError(f"{path} has a seed that another run beside it has, too; move one of them away.")
        seeds |= own
        if summary is not None:
            _check(path / "summary.json", summary)
        found.append((path, spec, summary))
    return found


def _check(path: Path, summary: dict[str, Any]) -> None:
    """See that a summary has what the table needs."""

    def counted(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    trials = summary.get("trials")
    trials = trials if isinstance(trials, list) and all(isinstance(trial, dict) for trial in trials) else None
    well = trials is not None and counted(summary.get("clients")) and isinstance(summary.get("seconds"), int | float)
    for trial in trials or ():
        reached = [trial.get(f"{key}_to_target") for key in MEASURES]
        well = well and all(counted(trial.get(key)) for key in MEASURES)
        well = well and (reached == [None, None] or all(map(counted, reached)))
    if not well:
        raise RunError(f"{path} is not the summary of a run for this table; move its folder away.")


def _cell(runs: list[Found], sweep: list[Found]) -> Cell:
    done, tried = ([summary for _, _, summary in some if summary] for some in (runs, sweep))
    trials, before = ([trial for summary in some for trial in summary["trials"]] for some in (done, tried))
    hits = [trial for trial in trials if trial["rounds_to_target"] is not None]
    return Cell(
        rounds=[trial["rounds_to_target"] for trial in hits],
        gradients=[trial["gradients_to_target"] for trial in hits],
        trials=sum(spec["trials"] for _, spec, _ in runs),
        spent=sum(trial["gradients"] for trial in trials + before),
        seconds=sum(summary["seconds"] for summary in done + tried),
        finished=all(summary and (summary["finished"] or summary.get("diverged")) for _, _, summary in runs + sweep),
        first={key: sum(trial[key] for trial in before) for key in MEASURES} if before else {},
        made=[summary["environment"] for summary in done],
    )


def best(cells: dict[str, Cell], measure: str) -> str | None:
    """The method that is better than every other one, and by more than noise; None where that cannot be said.

    Only a method that reached the target in all of at least two trials can be; one that reached it in none is worse.
    p of Welch's t-test is multiplied by the number of pairs of methods.
    """
    if len(cells) < 2 or any(not cell.finished or cell.trials < 2 for cell in cells.values()):
        return None
    if any(0 < len(cell.rounds) < cell.trials for cell in cells.values()):
        return None
    whole = {name: cell.values(measure) for name, cell in cells.items() if cell.whole}
    if not whole:
        return None
    first = min(whole, key=lambda name: fmean(whole[name]))
    pairs = len(whole) * (len(whole) - 1) // 2
    others = [values for name, values in whole.items() if name != first]
    sure = all(pairs * compare.chance(whole[first], values) < compare.LEVEL for values in others)
    return first if sure else None


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
    subset = f"a subset: {table.clients:,} of the paper's {paper.clients:,} clients"
    data = f"all {paper.clients:,} clients" if table.clients == paper.clients else subset
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
        ", ".join(str(value) for value in flat(made).values() if value)
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
    head = {"task": table.task, "target": table.target, "clients": table.clients, "caption": caption(table)}
    printed = [{"title": block.title, "rows": block.rows, "best": block.bold} for block in blocks(table)]
    return json.dumps({**head, "machine": _machine(table), "rows": rows, "tables": printed}, indent=1) + "\n"


def _numbers(values: list[int]) -> dict[str, Any]:
    sd = stdev(values) if len(values) > 1 else None
    return {"mean": fmean(values) if values else None, "sd": sd, "values": values}


def save_curves(out: Path) -> None:
    """Leave the curves of finished runs beside their summaries: what figures need of their records."""
    for path in sorted(out.glob("*/*/*/seeds-*")):
        records, curves = path / "records.jsonl", path / "curves.json"
        if not records.exists() or (curves.exists() and curves.stat().st_mtime_ns >= records.stat().st_mtime_ns):
            continue
        run = read(path)
        if not run.summary or not (run.summary["finished"] or run.summary.get("diverged")):
            continue
        trials: dict[int, dict[str, list[float | None]]] = {}
        for row in run.measured:
            own = trials.setdefault(row["trial"], {key: [] for key in ("round", *CURVES)})
            own["round"].append(row["round"])
            for key in CURVES:
                number = value(row, key)
                own[key].append(None if number is None else float(f"{number:.4g}"))
        part = path / "curves.json.part"
        part.write_text(json.dumps(list(trials.values())) + "\n", encoding="utf-8")
        os.replace(part, curves)


def load_curves(folder: Path) -> list[dict[str, list[float]]]:
    """The curves of all trials of a row and method."""
    found = []
    for path in sorted(folder.glob("seeds-*/curves.json")):
        try:
            trials = json.loads(path.read_text(encoding="utf-8"))
            for trial in trials:
                if len({len(trial[key]) for key in ("round", *CURVES)}) != 1:
                    raise ValueError("its curves are not of one length")
            found += trials
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} cannot be read: {error}; remove it, it is made again from the records.") from error
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
