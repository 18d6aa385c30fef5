"""`fashion_mnist`: Fashion-MNIST (Xiao et al. 2017) divided among clients.

The partition follows FedCAda, or AFL and q-FFL (and AdaFed after them): three clients of one class
each.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import generated, partitions, settings
from tasks.data_files import DataFiles
from tasks.formats import files, idx, tfds
from tasks.models import losses, models
from tasks.registry import Clients, TaskSpec
from tasks.task import ArrayFederatedData, DataError, Examples, Task
from tff_suite.hparams import NOT_USED, By, Hparam, HparamError, Settings

_CLASSES = (
    "t_shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle_boot",
)
_NUM_CLASSES = len(_CLASSES)
# Images and labels.
_Labelled = tuple[np.ndarray, np.ndarray]
_Scale = Callable[[np.ndarray], np.ndarray]
_SIDE = 28
_RESIZED_AT_ONCE = 10_000
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# Of all pixels of the 60,000 training images, in [0, 1].
_MEAN, _DEVIATION = 0.2860, 0.3530
_ADVICE = (
    "get the four idx files from https://github.com/zalandoresearch/fashion-mnist and set "
    "--data_dir to their folder, or to the one above it if it is called fashion_mnist"
)
_ORIGIN = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/"
_KERAS = "fashion-mnist"
_TFDS = tfds.Set(
    name="fashion_mnist",
    version="3.0.1",
    sizes={"train": 60_000, "test": 10_000},
    features={"image": ("uint8", (28, 28, 1)), "label": ("int64", ())},
    classes={"label": _NUM_CLASSES},
    labels={
        "train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    },
)


def _check(chosen: Settings) -> None:
    names = chosen["classes"].split(",") if chosen["classes"] is not None else []
    for name in names:
        if name not in _CLASSES:
            raise HparamError(
                f"fashion_mnist: classes has {name!r}, which is not one of {', '.join(_CLASSES)}."
            )
    if len(set(names)) < len(names):
        raise HparamError(f"fashion_mnist: classes={','.join(names)} names a class twice.")


def _clients(chosen: Settings, synthetic: bool) -> Clients | None:
    if chosen["partition"] == "class":
        ids = chosen["classes"].split(",")
        return Clients(len(ids), ids)
    return settings.generated(chosen, synthetic)


def _metrics(chosen: Settings) -> Sequence[str]:
    ids = chosen["classes"].split(",") if chosen["partition"] == "class" else []
    return ("accuracy", *(f"accuracy_{name}" for name in ids))


SPEC = TaskSpec(
    name="fashion_mnist",
    summary="Fashion-MNIST among generated clients, MLP 784-200-200-10 (199,210 parameters).",
    class_labels=True,
    check=_check,
    clients=_clients,
    hparams=(
        Hparam(
            name="partition",
            default="dirichlet",
            help=(
                "How training examples are assigned to clients: by Dirichlet, at random (`iid`), "
                "in shards by label, or one class per client (`class`), whose model has no other "
                "classes."
            ),
            source="FedCAda Table 1, non-iid; AdaFed, Fashion MNIST: class",
            choices=("dirichlet", "iid", "shards", "class"),
        ),
        Hparam(
            name="num_clients",
            default=By("partition", {"class": NOT_USED}, otherwise=20),
            help="Number of clients; FedCAda's cross-device runs have 100.",
            source="FedCAda Table 1, cross-silo",
            minimum=1,
            maximum=settings.MAX_CLIENTS,
        ),
        Hparam(
            name="classes",
            default=By("partition", {"class": "shirt,pullover,t_shirt"}),
            help=f"The clients' classes, of {', '.join(_CLASSES)}.",
            source="AdaFed, Fashion MNIST, after AFL and q-FFL (three outputs, as its code)",
        ),
        Hparam(
            name="alpha",
            default=By("partition", {"dirichlet": 0.1}),
            help="Concentration of the Dirichlet distribution, smaller is less even.",
            source="FedCAda Table 1: Dir(0.1)",
            **settings.CONCENTRATIONS,
        ),
        settings.MIN_SHARE,
        Hparam(
            name="shards_per_client",
            default=By("partition", {"shards": 2}),
            help="Shards of a client.",
            source="AdaFed, CIFAR-10 setup 1; McMahan et al. 2017",
            minimum=1,
        ),
        Hparam(
            name="test_fraction",
            default=By("partition", {"class": NOT_USED}, otherwise=0.25),
            help=(
                "Share of each client's examples that is its test split, drawn at random; 0: no "
                "client tests. The official 10,000 test examples are the central test."
            ),
            source="FedCAda: 75/25 local split",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        settings.partition_seed(
            "the partition and of the clients' train/test splits",
            By("partition", {"class": NOT_USED}, otherwise=None),
        ),
        Hparam(
            name="pixels",
            default="unit",
            type=str,
            choices=("unit", "standardized"),
            help=(
                "unit: in [0, 1]; standardized: less the training images' mean, 0.2860, over "
                "their standard deviation, 0.3530, as PyTorch programs often have them."
            ),
            source="choice; neither FedCAda nor AdaFed says",
        ),
        Hparam(
            name="side",
            default=_SIDE,
            help=(
                "Pixels on a side of an image: 28, as published, or more, by bilinear "
                "interpolation. The model has as many more inputs."
            ),
            minimum=_SIDE,
            maximum=224,
            source="AdaFed D.1 speaks of images resized to 32x32, and not of how",
        ),
        settings.init("torch", "FedCAda and AdaFed (PyTorch)"),
    ),
    metrics=_metrics,
    data=(
        DataFiles(
            "Fashion-MNIST",
            "let Keras download it, or get the idx files of "
            "https://github.com/zalandoresearch/fashion-mnist",
            ("fashion*mnist/*-ubyte*", "train-images?idx3-ubyte*", "FashionMNIST/raw/*-ubyte*"),
            60_000,
            cached=(".keras/datasets/fashion-mnist/train-images-idx3-ubyte.gz",),
            tfds_set=_TFDS,
            tfds_cache="alone",
        ),
    ),
    known_problems=("AdaFed does not give the scale of its pixels. `pixels` has both readings.",),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    partition: str,
    classes: str | None,
    pixels: str,
    side: int,
    init: str,
    **chosen: Any,
) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    The training set is divided among the clients, and each client's share is split into train and
    test. The official test set is the central test. With `partition=class` a client has its class's
    official training and test images. Labels are then the clients' positions, and an accuracy for
    each class is added. Images are float32 `[side, side, 1]`, see `pixels`.

    Raises:
      HparamError: If the partition is impossible.
      DataError: If a file is missing or damaged.
    """
    del seed  # It comes as partition_seed.
    origin = {}
    if use_synthetic_data:
        num_examples = 100 * (chosen["num_clients"] or _NUM_CLASSES)
        train = generated.grey_images(num_examples, _NUM_CLASSES, seed=0)
        test = generated.grey_images(200, _NUM_CLASSES, seed=1)
    else:
        train, test, origin = _read(data_dir)

    if side != _SIDE:
        train, test = ((_resized(images, side), labels) for images, labels in (train, test))
    scale = _unit if pixels == "unit" else _standardized
    metrics = {"accuracy": losses.sparse_accuracy}
    if partition == "class":
        assert classes is not None
        client_ids = classes.split(",")
        data = _of_classes(train, test, client_ids, scale)
        metrics |= {
            f"accuracy_{name}": losses.accuracy_of_class(i) for i, name in enumerate(client_ids)
        }
    else:
        data = _assigned(*train, partition, chosen, scale)
        data["central_test"] = Examples(scale(test[0]), test[1])
    return Task(
        name="fashion_mnist",
        **data,
        keras_model_fn=functools.partial(
            models.mlp,
            input_shape=(side, side, 1),
            num_classes=len(client_ids) if partition == "class" else _NUM_CLASSES,
            init=init,
        ),
        loss=losses.sparse_softmax_cross_entropy,
        metrics=metrics,
        primary_metric="accuracy",
        settings=origin,
    )


