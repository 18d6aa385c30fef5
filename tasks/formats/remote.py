"""Data at an fsspec address (s3://, gs://, hf://, ...): a copy of its folder on this machine.

Readers need files, because they map them into memory and open databases. So the whole folder is
copied once into the user's cache. The copy's name derives from the address and from what the store
reports of each file: path, size, and checksum or modification time. If the content at the address
changes, a new copy is made.
"""

import contextlib
import hashlib
import json
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from tasks import fingerprint
from tasks.formats import files
from tasks.task import DataError

# What stores call that by which one sees that a file is another one.
_VERSION = (
    *("ETag", "etag", "md5Hash", "md5", "sha", "sha256", "checksum", "content_md5", "blob_id"),
    *("LastModified", "last_modified", "updated", "mtime", "modified", "created"),
)


def is_address(path: str) -> bool:
    """Returns whether a path is an address, such as `s3://bucket/folder`."""
    return "://" in path or "::" in path


def folder(address: str, flag: str) -> str:
    """Returns a local folder with the content of the folder at an address.

    Args:
      address: An address, or a path, which is returned unchanged.
      flag: Name of the flag that gave it, for error messages.

    Raises:
      DataError: If the folder does not exist or cannot be read, or the disk has no space for a
        copy.
    """
    if not is_address(address):
        return address
    with _reached(address, flag) as (system, root):
        import fsspec

        if isinstance(system, fsspec.implementations.local.LocalFileSystem):
            return root
        return _copy(address, system, root)


def names(address: str, flag: str) -> list[str]:
    """Returns the paths of all files below an address, without copying anything.

    Args:
      address: An address.
      flag: Name of the flag that gave it, for error messages.

    Raises:
      DataError: If the folder does not exist or cannot be read.
    """
    with _reached(address, flag) as (system, root):
        return list(_listing(system, root))


@contextlib.contextmanager
def _reached(address: str, flag: str) -> Iterator[Any]:
    """Yields the file system of an address and the path there.

    Raises:
      DataError: In place of any exception raised inside.
    """
    try:
        import fsspec  # Which would make the start of every run slower.

        yield fsspec.core.url_to_fs(address)
    except DataError as error:
        raise DataError(f"{flag}={address} {error}") from error
    except Exception as error:  # What a store's client raises is documented nowhere.
        reason = files.reason_of(error)
        raise DataError(f"{flag}={address} cannot be read ({reason})") from error


def _copy(address: str, system: Any, root: str) -> str:
    """Returns the path of the copy, making it if needed."""
    import filelock

    listing = _listing(system, root)
    of_address = hashlib.sha256(address.encode()).hexdigest()[:16]
    content = hashlib.sha256(json.dumps(sorted(map(_said, listing.values()))).encode())
    parent = fingerprint.cache_folder() / "data" / of_address
    parent.mkdir(parents=True, exist_ok=True)
    copy = parent / content.hexdigest()[:16]
    # Workers of one machine ask for the same copy at the same time.
    with filelock.FileLock(f"{copy}.lock"):
        if not copy.is_dir():
            part = tempfile.mkdtemp(dir=parent, prefix="part-")
            try:
                for name, info in listing.items():
                    _fetch(system, info, os.path.join(part, name))
                os.rename(part, copy)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    return str(copy)


def _listing(system: Any, root: str) -> dict[str, Mapping[str, Any]]:
    """Returns what the store reports of each file, by path below the folder.

    Raises:
      DataError: If the folder does not exist, or is a file.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for path, info in sorted(system.find(root, detail=True).items()):
        name = posixpath.relpath(path, root.rstrip("/") or "/")
        if name == "." or name.startswith("..") or posixpath.isabs(name):
            raise DataError("is not a folder")
        found[name] = {**info, "name_below": name, "name": path}
    if not found:
        raise DataError("has no files; name the folder with the task's data")
    return found


def _said(info: Mapping[str, Any]) -> list[str]:
    return [info["name_below"], str(info.get("size")), *(str(info.get(k)) for k in _VERSION)]


def _fetch(system: Any, info: Mapping[str, Any], target: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    system.get_file(info["name"], target)
    size, found = info.get("size"), os.path.getsize(target)
    if size is not None and size != found:
        raise OSError(f"{info['name_below']} came incomplete: {found:,} of {size:,} bytes")
