"""One run spread over devices and over processes, for real: on loopback, each process as a host of its own."""

import json
import os
import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest

import fathom
from fathom.core import feed
from fathom.data import disk
from problems import algorithm, clients, logistic
from test_cli import CACHE, ENVIRONMENT, FATHOM, curve

TESTS = Path(__file__).parent
QUICK = {  # most of the time is spent compiling
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "jax"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.3",
}
SIZES = [3, 50, 17, 28, 9, 41, 12, 33, 21, 5, 44, 38, 14, 7, 26]
COHORTS = [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13]]  # every client once, and a round that is one short


class Watched(np.ndarray):
    """An array that notes which rows are read from it."""

    read: list

    def __getitem__(self, index):
        self.read.append([int(index.start), int(index.stop)])
        return self.view(np.ndarray)[index]


def plain(records):
    """Records as lists of numbers, without the time they took."""
    return [[np.asarray(leaf).tolist() for leaf in jax.tree.leaves(record._replace(seconds=0))] for record in records]


def train_from_disk():
    """A short run on the data set "tiny": its records as plain numbers, and the rows that were read."""
    federation = disk.open_set("tiny").splits["train"]
    test = {name: np.array(feature) for name, feature in federation.examples.items()}
    watched = {name: feature.view(Watched) for name, feature in federation.examples.items()}
    for feature in watched.values():
        feature.read = []
    federation = fathom.Federation(federation.ids, federation.starts, federation.sizes, watched)
    options = {"rounds": 3, "cohort": COHORTS, "test": test}
    rows = plain(fathom.train(algorithm(task=logistic(dropout=0.3)), federation, key=jax.random.key(0), **options))
    return rows, watched["x"].read


def train_on_one_to_eight_devices():
    """The same run on 1, 2, 4 and 8 devices, the examples on all of them or dealt out; its records."""
    federation = fathom.Federation.from_arrays({i: {"x": x, "y": y} for i, (x, y) in enumerate(clients(3, SIZES))})
    options = {"key": jax.random.key(0), "rounds": 3, "cohort": 11, "test": federation.examples, "every": 3}
    runs = {}
    for count, resident in ((1, True), (2, True), (4, True), (8, True), (8, False)):
        feed.RESIDENT_BYTES = 1 << 30 if resident else 0
        run = fathom.train(algorithm(task=logistic(dropout=0.3)), federation, devices=jax.devices()[:count], **options)
        runs[f"{count} {resident}"] = plain(run)
    for count in (1, 4):  # where each update is gathered
        algo = algorithm(task=logistic(dropout=0.3), aggregator=fathom.aggregate.median())
        runs[f"{count} median"] = plain(fathom.train(algo, federation, devices=jax.devices()[:count], **options))
    return runs


