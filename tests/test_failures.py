"""Clients that vanish, stop early or send nonsense, and runs that diverge."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fathom
from fathom import HParams
from fathom.core import guard as guards
from problems import algorithm, clients, federation, flat, logistic, one_round, records, whole

FIXED = fathom.tuners.fixed


def test_clients_vanish_as_often_as_asked_and_leave_no_trace():
    fed = federation(clients(1, [20] * 40))
    got = records(algorithm(FIXED(), dropout=0.3), fed, 30, 20)
    there = np.array([r.clients.steps > 0 for r in got])
    assert 0.22 < 1 - there.mean() < 0.38
    for r in got:
        gone = r.clients.steps == 0
        assert not r.clients.examples[gone].any()
        assert not r.clients.grads[gone].any()
    assert got[-1].bytes_up == there.sum() * 4 * 18
    assert got[-1].bytes_down == 30 * 20 * 4 * 18  # they had been sent the model


def test_a_round_without_those_who_vanished_is_the_round_of_the_others():
    fed = federation(clients(2, [13, 20, 17, 9, 30]))
    algo = algorithm(FIXED(), dropout=0.5)
    state = algo.init(jax.random.key(3), 5)
    after, info = one_round(algo, state, whole(fed))
    stayed = np.flatnonzero(info.clients.steps)
    assert 0 < len(stayed) < 5
    alone = algorithm(FIXED())
    others, _ = one_round(alone, alone.init(jax.random.key(3), len(stayed)), whole(fed, stayed))
    np.testing.assert_allclose(flat(after.params), flat(others.params), atol=1e-6)


def test_a_round_in_which_everybody_vanishes_changes_nothing():
    fed = federation(clients(2, [13, 20]))
    algo = algorithm(dropout=1.0)
    start = algo.init(jax.random.key(0), 2)
    after, info = one_round(algo, start, whole(fed))
    np.testing.assert_array_equal(flat(after.params), flat(start.params))
    assert not info.rolled_back
    assert float(info.loss) == 0
    silent = records(algorithm(fathom.tuners.plumb(), dropout=1.0), fed, 3, 2)
    assert [r.gain for r in silent] == [None, None, None]
    assert len({float(r.next_hparams.lr[0]) for r in silent}) == 1


def test_stragglers_send_the_steps_they_finished():
    fed = federation(clients(4, [80] * 30))
    full = records(algorithm(FIXED()), fed, 1, 30)[0]
    late = records(algorithm(FIXED(), stragglers=0.5), fed, 1, 30)[0]
    assert set(full.clients.steps) == {10}
    early = late.clients.steps < 10
    assert 5 < early.sum() < 25
    assert len(set(late.clients.steps)) > 4
    assert (late.clients.grads == late.clients.steps * 8).all()
    answered = late.clients.steps > 0
    assert (late.clients.examples[answered] == 80).all()
    np.testing.assert_array_equal(late.clients.loss[~early], full.clients.loss[~early])

    # One that takes k steps sends what k steps make.
    k = int(late.clients.steps[early & answered][0])
    place = int(np.flatnonzero(late.clients.steps == k)[0])
    short = records(algorithm(FIXED(), epochs=k / 10), fed, 1, 30)[0]
    assert short.clients.drift[place] == pytest.approx(late.clients.drift[place], rel=1e-6)


def poison(data, values):
    """The federation of these clients, the last of whom have their numbers multiplied by `values`."""
    fed = federation(data)
    for place, value in zip(range(len(data) - len(values), len(data)), values, strict=True):
        start, size = fed.starts[place], fed.sizes[place]
        fed.examples["x"][start : start + size] *= value  # after the checks that a federation is put to
    return fed


@pytest.mark.parametrize(
    ("value", "tuner"),
    [(np.nan, fathom.tuners.fathom), (1e7, fathom.tuners.fathom)],
)
def test_poisoned_clients_are_set_aside_and_counted(value, tuner):
    data = clients(5, [20] * 12)
    fed, healthy = poison(data, [value]), federation(data[:-1])
    got = records(algorithm(tuner()), fed, 5, 12, test=healthy.examples)
    assert [r.rejected for r in got] == [1, 2, 3, 4, 5]
    assert not any(r.rolled_back for r in got)
    clean = records(algorithm(tuner()), healthy, 5, 11, test=healthy.examples)
    for one, other in zip(got, clean, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-5)
        assert one.next_hparams.lr[0] == pytest.approx(other.next_hparams.lr[0], rel=1e-5)
        assert one.alignment == pytest.approx(other.alignment, rel=1e-4, abs=1e-5)


@pytest.mark.slow
def test_one_trial_with_a_poisoned_client_does_not_touch_the_other():
    fed = poison(clients(5, [20] * 12), [np.nan] * 3)
    keys = jax.random.split(jax.random.key(1), 2)
    both = list(fathom.train(algorithm(), fed, key=keys, rounds=4, cohort=3))
    alone = list(fathom.train(algorithm(), fed, key=keys[1], rounds=4, cohort=3))
    assert sum(r.rejected for r in both if r.trial == 0) != sum(r.rejected for r in both if r.trial == 1)
    for one, other in zip([r for r in both if r.trial == 1], alone, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.rejected == other.rejected


@pytest.mark.slow
def test_one_bad_client_in_many_rounds_does_not_hurt_a_run():
    """300 rounds, in each of which about one of five clients sends nonsense, of every kind."""
    data = clients(6, [20] * 25)
    fed, healthy = poison(data, [np.nan, -np.inf, 1e25, 3e7, 1e12]), federation(data[:-5])
    got = records(algorithm(), fed, 300, 5, test=healthy.examples, every=300)
    clean = records(algorithm(), healthy, 300, 4, test=healthy.examples, every=300)
    assert 200 < got[-1].rejected < 400
    assert got[-1].metrics["accuracy"] > clean[-1].metrics["accuracy"] - 0.05
    assert not any(r.rolled_back for r in got)
    assert got[-1].hparams.lr[0] == pytest.approx(clean[-1].hparams.lr[0], rel=0.2)


def test_medians_are_those_of_numpy():
    values = np.array([[3.0, 1.0, 2.0, 9.0], [4.0, 8.0, 6.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    there = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]], bool)
    np.testing.assert_allclose(guards.medians(jnp.asarray(values), jnp.asarray(there)), [2.0, 5.0, np.nan])


@settings(max_examples=50, deadline=None)
@given(
    norms=st.lists(st.floats(1e-3, 10.0), min_size=3, max_size=12),
    lie=st.floats(2e3, 1e18),
)
def test_what_is_usual_is_not_moved_far_by_a_lie(norms, lie):
    guard = guards.init((), jnp.ones(4))
    for _ in range(20):
        lengths = jnp.asarray([*norms, lie])[None]
        (length,) = guards.medians(lengths, jnp.ones_like(lengths, bool))
        guard = guards.learn(guard, jnp.asarray(0), jnp.asarray(False), (), jnp.asarray(1.0), length)
    assert float(guard.norm) <= 1.001 * max(norms)
    assert float(guards.bound(guard, jnp.ones(4))) < lie


def diverging(lr, guard=True, rounds=60, tuner=None):
    """Least squares, which diverges for certain above lr = 2."""

    def loss(params, batch, key):
        return jnp.square(params - batch["x"])[:, 0] / 2

    task = fathom.Task(lambda key: jnp.full(1, 5.0), loss, lambda params, batch: {"loss": loss(params, batch, None)})
    fed = fathom.Federation.from_arrays({i: {"x": np.full((10, 1), 0.1 * i, np.float32)} for i in range(6)})
    algo = algorithm(tuner or FIXED(), lr, 2.0, 5.0, task=task, guard=guard)
    return records(algo, fed, rounds, 4, test=fed.examples)


def test_a_run_that_diverges_goes_back_with_half_the_learning_rate():
    got = diverging(3.0)
    undone = [r for r in got if r.rolled_back]
    assert undone
    for r in undone:
        assert r.next_hparams.lr[0] == r.hparams.lr[0] / 2
    assert got[-1].hparams.lr[0] <= 1.5
    assert got[-1].metrics["loss"] < 0.1
    assert not any(r.rolled_back for r in got[-20:])
    after = got[undone[-1].round]  # the round after the last that was undone
    assert after.loss < 30


def test_a_run_that_diverges_late_goes_back_to_where_it_was_good():
    def raised(key, stats, done):
        sane = stats.hparams.lr  # a tuner that loses its mind once
        lr = jnp.where((done == 20) & (sane == 0.5), 40.0, sane)
        return stats.hparams._replace(lr=jnp.broadcast_to(lr, stats.hparams.lr.shape)), done + 1

    mad = fathom.Tuner(lambda key, hparams, params: (hparams, jnp.zeros((), jnp.int32)), raised)
    got = diverging(0.5, tuner=mad)
    undone = [r.round for r in got if r.rolled_back]
    assert undone
    assert 22 <= undone[0] <= 28
    assert got[-1].metrics["loss"] < 0.1
    assert max(r.metrics["loss"] for r in got[undone[-1] :]) < 5


def test_the_guard_can_be_turned_off():
    with pytest.raises(FloatingPointError, match="the last 20 rounds came to nothing"):
        diverging(3.0, guard=False, rounds=300)


def test_a_run_beyond_help_stops():
    def hopeless(params, batch, key):
        return jnp.sum(params["b"]) * jnp.full(batch["x"].shape[0], jnp.nan)

    with pytest.raises(
        FloatingPointError, match="the last 20 rounds came to nothing after round 20; start from a lower lr"
    ):
        records(algorithm(task=logistic()._replace(loss=hopeless)), federation(clients(7, [10, 10])), 100, 2)


@pytest.mark.slow
def test_a_run_that_goes_well_is_not_touched():
    fed = federation(clients(8, [13, 20, 17, 30]))
    with_guard, without = (records(algorithm(guard=guard), fed, 40, 3) for guard in (True, False))
    assert not any(r.rolled_back or r.rejected for r in with_guard)
    for one, other in zip(with_guard, without, strict=True):
        np.testing.assert_array_equal(one.hparams.lr, other.hparams.lr)
        assert one.loss == other.loss


@pytest.mark.parametrize("cohort", [1, 5])
def test_a_healthy_run_on_clients_that_differ_widely_is_not_touched(cohort):
    """Losses of single clients that differ by a factor of a million, around a model that does well."""
    rng = np.random.default_rng(0)
    spread = rng.lognormal(0, 1.2, 100)
    data = {i: {"x": (1 + spread[i] * rng.normal(size=(20, 3))).astype(np.float32)} for i in range(100)}

    def loss(params, batch, key):
        return jnp.sum(jnp.square(params - batch["x"]), 1) / 2

    task = fathom.Task(lambda key: jnp.zeros(3), loss, lambda params, batch: {"loss": loss(params, batch, None)})
    fed = fathom.Federation.from_arrays(data)
    got = records(algorithm(FIXED(), 0.01, 1.0, 5.0, task=task), fed, 300, cohort)
    assert not any(r.rolled_back for r in got)
    assert got[-1].rejected == 0
    assert got[-1].hparams.lr[0] == np.float32(0.01)


@pytest.mark.slow
def test_a_first_round_of_long_updates_is_not_taken_for_divergence():
    rng = np.random.default_rng(0)
    data = {i: {"x": (5e3 + rng.normal(size=(20, 3))).astype(np.float32)} for i in range(10)}

    def loss(params, batch, key):
        return jnp.sum(jnp.square(params - batch["x"]), 1) / 2

    task = fathom.Task(lambda key: jnp.zeros(3), loss, lambda params, batch: {})
    got = records(algorithm(FIXED(), 0.1, 1.0, 5.0, task=task), fathom.Federation.from_arrays(data), 40, 5)
    assert 0 < got[-1].rejected <= 10  # until it is known how long they are
    assert not any(r.rolled_back for r in got)
    assert got[-1].loss < 5


def test_hyperparameters_of_each_client_are_halved_each():
    good = guards.Good((), (), HParams(jnp.asarray([0.1, 0.4]), jnp.ones(2), jnp.ones(2)), (), ())
    back = guards.go_back(good, HParams(jnp.asarray([0.2, 0.3]), 2 * jnp.ones(2), 3 * jnp.ones(2)))
    np.testing.assert_allclose(back.hparams.lr, [0.05, 0.15])
    assert back.hparams.batch.tolist() == [1, 1]
