"""Batch normalisation without statistics of a batch, which clients would have to share."""

import tensorflow as tf


class FixedBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalisation by the statistics it starts with, in training as well.

    Scale and offset are trained. Statistics of a batch would have to be averaged between clients,
    which are not alike; fixed, the layer is a function of its weights and of one example.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Normalises `inputs`; `training` has no effect."""
        return super().call(inputs, training=False)
