"""Reads CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in all of their published forms.

These are: the authors' pickles and binary files, unpacked or in their archives; Keras's copies of
them; and TFDS's folders. TFF's federated form is in `tasks.formats.cifar100_clients`.
"""

import io
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tasks.formats import files, plain_pickle, tfds
from tasks.task import DataError

SHAPE = (32, 32, 3)
_PIXELS = 3 * 32 * 32
_NUM_COARSE = 20


class Images(NamedTuple):
    """Labelled images.

    Attributes:
      images: uint8 `[n, height, width, 3]`: red, green, blue.
      labels: int32 `[n]`.
      coarse: int32 `[n]`, CIFAR-100's 20 coarse labels; `None` for CIFAR-10.
    """

    images: np.ndarray
    labels: np.ndarray
    coarse: np.ndarray | None = None


class Kind(NamedTuple):
    """One of the two sets.

    Attributes:
      name: Subfolder of `data_dir` to look in first.
      stem: Start of the names of the authors' archives.
      pickles: The authors' folder of pickles, which is also Keras's name for it.
      binaries: The authors' folder of binary files.
      train: Names of the training files, without ending.
      test: Name of the test file, without ending.
      label_keys: In the pickles, the keys of the label and of the coarse label, if there is one.
      num_classes: Number of classes.
      sha256: SHA-256 of the archive of pickles.
      tfds: TFDS's version of the set.
    """

    name: str
    stem: str
    pickles: str
    binaries: str
    train: Sequence[str]
    test: str
    label_keys: Sequence[bytes]
    num_classes: int
    sha256: str
    tfds: tfds.Set

    @property
    def address(self) -> str:
        """Where the authors have the archive of pickles."""
        return f"https://www.cs.toronto.edu/~kriz/{self.stem}-python.tar.gz"

    @property
    def advice(self) -> str:
        """Where to get the set and how to point at it."""
        return (
            f"get {self.stem}-python.tar.gz from https://www.cs.toronto.edu/~kriz/cifar.html and "
            f"set --data_dir to its folder, or to the one above it if it is called {self.name}"
        )


# Of CIFAR-10, as many programs print them.
_FIRST = {
    "train": [int(label) for label in "69941127834772999326436626354009134037335227111220"],
    "test": [int(label) for label in "38806616310957985786704952409665459241954656093976"],
}


def _tfds(name: str, first: Mapping[str, Sequence[int]], **classes: int) -> tfds.Set:
    """Returns TFDS's version of a set; no digest of all labels in the authors' order is known."""
    features = {"id": ("object", ()), "image": ("uint8", SHAPE)}
    return tfds.Set(
        name=name,
        version="3.0.2",
        sizes={"train": 50_000, "test": 10_000},
        features=features | dict.fromkeys(classes, ("int64", ())),
        classes=classes,
        first=first,
    )


CIFAR10 = Kind(
    name="cifar10",
    stem="cifar-10",
    pickles="cifar-10-batches-py",
    binaries="cifar-10-batches-bin",
    train=[f"data_batch_{i}" for i in range(1, 6)],
    test="test_batch",
    label_keys=(b"labels",),
    num_classes=10,
    sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    tfds=_tfds("cifar10", _FIRST, label=10),
)
CIFAR100 = Kind(
    name="cifar100",
    stem="cifar-100",
    pickles="cifar-100-python",
    binaries="cifar-100-binary",
    train=["train"],
    test="test",
    label_keys=(b"fine_labels", b"coarse_labels"),
    num_classes=100,
    sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    tfds=_tfds("cifar100", {}, label=100, coarse_label=_NUM_COARSE),
)


def read(kind: Kind, data_dir: str | None) -> tuple[Images, Images, dict[str, Any]]:
    """Reads training and test images.

    Args:
      kind: `CIFAR10` or `CIFAR100`.
      data_dir: Folder with the files in one of their forms; `None` means Keras's cache, then
        TFDS's, then Keras's download.

    Returns:
      Training and test images, in the authors' order, and TFDS's folder if they come from it.

    Raises:
      DataError: If files are missing or damaged, or cannot be downloaded.
    """
    if data_dir is None:
        in_keras = os.path.isfile(files.keras_path(f"{kind.pickles}.tar.gz"))
        folder = None if in_keras else tfds.find_in_cache(kind.tfds)
        if folder is not None:
            return _read_tfds(kind, folder)
        return *_read_authors(kind, _keras_folder(kind), ""), {}
    for parent in (os.path.join(data_dir, kind.name), data_dir):
        for folder, archive, ending in (
            (kind.pickles, f"{kind.stem}-python.tar.gz", ""),
            (kind.binaries, f"{kind.stem}-binary.tar.gz", ".bin"),
        ):
            for name in (folder, archive, f"{folder}.tar.gz"):
                path = os.path.join(parent, name)
                if files.exists(path, kind.advice):
                    return *_read_authors(kind, path, ending), {}
            if os.path.isfile(os.path.join(parent, kind.test + ending)):
                return *_read_authors(kind, parent, ending), {}
    folder = tfds.find(kind.tfds, data_dir)
    if folder is not None:
        return _read_tfds(kind, folder)
    archive = os.path.join(data_dir, f"{kind.stem}-python.tar.gz")
    there = files.but_there_is([archive])
    raise DataError(f"{archive} is missing, and so is any other form of it{there}; {kind.advice}")


