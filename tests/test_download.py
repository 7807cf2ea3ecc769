"""Downloads, from a server on this machine that behaves as badly as servers do."""

import bz2
import hashlib
import io
import re
import signal
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fathom.data import disk, download
from fathom.data.disk import DataError
from fathom.data.download import SOURCES, Archive, Patience, Source
from test_cli import ENVIRONMENT, FATHOM, fathom
from test_importers import as_tff, hdf5, same, writers

QUICK = Patience((0.01, 0.02), 5)


class Server(ThreadingHTTPServer):
    """Files by name, and the ways in which it fails."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.drops = []  # for each answer to come, the bytes after which the connection is closed
        self.ranges = []  # what was asked for
        self.knows_ranges = True
        self.claims = None  # a size that it states in place of the true one
        self.status = 200
        self.stalls = threading.Event()  # not set: it sends the head and half of the body, and waits
        self.stalls.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        """A client that has gone away is what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        server, asked = self.server, self.headers["Range"]
        server.ranges.append(asked)
        content = server.files.get(self.path[1:])
        if content is None or server.status != 200:
            self.send_error(404 if content is None else server.status)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.knows_ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(server.claims or len(content) - start))
        self.end_headers()
        rest = content[start:]
        if not server.stalls.is_set():
            self.wfile.write(rest[: len(rest) // 2])
            server.stalls.wait(30)
            return
        self.wfile.write(rest[: server.drops.pop(0)] if server.drops else rest)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    server = Server()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    monkeypatch.setenv("FATHOM_MIRROR", server.url)
    monkeypatch.setitem(ENVIRONMENT, "FATHOM_MIRROR", server.url)
    yield server
    server.stalls.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of downloads, and a home for data sets beside it."""
    for name in ("data", "cache"):
        monkeypatch.setenv(f"FATHOM_{name.upper()}", str(tmp_path / name))
        monkeypatch.setitem(ENVIRONMENT, f"FATHOM_{name.upper()}", str(tmp_path / name))
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(variable, "127.0.0.1")
        monkeypatch.setitem(ENVIRONMENT, variable, "127.0.0.1")
    (tmp_path / "cache" / "downloads").mkdir(parents=True)
    return tmp_path / "cache" / "downloads"


CONTENT = np.random.default_rng(0).bytes(500_000)
ARCHIVE = Archive("a.tar.bz2", hashlib.sha256(CONTENT).hexdigest(), ())
STEPS = download.manual("mine", Source("tff-emnist", (ARCHIVE,)))


def ignore(*_):
    pass


def fetch(archive=ARCHIVE, watch=ignore, note=ignore, patience=QUICK):
    return download.fetch(archive, STEPS, watch, note, patience)


def packed(path, members):
    """An archive of these members, and its entry in the table."""
    with tarfile.open(path, "w:bz2") as tar:
        for member, content in members:
            if isinstance(member, str):
                member = tarfile.TarInfo(member)
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    content = path.read_bytes()
    names = tuple(member for member, _ in members if isinstance(member, str) and "/" not in member)
    return Archive(path.name, hashlib.sha256(content).hexdigest(), names), content


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# fetching


def test_a_download_goes_on_after_each_of_many_dropped_connections(server, folder):
    server.files["a.tar.bz2"] = CONTENT
    server.drops = [120_000, 0, 1, 200_000, 70_000, 100_000]  # more than there are waits
    seen, notes = [], []
    path = fetch(watch=lambda doing, done, total: seen.append((done, total)), note=notes.append)
    assert path.read_bytes() == CONTENT
    starts = [120_000, 120_000, 120_001, 320_001, 390_001, 490_001]
    assert server.ranges == [None, *(f"bytes={start}-" for start in starts)]
    assert seen[-1] == (500_000, 500_000)
    assert {total for _, total in seen} == {500_000}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert notes[0] == "the connection was closed after 120,000 of 500,000 bytes; trying again in 0.01 s"
    assert names(folder) == ["a.tar.bz2"]
    assert fetch() == path  # what is there is not fetched again
    assert len(server.ranges) == 7


def test_a_server_that_knows_no_ranges_sends_all_of_it_again(server):
    server.files["a.tar.bz2"] = CONTENT
    server.knows_ranges = False
    server.drops = [400_000, 100_000]
    assert fetch().read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-", "bytes=100000-"]


def test_a_server_that_always_breaks_off_at_the_same_place_is_given_up(server, folder):
    server.files["a.tar.bz2"] = CONTENT
    server.knows_ranges = False
    server.drops = [1000] * 9
    with pytest.raises(DataError, match="closed after 1,000 of 500,000 bytes"):
        fetch()
    assert len(server.ranges) == 1 + len(QUICK.waits)


@pytest.mark.parametrize("rest", [b"", b"too much"])
def test_a_part_with_nothing_behind_it_is_the_whole_or_is_fetched_again(server, folder, rest):
    server.files["a.tar.bz2"] = CONTENT
    (folder / "a.tar.bz2.part").write_bytes(CONTENT + rest)
    assert fetch().read_bytes() == CONTENT
    assert server.ranges == [f"bytes={500_000 + len(rest)}-", *([None] if rest else [])]


def test_a_wrong_file_is_removed(server, folder):
    server.files["a.tar.bz2"] = CONTENT[:-1]
    with pytest.raises(DataError) as error:
        fetch()
    found = hashlib.sha256(CONTENT[:-1]).hexdigest()
    assert f"its SHA-256 is {found}, not {ARCHIVE.sha256}. It was removed; try again." in str(error.value)
    assert names(folder) == []
    server.files["a.tar.bz2"] = CONTENT
    assert fetch().read_bytes() == CONTENT


def test_giving_up_keeps_the_part_and_says_how_to_do_it_by_hand(server, folder):
    server.files["a.tar.bz2"] = CONTENT
    server.drops = [300_000, *[0] * 9]
    with pytest.raises(DataError) as error:
        fetch()
    message = str(error.value)
    assert "\n" not in message
    assert f"{server.url}/a.tar.bz2 cannot be fetched: the connection was closed after 300,000 of" in message
    assert "300,000 bytes are kept, and the same command goes on from there" in message
    assert message.endswith(STEPS)
    assert len(server.ranges) == 1 + len(QUICK.waits)
    assert (folder / "a.tar.bz2.part").read_bytes() == CONTENT[:300_000]
    server.drops = []
    assert fetch().read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=300000-"


@pytest.mark.parametrize(("status", "attempts"), [(404, 1), (403, 1), (503, 3), (429, 3)])
def test_only_answers_that_may_change_are_asked_for_again(server, status, attempts):
    server.files["a.tar.bz2"] = CONTENT
    server.status = status
    with pytest.raises(DataError, match=f"cannot be fetched: the server answered {status} .* By hand: fetch"):
        fetch()
    assert len(server.ranges) == attempts


def test_nobody_answers(server, folder):
    server.shutdown()
    server.server_close()
    with pytest.raises(DataError, match=r"cannot be fetched: there is no connection \(.*refused.*\). By hand: fetch"):
        fetch()


def test_a_server_that_falls_silent_is_left_after_a_while(server, folder):
    server.files["a.tar.bz2"] = CONTENT
    server.stalls.clear()
    with pytest.raises(DataError, match=r"the connection was lost \(timed out\). 250,000 bytes are kept"):
        fetch(patience=Patience((), 0.3))


def test_stopped_and_given_again(server, folder):
    server.files["a.tar.bz2"] = CONTENT

    def stop(doing, done, total):
        if done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(watch=stop)
    have = (folder / "a.tar.bz2.part").read_bytes()
    assert 200_000 < len(have) < 500_000
    assert CONTENT.startswith(have)
    assert fetch().read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={len(have)}-"]


def test_a_file_that_cannot_fit_is_not_begun(server, folder):
    server.files["a.tar.bz2"] = CONTENT
    server.claims = 10**18
    with pytest.raises(DataError, match=r"needs 1,000,000,000,000,000,000 more bytes in .*downloads.* FATHOM_CACHE"):
        fetch()
    assert (folder / "a.tar.bz2.part").stat().st_size == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this machine")
def test_a_disk_that_fills_up(server, folder):
    pytest.importorskip("h5py")
    server.files["a.tar.bz2"] = CONTENT
    (folder / "a.tar.bz2.part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"downloads: No space left on device; make room there, or set FATHOM_CACHE"):
        download.download("mine", Source("tff-emnist", (ARCHIVE,)), ignore, ignore, QUICK)


def test_a_cache_that_is_not_a_folder(tmp_path, monkeypatch):
    pytest.importorskip("h5py")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"file/downloads: Not a directory; .* set FATHOM_CACHE to another folder"):
        download.download("mine", SOURCES["femnist"], ignore, ignore, QUICK)


def test_a_mirror_needs_an_address(monkeypatch):
    monkeypatch.setenv("FATHOM_MIRROR", "mirror.example")
    with pytest.raises(DataError, match=r"FATHOM_MIRROR='mirror.example' is not a web address; give one that starts"):
        fetch()


# unpacking


def link(kind, target):
    member = tarfile.TarInfo("fed_emnist_test.h5")
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize(
    "bad",
    [
        "../fed_emnist_test.h5",
        "/tmp/fed_emnist_test.h5",
        "a/../../fed_emnist_test.h5",
        link(tarfile.SYMTYPE, "../outside"),
        link(tarfile.LNKTYPE, "../outside"),
        link(tarfile.CHRTYPE, ""),
        link(tarfile.FIFOTYPE, ""),
    ],
    ids=["parent", "absolute", "inside and out", "symbolic link", "hard link", "device", "pipe"],
)
def test_an_archive_that_reaches_out_of_its_folder_is_refused(tmp_path, bad):
    into = tmp_path / "into"
    into.mkdir()
    (tmp_path / "outside").write_bytes(b"mine")
    archive, _ = packed(tmp_path / "bad.tar.bz2", [("fed_emnist_train.h5", b"train"), (bad, b"bad")])
    before = names(tmp_path)
    with pytest.raises(DataError, match=r"bad.tar.bz2 holds '.*fed_emnist_test.h5', a link, a device or a path"):
        download.unpack(tmp_path / "bad.tar.bz2", archive, into, ignore)
    assert names(into) == ["fed_emnist_train.h5"]
    assert names(tmp_path) == before
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_only_the_members_that_should_be_there_are_unpacked(tmp_path):
    into = tmp_path / "into"
    into.mkdir()
    folder = tarfile.TarInfo("data")
    folder.type = tarfile.DIRTYPE
    members = [(folder, b""), ("data/a.h5", CONTENT), ("./b.h5", b"b"), ("c.h5", b"c")]
    path = tmp_path / "a.tar.bz2"
    packed(path, members)
    seen = []
    found = download.unpack(
        path, Archive("a.tar.bz2", "", ("b.h5", "a.h5")), into, lambda doing, done, total: seen.append((done, total))
    )
    assert [file.read_bytes() for file in found] == [b"b", CONTENT]
    assert names(into) == ["a.h5", "b.h5"]
    assert seen[-1][0] <= seen[-1][1] == path.stat().st_size
    with pytest.raises(DataError, match=r"a.tar.bz2 does not hold 'd.h5'; remove it and try again"):
        download.unpack(path, Archive("a.tar.bz2", "", ("a.h5", "d.h5")), into, ignore)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match=r"a.tar.bz2 cannot be read"):
        download.unpack(path, Archive("a.tar.bz2", "", ("a.h5",)), into, ignore)


# all of it


def test_the_table_says_what_is_published_and_what_the_importers_read():
    assert list(SOURCES) == ["femnist", "stackoverflow"]
    for source in SOURCES.values():
        for archive in source.archives:
            assert re.fullmatch("[0-9a-f]{64}", archive.sha256)
    steps = download.manual("so", SOURCES["stackoverflow"])
    assert "\n" not in steps
    assert "https://storage.googleapis.com/tff-datasets-public/stackoverflow.tar.bz2 (SHA-256 99eca2f8" in steps
    assert "`tar xjf stackoverflow.word_count.tar.bz2` and `tar xjf stackoverflow.tar.bz2`" in steps
    files = "stackoverflow.word_count stackoverflow_train.h5 stackoverflow_test.h5 stackoverflow_held_out.h5"
    assert steps.endswith(f"`fathom data import tff-stackoverflow {files} --name so`.")


def test_from_a_server_to_a_data_set(server, folder, tmp_path):
    train, test = writers("f0000_14", "f0001_41"), writers("f0001_41", seed=1, size=3)
    files = {"fed_emnist_train.h5": train, "fed_emnist_test.h5": test}
    content = [(name, hdf5(tmp_path / name, as_tff(clients)).read_bytes()) for name, clients in files.items()]
    archive, server.files["fed_emnist.tar.bz2"] = packed(tmp_path / "fed_emnist.tar.bz2", content)
    server.drops = [5000]
    doing = []
    source = Source("tff-emnist", (archive,))
    data = download.download("mine", source, lambda what, *_: doing.append(what), ignore, QUICK)
    same(data, "train", train)
    same(data, "test", test)
    assert data.meta["source"] == ["fed_emnist_train.h5", "fed_emnist_test.h5"]
    steps = ["fetching fed_emnist.tar.bz2", "unpacking fed_emnist.tar.bz2", "importing mine"]
    assert list(dict.fromkeys(doing)) == steps
    assert server.ranges == [None, "bytes=5000-"]
    assert names(folder) == []
    with pytest.raises(DataError, match=r"there is a data set 'mine' already; nothing was changed. Choose another"):
        download.download("mine", source, ignore, ignore, QUICK)
    assert len(server.ranges) == 2  # nothing was asked for


def test_two_archives_make_one_data_set_and_stay_if_it_fails(server, folder, tmp_path):
    lines = np.array([b"the cat sat", b"the"])
    parts = {"train": {"1": {"tokens": lines}}, "test": {"1": {"tokens": lines}}, "held_out": {"2": {"tokens": lines}}}
    content = [
        (f"stackoverflow_{part}.h5", hdf5(tmp_path / f"{part}.h5", clients).read_bytes())
        for part, clients in parts.items()
    ]
    archives = []
    for name, members in {
        "words.tar.bz2": [("so.word_count", b"the 3\ncat 2\nsat 1\n")],
        "so.tar.bz2": content,
    }.items():
        archive, server.files[name] = packed(tmp_path / name, members)
        archives.append(archive)
    source = Source("tff-stackoverflow", tuple(archives))
    short = source._replace(archives=(archives[0], archives[1]._replace(members=("stackoverflow_validation.h5",))))
    with pytest.raises(DataError, match=r"does not hold 'stackoverflow_validation.h5'"):
        download.download("so", short, ignore, ignore, QUICK)
    assert names(folder) == ["so.tar.bz2", "words.tar.bz2"]
    data = download.download("so", source, ignore, ignore, QUICK)
    assert len(server.ranges) == 2  # each of them once
    assert [len(data.splits[split]) for split in disk.SPLITS] == [1, 1, 1]
    assert names(folder) == []


def test_h5py_is_asked_for_before_anything_is_fetched(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.delitem(sys.modules, "fathom.data.importers.tff", raising=False)
    with pytest.raises(DataError, match=r"needs h5py, which is missing; pip install 'fathom\[data\]'"):
        download.download("mine", SOURCES["femnist"], ignore, ignore, QUICK)
    assert server.ranges == []


# as a user types it


def test_the_command_refuses_what_is_not_the_published_file(server, folder, tmp_path):
    pytest.importorskip("h5py")
    server.files["fed_emnist.tar.bz2"] = bz2.compress(CONTENT)
    done = fathom("data", "download", "femnist", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    published = SOURCES["femnist"].archives[0].sha256
    assert f"not {published}. It was removed; try again." in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "fetching fed_emnist.tar.bz2" in done.stdout
    assert names(folder) == []
    assert "choose from femnist, stackoverflow" in fathom("data", "download", "mnist", cwd=tmp_path).stderr
    (tmp_path / "data" / "mine").mkdir(parents=True)
    taken = fathom("data", "download", "femnist", "--name", "mine", cwd=tmp_path)
    assert "there is a data set 'mine' already" in taken.stderr
    assert len(server.ranges) == 1


def test_the_command_can_be_stopped(server, folder, tmp_path):
    pytest.importorskip("h5py")
    server.files["fed_emnist.tar.bz2"] = CONTENT
    server.stalls.clear()
    command = [*FATHOM, "data", "download", "femnist"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
        # A test run in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    part = folder / "fed_emnist.tar.bz2.part"
    try:
        for _ in range(600):
            if part.exists() and part.stat().st_size > 100_000:
                break
            server.stalls.wait(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == f"fathom: stopped; {folder} keeps what has arrived, and the same command goes on from there.\n"
    assert part.read_bytes() == CONTENT[:250_000]
