"""Warnings that name the line of the user's program."""

import sys
import warnings
from types import FrameType

# Packages and modules that stand between the user's line and a warning. Functions that
# `dataclasses` makes belong to the module of their class.
_BETWEEN = {
    "contextlib",
    "dataclasses",
    "functools",
    "reproduction",
    "simulation",
    "tasks",
    "tff_algos",
    "tff_suite",
}


def warn(text: str) -> None:
    """Issues a `RuntimeWarning` of one line, at the line outside the suite that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _module(frame).partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    if frame is None:
        frame = sys._getframe(1)
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        _module(frame),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _module(frame: FrameType) -> str:
    return frame.f_globals.get("__name__") or ""
