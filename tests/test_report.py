"""Reports of run directories: whole, running, damaged, and from strangers."""

import csv
import io
import json
import sys
import time

import pytest
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

import rundirs
from fathom import cli_report
from fathom.report import compare, curves, export, page, read, series, tables

EVIL = '</script><script>window.evil = 1</script><img src=x onerror="window.evil = 2">'
app = typer.Typer()
app.command()(cli_report.report)


def report(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def pair(tmp_path):
    """Two runs of three trials, of which the first is better."""
    first = rundirs.write(tmp_path / "ours", [(0.1, 0.61, 0.8), (0.2, 0.62, 0.81), (0.1, 0.63, 0.82)])
    second = rundirs.write(tmp_path / "theirs", [(0.1, 0.3, 0.62), (0.1, 0.2, 0.63), (0.1, 0.3, 0.61)], tuner="fixed")
    return [first, second]


def test_the_fixture_is_what_runs_write():
    store = pytest.importorskip("fathom.experiment.store")
    assert set(rundirs.row(5, 0, 0.5)) == store.FIELDS
    assert store._parse(json.dumps(rundirs.row(5, 0, 0.5)).encode())


def test_curves_are_mean_and_range_over_trials(pair):
    found = series.curves(read.read(pair[0]))
    assert found["round"] == [5, 10, 15]
    assert found["gradients"] == [501, 1001, 1501]  # the mean of what three trials cost
    assert found["bytes"] == [25000, 50000, 75000]
    assert found["accuracy"] == {"mean": [0.13333, 0.62, 0.81], "low": [0.1, 0.61, 0.8], "high": [0.2, 0.63, 0.82]}
    assert found["steps"]["mean"] == [6.0, 6.0, 6.0]  # of the two clients that answered


def test_the_gain_is_a_curve_where_a_tuner_asks_for_it(tmp_path):
    rows = [rundirs.row(number, trial, 0.5, gain=0.25 * (1 + trial)) for number in (5, 10) for trial in (0, 1)]
    found = series.curves(read.read(rundirs.write(tmp_path / "run", rows=rows)))["gain"]
    assert found == {"mean": [0.375, 0.375], "low": [0.25, 0.25], "high": [0.5, 0.5]}
    assert series.curves(read.read(rundirs.write(tmp_path / "other")))["gain"]["mean"] == [None, None, None]


def test_a_page_is_whole_and_small(pair, tmp_path):
    done = report(*pair, "-o", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "page.html").read_text()
    assert len(text.encode()) < 6e6
    body, data = text.split('<script type="application/json" id="data">')
    for told in ("What came of it", "ours is better than theirs", "Settings that differ", "tuner.name", "Made with"):
        assert told in body
    assert "Rounds undone" not in body
    assert all(f'data-charts="{group}"' in body for group in ("accuracy", "hparams", "signals", "clients"))
    own = body.replace('src="data:', "")
    assert not [word for word in ("src=", "href=", "@import", "url(") if word in own]  # nothing from elsewhere
    assert [run["name"] for run in json.loads(data.split("</script>")[0])["runs"]] == ["ours", "theirs"]


def test_a_page_of_many_long_runs_stays_small(tmp_path):
    rows = [rundirs.row(number, 0, number / 2000, lr=0.123456 / number) for number in range(1, 1501)]
    long = read.read(rundirs.write(tmp_path / "long", rows=rows))
    text = page.page([long._replace(name=f"run {i}") for i in range(20)])
    assert len(text.encode()) < 6e6
    assert series.described([long] * 20)[0]["curves"]["round"][-1] == 1500


def test_text_of_strangers_is_escaped(tmp_path):
    out = rundirs.write(tmp_path / "<b onclick=evil()>run<!--", task=EVIL, tuner=EVIL, server_opt={"name": EVIL})
    runs = [read.read(out), read.read(rundirs.write(tmp_path / "other"))._replace(name=EVIL)]
    text = page.page(runs)
    for part in ("<img src=x", "<b onclick", "<script>window"):
        assert part not in text
    assert text.count("<script") - page.plotly().count("<script") == 3
    assert "<" not in page.as_json({"name": EVIL})
    told = export.markdown(runs)
    assert "<img" not in told
    assert "<script" not in told
    cells = next(csv.reader(io.StringIO(export.table([runs[0]._replace(name="=1+1")]).splitlines()[1])))
    assert cells[0] == "'=1+1"


def test_better_is_said_only_beyond_noise(pair, tmp_path):
    found = {m.title: compare.verdict(m) for m in compare.measures(read.read_all(pair))}
    assert found["test accuracy after round 15"].startswith("ours is better than theirs (p = ")
    assert "3 trials each" in found["test accuracy after round 15"]
    assert "no spread" in found["rounds to 60 %"]  # 10 in all trials against 15 in all: Welch's test says nothing

    noisy = rundirs.write(tmp_path / "noisy", [(0.1, 0.5, 0.95), (0.1, 0.7, 0.7), (0.1, 0.7, 0.8)])
    final = compare.measures(read.read_all([pair[0], noisy]))[-1]
    assert compare.verdict(final).startswith("no difference beyond noise (p = ")
    missed = compare.measures(read.read_all([pair[0], rundirs.write(tmp_path / "missed", [(0.1, 0.2, 0.3)] * 2)]))
    assert compare.verdict(missed[0]) == "not enough trials to say: missed reached it in 0 of 2 trials"
    single = compare.measures(read.read_all([pair[0], rundirs.write(tmp_path / "single")]))
    assert compare.verdict(single[-1]) == "not enough trials to say: single has 1 trial"
    three = compare.measures(read.read_all([*pair, tmp_path / "single"]))
    assert compare.verdict(three[-1]).endswith("3 trials each; left out: single has 1 trial")
    other = compare.measures(read.read_all([pair[0], rundirs.write(tmp_path / "other", [(0.1,)] * 3, task="glyphs")]))
    assert {compare.verdict(m) for m in other} == {"not compared: the tasks differ"}


def test_p_is_multiplied_by_the_number_of_pairs():
    def measure(*results):
        return compare.Measure("m", "{:.1f}", True, [compare.Result(n, v, len(v)) for n, v in results], "")

    first, second = ("a", [1.0, 2.0, 3.0]), ("b", [4.0, 5.0, 6.0])  # t = 3.674, 4 degrees of freedom: p = 0.0213
    assert compare.verdict(measure(first, second)) == "a is better than b (p = 0.02); 3 trials each"
    told = compare.verdict(measure(first, second, ("c", [4.0, 5.0, 6.0])))
    assert told.startswith("no difference beyond noise (p = 0.064;")


def test_trouble_and_privacy_are_told(tmp_path):
    rows = [rundirs.row(5, 0, 0.1, rejected=2), rundirs.row(7, 0, None, rolled_back=True, rejected=4)]
    out = rundirs.write(tmp_path / "run", rows=rows, aggregate={"name": "private"})
    summary = json.loads((out / "summary.json").read_text())
    (out / "summary.json").write_text(json.dumps(summary | {"privacy": {"epsilon": 3.25, "delta": 1e-5}}))
    told = dict(tables.trouble([read.read(out)]).rows)
    assert told == {
        "rounds undone": "1",
        "updates set aside": "4",
        "clients that did not answer, in recorded rounds": "2",
        "privacy": "epsilon 3.25 at delta 1e-05, one client replaced",
    }
    assert series.described([read.read(out)])[0]["undone"] == [[7, 0.1]]


def test_only_settings_that_differ_are_listed(pair):
    assert tables.differences(read.read_all(pair)).rows == [["tuner.name", "fathom", "fixed"]]


def test_a_running_run_works_with_what_is_there(tmp_path):
    out = rundirs.write(tmp_path / "run", finished=None, rounds=20)
    whole = (out / "records.jsonl").read_text()
    (out / "records.jsonl").write_text(whole + '{"round": 20, "tri')
    run = read.read(out)
    assert (run.state, len(run.rows), run.records.damaged) == ("running", 3, 0)
    assert "no end yet: round 15 of 20" in page.page([run])
    (out / "records.jsonl").write_text(whole + json.dumps(rundirs.row(20, 0, 0.9)) + "\n")
    after = read.read(out, run)
    assert [row["round"] for row in after.rows] == [5, 10, 15, 20]
    (out / "records.jsonl").unlink()
    assert read.read(out).rows == []
    assert "no end yet: round 0 of 20" in page.page([read.read(out)])
    (out / "records.jsonl").write_text(whole)
    (out / "summary.json").write_text('{"finished": false, "environment": {}}')
    assert read.read(out).state == "stopped"


def test_records_that_were_cut_are_read_again(tmp_path):
    out = rundirs.write(tmp_path / "run", finished=None)
    run = read.read(out)
    (out / "records.new").write_text("".join((out / "records.jsonl").read_text().splitlines(True)[:1]))
    (out / "records.new").replace(out / "records.jsonl")
    assert [row["round"] for row in read.read(out, run).rows] == [5]


def test_clients_are_kept_for_the_last_rounds_only(tmp_path):
    rows = [rundirs.row(number, trial, 0.5) for number in range(1, 9) for trial in range(2)]
    run = read.read(rundirs.write(tmp_path / "run", rows=rows))
    assert {row["round"] for row in run.rows if row["clients"]} == {4, 5, 6, 7, 8}
    assert series.last_rounds(run) == (4, 8)
    found = series.clients([run])
    assert found["steps"]["counts"] == [20]  # two of three clients answered, in five rounds of two trials
    assert found["steps"]["edges"] == [3.5, 4.5, 5.5, 6.5, 7.5, 8.5]
    assert found["steps"]["shares"] == [[0.5, 0.0, 0.0, 0.0, 0.5]]


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda out: out.joinpath("spec.toml").unlink(), "is not a run directory, it has no spec.toml"),
        (lambda out: out.joinpath("spec.toml").write_text("rounds = "), "spec.toml is damaged, it is not TOML"),
        (lambda out: out.joinpath("spec.toml").write_text("rounds = true"), "rounds = True is not a number"),
        (lambda out: out.joinpath("spec.toml").write_bytes(b"\xff\xfe"), "spec.toml is damaged"),
        (lambda out: out.joinpath("summary.json").write_text("[" * 100000), "summary.json is damaged"),
        (lambda out: out.joinpath("summary.json").write_text("[]"), "summary.json is damaged"),
    ],
)
def test_a_damaged_directory_is_one_clear_line(tmp_path, break_it, told):
    out = rundirs.write(tmp_path / "run")
    break_it(out)
    done = report(out)
    assert done.exit_code == 2
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_missing_directory_or_one_given_twice_is_one_clear_line(pair, tmp_path):
    assert "does not exist; name a run directory" in report(tmp_path / "none").stderr
    assert "was given twice" in report(pair[0], pair[0]).stderr
    assert "cannot be written" in report(pair[0], "-o", tmp_path / "none" / "page.html").stderr
    assert "cannot be written" in report(pair[0], "-o", tmp_path / "none" / "page.png").stderr


