"""What trackers are told, read back from the files they wrote."""

import json
import sys
import time

import pytest

from fathom.experiment import trackers
from fathom.experiment.spec import SpecError, resolve

SPEC = resolve(
    {"task": "synthetic", "tuner": "fathom", "trials": 2, "seed": 7, "rounds": 9, "every": 3, "hparams": {"lr": 0.25}}
)
EXPECTED = {
    "lr", "epochs", "batch", "agreement", "alignment", "gain", "loss", "gradients", "bytes_up", "bytes_down",
    "rejected", "rolled_back", "test/accuracy", "test/loss",
}  # fmt: skip


def row(number, trial, **other):
    """A row as `store.row` makes them."""
    return {
        "round": number,
        "trial": trial,
        "lr": 0.25 * number + trial,
        "epochs": 1.5,
        "batch": 20.0,
        "next_lr": 1.0,
        "next_epochs": 1.0,
        "next_batch": 1.0,
        "agreement": -0.5,
        "alignment": 0.125,
        "gain": 0.375,
        "loss": 2.0,
        "metrics": {"accuracy": number / 16, "loss": 1.25},
        "gradients": 100 * number,
        "bytes_up": 8 * number,
        "bytes_down": 16 * number,
        "seconds": 0.1,
        "rejected": 0,
        "rolled_back": False,
        "clients": {"examples": [3, 4]},
    } | other


ROWS = [row(number, trial) for number in (3, 6, 9) for trial in (0, 1)]


def write(names, out, rows, past=()):
    with trackers.opened(names, out, SPEC, past) as log:
        for one in rows:
            log(one)


def tensorboard(out, trial):
    """Points by tag, and the parameters, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    read = EventAccumulator(str(out / "tensorboard" / f"trial-{trial + 1}")).Reload()
    points = {tag: [(p.step, p.value) for p in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
    (content,) = read.PluginTagToContent("hparams").values()
    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    return points, {k: getattr(v, v.WhichOneof("kind")) for k, v in hparams.items()}


def mlflow(out, trial):
    """The same as MLflow reads them."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{out / 'mlflow' / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "synthetic-fathom")
    runs = client.search_runs([experiment.experiment_id])
    (run,) = (run for run in runs if run.info.run_name == f"trial {trial + 1}")
    assert len(runs) == 2
    assert run.info.status == "FINISHED"
    points = {
        tag: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, tag)] for tag in run.data.metrics
    }
    return points, run.data.params


def test_tensorboard_reads_what_was_recorded(tmp_path):
    undone = row(7, 1, metrics=None, loss=None, agreement=float("nan"), rolled_back=True, rejected=2)
    write(["tensorboard"], tmp_path, [*ROWS[:4], undone, *ROWS[4:]])
    for trial in (0, 1):
        points, hparams = tensorboard(tmp_path, trial)
        assert set(points) == EXPECTED
        assert points["test/accuracy"] == [(3, 3 / 16), (6, 6 / 16), (9, 9 / 16)]
        assert [p for p in points["lr"] if p[0] != 7] == [(n, 0.25 * n + trial) for n in (3, 6, 9)]
        assert hparams["task.name"] == "synthetic"
        assert hparams["hparams.lr"] == 0.25
        assert hparams["seed"] == 7
    assert points["rolled_back"] == [(3, 0), (6, 0), (7, 1), (9, 0)]
    assert points["rejected"][2] == (7, 2)
    for missing in ("loss", "agreement", "test/accuracy"):
        assert [step for step, _ in points[missing]] == [3, 6, 9]


def test_tensorboard_shows_a_run_that_goes_on_once(tmp_path):
    write(["tensorboard"], tmp_path, ROWS[:4])  # rounds 3 and 6, then it stops; its checkpoint is of round 3
    write(["tensorboard"], tmp_path, ROWS[2:], past=ROWS[:2])
    for trial in (0, 1):
        points, _ = tensorboard(tmp_path, trial)
        assert points["gradients"] == [(3, 300), (6, 600), (9, 900)]


def test_mlflow_reads_what_was_recorded_and_shows_a_run_that_goes_on_once(tmp_path):
    write(["mlflow"], tmp_path, ROWS[:4])
    write(["mlflow"], tmp_path, ROWS[2:], past=ROWS[:2])
    for trial in (0, 1):
        points, params = mlflow(tmp_path, trial)
        assert set(points) == EXPECTED
        assert points["lr"] == [(n, 0.25 * n + trial) for n in (3, 6, 9)]
        assert points["test/accuracy"] == [(3, 3 / 16), (6, 6 / 16), (9, 9 / 16)]
        assert params["hparams.lr"] == "0.25"
        assert params["clamp.high.lr"] == "0.5"


def test_a_tracker_that_joins_a_run_late_is_told_its_past(tmp_path):
    write(["tensorboard"], tmp_path, ROWS[4:], past=ROWS[:4])
    assert [step for step, _ in tensorboard(tmp_path, 0)[0]["lr"]] == [3, 6, 9]


def test_a_tracker_that_fails_is_left_out_and_the_others_go_on(tmp_path, monkeypatch):
    (tmp_path / "mlflow").write_text("in the way")
    with pytest.warns(UserWarning, match="--log mlflow failed and is left out from here on: FileExistsError"):
        write(["mlflow", "tensorboard"], tmp_path, ROWS)
    assert len(tensorboard(tmp_path, 0)[0]["lr"]) == 3


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("mlflow", "alembic"), ("wandb", "wandb")]
)
def test_a_missing_package_is_one_line_that_names_the_extra(name, package, monkeypatch):
    for other in trackers.PACKAGES[name]:
        monkeypatch.setitem(sys.modules, other, sys)
    trackers.check([name])
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SpecError, match=rf"^--log {name} needs {package}, .*pip install 'fathom\[{name}\]'$"):
        trackers.check([name])


def test_an_unknown_tracker_is_named():
    with pytest.raises(SpecError, match="there is no tracker 'tensorbord'; choose from tensorboard, mlflow, wandb"):
        trackers.check(["tensorbord"])


def test_wandb_writes_offline_into_the_run_directory(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    write(["wandb"], tmp_path, ROWS[2:], past=ROWS[:2])
    runs = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2
    deadline = time.time() + 20  # wandb's own process writes, and may be a moment behind
    while any(len(wandb(path)[0]) < 3 for path in runs) and time.time() < deadline:
        time.sleep(0.1)
    found = [wandb(path) for path in runs]
    assert sorted(points[0][1]["lr"] for points, _ in found) == [0.75, 1.75]
    for points, config in found:
        assert [step for step, _ in points] == [3, 6, 9]
        assert set(points[0][1]) >= EXPECTED
        assert config["hparams.lr"] == 0.25


def wandb(path):
    """Points and parameters of an offline run: length, type and bytes of one record after the other."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, points, config = path.read_bytes()[7:], [], {}
    while data:
        size = int.from_bytes(data[4:6], "little")
        record, data = Record.FromString(data[7 : 7 + size]), data[7 + size :]
        if record.HasField("history"):
            items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            points.append((record.history.step.num, items))
        if record.HasField("run"):
            config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return points, config
