"""FATHOM from any start: clients check their steps, and the learning rate follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fathom
from fathom import HParams, aggregate, tuners
from fathom.core.plan import Slots
from fathom.core.trees import cosine
from fathom.tuners.plumb import consensus, likeness, verdict
from problems import START, algorithm, clients, federation, logistic, one_round, records, whole
from reference import likeness as pairwise
from reference import run
from test_tuners import START as HPARAMS
from test_tuners import stats

LARGE = HPARAMS._replace(batch=jnp.full(4, 100.0))  # batches of more than the 25 examples that clients have
PLUMB = {"rates": (0.1, 0.5, 2.0), "alpha": 0.9, "checks": True}


@pytest.mark.parametrize(
    ("lr", "batch", "rounds", "local"),
    [(0.001, 8, 4, {}), (3.0, 8, 14, {}), (0.01, 100, 4, {}), (0.5, 8, 4, {"momentum": 0.7})],
)
def test_the_engine_checks_steps_as_the_reference_does(lr, batch, rounds, local):
    data = clients(3, [9, 30, 14, 55])
    opt = fathom.optimizers.momentum(0.7) if local else None
    algo = algorithm(tuners.plumb(), lr, 1.3, batch, client_opt=opt, guard=False)
    got = records(algo, federation(data), rounds, [range(4)] * rounds, order="cyclic")
    want = run(START, data, [range(4)] * rounds, lr, 1.3, batch, **PLUMB, **local)
    for record, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(record.agreement, expected["agreement"], atol=2e-3)
        np.testing.assert_allclose(record.clients.foretold, expected["foretold"], rtol=2e-3)
        np.testing.assert_allclose(record.clients.gained, expected["gained"], atol=2e-3 * max(expected["foretold"]))
        assert record.gain == pytest.approx(expected["gain"], abs=2e-3)
        for value, reference in zip(record.next_hparams, expected["next"], strict=True):
            np.testing.assert_allclose(value, reference, rtol=2e-3)


def test_the_engine_calms_rounds_that_undo_each_other_as_the_reference_does():
    data = clients(3, [9, 30, 14, 55])
    data = [(x, y if i < 2 else 1 - y) for i, (x, y) in enumerate(data)]  # two of them pull the other way
    cohorts = [(0, 1), (2, 3)] * 4
    got = records(algorithm(tuners.plumb(), 0.3, 1.0, 4, guard=False), federation(data), 8, cohorts, order="cyclic")
    want = run(START, data, cohorts, 0.3, 1.0, 4, **PLUMB)
    assert max(record["agreement"] for record in want[1:4]) < 0
    for record, expected in zip(got, want, strict=True):
        for value, reference in zip(record.next_hparams, expected["next"], strict=True):
            np.testing.assert_allclose(value, reference, rtol=2e-3)


@pytest.mark.parametrize(("slots", "lanes"), [(Slots(3, split=True), 3), (Slots(24, split=False), 1)])
def test_lanes_and_slots_do_not_change_what_is_found(slots, lanes):
    fed = federation(clients(4, [9, 30, 14, 55, 1]))
    algo = algorithm(tuners.plumb(), 0.7, 1.7, 20.0)
    state = algo.init(jax.random.key(1), 5)
    want, _ = one_round(algo, state, whole(fed), slots=Slots(16, split=True))
    got, info = one_round(algo, state, whole(fed), slots=slots, lanes=lanes)
    np.testing.assert_allclose(got.hparams.lr, want.hparams.lr, rtol=1e-4)
    np.testing.assert_allclose(got.params["w"], want.params["w"], atol=1e-5)
    assert info.clients.grads.tolist() == [18, 80, 42, 120, 2]  # a batch more than the steps need


def test_the_look_back_drops_out_what_the_step_did_and_goes_by_the_steps_that_were_taken():
    fed = federation(clients(5, [40, 30, 25]))
    algo = algorithm(tuners.plumb(), 0.01, 2.0, 8.0, task=logistic(dropout=0.5), stragglers=0.5)
    states = jax.vmap(lambda key: algo.init(key, 3))(jax.random.split(jax.random.key(3), 2))
    cohorts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), whole(fed)._replace(examples=()))
    _, info = jax.jit(algo.rounds)(states, cohorts._replace(examples=fed.examples))
    told, came = np.asarray(info.clients.foretold), np.asarray(info.clients.gained)
    worked = np.asarray(info.clients.steps) > 0
    assert np.all(np.asarray(info.clients.grads) == np.where(worked, np.asarray(info.clients.steps) + 1, 0) * 8)
    np.testing.assert_allclose(came[worked], told[worked], rtol=0.1)  # short steps, of the same rows and dropout
    assert np.all(told[~worked] == 0)


def parabola(curvature):
    """Half `curvature` times the squared distance from 0, for every example alike."""
    return fathom.Task(
        lambda key: jnp.ones(()),
        lambda params, batch, key: jnp.full(batch["x"].shape[0], 0.5 * curvature * params**2),
        lambda params, batch: {},
    )


def after_one_step(task, lrs, done=20):
    """Where a parabola's model is after one step from 1, for each learning rate, when so many rounds are done."""
    fed = fathom.Federation.from_arrays({0: {"x": np.zeros(4)}})
    algo = algorithm(tuners.plumb(), 1.0, 1.0, 4.0, task=task)
    state = algo.init(jax.random.key(0), 1)

    @jax.jit
    def step(lr):
        late = state._replace(round=jnp.int32(done), hparams=state.hparams._replace(lr=lr[None]))
        return algo.round(late, whole(fed))[0].params

    return [float(step(jnp.float32(lr))) for lr in lrs]