@pytest.mark.parametrize("line", ["{", "[]", '{"round": 5}', "null", json.dumps(rundirs.row(5, 0, 0.5))])
def test_what_comes_before_a_damaged_line_is_shown(tmp_path, line):
    out = rundirs.write(tmp_path / "run")
    with (out / "records.jsonl").open("a") as file:
        file.write(line + "\n" + json.dumps(rundirs.row(20, 0, 0.9)) + "\n")
    run = read.read(out)
    assert (len(run.rows), run.records.damaged) == (3, 4)
    assert "line 4; nothing after it is shown" in page.page([run])


def test_records_flatten_to_one_line_per_run_round_and_trial(pair):
    done = report(*pair, "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(lines) == 18
    assert (lines[0]["run"], lines[0]["round"], lines[0]["trial"], lines[0]["test_accuracy"]) == (
        "ours",
        "5",
        "0",
        "0.1",
    )
    assert (lines[0]["steps"], lines[0]["answered"], lines[0]["sampled"]) == ("6.0", "2", "3")


def test_other_formats_follow_the_name_or_the_option(pair, tmp_path):
    found = json.loads(report(*pair, "--format", "json").stdout)
    assert found["measures"]["rounds to 60 %"]["values"] == {"ours": [10, 10, 10], "theirs": [15, 15, 15]}
    assert found["runs"][1]["curves"]["accuracy"]["high"][-1] == 0.63
    assert report(*pair, "-o", tmp_path / "page.md").exit_code == 0
    assert (tmp_path / "page.md").read_text().startswith("## What came of it\n\n|  | ours | theirs |\n| --- |")
    assert report(*pair, "-o", tmp_path / "page.svg").exit_code == 0
    assert "<svg" in (tmp_path / "page.svg").read_text()


def test_a_picture_of_nine_runs_shows_them_all(tmp_path):
    outs = [rundirs.write(tmp_path / f"_$run{i}") for i in range(9)]
    assert curves.draw(outs, tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert len({tuple(series.style(i).values()) for i in range(9)}) == 9


def test_a_long_run_is_read_in_little_time(tmp_path):
    start = time.monotonic()
    run = read.read(rundirs.write(tmp_path / "run", rows=[rundirs.row(i, 0, 0.5) for i in range(1, 3001)]))
    assert len(run.rows) == 3000
    assert time.monotonic() - start < 5


def test_packages_that_are_not_installed_are_named_in_one_line(pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert report(pair[0]).stderr == "fathom: reports need plotly; install it with: pip install 'fathom[report]'.\n"
    assert report(pair[0], "--format", "md").exit_code == 0
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "fathom.report.live", raising=False)
    monkeypatch.delattr("fathom.report.live", raising=False)
    watch = typer.Typer()
    watch.command()(cli_report.watch)
    done = CliRunner().invoke(watch, [])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'fathom[report]'" in done.stderr


def test_a_trial_that_stopped_at_its_target_counts_on_with_its_last_values(tmp_path):
    rows = [rundirs.row(5, 0, 0.5), rundirs.row(5, 1, 0.7), rundirs.row(10, 0, 0.65)]
    path = rundirs.write(tmp_path / "cut", curves=((0.5, 0.65), (0.7, 0.7)), rows=rows, stop_at_target=True)
    (run,) = read.read_all([path])
    assert series.curves(run)["accuracy"]["mean"] == [0.6, 0.675]
    assert series.curves(run)["gradients"] == [500, 750]
    assert "counts on with its last values" in tables.results([run]).note
    assert "not compared: trials stopped at their target" in tables.to_markdown(tables.verdicts([run, run]))


def test_a_start_far_above_all_that_follows_does_not_flatten_the_curve(tmp_path):
    rows = [rundirs.row(number, 0, 0.1, lr=1000.0 if number == 1 else 0.1) for number in (1, 2, 3)]
    start = {"lr": 1000.0, "epochs": 1.0, "batch": 4.0}
    run = rundirs.write(tmp_path / "run", rows=rows, tuner="plumb", hparams=start)
    axis = Figure().subplots()
    curves._panel(axis, "lr", read.read_all([run]))
    assert axis.get_ylim()[1] < 1
    assert [text.get_text() for text in axis.texts] == ["0.1"]  # the end, and no line for the start
