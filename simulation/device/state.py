"""A method's state without graphs."""

import contextlib
import ctypes
import gc
from typing import Any

import tensorflow as tf

from tff_algos.method import Method


def initial(method: Method) -> Any:
    """Returns a method's first state, and to the system the memory that building it has freed.

    Without a graph, which would hold the model's weights as constants, in several copies.
    """
    state = tf.nest.map_structure(lambda t: tf.convert_to_tensor(t).numpy(), method.initialize())
    gc.collect()
    # What is free, glibc keeps, until it is asked for it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return state
