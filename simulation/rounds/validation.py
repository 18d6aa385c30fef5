"""Validation data: training examples that are held out, by which settings are chosen.

`--validation_fraction` holds out a part of every client's examples, `--validation_clients` whole
clients. Neither takes part in training. The split depends only on `--seed` and the client's id. So
it is the same in every runtime, with chunks and with workers.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from simulation.rounds import randomness
from tasks import missing
from tasks import task as task_lib
from tasks.task import Examples, FederatedData, Task
from tff_suite.hparams import HparamError


class _Rows:
    """Some clients of federated data, with some of their examples."""

    def __init__(
        self,
        data: FederatedData,
        clients: np.ndarray,
        sizes: np.ndarray,
        rows: Callable[[int], np.ndarray | None],
    ):
        """Initialises the data.

        Args:
          data: All clients.
          clients: Places of these clients in `data`, int `[n]`.
          sizes: How many examples each of them has here, int `[n]`.
          rows: Place of a client in `data` → its examples here; `None` stands for all.
        """
        self._data, self._clients, self._rows = data, list(clients), rows
        self.client_ids = [data.client_ids[k] for k in self._clients]
        self.sizes = np.asarray(sizes, np.int64)
        self.files = task_lib.files(data)

    def examples(self, index: int) -> Examples:
        """Returns the examples of the client at `index`."""
        client = self._clients[index]
        examples, rows = task_lib.read(self._data, client), self._rows(client)
        return examples if rows is None else Examples(examples.x[rows], examples.y[rows])


def split(task: Task, settings: Mapping[str, Any]) -> Task:
    """Returns a task with held-out examples moved from `train` to `validation`.

    Args:
      task: The task.
      settings: The run's settings; uses `seed`, `validation_fraction` and `validation_clients`.

    Raises:
      HparamError: If the task has validation examples already, if nothing would be held out, or if
        no client would be left to train.
    """
    fraction, share = settings["validation_fraction"], settings["validation_clients"]
    if not fraction and not share:
        return task
    if task.validation is not None:
        raise HparamError(
            f"--task={task.name} already has validation examples; leave out "
            "--validation_fraction and --validation_clients."
        )
    ids, sizes = list(map(str, task.train.client_ids)), np.asarray(task.train.sizes, np.int64)
    seed = settings["seed"]
    number = round(share * len(ids))
    if share and not 1 <= number < len(ids):
        raise HparamError(
            f"--validation_clients={share} holds out {number} of {len(ids)} clients; it must hold "
            "out at least one and leave one."
        )
    held_out = randomness.held_out_clients(seed, ids, number)
    training = np.setdiff1d(np.arange(len(ids)), held_out)
    # Rounds half up; every client keeps at least one training example.
    of_client = np.minimum(np.floor(fraction * sizes + 0.5), np.maximum(sizes - 1, 0))
    of_client = of_client.astype(np.int64)
    of_client[held_out] = sizes[held_out]
    empty = "Remove clients without examples from the task, or change --seed."
    if share and not of_client.sum():
        raise HparamError(
            f"--validation_clients={share} holds out "
            f"{missing.clients([ids[k] for k in held_out])}, without examples. {empty}"
        )
    if share and not sizes[training].any():
        raise HparamError(
            f"--validation_clients={share} leaves {missing.clients([ids[k] for k in training])} to "
            f"train, without examples. {empty}"
        )
    if not of_client.sum():
        raise HparamError(
            f"--validation_fraction={fraction} holds out nothing: clients have at most "
            f"{sizes.max(initial=0)} examples. Take a larger fraction, or --validation_clients."
        )

    def rows(client):
        return randomness.held_out_rows(seed, ids[client], sizes[client], of_client[client])

    def kept(client):
        return np.setdiff1d(np.arange(sizes[client]), rows(client)) if of_client[client] else None

    validating = np.flatnonzero(of_client)
    is_whole = np.zeros(len(ids), bool)
    is_whole[held_out] = True
    changes: dict[str, Any] = {
        "train": _Rows(task.train, training, (sizes - of_client)[training], kept),
        "validation": _Rows(
            task.train,
            validating,
            of_client[validating],
            lambda client: None if is_whole[client] else rows(client),
        ),
    }
    if task.clean_train is not None:
        changes["clean_train"] = _Rows(task.clean_train, training, changes["train"].sizes, kept)
    return dataclasses.replace(task, **changes)
