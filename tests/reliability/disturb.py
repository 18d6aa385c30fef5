"""What a run under test is disturbed with: done in its process before it starts, by tests only."""

import builtins
import datetime
import inspect
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

# What changes a folder; shutil.rmtree, tempfile and pathlib end in these.
_CHANGES = ("fsync", "mkdir", "remove", "rename", "replace", "rmdir", "truncate", "unlink")
_STATEMENTS = ("BEGIN", "COMMIT", "CREATE", "DELETE", "DROP", "INSERT", "UPDATE", "VACUUM")


def tell_rounds(sender: connection.Connection) -> None:
    """Sends the number of every round whose row was written."""
    from simulation.records import metrics_csv

    original = metrics_csv.MetricsCsv.append

    def append(self, round_num, *args, **kwargs):
        original(self, round_num, *args, **kwargs)
        sender.send(round_num)

    metrics_csv.MetricsCsv.append = append


def stop_at_round(number: int) -> None:
    """Stops the process once, as Ctrl-Z does, when the row of a round or a later one is written."""
    from simulation.records import metrics_csv

    original, stopped = metrics_csv.MetricsCsv.append, []

    def append(self, round_num, *args, **kwargs):
        original(self, round_num, *args, **kwargs)
        if round_num >= number and not stopped:
            stopped.append(round_num)
            os.kill(os.getpid(), signal.SIGSTOP)

    metrics_csv.MetricsCsv.append = append


def keep_states_in_memory(clients: int) -> None:
    """Leaves room for the states of so few clients that the others go to the file."""
    from simulation.records import client_states

    original = client_states.ClientStates.__init__
    signature = inspect.signature(original)

    def init(self, *args, **kwargs):
        import numpy as np
        import tensorflow as tf

        bound = signature.bind(self, *args, **kwargs)
        leaves = tf.nest.flatten(bound.arguments["initial"])
        size = sum(np.asarray(leaf).nbytes for leaf in leaves)
        bound.arguments["memory_bytes"] = clients * size
        original(*bound.args, **bound.kwargs)

    client_states.ClientStates.__init__ = init


# Exact kill points.


def list_points(folder: str, path: str) -> None:
    """Writes the name of every change of a folder, as the run makes them, to a file."""
    log = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def visit(name, change, partly):
        print(name, file=log, flush=True)
        return change()

    _watch(folder, visit)


def kill_at_point(folder: str, number: int, when: str) -> None:
    """Kills the process at its `number`-th change of a folder, from 0.

    Args:
      folder: The folder.
      number: Which change.
      when: `before` it, or `after` it; of what is written to a file, `after` the first half.
    """
    seen = iter(range(sys.maxsize))

    def visit(name, change, partly):
        here = next(seen) == number
        if here and when == "before":
            _kill()
        try:
            return partly() if here and partly else change()
        finally:  # Also after a change that fails, such as a folder that there is already.
            if here:
                _kill()

    _watch(folder, visit)


def _kill():
    os.kill(os.getpid(), signal.SIGKILL)


def fill_disk(folder: str, size: int) -> None:
    """Has no more room than `size` bytes for what is written to files of a folder from now on."""
    left = [size]

    def visit(name, change, partly):
        if name.startswith("write "):
            left[0] -= int(name.split()[1])
            if left[0] < 0:
                partly()
                raise OSError(28, os.strerror(28), name.split(maxsplit=2)[2])
        return change()

    def connected(database):
        page = database.execute("PRAGMA page_size").fetchone()[0]
        database.execute(f"PRAGMA max_page_count = {max(1, left[0] // page)}")

    _watch(folder, visit, connected)


