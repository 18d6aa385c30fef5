"""Runs: how the process of a method is executed on the data of a task, and what is kept of it.

`simulation.run(task=..., algorithm=..., total_rounds=..., ...)` is an experiment in Python.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

from simulation.errors import DivergedError, RunError
from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)

if TYPE_CHECKING:
    from simulation.in_python import Result, run

_LAZY = {"Result": "in_python", "run": "in_python"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'simulation' has no attribute {name!r}")
        return getattr(_importlib.import_module(f"simulation.{_LAZY[name]}"), name)


__all__ = ["DivergedError", "Result", "RunError", "run"]


def __dir__() -> list[str]:
    return __all__
