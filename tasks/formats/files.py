"""Reading files from other sources: every fault becomes a `DataError` that names the file.

A reader finds its files with `find`. It opens and decodes them inside `reading`, or inside
`decoding` for a part of an open file. It extracts values with the functions below, which do not
trust any number that a file announces. None of this needs TensorFlow.
"""

import collections
import contextlib
import difflib
import gzip
import io
import itertools
import json
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tasks.task import DataError
from tff_suite import command_line, memory
from tff_suite.errors import FedError

# No file of a data set is larger, once unpacked, than this; what is is no such file.
MAX_BYTES = 2 << 30

_CHUNK = 1 << 20


class Stream(Protocol):
    """An open file that bytes are read from, unpacked or not."""

    def read(self, size: int = -1, /) -> bytes:
        """Returns the next bytes, at most `size`, or all of them; none at the end."""


# Most names of a folder that are compared with one that is missing.
_MOST_NAMES = 5000


def check_folder(path: str, flag: str) -> None:
    """Checks that a folder named by a flag can be read.

    Args:
      path: The folder.
      flag: Name of the flag, for error messages.

    Raises:
      DataError: If it is not a folder or may not be read.
    """
    try:
        with os.scandir(path) as entries:
            next(entries, None)
    except NotADirectoryError as error:
        raise DataError(f"{flag}={path} is not a folder") from error
    except FileNotFoundError as error:
        raise DataError(
            f"{flag}={path} does not exist{but_there_is([path])}; name a folder that exists"
        ) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{flag}={path} cannot be read ({reason_of(error)}); name a folder that can"
        ) from error


def exists(path: str, advice: str) -> bool:
    """Returns whether anything is at a path, even a link whose target is missing.

    Raises:
      DataError: If a folder above it may not be read, so that this cannot be determined.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({reason_of(error)}); {advice}") from error
    return True


def find(paths: Iterable[str], advice: str) -> str | None:
    """Returns the first path that is a file; failing that, the first at which anything else exists.

    In the second case `reading` says what it is. A message "missing" would mislead the user if a
    folder of that name, a broken link or something else exists.

    Args:
      paths: Where to look, in order of preference.
      advice: Where to get the file and how to point at it, for error messages.

    Returns:
      The path, or `None` if nothing exists at any of them.

    Raises:
      DataError: If a folder may not be read.
    """
    there = [path for path in paths if exists(path, advice)]
    return next(filter(os.path.isfile, there), there[0] if there else None)


def missing(
    path: str,
    advice: str,
    others: Iterable[str] = (),
    ending: str = "",
    known: Iterable[str] = (),
) -> DataError:
    """Returns the error for a file that is in none of its possible places.

    The error names files with similar names in those folders: another letter case, a typing mistake
    or another release of the file is easily overlooked.

    Args:
      path: Where the file should be.
      advice: Where to get the file and how to point at it, for error messages.
      others: Further paths at which it would have been found.
      ending: Endings that the name may also have, as the message shows them, e.g. `[.gz]`.
      known: Names of the set's other files, which are not suggested.
    """
    found = but_there_is([path, *others], known)
    return DataError(f"{path}{ending} is missing{found}; {advice}")


def similar(name: str, names: Iterable[str]) -> list[str]:
    """Returns up to three names similar to a name, the most similar first; case is ignored.

    Names that differ only in digits, such as `part_1` and `part_2`, are different files.
    """
    pattern = re.sub(r"\d", "0", name)
    by_lower = {}
    for other in names:
        if re.sub(r"\d", "0", other) != pattern:
            by_lower.setdefault(other.lower(), other)
    found = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.75)
    return [by_lower[lower] for lower in found]


def but_there_is(paths: Iterable[str], known: Iterable[str] = ()) -> str:
    """Returns `, but FOLDER has NAMES` for the first path with similar names beside it, else ""."""
    known = set(known)
    for path in dict.fromkeys(paths):
        folder, name = os.path.split(path.rstrip(os.sep))
        try:
            with os.scandir(folder or ".") as entries:
                # A folder of images may have very many.
                names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
        except (OSError, ValueError):
            continue
        found = similar(name, sorted(set(names) - known))
        if found:
            return f", but {folder or '.'} has {', '.join(found)}"
    return ""


def warn_if_not_published(where: str, counts: Mapping[str, tuple[int, int]]) -> None:
    """Warns if files under a publisher's names hold another number of things than the publisher's.

    Such files are still read: a part of a set is what some have. But no other line would tell it
    from the whole set.

    Args:
      where: Path of the files.
      counts: What is counted → number found, and the publisher's number.
    """
    other = {what: pair for what, pair in counts.items() if pair[0] != pair[1]}
    if other:
        found = " and ".join(f"{pair[0]:,} {what}" for what, pair in other.items())
        published = " and ".join(f"{pair[1]:,}" for pair in other.values())
        command_line.warn(
            f"{where} has {found}, the published set {published}; results on it are not "
            "comparable with those on the published set"
        )


def check_regular(path: str) -> None:
    """Checks that a path leads to a regular file, which can be read without blocking.

    Raises:
      OSError: If nothing exists there.
      ValueError: If it leads to a folder, a pipe, a socket or a device.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise ValueError("it is a folder")
    if not stat.S_ISREG(mode):
        raise ValueError("it is not a regular file")


