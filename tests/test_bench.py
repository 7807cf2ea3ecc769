"""`fathom bench` as a user types it, and the operations it counts."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fathom import Task
from fathom.experiment.bench import BENCHES, flops


def bench(*arguments):
    command = [sys.executable, "-m", "fathom", "bench", *arguments]
    env = {**os.environ, "COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)


def test_a_bench_prints_one_json_object_of_figures():
    done = bench("--task", "synthetic", "--cohort", "2", "--rounds", "3", "--trials", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in ("seconds_per_round", "rounds_per_second", "examples_per_second", "mflop_per_example"):
        assert found[name] > 0, name
    for name in ("peak_gflop_per_second", "compile_seconds", "memory_bytes"):
        assert found[name] > 0, name
    assert 0 < found["fraction_of_peak"] < 1
    assert 0 <= found["host_fraction"] < 1
    assert (found["task"], found["cohort"], found["batch"], found["rounds"]) == ("synthetic", 2, [20.0], 3)
    assert (found["programs"], found["trials"]) == (1, 2)
    assert found["examples_per_second"] * found["seconds_per_round"] == pytest.approx(2 * (100 + 130))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "femnst"], "there is no task 'femnst'; choose from femnist, stackoverflow, glyphs, synthetic."),
        (["--batch", "nan"], "batch=nan must be at least 1 and finite."),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    done = bench(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_products_are_counted_with_loops_multiplied_out():
    def loss(params, batch, key):
        return jnp.sum(jax.lax.scan(lambda x, _: (x @ params, None), batch["x"], length=5)[0], -1)

    # A step forward is 2 * 3 * 3, and so is each of the two products of a step back.
    example = {"x": np.ones((1, 3), np.float32)}
    assert flops(Task(lambda key: jnp.eye(3), loss, lambda params, batch: {}), example) == 5 * 3 * 2 * 3 * 3


def test_the_papers_cnn_takes_71_6_million_operations():
    make, examples = BENCHES["femnist"]
    assert flops(make(), examples(np.random.default_rng(0), 1)) == 71_605_248
