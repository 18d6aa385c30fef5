"""The states that clients keep between rounds: in memory up to a size, the rest in a SQLite file.

The file holds versions: the state of a client after a round. A checkpoint of round r belongs to the
newest version of each client up to round r. So file and checkpoint need no joint transaction:

- States are committed before the checkpoint is written.
- When a run resumes from a checkpoint, later versions are removed.
- After a checkpoint is written, versions that no kept checkpoint needs are removed.

Whenever the process is killed, at least one checkpoint and its states remain.

Each row has its own checksum. A checkpoint holds the sum of the checksums of its states. This sum
can be updated client by client and does not depend on the order of clients. The file also holds the
id of its run.
"""

import collections
import contextlib
import hashlib
import json
import math
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from simulation.device import eager_tensors
from simulation.errors import RunError
from tff_algos.process import StackedStates
from tff_suite import memory

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
  client TEXT NOT NULL, round INTEGER NOT NULL, digest BLOB NOT NULL, state BLOB NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS of_client ON states (client, round);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value NOT NULL);
"""

_MODULUS = 1 << 256
# SQLite's largest page: large states are written in a sixteenth of the calls of its usual 4 KiB.
# For small states such pages would waste space.
_LARGE_PAGE = 1 << 16
# How long to wait for other readers of the file, such as `read_all` or a copy of the run.
_SECONDS_FOR_READERS = 600.0


class ClientStates:
    """The states of all clients of a run, by client id."""

    def __init__(self, path: str, initial: Any, memory_bytes: int, run_id: str = ""):
        """Opens the file, or makes it.

        Args:
          path: The file.
          initial: State of a client before its first round: a structure of NumPy arrays. All
            states have its shapes and dtypes.
          memory_bytes: Bytes of states to keep in memory.
          run_id: Id of the run that the file belongs to.

        Raises:
          RunError: If the file is damaged, belongs to another run or holds states of another form.
          OSError: If it cannot be read or written.
        """
        self._path = path
        self._initial = initial
        self._leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(initial)]
        self._capacity = memory_bytes // max(1, memory.nbytes(self._leaves))
        # Client → row of its state, least recently used first. The newest state of any other client
        # is in the file, if it has one.
        self._recent: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._unwritten: dict[str, int] = {}
        self._rows = [np.empty((0, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._free: list[int] = []
        # Sum of the digests of each client's newest row.
        self._sum = 0
        if os.path.islink(path):
            # SQLite would follow it and write to its target.
            raise RunError(f"{path} is a link; remove it, or choose another --experiment_name.")
        with self._explained():
            self._db = sqlite3.connect(
                path, timeout=_SECONDS_FOR_READERS, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA synchronous = FULL")
            if memory.nbytes(self._leaves) >= _LARGE_PAGE:
                self._db.execute(f"PRAGMA page_size = {_LARGE_PAGE}")  # Ignored by existing files.
            self._db.executescript(_SCHEMA)
            self._check_run(run_id)
            self._check_form()

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except UnicodeDecodeError as e:
            # From SQLite's own message, which quotes the damaged bytes.
            raise self._damaged("it holds text that is not UTF-8") from e
        except sqlite3.DatabaseError as e:
            # Damage to the content: without a code it is text that is not UTF-8, with SQLITE_ERROR
            # a missing table or column. All other codes are errors of the operating system.
            of_content = getattr(e, "sqlite_errorcode", None) in (None, sqlite3.SQLITE_ERROR)
            if isinstance(e, sqlite3.OperationalError) and not of_content:
                raise OSError(f"{self._path}: {e}") from e
            raise self._damaged(str(e)) from e

    def _damaged(self, reason: str) -> RunError:
        return RunError(
            f"{self._path} is damaged ({reason}); restore it, or choose another --experiment_name."
        )

    def _check_run(self, run_id):
        insert = "INSERT OR IGNORE INTO facts VALUES ('run_id', ?)"
        self._db.execute(insert, [run_id])
        if self._fact("run_id") != run_id and self._holds_nothing():
            # A first start was killed before hparams.json held the run's id.
            self._db.execute("DELETE FROM facts")
            self._db.execute(insert, [run_id])
        if self._fact("run_id") != run_id:
            raise RunError(
                f"{self._path} belongs to another run; restore this run's, or choose another "
                "--experiment_name."
            )

    def _holds_nothing(self):
        states = self._db.execute("SELECT 1 FROM states LIMIT 1").fetchone()
        return states is None and not self._fact("round")

    def _check_form(self):
        shapes = repr([(a.shape, a.dtype.str) for a in self._leaves])
        form = hashlib.sha256(shapes.encode()).hexdigest()
        self._db.execute("INSERT OR IGNORE INTO facts VALUES ('form', ?)", [form])
        if self._fact("form") != form:
            raise RunError(
                f"{self._path} has client states whose structure differs from what this version "
                "of the method uses; choose another --experiment_name."
            )
        layout = json.dumps(
            [
                [name, leaf.shape, leaf.dtype.str]
                for (name, _), leaf in zip(_named(self._initial), self._leaves, strict=True)
            ]
        )
        self._db.execute("INSERT OR IGNORE INTO facts VALUES ('layout', ?)", [layout])
        if self._fact("layout") != layout:
            raise self._damaged("its description of a state does not fit the method's state")

    def _fact(self, name):
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", [name]).fetchone()
        return row[0] if row else None

    def go_on_from(self, round_num: int, checksum: str | None = None) -> None:
        """Goes back to the states as of a checkpoint.

        Args:
          round_num: The checkpoint's round; 0 is the start, at which the file holds no states.
          checksum: What `commit` returned for it; `None` skips the check.

        Raises:
          RunError: If the file ends before the checkpoint's round, or holds other states.
        """
        self._free.extend(self._recent.values())
        self._recent.clear()
        self._unwritten.clear()
        with self._explained():
            (problem,) = self._db.execute("PRAGMA integrity_check(1)").fetchone()
            if problem != "ok":
                raise self._damaged(" ".join(problem.split()))
            last = self._fact("round") or 0
            if not isinstance(last, int):
                raise self._damaged("its last round is not a number")
            if last < round_num:
                raise RunError(
                    f"{self._path} has client states up to round {last} only, but the "
                    f"checkpoint is of round {round_num}; restore the file, or choose another "
                    "--experiment_name."
                )
            self._sum, broken = self._sum_as_of(round_num)
            if broken is not None:
                raise self._damaged(f"the state of client {broken!r} has changed")
            if checksum is not None and self._checksum() != checksum:
                raise RunError(
                    f"{self._path} does not hold the client states of the "
                    f"checkpoint of round {round_num}; restore the file, or choose another "
                    "--experiment_name."
                )
            with self._transaction():
                self._db.execute("DELETE FROM states WHERE round > ?", [round_num])
                self._db.execute("INSERT OR REPLACE INTO facts VALUES ('round', ?)", [round_num])

    def _sum_as_of(self, round_num):
        """Returns the sum of checksums as of a round, and the first client with a wrong one."""
        rows = self._db.execute(
            "SELECT client, MAX(round), digest, state FROM states WHERE round <= ? GROUP BY client",
            [round_num],
        )
        total = 0
        for client, of_round, digest, state in rows:
            if not isinstance(state, bytes) or digest != _digest(client, of_round, state):
                return 0, client
            total += int.from_bytes(digest)
        return total % _MODULUS, None

    def _checksum(self) -> str:
        return f"{self._sum:064x}"

    def read(self, clients: Iterable[str]) -> StackedStates:
        """Returns the clients' states, stacked: NumPy arrays `[clients, ...]`, to be read only."""
        clients = list(clients)
        read = [
            eager_tensors.empty((len(clients), *leaf.shape), leaf.dtype) for leaf in self._leaves
        ]
        known = [k for k, client in enumerate(clients) if client in self._recent]
        rows = [self._recent[clients[k]] for k in known]
        for values, of_rows in zip(read, self._rows, strict=True):
            values[known] = of_rows[rows]
        for k in known:
            self._recent.move_to_end(clients[k])
        for k in sorted(set(range(len(clients))).difference(known)):
            leaves = self._from_file(clients[k])
            for values, leaf in zip(read, leaves, strict=True):
                values[k] = leaf
            self._remember(clients[k], leaves)
        return StackedStates(tf.nest.pack_sequence_as(self._initial, read))

    def slices(self, clients: Sequence[str]) -> "Slices":
        """Returns a lazy form of `read`: slicing it reads the states of those clients."""
        return Slices(self, clients)

    def _from_file(self, client):
        with self._explained():
            row = self._db.execute(
                "SELECT state FROM states WHERE client = ? ORDER BY round DESC LIMIT 1", [client]
            ).fetchone()
        return self._leaves if row is None else self._decode(row[0])

    def write(self, states: Mapping[str, Any], round_num: int) -> None:
        """Stores states of clients as of a round; `round_num` must not decrease between calls."""
        self.take(list(states), states.values(), round_num)

    def take(self, clients: Sequence[str], states: Iterable[Any], round_num: int) -> None:
        """As `write`, for clients and states that are given separately, in the same order."""
        known = all(client in self._recent for client in clients)
        if not known or not isinstance(states, StackedStates):
            for client, state in zip(clients, states, strict=True):
                self._unwritten[client] = round_num
                self._remember(client, tf.nest.flatten(state))
            return
        leaves = tf.nest.flatten(states.stacked)
        rows = [self._recent[client] for client in clients]
        for of_rows, values in zip(self._rows, leaves, strict=True):
            of_rows[rows] = values
        for client in clients:
            self._unwritten[client] = round_num
            self._recent.move_to_end(client)

    def _remember(self, client, leaves):
        if client not in self._recent:
            self._recent[client] = self._free.pop() if self._free else self._new_row()
        for of_rows, leaf in zip(self._rows, leaves, strict=True):
            of_rows[self._recent[client]] = leaf
        self._recent.move_to_end(client)
        if len(self._recent) > max(1, self._capacity):
            if any(c in self._unwritten for c in self._oldest()):
                self._write_out()
            for c in self._oldest():
                self._free.append(self._recent.pop(c))

    def _new_row(self) -> int:
        """Returns a free row after enlarging the arrays."""
        number = len(self._rows[0])
        more = min(2 * number + 1, max(1, self._capacity) + 1)
        for of_rows in self._rows:
            # No other object refers to these arrays, so reallocation is safe.
            of_rows.resize((more, *of_rows.shape[1:]), refcheck=False)
        self._free.extend(range(more - 1, number, -1))
        return number

    def _oldest(self) -> list[str]:
        """Returns the clients to evict: many at a time, so that states are written in batches."""
        number = len(self._recent) - max(1, self._capacity) + self._capacity // 4
        return [c for c, _ in zip(self._recent, range(number), strict=False)]

    def _write_out(self):
        total = self._sum
        newest = "SELECT digest FROM states WHERE client = ? ORDER BY round DESC LIMIT 1"
        with self._explained(), self._transaction():
            for client, round_num in self._unwritten.items():
                row = self._recent[client]
                state = b"".join(of_rows[row].tobytes() for of_rows in self._rows)
                digest = _digest(client, round_num, state)
                before = self._db.execute(newest, [client]).fetchone()
                total += int.from_bytes(digest) - int.from_bytes(before[0] if before else b"")
                self._db.execute(
                    "INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?)",
                    [client, round_num, digest, state],
                )
        self._sum = total % _MODULUS
        self._unwritten.clear()

    @contextlib.contextmanager
    def _transaction(self):
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # SQLite rolls back by itself on some errors, such as a full disk.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def commit(self, round_num: int) -> str:
        """Commits all states to disk; to be called before the round's checkpoint is written.

        Returns:
          The checksum of all states as of the round, for the checkpoint.
        """
        self._write_out()
        with self._explained():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES ('round', ?)", [round_num])
        return self._checksum()

    def forget_before(self, round_num: int) -> None:
        """Removes versions that only checkpoints of earlier rounds would need."""
        with self._explained():
            self._db.execute(
                "DELETE FROM states WHERE round < (SELECT MAX(round) FROM states AS newer "
                "WHERE newer.client = states.client AND newer.round <= ?)",
                [round_num],
            )

    def _decode(self, content: bytes) -> list[np.ndarray]:
        values, start = [], 0
        for like in self._leaves:
            values.append(np.frombuffer(content, like.dtype, like.size, start).reshape(like.shape))
            start += like.nbytes
        return values

    def close(self) -> None:
        """Closes the file. States that were not committed are lost."""
        self._db.close()


