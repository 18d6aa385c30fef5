"""Writing the files of a run's folder, and reporting errors of the file system."""

import contextlib
from collections.abc import Iterator

from simulation.errors import RunError
from tff_suite.writing import csv_text, open_to_append, write_atomically


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns an operating-system error on files in `path` into one line for the user.

    Raises:
      RunError: In place of any `OSError`.
    """
    try:
        yield
    except OSError as e:
        raise RunError(f"Cannot use {e.filename or path}: {e.strerror or e}.") from e


__all__ = ["csv_text", "explained", "open_to_append", "write_atomically"]
