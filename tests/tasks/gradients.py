"""A layer's output and gradients, to hold one layer to another."""

import tensorflow as tf


def value_and_gradients(layer, x):
    """Returns the output for `x`, and the gradients of a sum of it by `x` and by each weight.

    Every number of the output has a factor of its own in the sum.
    """
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        scalar = tf.reduce_sum(tf.sin(tf.reshape(tf.range(tf.size(y), dtype=y.dtype), y.shape)) * y)
    return [y, *tape.gradient(scalar, [x, *layer.trainable_weights])]
