import numpy as np
import pytest

import fathom
from fathom.data import at_least, cache, pooled, split, synthetic

A = {"x": np.ones((3, 2)), "y": np.array([0, 1, 2])}


def test_clients_keep_their_own_rows_in_order():
    fed = fathom.Federation.from_arrays({"a": A, 7: {"x": np.zeros((1, 2)), "y": np.array([5])}})
    assert fed.ids == ("a", "7")
    assert fed.sizes.tolist() == [3, 1]
    assert fed.client("7")["y"].tolist() == [5]
    assert fed.client(7)["y"].tolist() == [5]
    assert fed.examples["x"].dtype == np.float32
    assert fed.examples["y"].dtype == np.int32


def test_a_clients_name_depends_on_its_id_alone():
    one = fathom.Federation.from_arrays({"a": A, "b": A})
    other = fathom.Federation.from_arrays({"b": A, "c": A, "a": A})
    assert one.names(one.places(["a", "b"])).tolist() == other.names(other.places(["a", "b"])).tolist()


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({}, "at least one client"),
        ({"a": A, "b": {"x": np.ones((0, 2)), "y": np.ones(0, int)}}, "client 'b' has no examples"),
        ({"a": A, "b": {"x": np.ones((2, 2)), "y": np.ones(3, int)}}, "client 'b' has features of lengths"),
        ({"a": A, "b": {"x": np.ones((2, 2))}}, "client 'b' has features"),
        (
            {"a": A, "b": {"x": np.ones((2, 3)), "y": np.ones(2, int)}},
            r"client 'b': 'x' has rows of float32 \(3,\)",
        ),
        (
            {"a": A, "b": {"x": np.array([[1, 2], [np.nan, 3]]), "y": np.ones(2, int)}},
            "'x' is not finite in example 1",
        ),
        ({"a": {"x": np.array(["p", "q"])}}, "'x' holds <U1"),
        ({"a": {"x": np.array(3.0)}}, "lengths"),
        ({"1": A, 1: A}, "same when written as text"),
        ({"a": {}}, "no features"),
        ({"a": {"x": np.array([2**32 + 5])}}, "'x' holds integers beyond 32 bits"),
    ],
)
def test_data_that_cannot_be_trained_on_is_refused(clients, message):
    with pytest.raises(ValueError, match=message):
        fathom.Federation.from_arrays(clients)


def test_split_sets_a_share_of_every_client_aside():
    fed = fathom.Federation.from_arrays({i: {"x": np.arange(n) + 100 * i} for i, n in enumerate([1, 10, 25])})
    train, test = split(fed, 0.2)
    assert train.sizes.tolist() == [1, 8, 20]
    assert test["x"].tolist() == [108, 109, 220, 221, 222, 223, 224]
    assert train.client(1)["x"].tolist() == list(range(100, 108))


def test_the_cache_makes_things_once_and_again_when_damaged(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path))
    made = []

    def make():
        made.append(1)
        return {"a": np.arange(3)}

    for _ in range(2):
        assert cache.cached("thing", make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 1
    (tmp_path / "thing.npz").write_bytes(b"PK\x03\x04 not really")
    assert cache.cached("thing", make)["a"].tolist() == [0, 1, 2]
    assert len(made) == 2
    assert [p.name for p in tmp_path.iterdir()] == ["thing.npz"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("FATHOM_CACHE", str(blocked / "below"))
    assert cache.cached("thing", lambda: {"a": np.arange(3)})["a"].tolist() == [0, 1, 2]


def test_synthetic_clients_differ_with_alpha_and_beta():
    alike, apart = (synthetic.make(alpha, beta, clients=20) for alpha, beta in ((0, 0), (3, 3)))
    centres = [np.std([c["x"].mean() for c in made.values()]) for made in (alike, apart)]
    assert centres[1] > 3 * centres[0]
    assert all(50 <= len(c["y"]) <= 1000 and c["x"].shape[1] == 60 for c in apart.values())
    np.testing.assert_array_equal(synthetic.make(clients=3)["client_001"]["x"], synthetic.make()["client_001"]["x"])


def test_small_clients_can_be_left_out_without_copying():
    fed = fathom.Federation.from_arrays({i: {"x": np.arange(n) + 100 * i} for i, n in enumerate([3, 10, 5])})
    kept = at_least(fed, 5)
    assert kept.ids == ("1", "2")
    assert kept.examples["x"] is fed.examples["x"]
    assert pooled(kept)["x"].tolist() == [*range(100, 110), *range(200, 205)]
    with pytest.raises(ValueError, match="no client has 11 examples; the largest has 10"):
        at_least(fed, 11)
