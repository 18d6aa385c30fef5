"""`emnist_autoencoder`: handwritten characters compressed to 30 numbers and restored.

FedOpt's EMNIST AE (Reddi et al. 2021) on TFF's Federated EMNIST, 3,400 writers. MNIST's digits, by
writer, can replace it. The data is that of `emnist_character` or `mnist_writers` with inverted
pixels. The target of an example is the example itself.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

import tasks
from tasks import settings
from tasks import task as task_lib
from tasks.datasets import emnist_character, mnist_writers
from tasks.models import losses, models
from tasks.registry import Clients, TaskSpec
from tasks.task import Examples, FederatedData, Task
from tff_suite.hparams import MAX_SEED, By, Hparam, Settings


def _clients(chosen: Settings, synthetic: bool) -> Clients | None:
    of_source = (539, 20) if chosen["source"] == "mnist" else (3400, 10)
    return settings.at_most(*of_source)(chosen, synthetic)


SPEC = TaskSpec(
    name="emnist_autoencoder",
    summary=(
        "TFF's Federated EMNIST restored from 30 numbers: FedOpt's autoencoder "
        "(2,837,314 parameters)."
    ),
    clients=_clients,
    hparams=(
        Hparam(
            name="source",
            default="emnist",
            help=(
                "`emnist` is TFF's file, `mnist` MNIST's digits by their writers, a stand-in "
                "(see mnist_writers)."
            ),
            source="FedOpt, EMNIST AE",
            choices=("emnist", "mnist"),
        ),
        Hparam(
            name="test_fraction",
            default=By("source", {"mnist": 0.2}),
            help=(
                "Share of each writer's examples that is the writer's own test split. TFF's file "
                "has its own split."
            ),
            source="choice, after AdaFedAdam's local 80/20 split",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        Hparam(
            name="code",
            default="linear",
            help=(
                "Activation of the 30 units in the middle: `linear` as in the code that gave "
                "the published numbers, or `sigmoid` as FedOpt's Table 3 prints it."
            ),
            source="FedOpt's released code; TFF",
            choices=("linear", "sigmoid"),
        ),
        Hparam(
            name="partition_seed",
            default=By("source", {"mnist": None}),
            type=int,
            help="Seed of the writers' train/test splits; by default the run's --seed.",
            source="choice",
            minimum=0,
            maximum=MAX_SEED,
        ),
        settings.init("keras", "FedOpt (TFF)"),
    ),
    metrics=("mse", "mae"),
    data=(
        *(files.replace(when={"source": ("mnist",)}) for files in mnist_writers.SPEC.data),
        *emnist_character.SPEC.data,
    ),
    known_problems=(
        "EMNIST's file could not be downloaded here, so its counts are unchecked.",
        "On MNIST's digits, training stays near the mean image for its first 300 rounds.",
    ),
)


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
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    x and y are the same array, float32 `[n, 784]` in [0, 1], 0.0 for the background. The central
    test is all writers' test examples together; with `source=mnist`, the digits of 297 other
    writers.

    Raises:
      DataError: If a file is missing or damaged and cannot be downloaded.
    """
    of_mnist = {"test_fraction": test_fraction, "partition_seed": partition_seed}
    characters = tasks.load(
        "mnist_writers" if source == "mnist" else "emnist_character",
        data_dir=data_dir,
        seed=seed,
        use_synthetic_data=use_synthetic_data,
        **(of_mnist if source == "mnist" else {}),
    )
    assert characters.central_test is not None  # Both tasks have one.
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
        settings={name: v for name, v in characters.settings.items() if name.startswith("tfds")},
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