def test_along_a_parabola_no_step_is_longer_than_what_is_still_stable():
    came_to = after_one_step(parabola(5.0), [0.1, 0.3, 0.399, 0.5, 1e4])  # stable below 2 / 5
    np.testing.assert_allclose(came_to, [0.5, -0.5, -0.995, -1.0, -1.0], rtol=1e-5)


def test_the_first_rounds_are_careful():
    came_to = after_one_step(parabola(5.0), [0.01, 1e4], done=0)  # a twentieth of the reach
    np.testing.assert_allclose(came_to, [0.95, 0.9], rtol=1e-5)


def test_a_loss_below_zero_bounds_no_step():
    task = parabola(5.0)
    below = task._replace(loss=lambda params, batch, key: task.loss(params, batch, key) - 100.0)
    np.testing.assert_allclose(after_one_step(below, [0.5]), [-1.5], rtol=1e-5)


def after_a_round(rounds=1, hparams=HPARAMS, agreement=1.0):
    """The tuner, and its state after so many rounds one way that agreed so much, when it has proposed `hparams`."""
    tuner = tuners.plumb()
    _, past = tuner.init(jax.random.key(0), hparams, stats().update)
    for _ in range(rounds):
        _, past = tuner.update(jax.random.key(0), stats(), past)
    return tuner, past._replace(batch=hparams.batch, agreement=jnp.float32(agreement), landed=jnp.asarray(rounds > 0))


@pytest.mark.parametrize(
    ("batch", "gain", "pull"),
    [
        *((20, 1.0, 4.0), (20, 0.8, np.log(2)), (20, 0.6, 0.0), (20, 0.125, 0.0), (20, 0.0625, -0.5), (20, 0, -1)),
        *((1, 0.5, 0.0), (1, 0.25, -0.5), (1, -1, -1), (2, 0.25, 0.0), (2, 0.125, -0.5)),  # smaller batches: more
        *((60, 0.125, 0.0), (60, 0.0625, -0.5)),  # of 25 examples
    ],
)
def test_the_learning_rate_follows_what_steps_brought(batch, gain, pull):
    hparams = HPARAMS._replace(batch=jnp.full(4, float(batch)))
    tuner, state = after_a_round(1, hparams, agreement=0.0)
    now = stats(hparams, scale=0.0, gain=gain, alignment=0.0)  # which agrees with nothing
    proposal, _ = tuner.update(jax.random.key(0), now, state._replace(likeness=jnp.zeros(())))
    sure = 0.4 if pull > 0 else 1  # four clients: what they found may be chance
    wider = np.sqrt(min(float(proposal.batch[0]), 25) / min(batch, 25))
    np.testing.assert_allclose(proposal.lr, 0.1 * np.exp(0.5 * sure * pull) * wider, rtol=1e-5)


