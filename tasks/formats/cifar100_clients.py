"""Reads TFF's federated form of CIFAR-100: a database or, in older releases, two HDF5 files."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tasks.formats import cifar, files, tfds, tffs
from tasks.task import ArrayFederatedData, DataError, Examples, FederatedData

PUBLISHED = tffs.Published(
    folder="cifar100",
    sqlite="cifar100.sqlite",
    h5="fed_cifar100",
    features={"label": tffs.Feature((), "int64"), "image": tffs.Feature(cifar.SHAPE, "int64")},
    example="a 32x32 image and a label",
    advice=(
        "get https://storage.googleapis.com/tff-datasets-public/cifar100.sqlite.lzma and set "
        "--data_dir to its folder"
    ),
    clients=(500, 100),
)


class FederatedCifar100(NamedTuple):
    """TFF's federated CIFAR-100 (Reddi et al. 2021, App. F).

    Attributes:
      train: 500 clients' training images, x uint8 `[n, 32, 32, 3]`, y int32 `[n]`, fine labels.
      test: Test images of 100 other clients; ids begin with `test`.
      central_test: All test images, client after client.
    """

    train: FederatedData
    test: FederatedData
    central_test: Examples


def has_tffs(data_dir: str | None) -> bool:
    """Returns whether TFF's file exists; always, without a folder: TFF's cache can fetch it."""
    return data_dir is None or tffs.find(PUBLISHED, data_dir) is not None


def read_tffs(data_dir: str | None) -> FederatedCifar100:
    """Reads TFF's federated CIFAR-100.

    Args:
      data_dir: Folder of `cifar100.sqlite`, unpacked or as TFF ships it, or of TFF's older HDF5
        files, unpacked or in their archive; `None` means TFF's cache, downloading the file if
        needed.

    Raises:
      DataError: If a file is missing or damaged, or cannot be downloaded.
    """
    try:
        train, test = tffs.open_clients(PUBLISHED, data_dir, _tffs_examples)
    except DataError as error:
        cached = tfds.find_in_cache(cifar.CIFAR100.tfds) if data_dir is None else None
        if cached is None:
            raise
        # Not by itself: the same command is to give the same clients whatever a cache has.
        raise DataError(
            f"{error}; or take the images of {cached}, for clients of the suite's own allocation, "
            "with --cifar100_image_partition=pachinko"
        ) from error
    pooled = test.pooled()
    # TFF numbers both kinds of clients from 0.
    ids = [f"test{client_id}" for client_id in test.client_ids]
    rows = np.split(np.arange(len(pooled.y)), np.cumsum(test.sizes)[:-1])
    return FederatedCifar100(train, ArrayFederatedData(pooled.x, pooled.y, rows, ids), pooled)


def _tffs_examples(features: Mapping[str, np.ndarray]) -> Examples:
    x, y = features["image"], features["label"]
    files.check_labels(y, cifar.CIFAR100.num_classes)
    if len(y) and not (0 <= x.min() and x.max() <= 255):
        raise ValueError(f"pixels from {x.min()} to {x.max()}, outside 0..255")
    return Examples(x.astype(np.uint8), y.astype(np.int32))
