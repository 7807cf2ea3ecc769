import csv
import gzip
import io
import json
import lzma
import sqlite3
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from fathom.data import disk, text
from fathom.data.disk import DataError
from fathom.data.importers import IMPORTERS, importer

SHARED = Path(__file__).parents[2] / "shared" / "data"
WORDS = ["the", "cat", "sat"]
INDEX = text.numbered(WORDS)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def take(kind, *paths, **options):
    made = importer(kind)(list(paths), **options)
    return disk.write("mine", made.splits, made.meta)


def refused(home, message, kind, *paths, **options):
    """The import fails with this message, in one line, and leaves nothing behind."""
    with pytest.raises(DataError, match=message) as error:
        take(kind, *paths, **options)
    assert "\n" not in str(error.value)
    assert not home.exists() or list(home.iterdir()) == []


def same(data, split, clients):
    """The split has these clients with these examples, and no others."""
    assert sorted(data.splits[split].ids) == sorted(clients)
    for client, features in clients.items():
        found = data.splits[split].client(client)
        assert found.keys() == features.keys()
        for name, feature in features.items():
            assert found[name].dtype == feature.dtype
            np.testing.assert_array_equal(found[name], feature)
    disk.check(data.path.name)


def writers(*names, seed=0, size=12):
    rng = np.random.default_rng(seed)
    sizes = {name: size + i for i, name in enumerate(names)}
    return {
        name: {"x": rng.integers(0, 256, (n, 28, 28), np.uint8), "y": rng.integers(0, 62, n, np.uint8)}
        for name, n in sizes.items()
    }


def cut(path, share=0.5):
    """The file, broken off."""
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


# text


def test_a_sentence_ends_only_where_there_is_room():
    rows = text.encode(["the cat ran", "", " ".join(["cat"] * 19), " ".join(["cat"] * 20), "sat " * 30], INDEX)
    assert rows.dtype == np.uint16
    assert rows.tolist() == [
        [1, 3, 4, 6, 2] + [0] * 16,
        [1, 2] + [0] * 19,
        [1] + [4] * 19 + [2],
        [1] + [4] * 20,
        [1] + [5] * 20,
    ]
    assert text.encode([], INDEX).shape == (0, 21)


def test_a_vocabulary_is_the_most_frequent_words_first(tmp_path):
    counts = text.count(["b a", ["c", "a"], "b d"])
    assert text.vocabulary(counts, 3) == ["b", "a", "c"]
    (tmp_path / "lines").write_text("b 2\na 2\n{ 1\nc 1\n")
    assert text.vocabulary(tmp_path / "lines", 3) == ["b", "a", "{"]
    (tmp_path / "json").write_text(json.dumps({"b": 1, "a": 2}))
    assert text.vocabulary(tmp_path / "json") == ["a", "b"]
    (tmp_path / "bad").write_text("b 2\na two\n")
    for wrong in (tmp_path / "bad", tmp_path / "none"):
        with pytest.raises(DataError, match=wrong.name):
            text.vocabulary(wrong)
    with pytest.raises(DataError, match="vocabulary=0"):
        text.vocabulary(counts, 0)


# the table of importers


def test_every_importer_says_in_one_line_what_it_reads():
    for library in ("h5py", "msgpack", "PIL", "pyarrow"):
        pytest.importorskip(library)
    for kind in IMPORTERS:
        assert (importer(kind).__doc__ or "").splitlines()[0].endswith(".")


def test_an_unknown_kind_and_a_missing_library_say_what_to_do(monkeypatch):
    with pytest.raises(DataError, match=r"no kind 'parket'.* Did you mean 'parquet'"):
        importer("parket")
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.delitem(sys.modules, "fathom.data.importers.tff", raising=False)
    with pytest.raises(DataError, match=r"'tff-emnist' needs h5py.*pip install 'fathom\[data\]'"):
        importer("tff-emnist")


@pytest.mark.parametrize("kind", IMPORTERS)
def test_missing_files_are_refused(home, tmp_path, kind):
    for library in ("h5py", "msgpack", "PIL", "pyarrow"):
        pytest.importorskip(library)
    refused(home, "needs|takes", kind)
    names = ("gone_train.jsonl", "gone.word_count")[: 2 if kind in ("tff-stackoverflow", "stackexchange") else 1]
    refused(home, "gone_train.jsonl: there is no such", kind, *(tmp_path / name for name in names))


