"""What each client keeps between rounds: in memory up to a size, in a SQLite file beyond it.

The file holds versions: the state of a client as of a round. A checkpoint after round r goes with
the newest version of each client that is not later than r. So nothing has to happen at once: states
are committed before the checkpoint is written, versions later than the checkpoint that a run goes
on from are removed when it does, and versions that no kept checkpoint needs after one is written.
Whenever the process is killed, one of the checkpoints and the states that belong to it are there.

Each row has a digest of its own, and a checkpoint the sum of the digests of the states that go with
it: a sum can be kept up to date client by client, and does not depend on the order of clients. The
file also has the id of its run.
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
# How long to wait for somebody who reads the file, such as `read_all` or a copy of the run.
_SECONDS_FOR_READERS = 600.0


class ClientStates:
    """The states of all clients of a run, by client id."""

    def __init__(self, path: str, initial: Any, memory_bytes: int, run_id: str = ""):
        """Opens the file, or makes it.

        Args:
          path: The file.
          initial: State of a client that was in no round yet: a structure of NumPy arrays, whose
            shapes and dtypes all states have.
          memory_bytes: Up to this size states are kept in memory.
          run_id: The run that the file belongs to.

        Raises:
          RunError: If the file is damaged, of another run or holds states of another form.
          OSError: If it cannot be read or written.
        """
        self._path = path
        self._initial = initial
        self._leaves = [np.asarray(leaf) for leaf in tf.nest.flatten(initial)]
        self._capacity = memory_bytes // max(1, memory.nbytes(self._leaves))
        # In the order of use: which of the rows has a client's state. A client that is in neither
        # has its newest state in the file, if any.
        self._recent: collections.OrderedDict[str, int] = collections.OrderedDict()
        self._unwritten: dict[str, int] = {}
        self._rows = [np.empty((0, *leaf.shape), leaf.dtype) for leaf in self._leaves]
        self._free: list[int] = []
        # Sum of the digests of each client's newest row.
        self._sum = 0
        if os.path.islink(path):
            # SQLite would write to what it leads to.
            raise RunError(f"{path} is a link; remove it, or choose another --experiment_name.")
        with self._explained():
            self._db = sqlite3.connect(
                path, timeout=_SECONDS_FOR_READERS, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)
            self._check_run(run_id)
            self._check_form()

    @contextlib.contextmanager
    def _explained(self):
        try:
            yield
        except UnicodeDecodeError as e:
            # SQLite's own message, where it quotes what is damaged.
            raise self._damaged("it has text that is none") from e
        except sqlite3.DatabaseError as e:
            # Without a code it is text that is none; the plain error is of tables and columns that
            # are missing. The others are the system's.
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
            # Left by a first start that was killed before its folder had the run's id.
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
        form = hashlib.sha256(repr([(a.shape, a.dtype.str) for a in self._leaves]).encode())
        form = form.hexdigest()
        self._db.execute("INSERT OR IGNORE INTO facts VALUES ('form', ?)", [form])
        if self._fact("form") != form:
            raise RunError(
                f"{self._path} holds client states of another form than this version of the "
                "algorithm has; choose another --experiment_name."
            )
        layout = [
            [name, leaf.shape, leaf.dtype.str]
            for (name, _), leaf in zip(_named(self._initial), self._leaves, strict=True)
        ]
        layout = json.dumps(layout)
        self._db.execute("INSERT OR IGNORE INTO facts VALUES ('layout', ?)", [layout])
        if self._fact("layout") != layout:
            raise self._damaged("its description of a state is another one")

    def _fact(self, name):
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", [name]).fetchone()
        return row[0] if row else None

    def go_on_from(self, round_num: int, seal: str | None = None) -> None:
        """Goes back to the states as of a checkpoint; 0 is the start, where there are none.

        Args:
          round_num: The checkpoint's round.
          seal: What `commit` returned for it; `None` leaves states unchecked.

        Raises:
          RunError: If the file lacks rounds that the checkpoint has, or holds other states.
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
                raise self._damaged("its last round is no number")
            if last < round_num:
                raise RunError(
                    f"{self._path} has the clients' states up to round {last} only, but the "
                    f"checkpoint is of round {round_num}; restore the file, or choose another "
                    "--experiment_name."
                )
            self._sum, broken = self._sum_as_of(round_num)
            if broken is not None:
                raise self._damaged(f"the state of client {broken!r} is not what was written")
            if seal is not None and self._seal() != seal:
                raise RunError(
                    f"{self._path} does not hold the clients' states that belong to the "
                    f"checkpoint of round {round_num}; restore the file, or choose another "
                    "--experiment_name."
                )
            with self._transaction():
                self._db.execute("DELETE FROM states WHERE round > ?", [round_num])
                self._db.execute("INSERT OR REPLACE INTO facts VALUES ('round', ?)", [round_num])

    def _sum_as_of(self, round_num):
        """Returns the sum of digests as of a round, and a client whose digest is wrong, if any."""
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

    def _seal(self) -> str:
        return f"{self._sum:064x}"

    def read(self, clients: Iterable[str]) -> StackedStates:
        """Returns the state of each client, NumPy arrays not to be written to."""
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
        """Returns what stands for `read`, of which slices are read when they are taken."""
        return Slices(self, clients)

    def _from_file(self, client):
        with self._explained():
            row = self._db.execute(
                "SELECT state FROM states WHERE client = ? ORDER BY round DESC LIMIT 1", [client]
            ).fetchone()
        return self._leaves if row is None else self._decode(row[0])

    def write(self, states: Mapping[str, Any], round_num: int) -> None:
        """Takes the states of clients as of a round; rounds must not go down."""
        self.take(list(states), states.values(), round_num)

    def take(self, clients: Sequence[str], states: Iterable[Any], round_num: int) -> None:
        """Takes the state of each of these clients as of a round, as `write` does."""
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
        """Returns a row that is free, of more rows than there were, as all were taken."""
        number = len(self._rows[0])
        more = min(2 * number + 1, max(1, self._capacity) + 1)
        for of_rows in self._rows:
            # Nobody else sees the rows, so nobody's memory goes.
            of_rows.resize((more, *of_rows.shape[1:]), refcheck=False)
        self._free.extend(range(more - 1, number, -1))
        return number

    def _oldest(self) -> list[str]:
        """Returns whom to forget: a part at a time, so that states are written out in batches."""
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
            # On a full disk SQLite may have rolled back by itself.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def commit(self, round_num: int) -> str:
        """Makes all states safe on disk; to be called before the round's checkpoint is written.

        Returns:
          The seal of all states as of the round, for the checkpoint.
        """
        self._write_out()
        with self._explained():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES ('round', ?)", [round_num])
        return self._seal()

    def forget_before(self, round_num: int) -> None:
        """Removes what only checkpoints of earlier rounds would need."""
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
    """The states of clients, read by slices."""

    def __init__(self, states: ClientStates, clients: Sequence[str]):
        """Initialises for these clients."""
        self._states, self._clients = states, clients

    def __len__(self):
        return len(self._clients)

    def __getitem__(self, part: slice) -> StackedStates:
        """Returns the states of a part, see `ClientStates.read`."""
        return self._states.read(self._clients[part])


