"""Convolution that is fast for small images, with a written-out gradient of the bias.

At the end of a deep network, images have few pixels and kernels many numbers. ResNet-18 has three
kernels of 3x3 pixels and 512 x 512 channels for images of a single pixel. In the forward pass and
in both gradients, oneDNN first copies such a kernel into its own layout, and also multiplies it
with the padding. Here a convolution with few output pixels is one product of patches with the
unchanged kernel, without the parts that meet only padding. ResNet-18 then trains in 0.6 of the time
(`benchmarks/layers.py`).

TensorFlow passes the gradients of a convolution's filter and bias to oneDNN as one operation, which
sums the bias's gradient number by number. With a separate sum the EMNIST CNN trains in 0.95 of the
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.layers import as_written

_FEW = 9  # Pixels of an output.


class Conv2D(as_written.AsWritten, tf.keras.layers.Conv2D):
    """Keras's convolution, with equal weights, and faster on a CPU.

    Outputs of more than nine pixels equal Keras's exactly. Smaller outputs, and all gradients, are
    equal up to the order of float32 sums. With a GPU in the machine, with channels first, or with
    inputs of more dimensions, the layer runs Keras's own code.
    """

    def call(self, inputs: Any) -> Any:
        """Runs the layer.

        Args:
          inputs: `[batch, height, width, channels]`.

        Returns:
          `[batch, new height, new width, filters]`.
        """
        plain = self.data_format == "channels_last" and inputs.shape.rank == 4
        if not plain or tf.config.list_physical_devices("GPU"):
            return super().call(inputs)
        outputs = self._product(inputs)
        if outputs is None:
            if not self.use_bias:
                return super().call(inputs)
            outputs = self.convolution_op(inputs, self.kernel)
        if self.use_bias:
            outputs = _add_bias(outputs, tf.convert_to_tensor(self.bias))
        return outputs if self.activation is None else self.activation(outputs)

    def _product(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the convolution if its output has few pixels, else `None`."""
        height, width = x.shape[1:3]
        plain = self.groups == 1 and max(self.dilation_rate) == 1
        if not plain or height is None or width is None:
            return None
        rows, columns = (
            _met(*numbers, self.padding)
            for numbers in zip((height, width), self.kernel_size, self.strides, strict=True)
        )
        if not 0 < len(rows) * len(columns) <= _FEW:
            return None
        outputs = _convolve(x, tf.convert_to_tensor(self.kernel), rows, columns)
        return tf.reshape(outputs, [-1, len(rows), len(columns), self.filters])


def _met(inputs: int, size: int, stride: int, padding: str) -> np.ndarray:
    """Returns the input under each kernel position for each output, along one direction.

    Args:
      inputs: Number of inputs.
      size: Size of the kernel.
      stride: Stride of the outputs.
      padding: `same` or `valid`.

    Returns:
      Indices of inputs, `[outputs, size]`; -1 is padding.
    """
    if padding == "same":
        outputs = -(-inputs // stride)
        before = max((outputs - 1) * stride + size - inputs, 0) // 2
    else:
        outputs, before = max((inputs - size) // stride + 1, 0), 0
    met = stride * np.arange(outputs)[:, None] + np.arange(size) - before
    return np.where((met >= 0) & (met < inputs), met, -1)


def _convolve(x: tf.Tensor, kernel: tf.Tensor, rows: np.ndarray, columns: np.ndarray) -> tf.Tensor:
    """Convolves as one product.

    Args:
      x: `[batch, height, width, channels]`.
      kernel: `[kernel height, kernel width, channels, filters]`.
      rows: Result of `_met` for the rows.
      columns: Result of `_met` for the columns.

    Returns:
      `[batch * outputs, filters]`.
    """
    height, width, channels = x.shape[1:]
    filters = kernel.shape[3]
    # [outputs, places of the kernel], numbers of pixels.
    down, across = rows[:, None, :, None], columns[None, :, None, :]
    met = np.where((down < 0) | (across < 0), -1, down * width + across)
    met = met.reshape(len(rows) * len(columns), -1)
    # One after the other the places lie in memory, so what is cut off at the ends is not copied.
    used = np.flatnonzero((met >= 0).any(0))
    first, last = used[0], used[-1] + 1
    before, after = first * channels, (met.shape[1] - last) * channels
    met = met[:, first:last]
    # The other way round: [pixels, places of the kernel], numbers of patches' places.
    outputs, places = met.shape
    met_by = np.full([height * width, places], -1)
    at_output, at_place = np.nonzero(met >= 0)
    met_by[met[at_output, at_place], at_place] = at_output * places + at_place

    @tf.custom_gradient
    def product(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        pixels = tf.reshape(x, [-1, height * width, channels])
        patches = tf.reshape(_take(pixels, met), [-1, places * channels])
        flat = tf.reshape(kernel, [-1, filters])
        used = flat[before : before + places * channels]

        def gradients(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dused = tf.matmul(patches, dy, transpose_a=True)
            unused = [tf.zeros([n, filters], dy.dtype) for n in (before, after)]
            dkernel = tf.reshape(tf.concat([unused[0], dused, unused[1]], 0), kernel.shape)
            dpatches = tf.matmul(dy, used, transpose_b=True)
            dpatches = tf.reshape(dpatches, [-1, outputs * places, channels])
            dx = tf.reduce_sum(_take(dpatches, met_by), axis=2)
            return tf.reshape(dx, tf.shape(x)), dkernel

        return tf.matmul(patches, used), gradients

    return product(x, kernel)


def _take(values: tf.Tensor, places: np.ndarray) -> tf.Tensor:
    """Returns the values `[batch, n, channels]` at positions `[...]`, zeros at -1."""
    if np.any(places < 0):
        values = tf.pad(values, [[0, 0], [1, 0], [0, 0]])
        places = places + 1
    return tf.gather(values, tf.constant(places, tf.int32), axis=1)


@tf.custom_gradient
def _add_bias(x: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    # In the forward pass the bias stays where oneDNN adds it together with the convolution.
    return tf.nn.bias_add(x, bias), lambda dy: (dy, tf.reduce_sum(dy, [0, 1, 2]))
