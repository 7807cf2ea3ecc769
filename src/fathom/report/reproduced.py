"""What the runs of `fathom reproduce` came to: read from their directories, checked, and compared."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fathom.paper import Experiment
from fathom.report import compare
from fathom.report.export import write
from fathom.report.read import RunError, read, settled
from fathom.report.series import value

METHODS = ("fathom", "fedavg", "printed", "decay", "fedadam", "grid")
MEASURES = ("rounds", "gradients")
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
    data: str  # its data set; the paper's has the task's name
    target: float
    clients: int
    limits: str  # rounds and evaluations; and the guard, which the paper's runs had not
    experiment: Experiment
    methods: list[str]
    rows: dict[str, dict[str, Cell]]

    @property
    def trials(self) -> int:
        """The most trials that a cell has."""
        return max(cell.trials for cells in self.rows.values() for cell in cells.values())

    @property
    def part(self) -> str:
        """How much of the paper's data this is of."""
        whole = self.experiment.clients
        if self.data != self.task:
            return f"{self.clients:,} clients of the data set {self.data} (the paper has {whole:,})"
        return (
            f"all {whole:,} clients" if self.clients == whole else f"{self.clients:,} of the paper's {whole:,} clients"
        )


def collect(out: Path, task: str, experiment: Experiment) -> Table1 | None:
    """What is there of a task's runs under `out`; None where there is nothing."""
    rows: dict[str, dict[str, Cell]] = {}
    specs: dict[Path, dict[str, Any]] = {}
    clients: set[int] = set()
    for name, method in product(experiment.rows, METHODS):
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
    limits += ", with the guard" if first.get("guard") else ""
    methods = [method for method in METHODS if any(method in cells for cells in rows.values())]
    data = first["task"].get("data", task) if isinstance(first.get("task"), dict) else task
    return Table1(task, data, first["target"], clients.pop(), limits, experiment, methods, rows)


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
        write(curves, json.dumps(list(trials.values())) + "\n")


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