# TensorFlow Federated


def hdf5(path, clients):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        group = file.create_group("examples")
        for client, features in clients.items():
            own = group.create_group(client)
            for name, values in features.items():
                own.create_dataset(name, data=values)
    return path


def as_tff(clients):
    return {
        c: {"pixels": f["x"].astype(np.float32) / np.float32(255), "label": f["y"].astype(np.int32)}
        for c, f in clients.items()
    }


def test_tff_emnist(tmp_path):
    train, test = writers("f0000_14", "f0001_41"), writers("f0001_41", "f9999_00", seed=1, size=3)
    nobody = {"f0002_01": {"pixels": np.zeros((0, 28, 28), np.float32), "label": np.zeros(0, np.int32)}}
    paths = hdf5(tmp_path / "a_test.h5", as_tff(test)), hdf5(tmp_path / "a_train.h5", as_tff(train) | nobody)
    data = take("tff-emnist", *paths)
    same(data, "train", train)
    same(data, "test", test)
    assert data.meta["source"] == ["a_train.h5", "a_test.h5"]
    assert data.meta["skipped_empty"] == 1
    assert len(data.meta["classes"]) == 62


def test_tff_emnist_that_is_wrong(home, tmp_path):
    good = as_tff(writers("a", "b"))
    path = tmp_path / "e_train.h5"
    for change, message in [
        ({"pixels": np.ones((13, 27, 28), np.float32)}, "e_train.h5: client 'b' has images of float32"),
        ({"pixels": np.full((13, 28, 28), 255, np.float32)}, "client 'b' has pixels from 255.0 to 255.0"),
        ({"pixels": np.full((13, 28, 28), np.nan, np.float32)}, "client 'b' has pixels from nan"),
        ({"label": np.full(13, 62)}, "client 'b', example 0 has label 62; labels are from 0 to 61"),
        ({"label": np.zeros(12, int)}, "client 'b' has labels of int64"),
    ]:
        refused(home, message, "tff-emnist", hdf5(path, {**good, "b": {**good["b"], **change}}))
    refused(home, "client 'c' has no 'label', only 'pixels'", "tff-emnist", hdf5(path, {"c": {"pixels": np.ones(3)}}))
    other = hdf5(tmp_path / "e_test.h5", as_tff(writers("z")))
    refused(home, "e_test.h5 has none of the clients of", "tff-emnist", hdf5(path, good), other)
    refused(home, "takes at most 2 files; 3 were", "tff-emnist", path, other, other)
    refused(home, "e_train.h5 cannot be read", "tff-emnist", cut(path))
    refused(home, "needs a train file", "tff-emnist", other)


def test_tff_stackoverflow(home, tmp_path):
    def tokens(*lines):
        dtype = pytest.importorskip("h5py").string_dtype()
        return {"tokens": np.array(lines, object).astype(dtype), "score": np.arange(len(lines))}

    train = hdf5(tmp_path / "so_train.h5", {"1": tokens(b"the cat", b"cat sat dog", b"sat"), "2": tokens(b"the")})
    test = hdf5(tmp_path / "so_test.h5", {"1": tokens(b"sat", b"\xff the", b"cat")})
    fixed = {"9": {"tokens": np.array([b"the cat sat", b"the"])}}
    unseen = hdf5(tmp_path / "so_held_out.h5", fixed)
    counts = tmp_path / "so.word_count"
    counts.write_text("the 30\ncat 20\nsat 10\ndog 5\n")
    data = take("tff-stackoverflow", counts, unseen, test, train, vocabulary=3, sentences=2, length=4)
    assert data.meta["vocabulary"] == WORDS
    encoded = [text.encode(lines, INDEX, 4) for lines in (["the cat", "cat sat dog"], ["the"], ["sat", "? the", "cat"])]
    same(data, "train", {"1": {"tokens": encoded[0]}, "2": {"tokens": encoded[1]}})
    same(data, "test", {"1": {"tokens": encoded[2]}})
    same(data, "unseen", {"9": {"tokens": text.encode(["the cat sat", "the"], INDEX, 4)}})
    (home / "mine").rename(tmp_path / "kept")
    refused(home, "needs a word_count file", "tff-stackoverflow", train, test)
    refused(home, "sentences=0 leaves no text", "tff-stackoverflow", train, counts, sentences=0)
    bad = hdf5(tmp_path / "bad_train.h5", {"1": {"tokens": np.arange(3)}})
    refused(home, "bad_train.h5: client '1' has tokens of int64", "tff-stackoverflow", bad, counts)
    refused(home, "so_train.h5 cannot be read", "tff-stackoverflow", cut(train), counts)