@pytest.mark.parametrize(
    ("gain", "found"), [(1e-4, 3e-4), (0.3, 0.9), (1 / 3, 1.0), (0.5, 1.0), (0.8, 2**0.4), (0.0, 1.0), (-1.0, 1.0)]
)
def test_the_first_round_tells_how_long_steps_really_were(gain, found):
    small = HPARAMS._replace(batch=jnp.ones(4))
    tuner, state = after_a_round(0, small)
    proposal, _ = tuner.update(jax.random.key(0), stats(small, gain=gain, alignment=0.0), state)
    np.testing.assert_allclose(proposal.lr, 0.1 * np.exp(0.1) * found, rtol=1e-5)


def test_a_first_round_that_brought_nothing_leaves_it_to_the_next_to_tell():
    small = HPARAMS._replace(batch=jnp.ones(4))
    tuner, past = after_a_round(0, small)
    for gain, found in ((-0.5, 1.0), (-0.1, 1.0), (1e-4, 3e-4), (0.3, 1.0)):
        before = past.landed
        now = stats(small, gain=gain, alignment=0.0, scale=0.0)
        proposal, past = tuner.update(jax.random.key(0), now, past._replace(agreement=jnp.zeros(()), batch=small.batch))
        shorter = 0.5 * (1 - 0.3 / 0.5) if before else 0.0
        np.testing.assert_allclose(proposal.lr, 0.1 * found * np.exp(-shorter) * np.sqrt(proposal.batch), rtol=1e-5)


def test_it_has_a_start_of_its_own_and_refuses_another():
    tuner = tuners.clamp(tuners.plumb(), high=HParams(100.0, 10.0, 5096.0))
    state = fathom.federated(logistic(), tuner=tuner).init(jax.random.key(0), 3)
    assert [float(leaf[0]) for leaf in state.hparams] == [100.0, 1.0, 4.0]
    with pytest.raises(ValueError, match="this tuner has first values of its own"):
        fathom.federated(logistic(), tuner=tuners.plumb(), hparams=HParams(0.1, 1.0, 20.0))


@pytest.mark.parametrize("scale", [1e-2, 1e3])
def test_the_scale_of_the_loss_does_not_matter(scale):
    task, fed = logistic(), federation(clients(7, [9, 30, 14, 55]))
    scaled = task._replace(loss=lambda *of: scale * task.loss(*of))
    ends = []
    for each in (task, scaled):
        algo = fathom.federated(each, tuner=tuners.plumb())
        ends.append(records(algo, fed, 12)[-1])
    np.testing.assert_allclose(ends[1].next_hparams.lr * scale, ends[0].next_hparams.lr, rtol=1e-2)
    np.testing.assert_allclose(ends[1].next_hparams.batch, ends[0].next_hparams.batch, rtol=1e-2)
    np.testing.assert_allclose(ends[1].gain, ends[0].gain, atol=1e-2)


@pytest.mark.parametrize(
    ("examples", "sure"), [((9, 0, 0, 0), 0.1), ((9, 1, 0, 0), 0.2), ((9,) * 10, 1), ((9,) * 40, 1)]
)
def test_what_few_clients_found_lengthens_steps_in_proportion(examples, sure):
    def there(value):
        return jnp.full(len(examples), value, jnp.float32)

    def found(gain):
        told = stats(gain=gain).clients._replace(examples=jnp.asarray(examples), foretold=there(1), gained=there(gain))
        return float(verdict(stats()._replace(hparams=HParams(*map(there, (0.1, 1, 20))), clients=told)))

    assert found(0.8) == pytest.approx(sure * np.log(2), rel=1e-5)
    assert found(0.0625) == pytest.approx(-0.5, rel=1e-5)


