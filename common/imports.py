"""Imports TensorFlow and TFF in half the time that they take."""

import contextlib
import gc
import pkgutil
import sys
import types
from typing import Any

# What TensorFlow, Keras and TFF import for features that nothing here has: conversion of JAX
# programs, data frames as inputs, differential privacy and Vizier's tuning. Nearly half of the time
# of the imports.
_POSTPONED = (
    "dp_accounting",
    "jax",
    "pandas",
    "tensorflow_federated.python.core.environments.jax",
    "tensorflow_privacy",
    "vizier",
    "vizier.client",
)


class _Postponed(types.ModuleType):
    """Stands for a module, or for a name in one, until it is used.

    While TFF is imported a name of it is another of these, which is all that an annotation or
    `from ... import` asks for.
    """

    standing_in = True  # For all of them: whether TFF is being imported.

    def _real(self):
        return pkgutil.resolve_name(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if not _Postponed.standing_in:
            return getattr(self._real(), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return _Postponed(f"{self.__name__}.{name}")

    def __call__(self, *args, **kwargs) -> Any:
        return self._real()(*args, **kwargs)


@contextlib.contextmanager
def _postponed():
    """Puts something in the place of the modules that are not needed, within a `with` statement."""
    names = [name for name in _POSTPONED if name not in sys.modules]
    sys.modules.update({name: _Postponed(name) for name in names})
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        _Postponed.standing_in = False


@contextlib.contextmanager
def _uncollected():
    """Keeps what is made within a `with` statement from the garbage collector for good."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if collects:
            gc.enable()


def import_tensorflow() -> None:
    """Imports TensorFlow and TFF without what is not used here, and without garbage collection.

    Modules for other features (JAX, pandas, differential privacy) are imported when they are first
    used. Of the hundreds of thousands of objects that live as long as the process, the collector
    would look through all again and again while they are made, a third of the time of the imports,
    and later whenever it is asked for what is no longer in use. Does nothing if TFF was imported
    before.
    """
    if "tensorflow_federated" in sys.modules:
        return
    with _uncollected(), _postponed():
        import tensorflow  # noqa: F401
        import tensorflow_federated  # noqa: F401
