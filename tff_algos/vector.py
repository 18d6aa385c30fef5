"""Arithmetic on vectors of the model's dimension, held as one tensor per model weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# The model x, an update, a gradient, a moment: one tensor per model weight, in the model's order.
Weights = tuple["tf.Tensor", ...]


def each(fn: Callable, *vectors: Weights) -> Weights:
    """Applies a function to the tensors of each model weight: `each(tf.add, a, b)` is a + b."""
    return tuple(fn(*tensors) for tensors in zip(*vectors, strict=True))


def subtract(a: Weights, b: Weights) -> Weights:
    """Returns a - b."""
    return each(lambda a, b: a - b, a, b)


def move(x: Weights, rate: Any, direction: Weights) -> Weights:
    """Returns x + rate * direction, for a scalar rate."""
    return each(lambda x, d: x + rate * d, x, direction)


def constants(arrays: Sequence[Any]) -> Weights:
    """Returns arrays as tensors, e.g. `model.initial_weights`."""
    return tuple(tf.constant(a) for a in arrays)


def zeros(like: Any) -> Weights:
    """Returns zeros of the shapes and dtypes of tensors or arrays."""
    return tuple(tf.zeros(w.shape, w.dtype) for w in like)
