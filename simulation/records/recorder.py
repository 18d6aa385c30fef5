"""Writes a run's rows, checkpoints, trackers and progress, and its files at start and end."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simulation import run_hparams
from simulation.experiment_flags import Request
from simulation.records import checkpoints, files, metrics_csv, outputs, tensorboard, trackers
from simulation.records.client_states import ClientStates
from simulation.records.progress import Progress
from tasks.task import Task
from tff_algos.registry import SIMULATED


class Recorder:
    """Records the rounds of a run: rows, checkpoints, progress.

    Used as a context manager, which closes the files and trackers that it has opened.

    Attributes:
      kept: Rows of metrics.csv, column → text, of the rounds before this start.
    """

    def __init__(
        self,
        folder: outputs.ExperimentFolder,
        request: Request,
        round_num: int,
        *,
        client_states: ClientStates | None,
        progress: Callable[[int, int], Progress],
        shown: Mapping[str, str],
        first: Sequence[str] = (),
    ):
        """Opens metrics.csv, TensorBoard's file and the trackers.

        Args:
          folder: The folder of the experiment.
          request: The checked settings.
          round_num: Number of rounds done; later rows are removed.
          client_states: The clients' states; `None` if the method's clients keep none.
          progress: (rounds done, rounds in total) → the `Progress` that is shown.
          shown: Name of a number in the progress display → its column of metrics.csv.
          first: Columns that TensorBoard shows before all others.

        Raises:
          RunError: If a file or a tracker cannot be used.
        """
        self._folder, self._request = folder, request
        self._client_states, self._shown = client_states, shown
        self._latest: dict[str, float] = {}
        with files.explained(folder.path):
            # A start from round 0 rewrites row 0.
            self._table = metrics_csv.MetricsCsv(folder.file("metrics.csv"), round_num or -1)
            # An earlier process may have been killed after a checkpoint and before this step.
            checkpoints.remove_old(folder.file("checkpoints"), round_num)
            self._forget_states()
            self.kept = metrics_csv.read_csv(folder.file("metrics.csv"))[1]
            settings = request.in_force
            places = run_hparams.MAY_CHANGE - {"total_rounds"}
            board = tensorboard.TensorBoard(
                folder.path,
                self.kept,
                settings={k: v for k, v in settings.items() if k not in places},
                first=first,
                total_rounds=settings["total_rounds"],
            )
            self._copies = [board]
        self._copies += trackers.opened(
            request.run, folder.path, folder.run_id, request.in_force, self.kept
        )
        self._progress = progress(round_num, request.run["total_rounds"])

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.close()
        with files.explained(self._folder.path):
            self._table.close()
            for tracker in self._copies:
                tracker.close()

    def record(self, round_num: int, values: Mapping[str, float]) -> None:
        """Adds a row.

        Args:
          round_num: Number of rounds done.
          values: Column → number.
        """
        with files.explained(self._folder.path):
            self._table.append(round_num, values)
            for tracker in self._copies:
                tracker.write(round_num, values)

    def checkpoint(self, round_num: int, leaves: Sequence[np.ndarray]) -> None:
        """Saves a checkpoint.

        Args:
          round_num: Number of rounds done.
          leaves: Arrays of the server's state.
        """
        folder, states = self._folder, self._client_states
        with files.explained(folder.path):
            self._table.sync()
            checksums = {
                "run_id": folder.run_id,
                "metrics.csv": self._table.checksum(),
                "client_states.sqlite": states.commit(round_num) if states else None,
            }
            place = folder.file("checkpoints")
            checkpoints.save(place, round_num, leaves, self._request.in_force, checksums)
            self._forget_states()

    def _forget_states(self):
        """Removes client states that only removed checkpoints would need."""
        left = checkpoints.rounds(self._folder.file("checkpoints"))
        if self._client_states and left:
            self._client_states.forget_before(left[0])

    def show(self, round_num: int, values: Mapping[str, float]) -> None:
        """Updates the progress after a round, with the latest value of each number shown."""
        self._latest.update(values)
        shown = {
            name: self._latest[column]
            for name, column in self._shown.items()
            if column in self._latest
        }
        self._progress.update(round_num, shown)

    def warn(self, text: str) -> None:
        """Shows a warning."""
        self._progress.warn(text)


def write_start(
    folder: outputs.ExperimentFolder,
    request: Request,
    task: Task,
    start: Mapping[str, Any],
    identity: Mapping[str, Any],
    accepted: Sequence[str] = (),
) -> None:
    """Writes hparams.json.

    Args:
      folder: The folder of the experiment.
      request: The checked settings.
      task: The task.
      start: Description of this start, from `outputs.describe_start`.
      identity: The run's identity, from `simulation.identity`.
      accepted: Accepted differences from the recorded identity.
    """
    recorded = folder.read_hparams()
    content = {
        "flags": dict(request.in_force),
        "task_settings": dict(task.settings),
        "num_clients": len(task.train.client_ids),
        "num_training_examples": int(np.sum(task.train.sizes)),
        **_validation(task.validation),
        **({"objects": _names(request.objects)} if request.objects else {}),
        **({"simulated": SIMULATED} if request.in_force["aggregator"] == "secure" else {}),
        "identity": identity,
        **_accepted(recorded, start[metrics_csv.ROUND], accepted),
        "start": recorded["start"] if recorded else start,
        "resumed": [*recorded["resumed"], start] if recorded else [],
    }
    folder.write_with_checksum("hparams.json", content)
    if task.encoding:
        folder.write_json("encoding.json", task.encoding)


def _validation(data):
    """Returns the numbers of validation clients and examples, if any."""
    if data is None:
        return {}
    number = int(np.sum(np.asarray(data.sizes) > 0))
    return {"validation": {"clients": number, "examples": int(np.sum(data.sizes))}}


def accept(
    folder: outputs.ExperimentFolder,
    round_num: int,
    identity: Mapping[str, Any],
    accepted: Sequence[str],
) -> None:
    """Records accepted differences in the hparams.json of a finished run.

    Args:
      folder: The folder of the experiment.
      round_num: Number of rounds done.
      identity: The current identity; recorded parts that it lacks are kept.
      accepted: The differences.
    """
    recorded = folder.read_hparams()
    assert recorded is not None  # The differences are from what it says.
    content = {k: v for k, v in recorded.items() if k not in ("run_id", "seal")}
    content["identity"] = {**content.get("identity", {}), **identity}
    folder.write_with_checksum("hparams.json", content | _accepted(recorded, round_num, accepted))


def _accepted(recorded, round_num, accepted):
    """Returns the recorded accepted changes, with the new ones appended."""
    known = list((recorded or {}).get("accepted_changes", ()))
    if accepted:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        known.append({metrics_csv.ROUND: round_num, "time": now, "changes": list(accepted)})
    return {"accepted_changes": known} if known else {}


def _names(objects):
    """Returns the names of objects given in Python, which cannot be recorded themselves."""
    return {
        kind: getattr(given, "name" if kind == "task" else "__qualname__", type(given).__name__)
        for kind, given in objects.items()
    }


def write_results(
    folder: outputs.ExperimentFolder,
    task: Task,
    final: Mapping[str, float],
    by_client: Mapping[str, np.ndarray] | None,
    round_num: int,
    total_rounds: int,
    weights: Mapping[str, np.ndarray] | None = None,
    stopped: str | None = None,
) -> None:
    """Writes client_metrics.csv and summary.json.

    Args:
      folder: The folder of the experiment.
      task: The task.
      final: Metrics of the final model, by column.
      by_client: Its metrics on every client's own test examples; `None` if clients have none.
      round_num: Number of rounds done.
      total_rounds: `--total_rounds`.
      weights: The metrics' weights, in the form of `by_client`.
      stopped: Why a callback ended the run early, if one did.
    """
    with files.explained(folder.path):
        if by_client is not None:
            _write_client_metrics(folder, task, by_client, weights)
        rows = metrics_csv.read_csv(folder.file("metrics.csv"))[1]
    summary = {
        "finished": round_num == total_rounds or stopped is not None,
        "rounds": round_num,
        **({} if stopped is None else {"stopped": stopped}),
        "final": final,
        **metrics_csv.summarize_rows(
            rows, f"eval/{task.primary_metric}", bool(task.higher_is_better)
        ),
        "seals": {
            "metrics.csv": metrics_csv.rows_digest(rows),
            "client_metrics.csv": outputs.file_digest(folder.file("client_metrics.csv")),
        },
    }
    # Written last: it marks the run as finished.
    folder.write_with_checksum("summary.json", summary)


def _write_client_metrics(folder, task, by_client, weights):
    train, test = task.train, task.test
    train_sizes = dict(zip(train.client_ids, map(int, train.sizes), strict=True))
    metrics_csv.write_client_metrics(
        folder.file("client_metrics.csv"),
        test.client_ids,
        [train_sizes.get(client) for client in test.client_ids],
        list(map(int, test.sizes)),
        by_client,
        weights,
    )
