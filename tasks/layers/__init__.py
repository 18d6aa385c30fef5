"""Keras layers: those that run over a whole cohort at once, and what some models need beside.

Their classes are made from Keras's, so a layer's module is imported when it is first used,
`layers.lstm.LSTM`: tasks are known, and flags are checked, before TensorFlow is loaded.
"""

import importlib
import types


def __getattr__(name: str) -> types.ModuleType:
    path = f"{__name__}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from error
