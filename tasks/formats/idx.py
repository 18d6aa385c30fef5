"""Reads idx files, the format of MNIST and related sets, plain or gzip-compressed."""

import hashlib
import os
import struct
from collections.abc import Iterable

import numpy as np

from tasks.formats import files
from tasks.task import DataError
from tff_suite import memory

_DTYPES: dict[int, np.dtype] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}


# Names of sets in torchvision's folders, by the names of their folders here.
_TORCHVISIONS = {"mnist": ("MNIST", "QMNIST"), "fashion_mnist": ("FashionMNIST",)}


def find(data_dir: str, folder: str, name: str, advice: str) -> str | None:
    """Returns the path of an idx file, or `None` if there is none.

    Args:
      data_dir: Folder to look in.
      folder: Subfolder to look in first.
      name: Name of the file without `.gz`; if both exist, the compressed file is used.
      advice: Where to get the file and how to point at it, for error texts.

    Raises:
      DataError: If a folder may not be read.
    """
    return files.find(_paths(data_dir, folder, name), advice)


def missing(
    data_dir: str, folder: str, name: str, advice: str, known: Iterable[str] = ()
) -> DataError:
    """Returns the error for a file that `find` does not find, see `files.missing`.

    Args:
      data_dir: See `find`.
      folder: See `find`.
      name: See `find`.
      advice: See `find`.
      known: Names of the set's files.
    """
    paths = _paths(data_dir, folder, name)
    names = [os.path.basename(p) for other in known for p in _paths("", folder, other)]
    return files.missing(os.path.join(data_dir, f"{name}.gz"), advice, paths, known=names)


def _paths(data_dir: str, folder: str, name: str) -> list[str]:
    """Returns the paths at which to look for a file, in order of preference.

    Besides the publisher's name these include `train-images.idx3-ubyte`, as some unpackers write
    it, a folder of the file's name that contains the file (Kaggle), and torchvision's folders
    `raw`.
    """
    raw = [os.path.join(name, "raw") for name in _TORCHVISIONS.get(folder, ())]
    parents = [os.path.join(data_dir, parent) for parent in (folder, "", *raw, "raw")]
    dotted = name.replace("-idx", ".idx")
    names = [f"{name}.gz", name, f"{dotted}.gz", dotted]
    names += [os.path.join(name, name), os.path.join(dotted, dotted)]
    return [os.path.join(parent, n) for parent in parents for n in names]


def read(path: str, num_dims: int, advice: str) -> np.ndarray:
    """Reads an idx file.

    Args:
      path: The file, plain or compressed by gzip.
      num_dims: Dimensions that the array must have.
      advice: Where to get the file and how to point at it, for error texts.

    Returns:
      The array, read-only, uint8 or big-endian int32.

    Raises:
      DataError: If the file can't be read, is not idx, or holds fewer or more bytes than its header
        announces.
    """
    with files.reading(path, advice), files.open_plain_or_gzip(path) as file:
        data = files.read_at_most(file)
    header = 4 + 4 * num_dims
    dtype = _DTYPES.get(data[2]) if len(data) >= header and data[:2] == b"\0\0" else None
    if dtype is None or data[3] != num_dims:
        raise DataError(f"{path} is not an idx file of {num_dims} dimension(s); {advice}")
    shape = struct.unpack_from(f">{num_dims}I", data, 4)
    announced = header + memory.size_of(shape, dtype)
    if len(data) != announced:
        raise DataError(
            f"{path} is damaged: its header announces {announced} bytes, it has {len(data)}; "
            f"{advice}"
        )
    return np.frombuffer(data, dtype, offset=header).reshape(shape)


def read_labelled_images(
    images_path: str,
    labels_path: str,
    advice: str,
    num_classes: int = 10,
    published: tuple[int, str] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a pair of idx files in MNIST's form.

    Args:
      images_path: 28x28 grey images.
      labels_path: Their labels.
      advice: Where to get the files and how to point at them, for error messages.
      num_classes: Labels must be below it.
      published: Number of the publisher's labels, and the SHA-256 of them, a byte each. The same
        number of different labels is refused, and so are more labels: sets of the same form have
        files of the same names, and EMNIST's images are transposed. Fewer labels are accepted as a
        part of the set, with a warning.

    Returns:
      Images uint8 `[n, 28, 28, 1]` and labels int32 `[n]`.

    Raises:
      DataError: If a file is unreadable or the two do not belong together.
    """
    images = read(images_path, 3, advice)
    labels = read(labels_path, 1, advice)
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28):
        raise DataError(
            f"{images_path} holds {images.dtype.name} images of shape {images.shape[1:]} and not "
            f"28x28 bytes; {advice}"
        )
    if len(images) != len(labels) or not len(labels):
        raise DataError(
            f"{labels_path} has {len(labels)} labels for {len(images)} images in {images_path}; "
            f"{advice}"
        )
    with files.decoding(labels_path, advice, "is damaged"):
        files.check_labels(labels, num_classes)
        size, sha256 = published or (0, "")
        digest = hashlib.sha256(labels.astype(np.uint8).tobytes()).hexdigest()
        if published and (len(labels) > size or (len(labels) == size and digest != sha256)):
            raise ValueError(
                f"its {len(labels):,} labels are not the publisher's {size:,}; they may belong to "
                "another data set"
            )
    if published:
        files.warn_if_not_published(labels_path, {"labels": (len(labels), size)})
    return images[..., np.newaxis], labels.astype(np.int32)
