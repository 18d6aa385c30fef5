"""Whether inputs of tests are scaled as those of training are, for pixels in floats."""

from typing import Any

import numpy as np

from tasks import task as task_lib
from tasks.task import FederatedData, Task

# So many examples of each part are looked at.
_ROWS = 100
# Pixels that are scaled, or standardised, lie within this.
_MOST_SCALED = 10


def in_tests(task: Task) -> list[str]:
    """Returns lines that name parts with pixels up to 255 beside scaled ones, or the reverse."""
    lines = []
    train = _of_clients(task.train)
    for part in ("test", "validation"):
        data = getattr(task, part)
        if data is not None:
            lines.append(_difference(part, _of_clients(data), train))
    if task.central_test is not None:
        lines.append(_difference("central_test", _first(task.central_test.x), train))
    return list(filter(None, lines))


def _of_clients(data: FederatedData) -> np.ndarray | None:
    if not np.any(data.sizes):
        return None
    return _first(data.examples(task_lib.first_with_examples(data)).x)


def _first(values: Any) -> np.ndarray | None:
    """Returns the first inputs if they are numbers."""
    found = np.asarray(values[:_ROWS])
    return found if found.size and found.dtype.kind in "iuf" else None


def _difference(part: str, own: np.ndarray | None, train: np.ndarray | None) -> str:
    if own is None or train is None:
        return ""
    for raw, of, scaled, other in ((own, part, train, "train"), (train, "train", own, part)):
        if _are_pixels(raw) and _are_scaled(scaled):
            return (
                f"inputs of {of} are whole numbers up to {raw.max():g}, and those of {other} are "
                f"fractions up to {scaled.max():.3g}; scale both alike"
            )
    return ""


def _are_pixels(x: np.ndarray) -> bool:
    return bool(x.min() >= 0 and 100 < x.max() <= 255 and np.all(x == np.floor(x)))


def _are_scaled(x: np.ndarray) -> bool:
    return bool(np.abs(x).max() <= _MOST_SCALED and np.any(x != np.floor(x)))
