"""Copies a run's folder to another folder or an fsspec URL (s3://, gs://, file://, ...) and back.

A run can resume from its copy even if the copying was interrupted. Each copy is consistent: a
checkpoint, the client states from the same time, and a table with at least the checkpoint's rows.
New files are first uploaded under temporary names. Then a list of them is written, which makes the
upload valid. Only then are the files renamed, and files that no longer exist are removed.
"""

import contextlib
import json
import os
import pathlib
import posixpath
import shutil
import sqlite3
import tempfile
from typing import Any, BinaryIO

import fsspec
from fsspec.implementations import local

from reproduction.items import ReproduceError
from tff_suite import writing

# Not copied: the lock, and files that are derived from others.
_LOCAL = (".lock", "tensorboard")
_EVENTS = "events.out.tfevents."
_STATE = "checkpoints"
_DATABASE = ".sqlite"
_PART = ".part"
# Lists the files of a complete upload that still have temporary names.
_LIST = ".copied.part"
# How often to retry if the run removes all checkpoints found while its database is being read.
_TRIES = 10


def join(url: str, *parts: str) -> str:
    """Returns the address of a path within a folder or URL."""
    return posixpath.join(str(url), *parts)


@contextlib.contextmanager
def _told(url):
    """Turns any error of a storage's client into one line for the user."""
    try:
        yield
    except Exception as e:
        reason = getattr(e, "strerror", None) or " ".join(str(e).split()) or type(e).__name__
        raise ReproduceError(f"--storage: {url} cannot be used: {reason}") from e


def _open(url):
    return fsspec.core.url_to_fs(url)


def _files(root: pathlib.Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file()
        and path.relative_to(root).parts[0] not in _LOCAL
        and not path.name.startswith(_EVENTS)
        and not path.name.endswith((".tmp", _PART, "-wal", "-shm", "-journal"))
    )


def _opened(folder: pathlib.Path, stack: contextlib.ExitStack) -> dict[str, BinaryIO]:
    """Opens a consistent set of the files of a run that may be in progress.

    Returns:
      Name → file, closed with the stack; empty if checkpoints change faster than they are read.
    """
    for _ in range(_TRIES):
        names = _files(folder)
        states = [name for name in names if name.startswith(_STATE)]
        # The database holds the states of each checkpoint that exists both before and after it is
        # read.
        databases = {n: _backup(folder / n, stack) for n in names if n.endswith(_DATABASE)}
        kept = _open_all(folder, states, stack)
        if kept or not states:
            break
    else:
        return {}
    others = [name for name in names if name not in states and name not in databases]
    return {**_open_all(folder, others, stack), **databases, **kept}


def _open_all(folder, names, stack):
    opened = {}
    for name in names:
        # Files removed meanwhile are old checkpoints, or results of a run that continues.
        with contextlib.suppress(FileNotFoundError):
            opened[name] = stack.enter_context((folder / name).open("rb"))
    return opened


def _backup(path, stack):
    """Opens a copy of a database that may be in use, as of some moment between transactions."""
    copy = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), path.name)
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return stack.enter_context(open(copy, "rb"))


def push(folder: str | os.PathLike, url: str) -> None:
    """Updates the copy at `url` from a run's folder.

    Args:
      folder: The run's folder.
      url: Folder or URL of its copy.

    Raises:
      ReproduceError: If the storage can't be written.
    """
    with _told(url):
        _push(folder, url)


def _push(folder, url):
    folder = pathlib.Path(folder)
    system, root = _open(url)
    _rename(system, root)
    with contextlib.ExitStack() as stack:
        opened, copied = _opened(folder, stack), []
        for name, file in opened.items():
            target = posixpath.join(root, name)
            if name.startswith(_STATE) and system.exists(target):
                continue  # Checkpoints are never changed.
            system.makedirs(posixpath.dirname(target), exist_ok=True)
            _write(system, target + _PART, file.read())
            copied.append(name)
    if not copied:
        return
    _write(system, posixpath.join(root, _LIST), json.dumps(copied).encode())
    _rename(system, root)
    for target in system.find(root):
        name = posixpath.relpath(target, root)
        if name not in opened and not (folder / name).exists():
            system.rm_file(target)


def _write(system, target, content):
    """Writes a file of the copy; in a local folder, it does not follow a link at the target."""
    if isinstance(system, local.LocalFileSystem):
        writing.write_new(target, content)
    else:
        system.pipe_file(target, content)


def _rename(system, root):
    """Renames the files of a complete upload from their temporary names."""
    for name in _listed(system, root):
        target = posixpath.join(root, name)
        if system.exists(target + _PART):
            system.mv(target + _PART, target)
    if system.exists(posixpath.join(root, _LIST)):
        system.rm_file(posixpath.join(root, _LIST))


def _listed(system: Any, root: str) -> list[str]:
    """Returns the files of a complete upload that still have temporary names."""
    try:
        return json.loads(system.cat_file(posixpath.join(root, _LIST)))
    except (FileNotFoundError, ValueError):  # ValueError: its writing was interrupted.
        return []


def set_aside(url: str) -> None:
    """Renames the copy of a run to make way for a new run; does nothing if there is no copy.

    Args:
      url: Folder or URL of the copy.

    Raises:
      ReproduceError: If the storage can't be written.
    """
    with _told(url):
        system, root = _open(url)
        number = 1
        while system.exists(f"{root}.replaced-{number}"):
            number += 1
        if system.exists(root):
            system.mv(root, f"{root}.replaced-{number}", recursive=True)


def pull(url: str, folder: str | os.PathLike, results_only: bool = False) -> None:
    """Updates a run's folder from its copy; does nothing if there is no copy.

    Args:
      url: Folder or URL of the copy.
      folder: The run's folder.
      results_only: Whether to leave out checkpoints and client states, which only a resuming run
        needs.

    Raises:
      ReproduceError: If the storage can't be read.
    """
    with _told(url):
        _pull(url, folder, results_only)


def _pull(url, folder, results_only):
    folder = pathlib.Path(folder)
    system, root = _open(url)
    if not system.exists(root):
        return
    found = {posixpath.relpath(target, root): target for target in system.find(root)}
    found |= {n: found[n + _PART] for n in _listed(system, root) if n + _PART in found}
    found = {name: target for name, target in found.items() if not name.endswith(_PART)}
    if not results_only:
        if any(name.startswith(_STATE) for name in found):
            # This machine may have begun the run and another resumed it: local files are older.
            shutil.rmtree(folder / _STATE, ignore_errors=True)
            for path in folder.glob(f"*{_DATABASE}*"):
                path.unlink()
        elif any((folder / _STATE).glob("*")):
            return  # The copy is older: it precedes the first checkpoint.
    for name, target in found.items():
        if results_only and (name.startswith(_STATE) or name.endswith(_DATABASE)):
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writing.write_atomically(path, system.cat_file(target))
