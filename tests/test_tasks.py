import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fathom
from fathom.core.evaluate import chunks, evaluate
from fathom.data import disk, docstrings
from fathom.tasks import glyphs, layers


@pytest.mark.parametrize("name", ["glyphs", "synthetic", "docstrings"])
def test_every_task_gives_losses_and_metrics_per_example(name):
    options = {"glyphs": {"writers": 2}, "synthetic": {"clients": 2}, "docstrings": {}}[name]
    task, federation, test = fathom.tasks.load(name, **options)
    params = task.init(jax.random.key(0))
    batch = {key: value[:7] for key, value in federation.examples.items()}
    assert task.loss(params, batch, jax.random.key(1)).shape == (7,)
    values = [value[0] if isinstance(value, tuple) else value for value in task.metrics(params, batch).values()]
    assert all(value.shape == (7,) for value in values)
    assert set(test) == set(federation.examples)
    kept_out = len(next(iter(test.values())))
    assert abs(kept_out / (kept_out + federation.sizes.sum()) - 0.1) < 0.02


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(ValueError, match="there is no task 'glyph'; choose from glyphs, synthetic"):
        fathom.tasks.load("glyph")


def test_the_glyphs_network_has_the_stated_size():
    sizes = [leaf.size for leaf in jax.tree.leaves(glyphs.init(jax.random.key(0)))]
    assert sum(sizes) == 115_582


