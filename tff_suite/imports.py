"""Imports TensorFlow and TFF when they are first used, in half the usual time."""

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import os
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from tff_suite import compat, memory
from tff_suite.hparams import HparamError

# What TensorFlow, Keras and TFF import for features that nothing here has: conversion of JAX
# programs, data frames as inputs, differential privacy and Vizier's tuning. Nearly half of the time
# of the imports.
_POSTPONED = (
    "dp_accounting",
    "jax",
    "pandas",
    compat.TFFS_JAX,
    "tensorflow_privacy",
    "vizier",
    "vizier.client",
)
# Keras 3, which TensorFlow Model Optimization imports and does without.
_POSTPONED_WITH_KERAS_2_APART = ("keras",)


def _check_names() -> None:
    """Refuses a user's module that hides one of the suite's packages.

    Raises:
      ImportError: One line that names the file.
    """
    suite = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in ("reproduction", "simulation", "tasks", "tff_algos"):
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is None:  # Found otherwise, as what `pip install -e` has installed.
            continue
        path = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
        found = os.path.realpath(path)
        if os.path.dirname(os.path.dirname(found)) != suite:
            raise ImportError(f"{path} hides the suite's package {name!r}; give it another name.")


_check_names()


class _Postponed(types.ModuleType):
    """Replaces a module, or a name in one, until it is used.

    While TFF is being imported, each of its names is another `_Postponed`. That is enough for
    annotations and for `from ... import`.
    """

    standing_in = True  # For all of them: whether TFF is being imported.

    def _real(self) -> Any:
        return pkgutil.resolve_name(self.__name__)

    def __getattr__(self, name: str) -> Any:
        if not _Postponed.standing_in:
            return getattr(self._real(), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return _Postponed(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)


@contextlib.contextmanager
def _postponed() -> Iterator[None]:
    """Replaces modules that are not needed, within a `with` statement."""
    names = [*_POSTPONED]
    if compat.stack() == compat.CURRENT:
        names += _POSTPONED_WITH_KERAS_2_APART
    names = [name for name in names if name not in sys.modules]
    sys.modules.update({name: _Postponed(name) for name in names})
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]
        _Postponed.standing_in = False


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Hides objects created within a `with` statement from the garbage collector for good."""
    with memory.without_collection():
        yield
        gc.freeze()


@contextlib.contextmanager
def _light(_: Any = None) -> Any:
    with _uncollected(), _postponed(), compat.quiet():
        yield


# So a program may import TFF by itself. On the current stack it could not be imported otherwise.
compat.load_within("tensorflow_federated", _light)


def import_tensorflow() -> None:
    """Imports TensorFlow and TFF without their unused parts, and without garbage collection.

    Modules for other features (JAX, pandas, differential privacy) are imported on first use.

    The imports create hundreds of thousands of objects that live as long as the process. The
    garbage collector would scan all of them repeatedly meanwhile, which takes a third of the import
    time, and again in every later collection. So it is paused, and these objects are hidden from
    it.

    The function does nothing if TFF was already imported.
    """
    if "tensorflow_federated" in sys.modules:
        return
    with _light():
        import tensorflow  # noqa: F401
        import tensorflow_federated  # noqa: F401


@atexit.register
def forget_tffs_own_context() -> None:
    """Replaces TFF's default context, so that computations fail without an installed runtime.

    TFF sets a default context when it is imported. The context's destructor fails, with a
    traceback, at the very end of a process, so every process that imports the suite calls this
    function first. It does nothing if TFF was not imported.
    """
    if "tensorflow_federated" not in sys.modules:
        return
    import tensorflow_federated as tff

    from tff_suite.compat import runtime_error_context

    tff.framework.set_default_context(runtime_error_context.create_runtime_error_context())


class _WhenUsed(types.ModuleType):
    """Replaces TensorFlow or TFF in modules that were imported within `when_used`."""

    importing = True  # Whether `when_used` has still to end.

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.importing:
            raise ImportError(
                f"{self.__name__}.{name} is used while a module is imported. Use it within a "
                "function, so that flags can be checked before TensorFlow is loaded."
            )
        import_tensorflow()
        return getattr(sys.modules[self.__name__], name)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


@contextlib.contextmanager
def when_used() -> Iterator[None]:
    """Lets modules write `import tensorflow as tf` without importing it, within a `with` statement.

    A module that is imported inside gets a substitute for TensorFlow, and one for TFF. The
    substitute imports both when the first of its names is used. Modules must not use a name while
    they are imported: no base class, decorator, default value or alias from TensorFlow at their top
    level. Annotations must be postponed (`from __future__ import annotations`). If TensorFlow is
    already imported, modules get TensorFlow itself, as do modules imported outside.

    Raises:
      ImportError: If a module uses a name at its top level.
    """
    names = [n for n in ("tensorflow", "tensorflow_federated") if n not in sys.modules]
    places = {name: _WhenUsed(name) for name in names}
    sys.modules.update(places)
    try:
        yield
    finally:
        for name, place in places.items():
            place.importing = False
            del sys.modules[name]


def modules_of_ones_own(names: Iterable[str], flag: str = "--import") -> None:
    """Imports modules that a flag names, including those in the working folder.

    Args:
      names: Names of modules; those of `--import` register methods or tasks.
      flag: The flag, for error messages.

    Raises:
      HparamError: If one cannot be imported, for any reason.
    """
    for name in names:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            importlib.import_module(name)
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # Whatever a user's module raises is the user's to read.
            told = " ".join(str(e).split())
            raise HparamError(f"{flag}={name} failed: {type(e).__name__}: {told}") from e
