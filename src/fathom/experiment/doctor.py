"""What a bug report should say of a machine: versions, devices, extras, folders, variables and a self-test.

Nothing in it is private: folders of the user begin with ~, and the values of variables that may be secret are left out.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import jax

import fathom
from fathom.data import cache, disk, download
from fathom.experiment import selftest, trackers

Facts = dict[str, Any]
PACKAGES = ("jax", "jaxlib", "optax", "orbax-checkpoint", "numpy")
EXTRAS = {  # what each is for, and the modules it brings
    "cuda": ("NVIDIA GPUs", ("jax_cuda13_plugin",)),
    "data": ("importing data sets", ("h5py", "msgpack", "PIL", "pyarrow")),
    "private": ("what a private run gives away", ("dp_accounting",)),
    "report": ("fathom report, fathom watch", ("plotly", "starlette", "uvicorn")),
    "tensorboard": ("fathom run --log tensorboard", trackers.PACKAGES["tensorboard"]),
    "mlflow": ("fathom run --log mlflow", trackers.PACKAGES["mlflow"]),
    "wandb": ("fathom run --log wandb", trackers.PACKAGES["wandb"]),
}
SHOWN = re.compile(r"(JAX|XLA|FATHOM)_|CUDA_VISIBLE_DEVICES$|WANDB_MODE$")
SECRET = re.compile(r"TOKEN|SECRET|KEY|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def examine() -> Facts:
    """Look at this machine, and try every device out."""
    try:
        devices = jax.local_devices()
        trouble = ""
    except RuntimeError as error:  # what jax was told to use is not there
        devices, trouble = [], plain(" ".join(str(error).split())[:300])
    return {
        "versions": {"fathom": fathom.__version__, "python": platform.python_version(), **_versions()},
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "memory": _memory(),
        "devices": [_device(device) for device in devices],
        "trouble": trouble,
        "extras": extras(),
        "folders": folders(),
        "environment": environment(),
        "self_test": [{**found, "told": plain(found["told"])} for found in map(selftest.run, devices)],
    }


def extras() -> dict[str, Facts]:
    """The optional parts of fathom: what for, and which modules are missing."""
    return {
        name: {"for": purpose, "missing": [m for m in modules if importlib.util.find_spec(m) is None]}
        for name, (purpose, modules) in EXTRAS.items()
    }


def folders() -> dict[str, Facts]:
    """Where things are kept, and how much of them."""
    places = {
        "compiled programs": (cache.folder() / "jax", [cache.folder() / "jax"]),
        "drawn tasks": (cache.folder(), list(cache.folder().glob("*.npz"))),
        "downloads": (download.folder(), [download.folder()]),
        "data sets": (disk.home(), [disk.home() / name for name in disk.names()]),
    }
    return {name: {"path": plain(str(path)), **_size(parts)} for name, (path, parts) in places.items()}


def environment() -> dict[str, str]:
    """The variables that matter; of those that may be secret, only that they are set."""
    return {
        name: "(set, not shown)" if SECRET.search(name) else plain(_public(value))
        for name, value in sorted(os.environ.items())
        if SHOWN.match(name)
    }


def plain(text: str) -> str:
    """The same with ~ in place of the user's home."""
    for home in {str(Path.home()), str(Path.home().resolve())} - {"/"}:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    return text


def _public(value: str) -> str:
    """A value without what a web address may hide: a user, a password, a query."""
    value = re.sub(r"(://)[^/@\s]*@", r"\1***@", value)
    return re.sub(r"(://[^\s?]*)\?\S*", r"\1?***", value)


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def _device(device: Any) -> Facts:
    stats = device.memory_stats() or {}
    return {
        "name": str(device),
        "kind": device.device_kind,
        "platform": device.platform,
        "memory": stats.get("bytes_limit"),  # that jax may use; None where it is the machine's
        "in_use": stats.get("bytes_in_use"),
    }


def _memory() -> int | None:
    """Bytes of the machine's memory; None where the system does not say."""
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _size(parts: list[Path]) -> Facts:
    """How many files there are in some files and folders, and their bytes."""
    sizes = []
    for file in (file for part in parts for file in ([part] if part.is_file() else part.rglob("*"))):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours to see
            if file.is_file():
                sizes.append(file.stat().st_size)
    return {"files": len(sizes), "bytes": sum(sizes)}
