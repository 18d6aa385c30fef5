"""Reads CIFAR-10 and CIFAR-100 (Krizhevsky 2009) in every form in which they are handed out.

That is: the pickles and the binary files of the authors, unpacked or in their archives; the same as
Keras keeps them; TFDS's folders; and for CIFAR-100 TFF's federated form, a database or, before it,
two HDF5 files.
"""

import io
import os
import pickle
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tasks.formats import files, tfds, tffs
from tasks.task import ArrayFederatedData, DataError, Examples, FederatedData
from tff_suite import compat

_SHAPE = (32, 32, 3)
_PIXELS = 3 * 32 * 32
_NUM_COARSE = 20
_TFFS = tffs.Published(
    folder="cifar100",
    sqlite="cifar100.sqlite",
    h5="fed_cifar100",
    features={"label": tffs.Feature((), "int64"), "image": tffs.Feature(_SHAPE, "int64")},
    example="a 32x32 image and a label",
    advice=(
        "get https://storage.googleapis.com/tff-datasets-public/cifar100.sqlite.lzma and set "
        "--data_dir to its folder"
    ),
)


class Images(NamedTuple):
    """Labelled images.

    Attributes:
      images: uint8 `[n, height, width, 3]`: red, green, blue.
      labels: int32 `[n]`.
      coarse: int32 `[n]`, CIFAR-100's 20 coarse labels; `None` where there are none.
    """

    images: np.ndarray
    labels: np.ndarray
    coarse: np.ndarray | None = None


class Kind(NamedTuple):
    """One of the two sets.

    Attributes:
      name: Subfolder of `data_dir` to look in first.
      stem: What the names of the authors' archives begin with.
      pickles: The authors' folder of pickles, which is also Keras's name for it.
      binaries: The authors' folder of binary files.
      train: Names of the training files, without ending.
      test: Name of the test file, without ending.
      label_keys: In the pickles, the keys of the label and of the coarse label, if there is one.
      num_classes: Number of classes.
      sha256: Of the archive of pickles.
      tfds: The set as TFDS has it.
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
    """Returns a set as TFDS has it; no digest of all labels in the authors' order is known."""
    features = {"id": ("object", ()), "image": ("uint8", _SHAPE)}
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
      Training and test images, in the authors' order, and where TFDS has them, if it does.

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
    name = f"{kind.stem}-python.tar.gz"
    try:
        return tf.keras.utils.get_file(
            kind.pickles,
            f"https://www.cs.toronto.edu/~kriz/{name}",
            untar=True,
            file_hash=kind.sha256,
        )
    except Exception as error:  # Keras raises plain Exception for a failed download.
        raise DataError(
            f"{name} cannot be downloaded ({files.reason_of(error)}); {kind.advice}"
        ) from error


def _read_authors(kind: Kind, path: str, ending: str) -> tuple[Images, Images]:
    """Reads the authors' files.

    Args:
      kind: Which set.
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
    arrays = [None if a[0] is None else np.concatenate(a) for a in zip(*train, strict=True)]
    return Images(*arrays), test


def _members(path: str, names: Sequence[str], advice: str) -> Iterator[tuple[str, bytes]]:
    """Yields name and content of files in a folder or an archive.

    Raises:
      DataError: If one is missing or the archive is damaged.
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


_DTYPES = ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")


