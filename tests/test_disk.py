import json

import numpy as np
import pytest

from fathom.data import disk
from fathom.data.disk import DataError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def some(count, seed=0, size=5):
    rng = np.random.default_rng(seed)
    for i in range(count):
        n = size + i % 3
        yield f"c{i}", {"x": rng.integers(0, 255, (n, 4, 4), np.uint8), "y": rng.integers(0, 9, n)}


def test_a_data_set_is_read_as_it_was_written(home):
    disk.write("mine", {"train": some(7), "test": some(7, 1, 1), "unseen": some(0)}, {"licence": "CC0"})
    data = disk.open_set("mine")
    assert list(data.splits) == ["train", "test"]
    assert data.meta["licence"] == "CC0"
    assert data.meta["splits"]["train"]["clients"] == 7
    for client, features in some(7):
        np.testing.assert_array_equal(data.splits["train"].client(client)["x"], features["x"])
        np.testing.assert_array_equal(data.splits["train"].client(client)["y"], features["y"])
    assert isinstance(data.splits["train"].examples["x"], np.memmap)
    assert disk.names() == ["mine"]
    assert [path.name for path in home.iterdir()] == ["mine"]
    disk.check("mine")


def test_a_changed_file_is_noticed(home):
    disk.write("mine", {"train": some(3)}, {})
    path = home / "mine" / "train" / "y.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="'train' have changed"):
        disk.check("mine")


def broken(clients):
    yield from clients
    raise RuntimeError("the source broke off")


@pytest.mark.parametrize(
    ("clients", "error", "message"),
    [
        (broken(some(3)), RuntimeError, "broke off"),
        (iter([("a", {"x": np.ones(3)}), ("a", {"x": np.ones(3)})]), DataError, "client 'a' appears twice"),
        (iter([("a", {"x": np.ones(3)}), ("b", {"x": np.ones((3, 2))})]), ValueError, "client 'b': 'x' has rows"),
        (iter([("a", {"x": np.array([1.0, np.nan])})]), ValueError, "'x' is not finite in example 1"),
        (iter([]), DataError, "no client has training examples"),
    ],
)
def test_a_write_that_fails_leaves_nothing_behind(home, clients, error, message):
    with pytest.raises(error, match=message):
        disk.write("mine", {"train": clients}, {})
    assert list(home.iterdir()) == []


def test_nothing_is_overwritten(home):
    disk.write("mine", {"train": some(3)}, {})
    before = (home / "mine" / "meta.json").read_text()
    with pytest.raises(DataError, match="there is a data set 'mine' already"):
        disk.write("mine", {"train": some(4)}, {})
    assert (home / "mine" / "meta.json").read_text() == before


@pytest.mark.parametrize("name", ["../mine", "/etc", "", ".hidden", "a/b", "a\\b"])
def test_names_do_not_lead_out_of_the_home(name):
    with pytest.raises(DataError, match="is not a name for a data set"):
        disk.open_set(name)


def test_missing_and_damaged_sets_say_what_to_do(home):
    with pytest.raises(DataError, match="there is no data set 'mine'; there is none yet"):
        disk.open_set("mine")
    disk.write("mine", {"train": some(3)}, {})
    with pytest.raises(DataError, match="no data set 'yours'; there are mine"):
        disk.open_set("yours")
    (home / "mine" / "train" / "clients.json").write_text(json.dumps(["one"]))
    with pytest.raises(DataError, match="cannot be read: train has 1 clients, 4 offsets"):
        disk.open_set("mine")


def test_a_large_federation_opens_at_once(home):
    import time

    clients = ((f"user_{i}", {"tokens": np.zeros((1, 21), np.uint16)}) for i in range(342_477))
    disk.write("many", {"train": clients}, {})
    began = time.perf_counter()
    data = disk.open_set("many")
    seconds = time.perf_counter() - began
    assert len(data.splits["train"]) == 342_477
    assert seconds < 5  # a second where nothing else runs; this only guards against reading everything
