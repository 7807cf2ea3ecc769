"""Run directories as reports see them: whole, still running, or in part; nothing but files is needed.

The files may come from strangers, so everything in them is checked, and the lists with a number per client are
kept for the last rounds only.
"""

import json
import math
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
LAST = 5  # recorded rounds whose clients are kept
WHOLE = ("round", "trial", "gradients", "bytes_up", "bytes_down", "rejected")
NUMBERS = ("lr", "epochs", "batch", "agreement", "alignment", "gain", "loss", "seconds")
SPEC = {"rounds": int, "cohort": int, "trials": int, "seed": int, "every": int, "target": float}
FILES = ("spec.toml", "records.jsonl", "summary.json")
LARGEST = 2**24  # bytes of a spec, of a summary and of one line of the records


def printable(text: str) -> str:
    """A text without what could steer a terminal, or could not be written."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


class RunError(ValueError):
    """A run directory that cannot be read: what was wrong, the value, and the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


class Records(NamedTuple):
    """The records of a run, as far as they have been read."""

    rows: list[Row]  # with `steps`, `answered` and `sampled` in place of `clients`, but in the last rounds
    inode: int  # of the file
    offset: int  # where the next line begins
    lines: int  # that were read
    damaged: int  # the first line that is not a record; 0 where all are well


class Run(NamedTuple):
    """A run directory."""

    name: str
    path: Path
    spec: dict[str, Any]
    records: Records
    summary: dict[str, Any] | None  # None before the run has ended
    state: str  # finished, stopped or running

    @property
    def rows(self) -> list[Row]:
        """The records, by round and trial."""
        return self.records.rows

    @property
    def measured(self) -> list[Row]:
        """The records of rounds that were evaluated."""
        return [row for row in self.rows if row["metrics"] is not None]

    @property
    def done(self) -> int:
        """The last round that was recorded."""
        return max((row["round"] for row in self.rows), default=0)


def read(path: Path, past: Run | None = None) -> Run:
    """Read a run directory; go on from `past`, read before, where its records have only grown."""
    try:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise RunError(f"{path} {what}; name a run directory, such as one under runs/.")
        spec = _spec(path / "spec.toml")
        summary = _summary(path / "summary.json")
        records = _records(path / "records.jsonl", past.records if past else None, spec)
        return Run(path.resolve().name, path, spec, records, summary, _state(path, summary))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error