def _assigned(
    images: np.ndarray, labels: np.ndarray, partition: str, chosen: Settings, scale: _Scale
) -> dict[str, Any]:
    """Returns clients' training and test examples, both from the training set."""
    seed, test_fraction = chosen["partition_seed"], chosen["test_fraction"]
    parts = _parts(labels, partition, chosen, seed)
    client_ids = [str(i) for i in range(len(parts))]
    train, test = (
        ArrayFederatedData(images, labels, rows, client_ids, scale)
        for rows in partitions.split_train_test(parts, test_fraction, seed)
    )
    return {"train": train, "test": test if test_fraction else None}


def _parts(labels: np.ndarray, partition: str, chosen: Settings, seed: int) -> list[np.ndarray]:
    """Returns the rows of each client, before the split into train and test."""
    num_clients = chosen["num_clients"]
    if partition == "iid":
        return partitions.iid(len(labels), num_clients, seed)
    if partition == "shards":
        return partitions.shards(labels, num_clients, chosen["shards_per_client"], seed)
    least = partitions.least_size(len(labels), num_clients, chosen["min_share"])
    return partitions.dirichlet_by_class(labels, num_clients, chosen["alpha"], seed, least)


def _of_classes(
    train: _Labelled, test: _Labelled, client_ids: Sequence[str], scale: _Scale
) -> dict[str, Any]:
    """Returns the official sets by class: clients' examples, and all their tests together."""
    classes = [_CLASSES.index(name) for name in client_ids]
    clients_train, clients_test = (
        _one_class_each(*part, classes, client_ids, scale) for part in (train, test)
    )
    own = [clients_test.examples(k) for k in range(len(client_ids))]
    central_test = Examples(*(np.concatenate(arrays) for arrays in zip(*own, strict=True)))
    return {"train": clients_train, "test": clients_test, "central_test": central_test}