# FedJAX


def packed(features):
    """Features as FedJAX's serialization writes them."""
    msgpack = pytest.importorskip("msgpack")

    def extension(value):
        if value.dtype.hasobject:
            return msgpack.ExtType(4, msgpack.packb((value.shape, list(value.flatten())), use_bin_type=True))
        content = (value.shape, value.dtype.name, value.tobytes("C"))
        return msgpack.ExtType(1, msgpack.packb(content, use_bin_type=True))

    return msgpack.packb(features, default=extension, strict_types=True)


def sqlite(path, rows, key="BLOB NOT NULL PRIMARY KEY"):
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute(f"CREATE TABLE federated_data (client_id {key}, data BLOB NOT NULL, num_examples INTEGER)")
        database.executemany("INSERT INTO federated_data VALUES (?, ?, ?)", rows)
    database.close()
    return path


def as_rows(clients):
    return [(c.encode(), zlib.compress(packed(f)), len(next(iter(f.values())))) for c, f in clients.items()]


def test_fedjax_features_are_written_as_fedjax_writes_them():
    # Both made by fedjax.serialization.msgpack_serialize of FedJAX 0.0.17.
    images = (
        "82a6706978656c73c7160193920102a7666c6f61743332c408000000000000803f"
        "a56c6162656cc70f01939101a5696e743332c40403000000"
    )
    texts = (
        "82a6746f6b656e73c70c0492910292c403612062c40163"
        "a573636f7265c71b01939102a5696e743634c41001000000000000000200000000000000"
    )
    features = {"pixels": np.array([[0.0, 1.0]], np.float32), "label": np.array([3], np.int32)}
    assert packed(features).hex() == images
    assert packed({"tokens": np.array([b"a b", b"c"], object), "score": np.array([1, 2])}).hex() == texts


def test_fedjax_sqlite(tmp_path):
    train, test = writers("0a:f0000_14", "0b:f0001_41"), writers("0b:f0001_41", seed=1, size=2)
    paths = [
        sqlite(tmp_path / f"federated_emnist_{name}.sqlite", as_rows(as_tff(clients)))
        for name, clients in {"train": train, "test": test}.items()
    ]
    data = take("fedjax-sqlite", *paths)
    same(data, "train", train)
    same(data, "test", test)
    assert sorted(tmp_path.glob("*.sqlite*")) == sorted(paths)  # no locks or journals left


def test_fedjax_sqlite_keeps_other_features_and_reads_text(home, tmp_path):
    other = {c: {"x": np.ones((2, 3), np.float32) * i, "z": np.array([i, 2], np.int16)} for i, c in enumerate("ab")}
    same(take("fedjax-sqlite", sqlite(tmp_path / "other.sqlite", as_rows(other))), "train", other)
    (home / "mine").rename(tmp_path / "kept")
    lines = np.array([b"the cat", b"cat dog", b"sat"], object)
    path = sqlite(tmp_path / "so_train.sqlite", as_rows({"1": {"tokens": lines, "score": np.arange(3)}}))
    refused(home, "client '1': 'tokens' is text; add the .word_count file", "fedjax-sqlite", path)
    counts = tmp_path / "so.word_count"
    counts.write_text("the 30\ncat 20\nsat 10\n")
    data = take("fedjax-sqlite", path, counts, sentences=2)
    same(data, "train", {"1": {"tokens": text.encode(["the cat", "cat dog"], INDEX)}})


