"""Digests of a task's data, by which a resumed run recognises the data it began with.

Data in memory is read byte by byte. Files that are read again for every access (databases, memory
maps) are digested as a whole, and their digests are cached. A file with the path, size,
modification time and inode of its cache entry is trusted to be unchanged.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks import task as task_lib
from tasks.task import DataError, FederatedData, Task
from tff_suite import memory

_DATABASE = "file_digests.sqlite"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS digests (
  path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, inode INTEGER, sha256 TEXT
)
"""
# Bytes of an array that are looked at together.
_CHUNK = 1 << 22
# With more files than these, those of a folder have one digest.
_MANY_FILES = 100
# What a damaged database raises; the second where SQLite's own message quotes what is no text.
_DAMAGE = (sqlite3.Error, UnicodeDecodeError)
# A file system may give two changes within this time one time of change.
_YOUNG_NS = 2_000_000_000


def of_task(
    task: Task, trust_cache: bool = True, held: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the digests of all data that a run's numbers depend on.

    Args:
      task: The task.
      trust_cache: Whether to skip reading files that look unchanged.
      held: What `in_memory` returned for the task, if known.

    Returns:
      Description → digest: each client with data in memory, the list of clients with their sizes,
      the central test, constants and files.

    Raises:
      DataError: If a file cannot be read.
    """
    held = in_memory(task) if held is None else held
    parts = [getattr(task, part) for part in _PARTS]
    holders = [*(data for data in parts if data is not None), *_arrays(task).values()]
    files = {path for holder in holders for path in task_lib.files(holder)}
    # Files first, as differences are reported in this order: a changed file explains others.
    digests = _of_files(sorted(files), trust_cache) | dict(held)
    return digests | _of_tasks_files(task.files, trust_cache)


def in_memory(task: Task) -> dict[str, str]:
    """Returns the digests of what a task holds in memory, part of what `of_task` returns."""
    digests = {}
    for part in _PARTS:
        data = getattr(task, part)
        if data is not None:
            digests |= _of_clients(data, part)
    for name, array in _arrays(task).items():
        in_files = task_lib.files(array)
        digests[name] = _digest(task_lib.place_in_files(array) if in_files else [array])
    return digests


_PARTS = ("train", "test", "validation")


def _arrays(task: Task) -> dict[str, Any]:
    """Returns the arrays of a task that belong to no client."""
    arrays = dict(task.constants)
    if task.central_test is not None:
        arrays |= {"x of the central test": task.central_test.x}
        arrays |= {"y of the central test": task.central_test.y}
    return arrays


def _of_tasks_files(paths: Any, trust_cache: bool) -> dict[str, str]:
    """Returns the digests of the files that a task's code reads itself, by name."""
    paths = [paths] if isinstance(paths, str | os.PathLike) else paths
    paths = sorted({os.path.abspath(path) for path in paths})
    names = [os.path.basename(path) for path in paths]
    if len(set(names)) < len(names):
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        names = [os.path.relpath(path, root) for path in paths]
    digests = _digests_of(paths, trust_cache)
    return {f"the task's file {n}": d for n, d in zip(names, digests, strict=True)}


def whole(digests: Mapping[str, str]) -> str:
    """Returns one digest of all given digests."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the descriptions of what differs."""
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if before.get(name) != now.get(name)]


def _of_clients(data: FederatedData, part: str) -> dict[str, str]:
    digests = {}
    for index, client in enumerate(data.client_ids):
        arrays = task_lib.held_in_memory(data, index)
        if len(arrays):
            digests[f"client {client!r} of {part}"] = _digest(arrays)
    clients = json.dumps([list(map(str, data.client_ids)), np.asarray(data.sizes).tolist()])
    digests[f"the list of clients of {part}"] = _short(hashlib.sha256(clients.encode()))
    return digests


def _digest(arrays: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        array = array if hasattr(array, "shape") else np.asarray(array)
        digest.update(f"{np.dtype(array.dtype).str}{tuple(array.shape)}".encode())
        if not array.shape:
            digest.update(np.asarray(array).tobytes())
            continue
        row = max(1, memory.size_of(array.shape[1:], np.dtype(array.dtype)))
        rows = max(1, _CHUNK // row)
        for start in range(0, array.shape[0], rows):
            part = np.asarray(array[start : start + rows])
            # Bytes of an array of objects would be their addresses.
            digest.update(repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes())
    return _short(digest)


def _short(digest: Any) -> str:
    """Returns 64 bits of a digest: enough to notice damage among a hundred thousand clients."""
    return digest.hexdigest()[:16]


def _of_files(paths: Sequence[str], trust_cache: bool) -> dict[str, str]:
    if not paths:
        return {}
    root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])
    # Names do not hold where the data lie, so that they may be moved.
    names = [os.path.relpath(os.path.abspath(path), root) for path in paths]
    digests = _digests_of(paths, trust_cache)
    if len(paths) <= _MANY_FILES:
        return {f"file {name}": digest for name, digest in zip(names, digests, strict=True)}
    folders = {}
    for name, digest in zip(names, digests, strict=True):
        folders.setdefault(f"files of folder {os.path.dirname(name) or '.'}", {})[name] = digest
    return {folder: whole(own) for folder, own in folders.items()}


def _digests_of(paths: Iterable[str], trust_cache: bool) -> list[str]:
    with _Cache() as cache:
        try:
            return [cache.digest(path, trust_cache) for path in paths]
        except OSError as e:
            raise DataError(f"{e.filename} cannot be read: {e.strerror or e}.") from e


def cache_folder() -> pathlib.Path:
    """Returns the suite's folder in the user's cache, which may not exist yet."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(folder, "tff_algos")


def cache_path() -> pathlib.Path:
    """Returns the path of the cache of files' digests."""
    return cache_folder() / _DATABASE


class _Cache:
    """The cache of digests, a context manager. If it cannot be read or written, it stays unused."""

    def __enter__(self) -> "_Cache":
        self._new = []
        self._db = None
        try:
            path = cache_path()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute(_SCHEMA)
        except (OSError, *_DAMAGE):
            self._close()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._db is not None and self._new:
            with contextlib.suppress(*_DAMAGE):
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(
                    "INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", self._new
                )
                self._db.execute("COMMIT")
        self._close()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def digest(self, path: str, trust: bool) -> str:
        """Returns the SHA-256 of a file.

        Raises:
          OSError: If it cannot be read.
        """
        path = os.path.realpath(path)
        with open(path, "rb") as file:
            key = self._key(file)
            known = self._known(path) if trust else None
            if known is not None and known[:3] == key and isinstance(known[3], str):
                return known[3]
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            # A file that changes while it is read, or just did, may look the same afterwards.
            if self._key(file) == key and key[1] < time.time_ns() - _YOUNG_NS:
                self._new.append((path, *key, sha256))
        return sha256

    def _known(self, path: str) -> Any:
        if self._db is None:
            return None
        select = "SELECT size, mtime_ns, inode, sha256 FROM digests WHERE path = ?"
        try:
            return self._db.execute(select, [path]).fetchone()
        except _DAMAGE:
            self._close()
            return None

    def _key(self, file: Any) -> Any:
        status = os.fstat(file.fileno())
        return status.st_size, status.st_mtime_ns, status.st_ino
