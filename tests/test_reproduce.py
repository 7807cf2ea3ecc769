"""The paper's table: which runs it takes, how they go on, and what is told of them."""

import json
import shutil

import numpy as np
import pytest

from fathom import paper
from fathom.data import disk
from fathom.experiment import reproduce, store
from fathom.experiment import run as runs
from fathom.experiment import spec as specs
from fathom.experiment.spec import SpecError
from fathom.paper import Experiment, Row
from fathom.report import figures, reproduced
from fathom.report import paper as tables
from test_cli import ENVIRONMENT
from test_cli import fathom as command

SPEC = {
    "rounds": 8,
    "cohort": 2,
    "every": 2,
    "target": 0.3,
    "stop_at_target": True,
    "guard": False,
    "task": {"name": "synthetic", "clients": 4},
    "hparams": {"lr": 0.05, "epochs": 1, "batch": 20},
}
ROW = Row("baseline", "baseline", SPEC, {"fathom": {"rounds": (739, 24), "gradients": (1.5e6, 36e3)}})


def test_the_specs_are_the_papers_starts():
    for task, base, rounds in (("femnist", (0.1, 20, 10), 2000), ("stackoverflow", (0.32, 16, 50), 1500)):
        rows = paper.experiments()[task].rows
        changes = {"lr": (0.05, None, None), "bs4": (None, 4, None), "bs256": (None, 256, None)}
        changes |= {f"clients{n}": (None, None, n) for n in (25, 100, 200)}
        assert len(rows) == 6
        for name, row in rows.items():
            spec = specs.resolve(row.spec)
            wanted = [new or old for new, old in zip(changes.get(name, (None,) * 3), base, strict=True)]
            assert [spec.hparams["lr"], spec.hparams["batch"], spec.cohort] == wanted
            assert (spec.rounds, spec.trials, spec.every, spec.hparams["epochs"]) == (rounds, 10, 5, 1)
            assert spec.stop_at_target
            assert not spec.guard
            assert spec.task["name"] == task


def test_published_numbers_give_the_published_ratios():
    rows = paper.experiments()["femnist"].rows
    mean = {name: {m: of["rounds"][0] for m, of in row.published.items()} for name, row in rows.items()}
    ratios = {name: round(of["fathom"] / of["fedavg"], 2) for name, of in mean.items() if "fedavg" in of}
    assert ratios == {"baseline": 0.67, "lr": 0.57, "bs4": 0.8, "clients100": 0.54, "clients200": 0.53}
    assert "fedavg" not in mean["bs256"]


def test_figures_name_rows_that_there_are():
    known = paper.experiments()
    assert [f["quantity"] for f in paper.figures().values()] == ["accuracy", "lr", "epochs", "batch"]
    for figure in paper.figures().values():
        drawn = {name for sweep in figure["sweeps"] for name in sweep["rows"]}
        assert drawn == {name for task in figure["tasks"] for name in known[task].rows}


def do(job):
    ready = runs.prepare(job.spec, job.out, resume=runs.Start() if job.begun else None)
    return list(ready.rows)


def test_trials_are_added_to_those_that_are_there_and_what_was_stopped_goes_on(tmp_path):
    def left(trials, **options):
        return reproduce.jobs([ROW], ["fathom"], trials, tmp_path, **options)

    (first,) = left(2)
    assert first.out == tmp_path / "synthetic" / "baseline" / "fathom" / "seeds-0-1"
    ready = runs.prepare(first.spec, first.out, every=0)
    next(ready.rows)
    ready.rows.close()  # stopped in its first round
    assert not store.read_summary(first.out)["finished"]
    (again,) = left(2)
    assert again.begun
    do(again)
    assert not list(left(2))
    (more,) = left(3)
    assert (more.spec.seed, more.spec.trials, more.begun) == (2, 1, False)
    do(more)
    shutil.rmtree(first.out)
    (gap,) = left(3)
    assert (gap.spec.seed, gap.spec.trials) == (0, 2)
    do(gap)
    together = specs.resolve({**SPEC, "tuner": "fathom", "trials": 3})
    rows = list(runs.prepare(together, tmp_path / "together").rows)
    counted = store.read_summary(tmp_path / "together")["trials"]
    apart = [t for part in (gap.out, more.out) for t in store.read_summary(part)["trials"]]
    assert [t["seed"] for t in apart] == [0, 1, 2]
    for key in ("rounds_to_target", "gradients_to_target", "rounds"):
        assert [t[key] for t in apart] == [t[key] for t in counted]
    assert rows[-1]["round"] < SPEC["rounds"]  # a trial stops at its target
    with pytest.raises(SpecError, match=r"was run with target=0\.3 and not 0\.5; ask"):
        list(left(3, changes=["target=0.5"]))


