"""Runs: how the process of a method is executed on the data of a task, and what is kept of it.

`simulation.run(task=..., algorithm=..., total_rounds=..., ...)` is an experiment in Python.
"""

import importlib

from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module 'simulation' has no attribute {name!r}")
    return getattr(importlib.import_module("simulation.in_python"), name)


__all__ = ["Result", "run"]
