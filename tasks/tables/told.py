"""Warnings about what a caller gave, at the caller's line."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tasks import partitions
from tasks.missing import some
from tff_suite.user_warnings import warn


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
