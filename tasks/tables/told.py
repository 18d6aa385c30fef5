"""Warnings about what a caller gave, at the caller's line."""

import os
import sys
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import numpy as np

from tasks import partitions
from tasks.missing import some

# The folder of the package, as in the names of its files.
_TASKS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def warn(text: str) -> None:
    """Warns at the line that called `tasks`."""
    warnings.warn(text, RuntimeWarning, stacklevel=_levels())


def _levels() -> int:
    """Returns how many frames a warning must skip to name the caller's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename.startswith(_TASKS):
        frame, level = frame.f_back, level + 1
    return level


def report_alike(kind: str, names: Iterable[Any]) -> None:
    """Warns of names that a reader would take for one."""
    names = [name for name in names if isinstance(name, str)]
    for how, read in (
        ("differ only in capitals, blanks or the form of Unicode", _folded),
        ("are the same number", partitions.as_number),
    ):
        written: dict[Any, list[str]] = {}
        for name in names:
            written.setdefault(read(name), []).append(name)
        written.pop(None, None)
        # Two forms of one character look the same unless they are spelt out.
        alike = [" and ".join(map(ascii, same)) for same in written.values() if len(same) > 1]
        if alike:
            warn(f"{kind} whose names {how} count as different {kind}: {some(alike)}.")


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def report_untrained(what: str, values: Sequence[Any], codes: np.ndarray) -> None:
    """Warns of classes or categories that no training row has, by the rows' codes."""
    without = [repr(values[k]) for k in np.setdiff1d(np.arange(len(values)), codes)]
    if without:
        warn(
            f"{what}: only held-out rows have {some(without)}, so no client learns it; drop these "
            "rows, or draw others with seed."
        )
