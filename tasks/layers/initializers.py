"""Initial weights that follow none of Keras's rules."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


class Zeros(tf.keras.initializers.Initializer):
    """Takes initial weights from any function; a saved model names Keras's zeros instead.

    The file holds the weights themselves, so nothing is lost. Keras looks initialisers up by class
    name, so it can load the file without the suite.
    """

    def __init__(self, weights: Callable):
        """Initialises the initialiser.

        Args:
          weights: Function of a shape and `dtype` that returns a tensor, such as an initialiser.
        """
        self._weights = weights

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
        """Returns the weights, `[*shape]`."""
        return self._weights(shape, dtype=dtype, **kwargs)
