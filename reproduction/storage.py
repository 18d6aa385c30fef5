"""A run's folder and its copy in a folder or at an fsspec URL (s3://, gs://, file://, ...).

A run can be gone on from its copy whenever the copying stopped. What is copied belongs together: a
checkpoint, the clients' states that were there at the same time, and a table with rows at least as
far. Everything new is brought there under other names first; a list of it says that it is whole,
and from then on it counts, also before it is renamed. Only then what no longer exists is removed.
"""

import contextlib
import json
import os
import pathlib
import posixpath
import shutil
import sqlite3
import tempfile
from typing import BinaryIO

import fsspec
from fsspec.implementations import local

from reproduction.items import ReproduceError
from tff_suite import writing

# What is not worth copying: held only while a run works, or made from other files.
_LOCAL = (".lock", "tensorboard")
_EVENTS = "events.out.tfevents."
_STATE = "checkpoints"
_DATABASE = ".sqlite"
_PART = ".part"
# Names of what a copy has under other names, once that is whole.
_LIST = ".copied.part"
# How often a run may remove all checkpoints that were found while its database is read.
_TRIES = 10


def join(url: str, *parts: str) -> str:
    """Returns the address of something within a folder or URL."""
    return posixpath.join(str(url), *parts)


@contextlib.contextmanager
def _told(url):
    """Turns whatever a storage's client raises into one line for the user."""
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
    """Opens the files of a run that may be under way, as they belong together.

    Returns:
      Name → file, closed with the stack; empty if its checkpoints change faster than they are read.
    """
    for _ in range(_TRIES):
        names = _files(folder)
        states = [name for name in names if name.startswith(_STATE)]
        # A database has what goes with each checkpoint that is there before it is read and after.
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
        # What is removed meanwhile is an old checkpoint, or the results of a run that goes on.
        with contextlib.suppress(FileNotFoundError):
            opened[name] = stack.enter_context((folder / name).open("rb"))
    return opened


def _backup(path, stack):
    """Opens a copy of a database, which may be in use, as it is between two transactions."""
    copy = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), path.name)
    with (
        contextlib.closing(sqlite3.connect(path)) as source,
        contextlib.closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    return stack.enter_context(open(copy, "rb"))


def push(folder: str | os.PathLike, url: str) -> None:
    """Brings the copy at `url` up to date with a run's folder.

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
    """Writes a file of the copy; in a local folder, what lies there may be a link."""
    if isinstance(system, local.LocalFileSystem):
        writing.write_new(target, content)
    else:
        system.pipe_file(target, content)


def _rename(system, root):
    """Gives what a push has brought the names that it is to have, if that is whole."""
    for name in _listed(system, root):
        target = posixpath.join(root, name)
        if system.exists(target + _PART):
            system.mv(target + _PART, target)
    if system.exists(posixpath.join(root, _LIST)):
        system.rm_file(posixpath.join(root, _LIST))


def _listed(system, root) -> list[str]:
    """Returns the names of what is whole under other names."""
    try:
        return json.loads(system.cat_file(posixpath.join(root, _LIST)))
    except (FileNotFoundError, ValueError):  # ValueError: its writing was interrupted.
        return []


def set_aside(url: str) -> None:
    """Moves the copy of a run beside, where another run takes its place; does nothing without one.

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
    """Brings a run's folder up to date with its copy; does nothing if there is none.

    Args:
      url: Folder or URL of the copy.
      folder: The run's folder.
      results_only: Whether to leave out the states, from which only a run resumes.

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
            # Of a run that this machine began and another resumed: its own files are older.
            shutil.rmtree(folder / _STATE, ignore_errors=True)
            for path in folder.glob(f"*{_DATABASE}*"):
                path.unlink()
        elif any((folder / _STATE).glob("*")):
            return  # The copy is of the run's start, before its first checkpoint.
    for name, target in found.items():
        if results_only and (name.startswith(_STATE) or name.endswith(_DATABASE)):
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writing.write_atomically(path, system.cat_file(target))
