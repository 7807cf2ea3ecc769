"""Federated learning that tunes itself while it trains."""

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
