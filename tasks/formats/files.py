"""Reading files that somebody else made: what is wrong with one is a `DataError` that names it.

Every reader of the suite finds its files with `find`, opens and decodes them inside `reading` (or,
for a part of a file that is open already, `decoding`), and takes what it did not write itself out
of them with the functions below, which trust no number that a file announces. None of this needs
TensorFlow.
"""

import contextlib
import difflib
import gzip
import itertools
import json
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from tasks.task import DataError
from tff_suite import memory
from tff_suite.errors import FedError

# No file of a data set is larger, once unpacked, than this; what is is no such file.
MAX_BYTES = 2 << 30

_CHUNK = 1 << 20
# Most names of a folder that are compared with one that is missing.
_MOST_NAMES = 5000


def check_folder(path: str, flag: str) -> None:
    """Checks that a folder named by a flag can be read.

    Args:
      path: The folder.
      flag: Name of the flag, for error texts.

    Raises:
      DataError: If it is none or may not be read.
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
    """Returns whether there is anything at a path, be it a link that leads nowhere.

    Raises:
      DataError: If that cannot be known, because a folder above it may not be looked into.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({reason_of(error)}); {advice}") from error
    return True


def find(paths: Iterable[str], advice: str) -> str | None:
    """Returns the first path that is a file; failing that, the first where anything else is.

    `reading` says of the latter what it is: "missing" would send its owner to look for a file that
    is there, as a folder of that name, a link that leads nowhere or something else.

    Args:
      paths: Where to look, the most preferred first.
      advice: Where to get the file and how to point at it, for error texts.

    Returns:
      The path, or `None` if there is nothing at any of them.

    Raises:
      DataError: If a folder may not be looked into.
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
    """Returns the error for a file that is in none of the places where it may be.

    Files with a similar name in those folders are named: another letter case, a typing mistake or
    another release of the file is easily overlooked.

    Args:
      path: Where the file should be.
      advice: Where to get the file and how to point at it, for error texts.
      others: Further paths at which it would have been found.
      ending: Endings that the name may also have, as the text shows them, e.g. `[.gz]`.
      known: Names of the set's other files, which are not meant.
    """
    found = but_there_is([path, *others], known)
    return DataError(f"{path}{ending} is missing{found}; {advice}")


def similar(name: str, names: Iterable[str]) -> list[str]:
    """Returns up to three names that are like a name, the most similar first; case is ignored.

    Names that differ in digits alone, such as `part_1` and `part_2`, are different files.
    """
    pattern = re.sub(r"\d", "0", name)
    by_lower = {}
    for other in names:
        if re.sub(r"\d", "0", other) != pattern:
            by_lower.setdefault(other.lower(), other)
    found = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.75)
    return [by_lower[lower] for lower in found]


def but_there_is(paths: Iterable[str], known: Iterable[str] = ()) -> str:
    """Returns `, but FOLDER has NAMES` for a path beside which there are similar names, else ""."""
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


def check_regular(path: str) -> None:
    """Checks that a path leads to a file that can be read without waiting for anybody.

    Raises:
      OSError: If it leads nowhere.
      ValueError: If it leads to a folder, a pipe, a socket or a device.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise ValueError("it is a folder")
    if not stat.S_ISREG(mode):
        raise ValueError("it is not a regular file")


def keras_path(*parts: str) -> str:
    """Returns where Keras's cache has a file of a data set, or would have it."""
    return os.path.join(os.path.expanduser("~"), ".keras", "datasets", *parts)


@contextlib.contextmanager
def reading(path: str, advice: str, what: str = "cannot be read") -> Iterator[None]:
    """A context in which a file is opened, read and decoded.

    Args:
      path: The file.
      advice: Where to get the file and how to point at it, for error texts.
      what: What is said of a file whose content makes trouble.

    Raises:
      DataError: If it is no regular file (to open a pipe could wait for ever), if it is missing or
        may not be read, or if anything at all is raised inside; see `decoding`.
    """
    with decoding(path, advice):
        check_regular(path)
    with decoding(path, advice, what):
        yield


