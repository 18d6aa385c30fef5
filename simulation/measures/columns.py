"""Predicts the columns of a run's tables from its settings; see docs/metrics.md."""

from typing import NamedTuple

import numpy as np

import tasks
import tff_algos
from simulation.experiment_flags import Request
from simulation.measures import fairness
from simulation.records import metrics_csv
from simulation.run_checks import tracked
from simulation.run_hparams import EXTREMES
from tff_algos.method_spec import COUNTS

# The columns on label noise; those that are ratios may be undefined.
NOISE = tuple(
    f"noise/{name}"
    for name in (
        "noisy_clients",
        "found_clients",
        "precision",
        "recall",
        "labels_wrong",
        "labels_corrected",
        "labels_spoiled",
    )
)
IMPROVED = "fairness/improved_fraction"
_TIMES = ("round_seconds", "data_seconds", "eval_seconds")
_TIMES_OF_WORKERS = ("down_mb", "up_mb", "states_mb", "workers")


class Columns(NamedTuple):
    """Columns of a table that a run writes.

    Attributes:
      names: All known columns. If the data have nothing to measure, columns in `NOISE` are blank
        and columns over clients are missing.
      beginnings: Prefixes of further columns that only become known in the run.
    """

    names: tuple[str, ...]
    beginnings: tuple[str, ...] = ()

    def may_have(self, column: str) -> bool:
        """Returns whether the run may write a column."""
        return column in self.names or column.startswith(self.beginnings)


def in_rounds(request: Request) -> Columns:
    """Returns the columns of metrics.csv after `round_num`.

    Args:
      request: The checked settings.
    """
    run = request.run
    method = tff_algos.get(run["algorithm"])
    metrics = _metrics(request)
    names = [f"train/{name}" for name in ("loss", *COUNTS, *(method.measures or ()))]
    names += [f"time/{name}" for name in _TIMES]
    beginnings = [] if method.measures is not None else ["train/"]
    prefixes = []
    if run["evaluate_test"]:
        names.append("eval/loss")
        prefixes = ["fairness"] + ["fairness_all"] * bool(run["evaluate_all_local_data"])
    kinds = ("train", "eval") if run["evaluate_test"] else ("train",)
    if metrics is None:
        beginnings += [f"{prefix}/" for prefix in (*kinds, *prefixes)]
    else:
        names += [f"{kind}/{name}" for kind in kinds for name in metrics]
        statistics = fairness.summarize(np.ones(1), np.ones(1), train_sizes=np.ones(1))
        names += [f"{prefix}/{metrics[0]}_{name}" for prefix in prefixes for name in statistics]
    if metrics is None:
        beginnings.append("validation/")
    elif run["validation_fraction"] or run["validation_clients"]:
        names += [f"validation/{name}" for name in ("loss", *metrics)]
    if request.in_force["aggregator"] != "mean":
        beginnings.append("train/aggregator/")
    if run["evaluate_improvement"]:
        names.append(IMPROVED)
    if run["evaluate_classes"]:
        beginnings.append("eval/accuracy_class_")
    if run["track_clients"] == EXTREMES:
        beginnings.append(metrics_csv.TRACKED)
    elif run["track_clients"] is not None:
        names += [metrics_csv.TRACKED + client for client in tracked(run["track_clients"])]
    if method.staged and request.task.get("noisy_clients"):
        names += NOISE
    if run["workers"]:
        names += [f"time/{name}" for name in _TIMES_OF_WORKERS]
    return Columns(tuple(names), tuple(beginnings))


def of_clients(request: Request) -> Columns:
    """Returns the columns of client_metrics.csv after `client_id`.

    Args:
      request: The checked settings.
    """
    if not request.run["evaluate_test"]:
        return Columns(())
    metrics = _metrics(request)
    names = ("train_examples", "test_examples", "loss", *(metrics or ()))
    if metrics is None:
        return Columns(names, ("",))
    return Columns(names, ("accuracy_class_",) if request.run["evaluate_classes"] else ())


def of_the_final_model(column: str) -> bool:
    """Returns whether a column of metrics.csv describes a model and not a round of training."""
    return not column.startswith(("train/", "time/")) and column != IMPROVED


def _metrics(request):
    own = request.objects.get("task")
    if own is not None:
        return tuple(own.metrics)
    return tasks.get(request.run["task"]).metrics_with(request.task)
