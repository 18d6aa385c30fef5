"""Preprocessing of images, as the first layer of a model.

Clients can then hold bytes, which take a quarter of the memory, and random distortion is drawn anew
in every training step.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tasks.layers import as_written

_IMAGENET_MEANS = (103.939, 116.779, 123.68)  # Blue, green, red.


class PrepareImages(as_written.AsWritten, tf.keras.layers.Layer):
    """Crops, flips and scales images, as FedOpt (Reddi et al. 2021, App. C.1) does for CIFAR.

    In training with `distort`, a square is cut out at a random position and flipped left to right
    with probability 1/2, separately for each image. Otherwise the central square is cut out.
    """

    prepares_inputs = True  # See `tff_algos.from_keras`.

    def __init__(self, crop: int, distort: bool, scaling: str, **kwargs: Any):
        """Initialises the layer.

        Args:
          crop: Height and width of the square, in pixels.
          distort: Whether to crop and flip at random in training.
          scaling: `standardize` subtracts an image's mean and divides by its standard deviation,
            over all pixels and channels. `unit` divides by 255. `imagenet` turns RGB into BGR and
            subtracts ImageNet's mean of each channel, as `tf.keras.applications.resnet` does.
          **kwargs: As for every Keras layer.

        Raises:
          ValueError: If `scaling` is none of these.
        """
        super().__init__(**kwargs)
        if scaling not in ("standardize", "unit", "imagenet"):
            raise ValueError(f"scaling={scaling!r} must be standardize, unit or imagenet.")
        self.crop = crop
        self.distort = distort
        self.scaling = scaling

    def call(
        self, inputs: tf.Tensor, training: bool | None = None, uniform: Callable = tf.random.uniform
    ) -> tf.Tensor:
        """Prepares images.

        Args:
          inputs: `[B, H, W, C]`, 0 to 255, of any type.
          training: Whether this is training.
          uniform: Function of a shape that draws from [0, 1); see `tff_algos.keras_bridge`.

        Returns:
          float32 `[B, crop, crop, C]`.
        """
        x = tf.cast(inputs, tf.float32)
        if training and self.distort:
            x = self._distorted(x, uniform(tf.stack([tf.shape(x)[0], 3])))
        else:
            top, left = (margin // 2 for margin in self._margins(x))
            x = x[:, top : top + self.crop, left : left + self.crop]
        if self.scaling == "standardize":
            return tf.image.per_image_standardization(x)
        if self.scaling == "imagenet":
            return x[..., ::-1] - _IMAGENET_MEANS
        return x / 255

    def _margins(self, x: tf.Tensor) -> Any:
        margins = [size - self.crop for size in x.shape[1:3]]
        if min(margins) < 0:
            raise ValueError(f"A square of {self.crop} does not fit into images of {x.shape[1:3]}.")
        return margins

    def _distorted(self, x: tf.Tensor, draws: Any) -> tf.Tensor:
        starts = []
        for margin, draw in zip(self._margins(x), (draws[:, 0], draws[:, 1]), strict=True):
            # The product may be rounded up to margin + 1.
            start = tf.minimum(tf.cast(draw * (margin + 1), tf.int32), margin)
            starts.append(start[:, tf.newaxis])
        steps = tf.range(self.crop)
        rows = starts[0] + steps
        columns = starts[1] + tf.where(draws[:, 2:] < 0.5, self.crop - 1 - steps, steps)
        x = tf.gather(x, rows, axis=1, batch_dims=1)
        return tf.gather(x, columns, axis=2, batch_dims=1)
