"""Reads the HDF5 files in which TFF published its data sets until 2021, client by client.

Such a file has a group `examples`; in it a group per client; in that a dataset per feature, one row
per example. Each split has a separate file, `<stem>_train.h5` and `<stem>_test.h5`, and both come
in `<stem>.tar.bz2`.
"""

import contextlib
import fcntl
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tasks.formats import files
from tasks.task import DataError, Examples

_SPLITS = ("train", "test")
_CHUNK = 1 << 20
# Rows of strings that are read together: what they take is known only once they are read.
_ROWS = 64


class Feature(NamedTuple):
    """One feature of an example.

    Attributes:
      shape: Its shape.
      kind: `bytes`, `int64` or `float32`.
    """

    shape: tuple[int, ...]
    kind: str


class Hdf5FederatedData:
    """Federated data in one of TFF's HDF5 files; only names and sizes are kept in memory.

    The file is opened for each read, so that any thread and any process may read.

    Attributes:
      client_ids: Clients' names in ascending order, as in TFF.
      sizes: int64 `[number of clients]`.
      files: The file.
    """

    def __init__(
        self,
        path: str,
        features: Mapping[str, Feature],
        make: Callable[[Mapping[str, np.ndarray]], Examples],
        advice: str,
        max_examples: int | None = None,
    ):
        """Opens the file and reads the clients' names and sizes.

        Args:
          path: The file.
          features: The features to read, by name.
          make: Turns features of examples, each `[n, ...]`, into arrays; raises `ValueError` for
            invalid ones.
          advice: Where to get the file and how to point at it, for error texts.
          max_examples: If set, only the first that many examples of each client are read.

        Raises:
          DataError: If the file does not have this form, is cut off, or has no clients.
        """
        self._path = path
        self.files = (path,)
        self._features = features
        self._make = make
        self._advice = advice
        self._limit = max_examples
        first = next(iter(features))
        with files.reading(path, advice), _clients(path) as clients:
            self.client_ids = sorted(map(files.check_client_id, clients))
            self._announced = np.array(
                [_number(clients, client_id, first) for client_id in self.client_ids], np.int64
            )
            # What is made of sizes before an example is read must not outgrow memory.
            total, size = sum(map(int, self._announced)), os.path.getsize(path)
            if not self.client_ids:
                raise DataError(f"{path} has no clients; {advice}")
            if total == 0 or total > size * files.DEFLATE:
                raise ValueError(f"clients of {total} examples in all in a file of {size} bytes")
        self.sizes = self._announced
        if max_examples is not None:
            self.sizes = np.minimum(self._announced, max_examples)

    def examples(self, index: int) -> Examples:
        """Returns the examples of the client at `index`, in the file's order.

        Raises:
          DataError: If they cannot be read or their number differs from the announced one.
        """
        with files.decoding(self._path, self._advice), _clients(self._path) as clients:
            return self._read(clients, index)

    def pooled(self) -> Examples:
        """Returns the examples of all clients together, clients in order.

        Raises:
          DataError: If they cannot be read or a client's number of examples differs from the
            announced one.
        """
        with files.decoding(self._path, self._advice), _clients(self._path) as clients:
            parts = [self._read(clients, index) for index in range(len(self.client_ids))]
        return Examples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def count(self) -> int:
        """Counts the examples in the file."""
        return int(self._announced.sum())

    def _read(self, clients: Any, index: int) -> Examples:
        client_id = self.client_ids[index]
        columns = {}
        for name, feature in self._features.items():
            dataset = clients[f"{client_id}/{name}"]
            _check(dataset, feature, self._announced[index])
            columns[name] = _values(dataset, feature, self.sizes[index])
        examples = self._make(columns)
        if not len(examples.x) == len(examples.y) == self.sizes[index]:
            raise ValueError(f"{self.sizes[index]} examples make {len(examples.y)}")
        return examples


@contextlib.contextmanager
def _clients(path: str) -> Iterator[Any]:
    """Opens a file and returns its group of clients."""
    import h5py  # Only this form needs it.

    # Many network file systems refuse locks; nobody writes here.
    with h5py.File(path, "r", locking=False) as file:
        yield file["examples"]


def _number(clients: Any, client_id: str, feature: str) -> int:
    """Returns the number of examples that a client announces."""
    import h5py

    # Ten times as fast as h5py's own objects, which counts with Stack Overflow's clients.
    shape = h5py.h5d.open(clients.id, f"{client_id}/{feature}".encode()).shape
    if not shape:
        raise ValueError(f"client {client_id} has one {feature} and no row of them")
    return shape[0]


def _check(dataset: Any, feature: Feature, number: int) -> None:
    """Checks a dataset before it is read.

    Raises:
      ValueError: If it is not a dataset, has another type or shape, or announces more than it can
        hold.
    """
    import h5py

    files.check_dataset(dataset, {"bytes": "SO", "int64": "iu", "float32": "f"}[feature.kind])
    if feature.kind == "bytes" and h5py.check_string_dtype(dataset.dtype) is None:
        raise ValueError(f"{dataset.name} is not a dataset of strings")
    # Some writers keep numbers as a column.
    shapes = [(number, *feature.shape)] + ([] if feature.shape else [(number, 1)])
    if dataset.shape not in shapes:
        raise ValueError(f"{dataset.name} has shape {dataset.shape}, where {shapes[0]} belongs")