@pytest.mark.parametrize(("direction", "number", "pull"), [(1, 2, 0.1), (-1, 3, -0.1), (-1, 20, -0.05), (1, 20, 0.1)])
def test_updates_that_do_not_agree_lower_the_learning_rate_no_faster_than_one_over_t(direction, number, pull):
    tuner, past = after_a_round(number - 1, LARGE, direction)
    hparams, _ = tuner.update(jax.random.key(0), stats(LARGE, scale=direction, alignment=0.0), past)
    np.testing.assert_allclose(hparams.lr, 0.1 * np.exp(pull), rtol=1e-5)


def test_a_wild_round_does_not_drown_those_after_it():
    tuner, past = after_a_round(0)
    for scale in (-1000.0, 1.0, 1.0):
        _, past = tuner.update(jax.random.key(0), stats(scale=scale), past)
    past = past._replace(batch=HPARAMS.batch, agreement=jnp.ones(()))
    hparams, _ = tuner.update(jax.random.key(0), stats(alignment=0.0), past)
    np.testing.assert_allclose(hparams.lr, 0.1 * np.exp(0.1), rtol=1e-5)  # agrees with two of three


@pytest.mark.parametrize(
    ("direction", "alignment", "fall"), [(1, 0.3, 0.6), (1, -0.3, -0.6), (-1, 0.3, -0.2), (-1, -0.3, -0.8)]
)
def test_batches_shrink_only_where_rounds_agree(direction, alignment, fall):
    tuner, past = after_a_round(agreement=direction)
    now = stats(scale=direction, alignment=alignment)
    hparams, _ = tuner.update(jax.random.key(0), now, past)
    np.testing.assert_allclose(hparams.batch, HPARAMS.batch * np.exp(-fall), rtol=1e-5)
    if direction > 0:  # the learning rate goes with the square root of batches, as far as clients have 25 examples
        wider = np.sqrt(np.minimum(hparams.batch, 25) / HPARAMS.batch)
        np.testing.assert_allclose(hparams.lr, 0.1 * np.exp(0.1) * wider, rtol=1e-5)


def test_batches_larger_than_what_clients_have_shrink_from_what_they_have():
    tuner, past = after_a_round(1, LARGE)
    hparams, _ = tuner.update(jax.random.key(0), stats(LARGE, alignment=0.3), past)
    np.testing.assert_allclose(hparams.batch, 25 * np.exp(-0.6), rtol=1e-5)
    np.testing.assert_allclose(hparams.lr, 0.1 * np.exp(0.1 - 0.3), rtol=1e-5)
    twice = LARGE._replace(epochs=jnp.full(4, 2.0))  # batches of 50 make one step of it, those of 25 two
    hparams, _ = tuner.update(jax.random.key(0), stats(twice, alignment=0.3), past)
    np.testing.assert_allclose(hparams.batch, 50 * np.exp(-0.6), rtol=1e-5)


def test_a_round_of_a_small_client_alone_does_not_change_what_clients_have():
    tuner, past = after_a_round()
    hparams, _ = tuner.update(jax.random.key(0), stats(alignment=0.3, examples=(2, 0, 0, 0)), past)
    np.testing.assert_allclose(hparams.batch, 20 * np.exp(-0.6), rtol=1e-5)


@pytest.mark.parametrize(("batch", "grown"), [(50.0, 50 * np.exp(1.0)), (200.0, 250.0), (1e6, 250.0)])
def test_batches_grow_no_further_than_ten_times_what_clients_have(batch, grown):
    tuner, past = after_a_round()
    large = HPARAMS._replace(batch=jnp.full(4, batch))
    hparams, _ = tuner.update(jax.random.key(0), stats(large, alignment=-0.5), past)
    np.testing.assert_allclose(hparams.batch, grown, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [1.0, -0.1])
def test_a_memory_that_forgets_nothing_is_refused(smoothing):
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        tuners.plumb(smoothing=smoothing)


@pytest.mark.parametrize("alignment", [0.5, -0.5])
def test_a_batch_that_is_held_moves_the_learning_rate_but_once(alignment):
    held = HParams(1e-6, 0.01, 20.0), HParams(1000.0, 10.0, 20.0)
    tuner = tuners.clamp(tuners.plumb(lr_rate=0.0), *held)
    hparams, state = tuner.init(jax.random.key(0), HPARAMS, stats().update)
    for _ in range(20):
        hparams, state = tuner.update(jax.random.key(0), stats(hparams, alignment=alignment), state)
    wider = np.sqrt(20 * np.exp(-1) / 20) if alignment > 0 else np.sqrt(25 / 20)
    np.testing.assert_allclose(hparams.lr, 0.1 * wider, rtol=1e-4)


