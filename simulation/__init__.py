"""Runs: executing a method's process on a task's data, and recording the results.

`simulation.run(task=..., algorithm=..., total_rounds=..., ...)` runs an experiment from Python, and
`simulation.compare(task=..., algorithms=[...], seeds=5, ...)` compares several methods.
"""

import importlib as _importlib
from typing import TYPE_CHECKING, Any

from simulation.errors import DivergedError, RunError
from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)

if TYPE_CHECKING:
    from simulation.in_python import Result, run
    from simulation.rounds.callbacks import Callback, EarlyStopping, Round, StopAt

    # `reproduction` is a package above this one, so it is not imported at run time.
    Comparison: Any
    compare: Any

_LAZY = {
    "Callback": "simulation.rounds.callbacks",
    "Comparison": "reproduction.comparison",
    "EarlyStopping": "simulation.rounds.callbacks",
    "Result": "simulation.in_python",
    "Round": "simulation.rounds.callbacks",
    "StopAt": "simulation.rounds.callbacks",
    "compare": "reproduction.compare_methods",
    "run": "simulation.in_python",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'simulation' has no attribute {name!r}")
        return getattr(_importlib.import_module(_LAZY[name]), name)


__all__ = [
    "Callback",
    "Comparison",
    "DivergedError",
    "EarlyStopping",
    "Result",
    "Round",
    "RunError",
    "StopAt",
    "compare",
    "run",
]


def __dir__() -> list[str]:
    return __all__