def test_fedjax_sqlite_that_is_wrong(home, tmp_path):
    msgpack = pytest.importorskip("msgpack")
    good = as_rows(as_tff(writers("a", "b")))
    path = tmp_path / "f_train.sqlite"
    array = {"x": np.ones((2, 3), np.float32)}
    complexes = zlib.compress(msgpack.packb({"x": msgpack.ExtType(2, msgpack.packb((1.0, 2.0)))}))
    objects = zlib.compress(msgpack.packb({"x": msgpack.ExtType(1, msgpack.packb(((1,), "object", b"12345678")))}))
    for rows, message in [
        ([good[0], (b"b", good[1][1][:-30], 13)], "f_train.sqlite: client 'b' cannot be read"),
        ([good[0], (b"b", b"not zlib", 13)], "client 'b' cannot be read"),
        ([good[0], (b"b", good[1][1], 14)], "client 'b' has 14 examples, but features of"),
        ([(b"a", zlib.compress(msgpack.packb([1])), 1)], "client 'a' is not a dict of arrays"),
        ([(b"a", complexes, 1)], "client 'a' cannot be read .ValueError: extension type 2"),
        ([(b"a", objects, 1)], "client 'a' cannot be read .ValueError: arrays of object"),
        (as_rows({"a": array, "b": {"x": np.ones((2, 4), np.float32)}}), "f_train.sqlite: client 'b': 'x' has rows"),
        (as_rows({"a": array, "b": {"x": np.full((2, 3), np.inf, np.float32)}}), "client 'b': 'x' is not finite"),
    ]:
        refused(home, message, "fedjax-sqlite", sqlite(path, rows))
    refused(home, "f_train.sqlite: client 'a' appears twice", "fedjax-sqlite", sqlite(path, [good[0]] * 2, "BLOB"))
    refused(home, "f_train.sqlite cannot be read", "fedjax-sqlite", cut(sqlite(path, good)))
    path.write_text("nothing of the kind")
    refused(home, "f_train.sqlite cannot be read", "fedjax-sqlite", path)


# LEAF