def test_the_first_round_has_no_past_and_goes_by_what_clients_share():
    tuner, state = after_a_round(0)
    hparams, past = tuner.update(jax.random.key(0), of_clients([2.0] * 4), state)
    together = np.sqrt(4 / 3 / 2)  # of a cosine of 1/3
    np.testing.assert_allclose(hparams.batch, HPARAMS.batch * np.exp(-2 * (together - 0.1)), rtol=1e-4)
    np.testing.assert_allclose(hparams.epochs, np.exp(0.5 * 3 * np.sqrt(1 / 3)), rtol=1e-4)
    assert float(past.agreement) == 1
    _, past = tuner.update(jax.random.key(0), stats(scale=-1.0), past)
    np.testing.assert_allclose(past.agreement, -1, rtol=1e-5)  # the first that there is


def test_batches_shrink_no_further_than_rounds_agree():
    tuner, past = after_a_round()
    leaves, tree = jax.tree.flatten(stats().update)
    turned = jax.tree.unflatten(tree, [leaf.at[..., 0].multiply(-0.5) for leaf in leaves])
    agreement = float(cosine(turned, past.direction))
    assert 0.1 < agreement < 0.85
    past = past._replace(agreement=jnp.float32(agreement))
    hparams, _ = tuner.update(jax.random.key(0), stats(alignment=0.9)._replace(update=turned), past)
    np.testing.assert_allclose(hparams.batch, HPARAMS.batch * np.exp(-2 * agreement), rtol=1e-5)


def test_the_agreement_is_that_of_many_rounds():
    tuner, past = after_a_round(0)
    scales = (
        1.0,
        1.0,
        1.0,
        -1.0,
        1.0,
        1.0,
    )  # the past goes on pointing forward; the first round has none
    for scale in scales:
        hparams, past = tuner.update(jax.random.key(0), stats(scale=scale, alignment=0.0), past)
    mean = np.average(scales[1:], weights=0.9 ** np.arange(5)[::-1])
    np.testing.assert_allclose(past.agreement, mean, rtol=1e-5)
    past = past._replace(batch=HPARAMS.batch)
    hparams, past = tuner.update(jax.random.key(0), stats(scale=-1.0, alignment=0.9), past)  # one that undoes a part
    assert float(past.agreement) > 0
    np.testing.assert_allclose(hparams.batch, HPARAMS.batch * np.exp(-2 * past.agreement), rtol=1e-5)


@pytest.mark.parametrize("number", [3, 20, 200])
def test_rounds_that_undo_each_other_are_calmed_by_batches_and_then_by_the_learning_rate(number):
    step = min(0.1, 1 / number)
    small = HPARAMS._replace(batch=jnp.full(4, 5.0))
    for hparams, lr in ((small, 0.1), (LARGE, 0.1 * np.exp(-step))):  # of 5 they may grow, of 100 they are whole
        tuner, past = after_a_round(number - 1, hparams, agreement=-1.0)
        proposal, _ = tuner.update(jax.random.key(0), stats(hparams, scale=-1.0), past)
        np.testing.assert_allclose(proposal.batch, hparams.batch * np.exp(2 * step), rtol=1e-5)
        np.testing.assert_allclose(proposal.lr, lr, rtol=1e-5)


def of_clients(shares, sizes=(25, 25, 25, 25)):
    """A round of clients whose updates have these squared lengths, over that of their mean."""
    now = stats(examples=sizes, alignment=0.9)
    length = sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(now.update))
    return now._replace(clients=now.clients._replace(drift=jnp.asarray(shares) * length))


