"""Refuses functions of a method whose results depend on more than their arguments.

A method's functions become graphs, which are executed in many rounds and for many clients, in any
order. `tf.random.normal` gives other numbers in every run. A number from Python's `random` or from
NumPy is drawn only once, while the graph is made, so all rounds and clients get the same one. A
variable that a function changes is in no checkpoint. What Python does when a graph calls it is not
known, and the clock never shows the same time. In all these cases a run cannot be repeated, and
does not resume exactly. `tff_algos.random` draws from a seed.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
import random
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_suite import code_places, graph_defs
from tff_suite.errors import FedError

_OF_DRAWS = ("Random", "Multinomial", "TruncatedNormal", "Rng", "StatefulUniform")
_OF_VARIABLES = ("Assign", "ResourceApply", "ResourceScatter")
_GENERATORS = random.Random | np.random.Generator | np.random.RandomState
_REMEDY = (
    "Draw by tff_algos.random from a seed: clients have data.seed, and a server can keep a counter "
    "in its state."
)


class MethodError(FedError, ValueError):
    """A method's functions fail, or cannot be executed so that a run can be repeated."""


def is_unseeded(op: str) -> bool:
    """Returns whether a TensorFlow operation draws from its own generator, not from a seed."""
    from tff_suite.compat import op_def_registry  # The only list of stateful ops.

    declared = op_def_registry.get(op)
    return declared is not None and declared.is_stateful and any(name in op for name in _OF_DRAWS)


@contextlib.contextmanager
def required(function: Callable, model_calls_python: bool = False) -> Iterator[None]:
    """A context in which a method's function is called while a graph is built.

    Args:
      function: The function, in whose variables generators are looked for.
      model_calls_python: Whether the model that it uses calls Python (`Model.calls_python`); the
        function's own calls cannot be told from these.

    Raises:
      MethodError: If it draws other than from a seed, reads the clock, calls Python from its graph,
        or changes a variable. Also if it is the user's and raises an exception.
    """
    generators = list(_reached(function, set()))
    before = _states(generators)
    with explained(function):
        yield
    after = _states(generators)
    for name in before:
        if before[name] != after[name]:
            raise MethodError(
                f"A function of the method drew from {name} while its graph was made, so all "
                f"rounds and clients would get the same numbers. {_REMEDY}"
            )
    for node in graph_defs.nodes(tf.compat.v1.get_default_graph().as_graph_def()):
        if "PyFunc" in node.op and not model_calls_python:
            raise MethodError(
                f"A function of the method calls Python from its graph ({node.op}), where nothing "
                "shows what it draws or keeps: write it with TensorFlow's operations. If it is the "
                "model that does so, make the Model with calls_python=True."
            )
        if is_unseeded(node.op) or node.op == "Timestamp":
            raise MethodError(
                f"A function of the method uses {node.op}, which no seed controls, so a run could "
                f"not be repeated. {_REMEDY}"
            )
        if any(name in node.op for name in _OF_VARIABLES):
            raise MethodError(
                f"A function of the method changes a variable ({node.op}), which no checkpoint "
                "holds and clients would change in any order. Keep it in the state of the server "
                "or of a client."
            )


@contextlib.contextmanager
def explained(function: Callable) -> Iterator[None]:
    """A context in which a method's function is called, and blamed for what it raises.

    Args:
      function: The function; exceptions of the suite's own functions stay as they are.

    Raises:
      MethodError: For any exception but a `FedError`.
    """
    try:
        yield
    except (FedError, MemoryError):
        raise
    except Exception as e:  # It is the user's, and may raise anything.
        named = inspect.unwrap(getattr(function, "python_function", function))
        code = getattr(named, "__code__", None)
        if code is None or code_places.is_suites(named.__module__, code.co_filename):
            raise
        told = " ".join(f"{type(e).__name__}: {e}".split())[:300]
        lines = [
            f.lineno
            for f in traceback.extract_tb(e.__traceback__)
            if f.filename == code.co_filename
        ]
        where = f" in line {lines[-1]} of {os.path.basename(code.co_filename)}" if lines else ""
        raise MethodError(
            f"{name_of(named)} of the method fails{where} while its graph is made ({told}). Its "
            "arguments are symbolic tensors, so compute with TensorFlow's operations only."
        ) from e


def name_of(function: Callable) -> str:
    """Returns the name of a method's function, for messages."""
    return getattr(function, "__name__", type(function).__name__)


def _states(generators: list[Any]) -> dict[str, Any]:
    """Returns name of a generator → its state."""
    states: dict[str, Any] = {
        "Python's random": random.getstate(),
        "numpy.random": pickle.dumps(np.random.get_state()),
    }
    for i, generator in enumerate(generators):
        name = f"a {type(generator).__module__.split('.')[0]} {type(generator).__name__}"
        states[f"{name} ({i + 1})" if name in states else name] = pickle.dumps(generator)
    return states


def _reached(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yields the generators that a function reaches by its variables."""
    if id(value) in seen:
        return
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, _GENERATORS):
        yield value
    elif isinstance(value, types.FunctionType):
        inner += [_content(cell) for cell in value.__closure__ or ()]
        inner += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        used = (value.__globals__.get(name) for name in value.__code__.co_names)
        # Other modules' functions are many, and theirs to look after.
        inner += [v for v in used if isinstance(v, _GENERATORS) or _is_near(v, value)]
    elif isinstance(value, types.MethodType):
        inner += [value.__func__, *getattr(value.__self__, "__dict__", {}).values()]
    elif isinstance(value, functools.partial):
        inner += [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, Mapping):
        inner += value.values()
    elif isinstance(value, list | tuple):
        inner += list(value)  # A list of TensorFlow's own does not extend one.
    elif hasattr(type(value), "python_function"):  # A `tf.function`.
        inner.append(value.python_function)
    for one in inner:
        yield from _reached(one, seen)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It is not set (yet).
        return None


def _is_near(value: Any, function: types.FunctionType) -> bool:
    return isinstance(value, types.FunctionType) and value.__module__ == function.__module__