def settled(path: Path) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The spec of a run directory and its summary, None before there is one; without its records."""
    try:
        return _spec(path / "spec.toml"), _summary(path / "summary.json")
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error


def read_all(paths: Sequence[Path]) -> list[Run]:
    """Read several, and see that their names tell them apart."""
    runs = [read(path) for path in paths]
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RunError(f"{twice} was given twice; name each run once.")
    return [run._replace(name=name) for run, name in zip(runs, names, strict=True)]


def found(folder: Path) -> dict[str, Path]:
    """The run directories in a folder by name, or the folder itself where it is one."""
    if _is_run(folder):
        return {folder.resolve().name: folder}
    try:
        inside = sorted(folder.iterdir())
    except OSError:
        return {}
    return {path.name: path for path in inside if path.name[0] != "." and _is_run(path)}


def _is_run(path: Path) -> bool:
    try:
        return (path / "spec.toml").is_file()
    except OSError:  # somebody else's
        return False


def _state(path: Path, summary: dict[str, Any] | None) -> str:
    if summary is None:
        return "running"
    if summary["finished"]:
        return "finished"
    records = path / "records.jsonl"
    resumed = records.exists() and records.stat().st_mtime_ns > (path / "summary.json").stat().st_mtime_ns
    return "running" if resumed else "stopped"


def _load(path: Path, parse: Callable[[str], Any], kind: str) -> Any:
    try:
        if path.stat().st_size > LARGEST:
            raise RunError(f"{path} has {path.stat().st_size:,} bytes, more than a run's own; is it fathom's?")
        parsed = parse(path.read_text(encoding="utf-8"))
        if not _shallow(parsed, 20):
            raise RunError(f"{path} has tables in tables, too deep for a run's own; is it fathom's?")
        return parsed
    except RunError:
        raise
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged, it is not {kind}: {str(error)[:200]}.") from error


def _shallow(value: Any, depth: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth > 0 and all(_shallow(one, depth - 1) for one in inside)


def _spec(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise RunError(f"{path.parent} is not a run directory, it has no spec.toml; name one that `fathom run` made.")
    spec = _load(path, tomllib.loads, "TOML")
    for key, kind in SPEC.items():
        value = spec.get(key)
        if not _number(value) or value < 0 or (kind is int and not isinstance(value, int)):
            raise RunError(f"{path}: {key} = {str(value)[:80]} is not a number that fits; is it a run's own spec?")
    for table, keys in {"task": ("name",), "tuner": ("name",), "hparams": ("lr", "epochs", "batch")}.items():
        inside = spec.get(table)
        for key in keys:
            value = inside.get(key) if isinstance(inside, dict) else None
            if not (isinstance(value, str) if key == "name" else _number(value)):
                raise RunError(f"{path}: {table}.{key} is {str(value)[:80]}; is it a run's own spec?")
    return spec


def _summary(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    summary = _load(path, json.loads, "JSON")
    parts = [("finished", bool), ("environment", dict)]
    if not isinstance(summary, dict) or not all(isinstance(summary.get(key), kind) for key, kind in parts):
        raise RunError(f"{path} is damaged, it is not a run's summary; move it away to see the records.")
    return summary


def _records(path: Path, past: Records | None, spec: dict[str, Any]) -> Records:
    """Read the lines that are there; a part of a line at the end is one that is being written."""
    if not path.is_file():
        return Records([], 0, 0, 0, 0)
    try:
        with path.open("rb") as file:
            inode = path.stat().st_ino
            if past is None or past.inode != inode or path.stat().st_size < past.offset:
                past = Records([], inode, 0, 0, 0)
            rows, offset, lines, damaged = list(past.rows), past.offset, past.lines, past.damaged
            seen = {(row["round"], row["trial"]) for row in rows}
            file.seek(offset)
            while not damaged and (line := file.readline(LARGEST)).endswith(b"\n"):
                row = _row(line)
                lines += 1
                beyond = row is not None and (row["round"] > spec["rounds"] or row["trial"] >= spec["trials"])
                if row is None or beyond or (row["round"], row["trial"]) in seen:
                    damaged = lines
                    break
                offset += len(line)
                seen.add((row["round"], row["trial"]))
                rows.append(row)
                _forget(rows)
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from error
    return Records(rows, inode, offset, lines, damaged)


def _row(line: bytes) -> Row | None:
    """A line of the records; None if it is not one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("rolled_back"), bool) or not row.get("round"):
        return None
    if not all(isinstance(row.get(name), int) and _number(row[name]) and row[name] >= 0 for name in WHOLE):
        return None
    if not all(row.get(name) is None or _number(row[name]) for name in NUMBERS):
        return None
    metrics, clients = row.get("metrics"), row.get("clients")
    if metrics is not None and not (
        isinstance(metrics, dict) and all(v is None or _number(v) for v in metrics.values())
    ):
        return None
    if not isinstance(clients, dict) or not all(isinstance(values, list) for values in clients.values()):
        return None
    kept = {name: row[name] for name in (*WHOLE, "rolled_back")} | {name: _drawn(row.get(name)) for name in NUMBERS}
    kept["metrics"] = metrics and {name: _drawn(v) for name, v in metrics.items()}
    clients = {name: [_drawn(v) for v in clients.get(name, [])] for name in ("loss", "steps", "examples")}
    steps = [value for value in clients["steps"] if value]
    kept["steps"] = sum(steps) / len(steps) if steps else None
    return kept | {"answered": len(steps), "sampled": len(clients["steps"]), "clients": clients}


def _forget(rows: list[Row]) -> None:
    """Drop what the clients of earlier rounds sent, of the trial of the last row."""
    same = (row for row in reversed(rows) if row["trial"] == rows[-1]["trial"])
    for place, row in enumerate(same):
        if place >= LAST:
            if row["clients"] is None:
                return
            row["clients"] = None


def _number(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 2**63
    return isinstance(value, float) and math.isfinite(value)


def _drawn(value: Any) -> float | None:
    """A number that can be averaged and drawn; what has exploded is as good as missing."""
    return value if _number(value) and abs(value) < 1e30 else None
