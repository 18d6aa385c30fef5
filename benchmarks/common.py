"""Shared by the benchmarks: workloads, and a description of the machine."""

import contextlib
import csv
import datetime
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tasks
import tff_algos
from simulation.rounds.cohorts import cohort_data
from tff_algos.registry import RoundPlan
from tff_suite import tables


class Workload(NamedTuple):
    """A task and the settings of a round: clients, minibatch size B, client learning rate."""

    task: str
    clients: int
    batch_size: int
    learning_rate: float


@contextlib.contextmanager
def report(options: Any, heads: Mapping[str, str] | None = None) -> Iterator[tables.Table]:
    """Opens a table for records; writes them to `--csv`, also if the benchmark fails halfway.

    Args:
      options: The command's flags, `csv` and `json` among them.
      heads: As of `tff_suite.tables.Table`.
    """
    with tables.printed(options.json, heads) as table:
        try:
            yield table
        finally:
            if options.csv and table.records:
                write_csv(options.csv, table.records)


def write_csv(path: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes records as a CSV file, each with the machine and date of the measurement."""
    measured = {"machine": machine(), "date": datetime.date.today().isoformat()}
    records = [{**record, **measured} for record in records]
    with open(path, "w", newline="") as f:
        writer = csv.DictWriter(f, list(dict.fromkeys(k for r in records for k in r)))
        writer.writeheader()
        writer.writerows(records)


def machine() -> str:
    """Returns processor, cores and Python in one line."""
    name = platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
        name = names[0] if names else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"


def build(task: tasks.task.Task, learning_rate: float) -> "tff_algos.process.Process":
    """Builds FedAvg on a task, seed 1."""
    import tensorflow as tf

    y = task.train.examples(0).y
    model = tff_algos.from_keras(
        task.keras_model_fn(1),
        loss=task.loss,
        metrics=task.metrics,
        y_spec=tf.TensorSpec([None, *y.shape[1:]], y.dtype),
        loss_reduction=task.loss_reduction,
    )
    return tff_algos.build("fedavg", model, client_learning_rate=learning_rate)


def cohorts(task: tasks.task.Task, workload: Workload, rounds: int) -> Iterator[list]:
    """Yields the clients' data of each round, as `run_experiment.py` makes it with seeds 1."""
    settings = {
        "clients_per_round": workload.clients,
        "client_batch_size": workload.batch_size,
        "client_epochs_per_round": 1,
        "client_epochs_distribution": "fixed",
        "client_datasets_random_seed": 1,
        "seed": 1,
    }
    for round_index in range(rounds):
        yield cohort_data(task.train, RoundPlan(), settings, round_index)
