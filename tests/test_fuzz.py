"""Files from strangers: none runs a program, writes outside of its folder, fills the memory, or fails unclearly."""

import gzip
import io
import json
import os
import pickle  # to write what must not be read: a file that would run a program
import re
import sqlite3
import subprocess
import sys
import zipfile
import zlib
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fathom.cli_data import app
from fathom.data import disk, limits, partition, single
from fathom.data.disk import DataError
from fathom.experiment import spec as specs
from fathom.experiment.spec import SpecError
from test_importers import as_rows, hdf5, npz, packed, refused, sqlite, take, writers

HERE = Path(__file__).parent
linux = pytest.mark.skipif(sys.platform != "linux", reason="the fuzzer watches its processes through /proc")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home"


# the fuzzer


def fuzz(*arguments):
    for library in ("h5py", "msgpack", "PIL", "pyarrow"):
        pytest.importorskip(library)
    return subprocess.run([sys.executable, *arguments], cwd=HERE, capture_output=True, text=True, timeout=1800)


@linux
def test_some_damaged_files_of_every_kind():
    done = fuzz("fuzz.py", "--inputs", "1600")
    assert done.returncode == 0, done.stdout + done.stderr
    tried, accepted, refused, crashed = (int(n.replace(",", "")) for n in done.stdout.splitlines()[-1].split()[1:])
    assert tried == accepted + refused == 1600
    assert crashed == 0


@linux
@pytest.mark.slow
def test_many_damaged_files_of_every_kind():
    done = fuzz("fuzz.py", "--inputs", "32000", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr


PLANTED = """
import os, sys, time, subprocess
import numpy as np
import fuzz, fuzz_kinds
from fathom.data.disk import DataError

def out(case, folder):
    (folder / "../../../planted").resolve().write_text("x")

def memory(case, folder):
    try:
        np.ones(1 << 33)
    except MemoryError as error:
        raise DataError("a clear message about a lack of memory") from error

def lines(case, folder):
    error = DataError("some message")
    error.args = ("two\\nlines of it",)
    raise error

feeds = {
    "fine": lambda case, folder: None, "key": lambda case, folder: {}["x"],
    "numpy": lambda case, folder: np.ones(3).reshape(2),
    "abort": lambda case, folder: os.abort(), "hang": lambda case, folder: time.sleep(60), "out": out,
    "left": lambda case, folder: (folder / "../planted").write_text("x"),
    "program": lambda case, folder: subprocess.run(["true"]), "memory": memory, "lines": lines,
}
fuzz.PATIENCE = 1
fuzz_kinds.warm = lambda: None
fuzz_kinds.KINDS = {name: fuzz_kinds.Kind(lambda rng: None, feed) for name, feed in feeds.items()}
sys.exit(fuzz.main())
"""


@linux
def test_the_fuzzer_sees_every_way_to_fail():
    done = fuzz("-c", PLANTED, "--inputs", "20")
    assert done.returncode == 1, done.stderr
    crashed = {row.split()[0]: int(row.split()[4]) for row in done.stdout.splitlines()[1:] if row[0] != " "}
    assert crashed.pop("fine") == 0
    assert crashed.pop("all") == 18
    assert set(crashed.values()) == {2}, done.stdout


@contextmanager
def clear():
    """Success, or an error of ours in one line."""
    told = "fine"
    with suppress(SpecError):
        try:
            yield
        except SpecError as error:
            told = str(error)
            raise
    assert told.isprintable()


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.sampled_from([*specs.Spec.__dataclass_fields__]), TREES, max_size=3))
def test_any_values_make_a_spec_or_a_clear_error(raw):
    with clear():
        specs.resolve(raw)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.text() | st.from_regex(r"[a-z.]+=.*"), max_size=2))