def test_a_grid_is_tried_with_other_seeds_and_the_best_is_run(tmp_path):
    done = []
    small = ROW._replace(spec={**SPEC, "hparams": {"lr": 0.05, "epochs": 1, "batch": 4}})  # 12 settings, were it not 4
    for job in reproduce.jobs([small], ["grid"], 2, tmp_path):
        done.append(job)
        do(job)
    *sweep, last = done
    assert len(sweep) == 6
    assert {job.spec.seed for job in sweep} == {reproduce.SWEEP_SEED}
    assert len({tuple(job.spec.hparams.values()) for job in sweep}) == 6
    needed = {}
    for job in sweep:
        (trial,) = store.read_summary(job.out)["trials"]
        needed[tuple(job.spec.hparams.values())] = trial["rounds_to_target"] or np.inf
    assert needed[tuple(last.spec.hparams.values())] == min(needed.values())
    table = reproduced.collect(tmp_path, "synthetic", Experiment(4, 0.3, {"baseline": ROW}))
    cell = table.rows["baseline"]["grid"]
    spent = sum(store.read_summary(job.out)["trials"][0]["rounds"] for job in sweep)
    assert cell.first["rounds"] == spent
    assert cell.values("rounds") == [spent + rounds for rounds in cell.rounds]
    assert f"after {spent}" in tables.markdown(table)


@pytest.mark.parametrize("method", [m for m in reproduce.METHODS if m != "grid"])
@pytest.mark.parametrize("task", ["femnist", "stackoverflow"])
def test_methods_are_what_they_say(method, task, tmp_path):
    row = paper.experiments()[task].rows["lr"]
    (job,) = reproduce.jobs([row], [method], 10, tmp_path)
    spec = job.spec
    assert spec.hparams["lr"] == pytest.approx(
        {"fedadam": 10**-1.5 if task == "femnist" else 10**-0.5}.get(method, 0.05)
    )
    assert spec.tuner["name"] == {"fathom": "fathom", "printed": "fathom", "decay": "schedule"}.get(method, "fixed")
    assert spec.tuner.get("form", "") == {"fathom": "reference", "printed": "printed"}.get(method, "")
    if method == "decay":
        assert (spec.tuner["lr"]["init_value"], spec.tuner["lr"]["decay_rate"]) == (0.05, 0.998)
    assert spec.server_opt["name"] == ("fedadam" if method == "fedadam" else "fedavg")


def cell(rounds, trials=None, finished=True, first=None):
    count = len(rounds) if trials is None else trials
    return reproduced.Cell(rounds, [100 * r for r in rounds], count, 1000, 2.0, finished, first or {}, [])


