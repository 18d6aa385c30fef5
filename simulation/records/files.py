"""Writing files so that a kill at any moment leaves the old content or the new, never a mixture."""

import contextlib
import os

from simulation.errors import RunError


@contextlib.contextmanager
def explained(path: str):
    """Turns an operating-system error about files in `path` into one line for the user.

    Raises:
      RunError: In place of any `OSError`.
    """
    try:
        yield
    except OSError as e:
        raise RunError(f"Cannot use {e.filename or path}: {e.strerror or e}.") from e


def write_atomically(path: str, content: bytes) -> None:
    """Replaces the content of a file, on disk when this returns.

    Only one process may write `path` at a time.

    Raises:
      OSError: If the file cannot be written; the old content is then untouched.
    """
    temporary = f"{path}.tmp"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The rename itself lasts through a power cut only once the folder is on disk.
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
