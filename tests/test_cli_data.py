"""`fathom data`, as a user types it."""

import numpy as np
import pytest

from test_cli import ENVIRONMENT, fathom
from test_importers import as_table, parquet, writers


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "FATHOM_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_from_a_parquet_file_to_a_trained_model_in_three_commands(tmp_path, home):
    pytest.importorskip("pyarrow")
    table, clients = as_table(writers("f0", "f1", "f2", "f3", "f4"))
    parquet(tmp_path / "mine.parquet", table)
    done = fathom("data", "import", "parquet", "mine.parquet", "--name", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    assert str(sum(len(client["y"]) - len(client["y"]) // 10 for client in clients.values())) in done.stdout
    shown = fathom("data", "show", "mine", cwd=tmp_path)
    assert (tmp_path / "mine.png").exists(), shown.stderr
    settings = ["--rounds", "2", "--cohort", "2", "--every", "1", "--set", "task.data=mine", "--out", "run"]
    trained = fathom("run", "femnist", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "run" / "curves.png").exists()
    assert "mine" in fathom("data", "list", cwd=tmp_path).stdout
    assert fathom("data", "check", "mine", cwd=tmp_path).returncode == 0
    assert "3,400 clients" in fathom("data", "info", "mine", cwd=tmp_path).stdout


def test_sentences_are_shown_as_the_task_sees_them(tmp_path):
    lines = "user,text\n" + "".join(f"u{i % 3},the cat number {i} sat\n" for i in range(30))
    (tmp_path / "talk.csv").write_text(lines)
    done = fathom("data", "import", "text", "talk.csv", "--name", "talk", "--set", "vocabulary=4", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the cat number ▢ sat" in fathom("data", "show", "talk", cwd=tmp_path).stdout


def test_data_without_clients_is_partitioned(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "plain.npz", x=rng.normal(size=(200, 4)), y=rng.integers(0, 5, 200))
    command = ["data", "partition", "plain.npz", "--name", "parts", "--clients", "8"]
    done = fathom(*command, "--by", "dirichlet", "--set", "alpha=0.3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "dirichlet partition with clients=8, alpha=0.3, seed=0" in done.stdout


def test_parquet_without_clients_is_partitioned(tmp_path):
    pytest.importorskip("pyarrow")
    for name, size in {"train": 40, "test": 9}.items():
        parquet(tmp_path / f"{name}.parquet", as_table(writers("a", size=size))[0])
    files = ["train.parquet", "test.parquet"]
    done = fathom("data", "partition", *files, "--name", "parts", "--clients", "4", "--by", "iid", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "images as grey from 0 to 255; iid partition with clients=4, seed=0" in done.stdout
    wrong = fathom("data", "partition", *files, "--name", "other", "--set", "label=what", cwd=tmp_path)
    assert "train.parquet has no label column what; it has 'image'" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["import", "femnist-npy", "x.npz", "--name", "a"], "Did you mean 'femnist-npz'?"),
        (["import", "femnist-npz", "x.npz", "--name", "a"], "x.npz: there is no such file"),
        (["import", "text", "x.csv", "--name", "a", "--set", "vocab=3"], "has no option 'vocab'; it takes"),
        (["import", "femnist-npz", "bad.npz", "--name", "../a"], "is not a name for a data set"),
        (["import", "femnist-npz", "bad.npz", "--name", "a"], "bad.npz"),
        (["info", "nothing"], "there is no data set 'nothing'"),
        (["check", "nothing"], "there is no data set 'nothing'"),
        (["show", "nothing"], "there is no data set 'nothing'"),
        (["partition", "bad.npz", "--name", "a", "--by", "dirichlt"], "Did you mean 'dirichlet'?"),
        (["partition", "bad.npz", "--name", "a"], "bad.npz cannot be read as an .npz file"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, message, tmp_path, home):
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 but no more")
    done = fathom("data", *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not home.exists() or list(home.iterdir()) == []