@pytest.mark.parametrize("rounds", [1, 4])
@pytest.mark.parametrize(
    ("times", "alike"),  # squared length of the clients' updates over that of their mean, four clients
    [(1.0, 1.0), (2.0, 1 / 3), (3.0, 1 / 9), (4.0, 0.0), (100.0, 0.0)],  # nothing in common: batches grow
)
def test_clients_that_have_little_in_common_work_little_on_their_own(times, alike, rounds):
    tuner, past = after_a_round()
    for _ in range(rounds):
        hparams, past = tuner.update(jax.random.key(0), of_clients([times] * 4), past._replace(batch=HPARAMS.batch))
    weight = sum(0.9**age for age in range(rounds))
    before = 0.9**rounds  # of the round in which all were alike
    alike = (before + weight * (alike if times < 100 else (1 / 25 - 1) / 3)) / (before + weight)
    together = np.sqrt(4 * alike / (1 + 3 * alike)) if alike > 0 else 0.0
    np.testing.assert_allclose(hparams.batch, HPARAMS.batch * np.exp(-2 * min(together - 0.1, 0.9)), rtol=1e-4)
    np.testing.assert_allclose(hparams.epochs, np.exp(0.5 * 3 * np.sqrt(max(alike, 0))), rtol=1e-4)


def test_noise_in_what_clients_share_cancels_out_over_rounds():
    tuner, past = after_a_round(0)
    for times in (2.0, 8.0) * 20:  # cosines of 1/3 and -1/6
        _, past = tuner.update(jax.random.key(0), of_clients([times] * 4), past)
    newest = 0.1 * sum(0.9 ** (2 * age) for age in range(20)) / (1 - 0.9**40)
    np.testing.assert_allclose(past.likeness, -1 / 6 * newest + 1 / 3 * (1 - newest), rtol=1e-4)


def test_what_is_shared_is_what_updates_of_different_clients_have_in_common():
    key = jax.random.key(8)
    sizes = np.array([5, 20, 1, 60])
    updates = jax.random.normal(key, (4, 12)) + 0.5
    mean = jnp.asarray(sizes / sizes.sum()) @ updates
    drift = jnp.sum(updates**2, 1)
    now = stats(examples=sizes)
    now = now._replace(update={"w": mean}, clients=now.clients._replace(drift=drift))
    np.testing.assert_allclose(likeness(now, jnp.ones(())), pairwise(np.asarray(updates, float), sizes), rtol=1e-4)


@pytest.mark.parametrize(("examples", "drift"), [((25, 0, 0, 0), 1.0), ((25, 25, 25, 25), 0.0)])
def test_a_client_alone_or_clients_that_did_not_move_tell_nothing_of_what_is_shared(examples, drift):
    tuner, past = after_a_round()
    past = past._replace(likeness=jnp.float32(0.3))
    now = of_clients([drift] * 4, sizes=examples)
    _, after = tuner.update(jax.random.key(0), now, past)
    np.testing.assert_allclose(after.likeness, 0.3, rtol=1e-6)


def test_what_one_client_shares_does_not_depend_on_how_many_are_asked():
    common, rng = np.ones(3000), np.random.default_rng(0)
    found = []
    for count in (10, 100, 1000):
        updates = common + 3 * rng.standard_normal((count, 3000))
        clients = stats().clients
        ones = jnp.ones(count)
        clients = clients._replace(examples=ones, drift=jnp.asarray(np.sum(updates**2, 1)))
        now = stats()._replace(update={"w": jnp.asarray(updates.mean(0))}, clients=clients)
        found.append(likeness(now, ones[0]))
        mean = updates.mean(0)
        want = mean @ common / np.sqrt(mean @ mean * (common @ common))
        np.testing.assert_allclose(consensus(now, found[-1]), [1 / np.sqrt(10), want], rtol=0.05)
    np.testing.assert_allclose(found, 0.1, rtol=0.1)  # 1 in common to 9 of its own


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_client_by_itself_is_taken_to_be_like_the_others(rounds):
    tuner, past = after_a_round(rounds)
    _, past = tuner.update(jax.random.key(0), of_clients([1.0] * 4, sizes=(25, 0, 0, 0)), past)
    np.testing.assert_allclose(past.likeness, 1.0)


def test_batches_grow_for_calm_at_any_batch_rate():
    small = HPARAMS._replace(batch=jnp.full(4, 5.0))
    _, past = after_a_round(9, small, agreement=-1.0)
    hparams, _ = tuners.plumb(batch_rate=1.0).update(jax.random.key(0), stats(small, scale=-1.0), past)
    np.testing.assert_allclose(hparams.batch, 5 * np.exp(0.2), rtol=1e-5)


