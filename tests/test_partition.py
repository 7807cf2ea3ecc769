import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathom.data import disk
from fathom.data.disk import DataError
from fathom.data.partition import PARTITIONS, dirichlet, iid, shards
from fathom.data.single import partitioned
from test_importers import as_table, cut, parquet, png, writers


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


def written(home, *paths, clients=3, label=None):
    """The data set that comes of partitioning these files."""
    splits, meta = partitioned(paths, iid, {"clients": clients, "seed": 0}, label)
    return disk.write("mine", splits, meta)


def pairs(*parts):
    """Rows with their labels, in no order."""
    return sorted((x.tobytes(), int(y)) for part in parts for x, y in zip(part["x"], part["y"], strict=True))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def test_parquet_images_are_shared_out_with_their_labels(home, tmp_path):
    pytest.importorskip("pyarrow")
    table, first = as_table(writers("f1", "f2"))
    more, second = as_table(writers("f3", seed=1))
    test, tested = as_table(writers("f4", seed=2, size=7))
    for columns in (table, more, test):
        del columns["writer_id"]
    paths = [
        parquet(tmp_path / "train-0.parquet", table),
        parquet(tmp_path / "train-1.parquet", more),
        parquet(tmp_path / "test-0.parquet", test),
    ]
    data = written(home, *paths)
    assert data.splits["train"].sizes.tolist() == [13, 12, 12]
    assert data.splits["test"].sizes.tolist() == [3, 2, 2]
    assert pairs(data.splits["train"].examples) == pairs(*first.values(), *second.values())
    assert pairs(data.splits["test"].examples) == pairs(*tested.values())
    assert data.splits["train"].examples["x"].dtype == np.uint8
    assert len(data.meta["classes"]) == 1 + max(*table["character"], *more["character"], *test["character"])
    assert data.meta["source"] == "train-0.parquet, train-1.parquet, test-0.parquet"
    assert data.meta["preprocessing"] == "images as grey from 0 to 255; iid partition with clients=3, seed=0"


def test_parquet_numbers_are_shared_out_and_a_tenth_is_for_testing(home, tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = {
        "user_id": list(range(40)),  # not a feature
        "age": [float(i) for i in range(40)],
        "point": pa.array([[i, -i] for i in range(40)], pa.list_(pa.int32())),
        "answer": ["no" if i % 4 else "yes" for i in range(40)],
    }
    data = written(home, parquet(tmp_path / "t.parquet", table), clients=2, label="answer")
    assert data.splits["train"].sizes.tolist() == [18, 18]
    assert data.splits["test"].sizes.tolist() == [2, 2]
    parts = [data.splits[split].examples for split in ("train", "test")]
    assert all(set(part) == {"age", "point", "y"} for part in parts)
    age, point, y = (np.concatenate([part[name] for part in parts]) for name in ("age", "point", "y"))
    assert sorted(age.tolist()) == list(range(40))
    np.testing.assert_array_equal(point, np.stack([age, -age], 1))
    np.testing.assert_array_equal(y, age % 4 == 0)
    assert data.meta["classes"] == ["no", "yes"]


def test_parquet_that_cannot_be_partitioned(home, tmp_path):
    pa = pytest.importorskip("pyarrow")
    good, _ = as_table(writers("a"))
    path = tmp_path / "p.parquet"
    small = {"bytes": png(np.zeros((27, 28), np.uint8)), "path": None}

    def refused(message, *paths):
        with pytest.raises(DataError, match=message) as error:
            written(home, *paths)
        assert "\n" not in str(error.value)
        assert not home.exists() or list(home.iterdir()) == []

    def changed(column, row, value):
        return parquet(path, {**good, column: [*good[column][:row], value, *good[column][row + 1 :]]})

    refused("p.parquet: .*row 3 cannot be read", changed("image", 3, {"bytes": b"no image", "path": None}))
    refused("p.parquet: .*row 3 has an empty cell", changed("image", 3, None))
    refused(r"p.parquet: .*row 3 is an image of \(27, 28\)", changed("image", 3, small))
    refused("p.parquet: row 3 has no 'character'", changed("character", 3, None))
    refused("p.parquet: .*has label -1; labels are from 0", changed("character", 3, -1))
    refused("no label column character or label or y; it has 'image'", parquet(path, {"image": good["image"]}))
    refused("one needs to be an image or some numbers", parquet(path, {"label": good["character"]}))
    refused("p.parquet cannot be read", cut(parquet(path, good)))
    refused("gone.parquet: there is no such file", tmp_path / "gone.parquet")
    test = parquet(tmp_path / "test.parquet", {**good, "image": [small] * 12})
    refused(r"test.parquet: .*\(27, 28\)", parquet(path, good), test)
    refused("test.parquet is named like a test file", test)
    none = pa.table(good).slice(0, 0)
    refused(
        "empty.parquet has no rows", parquet(tmp_path / "empty.parquet", dict(zip(good, none.columns, strict=True)))
    )


def test_files_that_do_not_go_together(home, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.zeros(4, int))
    with pytest.raises(DataError, match=r"partition takes one .npz file; 2 were given"):
        written(home, tmp_path / "a.npz", tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"label='z' is a column of Parquet files; in .*a.npz the labels are called y"):
        written(home, tmp_path / "a.npz", label="z")


def test_parquet_without_pyarrow_says_what_to_install(home, tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.startswith(("pyarrow", "fathom.data.importers.parquet"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow, which is missing; pip install 'fathom\[data\]'"):
        written(home, tmp_path / "a.parquet")
