"""Which rows lie close together, so that an axis can show these."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def most_within(
    spans: Mapping[str, tuple[float, float]], width: float, share: float = 0.75
) -> list[str]:
    """Returns the largest set of rows whose values all lie in some window of a given width.

    Args:
      spans: Row → its smallest and its largest value.
      width: The window's width.
      share: Least share of all rows that the set must have.

    Returns:
      Names of rows; among sets of equal size, the one with the smallest extent. Empty if no set is
      large enough.
    """
    most, closest = [], np.inf
    for start, _ in spans.values():
        rows = [row for row, (low, high) in spans.items() if start <= low and high < start + width]
        across = extent(spans, rows) if rows else np.inf
        if len(rows) > len(most) or (len(rows) == len(most) and across < closest):
            most, closest = rows, across
    return most if len(most) >= share * len(spans) else []


def extent(spans: Any, rows: Any) -> float:
    """Returns the difference between the largest and the smallest value of some rows."""
    return max(spans[row][1] for row in rows) - min(spans[row][0] for row in rows)
