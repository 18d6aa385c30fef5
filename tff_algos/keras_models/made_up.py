"""Made-up inputs and targets, on which a user's functions are tried."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def made_up_inputs(spec: tf.TensorSpec) -> Iterator[np.ndarray]:
    """Yields inputs of six examples each; a model may accept only some of them."""
    rng, shape = np.random.default_rng(0), (6, *(size or 3 for size in spec.shape[1:]))
    if spec.dtype.is_floating:
        yield rng.normal(size=shape)
        yield rng.uniform(0.5, 1.5, shape)  # Of which there is a logarithm.
    elif spec.dtype.is_integer:
        for most in (100, 2):  # A vocabulary may be small.
            yield rng.integers(1, most + 1, shape)
    if spec.dtype.is_integer or spec.dtype.is_bool:
        yield rng.integers(0, 2, shape)


def made_up_targets(spec: tf.TensorSpec) -> Sequence[np.ndarray]:
    """Returns targets of six examples, as two sets: one of two classes, one of a single class."""
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
        return ()
    shape = [size or 3 for size in spec.shape[1:]]
    # Not more classes: Keras's hinge losses take 0 for -1 unless a batch has other labels than 0
    # and 1.
    return [
        np.stack([np.full(shape, label) for label in labels])
        for labels in ((0, 1, 1, 1, 0, 0), (0, 0, 0, 0, 0, 0))
    ]


def or_none(function: Callable, *arguments: Any) -> Any:
    """Returns a function's value, or `None` if it does not accept made-up inputs."""
    try:
        return function(*arguments)
    except Exception:  # It is the user's, and may not take every value.
        return None
