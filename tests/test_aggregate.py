"""Robust and private aggregation: what one client can do, how much noise there is, and what it costs."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fathom
from fathom import ClientStats, HParams, RoundStats, aggregate
from fathom.core.aggregate import ALIGNMENT_SHARE, Privacy
from fathom.experiment import run as runs
from fathom.experiment import spec as specs
from fathom.experiment.privacy import account
from problems import algorithm, clients, federation, flat, logistic, one_round, records, whole

AGGREGATORS = {
    "mean": aggregate.mean(),
    "median": aggregate.median(),
    "trimmed": aggregate.trimmed_mean(0.2),
    "bounded": aggregate.norm_bound(aggregate.mean(), 0.05),
    "bounded median": aggregate.norm_bound(aggregate.median(), 0.05),
}


def updates(fed, algo, state):
    """Each client's update by itself, (clients, parameters), and its number of examples."""
    single = fathom.federated(logistic(), tuner=fathom.tuners.fixed(), hparams=algo.hparams)
    rows = []
    for place in range(len(fed)):
        alone = single.init(jax.random.key(0), 1)._replace(params=state.params, key=state.key)
        _, info = one_round(single, alone, whole(fed, [place]))
        rows.append(flat(info.update))
    return np.stack(rows).astype(np.float64), fed.sizes


