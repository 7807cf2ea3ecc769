"""What `fathom doctor` says, and what it keeps to itself."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fathom.experiment import doctor, selftest

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".pytest_cache"
COMMAND = [sys.executable, "-m", "fathom", "doctor"]
PRIVATE = {
    "FATHOM_TOKEN": "hush",
    "XLA_API_KEY": "hush",
    "FATHOM_MIRROR": "https://me:hush@mirror.example/data?signature=hush",
    "JAX_LOG_COMPILES": "0",
    "FATHOM_CACHE": str(HOME / "fathom"),
    "PATH_OF_MINE": "not asked for",
}


def run(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "FATHOM_"))}
    environment |= {"HOME": str(HOME), **PRIVATE, **variables}
    return subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=300)


def test_it_prints_what_to_paste_into_a_bug_report():
    done = run()
    assert done.returncode == 0, done.stderr
    told = done.stdout
    for name in ("fathom", "python", "jax", "jaxlib", "optax", "orbax-checkpoint", "numpy"):
        assert f"{name} " in told
    assert "\n  cpu:0      ok, " in told
    assert "\n  data         importing data sets            installed" in told
    assert ", ~/fathom/jax\n" in told
    assert "FATHOM_CACHE=~/fathom\n" in told
    assert "FATHOM_MIRROR=https://***@mirror.example/data?***\n" in told
    assert "FATHOM_TOKEN=(set, not shown)\n" in told
    assert "PATH_OF_MINE" not in told
    for private in ("hush", str(HOME)):
        assert private not in told + done.stderr


def test_a_device_that_is_not_there_is_told_and_the_rest_as_well():
    done = run("--json", JAX_PLATFORMS="rocm")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert "rocm" in found["trouble"]
    assert found["devices"] == found["self_test"] == []
    assert found["versions"]["jax"]
    assert found["environment"]["JAX_PLATFORMS"] == "rocm"


def test_a_device_that_computes_something_else_fails(monkeypatch):
    right = selftest.reference()
    monkeypatch.setattr(selftest, "engine", lambda device: right)
    assert selftest.run("cpu:0")["ok"]
    monkeypatch.setattr(selftest, "engine", lambda device: right | {"batch": right["batch"] * 1.001})
    found = selftest.run("cpu:0")
    assert not found["ok"]
    assert found["told"].startswith("batch ")
    monkeypatch.setattr(selftest, "engine", lambda device: right | {"loss": float("nan")})
    assert selftest.run("cpu:0")["told"].startswith("loss nan, not ")


def test_a_device_that_breaks_is_told_in_one_line(monkeypatch):
    def broken(device):
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(selftest, "engine", broken)
    found = selftest.run("cuda:0")
    assert (found["device"], found["ok"], found["told"]) == ("cuda:0", False, "RuntimeError: no luck")


def test_the_self_test_is_of_paths_that_bend():
    found = selftest.reference()
    assert found["lr"] / selftest.LR < 1.0199  # had the updates agreed wholly, exp(0.02)
    assert found["batch"] / selftest.BATCH > 0.7409  # had the paths been straight, exp(-0.3)


def test_folders_are_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("FATHOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FATHOM_DATA", str(tmp_path / "data"))
    assert {place["bytes"] for place in doctor.folders().values()} == {0}
    for name, size in {"cache/glyphs.npz": 5, "cache/jax/a/b": 7, "data/mine/meta.json": 3, "data/other": 9}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    sizes = {name: (place["files"], place["bytes"]) for name, place in doctor.folders().items()}
    assert sizes == {"compiled programs": (1, 7), "drawn tasks": (1, 5), "downloads": (0, 0), "data sets": (1, 3)}


def test_only_the_users_home_becomes_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert doctor.plain("/home/me") == "~"
    assert doctor.plain("--x=/home/me/a:/home/me") == "--x=~/a:~"
    assert doctor.plain("/data/home/me/a /home/men/b") == "/data/home/me/a /home/men/b"


def test_every_extra_is_told_of():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras) - {"test"} <= set(doctor.EXTRAS)


def test_an_extra_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert doctor.extras()["data"]["missing"] == ["h5py"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 bytes"), (1023, "1,023 bytes"), (1536, "1.5 KiB"), (3 * 2**20, "3.0 MiB"), (2**41, "2,048.0 GiB")],
)
def test_sizes_read_well(count, shown):
    from fathom.cli_doctor import _bytes

    assert _bytes(count) == shown
