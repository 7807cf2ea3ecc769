import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.data.partition import PARTITIONS, dirichlet, iid, shards


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    examples=st.integers(40, 200),
    classes=st.integers(1, 10),
    clients=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_every_row_goes_to_exactly_one_client_and_none_is_left_out(name, examples, classes, clients, seed):
    labels = np.random.default_rng(seed).integers(0, classes, examples)
    hands = PARTITIONS[name](labels, clients, seed=seed)
    assert len(hands) == clients
    assert sorted(np.concatenate(hands).tolist()) == list(range(examples))
    assert min(len(hand) for hand in hands) >= 1
    again = PARTITIONS[name](labels, clients, seed=seed)
    assert all(np.array_equal(a, b) for a, b in zip(hands, again, strict=True))


def variety(hands, labels):
    """How many classes a client has, on average."""
    return np.mean([len(np.unique(labels[hand])) for hand in hands])


def test_clients_differ_as_asked():
    labels = np.random.default_rng(0).integers(0, 10, 5000)
    assert variety(iid(labels, 50), labels) > 9.9
    assert variety(shards(labels, 50, per_client=2), labels) < 4
    spread = [variety(dirichlet(labels, 50, alpha), labels) for alpha in (0.05, 0.5, 100)]
    assert spread[0] < 4 < spread[1] < spread[2]
    assert spread[2] == pytest.approx(10, abs=0.1)