def keras_path(*parts: str) -> str:
    """Returns the path that a data set's file has, or would have, in Keras's cache."""
    return os.path.join(os.path.expanduser("~"), ".keras", "datasets", *parts)


@contextlib.contextmanager
def reading(path: str, advice: str, what: str = "cannot be read") -> Iterator[None]:
    """A context in which a file is opened, read and decoded.

    Args:
      path: The file.
      advice: Where to get the file and how to point at it, for error messages.
      what: How the error describes a file whose content cannot be decoded.

    Raises:
      DataError: If it is not a regular file (opening a pipe could block for ever), is missing or
        may not be read. Also if anything is raised inside; see `decoding`.
    """
    with decoding(path, advice):
        check_regular(path)
    with decoding(path, advice, what):
        yield


@contextlib.contextmanager
def decoding(name: str, advice: str, what: str = "cannot be read") -> Iterator[None]:
    """A context in which named content is decoded.

    Which exceptions decoders raise on unexpected content is undocumented and differs between
    versions. So any exception is converted, including those of the recursion limit and of memory.
    The suite's own exceptions already have a clear message and pass through.

    Args:
      name: The file, or the part of it that is decoded.
      advice: Where to get the file and how to point at it, for error messages.
      what: How the error describes it.

    Raises:
      DataError: If anything is raised inside.
    """
    try:
        yield
    except FedError:
        raise
    except FileNotFoundError as error:
        path = error.filename if isinstance(error.filename, str) else name
        raise missing(path, advice) from error
    except Exception as error:
        raise DataError(f"{name} {what} ({reason_of(error)}); {advice}") from error


def reason_of(error: BaseException) -> str:
    """Returns an exception's message in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = " ".join(str(error).split())
    if isinstance(error, KeyError):
        said = said.strip("'\"")
        return said if " " in said else f"it has no {said}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return f"it needs more memory than there is{': ' if said else ''}{said}"
    if isinstance(error, (ValueError, OSError)):
        return said or type(error).__name__
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def read_at_most(stream: Stream, limit: int = MAX_BYTES) -> bytes:
    """Reads a stream to its end; memory grows with its content, not with its announced size.

    Args:
      stream: The stream.
      limit: Maximum number of bytes.

    Raises:
      ValueError: If it is longer.
    """
    chunks, left = [], limit
    while chunk := stream.read(min(_CHUNK, left + 1)):
        left -= len(chunk)
        if left < 0:
            raise ValueError(f"it unpacks to more than {limit:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, limit: int = MAX_BYTES) -> bytes:
    """Reads a file in an archive.

    Args:
      archive: The archive.
      member: The file's entry.
      limit: Maximum number of bytes.

    Raises:
      ValueError: If it is not a regular file, is sparse (a few bytes can announce any number of
        zeros), is larger than `limit`, or has fewer bytes than the archive announces.
    """
    if not member.isfile() or member.issparse() or not 0 <= member.size <= limit:
        raise ValueError(f"{member.name} in it is not a regular file of at most {limit:,} bytes")
    stream = archive.extractfile(member)
    assert stream is not None  # It is of a regular file.
    data = read_at_most(stream, limit)
    if len(data) != member.size:
        raise ValueError(f"{member.name} in it is cut off")
    return data


def open_plain_or_gzip(path: str) -> io.BufferedIOBase:
    """Opens a file for reading, unpacked if it is gzip-compressed.

    The content decides, not the name: browsers may unpack a file and keep `.gz` in its name, or the
    reverse.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else open(path, "rb")