def leaf(path, clients, users=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {c: {"x": f["x"], "y": f["y"]} for c, f in clients.items()}
    counts = [len(f["y"]) for f in clients.values()]
    path.write_text(json.dumps({"users": users or list(clients), "num_samples": counts, "user_data": data}))
    return path


def as_leaf(clients):
    return {c: {"x": (f["x"].reshape(-1, 784) / 255).tolist(), "y": f["y"].tolist()} for c, f in clients.items()}


def test_leaf_femnist(home, tmp_path):
    train, more, test = writers("a", "b"), writers("c", seed=1), writers("a", "c", seed=2, size=2)
    root = tmp_path / "data"
    leaf(root / "train" / "all_data_0_niid_0_keep_0_train_9.json", as_leaf(train) | {"none": {"x": [], "y": []}})
    leaf(root / "train" / "all_data_1_niid_0_keep_0_train_9.json", as_leaf(more))
    path = leaf(root / "test" / "all_data_0_niid_0_keep_0_test_9.json", as_leaf(test))
    data = take("leaf", root)
    same(data, "train", train | more)
    same(data, "test", test)
    assert data.meta["skipped_empty"] == 1
    (home / "mine").rename(tmp_path / "kept")
    leaf(path, as_leaf(writers("d", "e")))  # LEAF's split by user
    same(take("leaf", root), "unseen", writers("d", "e"))


def test_leaf_without_a_test_part_is_split_by_a_draw(tmp_path):
    clients = writers("a", "b", size=20) | writers("c", size=1)
    data = take("leaf", leaf(tmp_path / "all_data_0.json", as_leaf(clients)), test_share=0.25)
    assert dict(zip(data.splits["train"].ids, data.splits["train"].sizes, strict=True)) == {"a": 15, "b": 16, "c": 1}
    assert dict(zip(data.splits["test"].ids, data.splits["test"].sizes, strict=True)) == {"a": 5, "b": 5}
    assert data.meta["skipped_empty"] == 0
    for client in "ab":
        parts = [data.splits[split].client(client)["x"] for split in ("train", "test")]
        assert sorted(x.tobytes() for x in np.concatenate(parts)) == sorted(x.tobytes() for x in clients[client]["x"])


def test_leaf_text(home, tmp_path):
    reddit = [[["<BOS>", "the", "cat"], ["sat", "<EOS>", "<PAD>"]], [["<BOS>", "the", "<EOS>"]]]
    tweet = ["1", "Mon", "NO_QUERY", "bob", "the cat"]
    labels = [{"subreddit": "x", "target_tokens": [["the"]]}] * 2
    clients = {"ann": {"x": reddit, "y": labels}, "bob": {"x": [tweet], "y": [0]}, "eve": {"x": ["the"], "y": [1]}}
    train = leaf(tmp_path / "train" / "reddit_0_train.json", clients)
    test = leaf(tmp_path / "test" / "reddit_0_test.json", {"ann": {"x": ["sat dog"], "y": [0]}})
    data = take("leaf", tmp_path, length=4)
    assert data.meta["vocabulary"] == WORDS
    rows = {"ann": ["the cat sat", "the"], "bob": ["the cat"], "eve": ["the"]}
    same(data, "train", {c: {"tokens": text.encode(lines, INDEX, 4)} for c, lines in rows.items()})
    same(data, "test", {"ann": {"tokens": text.encode(["sat dog"], INDEX, 4)}})
    (home / "mine").rename(tmp_path / "kept")
    leaf(train, {"MACBETH": {"x": ["is this a dagger whi"], "y": ["c"]}})
    refused(home, "reddit_0_train.json: client 'MACBETH' has characters to predict", "leaf", train, test)
    leaf(train, {"ann": {"x": ["a b", 7], "y": [0, 0]}})
    refused(home, "client 'ann' has '7' where text should be", "leaf", train, test)


def test_leaf_numbers(tmp_path):
    path = leaf(tmp_path / "synthetic.json", {"0": {"x": [[0.5, 1.0], [2.0, -1.0]], "y": [1, 0]}})
    data = take("leaf", path, test_share=0)
    same(data, "train", {"0": {"x": np.array([[0.5, 1], [2, -1]], np.float32), "y": np.array([1, 0], np.int32)}})


def test_leaf_that_is_wrong(home, tmp_path):
    good = as_leaf(writers("a", "b"))
    path = tmp_path / "l_train.json"
    for change, message in [
        ({"y": [62] * 13}, "l_train.json: client 'b', example 0 has label 62"),
        ({"y": [0] * 12}, "client 'b' has 13 x and 12 y"),
        ({"x": [*good["b"]["x"][:12], [0.0] * 783]}, "client 'b', example 12 is not an image of 784 pixels"),
    ]:
        refused(home, message, "leaf", leaf(path, {**good, "b": {**good["b"], **change}}))
    refused(home, "l_train.json: client 'a' appears twice", "leaf", leaf(path, good, ["a", "b", "a"]))
    second = leaf(tmp_path / "l2_train.json", as_leaf(writers("b")))
    refused(home, "l2_train.json: client 'b' appears twice", "leaf", leaf(path, good), second)
    refused(home, "client 'c' has None x", "leaf", leaf(path, good, ["a", "b", "c"]))
    refused(home, "l_train.json cannot be read", "leaf", cut(path))
    path.write_text("[]")
    refused(home, "l_train.json has no 'users' and 'user_data'", "leaf", path)
    (tmp_path / "empty").mkdir()
    refused(home, "there are no training .json files", "leaf", tmp_path / "empty")


# tables


def png(image):
    content = io.BytesIO()
    pytest.importorskip("PIL.Image").fromarray(image).save(content, "PNG")
    return content.getvalue()


def parquet(path, columns, group=7, metadata=None):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), path, row_group_size=group)
    return path


def as_table(clients, seed=0):
    """A table like flwrlabs/femnist, and the order in which its rows came out."""
    rows = [(c, x, y) for c, f in clients.items() for x, y in zip(f["x"], f["y"], strict=True)]
    mixed = np.random.default_rng(seed).permutation(len(rows))
    chosen = [rows[i] for i in mixed]
    table = {
        "image": [{"bytes": png(x), "path": None} for _, x, _ in chosen],
        "writer_id": [c for c, _, _ in chosen],
        "hsf_id": [0] * len(chosen),
        "character": [int(y) for _, _, y in chosen],
    }
    return table, {
        name: {
            "x": np.array([x for c, x, _ in chosen if c == name]),
            "y": np.array([y for c, _, y in chosen if c == name], np.uint8),
        }
        for name in clients
    }


