"""Normalisation for federated learning: by fixed statistics, or over groups of channels.

Keras's group normalisation multiplies every number by a mask of ones, and TensorFlow differentiates
the result operation by operation. With a written-out gradient ResNet-18 trains in 0.9 of the time
(`benchmarks/layers.py`), and its graph is built much faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from tasks.layers import as_written


class GroupNormalization(as_written.AsWritten, tf.keras.layers.GroupNormalization):
    """Keras's group normalisation, with equal weights, in fewer operations.

    Outputs and gradients are Keras's up to the order of float32 sums. The layer runs Keras's own
    code with a mask, without scale or offset, along any axis but the last, in 16 bits, or with
    inputs of unknown size.
    """

    def call(self, inputs: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
        """Normalises each example's groups of channels.

        Args:
          inputs: `[batch, ..., channels]`.
          mask: bool, of the inputs' shape or one that broadcasts to it; `None` includes everything.

        Returns:
          A tensor of the inputs' shape.
        """
        last = self.axis in (-1, inputs.shape.rank - 1)
        known = None not in inputs.shape[1:]
        # Sums of squares need more than 16 bits, which Keras has seen to.
        plain = last and known and self.scale and self.center and inputs.dtype == tf.float32
        if mask is not None or not plain:
            return super().call(inputs, mask)
        *places, channels = inputs.shape[1:]
        x = tf.reshape(inputs, [-1, math.prod(places), channels])
        gamma, beta = (tf.convert_to_tensor(w) for w in (self.gamma, self.beta))
        outputs = _normalize(self.groups, self.epsilon)(x, gamma, beta)
        return tf.reshape(outputs, tf.shape(inputs))


def _normalize(groups: int, epsilon: float) -> Callable:
    @tf.custom_gradient
    def normalize(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        places, channels = x.shape[1:]
        width = channels // groups

        def mean_of_group(sums: tf.Tensor) -> tf.Tensor:
            """Returns for each channel its group's mean, from sums over positions by channel."""
            by_group = tf.reshape(sums, [-1, groups, width])
            means = tf.reduce_sum(by_group, 2, keepdims=True) / float(places * width)
            return tf.reshape(means * tf.ones([width]), [-1, 1, channels])

        centred = x - mean_of_group(tf.reduce_sum(x, 1))
        variance = mean_of_group(tf.reduce_sum(centred * centred, 1))
        factor = tf.math.rsqrt(variance + epsilon)

        def gradients(dy: tf.Tensor) -> tuple[tf.Tensor, ...]:
            sums, products = tf.reduce_sum(dy, 1), tf.reduce_sum(dy * centred, 1)
            by_mean = factor * mean_of_group(gamma * sums)
            by_factor = factor * factor * factor * mean_of_group(gamma * products)
            dx = dy * (factor * gamma) - centred * by_factor - by_mean
            dgamma = tf.reduce_sum(products * tf.squeeze(factor, 1), 0)
            return dx, dgamma, tf.reduce_sum(sums, 0)

        return centred * (factor * gamma) + beta, gradients

    return normalize


class FixedBatchNormalization(as_written.AsWritten, tf.keras.layers.BatchNormalization):
    """Batch normalisation by its initial statistics, even in training.

    Scale and offset are trained. Batch statistics would have to be averaged over heterogeneous
    clients. With fixed statistics, the layer is a function of its weights and of one example.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Normalises `inputs`; `training` has no effect."""
        return super().call(inputs, training=False)
