"""`emnist_character`: TFF's Federated EMNIST, 3,400 writers and 62 characters.

FedOpt's EMNIST CR (Reddi et al. 2021): 671,585 training and 77,483 test examples, every writer with
some of both. The data comes from TFF's own file or its older HDF5 files.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from tasks import generated, settings
from tasks.formats import files, tffs
from tasks.models import losses, models
from tasks.registry import TaskSpec
from tasks.task import ArrayFederatedData, Examples, FederatedData, Task

_NUM_CLASSES = 62
PUBLISHED = tffs.Published(
    folder="emnist",
    sqlite="emnist_all.sqlite",
    h5="fed_emnist",
    features={
        "pixels": tffs.Feature((28, 28), "float32"),
        "label": tffs.Feature((), "int64"),
    },
    example="28x28 pixels and a label",
    advice=(
        "get https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma and set "
        "--data_dir to its folder"
    ),
    clients=(3400, 3400),
    splits=("all_train", "all_test"),
)


SPEC = TaskSpec(
    name="emnist_character",
    summary=(
        "TFF's Federated EMNIST: 3,400 writers, 62 characters, FedOpt's CNN (1,206,590 parameters)."
    ),
    class_labels=True,
    clients=settings.at_most(3400, 10),
    hparams=(settings.init("keras", "FedOpt (TFF)"),),
    metrics=("accuracy",),
    data=(PUBLISHED.data_files("TFF's Federated EMNIST", 671_585, 3_400),),
    known_problems=(
        "Its published file could not be downloaded here, so its counts are unchecked.",
    ),
    used_for=("FedJAX ships the same clients.",),
)


def load(*, data_dir: str | None, seed: int, use_synthetic_data: bool, init: str) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    `data_dir` holds TFF's file, unpacked or as TFF ships it. Without `data_dir` the task uses TFF's
    cache, and downloads the file if needed. Writers are read one by one. Only the central test is
    held in memory (243 MB): all writers' test examples together, as in FedOpt. Pixels are float32
    in [0, 1], 1.0 for the background; labels are 0-9 digits, 10-35 capitals, 36-61 small letters.

    Raises:
      DataError: If the file is missing or damaged and cannot be downloaded.
    """
    del seed  # Nothing but the initial weights is drawn at random.
    train: FederatedData
    test: FederatedData
    if use_synthetic_data:
        train, test, central_test = _synthetic()
    else:
        train, of_file = open_file(data_dir)
        test, central_test = of_file, of_file.pooled()
    return Task(
        name="emnist_character",
        train=train,
        test=test,
        central_test=central_test,
        keras_model_fn=functools.partial(models.emnist_cnn, num_classes=_NUM_CLASSES, init=init),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings={"init": init},
    )


def open_file(data_dir: str | None, advice: str | None = None) -> tuple[tffs.Clients, tffs.Clients]:
    """Opens TFF's file of 62 classes.

    Args:
      data_dir: Its folder; `None` means TFF's cache, downloading the file if needed.
      advice: Where to get the file and how to point at it, for error texts; `None` means TFF's
        address.

    Returns:
      Training and test examples of each writer, in the form of `parse`.

    Raises:
      DataError: If the file is missing or damaged and cannot be downloaded.
    """
    published = PUBLISHED._replace(advice=advice) if advice else PUBLISHED
    return tffs.open_clients(published, data_dir, parse)


def parse(features: Mapping[str, np.ndarray]) -> Examples:
    """Returns examples in the task's form.

    Args:
      features: `pixels` `[n, 28, 28]` and `label` `[n]`, as in TFF's file.

    Returns:
      x float32 `[n, 28, 28, 1]` and y int32 `[n]`.

    Raises:
      ValueError: If a pixel or label is out of range.
    """
    x, y = features["pixels"], features["label"]
    files.check_labels(y, _NUM_CLASSES)
    if len(y) and not (0 <= x.min() and x.max() <= 1):
        raise ValueError(f"pixels from {x.min():g} to {x.max():g}, outside [0, 1]")
    return Examples(x[..., np.newaxis], y.astype(np.int32))


def _synthetic() -> tuple[ArrayFederatedData, ArrayFederatedData, Examples]:
    """Generates ten writers of the true shapes and types, with 24 to 96 training examples."""
    train_sizes = np.arange(24, 97, 8)
    test_sizes = train_sizes // 8
    client_ids = [f"synthetic{i}" for i in range(len(train_sizes))]
    made = []
    for seed, sizes in enumerate((train_sizes, test_sizes)):
        images, labels = generated.grey_images(sizes.sum(), _NUM_CLASSES, seed)
        x = (255 - images) / np.float32(255)
        rows = np.split(np.arange(len(labels)), np.cumsum(sizes)[:-1])
        made.append(ArrayFederatedData(x, labels, rows, client_ids))
    return made[0], made[1], Examples(x, labels)