def _watch(
    folder: str,
    visit: Callable[[str, Callable[[], Any], Callable[[], Any] | None], Any],
    connected: Callable[[sqlite3.Connection], None] = lambda database: None,
) -> None:
    """Has every change of a folder made by a function.

    Args:
      folder: The folder; changes outside go their way.
      visit: Name of the change, what makes it, what makes the first half of it if that can be →
        what the former returns.
      connected: Takes every database that was opened.
    """
    folder = os.path.abspath(folder)

    def place(path, dir_fd=None):
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        elif dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), os.fsdecode(path))
        path = os.path.abspath(os.fsdecode(path))
        return os.path.relpath(path, folder) if (path + "/").startswith(folder + "/") else None

    def wrapped(name):
        original = getattr(os, name)

        def call(path, *args, **kwargs):
            where = place(path, kwargs.get("dir_fd"))
            if where is None:
                return original(path, *args, **kwargs)
            return visit(f"{name} {where}", lambda: original(path, *args, **kwargs), None)

        setattr(os, name, call)

    for name in _CHANGES:
        wrapped(name)

    opening = builtins.open

    def opened(file, mode="r", *args, **kwargs):
        result = opening(file, mode, *args, **kwargs)
        where = None if isinstance(file, int) else place(file)
        return _File(result, where, visit) if where and set(mode) & set("wax+") else result

    builtins.open = opened

    class Database(sqlite3.Connection):
        def _visit(self, method, sql, *args):
            change = lambda: getattr(sqlite3.Connection, method)(self, sql, *args)  # noqa: E731
            if not sql.split()[0].upper().startswith(_STATEMENTS):
                return change()
            return visit(f"sqlite {' '.join(sql.split())[:40]}", change, None)

        def execute(self, sql, *args):
            return self._visit("execute", sql, *args)

        def executemany(self, sql, *args):
            return self._visit("executemany", sql, *args)

        def executescript(self, sql):
            return self._visit("executescript", sql)

    connecting = sqlite3.connect

    def connect(*args, **kwargs):
        database = connecting(*args, factory=Database, **kwargs)
        connected(database)
        return database

    sqlite3.connect = connect


class _File:
    """A file whose writes are visited."""

    def __init__(self, file, where, visit):
        self._file, self._where, self._visit = file, where, visit

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *exception):
        return self._file.__exit__(*exception)

    def write(self, content):
        def partly():
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        name = f"write {len(content)} {self._where}"
        return self._visit(name, lambda: self._file.write(content), partly)


# The world around a run.


def jump_clock(seed: int) -> None:
    """Has the wall clock jump by up to years, back and forth, whenever it is read."""
    # Its compiled part looks for the class that is replaced below while it is imported, for ever;
    # scikit-learn imports it in the middle of a run.
    import pandas  # noqa: F401

    draws = random.Random(seed)
    years = 365 * 86400.0

    def jumped(now):
        return max(0.0, now + draws.choice((0.0, 1.0, 3600.0, years)) * draws.uniform(-20, 20))

    original = time.time

    def read():
        # gRPC hands times to its C code, whose clock does not jump along.
        reader = sys._getframe(1).f_globals.get("__name__", "")
        return original() if reader.startswith("grpc") else jumped(original())

    time.time = read
    time.time_ns = lambda: int(1e9 * jumped(original()))

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)

    datetime.datetime = Jumping


def use_cores(cores: list[int]) -> None:
    """Keeps the process, and what it starts, to some cores."""
    os.sched_setaffinity(0, cores)


def ignore(number: int) -> None:
    """Ignores a signal, as `nohup` has its command ignore SIGHUP."""
    signal.signal(number, signal.SIG_IGN)


def tell_memory(path: str, every: int) -> None:
    """Writes a line of round and resident bytes of the process to a file, every so many rounds."""
    from simulation.records import metrics_csv

    original = metrics_csv.MetricsCsv.append
    page = os.sysconf("SC_PAGE_SIZE")

    def append(self, round_num, *args, **kwargs):
        original(self, round_num, *args, **kwargs)
        if round_num % every == 0:
            with open("/proc/self/statm") as statm, open(path, "a") as log:
                print(round_num, int(statm.read().split()[1]) * page, file=log)

    metrics_csv.MetricsCsv.append = append
