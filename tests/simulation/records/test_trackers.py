"""Weights & Biases and MLflow, without a network; skipped where they are not installed."""

import pathlib
import time

import pytest

from simulation.errors import RunError
from simulation.records import trackers

FLAGS = {"task": "synthetic", "algorithm": "fedavg", "client_learning_rate": 0.1}
ROWS = [{"round_num": "0", "eval/accuracy": "0.1"}]


def open_trackers(folder, rows, run_id="a", **settings):
    asked = {"wandb_project": None, "mlflow_uri": None, **settings}
    return trackers.opened(asked, str(folder), run_id, FLAGS, rows)


def test_none_is_asked_for(tmp_path):
    assert open_trackers(tmp_path, ROWS) == []


def test_mlflow_has_every_round_once(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="make venv-tracking")
    uri = (tmp_path / "mlruns").as_uri()
    (tracker,) = open_trackers(tmp_path / "run", ROWS, mlflow_uri=uri)
    for round_num in (1, 2, 3):
        values = {"eval/accuracy": 0.1 * round_num, "train/loss": float("nan")}
        tracker.write(round_num, values)
    # Resumed from the checkpoint after round 2.
    kept = [{"round_num": str(r), "eval/accuracy": str(0.1 * r)} for r in range(3)]
    (resumed,) = open_trackers(tmp_path / "run", kept, mlflow_uri=uri)
    for round_num in (3, 4):
        resumed.write(round_num, {"eval/accuracy": 0.1 * round_num})
    resumed.close()
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("synthetic")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["client_learning_rate"] == "0.1"
    history = client.get_metric_history(run.info.run_id, "eval/accuracy")
    assert [m.step for m in history] == [0, 1, 2, 3, 4]
    assert [m.value for m in history] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4])
    assert "train/loss" not in run.data.metrics


def test_weights_and_biases_keeps_a_run_on_disk(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="make venv-tracking")
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal import datastore

    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "run"
    folder.mkdir()
    (tracker,) = open_trackers(folder, ROWS, wandb_project="federated")
    tracker.write(1, {"eval/accuracy": 0.5})
    tracker.close()
    (path,) = pathlib.Path(folder).rglob("*.wandb")
    # A process of its own writes the file, which the end of the run does not wait for.
    waits_until = time.monotonic() + 30
    while not path.stat().st_size and time.monotonic() < waits_until:
        time.sleep(0.05)
    store = datastore.DataStore()
    store.open_for_scan(str(path))
    history, run = {}, None
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            run = record.run
        if record.HasField("history"):
            items = {i.key or i.nested_key[0]: i.value_json for i in record.history.item}
            history[record.history.step.num] = float(items["eval/accuracy"])
    assert history == {0: 0.1, 1: 0.5}
    assert run.project == "federated" and run.display_name == "run"
    assert {c.key or c.nested_key[0] for c in run.config.update} >= set(FLAGS)


@pytest.mark.parametrize("setting", ["wandb_project", "mlflow_uri"])
def test_what_is_not_installed_is_one_line(tmp_path, monkeypatch, setting):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(RunError, match="is not installed: make venv-tracking"):
        open_trackers(tmp_path, ROWS, **{setting: "x"})


@pytest.mark.parametrize("fails", ["__init__", "write", "close"])
def test_a_service_that_fails_at_any_time_is_one_line(tmp_path, monkeypatch, fails):
    """As MLflow does when its server is gone, with an exception of its own."""

    class Service:
        def __init__(self, *arguments):
            self.does("__init__")

        def write(self, round_num, values):
            self.does("write")

        def close(self):
            self.does("close")

        def does(self, what):
            if what == fails:
                raise RuntimeError("API request failed:\nno answer")

    monkeypatch.setattr(trackers, "MLflow", Service)
    with pytest.raises(RunError) as e:
        (tracker,) = open_trackers(tmp_path, [], mlflow_uri="http://gone")
        tracker.write(1, {"eval/accuracy": 0.5})
        tracker.close()
    told = "Service cannot be used: RuntimeError: API request failed: no answer"
    assert str(e.value) == told


@pytest.mark.parametrize("setting", ["wandb_project", "mlflow_uri"])
def test_an_entry_is_that_of_one_run_in_one_folder(tmp_path, monkeypatch, setting):
    """A run that begins anew in a folder must not go on where an earlier one had got to."""
    found = []

    class Service:
        def __init__(self, where, folder, identity, flags):
            found.append(identity)

        def write(self, round_num, values):
            pass

    for kind in ("WeightsAndBiases", "MLflow"):
        monkeypatch.setattr(trackers, kind, Service)
    for folder, run_id in (("run", "a"), ("run", "a"), ("run", "b"), ("copy", "a")):
        open_trackers(tmp_path / folder, ROWS, run_id, **{setting: "x"})
    assert found[0] == found[1] and len(set(found)) == 3 and all(i.isalnum() for i in found)
