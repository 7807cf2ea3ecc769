"""The command as a user types it, in processes of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fathom.tasks import TASKS

FATHOM = [sys.executable, "-m", "fathom"]
PRIVATE = ["--aggregate", "private", "--set", "aggregate.clip=1.0", "--set", "aggregate.noise=1.0"]
CACHE = Path(__file__).parents[1] / ".pytest_cache" / "fathom"
ENVIRONMENT = {**os.environ, "FATHOM_CACHE": str(CACHE), "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}


def fathom(*arguments, cwd):
    return subprocess.run([*FATHOM, *arguments], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def files(out):
    return sorted(path.name for path in out.iterdir())


def curve(out):
    """A run's records without the time they took."""
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_a_run_leaves_a_directory_that_runs_again_to_the_same_records(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "FATHOM_CACHE", str(tmp_path / "cache"))
    done = fathom("run", "synthetic", "--rounds", "12", "--trials", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "runs" / "synthetic-plumb-1"
    assert files(out) == ["checkpoints", "curves.png", "records.jsonl", "spec.toml", "summary.json"]
    assert [(r["round"], r["trial"]) for r in curve(out)] == [
        (5, 0),
        (5, 1),
        (10, 0),
        (10, 1),
        (12, 0),
        (12, 1),
    ]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["finished"]
    assert summary["final"]["accuracy"]["trials"] == 2
    assert "final test accuracy" in done.stdout
    assert "curves.png" in done.stdout
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")

    compiled = files(tmp_path / "cache" / "jax")
    assert any(name.startswith("jit__init-") for name in compiled)  # also what compiles in no time
    again = fathom("run", str(out / "spec.toml"), "--out", "again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert compiled == files(tmp_path / "cache" / "jax")  # nothing was compiled anew
    assert (tmp_path / "again" / "spec.toml").read_text() == (out / "spec.toml").read_text()
    assert curve(tmp_path / "again") == curve(out)

    alone = fathom("run", str(out / "spec.toml"), "--trials", "1", "--seed", "1", "--out", "alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    shared = [r for r in curve(out) if r["trial"] == 1]
    assert [r["round"] for r in curve(tmp_path / "alone")] == [r["round"] for r in shared]
    for one, other in zip(curve(tmp_path / "alone")[:1], shared[:1], strict=True):  # the last digit grows with rounds
        assert one["batch"] == pytest.approx(other["batch"], rel=2e-2)
        assert one["metrics"]["loss"] == pytest.approx(other["metrics"]["loss"], rel=2e-2)

    before = (out / "records.jsonl").read_text()
    refused = fathom("run", "synthetic", "--out", str(out), cwd=tmp_path)
    assert refused.returncode == 2
    assert "already holds a run; nothing was overwritten" in refused.stderr
    assert (out / "records.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "glyps"], "there is no task 'glyps'; choose from glyphs, synthetic, "),
        (["run", "--tuner", "fathm"], "Did you mean 'fathom'?"),
        (["run", "--lr", "-1"], "[hparams] lr=-1.0 must be greater than 0."),
        (["run", "--batch", "0"], "[hparams] batch=0.0 must be at least 1."),
        (["run", "--epochs", "0"], "[hparams] epochs=0.0 must be greater than 0."),
        (["run", "--target", "86"], "target=86.0 must be a fraction"),
        (
            ["run", "synthetic", "--cohort", "101"],
            "cohort=101 exceeds the 100 clients of 'synthetic'; lower `cohort`.",
        ),
        (["run", "--set", "tuner.lr_rte=1"], "[tuner] plumb has no option 'lr_rte'"),
        (
            ["run", "synthetic", "--tuner", "plumb", *PRIVATE],
            "[tuner] plumb: it needs what clients' last",
        ),
        (["run", "nowhere.toml"], "nowhere.toml: there is no such file"),
        (["run", "--lr", "nan"], "[hparams] lr="),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, tmp_path):
    done = fathom(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_tiny_learning_rate_is_not_shown_as_nothing(tmp_path):
    done = fathom("run", "synthetic", "--tuner", "fixed", "--lr", "0.0000213", "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lr 2.13e-05 " in done.stdout


def test_an_interrupted_run_leaves_a_readable_directory(tmp_path):
    process = subprocess.Popen(
        [*FATHOM, "run", "synthetic", "--rounds", "100000", "--every", "1", "--out", "cut"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        records = tmp_path / "cut" / "records.jsonl"
        deadline = time.time() + 200
        while time.time() < deadline and not (records.exists() and len(records.read_text().splitlines()) > 5):
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    stopped = int(re.search(r"stopped after round (\d+) of 100000", error).group(1))
    assert stopped >= 5
    rows = curve(tmp_path / "cut")
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    summary = json.loads((tmp_path / "cut" / "summary.json").read_text())
    assert not summary["finished"]
    assert summary["rounds"] == len(rows)
    assert (tmp_path / "cut" / "curves.png").exists()


def test_the_lists_and_the_help_teach(tmp_path):
    listed = [line.split()[0] for line in fathom("tasks", cwd=tmp_path).stdout.splitlines()]
    assert listed == list(TASKS)
    listed = fathom("tuners", cwd=tmp_path).stdout
    assert all(name in listed for name in ("fathom", "fixed", "schedule", "FedAvg"))
    told = fathom("run", "--help", cwd=tmp_path).stdout
    assert all(option in told for option in ("--tuner", "--trials", "--set", "fathom run --tuner fixed"))