@pytest.mark.parametrize(
    ("fathom", "fedavg", "better"),
    [
        (cell([10, 11, 12]), cell([20, 21, 22]), "fathom"),
        (cell([20, 21, 22]), cell([10, 11, 12]), "fedavg"),
        (cell([10, 20, 30]), cell([12, 22, 32]), None),  # within noise
        (cell([10, 11, 12]), cell([], 3), "fathom"),
        (cell([10, 11], 3), cell([], 3), None),
        (cell([10, 11, 12]), cell([20, 21], 3), None),
        (cell([], 3), cell([], 3), None),
        (cell([10]), cell([20]), None),
        (cell([10]), cell([], 1), None),
        (cell([600, 900, 1200]), cell([5, 10, 15], first={"rounds": 900, "gradients": 9}), None),
        (cell([10, 11, 12]), cell([5], 3, finished=False), None),
        (cell([10, 11, 12]), cell([2, 3, 4], first={"rounds": 50, "gradients": 5000}), "fathom"),
    ],
)
def test_better_is_what_is_better_by_more_than_noise(fathom, fedavg, better):
    assert reproduced.best({"fathom": fathom, "fedavg": fedavg}, "rounds") == better


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (None, "not run"),
        (cell([10, 20]), "15 ± 7 (2 trials)"),
        (cell([], 3), "NA"),
        (cell([10], 3), "10 (1 of 3 trials)"),
        (cell([10, 20, 30]), "20 ± 10"),
        (cell([10], 3, finished=False), "unfinished (1 of 3 so far)"),
        (cell([10, 20], first={"rounds": 300}), "15 ± 7 after 300 (2 trials)"),
    ],
)
def test_cells_tell_what_was_reached(made, told):
    assert tables.spread(made, "rounds", trials=3) == told


def test_numbers_are_written_as_the_paper_writes_them():
    assert [tables.short(v) for v in (739, 9582, 64e3, 999600, 1.5e6, 138.4e6)] == [
        "739", "9582", "64K", "1M", "1.5M", "138M"
    ]  # fmt: skip


def test_a_band_holds_the_last_value_of_a_trial_that_stopped():
    trials = [{"round": [5, 10, 15], "lr": [1.0, 2.0, 3.0]}, {"round": [5], "lr": [3.0]}]
    rounds, (low, mean, high) = reproduced.band(trials, "lr")
    assert (rounds, low, mean, high) == ([5, 10, 15], [1.0, 2.0, 3.0], [2.0, 2.5, 3.0], [3.0, 3.0, 3.0])


