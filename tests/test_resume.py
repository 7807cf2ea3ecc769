"""Runs that were stopped go on to the same bits; whatever cannot be gone on from says so."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fathom
from fathom.cli import app
from fathom.experiment import checkpoint, store
from fathom.experiment import run as runs
from fathom.experiment import spec as specs
from fathom.experiment.run import environment
from fathom.experiment.spec import SpecError
from fuzz_checkpoints import fuzz
from problems import algorithm, clients, federation, logistic
from test_cli import ENVIRONMENT, FATHOM, curve
from test_cli import fathom as command


def same(one, other):
    """Two lists of records, equal to the last bit but for the time they took."""
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        left, right = (jax.tree.leaves(r._replace(seconds=0, snapshot=None)) for r in (a, b))
        for x, y in zip(left, right, strict=True):
            np.testing.assert_array_equal(x, y)


def test_training_goes_on_from_a_snapshot_to_the_same_bits():
    trials = 3
    fed = federation(clients(3, [20, 30, 25, 40]))
    keys = jax.random.split(jax.random.key(0), trials)
    options = {"key": keys, "rounds": 6, "cohort": 3, "test": fed.examples, "every": 2}
    algo = algorithm(task=logistic(dropout=0.3), dropout=0.2)
    whole = list(fathom.train(algo, fed, snapshots=0, **options))
    kept = [r.snapshot for r in whole if r.snapshot]
    assert [s.round for s in kept] == [1, 2, 3, 4, 5, 6]
    for snapshot in (kept[0], kept[3], kept[3]):  # one serves more than once
        rest = list(fathom.train(algo, fed, start=snapshot, **options))
        same(rest, whole[snapshot.round * trials :])


def test_snapshots_come_at_intervals_and_at_the_end():
    fed = federation(clients(3, [20, 30]))
    options = {"key": jax.random.key(0), "rounds": 3, "cohort": 2}
    assert [r.round for r in fathom.train(algorithm(), fed, snapshots=1e6, **options) if r.snapshot] == [3]
    assert not any(r.snapshot for r in fathom.train(algorithm(), fed, **options))


def kills(*options):
    """Kill runs in a process of its own, which copies itself for every one of them."""
    script = [sys.executable, str(Path(__file__).with_name("kills.py")), *options]
    done = subprocess.run(script, env=ENVIRONMENT, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_killed_at_any_moment_comes_to_the_same_records():
    done = kills("--kills", "25")
    found = re.match(
        r"(\d+) at a random moment, (\d+) within the checkpoint, (\d+) within the append: (\d+) runs", done
    )
    assert found, done
    assert [int(count) for count in found.groups()[:3]] == [9, 8, 8]
    assert int(found[4]) >= 1


def test_damaged_checkpoints_are_refused_or_read_as_they_were():
    counts = fuzz(60, 0)
    assert set(counts) == {"accepted", "refused"}


@pytest.mark.slow
def test_a_run_killed_200_times_comes_to_the_same_records():
    kills("--kills", "200", "--seed", "1")


CACHING = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
RUN = ("run", "synthetic", "--rounds", "6", "--every", "1", "--checkpoint-every", "0", "--out", "out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    done = command(*RUN, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (folder / "out" / "checkpoints").iterdir()) == ["4", "5", "6"]
    return folder / "out"


@pytest.fixture
def out(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "out")
    return tmp_path / "out"


def resume(out, *arguments, code):
    done = command("run", "--resume", "out", *arguments, cwd=out.parent)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def unfinished(out):
    """As if it had been stopped after the fifth round."""
    shutil.rmtree(out / "checkpoints" / "6")
    (out / "summary.json").unlink()


def test_a_finished_run_is_left_as_it_is(out, finished):
    done = resume(out, code=0)
    assert "after round 6 of 6" in done.stdout
    assert curve(out) == curve(finished)


def test_a_run_goes_on_from_any_checkpoint_that_is_kept(out, finished):
    resume(out, "--from", "4", code=0)
    assert curve(out) == curve(finished)
    assert json.loads((out / "summary.json").read_text())["finished"]


def test_without_a_checkpoint_a_run_begins_again_and_throws_nothing_away(out, finished):
    shutil.rmtree(out / "checkpoints")
    before = (out / "records.jsonl").read_bytes()
    resume(out, code=0)
    assert curve(out) == curve(finished)
    assert (out / "records.old.jsonl").read_bytes() == before


def test_a_run_set_back_and_stopped_at_once_can_be_resumed(out, finished):
    read = specs.resolve(specs.read(out / "spec.toml"))
    runs.prepare(read, out, resume=runs.Start(4))  # and no further
    assert checkpoint.saved(out) == [4]
    resume(out, code=0)
    assert curve(out) == curve(finished)


def test_a_full_disk_while_resuming_is_one_line(out):
    limited = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", *FATHOM, "run", "--resume", "out", "--from", "5"]
    done = subprocess.run(limited, cwd=out.parent, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr == "fathom: out cannot be written: File too large; make room, and resume again.\n"
    resume(out, code=0)


def damage(path):
    data = bytearray(path.read_bytes()) or bytearray(1)
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def test_a_damaged_checkpoint_is_an_error_that_offers_the_one_before(out, finished):
    """Every file of a checkpoint, one after another: either it does not matter, or it is noticed."""
    unfinished(out)
    records = (out / "records.jsonl").read_bytes()
    read = specs.resolve(specs.read(out / "spec.toml"))
    algo, fed, _ = specs.build(read)
    facts = checkpoint.facts(read, fed, environment())
    said = set()
    for path in sorted(path for path in (out / "checkpoints" / "5").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for broken in (damage, lambda path: path.write_bytes(path.read_bytes()[:-1])):
            broken(path)
            try:
                found = checkpoint.load(out, algo, jax.random.key(0)[None], read.cohort, facts, None)
                said.add(found.snapshot.round)
            except SpecError as error:
                said.add(str(error).partition(": ")[2])
            path.write_bytes(whole)
    offer = "the checkpoint of round 5 is damaged; the one of round 4 is good: go on from it with --from 4."
    assert said == {5, offer}  # some files do not matter
    biggest = max((p for p in (out / "checkpoints" / "5").rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    damage(biggest)
    done = resume(out, code=2)
    assert done.stderr.strip().splitlines() == [f"fathom: out: {offer}"]
    assert (out / "records.jsonl").read_bytes() == records
    resume(out, "--from", "4", code=0)
    assert curve(out) == curve(finished)


def test_a_checkpoint_of_another_spec_or_version_is_refused(out):
    unfinished(out)
    text = (out / "spec.toml").read_text()
    (out / "spec.toml").write_text(text.replace("lr_rate = 0.1\n", "lr_rate = 0.2\n"))
    assert (out / "spec.toml").read_text() != text
    done = resume(out, code=2)
    assert "is of another spec; start again with `fathom run out/spec.toml`." in done.stderr
    (out / "spec.toml").write_text(text)
    for number in ("4", "5"):
        path = out / "checkpoints" / number / "facts" / "metadata"
        path.write_text(path.read_text().replace(f'"{fathom.__version__}"', '"0.0.1"'))
    assert f"is of another version of fathom ('0.0.1', this is '{fathom.__version__}')" in resume(out, code=2).stderr


def test_a_record_that_is_missing_or_damaged_is_an_error(out):
    lines = (out / "records.jsonl").read_text().splitlines(keepends=True)
    (out / "records.jsonl").write_text("".join(lines[:2] + lines[3:]))
    assert "round 3 is missing; go on from a checkpoint before round 3" in resume(out, code=2).stderr
    (out / "records.jsonl").write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    assert "line 3 is damaged" in resume(out, code=2).stderr
    with pytest.raises(SpecError, match="line 3 is damaged"):
        store.read_rows(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "nowhere"], "nowhere/spec.toml: there is no such file"),
        (["--resume", "out", "--lr", "0.1"], "--resume goes on with the settings of out; leave out --lr."),
        (["glyphs", "--resume", "out"], "--resume goes on with the settings of out; leave out TASK."),
        (["--resume", "out", "--from", "3"], "out has no checkpoint of round 3; there are those of rounds 4, 5, 6."),
        (["--from", "3"], "there is no run to go on with; name its directory with --resume; leave out --from."),
        (["--checkpoint-every", "-1"], "--checkpoint-every -1 must be at least 0 seconds."),
    ],
)
def test_what_cannot_be_resumed_is_one_line_and_exit_code_2(arguments, message, out, monkeypatch, capsys):
    monkeypatch.chdir(out.parent)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")  # the devices of this process are there already
    kept = {name: getattr(jax.config, name) for name in CACHING}
    with pytest.raises(SystemExit) as ended:
        app(["run", *arguments])
    for name, value in kept.items():
        jax.config.update(name, value)
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in told
    assert len(told.strip().splitlines()) == 1


def test_a_full_disk_ends_a_run_that_goes_on_once_there_is_room(tmp_path, finished):
    """A limit on the size of a file stands for the disk: a checkpoint grows beyond it, when all has been compiled."""
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *FATHOM, *RUN]
    done = subprocess.run(limited, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("fathom: stopped after round ")
    assert done.stderr.strip().endswith("go on with `fathom run --resume out`.")
    assert len(done.stderr.strip().splitlines()) == 1
    assert len(curve(tmp_path / "out")) < 6
    resume(tmp_path / "out", code=0)
    assert curve(tmp_path / "out") == curve(finished)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device without room")
def test_an_append_without_room_says_so(tmp_path):
    store.create(tmp_path / "out", specs.resolve({"task": "synthetic"}))
    (tmp_path / "out" / "records.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        store.append(tmp_path / "out", [{"round": 1}])


def test_a_run_whose_last_records_could_not_be_written_is_not_finished(tmp_path, monkeypatch):
    spec = specs.resolve({"task": "synthetic", "rounds": 2, "every": 1, "cohort": 2})
    whole = store.append

    def append(out, rows):
        if rows[-1]["round"] == 2:
            raise OSError(28, "No space left on device")
        whole(out, rows)

    monkeypatch.setattr(store, "append", append)
    with pytest.raises(checkpoint.StoppedError, match="stopped after round 1 of 2: No space left"):
        list(runs.prepare(spec, tmp_path / "out").rows)
    assert not store.read_summary(tmp_path / "out")["finished"]


def test_an_append_that_fails_leaves_no_part_of_a_line(tmp_path):
    spec = specs.resolve({"task": "synthetic"})
    store.create(tmp_path, spec)
    row = {"round": 1, "trial": 0, "metrics": None, "loss": float(jnp.float32(1.5))}
    store.append(tmp_path, [row])
    before = (tmp_path / "records.jsonl").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, hard))
    try:
        with pytest.raises(OSError, match=r"No space left|too large"):
            store.append(tmp_path, [row])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert (tmp_path / "records.jsonl").read_bytes() == before