def _one_class_each(
    images: np.ndarray,
    labels: np.ndarray,
    classes: Sequence[int],
    client_ids: Sequence[str],
    scale: _Scale,
) -> ArrayFederatedData:
    """Returns clients of one class each; labels are the clients' positions."""
    rows = partitions.one_class_each(labels, classes)
    places = np.full(_NUM_CLASSES, -1, np.int32)
    places[classes] = np.arange(len(classes))
    return ArrayFederatedData(images, places[labels], rows, client_ids, scale)


def _resized(images: np.ndarray, side: int) -> np.ndarray:
    """Returns bytes `[n, side, side, 1]` of bytes `[n, 28, 28, 1]`, by bilinear interpolation."""
    resized = np.empty((len(images), side, side, 1), np.uint8)
    # In parts, since TensorFlow's result is float32.
    for start in range(0, len(images), _RESIZED_AT_ONCE):
        part = slice(start, start + _RESIZED_AT_ONCE)
        resized[part] = np.rint(tf.image.resize(images[part], (side, side), "bilinear"))
    return resized


def _unit(images: np.ndarray) -> np.ndarray:
    """Returns float32 pixels in [0, 1] from bytes."""
    return images / np.float32(255)


def _standardized(images: np.ndarray) -> np.ndarray:
    """Returns float32 pixels from bytes, with mean 0 and deviation 1 over the training images."""
    return (_unit(images) - np.float32(_MEAN)) / np.float32(_DEVIATION)


def _read(data_dir: str | None) -> tuple[_Labelled, _Labelled, dict[str, Any]]:
    """Returns training and test images with their labels, and TFDS's folder if they come from it.

    With `data_dir`, the function looks there for idx files and for TFDS's folder. Otherwise it
    looks in Keras's cache and in TFDS's, and then downloads the files as `tf.keras.datasets` does.

    Raises:
      DataError: If a file is missing or damaged, or cannot be downloaded.
    """
    paths: list[str | None] = []
    folder = None
    if data_dir is not None:
        paths = [idx.find(data_dir, "fashion_mnist", name, _ADVICE) for name in _FILES]
        if not any(paths):
            folder = tfds.find(_TFDS, data_dir)
    elif not all(os.path.isfile(files.keras_path(_KERAS, f"{name}.gz")) for name in _FILES):
        folder = tfds.find_in_cache(_TFDS)
    if folder is not None:
        read = (tfds.read_images(_TFDS, folder, split) for split in ("train", "test"))
        train, test = ((arrays["image"], arrays["label"]) for arrays in read)
        return train, test, tfds.record(_TFDS, folder)
    found = []
    if data_dir is None:
        found = [_keras_file(f"{name}.gz") for name in _FILES]
    else:
        for name, path in zip(_FILES, paths, strict=True):
            if path is None:
                raise idx.missing(data_dir, "fashion_mnist", name, _ADVICE, _FILES)
            found.append(path)
    common = _ADVICE, _NUM_CLASSES
    train = idx.read_labelled_images(found[0], found[1], *common, _TFDS.published("train"))
    test = idx.read_labelled_images(found[2], found[3], *common, _TFDS.published("test"))
    return train, test, {}


def _keras_file(name: str) -> str:
    """Returns the path of a file in Keras's cache, after downloading it if needed."""
    try:
        return tf.keras.utils.get_file(name, _ORIGIN + name, cache_subdir=f"datasets/{_KERAS}")
    except Exception as error:  # Keras raises plain Exception for a failed download.
        reason = " ".join(str(error).split())
        raise DataError(f"{name} cannot be downloaded ({reason}); {_ADVICE}") from error
