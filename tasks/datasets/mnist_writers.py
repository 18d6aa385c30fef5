"""`mnist_writers`: MNIST's digits partitioned by the people who wrote them.

MNIST was drawn from NIST Special Database 19, as Federated EMNIST was. QMNIST (Yadav and Bottou
2019) recovered every digit's writer: 539 writers in the training set, 297 others in the test set.
So the task has natural clients, and can replace the digits of Federated EMNIST where you cannot
download that set. There are differences: MNIST's digits are size-normalised and centred, and there
are fewer writers with fewer digits each.
"""

from __future__ import annotations

import functools
import os

import numpy as np

from tasks import generated, partitions, settings
from tasks.data_files import DataFiles
from tasks.formats import files, idx, tfds
from tasks.models import losses, models
from tasks.registry import TaskSpec
from tasks.task import ArrayFederatedData, DataError, Examples, Task
from tff_suite.hparams import Hparam, HparamError

_NUM_CLASSES = 10

_ADVICE = (
    "get MNIST's four idx files from https://github.com/cvdfoundation/mnist, their writers "
    "(qmnist-train-labels-idx2-int.gz and qmnist-test-labels-idx2-int.gz, or a prepared "
    "writers.npz) from https://github.com/facebookresearch/qmnist, and set --data_dir to their "
    "folder, or to the one above it if it is called mnist"
)
_TFDS = tfds.Set(
    name="mnist",
    version="3.0.1",
    sizes={"train": 60_000, "test": 10_000},
    features={"image": ("uint8", (28, 28, 1)), "label": ("int64", ())},
    classes={"label": _NUM_CLASSES},
    labels={
        "train": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    },
)


SPEC = TaskSpec(
    name="mnist_writers",
    summary=(
        "MNIST digits by their NIST writers, a stand-in for the digits of Federated EMNIST: "
        "FedOpt's CNN with 10 outputs (1,199,882 parameters)."
    ),
    class_labels=True,
    clients=settings.at_most(539, 20),
    hparams=(
        Hparam(
            name="test_fraction",
            default=0.2,
            help=(
                "Share of each writer's examples that is the writer's test split; 0: no client "
                "tests. The official 10,000 test examples, by 297 other writers, are the central "
                "test."
            ),
            source="choice, after AdaFedAdam's local 80/20 split",
            minimum=0,
            maximum=1,
            exclusive_maximum=True,
        ),
        Hparam(
            name="num_clients",
            default=None,
            type=int,
            help="Number of writers, drawn at random; by default all 539.",
            source="choice",
            minimum=1,
        ),
        settings.partition_seed("the draw of writers and of their train/test splits"),
        settings.init("keras", "FedOpt (TFF)"),
    ),
    metrics=("accuracy",),
    data=(
        DataFiles(
            "MNIST and QMNIST's writers",
            "get the files of https://github.com/cvdfoundation/mnist and "
            "https://github.com/facebookresearch/qmnist",
            ("mnist/*images?idx3-ubyte*", "*images?idx3-ubyte*", "MNIST/raw/*images-idx3-ubyte*"),
            60_000,
            539,
            tfds_set=_TFDS,
            tfds_cache="beside",
            beside=(
                "mnist/writers.npz",
                "writers.npz",
                "mnist/qmnist-train-labels-*",
                "qmnist-train-labels-*",
            ),
        ),
    ),
    known_problems=(
        "It stands in for Federated EMNIST: digits only, 539 writers. Its numbers do not "
        "compare with those on EMNIST.",
    ),
)


