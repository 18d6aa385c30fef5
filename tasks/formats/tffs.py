"""TFF's federated data sets, in the database that TFF ships now or the HDF5 files of before 2021.

A task says what a set is called and which features its examples have; `open_clients` finds the
files in either form and gives training and test clients that are read one by one.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tasks.formats import files, hdf5_clients, sqlite_clients
from tasks.formats.hdf5_clients import Feature
from tasks.task import DataError, Examples, FederatedData

Make = Callable[[Mapping[str, np.ndarray]], Examples]


class Published(NamedTuple):
    """One of TFF's sets.

    Attributes:
      folder: Subfolder of `data_dir` to look in first.
      sqlite: Name of the database.
      h5: What the names of the HDF5 files begin with; `<h5>.tar.bz2` is their archive.
      features: Features of an example, by name.
      example: What an example is, in words, for error texts.
      advice: Where to get the set and how to point at it, for error texts.
      splits: Names of the training and the test split in the database.
    """

    folder: str
    sqlite: str
    h5: str
    features: Mapping[str, Feature]
    example: str
    advice: str
    splits: tuple[str, str] = ("train", "test")


def find(published: Published, data_dir: str) -> str | None:
    """Returns where a set is in a folder, in whichever form; `None` if it is not there.

    Raises:
      DataError: If a folder may not be looked into.
    """
    of_set = published.folder, data_dir, published.advice
    found = sqlite_clients.find(published.sqlite, *of_set)
    return found if found is not None else hdf5_clients.find(published.h5, *of_set)


def open_clients(
    published: Published, data_dir: str | None, make: Make, max_examples: int | None = None
) -> tuple[FederatedData, FederatedData]:
    """Opens a set.

    Args:
      published: Which set.
      data_dir: Where the files are, unpacked or as TFF ships them, the database first; `None` means
        TFF's cache, into which the database is downloaded if need be.
      make: Turns features of examples, each `[n, ...]`, into arrays; raises `ValueError` on what
        it refuses.
      max_examples: If set, only that many examples of a training client are read, the first in the
        file.

    Returns:
      Training and test clients, with a method `pooled` for all examples together. Both have the
      same list of names where the names are the same.

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
    if test.client_ids == train.client_ids:
        test.client_ids = train.client_ids
    return train, test


def _split(published, path, split, make, max_examples) -> FederatedData:
    if path.endswith(".h5"):
        return hdf5_clients.Hdf5FederatedData(
            path, published.features, make, published.advice, max_examples
        )

    def parse(serialized):
        return make(columns(published, serialized))

    return sqlite_clients.SqliteFederatedData(path, split, parse, published.advice, max_examples)


def columns(published: Published, serialized: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Returns features of examples as they are in the database.

    Args:
      published: Which set.
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
    """Yields clients' examples in random order of clients, until there are enough.

    Args:
      data: The clients.
      num_examples: How many in all at least, if there are as many.
      seed: Seed of the order, 0 or more.

    Raises:
      DataError: If they cannot be read.
    """
    for index in np.random.default_rng(seed).permutation(len(data.client_ids)):
        yield data.examples(index)
        num_examples -= data.sizes[index]
        if num_examples <= 0:
            break
