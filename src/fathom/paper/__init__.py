"""The paper's experiments, a TOML file each: the starts of its Table 1, what it reported of them, and its figures."""

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent


class Row(NamedTuple):
    """A row of Table 1."""

    name: str
    title: str
    spec: dict[str, Any]  # what `fathom run` would be given
    published: dict[str, dict[str, tuple[float, float]]]  # by method, "rounds" and "gradients": mean and sd


class Experiment(NamedTuple):
    """One task's part of Table 1."""

    clients: int  # that the paper sampled from
    target: float
    rows: dict[str, Row]


def experiments() -> dict[str, Experiment]:
    """Table 1, by task.

    >>> experiments()["femnist"].rows["lr"].published["fathom"]["rounds"]
    (905, 21)
    """
    found = {}
    for task, told in _read("table1").items():
        rows = {}
        for name, facts in told["rows"].items():
            reported = {method: facts[method] for method in ("fathom", "fedavg") if method in facts}
            published = {method: {key: tuple(pair) for key, pair in of.items()} for method, of in reported.items()}
            rows[name] = Row(name, facts["title"], _read(f"{task}-{name}"), published)
        found[task] = Experiment(told["clients"], rows["baseline"].spec["target"], rows)
    return found


def figures() -> dict[str, dict[str, Any]]:
    """The paper's four figures: what is drawn, and which rows stand in which panel."""
    return {path.stem: _read(path.stem) for path in sorted(FOLDER.glob("figure*.toml"))}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
