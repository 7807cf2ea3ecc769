import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import fathom
from fathom.core import feed
from problems import algorithm, clients, federation, logistic, records
from test_engine import assert_same_run


def test_a_federation_too_large_for_the_device_trains_to_the_same_records(monkeypatch):
    fed = federation(clients(20, [3, 50, 17, 28, 9, 41, 12]))
    algo = algorithm(task=logistic(dropout=0.3))
    keys = jax.random.split(jax.random.key(1), 2)
    options = {"key": keys, "rounds": 5, "cohort": 3}
    whole = list(fathom.train(algo, fed, **options))
    monkeypatch.setattr(feed, "RESIDENT_BYTES", 0)
    assert_same_run(whole, list(fathom.train(algo, fed, **options)))


@pytest.mark.parametrize("devices", [1, 2])
def test_only_the_cohorts_rows_are_sent_each_to_the_device_that_works_on_it(devices, monkeypatch):
    monkeypatch.setattr(feed, "RESIDENT_BYTES", 0)
    fed = federation(clients(21, [10, 6, 3, 8, 7] * 10))
    sample, size = feed.sampler(fed, 5, 3)
    mesh = Mesh(np.array(jax.devices()[:devices]), ("clients",))
    shardings = NamedSharding(mesh, P()), NamedSharding(mesh, P("clients"))
    supplies = list(feed.feed(fed, sample, [[0, 1], [2, 3]], 1, 3, size, *shardings))
    most = {1: 2 * 5 * 10, 2: 2 * 3 * 10}[devices]
    for supply in supplies:
        assert supply.cohorts.examples["x"].shape == (devices * most, 5)
        places, start = np.concatenate(supply.places), supply.cohorts.start.reshape(-1)
        done = np.zeros(10, int)
        for device, jobs in enumerate(supply.dealt):
            rows = np.asarray(supply.cohorts.examples["x"].addressable_shards[device].data)
            for job in jobs[jobs < 10]:
                own = fed.client(fed.ids[places[job]])["x"]
                np.testing.assert_array_equal(rows[start[job] : start[job] + len(own)], own)
                done[job] += 1
        assert done.tolist() == [1] * 10


@settings(deadline=None)
@given(trials=st.integers(1, 3), cohort=st.integers(1, 20), devices=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_device_is_dealt_its_share_of_every_trial(trials, cohort, devices, seed):
    size = np.random.default_rng(seed).integers(0, 50, (trials, cohort))
    dealt = feed.deal(size, devices)
    count = trials * cohort
    assert dealt.shape == (devices, -(-count // devices))
    assert sorted(dealt[dealt < count].tolist()) == list(range(count))
    for trial in range(trials):
        shares = [(jobs[jobs < count] // cohort == trial).sum() for jobs in dealt]
        assert max(shares) - min(shares) <= 1
        rows = [size[trial, jobs[(jobs < count) & (jobs // cohort == trial)] % cohort].sum() for jobs in dealt]
        assert max(rows) - min(rows) <= size[trial].max()  # as cards dealt in order differ by at most the first


def test_a_run_that_is_left_early_leaves_no_thread_behind():
    import threading

    before = threading.active_count()
    run = fathom.train(algorithm(), federation(clients(22, [9, 9, 9])), key=jax.random.key(0), rounds=50, cohort=2)
    next(run)
    run.close()
    assert threading.active_count() == before


def test_several_test_sets_are_told_apart_by_name():
    fed = federation(clients(24, [9, 9, 9]))
    half = {name: feature[:10] for name, feature in fed.examples.items()}
    (record,) = records(algorithm(), fed, 1, 2, test={"test": fed.examples, "unseen": half})
    assert set(record.metrics) == {"accuracy", "loss", "unseen_accuracy", "unseen_loss"}
    (alone,) = records(algorithm(), fed, 1, 2, test=half)
    assert record.metrics["unseen_loss"] == alone.metrics["loss"]


def test_sampling_is_part_of_the_records_only_through_the_key():
    fed = federation(clients(23, list(range(1, 21))))
    one, other = ([r.clients.examples.tolist() for r in records(algorithm(), fed, 3, 5, seed=seed)] for seed in (0, 1))
    assert one != other
