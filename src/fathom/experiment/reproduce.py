"""The paper's Table 1, run: which runs it takes, and which of them are still to be done.

OUT/TASK/ROW/METHOD/seeds-A-B is the run directory of the trials with these seeds: trials that were asked for later,
or in another call, stand beside those that are there.
"""

import math
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fathom.experiment import spec as specs
from fathom.experiment import store
from fathom.experiment.spec import Spec, SpecError, Table
from fathom.paper import Row

METHODS = (
    "fathom",  # as its authors ran it
    "fedavg",  # from the same start
    "printed",  # FATHOM by the equations as typeset
    "decay",  # FedAvg, the client learning rate times .998 every round
    "fedadam",  # at the rates of Reddi et al. 2020
    "grid",  # FedAvg at the best of up to 12 settings around the start, which are tried first
)
FEDADAM = {  # client rate, server rate and epsilon, as powers of ten (Reddi et al. 2020, their best)
    "femnist": (-1.5, -2.5, -4.0),
    "stackoverflow": (-0.5, -2.0, -5.0),
}
SWEEP_SEED = 1000  # a sweep must not see the trials that are counted


class Job(NamedTuple):
    """A run that is to be done, or gone on with."""

    row: str
    method: str
    spec: Spec
    out: Path
    begun: bool


def jobs(
    rows: Iterable[Row], methods: Iterable[str], trials: int, out: Path, changes: Iterable[str] = ()
) -> Iterator[Job]:
    """The runs that are not finished, one after another; ask for the next when one is.

    changes: settings that are other than the paper's, as key=value.
    """
    for row, method in product(rows, methods):
        raw = deepcopy(row.spec)
        for change in changes:
            specs.set_option(raw, change)
        given, known = (specs.resolve({**one, "tuner": "fixed"}) for one in (raw, row.spec))
        task = known.task["name"]
        if given.task["name"] != task:
            raise SpecError(f"this is about {task}, and task={given.task['name']!r} another one; leave it out.")
        raw["hparams"] = given.hparams
        folder = out / task / row.name / method
        if method != "grid":
            yield from _missing(_method(raw, method, task), trials, folder, row.name, method)
            continue
        tried = []
        for lr, epochs, batch in product((0.5, 1, 2), (1, 2), sorted({4, raw["hparams"]["batch"]})):
            start = {"lr": lr * raw["hparams"]["lr"], "epochs": epochs, "batch": batch}
            point = folder / "sweep" / f"lr{start['lr']:g}-e{epochs}-b{batch:g}"
            one = {**raw, "tuner": "fixed", "hparams": start, "seed": SWEEP_SEED}
            yield from _missing(one, 1, point, row.name, f"{method}, lr {start['lr']:g} E {epochs} B {batch:g}")
            tried.append((_how_good(parts(point)), start))
        best = max(tried, key=lambda pair: pair[0])[1]
        yield from _missing({**raw, "tuner": "fixed", "hparams": best}, trials, folder, row.name, method)


def parts(folder: Path) -> dict[Path, tuple[int, int]]:
    """The run directories of a row and method, and the first and last seed of each."""
    found = {}
    for path in sorted(folder.glob("seeds-*")):
        match = re.fullmatch(r"seeds-(\d{1,9})-(\d{1,9})", path.name)
        if match and (path / "spec.toml").exists():  # or it was killed before it began
            found[path] = (int(match[1]), int(match[2]))
    return found


def _method(raw: Table, method: str, task: str) -> Table:
    lr = raw["hparams"]["lr"]
    if method == "decay":
        falling = {"name": "exponential_decay", "init_value": lr, "transition_steps": 1, "decay_rate": 0.998}
        return {**raw, "tuner": {"name": "schedule", "lr": falling}}
    if method == "fedadam":
        client, server, eps = (10**power for power in FEDADAM[task])
        adam = {"name": "fedadam", "learning_rate": server, "eps": eps}
        return {**raw, "tuner": "fixed", "server_opt": adam, "hparams": {**raw["hparams"], "lr": client}}
    tuner = {"fathom": "fathom", "fedavg": "fixed", "printed": {"name": "fathom", "form": "printed"}}[method]
    return {**raw, "tuner": tuner}


def _missing(raw: Table, trials: int, folder: Path, row: str, method: str) -> Iterator[Job]:
    """The runs that trials are missing from, begun ones first."""
    first = raw.get("seed", 0)
    wanted = specs.resolve({**raw, "seed": first, "trials": trials})
    there: set[int] = set()
    for path, (low, high) in parts(folder).items():
        spec = specs.resolve(specs.read(path / "spec.toml"))
        unlike = [
            f"{key}={before} and not {now}"
            for (key, before), now in zip(asdict(spec).items(), asdict(wanted).values(), strict=True)
            if before != now and key not in ("seed", "trials")
        ]
        if (spec.seed, spec.seed + spec.trials - 1) != (low, high):
            unlike.append(f"seeds {spec.seed} to {spec.seed + spec.trials - 1} and not those of its name")
        if unlike:
            raise SpecError(f"{path} was run with {', '.join(unlike)}; ask for the same, or choose another --out.")
        there |= set(range(low, high + 1))
        if not _finished(path):
            yield Job(row, method, spec, path, begun=True)
    absent = [seed for seed in range(first, first + trials) if seed not in there]
    while absent:
        low = high = absent.pop(0)
        while absent and absent[0] == high + 1:
            high = absent.pop(0)
        part = replace(wanted, seed=low, trials=high - low + 1)
        yield Job(row, method, part, folder / f"seeds-{low}-{high}", begun=False)


def _finished(path: Path) -> bool:
    summary = store.read_summary(path)
    return summary is not None and (summary["finished"] or summary["diverged"])


def _how_good(sweep: Iterable[Path]) -> tuple[float, float]:
    """Fewer rounds to the target are better, and where it was not reached a higher accuracy."""
    trials = [trial for path in sweep for trial in (store.read_summary(path) or {"trials": []})["trials"]]
    rounds = [trial["rounds_to_target"] or math.inf for trial in trials]
    reached = [trial["final"].get("accuracy") or 0.0 for trial in trials]
    return (-fmean(rounds), fmean(reached)) if trials else (-math.inf, 0.0)
