"""What runs came to, and which of them is better: only where that is more than noise."""

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fathom.report.read import Run
from fathom.report.series import value

LEVEL = 0.05
RULE = (
    "A run is called better if Welch's t-test between the trials of both gives p < 0.05, with p multiplied by the "
    "number of pairs of runs. Such a test takes trials as independent and sees little with few of them: a difference "
    "that it does not find may still be there, and one trial says nothing."
)


class Result(NamedTuple):
    """What one run came to by one measure."""

    run: str
    values: list[float]  # of the trials that have one
    trials: int

    @property
    def mean(self) -> float:
        """The mean of the trials that have a value."""
        return fmean(self.values)


class Measure(NamedTuple):
    """Something that runs are compared by."""

    title: str
    form: str  # how a value is written
    least: bool  # whether less is better
    results: list[Result]
    obstacle: str  # why the runs cannot be compared by it; empty where they can


def measures(runs: Sequence[Run]) -> list[Measure]:
    """Rounds, gradients and bytes to the target, and the accuracy at the end."""
    tasks = {str(sorted(run.spec["task"].items())) for run in runs}
    targets = {run.spec["target"] for run in runs}
    unlike = "the tasks differ" if len(tasks) > 1 else ""
    goal = unlike or ("the targets differ" if len(targets) > 1 else "")
    ends = {max((row["round"] for row in run.measured), default=0) for run in runs}
    end = unlike or ("the runs have gone on for different numbers of rounds" if len(ends) > 1 else "")
    if any(run.spec.get("stop_at_target") for run in runs):
        end = unlike or "trials stopped at their target"
        ends = set()
    to = f"{100 * next(iter(targets)):.4g} %" if len(targets) == 1 else "its target"
    titles = {"round": f"rounds to {to}", "gradients": f"local gradients to {to}", "bytes": f"megabytes to {to}"}
    found = []
    for key, title in titles.items():
        results = [_to_target(run, key) for run in runs]
        small = max((v for result in results for v in result.values), default=0) < 10 and key == "bytes"
        found.append(Measure(title, "{:,.2f}" if small else "{:,.0f}", True, results, goal))
    name = f"test accuracy after round {ends.pop()}" if len(ends) == 1 else "test accuracy at the end"
    return [*found, Measure(name, "{:.1%}", False, [_final(run) for run in runs], end)]


def spread(result: Result, form: str) -> str:
    """Mean ± sd, and how many trials had a value where not all did."""
    if not result.trials:
        return "nothing measured yet"
    if not result.values:
        return "not reached"
    told = form.format(result.mean)
    if len(result.values) > 1:
        told += f" ± {form.format(stdev(result.values))}"
    few = len(result.values) < result.trials
    return f"{told} ({len(result.values)} of {result.trials} trials)" if few else told


def verdict(measure: Measure) -> str:
    """Which run is better, or why that cannot be said."""
    if measure.obstacle:
        return f"not compared: {measure.obstacle}"
    obstacles = {result.run: _obstacle(result) for result in measure.results}
    ranked = [result for result in measure.results if not obstacles[result.run]]
    ranked.sort(key=lambda result: result.mean, reverse=not measure.least)
    without = "; ".join(f"{run} {why}" for run, why in obstacles.items() if why)
    if len(ranked) < 2:
        return f"not enough trials to say: {without}"
    left_out = f"; left out: {without}" if without else ""
    if all(stdev(result.values) == 0 for result in ranked):
        return f"not compared: no spread among the trials of any run, so noise cannot be told{left_out}"
    pairs = len(list(combinations(ranked, 2)))
    best, others = ranked[0], ranked[1:]
    chances = [min(1.0, pairs * chance(best.values, other.values)) for other in others]
    beaten = [(other.run, p) for other, p in zip(others, chances, strict=True) if p < LEVEL]
    if not beaten:
        return f"no difference beyond noise (p = {min(chances):.2g}; {_trials(ranked)}){left_out}"
    told = ", ".join(f"{run} (p = {p:.1g})" for run, p in beaten)
    rest = "" if len(beaten) == len(others) else "; of the others it cannot be said"
    return f"{best.run} is better than {told}{rest}; {_trials(ranked)}{left_out}"


def _obstacle(result: Result) -> str:
    """Why a run cannot be compared; empty where it can."""
    if result.trials < 2:
        return f"has {result.trials} {'trial' if result.trials == 1 else 'trials'}"
    missed = len(result.values) < result.trials
    return f"reached it in {len(result.values)} of {result.trials} trials" if missed else ""


def reached(run: Run) -> dict[int, dict[str, Any] | None]:
    """For every trial, the first record at the target, or None."""
    hits: dict[int, dict[str, Any] | None] = {row["trial"]: None for row in run.measured}
    for row in run.measured:
        if hits[row["trial"]] is None and (value(row, "accuracy") or 0) >= run.spec["target"]:
            hits[row["trial"]] = row
    return hits


def _to_target(run: Run, name: str) -> Result:
    hits = reached(run)
    scale = 1e6 if name == "bytes" else 1
    return Result(run.name, [(value(row, name) or 0) / scale for row in hits.values() if row], len(hits))


def _final(run: Run) -> Result:
    last = {row["trial"]: value(row, "accuracy") for row in run.measured}
    return Result(run.name, [v for v in last.values() if v is not None], len(last))


def chance(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of Welch's t-test; 1 where the trials of both have no spread at all."""
    from scipy import stats

    if stdev(first) == stdev(second) == 0:
        return 1.0
    facts = [fact for some in (first, second) for fact in (fmean(some), stdev(some), len(some))]
    test: Any = stats.ttest_ind_from_stats(*facts, equal_var=False)
    return float(test.pvalue)


def _trials(results: list[Result]) -> str:
    counts = sorted({result.trials for result in results})
    return f"{' to '.join(str(c) for c in (counts if len(counts) < 3 else (counts[0], counts[-1])))} trials each"