def expected(name, rows, sizes):
    """What each aggregator is to make of the updates, in numpy."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    shrunk = rows * np.minimum(1, 0.05 / norms)
    if name == "mean":
        return np.average(rows, 0, sizes)
    if name == "median":
        return np.median(rows, 0)
    if name == "trimmed":
        cut = int(np.ceil(0.2 * len(rows)))
        return np.sort(rows, 0)[cut : len(rows) - cut].mean(0)
    return np.average(shrunk, 0, sizes) if name == "bounded" else np.median(shrunk, 0)


@pytest.mark.parametrize(("name", "lanes"), [*((name, 3) for name in AGGREGATORS), ("median", 1)])
def test_updates_are_aggregated_as_numpy_would(name, lanes):
    fed = federation(clients(1, [13, 20, 17, 9, 31, 8]))
    algo = algorithm(fathom.tuners.fixed(), aggregator=AGGREGATORS[name])
    state = algo.init(jax.random.key(0), 6)
    _, info = one_round(algo, state, whole(fed), lanes=lanes)
    np.testing.assert_allclose(flat(info.update), expected(name, *updates(fed, algo, state)), atol=2e-6)


def test_order_statistics_leave_out_those_who_did_not_answer():
    name = "trimmed"
    fed = federation(clients(1, [13, 20, 17, 9, 31]))
    algo = algorithm(fathom.tuners.fixed(), aggregator=AGGREGATORS[name])
    cohort = whole(fed)
    absent = cohort._replace(size=cohort.size.at[jnp.array([0, 3])].set(0))
    state = algo.init(jax.random.key(0), 5)
    _, info = one_round(algo, state, absent)
    rows, sizes = updates(fed, algo, state)
    np.testing.assert_allclose(flat(info.update), expected(name, rows[[1, 2, 4]], sizes[[1, 2, 4]]), atol=2e-6)
    _, nobody = one_round(algo, state, cohort._replace(size=jnp.zeros(5, jnp.int32)))
    assert not flat(nobody.update).any()


def test_order_statistics_are_the_same_on_two_trials_and_two_lanes():
    fed = federation(clients(2, [13, 20, 17, 9, 31]))
    algo = algorithm(aggregator=aggregate.median())
    keys = jax.random.split(jax.random.key(0), 2)
    both = list(fathom.train(algo, fed, key=keys, rounds=3, cohort=4, lanes=2))
    alone = list(fathom.train(algo, fed, key=keys[1], rounds=3, cohort=4))
    for one, other in zip([r for r in both if r.trial == 1], alone, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


values = st.floats(-5, 5, width=32)


@settings(max_examples=200, deadline=None)
@given(
    honest=st.lists(st.lists(values, min_size=3, max_size=3), min_size=3, max_size=9),
    lie=st.lists(st.floats(-1e30, 1e30), min_size=3, max_size=3),
)
def test_one_client_cannot_move_an_order_statistic_beyond_the_others(honest, lie):
    rows = jnp.asarray([*honest, lie], jnp.float32)
    low, high = np.min(honest, 0), np.max(honest, 0)
    for aggregator in (aggregate.median(), aggregate.trimmed_mean(0.1)):
        found = np.asarray(aggregator.combine(None, rows, jnp.ones(len(rows))))
        assert (found >= low - 1e-5).all()
        assert (found <= high + 1e-5).all()


@settings(max_examples=200, deadline=None)
@given(norm=st.floats(0, 1e18), bound=st.floats(1e-3, 1e3))
def test_one_client_cannot_add_more_than_the_bound(norm, bound):
    for aggregator in (aggregate.norm_bound(aggregate.mean(), bound), aggregate.private(bound, 1.0)):
        assert float(aggregator.factor(jnp.asarray(norm, jnp.float32))) * norm <= bound * (1 + 1e-5)


def private_rounds(noise, seeds, rows, cohort=4, clip=0.5):
    """Private rounds in which nobody moves: what is left is noise. The updates, and the alignments the tuner saw."""
    tuner = fathom.Tuner(
        lambda key, hparams, params: (hparams, ()),
        lambda key, stats, state: (stats.hparams._replace(lr=stats.clients.alignment), ()),
    )
    task = fathom.Task(
        lambda key: jnp.zeros(rows), lambda params, batch, key: 0 * jnp.sum(params) * batch["x"], lambda p, b: {}
    )
    start = HParams(0.1, 1.0, 4.0)
    algo = fathom.federated(task, tuner=tuner, hparams=start, aggregator=aggregate.private(clip, noise))
    fed = fathom.Federation.from_arrays({i: {"x": np.ones(4, np.float32)} for i in range(cohort)})
    first = algo.init(jax.random.key(0), cohort)
    infos = [one_round(algo, first._replace(key=jax.random.key(seed)), whole(fed))[1] for seed in range(seeds)]
    seen = np.stack([info.next_hparams.lr for info in infos])
    assert (seen == seen[:, :1]).all()  # nobody's own
    return np.stack([info.update for info in infos]), seen[:, 0]


def test_noise_has_the_scale_it_is_accounted_for():
    clip, cohort, both = 0.5, 4, (1 + ALIGNMENT_SHARE**2) ** 0.5
    for noise in (0.5, 2.0):
        (one, other), _ = private_rounds(noise, 2, rows=200_000)
        assert one.std() == pytest.approx(noise * both * clip / cohort, rel=0.01)
        assert abs(one.mean()) < 0.01 * noise
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.01
    _, alignments = private_rounds(2.0, 300, rows=2)
    assert np.std(alignments) == pytest.approx(2.0 * both / ALIGNMENT_SHARE / cohort, rel=0.15)


def test_a_private_client_counts_for_one_however_much_it_has():
    fed = federation(clients(3, [200, 8, 8, 8]))
    algo = algorithm(fathom.tuners.fixed(), aggregator=aggregate.private(0.05, 1e-3))
    state = algo.init(jax.random.key(0), 4)
    _, info = one_round(algo, state, whole(fed))
    rows, _ = updates(fed, algo, state)
    clipped = rows * np.minimum(1, 0.05 / np.linalg.norm(rows, axis=1, keepdims=True))
    np.testing.assert_allclose(flat(info.update), clipped.mean(0), atol=1e-4)
    half = whole(fed)._replace(size=whole(fed).size.at[:2].set(0))
    _, info = one_round(algo, state, half)
    np.testing.assert_allclose(flat(info.update), clipped[2:].sum(0) / 4, atol=1e-4)  # divided by all, as noise is


def test_a_private_round_that_brought_nothing_looks_like_any_other():
    fed = federation(clients(3, [20]))
    fed.examples["x"][:] = np.nan
    algo = algorithm(fathom.tuners.fixed(), aggregator=aggregate.private(0.05, 1.0))
    state = algo.init(jax.random.key(0), 1)
    after, info = one_round(algo, state, whole(fed))
    assert int(info.rejected) == 1
    assert np.abs(flat(after.params) - flat(state.params)).min() > 0  # noise on every number
    assert len(records(algo, fed, 5, 1)) == 5


@pytest.mark.parametrize(
    ("fraction", "count", "cut"), [(0.3, 50, 15), (0.1, 10, 1), (0.1, 11, 2), (0.45, 3, 1), (0.0, 5, 0)]
)
def test_the_mean_is_trimmed_by_whole_clients(fraction, count, cut):
    found = aggregate.trimmed_mean(fraction).combine(None, jnp.arange(float(count)) ** 2, jnp.ones(count))
    assert float(found) == pytest.approx(np.mean(np.arange(cut, count - cut) ** 2.0), rel=1e-6)


def test_a_tuner_sees_nothing_of_a_client_under_a_private_aggregator():
    clients_ = ClientStats(*(jnp.asarray([3.0, 7.0, 0.0]) for _ in ClientStats._fields))
    hidden = aggregate.private(1.0, 1.0).signals(jax.random.key(0), clients_)
    assert hidden.examples.tolist() == [1, 1, 1]
    for name in ("steps", "grads", "loss", "drift"):
        assert not getattr(hidden, name).any()
    assert len(set(hidden.alignment.tolist())) == 1


@pytest.mark.slow
def test_fathom_trains_under_a_private_aggregator():
    fed = federation(clients(4, [40] * 50))
    got = records(algorithm(aggregator=aggregate.private(1.0, 0.1)), fed, 30, 40, test=fed.examples, every=30)
    plain = records(algorithm(), fed, 30, 40, test=fed.examples, every=30)
    assert got[-1].metrics["accuracy"] > plain[-1].metrics["accuracy"] - 0.1
    assert np.isfinite(got[-1].next_hparams.lr).all()


def test_a_tuner_that_needs_each_client_is_refused_under_a_private_aggregator():
    needy = fathom.tuners.fixed()._replace(per_client=True)
    with pytest.raises(ValueError, match="needs each client's own numbers, which a private aggregator hides"):
        algorithm(needy, aggregator=aggregate.private(1.0, 1.0))
    assert not any(make().per_client for name, make in fathom.tuners.TUNERS.items())


def test_epsilon_is_that_of_the_gaussian_mechanism_where_everybody_takes_part_once():
    """Against the exact curve of Balle and Wang (2018), which an accountant of Renyi divergence bounds from above."""
    from scipy.stats import norm

    for noise, delta in ((2.0, 1e-5), (8.0, 1e-6)):
        found = account(Privacy(noise, delta), clients=100, cohort=100, rounds=1)["epsilon"]
        scale = noise / 2  # replacing a client moves the sum twice as far as one can push it

        def exact(epsilon, scale=scale):
            a, b = 1 / (2 * scale) - epsilon * scale, -1 / (2 * scale) - epsilon * scale
            return norm.cdf(a) - np.exp(epsilon) * norm.cdf(b)

        assert exact(found) < delta
        assert exact(found / 1.2) > delta


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_sampling():
    def epsilon(noise=1.0, cohort=50, rounds=100):
        return account(Privacy(noise, 1e-5), 10_000, cohort, rounds)["epsilon"]

    assert epsilon(rounds=200) > epsilon() > epsilon(rounds=50) > 0
    assert epsilon(noise=2.0) < epsilon()
    assert epsilon(cohort=100) > epsilon()
    assert epsilon(rounds=0) == 0
    assert epsilon(noise=0.1, rounds=1) <= account(Privacy(0.1, 1e-5), 10_000, 10_000, 1)["epsilon"]
    # Full participation composes like one Gaussian of less noise.
    whole_ = account(Privacy(8.0, 1e-5), 10, 10, 16)["epsilon"]
    assert whole_ == pytest.approx(account(Privacy(2.0, 1e-5), 10, 10, 1)["epsilon"], rel=1e-6)


def test_a_private_run_says_in_its_summary_what_it_gave_away(tmp_path):
    table = {"name": "private", "clip": 1.0, "noise": 2.0}
    spec = specs.resolve({"task": "synthetic", "rounds": 3, "every": 2, "aggregate": table})
    for _ in runs.prepare(spec, tmp_path / "out").rows:
        pass
    told = json.loads((tmp_path / "out" / "summary.json").read_text())["privacy"]
    assert told == account(Privacy(2.0, 1e-5), clients=100, cohort=10, rounds=3)
    assert 0 < told["epsilon"] < 5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "private", "noise": 1.0}, "[aggregate] private needs clip."),
        ({"name": "private", "clip": 0.0, "noise": 1.0}, "clip=0.0 must be greater than 0 and finite."),
        ({"name": "private", "clip": 1.0, "noise": 1e-9}, "noise=1e-09 must be at least 0.001 and finite;"),
        ({"name": "private", "clip": 1.0, "noise": 1.0, "delta": 1.0}, "delta=1.0 must be between 0 and 1."),
        ({"name": "trimmed_mean", "fraction": 0.5}, "fraction=0.5 must be at least 0 and less than 0.5."),
        ({"name": "norm_bound", "bound": -1.0}, "bound=-1.0 must be greater than 0 and finite."),
        ("medain", "there is no aggregate 'medain'; choose from mean, median, trimmed_mean, norm_bound, private."),
    ],
)
def test_aggregators_that_make_no_sense_are_refused(table, message):
    with pytest.raises(specs.SpecError, match=re.escape(message)):
        specs.build(specs.resolve({"task": "synthetic", "aggregate": table}))


@pytest.mark.parametrize(
    "given", [{"dropout": 1.5}, {"stragglers": "often"}, {"guard": "no"}, {"dropout": float("nan")}]
)
def test_failures_that_make_no_sense_are_refused(given):
    with pytest.raises(specs.SpecError, match=next(iter(given))):
        specs.resolve({"task": "synthetic", **given})


def stats(rows, alignment, examples, hparams):
    """RoundStats from each client's update, alignment and examples, as a server would make them."""
    weights = examples / examples.sum()
    counts = jnp.asarray(examples, jnp.int32)
    zeros = jnp.zeros(len(examples))
    told = ClientStats(counts, counts, counts, zeros, jnp.asarray(alignment, jnp.float32), zeros)
    return RoundStats(hparams, jnp.asarray(weights @ rows, jnp.float32), told)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(2, 8), form=st.sampled_from(["reference", "printed"]))
