"""Deliberately wrong training labels, for methods that correct or resist label noise.

A share of the clients, drawn at random, is noisy. In a noisy client a share of the training labels
is redrawn uniformly from all classes of the training data. With C classes a redrawn label stays
right with probability 1/C. Tests do not change.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tasks import task as task_lib
from tasks.task import Examples, FederatedData, Task
from tff_suite.hparams import NOT_USED, By, Hparam

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
        default=By("noisy_clients", {0.0: NOT_USED}, otherwise=0.4),
        help=(
            "Share of a noisy client's training labels that is drawn again, uniformly from all "
            "classes."
        ),
        source="choice",
        minimum=0,
        maximum=1,
    ),
)

_CLIENTS, _LABELS = 101, 102


class NoisyLabels:
    """Federated data with some labels redrawn; every draw is a function of seed and client."""

    def __init__(self, data: FederatedData, noisy_clients: float, label_noise: float, seed: int):
        """Initialises from the true data, reading all of it once to find its classes.

        Args:
          data: Data whose targets are class numbers, `[n]`.
          noisy_clients: Share of the clients, rounded to a whole number of them.
          label_noise: Share of a noisy client's labels, rounded to a whole number of them.
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
        """See `tasks.task.held_in_memory`; returns the true labels, not the noisy ones."""
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


def add(task: Task, noisy_clients: float, label_noise: float | None, seed: int) -> Task:
    """Makes training labels of a classification task noisy.

    Args:
      task: The task; its training targets are class numbers, `[n]`.
      noisy_clients: See `HPARAMS`.
      label_noise: See `HPARAMS`.
      seed: Seed of the draws.

    Returns:
      The task with noisy `train` and the true data as `clean_train`; the unchanged task if it has
      no noisy clients.
    """
    if not noisy_clients:
        return task
    assert label_noise is not None  # It is used wherever there are noisy clients.
    noisy = NoisyLabels(task.train, noisy_clients, label_noise, seed)
    return dataclasses.replace(task, train=noisy, clean_train=task.train)
