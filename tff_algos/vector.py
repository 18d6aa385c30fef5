"""Arithmetic on vectors of the model's dimension, as a paper prints it: `x - eta * m / v.sqrt()`.

A `Vector` lives within the functions of a round. Elsewhere a vector is a plain tuple of tensors: in
TFF's types, in a checkpoint and in TFF's optimizers. `on_vectors` converts between the two.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Vector(tuple):
    """The model x, an update, a gradient or a moment: one tensor per model weight, in its order.

    Operators work tensor by tensor. The other operand is a `Vector` with as many tensors, or a
    number or scalar tensor that is combined with each of them. `tf.nest` and `tf.while_loop` treat
    a vector as a tuple, but `+` adds two vectors and does not concatenate them.
    """

    __slots__ = ()
    # NumPy's numbers and TensorFlow's tensors leave an operator between them and a vector to it.
    __array_ufunc__ = None

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        raise TypeError("A Vector is not a tensor: its tensors differ in shape. Use Vector.map.")

    def map(self, fn: Callable, *others: Any) -> Vector:
        """Returns `fn(tensor, ...)` for each tensor, with its counterparts in the other vectors.

        Args:
          fn: Function of tensors.
          *others: Vectors with as many tensors, or numbers or scalar tensors.

        Raises:
          TypeError: If one of the others is a list, or an array or tensor of any other shape.
          ValueError: If a vector has a different number of tensors.
        """
        rows = [o if isinstance(o, tuple) else (_scalar(o),) * len(self) for o in others]
        return Vector(fn(*tensors) for tensors in zip(self, *rows, strict=True))

    def __add__(self, other: Any) -> Vector:
        return self.map(operator.add, other)

    def __radd__(self, other: Any) -> Vector:
        return self.map(lambda a, b: b + a, other)

    def __sub__(self, other: Any) -> Vector:
        return self.map(operator.sub, other)

    def __rsub__(self, other: Any) -> Vector:
        return self.map(lambda a, b: b - a, other)

    def __mul__(self, other: Any) -> Vector:
        return self.map(operator.mul, other)

    def __rmul__(self, other: Any) -> Vector:
        return self.map(lambda a, b: b * a, other)

    def __truediv__(self, other: Any) -> Vector:
        return self.map(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Vector:
        return self.map(lambda a, b: b / a, other)

    def __pow__(self, exponent: Any) -> Vector:
        return self.map(operator.pow, exponent)

    def __neg__(self) -> Vector:
        return self.map(tf.negative)

    def sqrt(self) -> Vector:
        """Returns the square roots."""
        return self.map(tf.sqrt)

    def sign(self) -> Vector:
        """Returns -1, 0 or 1 for each number."""
        return self.map(tf.sign)

    def maximum(self, other: Any) -> Vector:
        """Returns the larger one of each pair of numbers."""
        return self.map(tf.maximum, other)

    def over(self, divisor: Any) -> Vector:
        """Returns the quotients, 0 where the divisor is 0."""
        return self.map(tf.math.divide_no_nan, divisor)

    def cast(self, like: Vector) -> Vector:
        """Returns the same numbers in the dtypes of another vector."""
        return self.map(lambda a, b: tf.cast(a, b.dtype), like)

    def squared_norm(self) -> tf.Tensor:
        """Returns ‖v‖², a scalar in the vector's own precision."""
        return tf.add_n([tf.reduce_sum(tensor**2) for tensor in self])

    def norm(self) -> tf.Tensor:
        """Returns ‖v‖, a scalar in the vector's own precision."""
        return tf.sqrt(self.squared_norm())


def _scalar(value: Any) -> Any:
    """Returns a number or scalar tensor, which is combined with each tensor of a vector."""
    # An array of numbers, one per tensor, would be combined with the last dimension of each.
    shape = getattr(value, "shape", ())
    rank = len(shape) if isinstance(shape, tuple) else shape.rank
    if isinstance(value, list) or rank:
        raise TypeError(
            f"A Vector is combined with a Vector or a scalar, not with a "
            f"{type(value).__name__}. For one number per tensor, use Vector(numbers)."
        )
    return value


def constants(arrays: Any) -> Vector:
    """Returns arrays as a vector, e.g. `model.initial_weights`."""
    return Vector(tf.constant(a) for a in arrays)


def zeros(like: Any) -> Vector:
    """Returns zeros of the shapes and dtypes of tensors or arrays."""
    return Vector(tf.zeros(w.shape, w.dtype) for w in like)


def filled(like: Any, value: float) -> Vector:
    """Returns one number everywhere, in the shapes and dtypes of tensors."""
    return Vector(tf.fill(w.shape, tf.constant(value, w.dtype)) for w in like)


def to_vectors(value: Any) -> Any:
    """Returns a structure in which tuples (or lists) of only tensors become vectors.

    Dictionaries stay as they are: they are the state of TFF's optimizers, or metrics.
    """
    if isinstance(value, Vector) or not isinstance(value, (tuple, list)):
        return value
    if hasattr(value, "_fields"):
        return type(value)(*map(to_vectors, value))
    if value and not any(isinstance(v, (tuple, list, dict)) for v in value):
        return Vector(value)
    return tuple(map(to_vectors, value))


def to_tuples(value: Any) -> Any:
    """Returns a structure in which vectors become plain tuples."""
    if isinstance(value, dict):
        return type(value)((name, to_tuples(v)) for name, v in value.items())
    if not isinstance(value, (tuple, list)):
        return value
    if hasattr(value, "_fields"):
        return type(value)(*map(to_tuples, value))
    return (tuple if isinstance(value, tuple) else list)(map(to_tuples, value))


def on_vectors(fn: Callable) -> Callable:
    """Returns a function that uses vectors inside, and takes and returns plain tuples."""

    @functools.wraps(fn)
    def function(*values: Any) -> Any:
        return to_tuples(fn(*map(to_vectors, values)))

    return function