def test_a_client_by_itself_differs_from_nobody():
    tuner, past = after_a_round()
    hparams, _ = tuner.update(jax.random.key(0), of_clients([1.0] * 4, sizes=(25, 0, 0, 0)), past)
    np.testing.assert_allclose(hparams.epochs, np.exp(0.5 * 3), rtol=1e-5)
    np.testing.assert_allclose(hparams.batch, HPARAMS.batch * np.exp(-2 * 0.9), rtol=1e-5)


@pytest.mark.parametrize("epochs", [0.2, 1.0, 9.0])
def test_epochs_go_half_the_way_to_what_they_are_worth(epochs):
    tuner, past = after_a_round(agreement=-1.0)
    before = HPARAMS._replace(epochs=jnp.full(4, epochs))
    opposite = stats(before, scale=-1.0)
    hparams, _ = tuner.update(jax.random.key(0), opposite, past)
    np.testing.assert_allclose(hparams.epochs, np.sqrt(epochs * np.exp(-3.0)), rtol=1e-5)


@pytest.mark.parametrize("rounds", [0, 1])
def test_silence_changes_nothing(rounds):
    tuner, past = after_a_round(rounds)
    before = HPARAMS._replace(epochs=jnp.full(4, 9.0))
    after = tuner.update(jax.random.key(0), stats(before, scale=0.0, examples=(0, 0, 0, 0)), past)
    jax.tree.map(np.testing.assert_array_equal, after, (before, past))


def test_batches_of_one_take_no_learning_rate_with_them():
    single = HPARAMS._replace(batch=jnp.ones(4))
    tuner, past = after_a_round(1, single)
    hparams, _ = tuner.update(jax.random.key(0), stats(single, alignment=0.5), past)
    np.testing.assert_allclose(hparams.batch, 1.0)
    np.testing.assert_allclose(hparams.lr, 0.1 * np.exp(0.1), rtol=1e-5)


def test_clients_are_read_through_sums_alone():
    tuner, state = after_a_round()
    weights = np.array([10.0, 20.0, 30.0, 40.0])
    told = {"foretold": np.array([1.0, 2.0, 0.5, 3.0]), "gained": np.array([0.9, 1.9, -0.1, 2.9])}
    means = {name: np.full(4, np.average(values, weights=weights)) for name, values in told.items()}
    told["drift"] = np.array([60.0, 200.0, 120.0, 40.0])
    means["drift"] = np.full(4, np.average(told["drift"], weights=weights**2))
    apart, merged = (
        stats()._replace(clients=stats().clients._replace(**{n: jnp.asarray(v, jnp.float32) for n, v in each.items()}))
        for each in (told, means)
    )
    for a, b in zip(*(tuner.update(jax.random.key(0), s, state)[0] for s in (apart, merged)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert 0.01 < float(likeness(apart, jnp.ones(()))) < 0.8
    assert tuner.scalars_up == 4


def test_a_private_aggregator_refuses_it():
    with pytest.raises(ValueError, match="what clients' last steps brought"):
        algorithm(tuners.plumb(), aggregator=aggregate.private(1.0, 1.0))


def test_from_any_start_the_learning_rate_comes_to_the_same():
    task, federation, _ = fathom.tasks.load("synthetic", clients=30)
    bounded = tuners.clamp(tuners.plumb(), high=HParams(tuners.SELF_BOUND["plumb"], 10.0, 5096.0))  # as in `fathom run`
    ends = {}
    for lr in (1e-5, 1.0, None):  # the last: its own
        tuner, start = (bounded, None) if lr is None else (bounded._replace(first=None), HParams(lr, 1.0, 10.0))
        algo = fathom.federated(task, tuner=tuner, hparams=start)
        rates = [record.hparams.lr[0] for record in records(algo, federation, 30, 10)]
        ends[lr] = np.exp(np.mean(np.log(rates[-10:])))
    assert max(ends.values()) < 3 * min(ends.values()), ends