def _digest(client: str, round_num: int, state: bytes) -> bytes:
    digest = hashlib.sha256(f"{round_num} {client}\0".encode())
    digest.update(state)
    return digest.digest()


def read_all(path: str) -> dict[str, dict[str, np.ndarray]]:
    """Reads the newest states in a file without knowing the method, e.g. to compare clients.

    Args:
      path: The file of a run, which may still be in progress.

    Returns:
      Client id → name of a part of its state, as `kept/m/0` for the first array of field `m` of
      what it keeps, → array.

    Raises:
      RunError: If there is no such file, or it is damaged or not one of client states.
    """
    if not os.path.exists(path):
        raise RunError(f"There is no {path}: the run's clients keep nothing.")
    newest = "SELECT client, state, MAX(round) FROM states GROUP BY client ORDER BY client"
    try:
        address = f"{pathlib.Path(path).absolute().as_uri()}?mode=ro"
        with (
            contextlib.closing(sqlite3.connect(address, uri=True)) as connection,
            # Closed by itself: an error's traceback keeps it alive, and with it the file's lock.
            contextlib.closing(connection.cursor()) as db,
        ):
            row = db.execute("SELECT value FROM facts WHERE name = 'layout'").fetchone()
            rows = db.execute(newest).fetchall()
        layout = None if row is None else json.loads(row[0])
        if layout is not None:
            return {client: _laid_out(content, layout) for client, content, _ in rows}
    except Exception as e:  # What damaged content raises is documented nowhere.
        reason = " ".join(str(e).split())
        raise RunError(f"{path} cannot be read: {reason or type(e).__name__}.") from e
    raise RunError(f"{path} is of an older version, which did not say what it holds.")


def _laid_out(content, layout):
    state, start = {}, 0
    for name, shape, dtype in layout:
        values = np.frombuffer(content, dtype, math.prod(shape), start)
        state[name] = values.reshape(shape)
        start += values.nbytes
    return state


def _named(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a structure with their names, in the order of `tf.nest.flatten`."""
    if isinstance(state, Mapping):
        parts = sorted(state.items())
    elif isinstance(state, tuple | list):
        parts = zip(getattr(state, "_fields", range(len(state))), state, strict=True)
    else:
        yield name, state
        return
    for key, part in parts:
        yield from _named(part, f"{name}/{key}" if name else str(key))
