"""A method's initial state, computed without graphs."""

import contextlib
import ctypes
import gc
from typing import Any

import tensorflow as tf

from tff_algos.method import Method


def initial(method: Method) -> Any:
    """Returns a method's initial state, and gives the memory freed meanwhile back to the system.

    This avoids a graph, which would hold several copies of the model's weights as constants.
    """
    state = tf.nest.map_structure(lambda t: tf.convert_to_tensor(t).numpy(), method.initialize())
    gc.collect()
    # glibc keeps freed memory unless it is told to release it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return state
