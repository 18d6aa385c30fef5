"""Sets as TFDS writes them, of publishers' files that it does not have to download.

Of small sets the published numbers and digests do not hold: `Small.patched` puts theirs in place.
"""

import contextlib
import csv
import dataclasses
import gzip
import hashlib
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any
from unittest import mock

import numpy as np

from tasks.datasets import fashion_mnist, mnist_writers, sent140
from tasks.formats import cifar


def write(
    folder: pathlib.Path,
    name: str,
    files: Mapping[str, bytes],
    file_format: str = "tfrecord",
    sizes: tuple[int, int] = (60_000, 10_000),
) -> pathlib.Path:
    """Lets TFDS write a set.

    Args:
      folder: What TFDS calls `data_dir`.
      name: Name of the set.
      files: The publisher's files, unpacked, by their names in its archive.
      file_format: `tfrecord` or `array_record`.
      sizes: Examples for training and for tests, which TFDS does not count in MNIST and its kin.

    Returns:
      The set's folder.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.image_classification import mnist

    with tempfile.TemporaryDirectory() as raw:
        for file, content in files.items():
            path = pathlib.Path(raw, file)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)

        def download(_, urls):
            if isinstance(urls, str):
                return raw
            names = {key: url.rsplit("/", 1)[-1].removesuffix(".gz") for key, url in urls.items()}
            return {key: str(pathlib.Path(raw, file)) for key, file in names.items()}

        numbers = {"_TRAIN_EXAMPLES": sizes[0], "_TEST_EXAMPLES": sizes[1]}
        with (
            mock.patch.object(tfds.download.DownloadManager, "download_and_extract", download),
            mock.patch.multiple(mnist, **numbers),
        ):
            builder = tfds.builder(name, data_dir=str(folder), file_format=file_format)
            builder.download_and_prepare()
    for path in (folder / "downloads" / "extracted", folder / "downloads"):
        if path.is_dir():
            path.rmdir()
    return pathlib.Path(builder.data_dir)


_HOLDERS = {
    "fashion_mnist": (fashion_mnist, "_TFDS"),
    "mnist": (mnist_writers, "_TFDS"),
    "cifar10": (cifar, "CIFAR10"),
    "cifar100": (cifar, "CIFAR100"),
    "sentiment140": (sent140, "_TFDS"),
}


def published(name: str):
    """Returns what the suite knows of a set."""
    holder, attribute = _HOLDERS[name]
    value = getattr(holder, attribute)
    return value.tfds if name.startswith("cifar") else value


@dataclasses.dataclass(frozen=True)
class Small:
    """A small set.

    Attributes:
      name: Its name.
      files: The publisher's files.
      labels: Training and test labels; of `sentiment140` only as many numbers.
    """

    name: str
    files: Mapping[str, bytes]
    labels: tuple[Any, Any]

    def write(self, folder, file_format="tfrecord"):
        sizes = tuple(map(len, self.labels))
        return write(folder, self.name, self.files, file_format, sizes)

    def patched(self):
        """Returns a context in which the suite takes the set for the published one."""
        splits = dict(zip(("train", "test"), self.labels, strict=True))
        digests = {
            split: hashlib.sha256(np.asarray(labels, np.uint8).tobytes()).hexdigest()
            for split, labels in splits.items()
        }
        sizes = {split: len(labels) for split, labels in splits.items()}
        known = published(self.name)._replace(sizes=sizes, first={})
        if known.classes:
            known = known._replace(labels=digests)
        holder, attribute = _HOLDERS[self.name]
        if self.name.startswith("cifar"):
            kind = getattr(holder, attribute)._replace(tfds=known)
            return mock.patch.object(holder, attribute, kind)
        return mock.patch.object(holder, attribute, known)


def of_idx(name: str, folder: pathlib.Path) -> Small:
    """Returns a set of packed idx files, with MNIST's names."""
    files = {
        path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes())
        for path in folder.glob("t*-ubyte.gz")
    }
    parts = (files[f"{part}-labels-idx1-ubyte"] for part in ("train", "t10k"))
    return Small(name, files, tuple(np.frombuffer(p, np.uint8, offset=8) for p in parts))


def of_cifar(name: str, files: Mapping[str, bytes], train, test) -> Small:
    """Returns a set of the authors' binary files."""
    ten = name == "cifar10"
    folder = "cifar-10-batches-bin" if ten else "cifar-100-binary"
    names = {"batches.meta.txt": 10} if ten else {}
    names |= {} if ten else {"coarse_label_names.txt": 20, "fine_label_names.txt": 100}
    listed = {f: "".join(f"class{i}\n" for i in range(n)).encode() for f, n in names.items()}
    every = {f"{folder}/{file}": content for file, content in {**files, **listed}.items()}
    return Small(name, every, (train, test))


def of_tweets(train, test) -> Small:
    """Returns a set of tweets: rows of polarity, id, date, query, user and text."""
    files = {}
    for name, rows in (
        ("training.1600000.processed.noemoticon.csv", train),
        ("testdata.manual.2009.06.14.csv", test),
    ):
        with tempfile.NamedTemporaryFile("w", encoding="latin-1", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
            file.flush()
            files[name] = pathlib.Path(file.name).read_bytes()
    return Small("sentiment140", files, (range(len(train)), range(len(test))))


@contextlib.contextmanager
def no_network():
    """A context in which TFDS and Keras cannot download."""
    refused = {"side_effect": OSError("no network")}
    with (
        mock.patch("urllib.request.urlopen", **refused),
        mock.patch("requests.sessions.Session.get", **refused),
    ):
        yield
