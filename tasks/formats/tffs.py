"""TFF's federated data sets, in TFF's current database or in the HDF5 files from before 2021.

A task gives a set's names and the features of its examples. `open_clients` finds the files in
either form and returns training and test clients, which are read one by one.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tasks.data_files import DataFiles
from tasks.formats import downloads, files, hdf5_clients, sqlite_clients
from tasks.formats.hdf5_clients import Feature
from tasks.task import DataError, Examples, FederatedData

Clients = hdf5_clients.Hdf5FederatedData | sqlite_clients.SqliteFederatedData
Make = Callable[[Mapping[str, np.ndarray]], Examples]


class Published(NamedTuple):
    """One of TFF's sets.

    Attributes:
      folder: Subfolder of `data_dir` to look in first.
      sqlite: Name of the database.
      h5: Start of the names of the HDF5 files; `<h5>.tar.bz2` is their archive.
      features: Features of an example, by name.
      example: Description of an example, for error messages.
      advice: Where to get the set and how to point at it, for error messages.
      clients: Number of training clients, and of test clients.
      splits: Names of the training and the test split in the database.
    """

    folder: str
    sqlite: str
    h5: str
    features: Mapping[str, Feature]
    example: str
    advice: str
    clients: tuple[int, int]
    splits: tuple[str, str] = ("train", "test")

    def data_files(self, name: str, examples: int, clients: int = 0, beside: str = "") -> DataFiles:
        """Returns what a task declares of the set.

        Args:
          name: What it is, in words.
          examples: Training examples.
          clients: Training clients, where the task's settings do not tell them.
          beside: What else to get, as the end of a request.
        """
        names = (f"{self.sqlite}*", f"{self.h5}_train.h5", f"{self.h5}.tar.bz2")
        return DataFiles(
            name,
            f"let TFF download it, or get {downloads.TFFS}{self.sqlite}.lzma{beside}",
            (*names, *(f"{self.folder}/{name}" for name in names)),
            examples,
            clients,
            cached=(f".tff/{self.sqlite}", f".tff/{self.sqlite}.lzma"),
        )


def find(published: Published, data_dir: str) -> str | None:
    """Returns the path of a set in a folder, in either form; `None` if it does not exist.

    Raises:
      DataError: If a folder may not be read.
    """
    of_set = published.folder, data_dir, published.advice
    found = sqlite_clients.find(published.sqlite, *of_set)
    return found if found is not None else hdf5_clients.find(published.h5, *of_set)


def open_clients(
    published: Published, data_dir: str | None, make: Make, max_examples: int | None = None
) -> tuple[Clients, Clients]:
    """Opens a set.

    Args:
      published: The set.
      data_dir: Where the files are, unpacked or as TFF ships them, the database first; `None` means
        TFF's cache, downloading the database if needed.
      make: Turns features of examples, each `[n, ...]`, into arrays; raises `ValueError` for
        invalid ones.
      max_examples: If set, only the first that many examples of each training client are read.

    Returns:
      Training and test clients, with a method `pooled` for all examples together. If their names
      are equal, they share one list of names.

    Raises:
      DataError: If a file is missing or damaged and cannot be downloaded.
    """
    paths = None
    if data_dir is not None:
        of_set = published.folder, data_dir, published.advice
        if sqlite_clients.find(published.sqlite, *of_set) is None:
            paths = hdf5_clients.locate(published.h5, *of_set)
            if paths is None:
                path = os.path.join(data_dir, published.sqlite)
                there = files.but_there_is(
                    [path, os.path.join(data_dir, f"{published.h5}_train.h5")]
                )
                raise DataError(
                    f"{path}[.lzma] is missing, and so is {published.h5}_train.h5{there}; "
                    f"{published.advice}"
                )
    if paths is None:
        path = sqlite_clients.locate(published.sqlite, published.folder, data_dir, published.advice)
        paths = [path, path]
    limits = max_examples, None
    train, test = (
        _split(published, path, split, make, limit)
        for path, split, limit in zip(paths, published.splits, limits, strict=True)
    )
    counts = {
        "training clients": (len(train.client_ids), published.clients[0]),
        "test clients": (len(test.client_ids), published.clients[1]),
    }
    files.warn_if_not_published(paths[0], counts)
    if test.client_ids == train.client_ids:
        test.client_ids = train.client_ids
    return train, test


def _split(
    published: Published, path: str, split: str, make: Make, max_examples: int | None
) -> Clients:
    if path.endswith(".h5"):
        return hdf5_clients.Hdf5FederatedData(
            path, published.features, make, published.advice, max_examples
        )

    def parse(serialized: Sequence[bytes]) -> Examples:
        return make(columns(published, serialized))

    return sqlite_clients.SqliteFederatedData(path, split, parse, published.advice, max_examples)


def columns(published: Published, serialized: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Returns the features of examples from the database.

    Args:
      published: The set.
      serialized: `tf.train.Example` protos.

    Returns:
      Each feature `[n, ...]`: int64, float32, or bytes as objects.

    Raises:
      ValueError: If an example is not such a proto.
    """
    types = {"bytes": tf.string, "int64": tf.int64, "float32": tf.float32}
    try:
        parsed = tf.io.parse_example(
            tf.constant(serialized, tf.string, shape=(len(serialized),)),
            {
                name: tf.io.FixedLenFeature(feature.shape, types[feature.kind])
                for name, feature in published.features.items()
            },
        )
    # TensorFlow fails to decode its own message when it quotes bytes that are not text.
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as error:
        raise ValueError(f"an example that is not {published.example}") from error
    return {name: values.numpy() for name, values in parsed.items()}


def some(data: FederatedData, num_examples: int, seed: int) -> Iterator[Examples]:
    """Yields the examples of clients in random order, until there are enough.

    Args:
      data: The clients.
      num_examples: Minimum total number of examples, unless the data has fewer.
      seed: Seed of the order, 0 or more.

    Raises:
      DataError: If they cannot be read.
    """
    for index in np.random.default_rng(seed).permutation(len(data.client_ids)):
        yield data.examples(index)
        num_examples -= data.sizes[index]
        if num_examples <= 0:
            break
