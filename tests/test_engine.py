"""The engine against the reference, and what must not change a run."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fathom
from fathom import HParams
from fathom.core.feed import sampler
from fathom.core.plan import Slots
from problems import START, algorithm, clients, federation, flat, logistic, one_round, records, whole
from reference import client, run

ROWS = 400


def compare(got, want, data, tolerance=5e-5):
    for record, expected in zip(got, want, strict=True):
        assert record.clients.steps.tolist() == expected["steps"]
        np.testing.assert_allclose(record.clients.alignment, expected["phi"], atol=tolerance)
        np.testing.assert_allclose(record.agreement, expected["agreement"], atol=2e-4)
        np.testing.assert_allclose(record.alignment, expected["alignment"], atol=tolerance)
        for value, reference in zip(record.next_hparams, expected["next"], strict=True):
            np.testing.assert_allclose(value, reference, rtol=tolerance)
        pooled = [np.concatenate([client[i] for client in data]) for i in (0, 1)]
        logits = pooled[0] @ expected["params"][:15].reshape(5, 3) + expected["params"][15:]
        loss = optax.softmax_cross_entropy_with_integer_labels(jnp.asarray(logits), jnp.asarray(pooled[1])).mean()
        np.testing.assert_allclose(record.metrics["loss"], loss, atol=tolerance)


@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 2**16),
    sizes=st.lists(st.integers(1, 100), min_size=4, max_size=4),
    form=st.sampled_from(["reference", "printed"]),
    lr=st.floats(0.01, 0.1),  # a larger one can bring gradients down to rounding, whose direction means nothing
    epochs=st.floats(0.05, 3.0),
    batch=st.floats(1, 130),
    tune=st.booleans(),
    partial=st.booleans(),
)
def test_the_engine_computes_what_the_reference_computes(seed, sizes, form, lr, epochs, batch, tune, partial):
    data = clients(seed, sizes)
    cohorts = [[0, 1, 2, 3]] * 3 if not partial else [[2, 0], [3], [1, 2, 3, 0]]
    tuner = fathom.tuners.fathom(form=form) if tune else fathom.tuners.fixed()._replace(form=form)
    want = run(START, data, cohorts, lr, epochs, batch, tune=tune, form=form)
    fed = federation(data, ROWS)
    test = {name: feature[: fed.sizes.sum()] for name, feature in fed.examples.items()}
    got = records(algorithm(tuner, lr, epochs, batch), fed, 3, cohorts, order="cyclic", test=test)
    compare(got, want, data)


@pytest.mark.parametrize("name", ["momentum", "fedprox"])
def test_client_optimizers_compute_what_the_reference_computes(name):
    data = clients(0, [9, 30, 14, 55])
    local = {"momentum": {"momentum": 0.7}, "fedprox": {"mu": 0.3}}[name]
    make = {"momentum": fathom.optimizers.momentum(0.7), "fedprox": fathom.optimizers.fedprox(0.3)}[name]
    fed = federation(data)
    got = records(algorithm(client_opt=make), fed, 5, [range(4)] * 5, order="cyclic", test=fed.examples)
    compare(got, run(START, data, [range(4)] * 5, 0.1, 1.0, 8.0, **local), data)


SERVERS = {
    "sgd": optax.sgd(1.0),
    "momentum": optax.sgd(0.5, momentum=0.9),
    "adam": optax.adam(0.05),
    "yogi": optax.yogi(0.05),
    "adagrad": optax.adagrad(0.05),
}


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_optimizer_takes_the_mean_update_as_its_gradient(name):
    tune = name in ("sgd", "adam")
    data = clients(1, [20, 31, 8])

    def server(params, update, state):
        state = SERVERS[name].init(jnp.asarray(params, jnp.float32)) if state is None else state
        steps, state = SERVERS[name].update(jnp.asarray(update, jnp.float32), state)
        return params + np.asarray(steps, np.float64), state

    tuner = fathom.tuners.fathom() if tune else fathom.tuners.fixed()
    fed = federation(data)
    algo = algorithm(tuner, server_opt=SERVERS[name])
    got = records(algo, fed, 5, [range(3)] * 5, order="cyclic", test=fed.examples)
    compare(got, run(START, data, [range(3)] * 5, 0.1, 1.0, 8.0, tune=tune, server=server), data, 2e-4)


def test_batches_beyond_a_client_use_all_its_examples_once_when_shuffled():
    data = clients(2, [5, 9])
    algo = algorithm(fathom.tuners.fixed(), epochs=7.0, batch=20.0)
    (record,) = records(algo, federation(data), 1, [[0, 1]])
    assert record.clients.steps.tolist() == [2, 4]  # ceil(7 * 5 / 20), ceil(7 * 9 / 20)
    assert record.clients.grads.tolist() == [10, 36]
    for place, (x, y) in enumerate(data):
        want, *_ = client(START.astype(float), x, y, 0.1, float(record.clients.steps[place]), len(y))
        np.testing.assert_allclose(record.clients.drift[place], want @ want, rtol=1e-4)


def counting_task(rows):
    """A linear loss whose gradient is the list of examples that were used."""
    return fathom.Task(
        lambda key: jnp.zeros(rows), lambda params, batch, key: params[batch["x"]], lambda params, batch: {}
    )


def counts(sizes, epochs, batch, rounds=1, **options):
    rows = sum(sizes)
    data = np.split(np.arange(rows), np.cumsum(sizes)[:-1])
    fed = fathom.Federation.from_arrays({i: {"x": x} for i, x in enumerate(data)})
    algo = algorithm(fathom.tuners.fixed(), 1.0, epochs, batch, task=counting_task(rows), server_opt=optax.sgd(0.0))
    state = algo.init(jax.random.key(3), len(sizes))
    for _ in range(rounds):
        state, info = one_round(algo, state, whole(fed), **options)
    return np.split(np.asarray(info.update) * rows / np.repeat(sizes, sizes), np.cumsum(sizes)[:-1]), info


def test_a_pass_meets_every_example_once_and_batches_run_over_into_the_next_pass():
    # lr 1 and a batch of b add 1 / b per use; the update is averaged with weight n_i / N, undone in `counts`.
    for sizes, epochs, batch in [([12, 30], 2.0, 3.0), ([7, 5], 3.0, 1.0), ([10, 10], 1.5, 5.0)]:
        used, info = counts(sizes, epochs, batch)
        for seen, steps in zip(used, info.clients.steps, strict=True):
            np.testing.assert_allclose(seen.sum(), int(steps), rtol=1e-5)
            times = np.round(seen * batch)
            np.testing.assert_allclose(seen * batch, times, atol=1e-3)
            assert times.max() - times.min() <= 1
            assert times.sum() == int(steps) * batch


def test_a_batch_over_the_end_of_a_pass_may_meet_an_example_twice_but_passes_stay_whole():
    used, info = counts([5], 5.0, 3.0)  # 9 steps of 3 over passes of 5: 27 = 5 * 5 + 2
    times = np.round(used[0] * 3)
    assert int(info.clients.steps[0]) == 9
    assert sorted(times.tolist()) == [5, 5, 5, 6, 6]


def test_shuffles_differ_between_rounds_and_clients():
    orders = [np.round(np.concatenate(counts([40, 40], 0.25, 1.0, rounds)[0])) for rounds in (1, 2)]
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0][:40], orders[0][40:])


def assert_same_run(a, b, tolerance=2e-5):
    for left, right in zip(a, b, strict=True):
        assert left.clients.steps.tolist() == right.clients.steps.tolist()
        for x, y in zip(jax.tree.leaves(left._replace(seconds=0)), jax.tree.leaves(right._replace(seconds=0)),
                        strict=True):  # fmt: skip
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


SPREADS = [{"lanes": 7}, {"devices": 2}, {"devices": 2, "lanes": 2}]


@pytest.mark.parametrize("options", SPREADS, ids=str)
def test_lanes_and_devices_do_not_change_a_run(options):
    fed = federation(clients(4, [3, 50, 17, 28, 9, 41, 12]))
    algo = algorithm(task=logistic(dropout=0.3))
    options = {**options, "devices": jax.devices()[: options.get("devices", 1)]}
    alone = records(algo, fed, 4, 5, devices=jax.devices()[:1], lanes=1, test=fed.examples)
    assert_same_run(alone, records(algo, fed, 4, 5, test=fed.examples, **options))


def test_trials_together_are_the_trials_alone():
    fed = federation(clients(5, [3, 50, 17, 28, 9, 41, 12]))
    algo = algorithm(task=logistic(dropout=0.3), batch=30.0)
    keys = jax.random.split(jax.random.key(1), 3)
    both = list(fathom.train(algo, fed, key=keys, rounds=4, cohort=3, test=fed.examples, lanes=2))
    for trial, key in enumerate(keys):
        alone = list(fathom.train(algo, fed, key=key, rounds=4, cohort=3, test=fed.examples))
        assert_same_run([r._replace(trial=0) for r in both if r.trial == trial], alone)


def test_a_trial_that_is_done_ends_and_the_others_go_on_as_they_were():
    fed = federation(clients(5, [3, 50, 17, 28, 9, 41, 12]))
    options = {
        "key": jax.random.split(jax.random.key(1), 3),
        "rounds": 6,
        "cohort": 3,
        "test": fed.examples,
        "every": 2,
    }
    algo = algorithm(task=logistic(dropout=0.3))
    whole = list(fathom.train(algo, fed, **options))
    level = sorted(r.metrics["accuracy"] for r in whole if r.round == 2)[1]  # that two of three are at after round 2

    def until(metrics):
        return metrics["accuracy"] >= level

    cut = list(fathom.train(algo, fed, until=until, snapshots=0, **options))
    ends = {}
    for r in whole:
        if r.metrics and until(r.metrics):
            ends.setdefault(r.trial, r.round)
    assert sorted(ends.values())[:2] == [2, 2]
    left = [r for r in whole if r.round <= ends.get(r.trial, 6)]
    assert_same_run([r._replace(snapshot=None) for r in cut], left)
    last = cut[-1].snapshot
    assert last.round == max(r.round for r in left)
    ended = {r.trial: r for r in left}  # the last record of each: what came after cost nothing
    assert last.totals.gradients == [ended[trial].gradients for trial in range(3)]
    assert last.totals.down == [ended[trial].bytes_down for trial in range(3)]
    assert [r.round for r in cut if r.snapshot] == sorted({r.round for r in cut})
    after = next(r.snapshot for r in cut if r.snapshot and r.round == 3)
    rest = list(fathom.train(algo, fed, until=until, start=after, **options))
    assert_same_run(rest, [r for r in left if r.round > 3])


def test_no_two_parts_of_a_first_state_share_a_buffer():
    for server in (optax.sgd(1.0), optax.adam(0.1)):
        state = algorithm(server_opt=server).init(jax.random.key(0), 3)
        arrays = [leaf for leaf in jax.tree.leaves(state._replace(key=())) if leaf.size]
        assert len({leaf.unsafe_buffer_pointer() for leaf in arrays}) == len(arrays)


@settings(deadline=None, max_examples=3)
@given(order=st.permutations(range(5)), width=st.sampled_from([1, 3, 8, 16]), lanes=st.integers(1, 6))
def test_the_order_of_clients_and_the_cut_of_batches_do_not_change_a_round(order, width, lanes):
    fed = federation(clients(6, [3, 20, 17, 8, 11]))
    algo = algorithm(task=logistic(dropout=0.3))
    state = algo.init(jax.random.key(0), 5)
    (one, first), (two, second) = (
        one_round(algo, state, whole(fed), slots=Slots(64, False)),
        one_round(algo, state, whole(fed, order), slots=Slots(width, True), lanes=lanes),
    )
    np.testing.assert_allclose(flat(one.params), flat(two.params), atol=1e-6)
    np.testing.assert_allclose(first.clients.alignment[np.array(order)], second.clients.alignment, atol=1e-5)


def test_absent_clients_do_not_change_the_mean():
    fed = federation(clients(7, [13, 20, 17]))
    algo = algorithm()
    there = whole(fed)
    absent = there._replace(**{f: jnp.concatenate([getattr(there, f), jnp.zeros(2, getattr(there, f).dtype)])
                               for f in ("start", "size", "client")})  # fmt: skip
    a, _ = one_round(algo, algo.init(jax.random.key(0), 3), there)
    b, info = one_round(algo, algo.init(jax.random.key(0), 5), absent)
    np.testing.assert_allclose(flat(a.params), flat(b.params), atol=1e-6)
    assert info.clients.steps.tolist()[3:] == [0, 0]


def test_a_round_nobody_answered_leaves_the_model_as_it_was():
    server = optax.adam(0.1)
    fed = federation(clients(8, [13, 20]))
    algo = algorithm(server_opt=server)
    state, _ = one_round(algo, algo.init(jax.random.key(0), 2), whole(fed))
    after, info = one_round(algo, state, whole(fed)._replace(size=jnp.zeros(2, jnp.int32)))
    np.testing.assert_array_equal(flat(state.params), flat(after.params))
    assert float(info.alignment) == float(info.agreement) == 0
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after._replace(key=0)))


def test_moving_hyperparameters_compile_one_program_per_slot_width():
    traced = []

    def loss(params, batch, key):
        traced.append(batch["x"].shape)
        return logistic().loss(params, batch, key)

    fed = federation(clients(9, [150, 200, 90]))
    wild = fathom.Tuner(
        lambda key, hparams, params: (hparams, jnp.asarray(0)),
        lambda key, stats, n: (
            HParams(stats.hparams.lr * 0.9, stats.hparams.epochs * 1.03, stats.hparams.batch * 0.93),
            n + 1,
        ),
    )
    algo = algorithm(wild, batch=256.0, task=logistic()._replace(loss=loss))
    got = records(algo, fed, 60, 2)
    assert got[-1].hparams.batch[0] < 4
    assert len({int(np.floor(r.hparams.batch[0] + 0.5)) for r in got}) > 25
    once = len(traced)
    assert once <= 6 * 2  # a program per width, and jax may look at a function twice while it traces one
    records(algo, fed, 60, 2)
    assert len(traced) == once


def test_records_count_what_was_sent_and_computed():
    fed = federation(clients(10, [13, 20, 17]))
    model = 4 * 18
    for tuner, up, down in [(fathom.tuners.fathom(), 4, 12), (fathom.tuners.fixed(), 0, 0)]:
        first, second = records(algorithm(tuner), fed, 2, 2)
        assert (first.bytes_up, first.bytes_down) == (2 * (model + up), 2 * (model + down))
        assert second.bytes_up == 2 * first.bytes_up
        assert second.gradients == first.clients.grads.sum() + second.clients.grads.sum()
        assert first.metrics is None


def test_a_fedavg_run_shows_what_fathom_would_have_seen():
    fed = federation(clients(11, [13, 20, 17]))
    plain, tuned = (records(algorithm(t), fed, 1, 3)[0] for t in (fathom.tuners.fixed(), fathom.tuners.fathom()))
    assert plain.alignment == tuned.alignment
    assert plain.next_hparams.lr[0] == plain.hparams.lr[0]
    later = records(algorithm(fathom.tuners.fixed()), fed, 3, 3)[-1]
    assert later.agreement > 0.5


def test_cohorts_are_sampled_without_replacement_and_anew_each_round():
    fed = federation(clients(12, list(range(1, 31))))
    sizes = [r.clients.examples.tolist() for r in records(algorithm(), fed, 5, 10)]
    assert all(len(set(s)) == 10 for s in sizes)
    assert len({tuple(s) for s in sizes}) == 5


def test_metrics_come_every_so_often_and_after_the_last_round():
    fed = federation(clients(13, [13, 20, 17]))
    got = records(algorithm(), fed, 7, 2, test=fed.examples, every=3)
    assert [r.round for r in got if r.metrics] == [3, 6, 7]


def test_a_run_that_diverges_says_so():
    fed = federation(clients(15, [20, 30]))
    with pytest.raises(FloatingPointError, match=r"diverged.*after round .*lower lr"):
        records(algorithm(lr=1e38), fed, 20, 2)


def test_old_style_keys_are_one_trial():
    fed = federation(clients(16, [20, 30]))
    old, new = (
        list(fathom.train(algorithm(), fed, key=key, rounds=1, cohort=1))
        for key in (jax.random.PRNGKey(4), jax.random.key(4))
    )
    assert_same_run(old, new)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cohort": 4}, "cohort=4 cannot be drawn from a federation of 3 clients; lower"),
        ({"cohort": 0}, "cohort=0"),
        ({"rounds": 0}, "rounds=0"),
        ({"every": 0}, "every=0"),
        ({"order": "random"}, "order='random'"),
        ({"cohort": [[0, 1]]}, "lists the clients of 1 rounds"),
        ({"cohort": [[0, 7]], "rounds": 1}, "client 7 is not in the federation"),
        ({"cohort": [[0, 0]], "rounds": 1}, "names a client twice"),
        ({"cohort": 2.0}, "neither a number of clients nor a list"),
        ({"cohort": "12"}, "neither a number of clients nor a list"),
        ({"cohort": [0, 1]}, "neither a number of clients nor a list"),
        ({"cohort": ["0", "1"]}, "give a list of clients for every round"),
        ({"rounds": 2.0}, "rounds=2.0 must be a whole number"),
        ({"lanes": 0}, "lanes=0 must be a whole number"),
        ({"key": 0}, "key=0 is not a random key"),
        ({"test": {"x": np.zeros((0, 5)), "y": np.zeros(0)}}, "test set 'test' has no examples"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(options, message):
    fed = federation(clients(14, [3, 4, 5]))
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        fathom.train(algorithm(), fed, **{"key": jax.random.key(0), "rounds": 2, "cohort": 2, **options})


@pytest.mark.parametrize(
    ("name", "value"), [("lr", -0.1), ("lr", 0.0), ("epochs", 0.0), ("batch", 0.5), ("lr", np.nan)]
)
def test_hyperparameters_that_cannot_be_used_are_refused(name, value):
    fed = federation(clients(14, [3, 4, 5]))
    with pytest.raises(ValueError, match=f"hparams: {name}="):
        fathom.train(algorithm(**{name: value}), fed, key=jax.random.key(0), rounds=1, cohort=1)


def test_clients_can_be_given_hyperparameters_of_their_own():
    fed = federation(clients(17, [20, 20, 20]))
    each = np.array([4.0, 5.0, 10.0], np.float32)
    (record,) = records(algorithm(fathom.tuners.fixed(), batch=each), fed, 1, [[0, 1, 2]])
    assert record.hparams.batch.tolist() == each.tolist()
    assert record.clients.steps.tolist() == [5, 4, 2]


def test_a_trial_that_diverges_leaves_the_others_alone():
    fed = federation(clients(18, [20, 30, 25]))

    def init(key):
        params = logistic().init(key)
        broken = jax.random.key_data(key).sum() % 2 == 0
        return jax.tree.map(lambda leaf: jnp.where(broken, jnp.nan, leaf), params)

    algo = algorithm(task=logistic()._replace(init=init))
    keys = jax.random.split(jax.random.key(0), 6)
    together = list(fathom.train(algo, fed, key=keys, rounds=2, cohort=2))
    lost = {r.trial for r in together if not np.isfinite(r.loss)}
    assert 0 < len(lost) < 6
    kept = next(trial for trial in range(6) if trial not in lost)
    alone = list(fathom.train(algo, fed, key=keys[kept], rounds=2, cohort=2))
    assert_same_run([r._replace(trial=0) for r in together if r.trial == kept], alone)


def test_half_precision_models_are_averaged_in_full_precision():
    data = {i: {"x": np.full(1000, 1.0, np.float32)} for i in range(40)}
    task = fathom.Task(
        lambda key: jnp.zeros((), jnp.float16),
        lambda p, batch, key: -p * batch["x"].astype(jnp.float16),
        lambda p, b: {},
    )
    algo = algorithm(fathom.tuners.fixed(), 2.0, 1.0, 1000.0, task=task)
    fed = fathom.Federation.from_arrays(data)
    state, info = one_round(algo, algo.init(jax.random.key(0), 40), whole(fed))
    assert float(info.update) == pytest.approx(-2.0, abs=0.02)  # summed in float16 it would be infinite
    assert state.params.dtype == jnp.float16


@pytest.mark.parametrize("shape", ["column", "scalar"])
def test_losses_and_metrics_must_be_one_value_per_example(shape):
    fed = federation(clients(19, [20, 30]))
    change = {"column": lambda v: v[:, None], "scalar": lambda v: v.mean()}[shape]
    task = logistic()
    bad_loss = task._replace(loss=lambda p, b, k: change(task.loss(p, b, k)))
    with pytest.raises(ValueError, match="return one value per row"):
        records(algorithm(task=bad_loss), fed, 1, 2)
    bad_metric = task._replace(metrics=lambda p, b: {"loss": change(task.loss(p, b, None))})
    with pytest.raises(ValueError, match=r"metric 'loss' has shape .* return one value per row"):
        records(algorithm(task=bad_metric), fed, 1, 2, test=fed.examples)


def test_the_order_differs_between_passes():
    used, _ = counts([30], 1.5, 1.0)
    again, _ = counts([30], 0.5, 1.0)
    second_pass = np.round(used[0]) == 2  # the examples met again in the first half of the second pass
    first_half = np.round(again[0]) == 1  # those met in the first half of the first pass, same key
    assert second_pass.sum() == first_half.sum() == 15
    assert not np.array_equal(second_pass, first_half)


def test_dropout_differs_between_steps():
    fed = fathom.Federation.from_arrays({0: {"x": np.zeros(8)}})
    task = fathom.Task(
        lambda key: jnp.zeros(16),
        lambda p, batch, key: jnp.sum(p * jax.random.bernoulli(key, 0.5, (16,)))[None],
        lambda p, b: {},
    )
    algo = algorithm(fathom.tuners.fixed(), 1.0, 1.0, 1.0, task=task)
    _, info = one_round(algo, algo.init(jax.random.key(0), 1), whole(fed))
    assert len(set(np.round(info.update).tolist())) > 2  # one mask for all 8 steps would give 0 or 8 everywhere


def test_another_smoothing_is_measured_and_used():
    data = clients(2, [20, 31, 8])
    fed = federation(data)
    got = records(
        algorithm(fathom.tuners.fathom(smoothing=0.9)), fed, 5, [range(3)] * 5, order="cyclic", test=fed.examples
    )
    compare(got, run(START, data, [range(3)] * 5, 0.1, 1.0, 8.0, alpha=0.9), data)


def test_sampled_cohorts_compute_what_the_reference_computes():
    data = clients(25, [9, 30, 14, 55, 21, 40])
    fed = federation(data)
    sample, _ = sampler(fed, 3, 4)
    drawn = [sample(jax.random.key_data(jax.random.key(0)).tolist(), number).tolist() for number in range(1, 5)]
    got = records(algorithm(), fed, 4, 3, order="cyclic", test=fed.examples)
    compare(got, run(START, data, drawn, 0.1, 1.0, 8.0), data)


def test_working_ahead_changes_no_record(monkeypatch):
    fed, algo = federation(clients(20, [20, 30, 25])), algorithm()
    keys = jax.random.split(jax.random.key(1), 2)
    options = {"key": keys, "rounds": 4, "cohort": 2, "test": fed.examples, "every": 2}
    in_step = list(fathom.train(algo, fed, **options))
    monkeypatch.setattr("fathom.core.engine._works_ahead", lambda device: True)
    ahead = list(fathom.train(algo, fed, **options))
    assert [(r.round, r.trial, r.metrics is None) for r in ahead] == [
        (number, trial, number % 2 == 1) for number in (1, 2, 3, 4) for trial in (0, 1)
    ]
    assert_same_run(in_step, ahead, tolerance=0)
    with pytest.raises(FloatingPointError, match="after round"):
        records(algorithm(lr=1e38), federation(clients(15, [20, 30])), 20, 2)


@pytest.mark.parametrize(("count", "lanes"), [(3, 3), (60, 40)])
def test_lanes_that_wait_to_be_attended_to_change_nothing(count, lanes):
    # A lane that has finished stands still while others work and no client waits for it. Where clients queue for 40
    # lanes, 2 have to stand still before they are attended to.
    fed = federation(clients(21, [24 + 36 * i % 89 for i in range(count)]))
    algo = algorithm(task=logistic(dropout=0.3), epochs=1.7, batch=4.0)
    alone, many = (records(algo, fed, 2, count, devices=jax.devices()[:1], lanes=n) for n in (1, lanes))
    assert_same_run(alone, many)
