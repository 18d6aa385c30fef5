"""Max-pooling over windows that do not overlap, with a separate backward pass.

On a CPU, TensorFlow's own gradient of max-pooling searches every window for its largest number
again. With it a client of the EMNIST CNN trains a fifth longer (`benchmarks/layers.py`). oneDNN's
gradient is faster. But TensorFlow substitutes it only if it visits the pooling before the gradient,
and inside a loop that order is random and differs between processes.

So here the gradient is a separate function that pools again, which makes the order certain. Without
oneDNN, and over several clients at once, it is a few elementwise operations.
"""

from typing import Any

import tensorflow as tf

from tasks.layers import as_written, vectorizable
from tff_suite.compat import pywrap_util_port  # Knows whether oneDNN is in use.


class MaxPool2D(as_written.AsWritten, tf.keras.layers.MaxPooling2D):
    """Keras's max-pooling, with equal outputs and gradients, and a faster backward pass on a CPU.

    Windows must tile the image: `strides` equal to `pool_size`, `padding="valid"`, channels last.
    If several numbers of a window are the largest, the gradient goes to the first of them, as in
    TensorFlow. If the machine has a GPU, the layer runs Keras's own code.
    """

    def __init__(self, pool_size: int | tuple[int, int] = (2, 2), **kwargs: Any):
        """Initialises the layer.

        Args:
          pool_size: Height and width of a window.
          **kwargs: Arguments of `tf.keras.layers.MaxPooling2D`.

        Raises:
          ValueError: If windows would overlap, leave gaps or be padded.
        """
        super().__init__(pool_size, **kwargs)
        if (
            self.strides != self.pool_size
            or self.padding != "valid"
            or self.data_format != "channels_last"
        ):
            raise ValueError(
                f"strides={self.strides}, padding={self.padding!r} and "
                f"data_format={self.data_format!r}: this layer only has strides equal to "
                "pool_size, padding='valid' and data_format='channels_last'."
            )

    def call(self, inputs: Any) -> Any:
        """Runs the layer.

        Args:
          inputs: `[batch, height, width, channels]`, all but the first static.

        Returns:
          `[batch, height // pool height, width // pool width, channels]`.
        """
        if tf.config.list_physical_devices("GPU"):
            return super().call(inputs)
        gradient = _by_onednn
        if vectorizable.required() or not pywrap_util_port.IsMklEnabled():
            gradient = _elementwise

        @tf.custom_gradient
        def pool(x: tf.Tensor) -> Any:
            y = tf.nn.max_pool2d(x, self.pool_size, self.pool_size, "VALID")
            return y, lambda dy: gradient(x, y, dy, *self.pool_size)

        return pool(inputs)


# Both give the gradient with respect to `x` [B, H, W, C], for `y` and `dy` [B, h, w, C].


def _by_onednn(x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, high: int, wide: int) -> tf.Tensor:
    del y  # Of another graph.
    window = [1, high, wide, 1]

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        y = tf.nn.max_pool2d(x, window, window, "VALID")
        return tf.raw_ops.MaxPoolGrad(
            orig_input=x, orig_output=y, grad=dy, ksize=window, strides=window, padding="VALID"
        )

    return gradient(x, dy)


def _elementwise(x: tf.Tensor, y: tf.Tensor, dy: tf.Tensor, high: int, wide: int) -> tf.Tensor:
    rows, columns, channels = y.shape[1:]
    windows = tf.reshape(
        x[:, : rows * high, : columns * wide], [-1, rows, high, columns, wide * channels]
    )
    # The part of dy that no number of the window has taken yet.
    left = dy
    parts = []
    for place in range(high * wide - 1):
        i, j = divmod(place, wide)
        numbers = windows[:, :, i, :, j * channels : (j + 1) * channels]
        # Stays where the number is below the largest; comparing makes and casts booleans.
        still = tf.raw_ops.ReluGrad(gradients=left, features=y - numbers)
        parts.append(left - still)
        left = still
    # Whatever no other number of the window has taken is the last one's.
    parts.append(left)
    lines = [tf.concat(parts[i * wide : (i + 1) * wide], axis=-1) for i in range(high)]
    dx = tf.reshape(tf.stack(lines, axis=2), [-1, rows * high, columns * wide, channels])
    rest = [x.shape[1] - rows * high, x.shape[2] - columns * wide]
    return tf.pad(dx, [[0, 0], [0, rest[0]], [0, rest[1]], [0, 0]]) if any(rest) else dx