def test_parquet_with_images_of_scattered_clients(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr("fathom.data.importers.rowgroups.BLOCK", 20)
    table, clients = as_table(writers("f1", "f2", "f3"))
    more, others = as_table(writers("f4", seed=3))
    test, tested = as_table(writers("f1", "f3", seed=4, size=2))
    names = {"info": {"features": {"character": {"names": [str(i) + "!" for i in range(62)], "_type": "ClassLabel"}}}}
    paths = [
        parquet(tmp_path / "train-00000-of-00002.parquet", table, metadata={"huggingface": json.dumps(names)}),
        parquet(tmp_path / "train-00001-of-00002.parquet", more),
        parquet(tmp_path / "test-00000-of-00001.parquet", test),
    ]
    data = take("parquet", *paths)
    same(data, "train", clients | others)
    same(data, "test", tested)
    assert data.meta["classes"][:2] == ["0!", "1!"]


def test_parquet_with_numbers(tmp_path):
    pa = pytest.importorskip("pyarrow")
    table = {
        "who": [1, 2, 1, 2],
        "what": ["no", "yes", "yes", "no"],
        "age": [1.0, 2, 3, 4],
        "point": pa.array([[1.0, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float64(), 2)),
        "note": ["a", "b", "c", "d"],
    }
    data = take("parquet", parquet(tmp_path / "t.parquet", table, 3), client="who", label="what", test_share=0)
    f = np.float32
    assert data.meta["classes"] == ["no", "yes"]
    first = {"age": np.array([1, 3], f), "point": np.array([[1, 2], [5, 6]], f), "y": np.array([0, 1], np.uint8)}
    second = {"age": np.array([2, 4], f), "point": np.array([[3, 4], [7, 8]], f), "y": np.array([1, 0], np.uint8)}
    same(data, "train", {"1": first, "2": second})


def test_parquet_draws_a_test_part(tmp_path):
    pytest.importorskip("pyarrow")
    data = take("parquet", parquet(tmp_path / "t.parquet", as_table(writers("a", "b", size=20))[0]))
    assert data.splits["train"].sizes.tolist() == [18, 19]
    assert data.splits["test"].sizes.tolist() == [2, 2]


def test_parquet_that_is_wrong(home, tmp_path):
    pytest.importorskip("pyarrow")
    good, _ = as_table(writers("a", "b"))
    path = tmp_path / "p.parquet"

    def changed(column, row, value):
        values = list(good[column])
        values[row] = value
        return parquet(path, {**good, column: values})

    broken = {"bytes": png(np.zeros((28, 28), np.uint8))[:40], "path": None}
    small = {"bytes": png(np.zeros((27, 28), np.uint8)), "path": None}
    refused(home, r"p.parquet: client '.', row 3 cannot be read", "parquet", changed("image", 3, broken))
    refused(home, r"p.parquet: client '.', row \d+ is an image of", "parquet", changed("image", 3, small), test_share=0)
    refused(home, r"p.parquet: client '.', row 3 has an empty cell", "parquet", changed("image", 3, None))
    refused(home, "p.parquet: row 2 has no 'writer_id'", "parquet", changed("writer_id", 2, None))
    refused(home, "has label -1; labels are from 0", "parquet", changed("character", 2, -1))
    refused(home, "'character' goes up to 100000", "parquet", changed("character", 2, 100_000))
    refused(home, "no client column nobody; it has 'image', 'writer_id'", "parquet", path, client="nobody")
    refused(home, "p.parquet cannot be read", "parquet", cut(path))


def test_text_from_csv_and_json_lines(tmp_path):
    rows = [("ann", "the cat, sat"), ("bob", "the"), ("ann", 'the "cat"'), ("ann", " "), ("eve", ""), ("ann", "dog")]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "author", "body"), *((i, *row) for i, row in enumerate(rows))])
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.writelines(
            json.dumps({"author": user, "body": line}) + "\n" for user, line in [("bob", "the cat"), (7, "a")]
        )
    data = take(
        "text", tmp_path / "a.csv", tmp_path / "b.jsonl.gz", user="author", text="body", test_share=0.4, length=3
    )
    index = text.numbered(data.meta["vocabulary"])
    assert data.meta["vocabulary"] == ["the", "cat,", "sat", '"cat"', "cat", "a"]  # not "dog", which is for testing
    assert data.meta["skipped_empty"] == 1
    train = {"ann": ["the cat, sat", 'the "cat"'], "bob": ["the", "the cat"], "7": ["a"]}
    same(data, "train", {c: {"tokens": text.encode(lines, index, 3)} for c, lines in train.items()})
    same(data, "test", {"ann": {"tokens": text.encode(["dog"], index, 3)}})


