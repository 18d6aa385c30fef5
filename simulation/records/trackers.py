"""Trackers that can show a run's numbers besides metrics.csv: Weights & Biases and MLflow.

Both are optional (`make venv-tracking`). A resumed run continues its entry and does not send again
the rounds that an earlier process has sent.
"""

import contextlib
import hashlib
import importlib.util
import math
import os
import posixpath
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from simulation.errors import RunError
from simulation.records import metrics_csv

_INSTALL = "make venv-tracking, or pip install -r requirements-tracking.txt, brings it"


def require_installed(settings: Mapping[str, Any]) -> None:
    """Checks, before a run begins, that the packages of its trackers are installed.

    Args:
      settings: The run's settings; `wandb_project` and `mlflow_uri` are read.

    Raises:
      RunError: If one is missing.
    """
    for kind, package, flag in (
        (WeightsAndBiases, "wandb", "wandb_project"),
        (MLflow, "mlflow", "mlflow_uri"),
    ):
        if settings[flag] is not None and importlib.util.find_spec(package) is None:
            raise RunError(f"--{flag}: {kind.__name__} is not installed: {_INSTALL}.")


def opened(
    settings: Mapping[str, Any],
    folder: str,
    run_id: str,
    flags: Mapping[str, Any],
    rows: Iterable[Mapping[str, str]],
) -> list:
    """Opens the trackers of a run.

    Args:
      settings: The run's settings; `wandb_project` and `mlflow_uri` are read.
      folder: Folder of the run. Folder and id together identify the entry that a resumed run
        continues; a copy of the folder and a new run in it each get a new entry.
      run_id: The run's id.
      flags: Every setting in force, for the record.
      rows: Rows of metrics.csv that are kept.

    Returns:
      Objects with `write(round_num, values)` and `close()`, both of which may raise a `RunError`.

    Raises:
      RunError: If a tracker is not installed or can't be reached.
    """
    trackers = []
    folder = os.path.abspath(folder)
    identity = hashlib.sha256(f"{run_id} {folder}".encode()).hexdigest()[:16]
    for kind, where in (
        (WeightsAndBiases, settings["wandb_project"]),
        (MLflow, settings["mlflow_uri"]),
    ):
        if where is None:
            continue
        tracker = _InOneLine(kind, where, folder, identity, flags)
        trackers.append(tracker)
        for row in rows:
            values = {k: float(v) for k, v in row.items() if k != metrics_csv.ROUND and v}
            tracker.write(int(row[metrics_csv.ROUND]), values)
    return trackers


class _InOneLine:
    """Turns all errors of a tracker into `RunError`s, since a service can fail at any round."""

    def __init__(self, kind, *arguments):
        self._name = kind.__name__
        with self._told():
            self._tracker = kind(*arguments)

    @contextlib.contextmanager
    def _told(self):
        try:
            yield
        except ImportError as e:
            raise RunError(f"{self._name} is not installed: {_INSTALL}.") from e
        except Exception as e:  # The user needs to see any error of the service's client.
            told = " ".join(str(e).split())
            raise RunError(f"{self._name} cannot be used: {type(e).__name__}: {told}") from e

    def write(self, round_num, values):
        with self._told():
            self._tracker.write(round_num, values)

    def close(self):
        with self._told():
            self._tracker.close()


class WeightsAndBiases:
    """A run of Weights & Biases; `WANDB_MODE=offline` keeps it on disk."""

    def __init__(self, project: str, folder: str, identity: str, flags: Mapping[str, Any]):
        """Opens the run of this identity in a project.

        Raises:
          ImportError: If wandb is not installed.
        """
        import wandb

        self._run = wandb.init(
            project=project,
            id=identity,
            name=os.path.basename(folder),
            # Offline there is no entry to continue; the parts are joined when they are uploaded.
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            dir=folder,
            config=dict(flags),
            settings=wandb.Settings(silent=True, disable_git=True),
        )
        self._next = self._run.step if self._run.resumed else 0

    def write(self, round_num: int, values: Mapping[str, float]) -> None:
        """Sends the numbers of a round."""
        if round_num >= self._next:
            self._run.log(dict(values), step=round_num)

    def close(self) -> None:
        """Ends the run's session."""
        self._run.finish()


def _mlflows_name(column: str) -> str:
    """Returns a column's name with characters that MLflow allows; it stays unique."""
    name = re.sub(r"[^A-Za-z0-9_. /-]", "_", column)
    if name == column and posixpath.normpath(name) == name:
        return name
    # MLflow rejects empty, `.` and `..` parts of a path.
    name = re.sub(r"(^|/)\.*(?=/|$)", r"\1_", name)
    return f"{name}_{hashlib.sha256(column.encode()).hexdigest()[:8]}"


class MLflow:
    """A run of MLflow, in an experiment named after the task."""

    def __init__(self, uri: str, folder: str, identity: str, flags: Mapping[str, Any]):
        """Opens the run of this identity at a tracking address (a folder, `http://...`).

        Raises:
          ImportError: If MLflow is not installed.
        """
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=uri)
        self._entities = mlflow.entities
        task = flags["task"]
        experiment = self._client.get_experiment_by_name(task)
        create = self._client.create_experiment
        identifier = experiment.experiment_id if experiment else create(task)
        found = self._client.search_runs([identifier], f"tags.identity = '{identity}'")
        if found:
            self._id = found[0].info.run_id
            sent = [
                self._client.get_metric_history(self._id, name)[-1].step
                for name in found[0].data.metrics
            ]
            self._next = max(sent, default=-1) + 1
            self._client.update_run(self._id, "RUNNING")
            return
        name = os.path.basename(folder)
        tags = {"folder": folder, "identity": identity}
        run = self._client.create_run(identifier, tags=tags, run_name=name)
        self._id, self._next = run.info.run_id, 0
        for flag, value in flags.items():
            self._client.log_param(self._id, flag, str(value)[:500])

    def write(self, round_num: int, values: Mapping[str, float]) -> None:
        """Sends the numbers of a round."""
        if round_num < self._next:
            return
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(_mlflows_name(name), value, timestamp=now, step=round_num)
            for name, value in values.items()
            if math.isfinite(value)
        ]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        """Ends the run's session."""
        self._client.set_terminated(self._id)
