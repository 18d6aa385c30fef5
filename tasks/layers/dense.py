"""Dense layer whose gradient for its inputs is computed in blocks of the kernel.

For that gradient oneDNN first writes a transposed copy of the whole kernel. A block of the kernel
stays in the processor's cache meanwhile. The EMNIST CNN (9,216 inputs, 128 units) then trains in
0.97 of the time (`benchmarks/layers.py`). A kernel with many units gains nothing.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tasks.layers import as_written

_BLOCK_NUMBERS = 2**16  # 256 KiB of float32, a quarter of a core's second-level cache.


class Dense(as_written.AsWritten, tf.keras.layers.Dense):
    """Keras's dense layer, with equal outputs, and a faster backward pass on a CPU.

    Gradients are Keras's up to the order of float32 sums. The layer runs Keras's own code if the
    machine has a GPU, if inputs are not floats `[batch, features]`, or if the kernel is a single
    block.
    """

    def call(self, inputs: Any) -> Any:
        """Runs the layer.

        Args:
          inputs: `[batch, features]`.

        Returns:
          `[batch, units]`.
        """
        features, units = self.kernel.shape
        rows = max(1, _BLOCK_NUMBERS // units)
        plain = inputs.shape.rank == 2 and inputs.dtype == self.compute_dtype
        if features <= rows or not plain or tf.config.list_physical_devices("GPU"):
            return super().call(inputs)

        @tf.custom_gradient
        def product(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                blocks = tf.split(kernel, _sizes(features, rows))
                dx = tf.concat([tf.matmul(dy, b, transpose_b=True) for b in blocks], axis=1)
                return dx, tf.matmul(x, dy, transpose_a=True)

            return tf.matmul(x, kernel), gradient

        outputs = product(inputs, tf.convert_to_tensor(self.kernel))
        if self.use_bias:
            outputs = tf.nn.bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)


def _sizes(total: int, most: int) -> list[int]:
    whole, rest = divmod(total, most)
    return [most] * whole + [rest] * bool(rest)
