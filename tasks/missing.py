"""Which inputs and targets of a task are missing: not a number, or infinite."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks import task as task_lib
from tasks.task import FederatedData, Task
from tff_suite import memory

# Examples that lie in files are all read only up to this many bytes.
_MOST_BYTES = 1 << 28
_SHOWN = 5


def in_training(task: Task) -> str | None:
    """Returns a line that names the training examples with missing values; `None` if none."""
    found = _of_clients(task.train, "training")
    return found and (
        f"{found}; a client whose update is not finite is dropped, so remove these examples or "
        "fill in their values"
    )


def in_tests(task: Task) -> list[str]:
    """Returns lines that name the test examples with missing values: clients' and central ones."""
    lines = []
    if task.test is not None:
        lines.append(_of_clients(task.test, "test"))
    if task.central_test is not None:
        x, y = task.central_test[:2]
        number = int(np.sum(_is_missing(x) | _is_missing(y)))
        if number:
            lines.append(f"{number} of {len(y)} examples of the central test {_WHAT}")
    return [f"{line}; metrics of these examples are not numbers" for line in lines if line]


_WHAT = "have inputs or targets that are NaN or infinite"


def clients(ids: Sequence[str]) -> str:
    """Returns the number of clients and the names of the first of them."""
    return f"{len(ids)} client{'s' * (len(ids) > 1)} ({some(list(map(str, ids)))})"


def some(texts: Sequence[str]) -> str:
    """Returns the first few texts, and the number of the others."""
    shown = ", ".join(texts[:_SHOWN])
    return f"{shown} and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else shown


def _of_clients(data: FederatedData, which: str) -> str | None:
    sizes = np.asarray(data.sizes, np.int64)
    if not len(sizes) or not sizes.any():
        return None
    first = data.examples(int(np.flatnonzero(sizes)[0]))
    if not any(np.asarray(values[:0]).dtype.kind == "f" for values in first[:2]):
        return None
    of_example = memory.nbytes([np.asarray(values[:1]) for values in first[:2]])
    if task_lib.files(data) and of_example * int(sizes.sum()) > _MOST_BYTES:
        return None
    found, total = [], 0
    for client in np.flatnonzero(sizes):
        x, y = data.examples(int(client))[:2]
        number = int(np.sum(_is_missing(x) | _is_missing(y)))
        if number:
            found.append(data.client_ids[int(client)])
            total += number
    if not found:
        return None
    return f"{total} of {int(sizes.sum())} {which} examples, of {clients(found)}, {_WHAT}"


def _is_missing(values: Any) -> np.ndarray:
    """Returns which examples contain a number that is not finite, bool `[n]`."""
    dtype = getattr(values, "dtype", None)
    # Pictures that are read when they are used are not read for this.
    if dtype is not None and np.dtype(getattr(dtype, "as_numpy_dtype", dtype)).kind != "f":
        return np.zeros(len(values), bool)
    values = np.asarray(values)
    if values.dtype.kind != "f" or np.isfinite(np.sum(values, dtype=np.float64)):
        return np.zeros(len(values), bool)
    return ~np.isfinite(values.reshape(len(values), -1)).all(1)