def test_any_assignment_is_read_or_refused(texts):
    raw = {}
    with clear():
        for text in texts:
            specs.set_option(raw, text)
        specs.resolve(raw)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("seed=0x" + "f" * 9000, "--set seed has an integer of 36000 bits; 64 are the most"),
        ("seed=" + "9" * 9000, "--set seed: the value is too large or too deep"),
        ("seed=" + "[" * 9000, "--set seed: the value is too large or too deep"),
        ("seed=" + "[" * 50 + "]" * 50, "--set seed has tables or lists more than 8 deep"),
        ("a" + ".a" * 9000 + "=1", "is not of the form key=value"),
        ("task.data=" + "x" * 9000, "a text of 9,000 characters"),
        ("task={name='femnist', data=3}", "data=3 must be a text"),
        ("tuner={name='schedule', lr={name='constant', value='x'}}", "value='x' must be a finite number"),
    ],
)
def test_values_without_measure_are_refused(assignment, message):
    def put(raw):
        specs.set_option(raw, assignment)
        return specs.resolve(raw)

    with pytest.raises(SpecError) as error:
        put({})
    assert message in str(error.value)
    assert len(str(error.value)) < 2100


# pickles


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def ran(tmp_path):
    """The file that the payload makes; it is made where pickles are allowed."""
    path = tmp_path / "ran"
    np.save(tmp_path / "evil.npy", np.array([Payload(path)], object))
    np.load(tmp_path / "evil.npy", allow_pickle=True)
    assert path.exists()
    path.unlink()
    return path


def test_a_pickle_in_an_npz_is_refused_and_does_not_run(home, tmp_path, ran):
    path = npz(tmp_path / "n_train.npz", writers("a", "b"), labels=np.array([Payload(ran)] * 25, object))
    refused(home, "'labels' holds object; save numbers or text, never pickles", "femnist-npz", path)
    np.savez(path, x=np.array([Payload(ran)], object), y=np.zeros(1))
    with pytest.raises(DataError, match="never pickles"):
        single.partitioned([path], partition.iid, {"clients": 1})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", pickle.dumps(Payload(ran)))
    with pytest.raises(DataError, match=r"n_train.npz: array 'x' cannot be read"):
        single.partitioned([path], partition.iid, {"clients": 1})
    path.write_bytes(pickle.dumps(Payload(ran)))
    refused(home, "n_train.npz cannot be read", "femnist-npz", path)
    assert not ran.exists()


@pytest.mark.parametrize("name", ["x", "offsets"])
def test_a_pickle_in_a_data_set_is_refused_and_does_not_run(home, ran, name):
    made(home)
    path = home / "mine" / "train" / f"{name}.npy"
    np.save(path, np.array([Payload(ran)], object))
    with pytest.raises(DataError, match=r"holds object .*never pickles"):
        disk.open_set("mine")
    path.write_bytes(pickle.dumps(Payload(ran)))
    with pytest.raises(DataError, match="cannot be read"):
        disk.open_set("mine")
    assert not ran.exists()


def test_an_image_that_needs_a_program_is_not_tried(home, tmp_path, monkeypatch):
    pytest.importorskip("PIL")
    ran = []
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: ran.append(arguments))
    (tmp_path / "root" / "a" / "x").mkdir(parents=True)
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n"
    (tmp_path / "root" / "a" / "x" / "1.png").write_bytes(content)
    refused(home, "1.png cannot be read .UnidentifiedImageError", "images", tmp_path / "root")
    assert ran == []


# names and links


def made(home):
    own = [(client, {"x": np.ones((2, 3), np.float32), "y": np.arange(2)}) for client in "ab"]
    return disk.write("mine", {"train": own}, {})


NAMES = ["../x", "/etc/x", "a/b", "..", ".", "", "a\0b", "a\n", "x" * 101]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_lead_elsewhere_are_refused_by_every_command(home, tmp_path, name):
    np.savez(tmp_path / "s.npz", x=np.ones((9, 2)), y=np.zeros(9))
    npz(tmp_path / "n.npz", writers("a"))
    before = sorted(tmp_path.rglob("*"))
    for call in (disk.open_set, disk.vacant, disk.check, lambda name: disk.write(name, {}, {})):
        with pytest.raises(DataError, match="is not a name for a data set"):
            call(name)
    paths = [str(tmp_path / file) for file in ("s.npz", "n.npz")]
    commands = [["info", name], ["check", name], ["show", name]]
    commands += [["partition", paths[0], "--clients", "2", "--name", name]]
    commands += [["import", "femnist-npz", paths[1], "--name", name]]
    commands += [["download", "femnist", "--name", name]] if name else []
    for command in commands:
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, (command, done.output)
        assert "is not a name for a data set" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["../../../x", "absolute", "a/b", "..", ".x", "", "offsets", "x" * 300, "a\0", "a\\b"])