def load(
    *,
    data_dir: str | None,
    seed: int,
    use_synthetic_data: bool,
    test_fraction: float,
    num_clients: int | None,
    partition_seed: int,
    init: str,
) -> Task:
    """Loads the task; see `SPEC` for the settings and `tasks.load` for the rest.

    Clients are the training set's writers, all or some, by ascending id; each keeps at least one
    training example. Pixels are as in TFF's EMNIST, float32 in [0, 1] with 1.0 for the background.

    Raises:
      DataError: If a file is missing or damaged.
      HparamError: If there are fewer writers than `num_clients`.
    """
    del seed  # It comes as partition_seed.
    origin = {}
    if use_synthetic_data:
        images, labels = generated.grey_images(600, _NUM_CLASSES, seed=0)
        writers = np.random.default_rng(0).integers(0, 20, len(labels))
        test_images, test_labels = generated.grey_images(200, _NUM_CLASSES, seed=1)
    else:
        if data_dir is None:
            raise DataError(f"mnist_writers reads files and needs --data_dir: {_ADVICE}")
        folder = _tfds_folder(data_dir)
        origin = {} if folder is None else tfds.record(_TFDS, folder)
        images, labels, writers = _read("train", data_dir, folder)
        test_images, test_labels, _ = _read("test", data_dir, folder)
    ids, index_of_writer = np.unique(writers, return_inverse=True)
    by_writer = np.argsort(index_of_writer, kind="stable")
    ends = np.cumsum(np.bincount(index_of_writer))
    train_rows, test_rows = partitions.split_train_test(
        np.split(by_writer, ends[:-1]), test_fraction, partition_seed
    )
    client_ids = [str(i) for i in ids]
    if num_clients is not None:
        if num_clients > len(ids):
            raise HparamError(
                f"mnist_writers: num_clients={num_clients}, but there are {len(ids)} writers."
            )
        # The first word sets this draw apart from other uses of the seed.
        drawn = np.random.default_rng((539, partition_seed)).permutation(len(ids))
        chosen = np.sort(drawn[:num_clients])
        client_ids = [client_ids[i] for i in chosen]
        train_rows = [train_rows[i] for i in chosen]
        test_rows = [test_rows[i] for i in chosen]
    data = functools.partial(ArrayFederatedData, client_ids=client_ids, transform=_white_background)
    return Task(
        name="mnist_writers",
        train=data(images, labels, train_rows),
        test=data(images, labels, test_rows) if test_fraction else None,
        central_test=Examples(_white_background(test_images), test_labels),
        keras_model_fn=functools.partial(models.emnist_cnn, num_classes=_NUM_CLASSES, init=init),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        primary_metric="accuracy",
        settings={"num_clients": len(client_ids), **origin},
    )


def _white_background(images: np.ndarray) -> np.ndarray:
    """Returns float32 pixels in [0, 1] from bytes, inverting them so that the background is 1.0."""
    return np.subtract(1, images / np.float32(255), dtype=np.float32)


_PREFIXES = {"train": "train", "test": "t10k"}


def _idx_paths(part: str, data_dir: str) -> dict[str, str | None]:
    """Returns the paths of a part's images and labels by name; `None` for a missing file."""
    names = (f"{_PREFIXES[part]}-images-idx3-ubyte", f"{_PREFIXES[part]}-labels-idx1-ubyte")
    return {name: idx.find(data_dir, "mnist", name, _ADVICE) for name in names}


def _tfds_folder(data_dir: str) -> str | None:
    """Returns TFDS's folder, or `None` if `data_dir` has the images as idx files.

    TFDS's cache is used even if `data_dir` is given: that folder has the writers, which TFDS lacks.
    """
    if any(any(_idx_paths(part, data_dir).values()) for part in _PREFIXES):
        return None
    return tfds.find(_TFDS, data_dir) or tfds.find_in_cache(_TFDS)


def _read(
    part: str, data_dir: str, tfds_folder: str | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns images, labels and writers' ids of `part`, "train" or "test"."""
    if tfds_folder is not None:
        arrays = tfds.read_images(_TFDS, tfds_folder, part)
        return arrays["image"], arrays["label"], _read_writers(part, data_dir, arrays["label"])
    paths = []
    for name, path in _idx_paths(part, data_dir).items():
        if path is None:
            known = [n for p in _PREFIXES for n in _idx_paths(p, data_dir)]
            raise idx.missing(data_dir, "mnist", name, _ADVICE, known)
        paths.append(path)
    of_images, of_labels = paths
    images, labels = idx.read_labelled_images(
        of_images, of_labels, _ADVICE, _NUM_CLASSES, _TFDS.published(part)
    )
    return images, labels, _read_writers(part, data_dir, labels)


def _read_writers(part: str, data_dir: str, labels: np.ndarray) -> np.ndarray:
    """Returns the writer's id for every image, in the images' order."""
    parents = (os.path.join(data_dir, "mnist"), data_dir)
    prepared = [os.path.join(parent, "writers.npz") for parent in parents]
    path = files.find(prepared, _ADVICE)
    if path is not None:
        name = f"{part}_writer"
        with files.reading(path, _ADVICE):
            return files.read_npz(path, {name: len(labels)})[name].astype(np.int64)
    path = idx.find(data_dir, "mnist", f"qmnist-{part}-labels-idx2-int", _ADVICE)
    if path is None:
        raise DataError(
            f"{os.path.join(data_dir, 'writers.npz')} and qmnist-{part}-labels-idx2-int.gz are "
            f"missing{files.but_there_is(prepared)}; {_ADVICE}"
        )
    table = idx.read(path, 2, _ADVICE)
    # Columns: class, series, writer, and more. QMNIST's test set begins with MNIST's.
    if table.shape[1] < 3 or not np.array_equal(table[: len(labels), 0], labels):
        raise DataError(f"{path} does not belong to these images: classes differ; {_ADVICE}")
    return table[: len(labels), 2].astype(np.int64)
