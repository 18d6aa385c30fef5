"""`fashion_mnist`: Fashion-MNIST (Xiao et al. 2017) dealt to clients, after FedCAda's protocol."""

import functools
import math
import os

import numpy as np
import tensorflow as tf

from tasks import generated, idx, losses, models, partitions, settings
from tasks.task import ArrayFederatedData, DataError, Examples, Task

_NUM_CLASSES = 10
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_ADVICE = (
    "get the four idx files from https://github.com/zalandoresearch/fashion-mnist and set "
    "--data_dir to their folder, or to the one above it if it is called fashion_mnist"
)
_ORIGIN = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    partition: str,
    num_clients: int,
    alpha: float | None,
    min_share: float | None,
    shards_per_client: int | None,
    test_fraction: float,
    partition_seed: int | None,
    init: str,
) -> Task:
    """Loads the task; see `tasks.builtin` for the settings and `tasks.load` for the rest.

    The training set is dealt to the clients, each client's share is split into its own train and
    test, and the official test set is the central test. Pixels are float32 in [0, 1].

    Raises:
      HparamError: If a setting does not go with the partition, or the partition is impossible.
      DataError: If a file is missing or damaged.
    """
    dirichlet = settings.only_with(
        "fashion_mnist",
        "partition=dirichlet",
        partition == "dirichlet",
        alpha=(alpha, 0.1),
        min_share=(min_share, 0.01),
    )
    of_shards = settings.only_with(
        "fashion_mnist",
        "partition=shards",
        partition == "shards",
        shards_per_client=(shards_per_client, 2),
    )
    partition_seed = seed if partition_seed is None else partition_seed
    if use_synthetic_data:
        images, labels = generated.grey_images(100 * num_clients, _NUM_CLASSES, seed=0)
        test_images, test_labels = generated.grey_images(200, _NUM_CLASSES, seed=1)
    else:
        paths = _paths(data_dir)
        images, labels = idx.read_labelled_images(paths[0], paths[1], _ADVICE)
        test_images, test_labels = idx.read_labelled_images(paths[2], paths[3], _ADVICE)

    if partition == "dirichlet":
        share = len(labels) / num_clients * dirichlet["min_share"]
        parts = partitions.dirichlet_by_class(
            labels,
            num_clients,
            dirichlet["alpha"],
            partition_seed,
            min_size=max(2, math.ceil(share)),  # Two: one to train on and one to test.
        )
    elif partition == "iid":
        parts = partitions.iid(len(labels), num_clients, partition_seed)
    else:
        parts = partitions.shards(
            labels, num_clients, of_shards["shards_per_client"], partition_seed
        )
    train_rows, test_rows = partitions.split_train_test(parts, test_fraction, partition_seed)
    client_ids = [str(i) for i in range(num_clients)]
    data = functools.partial(ArrayFederatedData, client_ids=client_ids, transform=_scale)
    return Task(
        name="fashion_mnist",
        train=data(images, labels, train_rows),
        test=data(images, labels, test_rows) if test_fraction else None,
        central_test=Examples(_scale(test_images), test_labels),
        keras_model_fn=functools.partial(models.mlp, num_classes=_NUM_CLASSES, init=init),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings={
            "partition": partition,
            "num_clients": num_clients,
            **dirichlet,
            **of_shards,
            "test_fraction": test_fraction,
            "partition_seed": partition_seed,
            "init": init,
        },
    )


def _scale(images: np.ndarray) -> np.ndarray:
    """Returns float32 pixels in [0, 1] from bytes."""
    return images / np.float32(255)


def _paths(data_dir: str | None) -> list[str]:
    """Returns the paths of the four files: in `data_dir` if given, else in Keras's cache.

    What the cache lacks is downloaded, as `tf.keras.datasets.fashion_mnist` does.

    Raises:
      DataError: If a file is not in `data_dir` or cannot be downloaded.
    """
    paths = []
    for name in _FILES:
        if data_dir is not None:
            path = idx.find(data_dir, "fashion_mnist", name)
            if path is None:
                raise DataError(f"{os.path.join(data_dir, name)}.gz is missing; {_ADVICE}")
        else:
            try:
                path = tf.keras.utils.get_file(
                    f"{name}.gz", _ORIGIN + f"{name}.gz", cache_subdir="datasets/fashion-mnist"
                )
            except Exception as error:  # Keras raises plain Exception for a failed download.
                reason = " ".join(str(error).split())
                raise DataError(f"{name}.gz cannot be downloaded ({reason}); {_ADVICE}") from error
        paths.append(path)
    return paths
