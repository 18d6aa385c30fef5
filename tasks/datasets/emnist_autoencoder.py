"""`emnist_autoencoder`: handwritten characters compressed to 30 numbers and restored.

FedOpt's EMNIST AE (Reddi et al. 2021) on TFF's Federated EMNIST, 3,400 writers; MNIST's digits by
their writers can stand in for it. The data are those of `emnist_character` or `mnist_writers` with
pixels inverted, and the target of an example is the example itself.
"""

import functools
from collections.abc import Sequence

import numpy as np

import tasks
from tasks import settings
from tasks import task as task_lib
from tasks.models import losses, models
from tasks.task import Examples, FederatedData, Task


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    source: str,
    test_fraction: float | None,
    code: str,
    partition_seed: int | None,
    init: str,
) -> Task:
    """Loads the task; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    x and y are one and the same float32 `[n, 784]` in [0, 1], 0.0 for the background. The central
    test is all writers' test examples together, with `source=mnist` the digits of 297 others.

    Raises:
      HparamError: If a setting does not go with the source.
      DataError: If a file is missing or damaged and cannot be downloaded.
    """
    of_mnist = settings.only_with(
        "emnist_autoencoder",
        "source=mnist",
        source == "mnist",
        test_fraction=(test_fraction, 0.2),
        partition_seed=(partition_seed, seed),
    )
    characters = tasks.load(
        "mnist_writers" if source == "mnist" else "emnist_character",
        data_dir=data_dir,
        seed=seed,
        use_synthetic_data=use_synthetic_data,
        **(of_mnist if source == "mnist" else {}),
    )
    train = _ToRestore(characters.train)
    test = None if characters.test is None else _ToRestore(characters.test)
    return Task(
        name="emnist_autoencoder",
        train=train,
        test=test,
        central_test=_to_restore(characters.central_test),
        keras_model_fn=functools.partial(models.autoencoder, code=code, init=init),
        loss=losses.squared_error,
        metrics={"mse": losses.squared_error, "mae": losses.absolute_error},
        primary_metric="mse",
        higher_is_better=False,
        settings={"source": source, **of_mnist, "code": code, "init": init},
    )


class _ToRestore:
    """Federated data of characters in the form of this task."""

    def __init__(self, characters: FederatedData):
        self.client_ids = characters.client_ids
        self.sizes = characters.sizes
        self.files = task_lib.files(characters)
        self._characters = characters

    def examples(self, index: int) -> Examples:
        return _to_restore(self._characters.examples(index))

    def held_in_memory(self, index: int) -> Sequence[np.ndarray]:
        return task_lib.held_in_memory(self._characters, index)


def _to_restore(characters: Examples) -> Examples:
    x = np.subtract(1, characters.x.reshape(len(characters.x), -1), dtype=np.float32)
    return Examples(x, x)
