"""Damaged tables of clients: HDF5, SQLite, LEAF's JSON and Parquet."""

import io
import sqlite3
import zlib
from functools import cache, partial
from random import Random
from typing import Any

import numpy as np
import pytest

from fuzz_files import LINES, Files, clients, counts, png, some_damaged
from fuzz_mutations import NESTED, as_json, bent, damaged, odd_array

h5py, msgpack = pytest.importorskip("h5py"), pytest.importorskip("msgpack")
pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

# TensorFlow Federated


def hdf5(rng: Random, content: dict[str, dict[str, Any]]) -> bytes:
    """An HDF5 file of clients; some reach out of it, or hold more than there is."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        group = file.create_group(rng.choice(("examples",) * 20 + ("example",)))
        for client, features in content.items():
            own = group.create_group(client)
            for name, values in features.items():
                twist = rng.randrange(60)
                if twist == 0:
                    own.create_dataset(name, (10**8, 28, 28), np.float32, chunks=(1, 28, 28))
                elif twist == 1:
                    own.create_dataset(name, (2, 28, 28), np.float32, external=[("/etc/hostname", 0, 99999)])
                elif twist == 2:
                    own[name] = rng.choice((h5py.ExternalLink("/etc/x.h5", "/"), h5py.SoftLink("/examples")))
                elif twist == 3:
                    own.create_group(name)
                elif twist == 4:
                    own.create_dataset(name, (10**12,), h5py.string_dtype(), chunks=(10,))
                elif twist == 5 or values.dtype.kind == "U":
                    own.create_dataset(name, data=h5py.Empty("f4"))
                else:
                    own.create_dataset(
                        name, data=values, compression=rng.choice((None, "gzip")) if values.ndim else None
                    )
    return out.getvalue()


def tff_emnist(rng: Random) -> Files:
    files = {"e_train.h5": hdf5(rng, clients(rng))}
    if rng.random() < 0.3:
        files["e_test.h5"] = hdf5(rng, clients(rng, "b"))
    return some_damaged(rng, files)


def tff_text(rng: Random) -> Files:
    lines = np.array(LINES[: rng.randrange(4)] or [b"\xff"], rng.choice(("S9", object)))
    own = {"tokens": lines if rng.random() < 0.8 else odd_array(rng, np.arange(3))}
    own["tokens"] = own["tokens"].astype(h5py.string_dtype()) if own["tokens"].dtype == object else own["tokens"]
    return some_damaged(rng, {"s_train.h5": hdf5(rng, {"1": own, "2": own}), "s.word_count": counts(rng)})


# FedJAX


def fedjax(rng: Random) -> Files:
    text = rng.random() < 0.3
    rows = []
    for client, features in clients(rng).items():
        own: dict[Any, Any] = {"tokens": np.array(LINES, object)} if text else features
        if rng.random() < 0.1:
            own = {
                rng.choice(("../../../out", "/dev/shm/out", "offsets", "", b"x", "x" * 300, "\0")): np.ones(
                    2, np.float32
                )
            }
        content = msgpack.packb(own, default=partial(extension, rng))
        content = damaged(rng, content) if rng.random() < 0.3 else content
        packed = zlib.compress(content, 1) if rng.random() < 0.995 else zeros()
        rows.append((rng.choice((client.encode(), client)), packed, rng.choice((3 if text else 2,) * 9 + (1,))))
    files = {"f_train.sqlite": sqlite(rng, rows)}
    return some_damaged(rng, files | ({"f.word_count": counts(rng)} if text else {}), 0.5)


def extension(rng: Random, value: np.ndarray) -> Any:
    """An array as FedJAX writes it, or with another shape or type."""
    shape: Any = list(value.shape)
    if rng.random() < 0.05:
        shape = rng.choice(([10**12], [-1], [0, 2**62], [2**40, 2**40], None, "x", [1.5], [], [1] * 100, [None]))
    if value.dtype.hasobject:
        return msgpack.ExtType(4, msgpack.packb((shape, list(value))))
    name = (
        value.dtype.name
        if rng.random() < 0.95
        else rng.choice(("O", "f4,f4", "(9,9)f4", "U", "V0", "datetime64", "x", 3))
    )
    return msgpack.ExtType(1, msgpack.packb((shape, name, value.tobytes())))


def sqlite(rng: Random, rows: list[Any]) -> bytes:
    """A database of clients; where there should be a table, there may be a view without an end."""
    database = sqlite3.connect(":memory:")
    twist = rng.randrange(40)
    table = "other" if twist < 4 else "federated_data"
    database.execute(f"CREATE TABLE {table} (client_id BLOB, data BLOB, num_examples INTEGER)")
    database.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", rows)
    if twist == 0:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, zeroblob(9), 1 FROM n"
        database.execute(f"CREATE VIEW federated_data(client_id, data, num_examples) AS {endless}")
    elif twist == 1:
        database.execute(
            "CREATE TABLE federated_data (client_id BLOB, data BLOB AS (zeroblob(999999999)), num_examples INTEGER)"
        )
        database.execute("INSERT INTO federated_data(client_id, num_examples) VALUES ('a', 2)")
    database.commit()
    content = database.serialize()
    database.close()
    return content


@cache
def zeros() -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return b"\x78\x01" + (packer.compress(b"\0" * (64 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)) * 80


# LEAF


def leaf(rng: Random) -> Files:
    if rng.random() < 0.3:
        x: list[Any] = [[0.5] * 784, [1.0] * 784]
        y: list[Any] = [3, 61]
    elif rng.random() < 0.5:
        x, y = ["the cat", ["sat", ["dog", "<EOS>"]], ["1", "now", "q", "a", "the cat sat"]], [0, 1, 0]
    else:
        x, y = [[0.5, 1.0], [1.5, 2]], [0, 7]
    tree: Any = {"users": ["a", "b"], "num_samples": [2, 2], "user_data": {u: {"x": x, "y": y} for u in "ab"}}
    if rng.random() < 0.05:
        tree["user_data"]["a"] = {"x": [NESTED], "y": [0]}
    good = as_json(tree)
    files = {"a_train.json": as_json(bent(rng, tree)) if rng.random() < 0.7 else good}
    if rng.random() < 0.3:
        files["a_test.json"] = as_json(bent(rng, tree))
    return some_damaged(rng, files, 0.4)


# Parquet


def parquet(rng: Random) -> Files:
    columns: dict[str, Any] = {
        "writer_id": ["a", "a", "b", "b"],
        rng.choice(("label", "y")): rng.choice(
            ([0, 1, 2, 1], ["x", "y", "x", "y"], pa.array([0, 1, 0, 1], pa.uint64()))
        ),
        "v": rng.choice(([0.5, 1.5, 2.5, 3.5], [[1.0, 2.0]] * 4, [png()] * 4, [{"bytes": png()}] * 4)),
    }
    if rng.random() < 0.4:
        odd = [
            [None] * 4,
            [1, None, 2, 3],
            [-1, 2, 3, 4],
            [10**15] * 4,
            [True] * 4,
            ["é", "", "..", "\0"],
            [[1], [1, 2], [], [3]],
        ]
        odd += [[b"x"] * 4, [{"a": 1}] * 4, pa.array([1, 2, 3, 4], pa.date32()), [1.5, float("nan"), 2.0, 3.0]]
        columns[rng.choice(list(columns))] = rng.choice(odd)
    if rng.random() < 0.1:
        columns[rng.choice(("../../../out", "/dev/shm/out", "offsets", "a/b", "", "x" * 300, "\0"))] = [1.0] * 4
        columns.pop("v")
    names = rng.choice((["zero", "one", "two"], 3, "abc", {"a": 1}, [[]] * 9, [None] * 9, None))
    told = {"info": {"features": {"label": {"names": names}, "y": {"names": names}}}}
    table = pa.table(columns).replace_schema_metadata(
        {"huggingface": as_json(told if rng.random() < 0.5 else bent(rng, told))}
    )
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=rng.choice((1, 3, 9)), compression=rng.choice(("NONE", "SNAPPY", "GZIP")))
    files = {"p_train.parquet": out.getvalue()}
    if rng.random() < 0.2:
        files["p_test.parquet"] = one_parquet()
    return some_damaged(rng, files, 0.5)


@cache
def one_parquet() -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"writer_id": ["a"], "label": [1], "y": ["x"], "v": [0.5]}), out)
    return out.getvalue()