def _values(dataset: Any, feature: Feature, number: int) -> np.ndarray:
    """Returns the first rows of a dataset, bytes as objects."""
    shape = (number, *feature.shape)
    if feature.kind != "bytes":
        values = dataset[:number].reshape(shape)
        return values.astype(np.float32, copy=False) if feature.kind == "float32" else values
    values, left = np.empty(number, object), files.MAX_BYTES
    for start in range(0, number, _ROWS):
        rows = dataset[start : min(start + _ROWS, number)].reshape(-1)
        values[start : start + _ROWS] = rows.astype(object)
        left -= sum(map(len, rows))
        if left < 0:
            raise ValueError(f"{dataset.name} has more than {files.MAX_BYTES:,} bytes")
    return values.reshape(shape)


def find(stem: str, folder: str, data_dir: str, advice: str) -> str | None:
    """Returns the folder of a set's two files, or the path of their archive; `None` without either.

    Args:
      stem: Start of the files' names, e.g. `fed_emnist`.
      folder: Subfolder of `data_dir` to look in first.
      data_dir: Folder to look in.
      advice: Where to get the files and how to point at them, for error messages.

    Raises:
      DataError: If a folder may not be read.
    """
    for parent in (os.path.join(data_dir, folder), data_dir):
        if any(files.exists(path, advice) for path in _paths(parent, stem)):
            return parent
        archive = os.path.join(parent, f"{stem}.tar.bz2")
        if files.exists(archive, advice):
            return archive
    return None


def locate(stem: str, folder: str, data_dir: str, advice: str) -> list[str] | None:
    """Returns the paths of a set's training and test file, unpacking the archive if needed.

    Args:
      stem: Start of the files' names, e.g. `fed_emnist`.
      folder: Subfolder of `data_dir` to look in first.
      data_dir: Folder to look in.
      advice: Where to get the files and how to point at them, for error messages.

    Returns:
      The paths, of which one may be missing; `None` if there is neither file nor archive.

    Raises:
      DataError: If the archive is damaged or cannot be unpacked.
    """
    found = find(stem, folder, data_dir, advice)
    if found is None:
        return None
    if not found.endswith(".tar.bz2"):
        return _paths(found, stem)
    return unpack(found, os.path.dirname(found), advice)


def _paths(folder: str, stem: str) -> list[str]:
    return [os.path.join(folder, f"{stem}_{split}.h5") for split in _SPLITS]


def unpack(archive: str, folder: str, advice: str) -> list[str]:
    """Unpacks the two files of an archive; each appears only once it is complete.

    An interrupted call leaves `<path>.part`, which the next call overwrites.

    Args:
      archive: The archive as TFF shipped it.
      folder: Where to put the files.
      advice: Where to get the archive and how to point at it, for error messages.

    Returns:
      The paths of the training and the test file.

    Raises:
      DataError: If the archive is damaged or lacks a file, the disk refuses, or another process is
        unpacking it.
    """
    stem = os.path.basename(archive).removesuffix(".tar.bz2")
    paths = _paths(folder, stem)
    missing = {os.path.basename(path): path for path in paths}
    with files.reading(archive, advice):
        os.path.getsize(archive)
    parts = []
    try:
        with open(os.path.join(folder, f"{stem}.part"), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            parts.append(lock.name)
            with tarfile.open(archive) as tar:
                for member in tar:
                    path = missing.pop(os.path.basename(member.name), None)
                    if path is not None:
                        parts.append(f"{path}.part")
                        _write(tar, member, parts[-1])
            if missing:
                raise ValueError(f"it lacks {', '.join(missing)}")
            for path in paths:
                os.replace(f"{path}.part", path)
    except BlockingIOError as error:
        raise DataError(f"another process is unpacking {archive}; wait for it") from error
    except Exception as error:
        # The disk gives a number; the decompressor's OSError has none.
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(
                f"{archive} cannot be unpacked to {folder} ({error.strerror}); unpack it elsewhere "
                "with `tar xjf` and set --data_dir to that folder"
            ) from error
        reason = files.reason_of(error)
        raise DataError(f"{archive} is damaged ({reason}); {advice}") from error
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                os.remove(part)
    return paths


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, part: str) -> None:
    """Writes a member of an archive to a file."""
    if not member.isfile() or member.issparse():
        raise ValueError(f"{member.name} in it is not a regular file")
    source, written = tar.extractfile(member), 0
    assert source is not None  # It is of a regular file.
    with open(part, "wb") as target:
        while chunk := source.read(_CHUNK):
            written += target.write(chunk)
        target.flush()
        os.fsync(target.fileno())
    if written != member.size:
        raise ValueError(f"{member.name} in it is cut off")