@contextlib.contextmanager
def decoding(name: str, advice: str, what: str = "cannot be read") -> Iterator[None]:
    """A context in which the content of something that has a name is decoded.

    What decoders raise on content that they were not made for is documented nowhere and differs
    between versions: any exception counts, the recursion limit and memory included. The exceptions
    of the suite itself, which say what they mean, pass.

    Args:
      name: The file, or what part of it is decoded.
      advice: Where to get the file and how to point at it, for error texts.
      what: What is said of it.

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
    """Returns what an exception says, in one line."""
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


def read_at_most(stream: BinaryIO, limit: int = MAX_BYTES) -> bytes:
    """Reads a stream to its end; memory grows with what it holds, not with what it announces.

    Args:
      stream: The stream.
      limit: Most bytes that there may be.

    Raises:
      ValueError: If there are more.
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
      member: Which file.
      limit: Most bytes that it may have.

    Raises:
      ValueError: If it is no file, has holes (a few bytes can announce any number of zeros), is
        larger, or has fewer bytes than the archive announces.
    """
    if not member.isfile() or member.issparse() or not 0 <= member.size <= limit:
        raise ValueError(f"{member.name} in it is no plain file of at most {limit:,} bytes")
    data = read_at_most(archive.extractfile(member), limit)
    if len(data) != member.size:
        raise ValueError(f"{member.name} in it is cut off")
    return data


def open_plain_or_gzip(path: str) -> BinaryIO:
    """Opens a file for reading, unpacked if it is gzip-compressed.

    The content decides: browsers unpack files and leave `.gz` in the name, or the other way round.
    """
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if packed else open(path, "rb")


def json_of(text: str | bytes) -> Any:
    """Returns what a JSON text says.

    Raises:
      ValueError: If it is not JSON; NaN and infinities, which Python would take, are not.
    """
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")


def entry(record: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    """Returns an entry of a JSON object, if it has one of that type; `true` is not a number.

    Raises:
      ValueError: If it does not.
    """
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} where an object belongs")
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
      ValueError: If it is no text, is empty, or cannot be written to a file.
    """
    if not isinstance(client_id, str) or not client_id:
        raise ValueError(f"a client's name that is {client_id!r:.80}")
    try:
        client_id.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a client's name that is no text: {client_id!r:.80}") from error
    return client_id


def check_labels(labels: np.ndarray, num_classes: int, what: str = "labels") -> None:
    """Checks that labels are class numbers.

    Args:
      labels: The labels, `[n]`; there may be none.
      num_classes: They must be below it.
      what: What they are called in the error text.

    Raises:
      ValueError: If they are no whole numbers in a row, or out of range.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(f"{what} of shape {labels.shape} and type {labels.dtype}")
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        raise ValueError(
            f"{what} from {labels.min()} to {labels.max()}, outside 0..{num_classes - 1}"
        )


def read_npz(path: str, wanted: Mapping[str, int | None]) -> dict[str, np.ndarray]:
    """Reads arrays of whole numbers, one-dimensional, of an `.npz` file.

    Args:
      path: The file.
      wanted: The arrays' names, and how many numbers each must hold, or `None` if that is open.

    Returns:
      The arrays by name.

    Raises:
      Exception: If the file is not such; for use inside `reading`.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name, length in wanted.items():
            member = archive.getinfo(f"{name}.npy")
            with archive.open(member) as stream:
                arrays[name] = read_npy(stream, (length,), "iu")
    return arrays


def read_npy(stream: BinaryIO, shape: Sequence[int | None], kinds: str) -> np.ndarray:
    """Reads an array in NumPy's own format.

    Args:
      stream: The stream, which ends with the array.
      shape: The shape that it must have; `None` where a length is open.
      kinds: NumPy's letters of the kinds of type that it may have, e.g. `iu`.

    Raises:
      ValueError: If the array is another one, or the stream holds fewer or more bytes than its
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
        raise ValueError(f"an array of shape {found} and type {dtype}, where {wanted} belongs")
    size = memory.size_of(found, dtype)
    data = read_at_most(stream, min(size, MAX_BYTES))
    if len(data) != size:
        raise ValueError(f"its header announces {size} bytes, it has {len(data)}")
    return np.frombuffer(data, dtype).reshape(found, order="F" if by_columns else "C")


# Deflate, with which HDF5 compresses, makes nothing smaller than this.
DEFLATE = 1100


def check_dataset(dataset: Any, kinds: str) -> None:
    """Checks an HDF5 dataset before it is read, which takes the memory that it announces.

    Args:
      dataset: What a file has by the name of a dataset.
      kinds: NumPy's letters of the kinds of type that it may have, e.g. `iu`.

    Raises:
      ValueError: If it is none, of another type, or announces more than can be in it.
    """
    if not hasattr(dataset, "dtype") or dataset.dtype.kind not in kinds:
        raise ValueError(f"{dataset.name} is no dataset of the right type")
    stored = dataset.id.get_storage_size()
    size = memory.nbytes(dataset)
    if size > stored * DEFLATE:
        raise ValueError(f"{dataset.name} announces {size} bytes and has {stored}")
