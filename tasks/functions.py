"""Checks a task's loss, metrics and model function without building the model.

Your own functions are traced on placeholders, in a graph that is discarded. No operation runs, so
TensorFlow's devices and threads can still be configured. If TensorFlow is not imported yet, nothing
is traced. A run checks the functions again, with the model, when it starts.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tff_suite import compat

# Batches are padded, so a mean over all rows is wrong.
LOSS = "The loss"
_CURE = "it return one value per example, without tf.reduce_mean or with axis=-1"


def fault_of_model_fn(make: Callable) -> str:
    """Returns what is wrong with a `keras_model_fn`; blank if nothing is found."""
    if not _takes(make, 1):
        return "the model function must take a seed: def build_model(seed)."
    return ""


def fault(what: str, function: Any, y: tuple[int, ...], y_dtype: np.dtype) -> str:
    """Returns what is wrong with a loss or a metric; blank if nothing is found.

    Args:
      what: How to name it: `LOSS`, or what a metric is called.
      function: The loss or metric. Names and Keras's own losses are checked by the run only.
      y: Shape of one example's target.
      y_dtype: Dtype of targets.
    """
    kinds = {kind.__name__ for kind in type(function).__mro__ if compat.is_of_keras(kind)}
    if "Metric" in kinds and "MeanMetricWrapper" not in kinds and what != LOSS:
        return (
            f"{what} ({type(function).__name__}) is not a mean over examples, so clients' values "
            "cannot be combined; give a function of (y, outputs) that returns a value, or (value, "
            "weight), per example, or measure it with Keras on the final weights."
        )
    if "Loss" in kinds and not compat.is_of_keras(type(function)):
        function = getattr(function, "call", function)
    elif kinds or isinstance(function, str | type):
        return ""
    if compat.is_of_keras(getattr(function, "func", function)):
        return ""
    if not _takes(function, 2):
        return f"{what} must be a function of (y, outputs); give it two arguments."
    if _gives_one_number(function, y, y_dtype):
        return f"{what} gives one number for the whole batch, padding included; let {_CURE}."
    return ""


def _takes(function: Any, number: int) -> bool:
    """Returns whether a function accepts a number of arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*range(number))
    except TypeError:
        return False
    except ValueError:  # A builtin without a signature.
        return True
    return True


def _gives_one_number(function: Any, y: Any, y_dtype: Any) -> bool:
    """Returns whether a function returns a scalar for a batch, for each plausible output shape."""
    tf: Any = sys.modules.get("tensorflow")
    if not hasattr(tf, "Graph"):
        return False
    from tff_suite.compat import func_graph  # Imports TensorFlow.

    # As a run casts them.
    dtype = np.float32 if y_dtype.kind == "f" else y_dtype
    ranks = []
    for shape in ([None, *y, None], [None, *y]):
        with func_graph.FuncGraph("looked_at").as_default():
            targets = tf.compat.v1.placeholder(dtype, [None, *y])
            outputs = tf.compat.v1.placeholder(tf.float32, shape)
            try:
                values = function(targets, outputs)
                values = values[0] if isinstance(values, tuple) else values
                ranks.append(tf.convert_to_tensor(values).shape.rank)
            except Exception:
                # The model may have outputs of another shape, and a function may not be traceable.
                continue
    return bool(ranks) and all(rank == 0 for rank in ranks)