class Slices:
    """The states of clients, read slice by slice."""

    def __init__(self, states: ClientStates, clients: Sequence[str]):
        """Initialises for these clients."""
        self._states, self._clients = states, clients

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, part: slice) -> StackedStates:
        """Returns the states of some of the clients, see `ClientStates.read`."""
        return self._states.read(self._clients[part])


def _digest(client: str, round_num: int, state: bytes) -> bytes:
    digest = hashlib.sha256(f"{round_num} {client}\0".encode())
    digest.update(state)
    return digest.digest()


def read_all(path: str) -> dict[str, dict[str, np.ndarray]]:
    """Reads the newest states in a file; it does not need the method.

    Args:
      path: The file of a run, which may still be in progress.

    Returns:
      Client id → name of a part of its state → array. The name of the first array of field `m` is
      `kept/m/0`, for example.

    Raises:
      RunError: If the file does not exist, is damaged or is not a file of client states.
    """
    if not os.path.exists(path):
        raise RunError(f"There is no {path}: this run's clients keep no state.")
    newest = "SELECT client, state, MAX(round) FROM states GROUP BY client ORDER BY client"
    try:
        address = f"{pathlib.Path(path).absolute().as_uri()}?mode=ro"
        with (
            contextlib.closing(sqlite3.connect(address, uri=True)) as connection,
            # Closed explicitly: an error's traceback would keep it, and so the file's lock, alive.
            contextlib.closing(connection.cursor()) as db,
        ):
            row = db.execute("SELECT value FROM facts WHERE name = 'layout'").fetchone()
            rows = db.execute(newest).fetchall()
        if row is None:
            raise ValueError("it does not name the parts of a state")
        layout = json.loads(row[0])
        return {client: _laid_out(content, layout) for client, content, _ in rows}
    except Exception as e:  # It is not documented what damaged content can raise.
        reason = " ".join(str(e).split())
        raise RunError(f"{path} cannot be read: {reason or type(e).__name__}.") from e


def _laid_out(content, layout):
    state, start = {}, 0
    for name, shape, dtype in layout:
        values = np.frombuffer(content, dtype, math.prod(shape), start)
        state[name] = values.reshape(shape)
        start += values.nbytes
    return state


def _named(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a structure with their names, in the order of `tf.nest.flatten`."""
    parts: Iterable[tuple[Any, Any]]
    if isinstance(state, Mapping):
        parts = sorted(state.items())
    elif isinstance(state, tuple | list):
        parts = zip(getattr(state, "_fields", range(len(state))), state, strict=True)
    else:
        yield name, state
        return
    for key, part in parts:
        yield from _named(part, f"{name}/{key}" if name else str(key))
