"""Federated learning that tunes itself while it trains."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathom import optimizers, tasks, tuners
    from fathom.core import aggregate
    from fathom.core.engine import Record, train
    from fathom.core.round import federated
    from fathom.core.types import Algorithm, ClientStats, Cohort, HParams, RoundStats, ServerState, Task, Tuner
    from fathom.data import Federation

__all__ = [
    "Algorithm",
    "ClientStats",
    "Cohort",
    "Federation",
    "HParams",
    "Record",
    "RoundStats",
    "ServerState",
    "Task",
    "Tuner",
    "aggregate",
    "federated",
    "optimizers",
    "tasks",
    "train",
    "tuners",
]
__version__ = "0.1.0"

_HOMES = {"Federation": "data", "Record": "core.engine", "train": "core.engine", "federated": "core.round"}
_MODULES = {"aggregate": "core.aggregate", "optimizers": "optimizers", "tasks": "tasks", "tuners": "tuners"}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: `fathom --help` does not wait for jax."""
    if name not in __all__:
        raise AttributeError(f"module 'fathom' has no attribute {name!r}")
    if name in _MODULES:
        found = import_module(f"fathom.{_MODULES[name]}")
    else:
        found = getattr(import_module(f"fathom.{_HOMES.get(name, 'core.types')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
