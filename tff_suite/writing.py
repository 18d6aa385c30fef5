"""Writes files so that a kill leaves either the old or the new content, and never follows links.

Anyone with write access to a folder of results can place a link under a name that the suite is
about to write. So a temporary file is always newly created, and so is a file to append to that
turns out to be a link.
"""

import csv
import io
import json
import math
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any


def is_link(path: str | os.PathLike) -> bool:
    """Returns whether an existing file is a link, or has a second name."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISLNK(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1)


def open_to_append(path: str | os.PathLike, mode: str = "ab", **how: Any) -> IO[Any]:
    """Opens a file to append to it; a link of that name is removed first, but not its target.

    Args:
      path: The file.
      mode: `a` or `ab`.
      **how: As for `open`.

    Raises:
      OSError: If the file cannot be opened, or becomes a link meanwhile.
    """
    if is_link(path):
        os.unlink(path)
    return open(path, mode, opener=_no_link, **how)


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def write_new(path: str | os.PathLike, content: bytes) -> None:
    """Writes a new file, on disk when this returns; an existing entry of that name is removed.

    Only the name of a link or of another file is removed, so its target keeps its content.

    Raises:
      OSError: If the file cannot be written, or something else takes the name meanwhile.
    """
    if os.path.lexists(path):
        os.unlink(path)
    # "x" opens exclusively, which also fails on a link that leads nowhere.
    with open(path, "xb", opener=_no_link) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Replaces the content of a file, on disk when this returns.

    Only one process may write `path` at a time. A kill may leave `<path>.tmp`, which the next call
    removes.

    Raises:
      OSError: If the file cannot be written; the old content is then untouched.
    """
    temporary = f"{os.fspath(path)}.tmp"
    write_new(temporary, content)
    os.replace(temporary, path)
    # The rename itself lasts through a power cut only once the folder is on disk.
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def csv_text(rows: Iterable[Sequence]) -> str:
    r"""Returns rows as CSV that Python's `csv` and pandas read back unchanged.

    Args:
      rows: The rows, starting with the column names. All cells are quoted if one holds a carriage
        return, which `csv` would write unquoted and read as the end of a line.
    """
    rows = list(rows)
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n", quoting=quoting).writerows(rows)
        if "\r" not in text.getvalue():
            break
    return text.getvalue()


def json_text(content: Any) -> str:
    """Returns content as indented JSON; numbers that are not finite become null."""
    return json.dumps(finite_or_none(content), indent=2, allow_nan=False)


def finite_or_none(content: Any) -> Any:
    """Returns content with Python's numbers for NumPy's, and `None` for those not finite."""
    import numpy as np  # Commands import this module before they can answer signals.

    if isinstance(content, Mapping):
        return {key: finite_or_none(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite_or_none(value) for value in content]
    if isinstance(content, np.generic):
        content = content.item()
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content