def test_convolution_and_pooling_are_the_usual_ones():
    key = jax.random.key(0)
    params = layers.weights(key, 3, 3, 4, 6)
    params["b"] = jnp.arange(6.0)
    x = jax.random.normal(key, (2, 10, 12, 4))
    usual = jax.lax.conv_general_dilated(x, params["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    np.testing.assert_allclose(layers.conv(params, x), usual + params["b"], atol=1e-5)
    pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    np.testing.assert_array_equal(layers.max_pool(x), pooled)


def test_first_weights_are_truncated_normal_with_the_fan_in():
    w = layers.weights(jax.random.key(0), 3, 3, 16, 200)["w"]
    assert float(jnp.abs(w).max()) <= 2 / 12 + 1e-6
    np.testing.assert_allclose(float(w.std()), 0.8796 / 12, rtol=0.02)  # of a normal cut at 2 sd


@pytest.mark.parametrize("rows", [1, 5, 256, 700])
@pytest.mark.parametrize("parts", [1, 2])
def test_metrics_do_not_depend_on_how_a_test_set_is_cut(rows, parts):
    rng = np.random.default_rng(rows)
    test = {"x": rng.normal(size=(rows, 3)).astype(np.float32), "n": rng.integers(0, 5, rows)}

    def metrics(params, batch):
        value = batch["x"] @ params
        return {"mean": value, "weighted": (value * batch["n"], batch["n"])}

    task = fathom.Task(lambda key: jnp.ones(3), lambda params, batch, key: batch["x"] @ params, metrics)
    params = jnp.stack([jnp.ones(3), jnp.arange(3.0)])
    got = evaluate(task, params, *chunks(test, 100, parts))
    for trial in range(2):
        value = test["x"] @ np.asarray(params[trial])
        np.testing.assert_allclose(got["mean"][trial], value.mean(), rtol=1e-4, atol=1e-6)
        weighted = (value * test["n"]).sum() / max(test["n"].sum(), 1)
        np.testing.assert_allclose(got["weighted"][trial], weighted, rtol=1e-4, atol=1e-6)


def test_glyphs_are_learned_in_a_few_rounds():
    task, federation, test = fathom.tasks.load("glyphs", writers=40)
    algorithm = fathom.federated(
        task,
        tuner=fathom.tuners.fixed(),
        hparams=fathom.HParams(0.1, 2.0, 8.0),
        server_opt=optax.sgd(1.0),
    )
    test = {key: value[:300] for key, value in test.items()}
    options = {"key": jax.random.key(0), "rounds": 12, "cohort": 10, "test": test, "every": 12}
    (*_, last) = fathom.train(algorithm, federation, **options)
    assert last.metrics["accuracy"] > 0.15  # one in 62 by chance


@pytest.mark.slow
def test_the_default_run_and_fathom_need_fewer_rounds_than_fedavg(tmp_path):
    needed = {}
    for tuner in ("plumb", "fathom", "fixed"):
        command = [sys.executable, "-m", "fathom", "run", "--tuner", tuner, "--trials", "3", "--out", tuner]
        subprocess.run(command, cwd=tmp_path, check=True, timeout=1500)
        summary = json.loads((tmp_path / tuner / "summary.json").read_text())
        assert summary["reached_target"] == "3 of 3"
        needed[tuner] = summary["rounds_to_target"]["mean"]
    assert max(needed["plumb"], needed["fathom"]) < 0.9 * needed["fixed"]


@pytest.fixture
def writers(tmp_path, monkeypatch):
    """A small imported data set in the form of Federated EMNIST."""
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)

    def clients(size):
        for i in range(6):
            n = size + 3 * i
            yield f"w{i}", {"x": rng.integers(0, 256, (n, 28, 28), np.uint8), "y": rng.integers(0, 62, n, np.uint8)}

    disk.write("writers", {"train": clients(5), "test": clients(2)}, {})
    return "writers"


def test_femnist_trains_on_an_imported_data_set(writers):
    task, federation, test = fathom.tasks.load("femnist", data=writers, least=8, test_examples=20)
    assert len(federation) == 5
    assert len(test["test"]["y"]) == 20
    algorithm = fathom.federated(task, tuner=fathom.tuners.fathom(), hparams=fathom.HParams(0.1, 1.0, 20.0))
    (record,) = fathom.train(algorithm, federation, key=jax.random.key(0), rounds=1, cohort=2, test=test)
    assert np.isfinite(record.metrics["loss"])


def test_stackoverflow_trains_on_an_imported_data_set_and_reports_unseen_users(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)

    def users(count, prefix):
        for i in range(count):
            tokens = rng.integers(3, 23, (4 + i, 21), np.uint16)
            tokens[:, 0] = 1
            yield f"{prefix}{i}", {"tokens": tokens}

    words = [f"word{i}" for i in range(20)]
    disk.write("talk", {"train": users(4, "a"), "test": users(4, "a"), "unseen": users(2, "b")}, {"vocabulary": words})
    task, federation, test = fathom.tasks.load("stackoverflow", data="talk", embedding=4, hidden=6)
    algorithm = fathom.federated(task, tuner=fathom.tuners.fathom(), hparams=fathom.HParams(0.3, 1.0, 4.0))
    (record,) = fathom.train(algorithm, federation, key=jax.random.key(0), rounds=1, cohort=2, test=test)
    assert {"accuracy", "accuracy_free", "loss", "unseen_accuracy"} <= set(record.metrics)
    assert record.gradients == 20 * int((record.clients.grads // 20).sum())
    assert record.gradients >= 20 * 8


def test_a_data_set_of_another_kind_is_refused(writers):
    with pytest.raises(ValueError, match="this task needs"):
        fathom.tasks.load("stackoverflow", data=writers)
    with pytest.raises(ValueError, match="there is no data set 'femnist'"):
        fathom.tasks.load("femnist")


def test_docstrings_are_english_sentences_of_the_standard_library():
    sentences = list(docstrings._sentences(Path(json.__file__)))
    assert sentences[0][:4] == ["json", "(", "javascript", "object"]
    assert all(len(words) >= 3 for words in sentences)
    assert not any(">>>" in " ".join(words) for words in sentences)
    assert sentences == list(docstrings._sentences(Path(json.__file__)))


def test_the_docstrings_task_has_a_client_per_module():
    task, federation, _ = fathom.tasks.load("docstrings")
    assert {"json", "email", "argparse"} <= set(federation.ids)
    assert federation.sizes.max() <= 128
    tokens = federation.client("argparse")["tokens"]
    assert tokens.shape[1] == 21
    assert (tokens[:, 0] == 1).all()
    assert tokens.max() <= 2003
    assert task.unit == 20
