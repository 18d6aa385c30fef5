"""Keras layers that run over a whole cohort at once, and further layers of some models.

They derive from Keras's classes, so import a layer's module when you first use it, as in
`layers.lstm.LSTM`. Tasks are known, and flags are checked, before TensorFlow is loaded.
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
