"""The paper's two networks as functions: the same logits, losses and gradients as recorded."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fathom.tasks import femnist, nextword
from fathom.tasks.recurrent import lstm

VECTORS = Path(__file__).parent / "vectors"
MODELS = json.loads((VECTORS / "models.json").read_text())
CNN = {"conv2_d": "conv1", "conv2_d_1": "conv2", "linear": "dense1", "linear_1": "dense2"}
LSTM = {"embed": "embed", "lstm/linear": "lstm", "linear": "project", "linear_1": "out"}


def close(got, want, tolerance=1e-4):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def filled(tensor):
    j = np.arange(tensor["size"], dtype=np.int64)
    values = ((7919 * j * j + 104729 * j + 31 * tensor["k"]) % 65537).astype(np.float64) / 32768 - 1
    return (tensor["scale"] * values).astype(np.float32).reshape(tensor["shape"])


def parameters(case, names):
    params = {}
    for tensor in case["tensors"]:
        name = names[tensor["module"].removeprefix("conv_dropout_module/")]
        if tensor["name"] == "embeddings":
            params[name] = jnp.asarray(filled(tensor))
        else:
            params.setdefault(name, {})[tensor["name"]] = jnp.asarray(filled(tensor))
    return params


def check_gradients(case, names, grads):
    for tensor in case["tensors"]:
        name = names[tensor["module"].removeprefix("conv_dropout_module/")]
        grad = grads[name] if tensor["name"] == "embeddings" else grads[name][tensor["name"]]
        assert list(grad.shape) == tensor["shape"]
        close(np.linalg.norm(np.asarray(grad, np.float64)), tensor["grad_norm"])
        close(np.ravel(grad)[:5], tensor["grad_first5"])
    norm = np.sqrt(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in jax.tree.leaves(grads)))
    close(norm, case["grad_norm"])


def test_the_emnist_network_is_the_recorded_function():
    case = MODELS["emnist_cnn_62"]
    params = parameters(case, CNN)
    index = np.arange(3 * 28 * 28).reshape(3, 28, 28, 1)
    x, y = (0.5 + 0.5 * np.sin(0.1 * index)).astype(np.float32), jnp.asarray(case["y"])
    logits = femnist.network(params, x)
    close(logits, np.reshape(case["logits"], (3, 62)))

    def loss(params):
        losses = -jnp.take_along_axis(jax.nn.log_softmax(femnist.network(params, x)), y[:, None], 1)[:, 0]
        return losses.mean(), losses

    (mean, losses), grads = jax.value_and_grad(loss, has_aux=True)(params)
    close(mean, case["loss"])
    close(losses, case["per_example_loss"])
    check_gradients(case, CNN, grads)


@pytest.mark.parametrize("name", ["so_lstm_full", "so_lstm_small"])
def test_the_next_word_network_is_the_recorded_function(name):
    case = MODELS[name]
    params = parameters(case, LSTM)
    task = nextword.task(case["vocab_size"], case["embed_size"], case["hidden"])
    tokens = np.concatenate([np.array(case["x"])[:, :1], np.array(case["y"])], 1)
    logits = nextword.scores(params, jnp.asarray(case["x"]))
    assert list(logits.shape) == case["logits_shape"]
    close(logits[0, 0, :8], case["logits_0_0_first8"])
    close(logits[1, 10, :8], case["logits_1_10_first8"])
    close(logits[2, 19, -8:], case["logits_2_19_last8"])
    close(np.sum(np.square(logits, dtype=np.float64)), case["logits_sumsq"], 1e-4 * case["logits_sumsq"])
    batch = {"tokens": jnp.asarray(tokens)}

    def loss(params):
        losses = task.loss(params, batch, None)
        return losses.mean(), losses

    (mean, losses), grads = jax.value_and_grad(loss, has_aux=True)(params)
    close(mean, case["loss"])
    close(losses, case["per_sentence_loss"])
    check_gradients(case, LSTM, grads)
    got = {key: float(jnp.sum(v)) / float(jnp.sum(w)) for key, (v, w) in task.metrics(params, batch).items()}
    close(got["accuracy"], case["eval"]["accuracy_in_vocab"])
    close(got["accuracy_free"], case["eval"]["accuracy_no_eos"])
    close(got["loss"], case["eval"]["token_loss"])


def test_the_next_word_network_can_read_its_weights_in_16_bits():
    key = jax.random.key(0)
    batch = {"tokens": jax.random.randint(key, (3, 21), 1, 50)}
    whole, halved = (nextword.task(50, 8, 16, precision=precision) for precision in ("default", "bfloat16"))
    params = whole.init(key)
    exact, near = (jax.grad(lambda x, task=task: task.loss(x, batch, key).mean())(params) for task in (whole, halved))
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(near), strict=True):
        assert b.dtype == jnp.float32
        assert 0 < jnp.linalg.norm(a - b) < 0.02 * jnp.linalg.norm(a)
    with pytest.raises(ValueError, match="precision='half' is not known; choose from default, bfloat16"):
        nextword.task(50, precision="half")


def test_next_word_metrics_count_what_they_should():
    case = json.loads((VECTORS / "metrics_check.json").read_text())
    got = nextword.counts(jnp.asarray(case["logits"]), jnp.asarray(case["y"]))
    for ours, theirs in {
        "accuracy": "accuracy_in_vocab",
        "accuracy_free": "accuracy_no_eos",
        "loss": "token_loss",
    }.items():
        value, weight = (float(jnp.sum(part)) for part in got[ours])
        close(value, case["metrics"][theirs]["accum"])
        assert weight == case["metrics"][theirs]["weight"]


def sizes(tree):
    return {name: sum(leaf.size for leaf in jax.tree.leaves(part)) for name, part in tree.items()}


def test_the_networks_have_the_papers_parameter_counts_layer_by_layer():
    cnn, lstm = femnist.init(jax.random.key(0)), nextword.task().init(jax.random.key(0))
    assert sizes(cnn) == {"conv1": 320, "conv2": 18496, "dense1": 1179776, "dense2": 7998}
    assert sizes(lstm) == {"embed": 960384, "lstm": 2055560, "project": 64416, "out": 970388}
    assert (sum(sizes(cnn).values()), sum(sizes(lstm).values())) == (1_206_590, 4_050_748)


def test_first_parameters_are_drawn_as_recorded():
    for case, names, params in (
        (MODELS["emnist_cnn_62"], CNN, femnist.init(jax.random.key(0))),
        (MODELS["so_lstm_full"], LSTM, nextword.task().init(jax.random.key(0))),
    ):
        for tensor in case["tensors"]:
            part = params[names[tensor["module"].removeprefix("conv_dropout_module/")]]
            leaf = part if tensor["name"] == "embeddings" else part[tensor["name"]]
            assert float(leaf.std()) == pytest.approx(tensor["init_std"], rel=0.1)
            assert float(jnp.abs(leaf).max()) == pytest.approx(tensor["init_absmax"], rel=0.1)


def test_dropout_keeps_the_mean_and_needs_a_key():
    params = femnist.init(jax.random.key(0))
    x = jax.random.uniform(jax.random.key(1), (4, 28, 28, 1))
    assert not np.allclose(femnist.network(params, x), femnist.network(params, x, jax.random.key(2)))
    from fathom.tasks.layers import dropout

    ones = jnp.ones(100_000)
    for rate in (0.25, 0.5):
        kept = dropout(jax.random.key(0), rate, ones)
        assert float(kept.mean()) == pytest.approx(1, abs=0.02)
        assert float((kept == 0).mean()) == pytest.approx(rate, abs=0.01)


def plain_lstm(params, x):
    def word(state, at):
        h, c = state
        i, g, f, o = jnp.split(jnp.concatenate([at, h], -1) @ params["w"] + params["b"], 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((len(x), params["b"].shape[0] // 4))
    return jax.lax.scan(word, (zero, zero), x.swapaxes(0, 1))[1].swapaxes(0, 1)


@pytest.mark.parametrize("rows", ["together", "apart", "apart on lanes", "together on lanes"])
def test_the_lstm_has_the_gradient_of_automatic_differentiation(rows):
    keys = jax.random.split(jax.random.key(0), 4)
    lanes = "lanes" in rows
    shape = (3,) if lanes else ()
    params = {"w": jax.random.normal(keys[0], (*shape, 5 + 4, 16)), "b": jax.random.normal(keys[1], (*shape, 16))}
    x, weight = jax.random.normal(keys[2], (*shape, 6, 7, 5)), jax.random.normal(keys[3], (6, 7, 4))

    def total(layer):
        def one(params, x):
            if rows.startswith("apart"):  # as the engine has it: every example by itself
                states = jax.vmap(lambda row: layer(params, row[None])[0])(x)
            else:
                states = layer(params, x)
            return jnp.sum(weight * states**2)

        gradient = jax.value_and_grad(one, argnums=(0, 1))
        return (jax.vmap(gradient) if lanes else gradient)(params, x)

    jax.tree.map(lambda got, want: close(got, want, 1e-5), total(lstm), total(plain_lstm))
