"""Eager tensors without unnecessary memory.

`tf.constant` copies an array twice, where one copy suffices. TensorFlow 2.14, of the published
stack, leaks a few bytes with every eager tensor; 2.21 does not.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_algos.client_data import Gathered
from tff_suite import memory
from tff_suite.compat import ops

# TensorFlow adopts an array's memory if it starts at a multiple of this; otherwise it copies it.
_ALIGNMENT = 64
# For smaller arrays, a second copy is cheaper than the computation that avoids it.
_SMALL_BYTES = 4096
_NUMBERS = "biufc"


def lean(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a new eager tensor after freeing the memory for its attributes.

    CPython 3.11 allocates this memory with every instance of a class that allows attributes. The
    destructor of TensorFlow 2.14's `EagerTensor` does not free it. So every eager tensor would leak
    16 bytes, some 0.13 MB per round of 100 clients. TensorFlow 2.21 does not leak.
    """
    del tensor.__dict__
    return tensor


def empty(shape: Sequence[int] | tf.Tensor, dtype: np.dtype) -> np.ndarray:
    """Returns an uninitialised array whose memory TensorFlow can adopt, see `adopt`."""
    dtype = np.dtype(dtype)
    size = memory.size_of(shape, dtype)
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.__array_interface__["data"][0] % _ALIGNMENT
    return buffer[start : start + size].view(dtype).reshape(shape)


def adopt(array: np.ndarray) -> tf.Tensor:
    """Returns an array of numbers as an eager tensor in the host's memory.

    It may share memory with the array, which must not be changed afterwards.
    """
    return lean(ops.EagerTensor(array, None, None))


def as_tensor(value: tf.Tensor | np.ndarray) -> tf.Tensor:
    """Returns a tensor unchanged, and an array of numbers as a tensor that may share its memory.

    The array must not be changed afterwards.
    """
    if tf.is_tensor(value):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return adopt(value)
    return lean(tf.convert_to_tensor(value))


def copy_of(array: np.ndarray | Gathered) -> tf.Tensor:
    """Returns a copy of an array as an eager tensor, numbers in the host's memory."""
    if array.dtype.kind not in _NUMBERS:
        return lean(tf.constant(np.asarray(array)))
    if isinstance(array, np.ndarray) and array.nbytes < _SMALL_BYTES:
        return adopt(array.copy())
    copy = empty(array.shape, array.dtype)
    if isinstance(array, np.ndarray):
        np.copyto(copy, array)
    else:
        array.into(copy)
    return adopt(copy)