def script(body, **environment):
    """Start a Python process that runs `body` beside this file."""
    start = f"import json, jax, numpy as np, sys; sys.path.insert(0, {str(TESTS)!r}); {body}"
    return subprocess.Popen(
        [sys.executable, "-c", start],
        env={**os.environ, **QUICK, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(processes, timeout=150):
    """Wait for processes to end; what each said. None outlives the test."""
    try:
        return [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()


def answer(output):
    """The line of JSON among what a process said."""
    return next(json.loads(line) for line in output.splitlines() if line.startswith(("{", "[[")))


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def same(one, other, tolerance):
    for left, right in zip(one, other, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_one_two_four_and_eight_devices_train_to_the_same_records():
    body = "from test_hosts import *; print(json.dumps(train_on_one_to_eight_devices()))"
    (process,) = processes = [script(body, JAX_NUM_CPU_DEVICES="8")]
    ((output, error),) = finish(processes)
    assert process.returncode == 0, error
    runs = answer(output)
    assert len(runs) == 7
    for name, run in runs.items():
        same(run, runs["1 median" if "median" in name else "1 True"], 2e-5)
    assert runs["1 median"] != runs["1 True"]


def test_two_hosts_train_to_the_records_of_one_and_read_only_their_own_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path))
    disk.write("tiny", {"train": ((str(i), {"x": x, "y": y}) for i, (x, y) in enumerate(clients(3, SIZES)))}, {})
    port = free_port()
    body = "jax.distributed.initialize('127.0.0.1:{}', 2, {}); "
    body += "from test_hosts import *; print(json.dumps(train_from_disk()))"
    processes = [script(body.format(port, host), JAX_NUM_CPU_DEVICES="1") for host in range(2)]
    said = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], said
    (first, read), (second, other_read) = (answer(output) for output, _ in said)
    assert first == second

    monkeypatch.setattr(feed, "RESIDENT_BYTES", 0)
    alone, all_read = train_from_disk()
    same(first, alone, 1e-6)

    starts = np.cumsum([0, *SIZES]).tolist()
    assert sorted(all_read) == [[start, stop] for start, stop in pairwise(starts[:15])]
    assert sorted(read + other_read) == sorted(all_read)  # every client's rows once, by one of the hosts
    assert len(read) == 3 + 3 + 2  # of 5, 5 and 4 clients


def hosts(tmp_path, *arguments, first=("synthetic", "--out", "out")):
    """`fathom run` as two hosts, each in a folder of its own; their exit codes and what they said."""
    port = free_port()
    processes = []
    for host in range(2):
        told = {"FATHOM_COORDINATOR": f"127.0.0.1:{port}", "FATHOM_HOSTS": "2", "FATHOM_HOST": str(host)}
        folder = tmp_path / str(host)
        folder.mkdir(exist_ok=True)
        processes.append(
            subprocess.Popen(
                [*FATHOM, "run", *first, "--hosts", *arguments],
                cwd=folder,
                env={**ENVIRONMENT, **told, "JAX_NUM_CPU_DEVICES": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = finish(processes)
    return [process.returncode for process in processes], said


def test_the_command_on_two_hosts_writes_one_run_equal_to_that_of_one_host(tmp_path):
    short = ("--rounds", "3", "--every", "1", "--checkpoint-every", "0")
    codes, ((output, error), (other_output, other_error)) = hosts(tmp_path, *short)
    assert codes == [0, 0], error + other_error
    assert "final test accuracy" in output
    assert "accuracy" not in other_output  # gloo greets on every host
    assert other_error == ""
    assert sorted(path.name for path in (tmp_path / "0" / "out").iterdir()) == [
        "checkpoints", "curves.png", "records.jsonl", "spec.toml", "summary.json"
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "0" / "out" / "checkpoints").iterdir()) == ["1", "2", "3"]
    assert list((tmp_path / "1").iterdir()) == []

    environment = {**ENVIRONMENT, "JAX_NUM_CPU_DEVICES": "2"}
    command = [*FATHOM, "run", "synthetic", "--out", "alone", *short]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=150)
    together, alone = curve(tmp_path / "0" / "out"), curve(tmp_path / "alone")
    assert len(together) == 3
    for one, other in zip(together, alone, strict=True):
        assert one["clients"]["steps"] == other["clients"]["steps"]
        for key in ("lr", "epochs", "batch", "loss", "alignment", "gradients"):
            assert one[key] == pytest.approx(other[key], rel=1e-5)
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-5)

    # Set back by a round, they go on together: each reads the checkpoint, the first one writes.
    codes, said = hosts(tmp_path, first=("--resume", str(tmp_path / "0" / "out"), "--from", "2"))
    assert codes == [0, 0], said
    assert curve(tmp_path / "0" / "out") == together


def test_a_host_that_fails_ends_the_other(tmp_path):
    (tmp_path / "0" / "out").mkdir(parents=True)
    (tmp_path / "0" / "out" / "mine").touch()
    codes, ((_, error), (_, other_error)) = hosts(tmp_path, "--rounds", "100000")
    assert codes[0] == 2
    assert codes[1] != 0
    assert error.startswith("fathom: host 0 of 2: out exists and is not an empty directory; nothing was overwritten.")
    assert "another" in other_error


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no cluster was found; give FATHOM_COORDINATOR=host:port, FATHOM_HOSTS=n and FATHOM_HOST=0 to n-1."),
        ({"FATHOM_HOSTS": "2"}, "FATHOM_COORDINATOR is not set, FATHOM_HOSTS is; set "),
        ({"FATHOM_COORDINATOR": "a:1", "FATHOM_HOSTS": "2", "FATHOM_HOST": "2"}, "FATHOM_HOST=2; give"),
        ({"FATHOM_COORDINATOR": "a:1", "FATHOM_HOSTS": "two", "FATHOM_HOST": "0"}, "FATHOM_HOSTS=two, "),
        ({"FATHOM_COORDINATOR": "a", "FATHOM_HOSTS": "2", "FATHOM_HOST": "0"}, "FATHOM_COORDINATOR=a, "),
    ],
)
def test_hosts_that_cannot_be_found_are_one_line_and_exit_code_2(given, message, tmp_path):
    command = [*FATHOM, "run", "synthetic", "--hosts"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**ENVIRONMENT, **given}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_the_communication_model_is_what_its_code_computes():
    page = (TESTS.parent / "docs" / "scale.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    names = {}
    exec(compile(code, "docs/scale.md", "exec"), names)
    assert len(names["table"]) == 10
    assert "\n".join(names["table"]) in page
