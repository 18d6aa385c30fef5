"""Keeps AutoGraph away from layers that have no use for it."""

from typing import Any

import tensorflow as tf


class AsWritten:
    """A Keras layer, the first base class of ours, whose `call` is run as it is written.

    Where a model is put together, Keras has AutoGraph rewrite the `call` of every layer that is not
    its own, for the sake of `if` and `while` on tensors, of which our layers have none. With 40 of
    our layers, as ResNet-18 has, that took two fifths of the time in which the model was made.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer as Keras does."""
        return tf.autograph.experimental.do_not_convert(super().__call__)(*args, **kwargs)
