"""Keeps AutoGraph away from layers that do not need it."""

from typing import Any

import tensorflow as tf

# A mixin: its classes have `__call__` from Keras's layer, their second base.
_Mixin: Any = object


class AsWritten(_Mixin):
    """A Keras layer whose `call` runs as written; put it first among the base classes.

    When a model is built, Keras has AutoGraph rewrite the `call` of every layer that is not its
    own. That serves `if` and `while` on tensors, which our layers do not use. For ResNet-18, with
    40 of our layers, it took two fifths of the time to build the model.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as Keras does."""
        return tf.autograph.experimental.do_not_convert(super().__call__)(*args, **kwargs)
