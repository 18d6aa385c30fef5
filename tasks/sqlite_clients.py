"""Reads TFF's sqlite files of clients' examples, client by client."""

import contextlib
import os
import pathlib
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tasks.task import DataError, Examples

_MAGIC = b"SQLite format 3\0"
_CHUNK = 1024


class SqliteFederatedData:
    """Federated data in one split of a file as TFF publishes them; nothing is kept in memory.

    Such a file has a table `examples` (split_name, client_id, serialized_example_proto: a
    `tf.train.Example`) and a table `client_metadata` (client_id, split_name, num_examples). It is
    opened for each read, so that any thread may read.

    Attributes:
      client_ids: Clients' names in ascending order, as in TFF.
      sizes: int64 `[number of clients]`.
    """

    def __init__(
        self, path: str, split: str, parse: Callable[[Sequence[bytes]], Examples], advice: str
    ):
        """Opens the file and reads the clients' names and sizes.

        Args:
          path: The sqlite file.
          split: Value of `split_name`, e.g. `all_train`.
          parse: Turns serialised examples into arrays; raises `ValueError` on what it refuses.
          advice: Where to get the file and how to point at it, for error texts.

        Raises:
          DataError: If the file is no such database, is cut off, or lacks the split.
        """
        self._path = path
        self._split = split
        self._parse = parse
        self._advice = advice
        check_complete(path, advice)
        clients = self._query(
            "SELECT DISTINCT client_id, num_examples FROM client_metadata WHERE split_name = ? "
            "ORDER BY client_id",
            (split,),
        )
        self.client_ids = [client_id for client_id, _ in clients]
        self.sizes = np.array([size for _, size in clients], np.int64)
        if not clients:
            raise DataError(f"{path} has no clients in its split {split!r}; {advice}")
        if len(set(self.client_ids)) != len(clients):
            raise DataError(f"{path} gives clients of {split!r} two different sizes; {advice}")

    def examples(self, index: int) -> Examples:
        """Returns all examples of the client at `index`, in the file's order.

        Raises:
          DataError: If they cannot be read or are not as many as announced.
        """
        client_id = self.client_ids[index]
        rows = self._query(
            "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? "
            "ORDER BY rowid",
            (self._split, client_id),
        )
        if len(rows) != self.sizes[index]:
            raise DataError(
                f"{self._path} has {len(rows)} examples of client {client_id!r} in "
                f"{self._split!r} and announces {self.sizes[index]}; {self._advice}"
            )
        return self._parsed(rows)

    def pooled(self) -> Examples:
        """Returns the examples of all clients together, clients in order.

        Raises:
          DataError: If they cannot be read.
        """
        chunks = list(self._parsed_chunks())
        return Examples(
            np.concatenate([c.x for c in chunks]), np.concatenate([c.y for c in chunks])
        )

    def _parsed_chunks(self) -> Iterator[Examples]:
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT serialized_example_proto FROM examples WHERE split_name = ? "
                "ORDER BY client_id, rowid",
                (self._split,),
            )
            while chunk := rows.fetchmany(_CHUNK):
                yield self._parsed(chunk)

    def _query(self, sql: str, parameters: Sequence[str]) -> list[tuple]:
        with self._connection() as connection:
            return connection.execute(sql, parameters).fetchall()

    def _parsed(self, rows: Sequence[tuple[bytes]]) -> Examples:
        try:
            return self._parse([row[0] for row in rows])
        except ValueError as error:
            raise DataError(f"{self._path} holds {error}; {self._advice}") from error

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        uri = pathlib.Path(self._path).absolute().as_uri() + "?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
                yield connection
        except sqlite3.Error as error:
            raise DataError(f"{self._path} cannot be read ({error}); {self._advice}") from error


def check_complete(path: str, advice: str) -> None:
    """Checks that a file is an sqlite database and has all the pages that its header announces.

    An interrupted download leaves a file that opens without complaint and fails later.

    Args:
      path: The file.
      advice: Where to get the file and how to point at it, for the error text.

    Raises:
      DataError: If it is not.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(100)
        size = os.path.getsize(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); {advice}") from error
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise DataError(f"{path} is not an sqlite database; {advice}")
    (page_size,) = struct.unpack_from(">H", header, 16)
    (num_pages,) = struct.unpack_from(">I", header, 28)
    announced = num_pages * (65536 if page_size == 1 else page_size)
    if size < announced:
        raise DataError(f"{path} is cut off: it has {size} of {announced} bytes; {advice}")
