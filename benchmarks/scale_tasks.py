"""The workloads of `benchmarks.scale` as tasks, which workers can load themselves."""

from typing import Any

import numpy as np

import tasks
from tff_suite.hparams import Hparam

_WORKLOADS = ("w1", "w4", "w6")

tasks.register(
    tasks.TaskSpec(
        name="scale",
        summary="A workload of the speed benchmark with any number of clients.",
        loader="benchmarks.scale_tasks:load",
        hparams=(
            Hparam("workload", "w1", "Name of the workload.", "choice", choices=_WORKLOADS),
            Hparam("clients", 10, "Number of clients.", "choice", minimum=1),
        ),
        needs_data=True,
    )
)


class Repeated:
    """The clients of a workload, repeated; every client has its own copy of the examples."""

    def __init__(self, clients, number: int):
        """Initialises for a number of clients."""
        self._clients = clients
        self.client_ids = [f"{k:06d}" for k in range(number)]
        self.sizes = np.array([len(clients[k % len(clients)][1]) for k in range(number)])

    def examples(self, index: int) -> tasks.task.Examples:
        """Returns the examples of a client, made on access as if read from a file."""
        x, y = self._clients[index % len(self._clients)]
        shift = index // len(self._clients)
        return tasks.task.Examples(np.roll(x, shift, 0), np.roll(y, shift, 0))


def task_of(name: str, workload: Any, clients: int) -> tasks.task.Task:
    """Returns a workload with a number of clients as a task, without metrics.

    Args:
      name: Name of the task.
      workload: A `benchmarks.workloads.Workload`.
      clients: Number of clients.
    """
    train = Repeated(workload.clients, clients)
    return tasks.task.Task(
        name=name,
        train=train,
        test=None,
        central_test=train.examples(0),
        keras_model_fn=lambda seed: workload.keras_model(),
        loss=workload.loss,
        loss_reduction=workload.loss_reduction,
        metrics={},
        primary_metric="loss",
        higher_is_better=False,
    )


def load(*, data_dir, seed, use_synthetic_data, workload, clients):
    """Makes the task."""
    from benchmarks import workloads

    return task_of("scale", workloads.WORKLOADS[workload](data_dir), clients)
