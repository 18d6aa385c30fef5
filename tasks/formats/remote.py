"""Data at an fsspec address (s3://, gs://, hf://, ...): a copy of its folder on this machine.

Readers map files into memory and open databases, so they need files. The folder is copied once, as
a whole, into the user's cache, under a name made of the address and of what its store says of each
file (path, size, and checksum or time of change): other content there is another copy.
"""

import contextlib
import hashlib
import json
import os
import posixpath
import shutil
import tempfile
from collections.abc import Mapping
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
    """Returns whether a path is an address, as `s3://bucket/folder` is."""
    return "://" in path or "::" in path


def folder(address: str, flag: str) -> str:
    """Returns a folder of this machine that holds what the one at an address holds.

    Args:
      address: A path, which is returned as it is, or an address.
      flag: Name of the flag that gave it, for error texts.

    Raises:
      DataError: If there is no such folder, it cannot be read, or there is no room for a copy.
    """
    if not is_address(address):
        return address
    with _reached(address, flag) as (system, root):
        import fsspec

        if isinstance(system, fsspec.implementations.local.LocalFileSystem):
            return root
        return _copy(address, system, root)


def names(address: str, flag: str) -> list[str]:
    """Returns the paths of all files below an address, of which nothing is copied.

    Args:
      address: An address.
      flag: Name of the flag that gave it, for error texts.

    Raises:
      DataError: If there is no such folder, or it cannot be read.
    """
    with _reached(address, flag) as (system, root):
        return list(_listing(system, root))


@contextlib.contextmanager
def _reached(address, flag):
    """Yields the file system of an address and the path there.

    Raises:
      DataError: In place of all that is raised meanwhile.
    """
    try:
        import fsspec  # Which would make the start of every run slower.

        yield fsspec.core.url_to_fs(address)
    except DataError as error:
        raise DataError(f"{flag}={address} {error}") from error
    except Exception as error:  # What a store's client raises is documented nowhere.
        reason = files.reason_of(error)
        raise DataError(f"{flag}={address} cannot be read ({reason})") from error


def _copy(address, system, root) -> str:
    """Returns the copy, which is made if it is not there."""
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


def _listing(system, root) -> dict[str, Mapping[str, Any]]:
    """Returns what the store says of each file, by path below the folder.

    Raises:
      DataError: If there is none, or it is a file.
    """
    found = {}
    for path, info in sorted(system.find(root, detail=True).items()):
        name = posixpath.relpath(path, root.rstrip("/") or "/")
        if name == "." or name.startswith("..") or posixpath.isabs(name):
            raise DataError("is not a folder")
        found[name] = {**info, "name_below": name, "name": path}
    if not found:
        raise DataError("has no file; name a folder that has the task's")
    return found


def _said(info) -> list[str]:
    return [info["name_below"], str(info.get("size")), *(str(info.get(k)) for k in _VERSION)]


def _fetch(system, info, target) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    system.get_file(info["name"], target)
    size, found = info.get("size"), os.path.getsize(target)
    if size is not None and size != found:
        raise OSError(f"of {info['name_below']} came {found:,} of {size:,} bytes")