class _Dtype:
    """Stands for the pickled type of an array of numbers."""

    def __init__(self, name: str | bytes, *_: Any):
        name = name.decode() if isinstance(name, bytes) else name
        if name not in _DTYPES:
            raise ValueError(f"it has an array of type {name!r:.20}")
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Sequence) -> None:
        order = state[1].decode() if isinstance(state[1], bytes) else state[1]
        self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for a pickled array, whose own restoring would trust what it is given."""

    def __init__(self, *_: Any):
        self.values = None

    def __setstate__(self, state: Sequence) -> None:
        _, shape, dtype, by_columns, content = state
        if not isinstance(content, bytes):
            raise ValueError("it has an array of objects")
        order = "F" if by_columns else "C"
        self.values = np.frombuffer(content, dtype.dtype).reshape(shape, order=order)


def _frombuffer(
    content: bytes | bytearray, dtype: _Dtype, shape: Sequence[int], order: str
) -> _Array:
    """Returns an array as NumPy pickles it from protocol 5 on."""
    if not isinstance(content, bytes | bytearray) or order not in ("C", "F"):
        raise ValueError("it has an array of objects")
    array = _Array()
    array.values = np.frombuffer(bytes(content), dtype.dtype).reshape(shape, order=order)
    return array


def _encode(text: str, encoding: str) -> bytes:
    """Returns bytes as Python 3 pickles them for Python 2."""
    if encoding != "latin1":
        raise ValueError(f"it has bytes as {encoding!r:.20}")
    return text.encode("latin1")


def _scalar(dtype: _Dtype, content: bytes) -> int:
    return int(np.frombuffer(content, dtype.dtype, count=1)[0])


# The one written in Python: a flipped bit in a memo's number makes the other take gigabytes.
class _PlainUnpickler(pickle._Unpickler):
    """Unpickles Python's own values, and arrays as stand-ins; calls nothing of anybody else's."""

    _STAND_INS: ClassVar = {
        ("_codecs", "encode"): _encode,
        ("numpy", "dtype"): _Dtype,
        ("numpy", "ndarray"): _Array,
        # NumPy 2 has another name for it.
        **{
            (f"numpy.{core}.{module}", name): stand_in
            for core in ("core", "_core")
            for module, name, stand_in in (
                ("multiarray", "_reconstruct", _Array),
                ("multiarray", "scalar", _scalar),
                ("numeric", "_frombuffer", _frombuffer),
            )
        },
    }

    def find_class(self, module, name):
        module = compat.numpy_1(module)
        if (module, name) not in self._STAND_INS:
            raise ValueError(f"it wants {module!s:.80}.{name!s:.80}")
        return self._STAND_INS[module, name]

    def get_extension(self, code):
        raise ValueError("it wants a registered extension")


def _parse_pickle(data: bytes, kind: Kind) -> Images:
    # Python 2's strings are bytes here; who pickled them again with Python 3 may have text.
    batch = _PlainUnpickler(io.BytesIO(data), encoding="bytes").load()
    if isinstance(batch, dict):
        batch = {key.encode() if isinstance(key, str) else key: v for key, v in batch.items()}
    images = files.entry(batch, b"data", _Array).values
    labels = [_plain_labels(files.entry(batch, key, (list, _Array))) for key in kind.label_keys]
    return _checked(images, labels, kind)


def _plain_labels(labels: list | _Array) -> np.ndarray:
    if isinstance(labels, _Array):
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
      ValueError: If there are none, or labels are not as many or out of range.
    """
    ranges = {"labels": kind.num_classes, "coarse labels": _NUM_COARSE}
    for (name, limit), own in zip(ranges.items(), labels, strict=False):
        files.check_labels(own, limit, name)
        if len(own) != len(rows) or not len(own):
            raise ValueError(f"{len(own)} {name} for {len(rows)} images")
    return Images(_from_planes(rows), *(own.astype(np.int32) for own in labels))


# TFF's federated CIFAR-100.


class FederatedCifar100(NamedTuple):
    """TFF's federated CIFAR-100 (Reddi et al. 2021, App. F).

    Attributes:
      train: 500 clients' training images, x uint8 `[n, 32, 32, 3]`, y int32 `[n]`, fine labels.
      test: 100 other clients' test images; ids begin with `test`.
      central_test: All test images, clients one after the other.
    """

    train: FederatedData
    test: FederatedData
    central_test: Examples


def has_tffs(data_dir: str | None) -> bool:
    """Returns whether there is TFF's file; without a folder TFF's cache or a download has it."""
    return data_dir is None or tffs.find(_TFFS, data_dir) is not None


def read_tffs(data_dir: str | None) -> FederatedCifar100:
    """Reads TFF's federated CIFAR-100.

    Args:
      data_dir: Folder of `cifar100.sqlite`, unpacked or as TFF ships it, or of TFF's older HDF5
        files, unpacked or in their archive; `None` means TFF's cache, which a download fills.

    Raises:
      DataError: If a file is missing or damaged, or cannot be downloaded.
    """
    try:
        train, test = tffs.open_clients(_TFFS, data_dir, _tffs_examples)
    except DataError as error:
        cached = tfds.find_in_cache(CIFAR100.tfds) if data_dir is None else None
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
    files.check_labels(y, CIFAR100.num_classes)
    if len(y) and not (0 <= x.min() and x.max() <= 255):
        raise ValueError(f"pixels from {x.min()} to {x.max()}, outside 0..255")
    return Examples(x.astype(np.uint8), y.astype(np.int32))
