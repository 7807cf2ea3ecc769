"""Every tuner through one battery, and what each is for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fathom
from fathom import ClientStats, HParams, RoundStats, tuners

COHORT = 4
PARAMS = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3)}
START = HParams(*(jnp.full(COHORT, v) for v in (0.1, 1.0, 20.0)))
DECAY = optax.exponential_decay(0.1, 1, 0.9)
EVERY = {
    "fixed": tuners.fixed(),
    "fathom": tuners.fathom(),
    "fathom-printed": tuners.fathom(form="printed"),
    "schedule": tuners.schedule(lr=DECAY),
    "clamp": tuners.clamp(tuners.fathom()),
    "plumb": tuners.plumb(),
}


def stats(hparams=START, scale=1.0, alignment=0.5, examples=(10, 20, 30, 40), gain=0.5):
    examples = jnp.asarray(examples)
    ones = jnp.ones(COHORT)
    clients = ClientStats(examples, examples // 5, examples, ones, ones * alignment, ones, ones, ones * gain)
    return RoundStats(hparams, jax.tree.map(lambda p: scale * p, PARAMS), clients)


def same_form(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert all(x.shape == y.shape and x.dtype == y.dtype for x, y in leaves)


@pytest.mark.parametrize("tuner", EVERY.values(), ids=EVERY.keys())
class TestContract:
    def test_keeps_its_trees_shapes_and_dtypes(self, tuner):
        first, state = tuner.init(jax.random.key(0), START, PARAMS)
        following, after = tuner.update(jax.random.key(1), stats(first), state)
        same_form(first, following)
        same_form(jax.tree.map(jnp.asarray, state), after)

    def test_proposes_positive_finite_values_and_is_pure(self, tuner):
        hparams, state = tuner.init(jax.random.key(0), START, PARAMS)
        for _ in range(50):
            again, _ = tuner.update(jax.random.key(1), stats(hparams), state)
            hparams, state = tuner.update(jax.random.key(1), stats(hparams), state)
            np.testing.assert_array_equal(again, hparams)
            assert all(np.isfinite(v).all() and (np.asarray(v) > 0).all() for v in hparams)

    def test_jits_vmaps_and_scans(self, tuner):
        first, state = tuner.init(jax.random.key(0), START, PARAMS)

        def step(carry, key):
            hparams, state = tuner.update(key, stats(carry[0]), carry[1])
            return (hparams, state), hparams

        keys = jax.random.split(jax.random.key(2), 5)
        (last, _), _ = jax.lax.scan(step, (first, jax.tree.map(jnp.asarray, state)), keys)
        many = jax.jit(jax.vmap(lambda key: tuner.update(key, stats(first), state)[0]))(keys)
        assert many.lr.shape == (5, COHORT)
        assert last.lr.shape == (COHORT,)

    def test_survives_a_round_nobody_answered(self, tuner):
        first, state = tuner.init(jax.random.key(0), START, PARAMS)
        quiet = stats(first, scale=0.0, alignment=jnp.inf, examples=(0, 0, 0, 0))
        following, after = tuner.update(jax.random.key(1), quiet, state)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((following, after)))


def test_fathom_moves_as_computed_by_hand():
    tuner = tuners.fathom()
    hparams, state = tuner.init(jax.random.key(0), START, PARAMS)
    hparams, state = tuner.update(jax.random.key(0), stats(hparams), state)
    # Round 1: nothing to agree with yet; E and B already move.
    np.testing.assert_allclose([v[0] for v in hparams], [0.1, np.exp(0.005), 20 * np.exp(-0.05)], rtol=1e-6)
    hparams, _ = tuner.update(jax.random.key(0), stats(hparams), state)
    # Round 2: the same update again agrees fully.
    np.testing.assert_allclose(
        [v[0] for v in hparams], [0.1 * np.exp(0.01), np.exp(0.005 + 0.015), 20 * np.exp(-0.1)], rtol=1e-6
    )


def test_the_printed_form_scales_alignment_by_the_learning_rate():
    tuner = tuners.fathom(form="printed")
    hparams, state = tuner.init(jax.random.key(0), START, PARAMS)
    hparams, _ = tuner.update(jax.random.key(0), stats(hparams), state)
    np.testing.assert_allclose(hparams.batch, 20 * np.exp(-0.1 * 0.1 * 0.5), rtol=1e-6)
    assert tuner.form == "printed"


def test_every_rate_of_fathom_can_be_set():
    tuner = tuners.fathom(lr_rate=0.2, epochs_rate=0.3, batch_rate=0.4, smoothing=0.9)
    _, state = tuner.init(jax.random.key(0), START, PARAMS)
    hparams, state = tuner.update(jax.random.key(0), stats(), state)
    np.testing.assert_allclose(state["b"], 0.1, rtol=1e-6)
    hparams, _ = tuner.update(jax.random.key(0), stats(), state)
    np.testing.assert_allclose(
        [v[0] for v in hparams], [0.1 * np.exp(0.2), np.exp(0.3 * 1.5), 20 * np.exp(-0.2)], rtol=1e-6
    )


def test_clamp_holds_the_state_and_nothing_winds_up_behind_it():
    tuner = tuners.clamp(tuners.fathom(batch_rate=1.0), low=HParams(0.0, 0.0, 15.0), high=HParams(0.5, 1.01, 30.0))
    hparams, state = tuner.init(jax.random.key(0), START, PARAMS)
    for _ in range(30):
        hparams, state = tuner.update(jax.random.key(0), stats(hparams), state)
    assert float(hparams.batch[0]) == 15.0
    np.testing.assert_allclose(hparams.epochs, 1.01, rtol=1e-6)
    hparams, _ = tuner.update(jax.random.key(0), stats(hparams, alignment=-0.5), state)
    np.testing.assert_allclose(hparams.batch, 15 * np.exp(0.5), rtol=1e-6)  # free again at once


def test_schedules_follow_the_round_and_leave_the_rest():
    tuner = tuners.schedule(lr=DECAY)
    hparams, state = tuner.init(jax.random.key(0), START, PARAMS)
    seen = [float(hparams.lr[0])]
    for _ in range(3):
        hparams, state = tuner.update(jax.random.key(0), stats(hparams), state)
        seen.append(float(hparams.lr[0]))
    np.testing.assert_allclose(seen, [0.1, 0.09, 0.081, 0.0729], rtol=1e-5)
    np.testing.assert_array_equal(hparams.batch, START.batch)


def test_fathom_reads_clients_through_weighted_sums_alone():
    tuner = tuners.fathom()
    _, state = tuner.init(jax.random.key(0), START, PARAMS)
    together = stats(examples=(10, 20, 30, 40))
    mean = float(np.average([0.1, 0.2, 0.3, 0.4], weights=[10, 20, 30, 40]))
    apart = together._replace(clients=together.clients._replace(alignment=jnp.array([0.1, 0.2, 0.3, 0.4])))
    merged = together._replace(clients=together.clients._replace(alignment=jnp.full(4, mean)))
    for a, b in zip(*(tuner.update(jax.random.key(0), s, state)[0] for s in (apart, merged)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_every_tuner_of_the_table_is_in_the_battery():
    assert set(tuners.TUNERS) <= set(EVERY)
    assert fathom.tuners.fixed().scalars_up == 0