def test_features_whose_names_lead_elsewhere_are_refused(home, tmp_path, name):
    pytest.importorskip("msgpack")
    name = str(tmp_path / "x") if name == "absolute" else name
    path = sqlite(tmp_path / "f_train.sqlite", as_rows({"a": {name: np.ones((2, 3), np.float32)}}))
    before = sorted(tmp_path.rglob("*"))
    refused(home, "cannot be the name of a feature; rename it", "fedjax-sqlite", path)
    assert [p for p in sorted(tmp_path.rglob("*")) if p != home] == before


def test_a_column_whose_name_leads_elsewhere_is_refused(home, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"user": ["a"], "y": [0], "../../../x": [1.0]}), tmp_path / "p.parquet")
    refused(home, "cannot be the name of a feature; rename it", "parquet", tmp_path / "p.parquet")
    assert not (tmp_path / "x.npy").exists()


def test_members_of_an_npz_are_not_written_anywhere(home, tmp_path):
    path = tmp_path / "n_train.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../out.npy", str(tmp_path / "out.npy"), "images.npy"):
            archive.writestr(name, b"\x93NUMPY")
    refused(home, "n_train.npz", "femnist-npz", path)
    assert sorted(p.name for p in tmp_path.rglob("*") if p != home) == ["n_train.npz"]


@pytest.mark.parametrize("name", ["meta.json", "train", "train/clients.json", "train/offsets.npy", "train/x.npy"])
def test_links_that_lead_out_of_a_data_set_are_refused(home, tmp_path, name):
    made(home)
    inside, outside = home / "mine" / name, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(DataError, match="is a link that leads out of"):
        disk.open_set("mine")


def test_a_data_set_that_is_kept_elsewhere_as_a_whole_is_opened(home, tmp_path):
    made(home)
    (home / "mine").rename(tmp_path / "large")
    (home / "mine").symlink_to(tmp_path / "large")
    assert len(disk.open_set("mine").splits["train"]) == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_a_data_set_is_not_waited_for(home):
    made(home)
    os.mkfifo(home / "mine" / "train" / "z.npy")
    with pytest.raises(DataError, match=r"z.npy is missing, or is not a file"):
        disk.open_set("mine")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.update(format=2), "not of format 1"),
        (lambda meta: meta.update(splits={"../../etc": meta["splits"]["train"]}), "needs splits, 'train'"),
        (lambda meta: meta["splits"].update({"../other": meta["splits"]["train"]}), "needs splits, 'train'"),
        (lambda meta: meta["splits"]["train"].update(sizes=None), "lacks statistics of 'train'"),
        (lambda meta: meta["splits"]["train"].update(sha256=1), "lacks the hash of 'train'"),
        (lambda meta: meta.update(vocabulary=[1]), "not a list of words"),
        (lambda meta: meta.update(classes="x"), "neither a list nor a number"),
    ],
)
def test_meta_data_that_is_not_as_it_is_made_is_refused(home, change, message):
    path = made(home).path / "meta.json"
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))
    with pytest.raises(DataError, match=re.escape(message)):
        disk.open_set("mine")


@pytest.mark.parametrize("offsets", [[0, 3, 2], [1, 2, 4], [0, 4, 4], [-1, 2, 4], [0.0, 2.0, 4.0], [[0, 2, 4]]])
def test_offsets_that_do_not_divide_the_rows_are_refused(home, offsets):
    np.save(made(home).path / "train" / "offsets.npy", np.array(offsets))
    with pytest.raises(DataError, match="the offsets of train do not rise from 0"):
        disk.open_set("mine")


# what is small and unpacks to something large


def test_text_that_unpacks_to_too_much_is_refused(home, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "MOST", 1 << 20)
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b" " * (2 << 20)))
    refused(home, "t.jsonl.gz unpacks to .* bytes or more; .* at most 1,048,576 are read", "text", path)
    path.write_bytes(gzip.compress(b'{"user": "a", "text": "b"}\n' + b" " * (1 << 19)))
    assert len(take("text", path, test_share=0).splits["train"]) == 1