def test_the_command_makes_tables_and_figures_and_makes_them_again_from_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "FATHOM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)

    def writers(n):
        for i in range(10):
            yield f"w{i}", {"x": rng.integers(0, 256, (n, 28, 28), np.uint8), "y": rng.integers(0, 62, n, np.uint8)}

    disk.write("mine", {"train": writers(4), "test": writers(1)}, {})
    asked = [
        "reproduce",
        "femnist",
        "--rows",
        "baseline",
        "--methods",
        "fathom",
        "--trials",
        "1",
        "--data",
        "mine",
        "--out",
        "paper",
    ]
    asked += ["--target", "0.9", "--set", "rounds=2", "--set", "every=1"]
    done = command(*asked, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "10 clients of the data set mine (the paper has 3,400)" in done.stdout
    assert "target 0.9 test accuracy (the paper's is 0.86)" in done.stdout
    assert "1098 ± 15" in done.stdout
    out = tmp_path / "paper"
    made = [f"figure{n}.{kind}" for n in (1, 2, 3, 4) for kind in ("png", "svg")]
    made += [f"table1-femnist.{kind}" for kind in ("json", "md", "tex")]
    assert sorted(made) == sorted(path.name for path in out.iterdir() if path.is_file())
    assert (out / "figure1.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((out / "table1-femnist.json").read_text())
    assert told["rows"]["baseline"]["fathom"]["trials"] == 1
    assert r"\begin{tabular}" in (out / "table1-femnist.tex").read_text()
    before = (out / "table1-femnist.md").read_text()
    for part in out.rglob("records.jsonl"):
        part.unlink()  # what is kept of results: summaries and curves
    again = command("reproduce", "femnist", "--out", "paper", "--no-run", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (out / "table1-femnist.md").read_text() == before


def test_files_that_are_damaged_or_missing_are_told_of(tmp_path):
    experiment = Experiment(4, 0.3, {"baseline": ROW})
    jobs = list(reproduce.jobs([ROW], ["fathom", "fedavg"], 2, tmp_path))
    for job in jobs:
        do(job)
    first = jobs[0].out

    def collected():
        return reproduced.collect(tmp_path, "synthetic", experiment)

    assert collected().rows["baseline"]["fathom"].finished
    (first.with_name("seeds-7-9")).mkdir()  # killed before it began
    assert not list(reproduce.jobs([ROW], ["fathom"], 2, tmp_path))
    whole = (first / "summary.json").read_text()
    more = first.with_name("seeds-2-3")
    shutil.copytree(first, more)
    with pytest.raises(ValueError, match="has a seed that another run beside it has, too"):
        collected()
    with pytest.raises(SpecError, match="seeds 0 to 1 and not those of its name"):
        list(reproduce.jobs([ROW], ["fathom"], 4, tmp_path))
    (more / "spec.toml").write_text((more / "spec.toml").read_text().replace("seed = 0", "seed = 2", 1))
    assert collected().rows["baseline"]["fathom"].trials == 4
    (more / "summary.json").unlink()  # as while it is resumed
    cut = collected().rows["baseline"]["fathom"]
    assert not cut.finished
    assert tables.spread(cut, "rounds") == "unfinished (2 of 4 so far)"
    shutil.rmtree(more)
    for text in ("[]", "{}", whole.replace('"clients": 4', '"clients": null'), whole.replace("rounds_to", "round_to")):
        (first / "summary.json").write_text(text)
        with pytest.raises(ValueError, match="summary"):
            collected()
    (first / "summary.json").write_text(whole)
    (first / "spec.toml").write_text((first / "spec.toml").read_text().replace("every = 2", "every = 4"))
    with pytest.raises(ValueError, match="its every is not that of other runs"):
        collected()
    (first / "curves.json").write_text("[{}")
    with pytest.raises(ValueError, match=r"curves.json cannot be read"):
        reproduced.load_curves(first.parent)


def test_a_run_that_diverged_is_not_run_again(tmp_path):
    wild = ROW._replace(spec={**SPEC, "hparams": {"lr": 1e30, "epochs": 1, "batch": 20}, "rounds": 40})
    (job,) = reproduce.jobs([wild], ["fedavg"], 2, tmp_path)
    with pytest.raises(FloatingPointError):
        do(job)
    assert not list(reproduce.jobs([wild], ["fedavg"], 2, tmp_path))
    table = reproduced.collect(tmp_path, "synthetic", Experiment(4, 0.3, {"baseline": wild}))
    assert tables.spread(table.rows["baseline"]["fedavg"], "rounds") == "NA"


def test_two_processes_cannot_run_into_one_directory(tmp_path):
    spec = specs.resolve({**SPEC, "tuner": "fixed"})
    held = runs.prepare(spec, tmp_path / "out")
    with pytest.raises(SpecError, match="is being run by another process"):
        runs.prepare(spec, tmp_path / "out", resume=runs.Start())
    del held
    list(runs.prepare(spec, tmp_path / "out", resume=runs.Start()).rows)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["glyphs"], "task: there is no 'glyphs'; choose from femnist, stackoverflow."),
        (["femnist", "--rows", "lr,clients25"], "rows: there is no 'clients25'"),
        (["femnist", "--methods", "best"], "methods: there is no 'best'; choose from fathom"),
        (["femnist", "--trials", "0"], "--trials 0 must be at least 1."),
        (["femnist", "--no-run"], "has no finished run of femnist"),
        (["femnist", "--target", "2"], "target=2"),
        (
            ["femnist", "--set", "task=glyphs", "--methods", "fedadam"],
            "this is about femnist, and task='glyphs' another",
        ),
    ],
)
def test_bad_input_is_one_clear_line(asked, told, tmp_path):
    done = command("reproduce", *asked, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_figures_leave_out_tasks_and_rows_that_were_not_run(tmp_path):
    (job,) = reproduce.jobs([ROW], ["fathom"], 1, tmp_path)
    do(job)
    reproduced.save_curves(tmp_path)
    table = reproduced.collect(tmp_path, "synthetic", Experiment(4, 0.3, {"baseline": ROW}))
    figure = {**paper.figures()["figure2"], "tasks": ["stackoverflow", "synthetic"]}
    made = figures.draw(figure, {"synthetic": table}, tmp_path, "figure2")
    assert [path.suffix for path in made] == [".svg", ".png"]
    assert all(path.stat().st_size > 5000 for path in made)
