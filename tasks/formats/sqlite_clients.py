"""Reads TFF's sqlite files of clients' examples, client by client."""

import collections
import contextlib
import fcntl
import lzma
import os
import pathlib
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import numpy as np

from tasks.formats import downloads, files
from tasks.task import DataError, Examples
from tff_suite import writing

_MAGIC = b"SQLite format 3\0"
_CHUNK = 1024


class SqliteFederatedData:
    """Federated data in one split of one of TFF's sqlite files; examples are not kept in memory.

    Such a file has a table `examples` (split_name, client_id, serialized_example_proto: a
    `tf.train.Example`) and a table `client_metadata` (client_id, split_name, num_examples). It is
    opened for each read, so that any thread may read.

    Attributes:
      client_ids: Clients' names in ascending order, as in TFF.
      sizes: int64 `[number of clients]`.
      files: The file.
    """

    def __init__(
        self,
        path: str,
        split: str,
        parse: Callable[[Sequence[bytes]], Examples],
        advice: str,
        max_examples: int | None = None,
    ):
        """Opens the file and reads the clients' names and sizes.

        Args:
          path: The sqlite file.
          split: Value of `split_name`, e.g. `all_train`.
          parse: Turns serialised examples into arrays; raises `ValueError` for invalid ones.
          advice: Where to get the file and how to point at it, for error texts.
          max_examples: If set, only the first that many examples of each client are read.

        Raises:
          DataError: If the file is not such a database, is cut off, or lacks the split.
        """
        self._path = path
        self.files = (path,)
        self._split = split
        self._parse = parse
        self._advice = advice
        self._limit = -1 if max_examples is None else max_examples  # -1 is "all" to sqlite.
        check_complete(path, advice)
        clients = self._query(
            "SELECT DISTINCT client_id, num_examples FROM client_metadata WHERE split_name = ? "
            "ORDER BY client_id",
            (split,),
        )
        if not clients:
            raise DataError(f"{path} has no clients in its split {split!r}; {advice}")
        with files.decoding(path, advice, f"is damaged in its split {split!r}"):
            self.client_ids = [files.check_client_id(client_id) for client_id, _ in clients]
            self._announced = np.array([_number(size) for _, size in clients], np.int64)
            # What is made of sizes before an example is read must not outgrow memory: an example
            # has a byte at the least.
            total, most = sum(map(int, self._announced)), os.path.getsize(path)
            if total == 0 or total > most:
                raise ValueError(f"clients of {total} examples in all in a file of {most} bytes")
        self.sizes = self._announced
        if max_examples is not None:
            self.sizes = np.minimum(self._announced, max_examples)
        if len(set(self.client_ids)) != len(clients):
            raise DataError(f"{path} gives clients of {split!r} two different sizes; {advice}")

    def examples(self, index: int) -> Examples:
        """Returns the examples of the client at `index`, in the file's order.

        Raises:
          DataError: If they cannot be read or their number differs from the announced one.
        """
        client_id = self.client_ids[index]
        rows = self._query(
            "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
            "ORDER BY rowid LIMIT ?",
            (self._split, client_id, self._limit),
        )
        self._check_number(client_id, len(rows), self.sizes[index])
        return self._parsed(rows)

    def pooled(self) -> Examples:
        """Returns the examples of all clients together, clients in order.

        Raises:
          DataError: If they cannot be read or a client's number of examples differs from the
            announced one.
        """
        found = collections.Counter()
        chunks = list(self._parsed_chunks(found))
        for client_id, announced in zip(self.client_ids, self._announced, strict=True):
            self._check_number(client_id, found.pop(client_id, 0), announced)
        if found:
            self._check_number(next(iter(found)), found.total(), 0)
        return Examples(
            np.concatenate([c.x for c in chunks]), np.concatenate([c.y for c in chunks])
        )

    def _parsed_chunks(self, found: collections.Counter) -> Iterator[Examples]:
        """Yields all clients' examples, and counts each client's in `found`."""
        with self._cursor() as cursor:
            rows = cursor.execute(
                "SELECT serialized_example_proto, client_id FROM examples WHERE split_name = ? "
                "ORDER BY client_id, rowid",
                (self._split,),
            )
            while chunk := rows.fetchmany(_CHUNK):
                found.update(client_id for _, client_id in chunk)
                yield self._parsed(chunk)

    def _check_number(self, client_id: Any, found: int, announced: int) -> None:
        if found != announced:
            raise DataError(
                f"{self._path} has {found} examples of client {client_id!r} in {self._split!r} "
                f"and announces {announced}; {self._advice}"
            )

    def count(self) -> int:
        """Counts the split's examples in the file, one by one.

        Raises:
          DataError: If the number differs from the total announced for its clients.
        """
        rows = self._query("SELECT COUNT(*) FROM examples WHERE split_name = ?", (self._split,))
        ((count,),) = rows
        if self._limit == -1 and count != self.sizes.sum():
            raise DataError(
                f"{self._path} has {count} examples in {self._split!r} and announces "
                f"{self.sizes.sum()}; {self._advice}"
            )
        return count

    def _query(self, sql: str, parameters: Sequence[str | int]) -> list[tuple]:
        with self._cursor() as cursor:
            return cursor.execute(sql, parameters).fetchall()

    def _parsed(self, rows: Sequence[tuple]) -> Examples:
        serialized = [row[0] for row in rows]
        with files.decoding(self._path, self._advice, "is damaged"):
            if not all(isinstance(example, bytes) for example in serialized):
                raise ValueError("an example that is not bytes")
            examples = self._parse(serialized)
            if not len(examples.x) == len(examples.y) == len(serialized):
                raise ValueError(f"{len(serialized)} examples make {len(examples.y)}")
            return examples

    @contextlib.contextmanager
    def _cursor(self) -> Iterator[sqlite3.Cursor]:
        # Closed by itself: an error's traceback keeps it alive, and with it the lock of the file.
        uri = pathlib.Path(self._path).absolute().as_uri() + "?mode=ro"
        with (
            files.decoding(self._path, self._advice),
            contextlib.closing(sqlite3.connect(uri, uri=True)) as connection,
            contextlib.closing(connection.cursor()) as cursor,
        ):
            yield cursor


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a client of {value!r:.80} examples")
    return value


