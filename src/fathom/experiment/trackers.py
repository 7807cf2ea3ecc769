"""The records of a run, written to a tracker as well: TensorBoard, MLflow or Weights & Biases.

Every tracker has one run or series per trial, the spec as its parameters, and the numbers of each record against its
round. All of it lies in the run directory, and nothing is sent anywhere (W&B: unless WANDB_MODE says so). A run that
goes on after a stop shows every round once: TensorBoard and W&B are told the past again, MLflow what it has not got.
"""

import importlib.util
import logging
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fathom.experiment.spec import Spec, SpecError

Row = dict[str, Any]
Log = Callable[[Row], None]
NUMBERS = (
    "lr", "epochs", "batch", "agreement", "alignment", "gain", "loss", "gradients", "bytes_up", "bytes_down",
    "rejected", "rolled_back",
)  # fmt: skip


@contextmanager
def opened(names: Sequence[str], out: Path, spec: Spec, past: Sequence[Row] = ()) -> Iterator[Log]:
    """A function that writes a row to every tracker named; `past` are the rows of an earlier start of this run.

    A tracker that fails is left out from then on, with a warning: the run and its own records go on.
    """
    with ExitStack() as stack:
        logs: dict[str, Log] = {}

        def attempt(name: str, do: Callable[[], Any]) -> Any:
            try:
                return do()
            except Exception as error:
                logs.pop(name, None)
                told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                warnings.warn(f"--log {name} failed and is left out from here on: {told}", stacklevel=2)

        def log(row: Row) -> None:
            for name, write in list(logs.items()):
                attempt(name, lambda write=write: write(row))

        for name in dict.fromkeys(names):
            opening = TRACKERS[name](out, spec)
            if write := attempt(name, opening.__enter__):
                stack.callback(attempt, name, lambda opening=opening: opening.__exit__(None, None, None))
                logs[name] = write
        for row in past:
            log(row)
        yield log


def check(names: Sequence[str]) -> None:
    """See that there are such trackers, and that their packages are installed."""
    for name in names:
        if name not in TRACKERS:
            raise SpecError(f"there is no tracker {name!r}; choose from {', '.join(TRACKERS)}.")
        missing = [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]
        if missing:
            told = f"--log {name} needs {' and '.join(missing)}, not installed here"
            raise SpecError(f"{told}; get it with: pip install 'fathom[{name}]'")


@contextmanager
def tensorboard(out: Path, spec: Spec) -> Iterator[Log]:
    """Event files in out/tensorboard; look at them with `tensorboard --logdir OUT/tensorboard`."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writers = [EventFileWriter(str(out / "tensorboard" / f"trial-{i + 1}"), flush_secs=10) for i in range(spec.trials)]
    for writer in writers:
        # To a reader, a start at step 1 takes back what files of an earlier start hold: the past is told again.
        writer.add_event(Event(wall_time=time.time(), step=1, session_log=SessionLog(status=SessionLog.START)))
        writer.add_event(Event(wall_time=time.time(), summary=hparams_pb(parameters(spec))))

    def log(row: Row) -> None:
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in numbers(row).items()]
        writers[row["trial"]].add_event(Event(wall_time=time.time(), step=row["round"], summary=Summary(value=values)))

    try:
        yield log
    finally:
        for writer in writers:
            writer.close()


@contextmanager
def mlflow(out: Path, spec: Spec) -> Iterator[Log]:
    """A database in out/mlflow; look at it with `mlflow ui --backend-store-uri sqlite:///OUT/mlflow/mlflow.db`."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store").setLevel(logging.WARNING)
    folder = (out / "mlflow").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    name = f"{spec.task['name']}-{spec.tuner['name']}"
    experiment = client.get_experiment_by_name(name)
    number = experiment.experiment_id if experiment else client.create_experiment(name, (folder / "files").as_uri())
    there = {run.data.tags["trial"]: run.info.run_id for run in client.search_runs([number])}
    runs, last = [], []
    for trial in map(str, range(spec.trials)):
        if trial in there:
            runs.append(there[trial])
            client.update_run(there[trial], status="RUNNING")
        else:
            tags = {"trial": trial, "seed": str(spec.seed + int(trial))}
            runs.append(client.create_run(number, run_name=f"trial {int(trial) + 1}", tags=tags).info.run_id)
            client.log_batch(runs[-1], params=[Param(key, str(value)) for key, value in parameters(spec).items()])
        last.append(max((point.step for point in client.get_metric_history(runs[-1], "rolled_back")), default=0))

    def log(row: Row) -> None:
        trial, now = row["trial"], int(time.time() * 1000)
        if row["round"] > last[trial]:  # a round that is run again comes to the same numbers
            client.log_batch(runs[trial], [Metric(tag, v, now, row["round"]) for tag, v in numbers(row).items()])

    try:
        yield log
    finally:
        for run in runs:
            client.set_terminated(run)


@contextmanager
def wandb(out: Path, spec: Spec) -> Iterator[Log]:
    """Offline runs in out/wandb, to be sent with `wandb sync`; WANDB_MODE=online sends them as they come.

    Every start of a run is a run of its own there, with the whole past, in one group.
    """
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    package = importlib.import_module("wandb")

    runs = [
        package.init(
            project="fathom",
            group=out.resolve().name,
            name=f"{out.resolve().name} trial {trial + 1}",
            dir=str(out),
            mode=None if os.environ.get("WANDB_MODE") else "offline",
            config=parameters(spec),
            reinit="create_new",
            settings=package.Settings(silent=True, console="off", save_code=False),
        )
        for trial in range(spec.trials)
    ]

    def log(row: Row) -> None:
        runs[row["trial"]].log(numbers(row), step=row["round"])

    try:
        yield log
    finally:
        for run in runs:
            run.finish()


TRACKERS: dict[str, Callable[[Path, Spec], AbstractContextManager[Log]]] = {
    "tensorboard": tensorboard,
    "mlflow": mlflow,
    "wandb": wandb,
}
PACKAGES = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic"), "wandb": ("wandb",)}


def numbers(row: Row) -> dict[str, float]:
    """The numbers of a row by name, those of the test set as test/NAME; none that are missing or not finite."""
    found = {name: row[name] for name in NUMBERS} | {f"test/{k}": v for k, v in (row["metrics"] or {}).items()}
    return {name: float(value) for name, value in found.items() if value is not None and math.isfinite(value)}


def parameters(spec: Spec) -> dict[str, str | float | bool]:
    """The spec with its tables laid flat: task.name, hparams.lr, ..."""

    def flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in table.items():
            if isinstance(value, dict):
                yield from flat(value, f"{before}{key}.")
            elif value is not None:
                yield f"{before}{key}", value if isinstance(value, str | int | float) else str(value)

    return dict(flat(asdict(spec)))