def test_a_client_that_unpacks_to_too_much_is_refused(home, tmp_path, monkeypatch):
    pytest.importorskip("msgpack")
    monkeypatch.setattr(limits, "MOST", 1 << 20)
    data = zlib.compress(packed({"x": np.zeros(1 << 20, np.float32)}))
    path = sqlite(tmp_path / "f_train.sqlite", [(b"a", data, 1 << 20)])
    refused(home, "client 'a' unpacks to 1,048,577 bytes or more", "fedjax-sqlite", path)


def test_arrays_that_unpack_to_too_much_are_refused(home, tmp_path, monkeypatch):
    path = tmp_path / "n_train.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue() + b"\0" * 64)
    refused(home, r"array 'images' has shape \(1000000000000,\), more than is there", "femnist-npz", path)
    monkeypatch.setattr(limits, "MOST", 1 << 20)
    refused(home, "n_train.npz unpacks to", "femnist-npz", npz(path, writers("a"), labels=np.zeros(1 << 22)))


def test_hdf5_that_holds_more_than_it_could_or_reaches_elsewhere_is_refused(home, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = hdf5(tmp_path / "e_train.h5", {"a": {"label": np.zeros(1, int)}})

    def pixels(message, **options):
        with h5py.File(path, "r+") as file:
            own = file["examples/a"]
            own.pop("pixels", None)
            if "link" in options:
                own["pixels"] = options["link"]
            else:
                own.create_dataset("pixels", dtype=np.float32, **options)
        refused(home, message, "tff-emnist", path)

    pixels("client 'a' unpacks to 627,200,000 bytes", shape=(200_000, 28, 28), chunks=(1, 28, 28))
    outside = hdf5(tmp_path / "outside.h5", {"b": {"pixels": np.zeros((1, 28, 28), np.float32)}})
    pixels("'pixels' is a link to another file", link=h5py.ExternalLink(str(outside), "/examples/b/pixels"))
    pixels("is not a data set with values of its own", shape=(1, 28, 28), external=[(str(outside), 0, 4096)])
    layout = h5py.VirtualLayout((1, 28, 28), np.float32)
    layout[:] = h5py.VirtualSource(str(outside), "/examples/b/pixels", (1, 28, 28))
    with h5py.File(path, "r+") as file:
        del file["examples/a/pixels"]
        file["examples/a"].create_virtual_dataset("pixels", layout)
    refused(home, "is not a data set with values of its own", "tff-emnist", path)


def test_an_image_of_too_many_pixels_is_refused(home, tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "root" / "a" / "x").mkdir(parents=True)
    image.new("1", (8193, 8192)).save(tmp_path / "root" / "a" / "x" / "1.png")
    refused(home, "is an image of more than 67,108,864 pixels", "images", tmp_path / "root")


def test_a_table_of_too_many_rows_is_refused(home, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = 40_000_000
    table = pa.table({"y": pa.array(np.zeros(rows, np.int8)), "x": pa.array(np.zeros(rows, np.int8))})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=rows)
    assert (tmp_path / "p.parquet").stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"p.parquet unpacks to 320,000,000 bytes or more"):
        single.partitioned([tmp_path / "p.parquet"], partition.iid, {"clients": 2})


@pytest.mark.parametrize(
    "schema",
    [
        "CREATE VIEW federated_data(client_id, data, num_examples) AS WITH RECURSIVE n(i) AS "
        "(SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, zeroblob(9), 1 FROM n",
        "CREATE TABLE federated_data (client_id, data AS (zeroblob(999999999)), num_examples)",
        "CREATE VIRTUAL TABLE federated_data USING fts5(client_id, data, num_examples)",
    ],
    ids=["view", "computed", "virtual"],
)
def test_a_database_that_computes_is_refused(home, tmp_path, schema):
    pytest.importorskip("msgpack")
    with sqlite3.connect(tmp_path / "f_train.sqlite") as database:
        database.execute(schema)
    database.close()
    refused(home, "has no plain table federated_data", "fedjax-sqlite", tmp_path / "f_train.sqlite")
