import jax
import numpy as np

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


def test_only_the_cohorts_rows_are_sent(monkeypatch):
    monkeypatch.setattr(feed, "RESIDENT_BYTES", 0)
    fed = federation(clients(21, [10] * 50))
    sent = []
    sample, size = feed.sampler(fed, 4, 3)
    supplies = list(feed.feed(fed, sample, [[0, 1]], 3, size, lambda rows: sent.append(rows) or rows))
    assert {rows["x"].shape for rows in sent} == {(40, 5)}
    for supply in supplies:
        for place, start in zip(supply.places[0], supply.cohorts.start[0], strict=True):
            np.testing.assert_array_equal(
                supply.cohorts.examples["x"][start : start + 10], fed.client(fed.ids[place])["x"]
            )


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