def _read_tfds(kind: Kind, folder: str) -> tuple[Images, Images, dict[str, Any]]:
    arrays = [tfds.read_images(kind.tfds, folder, split) for split in ("train", "test")]
    train, test = (Images(a["image"], a["label"], a.get("coarse_label")) for a in arrays)
    return train, test, tfds.record(kind.tfds, folder)


def _keras_folder(kind: Kind) -> str:
    """Returns Keras's folder of pickles, downloaded as `tf.keras.datasets` does."""
    try:
        return tf.keras.utils.get_file(
            kind.pickles, kind.address, untar=True, file_hash=kind.sha256
        )
    except Exception as error:  # Keras raises plain Exception for a failed download.
        name = os.path.basename(kind.address)
        raise DataError(
            f"{name} cannot be downloaded ({files.reason_of(error)}); {kind.advice}"
        ) from error


def _read_authors(kind: Kind, path: str, ending: str) -> tuple[Images, Images]:
    """Reads the authors' files.

    Args:
      kind: The set.
      path: Their folder or archive.
      ending: Empty for the pickles, `.bin` for the binary files.
    """
    parse = _parse_binary if ending else _parse_pickle
    names = [name + ending for name in (*kind.train, kind.test)]
    parts = {}
    for name, data in _members(path, names, kind.advice):
        with files.decoding(os.path.join(path, name), kind.advice, "is damaged"):
            parts[name] = parse(data, kind)
    *train, test = (parts[name] for name in names)
    sizes = {len(part.labels) for part in train}
    if len(sizes) > 1:
        raise DataError(f"{path} has batches of unequal size, {sorted(sizes)}; {kind.advice}")
    published, size = kind.tfds.sizes, sum(len(part.labels) for part in train)
    counts = {
        "training images": (size, published["train"]),
        "test images": (len(test.labels), published["test"]),
    }
    files.warn_if_not_published(path, counts)
    coarse = [part.coarse for part in train if part.coarse is not None]
    together = Images(
        np.concatenate([part.images for part in train]),
        np.concatenate([part.labels for part in train]),
        np.concatenate(coarse) if coarse else None,
    )
    return together, test


def _members(path: str, names: Sequence[str], advice: str) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of files in a folder or an archive.

    Raises:
      DataError: If a file is missing or the archive is damaged.
    """
    if os.path.isdir(path):
        for name in names:
            file_path = os.path.join(path, name)
            with files.reading(file_path, advice), open(file_path, "rb") as file:
                data = files.read_at_most(file)
            yield name, data
        return
    missing = list(names)
    with files.reading(path, advice), tarfile.open(path) as archive:
        for member in archive:
            name = os.path.basename(member.name)
            if name in missing and member.isfile():
                yield name, files.read_member(archive, member)
                missing.remove(name)
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}; {advice}")


def _parse_pickle(data: bytes, kind: Kind) -> Images:
    # Python 2's strings are bytes here; who pickled them again with Python 3 may have text.
    batch = plain_pickle.PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    if isinstance(batch, dict):
        batch = {key.encode() if isinstance(key, str) else key: v for key, v in batch.items()}
    images = files.entry(batch, b"data", plain_pickle.Array).values
    labels = [
        _plain_labels(files.entry(batch, key, (list, plain_pickle.Array)))
        for key in kind.label_keys
    ]
    return _checked(images, labels, kind)


def _plain_labels(labels: list | plain_pickle.Array) -> np.ndarray:
    if isinstance(labels, plain_pickle.Array):
        return labels.values
    if any(type(label) is not int for label in labels):
        raise ValueError("labels that are not whole numbers")
    return np.array(labels)


def _parse_binary(data: bytes, kind: Kind) -> Images:
    num_labels = len(kind.label_keys)
    length = num_labels + _PIXELS
    if len(data) % length:
        raise ValueError(f"{len(data)} bytes are not a whole number of records of {length}")
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    # The coarse label comes first.
    labels = [records[:, i] for i in reversed(range(num_labels))]
    return _checked(records[:, num_labels:], labels, kind)


def _from_planes(rows: np.ndarray) -> np.ndarray:
    """Returns images from rows of all red, then all green, then all blue pixels."""
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1:] != (_PIXELS,):
        raise ValueError(f"images are {rows.dtype} of shape {rows.shape}")
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _checked(rows: np.ndarray, labels: Sequence[np.ndarray], kind: Kind) -> Images:
    """Returns images with int32 labels, decoded when the labels are known to be theirs.

    Raises:
      ValueError: If there are no images, or labels differ from them in number or are out of range.
    """
    ranges = {"labels": kind.num_classes, "coarse labels": _NUM_COARSE}
    for (name, limit), own in zip(ranges.items(), labels, strict=False):
        files.check_labels(own, limit, name)
        if len(own) != len(rows) or not len(own):
            raise ValueError(f"{len(own)} {name} for {len(rows)} images")
    return Images(_from_planes(rows), *(own.astype(np.int32) for own in labels))