def locate(name: str, folder: str, data_dir: str | None, advice: str) -> str:
    """Returns the path of one of TFF's sqlite files, after unpacking or downloading if needed.

    Args:
      name: Name of the file, e.g. `shakespeare.sqlite`.
      folder: Subfolder of `data_dir` to look in first.
      data_dir: Where the file is, unpacked or as TFF ships it; `None` means TFF's cache,
        downloading the file if needed.
      advice: Where to get the file and how to point at it, for error messages.

    Raises:
      DataError: If the file is missing or damaged and cannot be downloaded.
    """
    if data_dir is None:
        path = os.path.join(os.path.expanduser("~"), ".tff", name)
        if not os.path.isfile(path):
            packed = f"{path}.lzma"
            downloads.fetch(f"{downloads.TFFS}{name}.lzma", packed, advice)
            try:
                unpack(packed, path, advice)
            except DataError as error:
                # With a full disk, say, there is nothing to download again.
                if not isinstance(error.__cause__, OSError):
                    os.remove(packed)
                raise
            os.remove(packed)
        return path
    found = find(name, folder, data_dir, advice)
    if found is None:
        raise files.missing(os.path.join(data_dir, name), advice, ending="[.lzma]")
    if not os.path.lexists(found):
        unpack(f"{found}.lzma", found, advice)
    return found


def find(name: str, folder: str, data_dir: str, advice: str) -> str | None:
    """Returns a file's path, possibly still to be unpacked from `<path>.lzma`; `None` if missing.

    Args:
      name: Name of the file, e.g. `shakespeare.sqlite`.
      folder: Subfolder of `data_dir` to look in first.
      data_dir: Folder to look in.
      advice: Where to get the file and how to point at it, for error messages.

    Raises:
      DataError: If a folder may not be read.
    """
    parents = (os.path.join(data_dir, folder), data_dir)
    found = files.find((os.path.join(p, name + e) for p in parents for e in ("", ".lzma")), advice)
    return None if found is None else found.removesuffix(".lzma")


def unpack(packed: str, path: str, advice: str) -> None:
    """Unpacks TFF's compressed file; `path` appears only once it is complete.

    An interrupted call leaves `<path>.part`, which the next call overwrites.

    Args:
      packed: The file as TFF ships it.
      path: The file to make.
      advice: Where to get the file and how to point at it, for error messages.

    Raises:
      DataError: If the file is damaged, the disk refuses, or another process is unpacking it.
    """
    part = f"{path}.part"
    with files.reading(packed, advice):
        os.path.getsize(packed)
    try:
        with writing.open_to_append(part) as target:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            target.truncate(0)
            try:
                _decompress(packed, target)
                check_complete(part, advice)
                os.replace(part, path)
            except OSError:  # The disk: what there is stays for the next call.
                raise
            except Exception:
                os.remove(part)
                raise
    except BlockingIOError as error:
        raise DataError(f"another process is unpacking {packed}; wait for it") from error
    except OSError as error:
        raise DataError(
            f"{packed} cannot be unpacked to {path} ({error.strerror}); unpack it elsewhere with "
            f"`xz --decompress --stdout` and set --data_dir to that folder"
        ) from error
    except DataError:
        raise
    except Exception as error:
        reason = files.reason_of(error)
        raise DataError(f"{packed} is damaged ({reason}); {advice}") from error


def _decompress(packed: str, target: IO[bytes]) -> None:
    import tqdm  # Slow to import, and seldom needed.

    size = os.path.getsize(packed)
    label = f"Unpacking {packed}"
    with (
        open(packed, "rb") as raw,
        lzma.open(raw) as source,
        tqdm.tqdm(desc=label, total=size, unit="B", unit_scale=True, dynamic_ncols=True) as bar,
    ):
        while chunk := source.read(1 << 20):
            target.write(chunk)
            bar.update(raw.tell() - bar.n)
    target.flush()
    os.fsync(target.fileno())


def check_complete(path: str, advice: str) -> None:
    """Checks that a file is an sqlite database and has all the pages that its header announces.

    An interrupted download leaves a file that opens without an error and fails later.

    Args:
      path: The file.
      advice: Where to get the file and how to point at it, for the error text.

    Raises:
      DataError: If it is not.
    """
    with files.reading(path, advice), open(path, "rb") as file:
        header = file.read(100)
        size = os.path.getsize(path)
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise DataError(f"{path} is not an sqlite database; {advice}")
    (page_size,) = struct.unpack_from(">H", header, 16)
    (num_pages,) = struct.unpack_from(">I", header, 28)
    announced = num_pages * (65536 if page_size == 1 else page_size)
    if size < announced:
        raise DataError(f"{path} is cut off: it has {size} of {announced} bytes; {advice}")
