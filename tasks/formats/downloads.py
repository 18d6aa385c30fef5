"""Downloads a publisher's file, with a progress bar; an interrupted download resumes."""

import base64
import fcntl
import hashlib
import os
import urllib.error
import urllib.request
from typing import IO, Any

from tasks.formats import files
from tasks.task import DataError
from tff_suite import writing

# Where TFF's own data sets are.
TFFS = "https://storage.googleapis.com/tff-datasets-public/"

_CHUNK = 1 << 20
_SECONDS = 60


def fetch(url: str, path: str, advice: str, sha256: str | None = None) -> None:
    """Downloads a file unless it exists; `path` appears only once the file is complete.

    An interrupted download leaves `<path>.part`. The next call continues it if the server still has
    the same file (`<path>.part.etag`). Size and MD5 are checked if the server sends them, as
    Google's does.

    Args:
      url: Address of the file.
      path: Where to save it.
      advice: Where else to get the file and how to point at it, for error messages.
      sha256: Its SHA-256, if known; an existing file with a different one is downloaded again.

    Raises:
      DataError: If it cannot be downloaded, is not the announced file, or another process is
        downloading it.
    """
    if os.path.isfile(path) and (sha256 is None or _digest(path, "sha256").hexdigest() == sha256):
        return
    part = f"{path}.part"
    with files.decoding(os.path.basename(path), advice, "cannot be downloaded"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with writing.open_to_append(part) as target:
            try:
                fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DataError(f"another process is downloading {path}; wait for it") from error
            try:
                md5 = _receive(url, part, target)
            except urllib.error.URLError as error:
                raise OSError(f"{url}: {getattr(error, 'reason', error)}") from error
            target.flush()
            os.fsync(target.fileno())
            for name, wanted in (("md5", md5), ("sha256", sha256)):
                if wanted is not None and _digest(part, name).hexdigest() != wanted:
                    os.remove(part)
                    raise ValueError(
                        f"the download from {url} does not have the expected {name} {wanted}"
                    )
            os.replace(part, path)
            _remove_if_there(f"{part}.etag")


def _receive(url: str, part: str, target: IO[bytes]) -> str | None:
    """Appends the missing rest to an open file; returns the whole's MD5 if the server sent it."""
    import tqdm  # Slow to import, and seldom needed.

    # One byte is asked for again: a server refuses to send none.
    done = max(0, os.path.getsize(part) - 1)
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    etag = _etag(part)
    if done and etag:
        request.add_header("Range", f"bytes={done}-")
        request.add_header("If-Range", etag)
    with urllib.request.urlopen(request, timeout=_SECONDS) as response:
        if response.status != 206:
            done = 0
        target.truncate(done)
        _remember(part, response.headers.get("ETag"))
        length = response.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with tqdm.tqdm(
            desc=f"Downloading {os.path.basename(url)}",
            initial=done,
            total=total,
            unit="B",
            unit_scale=True,
            dynamic_ncols=True,
        ) as bar:
            while chunk := response.read(_CHUNK):
                target.write(chunk)
                bar.update(len(chunk))
        target.flush()
        size = os.path.getsize(part)
        if total is not None and size != total:
            raise OSError(
                f"the connection ended after {size:,} of {total:,} bytes; run the same command "
                "again to resume"
            )
        return _published_md5(response.headers.get_all("x-goog-hash", []))


def _etag(part: str) -> str | None:
    try:
        with open(f"{part}.etag", encoding="utf-8") as file:
            return file.read() or None
    except FileNotFoundError:
        return None


def _remember(part: str, etag: str | None) -> None:
    """Stores the server's ETag of this content; only a strong one allows resuming."""
    if etag is None or etag.startswith("W/"):
        _remove_if_there(f"{part}.etag")
    else:
        writing.write_atomically(f"{part}.etag", etag.encode())


def _published_md5(headers: list[str]) -> str | None:
    """Returns the MD5 of Google's `x-goog-hash: crc32c=...,md5=...`, as hexadecimal digits."""
    for part in ",".join(headers).split(","):
        name, _, value = part.strip().partition("=")
        if name == "md5":
            return base64.b64decode(value).hex()
    return None


def _digest(path: str, name: str) -> Any:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, name)


def _remove_if_there(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)