def test_fathom_depends_on_clients_only_through_weighted_sums(seed, count, form):
    """Permuted, merged or split, contributions of the same sums lead to the same next state: a secure sum will do."""
    rng = np.random.default_rng(seed)
    rows, alignment = rng.normal(size=(count, 4)), rng.uniform(-1, 1, count)
    examples = rng.integers(1, 50, count).astype(np.float64) * 2
    tuner = fathom.tuners.fathom(form=form)
    params = jnp.asarray(rng.normal(size=4), jnp.float32)

    def after(rows, alignment, examples):
        hparams = HParams(*(jnp.full(len(examples), value, jnp.float32) for value in (0.1, 1.5, 12.0)))
        _, state = tuner.init(jax.random.key(0), hparams, params)
        state = jax.tree.map(lambda leaf: leaf + params, state)  # a past that agreement is measured against
        proposal, state = tuner.update(jax.random.key(1), stats(rows, alignment, examples, hparams), state)
        return [float(leaf[0]) for leaf in proposal], np.asarray(state)

    plain = after(rows, alignment, examples)
    order = rng.permutation(count)
    one = examples[:2] / examples[:2].sum()
    merged = (
        np.concatenate([[one @ rows[:2]], rows[2:]]),
        np.concatenate([[one @ alignment[:2]], alignment[2:]]),
        np.concatenate([[examples[:2].sum()], examples[2:]]),
    )
    split = (
        np.concatenate([[rows[0] + 1, rows[0] - 1], rows[1:]]),
        np.concatenate([[alignment[0] + 0.3, alignment[0] - 0.3], alignment[1:]]),
        np.concatenate([[examples[0] / 2, examples[0] / 2], examples[1:]]),
    )
    for other in ((rows[order], alignment[order], examples[order]), merged, split):
        hparams, state = after(*other)
        np.testing.assert_allclose(hparams, plain[0], rtol=1e-5)
        np.testing.assert_allclose(state, plain[1], rtol=1e-4, atol=1e-5)
