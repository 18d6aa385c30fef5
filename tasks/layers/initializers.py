"""Initial weights by no rule of Keras's."""

from collections.abc import Callable

import tensorflow as tf


class Zeros(tf.keras.initializers.Initializer):
    """Gives the weights of any function, for which files of the model name Keras's zeros.

    A file holds the weights themselves, so nothing is lost; and Keras, which looks initialisers up
    by the name of their class, loads it without the suite.
    """

    def __init__(self, weights: Callable):
        """Initialises the initialiser.

        Args:
          weights: Function of a shape and `dtype` that gives a tensor, such as an initialiser.
        """
        self._weights = weights

    def __call__(self, shape, dtype=None, **kwargs):
        """Returns the weights, `[*shape]`."""
        return self._weights(shape, dtype=dtype, **kwargs)
