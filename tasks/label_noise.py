"""Training labels made wrong on purpose, for methods that are to cope with it.

Of a share of the clients, drawn at random, a share of the training labels is drawn anew, uniformly
from all classes of the training data, so that one in so many stays right. Tests stay as they are.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hparams import Hparam, HparamError
from tasks import task as task_lib
from tasks.task import Examples, FederatedData, Task

HPARAMS = (
    Hparam(
        name="noisy_clients",
        default=0.0,
        help="Share of the clients whose training labels are made noisy; 0 leaves all as they are.",
        source="choice: no noise",
        minimum=0,
        maximum=1,
    ),
    Hparam(
        name="label_noise",
        default=None,
        type=float,
        help=(
            "Share of a noisy client's training labels that is drawn anew, uniformly from all "
            "classes; only with noisy_clients above 0, where not set means 0.4."
        ),
        source="choice",
        minimum=0,
        maximum=1,
    ),
)

_CLIENTS, _LABELS = 101, 102


class NoisyLabels:
    """Federated data with some labels drawn anew; every draw is a function of seed and client."""

    def __init__(self, data: FederatedData, noisy_clients: float, label_noise: float, seed: int):
        """Initialises from the true data; all of it is read once, for its classes.

        Args:
          data: Data whose targets are class numbers, `[n]`.
          noisy_clients: Share of the clients, rounded to a whole number of them.
          label_noise: Share of such a client's labels, rounded to a whole number of them.
          seed: Seed of the draws, 0 or more.
        """
        self._data = data
        self._label_noise = label_noise
        self._seed = seed
        number = len(data.client_ids)
        found = [np.unique(data.examples(k).y) for k in range(number)]
        self._classes = np.unique(np.concatenate(found)).astype(found[0].dtype)
        rng = np.random.default_rng((seed, _CLIENTS))
        drawn = rng.choice(number, round(noisy_clients * number), replace=False)
        self.noisy = frozenset(map(int, drawn))
        self.client_ids: Sequence[str] = data.client_ids
        self.sizes = data.sizes
        self.files = task_lib.files(data)

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        """See `tasks.task.held_in_memory`; the true labels, of which the noisy ones are made."""
        return task_lib.held_in_memory(self._data, index)

    def examples(self, index: int) -> Examples:
        """Returns all examples of the client at `index`."""
        examples = self._data.examples(index)
        if index not in self.noisy:
            return examples
        rng = np.random.default_rng((self._seed, _LABELS, index))
        number = len(examples.y)
        rows = rng.choice(number, round(self._label_noise * number), replace=False)
        labels = np.array(examples.y)
        labels[rows] = rng.choice(self._classes, len(rows))
        return Examples(examples.x, labels)


def check(task: str, settings: Mapping[str, Any]) -> None:
    """Refuses noise of no client.

    Args:
      task: Name of the task.
      settings: The settings of `HPARAMS`, by name, and maybe others.

    Raises:
      HparamError: If `label_noise` is given without noisy clients.
    """
    if settings["label_noise"] is not None and not settings["noisy_clients"]:
        raise HparamError(f"{task}: label_noise is used only with noisy_clients above 0.")


def add(task: Task, noisy_clients: float, label_noise: float | None, seed: int) -> Task:
    """Makes training labels of a classification task noisy.

    Args:
      task: The task; its training targets are class numbers, `[n]`.
      noisy_clients: See `HPARAMS`.
      label_noise: See `HPARAMS`.
      seed: Seed of the draws.

    Returns:
      The task with noisy `train` and the true data as `clean_train`, or as it was if there are no
      noisy clients; the settings are recorded in it.

    Raises:
      HparamError: If `label_noise` is given without noisy clients.
    """
    noise = {"noisy_clients": noisy_clients, "label_noise": label_noise}
    check(task.name, noise)
    if noisy_clients and label_noise is None:
        noise["label_noise"] = 0.4
    task = dataclasses.replace(task, settings={**task.settings, **noise})
    if not noisy_clients:
        return task
    noisy = NoisyLabels(task.train, seed=seed, **noise)
    return dataclasses.replace(task, train=noisy, clean_train=task.train)
