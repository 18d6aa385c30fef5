"""Checks of the arguments of `tasks.frames`."""

import numbers
from typing import Any

from tasks.task import TaskError


def count(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number after checking that it is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise TaskError(f"{name}={value!r} must be a whole number, {least} or more.")
    return int(value)


def check_share(what: str, share: Any) -> None:
    """Refuses what is neither `None` nor a share of rows."""
    if share is None:
        return
    is_number = isinstance(share, numbers.Real) and not isinstance(share, bool)
    if not is_number or not 0 <= share < 1:
        raise TaskError(f"{what}={share!r} must be a share of the rows, in [0, 1).")
