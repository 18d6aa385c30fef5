"""A run's folder and its copy in a folder or at an fsspec URL (s3://, gs://, file://, ...).

A copy can be gone on from whenever the copying stopped: everything new is brought there under
other names first, then renamed, the rounds' table and clients' states before the checkpoints that
rely on them, and only then what no longer exists is removed.
"""

import contextlib
import os
import pathlib
import posixpath
import shutil
import sqlite3
import tempfile

import fsspec

from reproduction.items import ReproduceError

_TABLE = "metrics.csv"
# What is not worth copying: held only while a run works, or made from other files.
_LOCAL = (".lock", "tensorboard")
_EVENTS = "events.out.tfevents."
_STATE = "checkpoints"
_DATABASE = ".sqlite"
_PART = ".part"


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


def _place(name):
    """Orders what is copied: the table, databases, the rest, checkpoints last."""
    if name == _TABLE:
        return 0, name
    if name.endswith(_DATABASE):
        return 1, name
    return (3 if name.startswith(_STATE) else 2), name


def _read(path: pathlib.Path) -> bytes:
    """Reads a file; a database in use is read as it is between two transactions."""
    if not path.name.endswith(_DATABASE):
        return path.read_bytes()
    if not path.exists():
        raise FileNotFoundError(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, path.name)
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        return pathlib.Path(copy).read_bytes()


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
    # Listed before anything else is copied, so that the table's rows and the database's states
    # reach at least to these checkpoints.
    names = sorted(_files(folder), key=_place)
    copied = []
    for name in names:
        target = posixpath.join(root, name)
        if name.startswith(_STATE) and system.exists(target):
            continue  # Checkpoints are never changed.
        try:
            content = _read(folder / name)
        except FileNotFoundError:
            continue  # An old checkpoint, removed meanwhile.
        system.makedirs(posixpath.dirname(target), exist_ok=True)
        system.pipe_file(target + _PART, content)
        copied.append(target)
    for target in copied:
        system.mv(target + _PART, target)
    for target in system.find(root):
        name = posixpath.relpath(target, root)
        if name not in names and not (folder / name).exists():
            system.rm_file(target)


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
    # Of a run that this machine began and another resumed: its own files are older.
    if not results_only and any(name.startswith(_STATE) for name in found):
        shutil.rmtree(folder / _STATE, ignore_errors=True)
        for path in folder.glob(f"*{_DATABASE}*"):
            path.unlink()
    for name, target in found.items():
        if name.endswith(_PART):
            continue
        if results_only and (name.startswith(_STATE) or name.endswith(_DATABASE)):
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + _PART)
        part.write_bytes(system.cat_file(target))
        os.replace(part, path)