def json_of(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
      ValueError: If it is not JSON. NaN, infinities and objects that have a key twice, which Python
        would accept, are refused.
    """
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        # The first value would be lost.
        twice = collections.Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"an object with the key {twice!r:.80} twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def entry(record: Any, key: str | bytes, kind: type | tuple[type, ...]) -> Any:
    """Returns an entry of a JSON object, which must have that type; `true` is not a number.

    Raises:
      ValueError: If the entry is missing or has another type.
    """
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} instead of a JSON object")
    if key not in record:
        raise ValueError(f"an object without {key!r}")
    value = record[key]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(value) not in kinds:
        wanted = " or ".join(k.__name__ for k in kinds)
        raise ValueError(f"{key!r} is {type(value).__name__} and not {wanted}")
    return value


def check_client_id(client_id: Any) -> str:
    """Returns a client's name.

    Raises:
      ValueError: If it is not text, is empty, or cannot be written to a file.
    """
    if not isinstance(client_id, str) or not client_id:
        raise ValueError(f"a client's name that is {client_id!r:.80}")
    try:
        client_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a client's name that is not text: {client_id!r:.80}") from error
    return client_id


def check_labels(labels: np.ndarray, num_classes: int, what: str = "labels") -> None:
    """Checks that labels are class numbers.

    Args:
      labels: The labels, `[n]`, possibly empty.
      num_classes: The labels must be below it.
      what: Name of the labels in the message.

    Raises:
      ValueError: If they are not a one-dimensional array of whole numbers, or are out of range.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"{what} of shape {labels.shape} and type {labels.dtype}")
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"{what} from {labels.min()} to {labels.max()}, outside 0..{num_classes - 1}"
        )


def read_npz(path: str, wanted: Mapping[str, int | None]) -> dict[str, np.ndarray]:
    """Reads one-dimensional arrays of whole numbers from an `.npz` file.

    Args:
      path: The file.
      wanted: Name of each array → its length, or `None` for any length.

    Returns:
      The arrays by name.

    Raises:
      Exception: If the file does not match; for use inside `reading`.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name, length in wanted.items():
            member = archive.getinfo(f"{name}.npy")
            with archive.open(member) as stream:
                arrays[name] = read_npy(stream, (length,), "iu")
    return arrays


def read_npy(stream: Stream, shape: Sequence[int | None], kinds: str) -> np.ndarray:
    """Reads an array in NumPy's own format.

    Args:
      stream: The stream, which ends with the array.
      shape: The shape that it must have; `None` for any length.
      kinds: NumPy's letters for the allowed kinds of type, e.g. `iu`.

    Raises:
      ValueError: If the array does not match, or the stream holds fewer or more bytes than its
        header announces.
    """
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        found, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        found, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
    fits = len(found) == len(shape) and all(
        length in (None, own) for length, own in zip(shape, found, strict=True)
    )
    if not fits or dtype.kind not in kinds or dtype.hasobject:
        wanted = tuple("n" if length is None else length for length in shape)
        raise ValueError(f"an array of shape {found} and type {dtype} instead of {wanted}")
    size = memory.size_of(found, dtype)
    data = read_at_most(stream, min(size, MAX_BYTES))
    if len(data) != size:
        raise ValueError(f"its header announces {size} bytes, it has {len(data)}")
    return np.frombuffer(data, dtype).reshape(found, order="F" if by_columns else "C")


# Deflate, with which HDF5 compresses, makes nothing smaller than this.
DEFLATE = 1100


def check_dataset(dataset: Any, kinds: str) -> None:
    """Checks an HDF5 dataset before it is read, since reading allocates the announced size.

    Args:
      dataset: The entry in the file that should be a dataset.
      kinds: NumPy's letters for the allowed kinds of type, e.g. `iu`.

    Raises:
      ValueError: If it is not a dataset, has another type, or announces more than it can hold.
    """
    if not hasattr(dataset, "dtype") or dataset.dtype.kind not in kinds:
        raise ValueError(f"{dataset.name} is not a dataset of the right type")
    stored = dataset.id.get_storage_size()
    size = memory.nbytes(dataset)
    if size > stored * DEFLATE:
        raise ValueError(f"{dataset.name} announces {size} bytes and has {stored}")