def test_text_that_is_wrong(home, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("user,text\nann,the cat\nbob\n")
    refused(home, "t.csv: line 3 has no 'text', only 'user', 'text'", "text", path)
    refused(home, "t.csv: line 2 has no 'who'", "text", path, user="who")
    path.write_text('user,text\nann,"the cat')
    refused(home, "t.csv cannot be read", "text", path)
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"user": "ann", "text": "a"}\n{"user": "bob", "te')
    refused(home, "t.jsonl: line 2 cannot be read", "text", lines)
    lines.write_text('{"user": "ann", "text": ["a"]}\n')
    refused(home, "t.jsonl: line 1 has user 'ann' and list for 'text'", "text", lines)
    packed = tmp_path / "t.jsonl.xz"
    packed.write_bytes(lzma.compress(b'{"user": "ann", "text": "a"}\n' * 9))
    refused(home, "t.jsonl.xz cannot be read", "text", cut(packed))
    refused(home, "neither CSV nor JSON lines", "text", cut(path).rename(tmp_path / "t.doc"))
    lines.write_text('{"user": "ann", "text": "a"}\n')
    refused(home, "test_share=1 is not a share", "text", lines, test_share=1)


def folders(root, clients, classes):
    image = pytest.importorskip("PIL.Image")
    for client, features in clients.items():
        for i, (x, y) in enumerate(zip(features["x"], features["y"], strict=True)):
            folder = root / client / classes[y]
            folder.mkdir(parents=True, exist_ok=True)
            image.fromarray(x).save(folder / f"{i:03}.png")
    return root


def test_images_in_folders(home, tmp_path):
    clients = {c: {"x": f["x"], "y": np.sort(f["y"] % 3)} for c, f in writers("ann", "bob").items()}
    root = folders(tmp_path / "root", clients, "abc")
    (root / "nobody" / "a").mkdir(parents=True)
    (root / "readme.txt").write_text("not an image")
    data = take("images", root, test_share=0)
    same(data, "train", clients)
    assert (data.meta["classes"], data.meta["skipped_empty"]) == (["a", "b", "c"], 1)
    (home / "mine").rename(tmp_path / "kept")
    data = take("images", root, side=7, test_share=0.2)
    assert data.splits["train"].examples["x"].shape == (10 + 11, 7, 7)
    assert data.splits["test"].sizes.tolist() == [2, 2]


def test_images_that_are_wrong(home, tmp_path):
    root = folders(tmp_path / "root", writers("ann", "bob"), "a" * 62)
    odd = root / "bob" / "a" / "003.png"
    odd.write_bytes(png(np.zeros((5, 4), np.uint8)))
    refused(home, r"is \(.*, others are \(.*; use `side`", "images", root, test_share=0)
    cut(odd)
    refused(home, "003.png cannot be read", "images", root, test_share=0)
    refused(home, "images takes one folder; 2", "images", root, root)
    (tmp_path / "empty").mkdir()
    refused(home, "no images in folders of the form", "images", tmp_path / "empty")


# archives


def npz(path, clients, **changes):
    arrays = {
        "images": np.concatenate([f["x"] for f in clients.values()]),
        "labels": np.concatenate([f["y"] for f in clients.values()]),
        "client_offsets": np.cumsum([0, *(len(f["y"]) for f in clients.values())]),
        "client_ids": np.array(list(clients)),
    }
    np.savez_compressed(path, **(arrays | changes))
    return path


def test_femnist_npz(tmp_path):
    train, test = writers("f1", "f2"), writers("f1", "f2", seed=1, size=1)
    test["f1"] = {name: feature[:0] for name, feature in test["f1"].items()}
    data = take("femnist-npz", npz(tmp_path / "a_train.npz", train), npz(tmp_path / "a_test.npz", test))
    same(data, "train", train)
    same(data, "test", {"f2": test["f2"]})
    assert data.meta["skipped_empty"] == 1


def test_femnist_npz_that_is_wrong(home, tmp_path):
    path, good = tmp_path / "n_train.npz", writers("f1", "f2")
    wrong = np.full(25, 61, np.uint8)
    wrong[12] = 62
    for change, message in [
        ({"labels": wrong}, "n_train.npz: client 'f2', example 0 has label 62"),
        ({"labels": wrong[:-1]}, "n_train.npz: there are 25 images and labels of shape"),
        ({"images": np.zeros((25, 28), np.uint8)}, "n_train.npz: images are uint8"),
        ({"client_offsets": np.array([0, 30, 25])}, "n_train.npz: client_offsets of shape"),
        ({"client_ids": np.array(["f1", "f1"])}, "n_train.npz: client 'f1' appears twice"),
        ({"client_ids": np.array(["f1", None], object)}, "n_train.npz cannot be read .*allow_pickle=False"),
    ]:
        refused(home, message, "femnist-npz", npz(path, good, **change))
    np.savez(path, images=np.zeros(3))
    refused(home, "n_train.npz has no 'labels'", "femnist-npz", path)
    refused(home, "n_train.npz cannot be read", "femnist-npz", cut(npz(path, good)))


def people(path, *users):
    keys = ("user", "held_out", "n_train", "sentences")
    path.write_bytes(lzma.compress("\n".join(json.dumps(dict(zip(keys, u, strict=True))) for u in users).encode()))
    return path


def test_stackexchange(home, tmp_path):
    counts = tmp_path / "s.word_count"
    counts.write_text("the 30\ncat 20\nsat 10\n")
    path = tmp_path / "users.jsonl.xz"
    lines = ["the", "cat", "sat", "dog"]
    people(path, ("a/1", False, 3, lines), ("a/2", False, 1, ["sat"]), ("a/10", True, 2, lines))
    data = take("stackexchange", path, counts, sentences=2)
    tokens = text.encode(lines, INDEX)
    same(data, "train", {"a/1": {"tokens": tokens[:2]}, "a/2": {"tokens": tokens[2:3]}})
    same(data, "test", {"a/1": {"tokens": tokens[3:]}})
    same(data, "unseen", {"a/10": {"tokens": tokens}})
    (home / "mine").rename(tmp_path / "kept")
    refused(home, "needs a word_count file", "stackexchange", path)
    people(path, ("a/1", False, 3, lines), ("a/1", False, 3, lines))
    refused(home, "users.jsonl.xz: client 'a/1' appears twice", "stackexchange", path, counts)
    people(path, ("a/1", False, 3, lines), ("a/2", False, 9, lines))
    refused(home, "users.jsonl.xz: line 2: user 'a/2' has n_train=9 of 4", "stackexchange", path, counts)
    people(path, ("a/1", "no", 3, lines))
    refused(home, "users.jsonl.xz: line 1 needs a user", "stackexchange", path, counts)
    refused(home, "users.jsonl.xz cannot be read", "stackexchange", cut(path, 0.9), counts)


@pytest.mark.skipif(
    not (SHARED / "femnist_train.npz").exists(), reason="the real FEMNIST subset is not on this machine"
)
def test_the_real_femnist_subset():
    data = take("femnist-npz", SHARED / "femnist_train.npz", SHARED / "femnist_test.npz")
    assert [len(data.splits[split]) for split in ("train", "test")] == [641, 641]
    assert [len(data.splits[split].examples["y"]) for split in ("train", "test")] == [109_359, 12_462]
    with np.load(SHARED / "femnist_train.npz") as archive:
        np.testing.assert_array_equal(data.splits["train"].examples["y"], archive["labels"])


@pytest.mark.skipif(
    not (SHARED / "stackexchange_users.jsonl.xz").exists(),
    reason="the real Stack Exchange users are not on this machine",
)
def test_the_real_stack_exchange_users():
    data = take("stackexchange", SHARED / "stackexchange_users.jsonl.xz", SHARED / "stackexchange.word_count")
    assert len(set(data.splits["train"].ids) | set(data.splits["unseen"].ids)) == 7_898
    assert len(data.meta["vocabulary"]) == 10_000
    tokens = data.splits["train"].examples["tokens"]
    assert tokens.shape[1] == 21
    assert int(tokens.max()) == 10_003
    assert (tokens == 10_003).sum() / (tokens > 2).sum() < 0.06  # the README of the data: 95.7 % are in the vocabulary
