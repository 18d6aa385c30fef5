"""Frees the graphs of runs that have ended."""

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

_OURS = ("tasks.", "tff_algos.")

_lock = threading.Lock()
_runs = 0
_known: frozenset[str] = frozenset()


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """On exit from this context, unregisters the gradients that our layers have registered.

    TensorFlow keeps each `tf.custom_gradient` that is called in a graph forever, and with it the
    graph. So a process that does many runs would grow, and its garbage collector would slow down.
    These gradients are only looked up while a graph is being built. If other threads have runs in
    progress, the last run to end unregisters the gradients of all.
    """
    global _runs, _known
    from tff_suite.compat import ops

    registry = ops.gradient_registry._registry
    with _lock:
        if _runs == 0:
            _known = frozenset(registry)
        _runs += 1
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            for name in () if _runs else set(registry) - _known:
                if _module(registry[name]["type"]).startswith(_OURS):
                    del registry[name]


def _module(registered: Callable) -> str:
    """Returns the module of the gradient that stands behind a registered function, if one does."""
    function: Any = registered
    for name in ("tape_grad_fn", "grad_fn"):
        function = inspect.getclosurevars(function).nonlocals.get(name)
        if not inspect.isfunction(function):
            return ""
    return function.__module__
