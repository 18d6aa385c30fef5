"""A dense layer for inputs that are mostly zeros, such as bags of words, held as dense arrays.

The products with a batch of such inputs, forward and backward, skip the zeros. A round of the tag
regression, with 30 words out of 10,000, takes half the time (W2 of `benchmarks.speed`). If a tenth
or more of the numbers are not zero, a plain dense layer is faster.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tasks.layers import as_written, vectorizable


class Dense(as_written.AsWritten, tf.keras.layers.Dense):
    """Keras's dense layer, with equal weights, outputs and gradients up to the order of sums.

    It runs Keras's own code if the machine has a GPU, over several clients at once, and if inputs
    are not floats `[batch, inputs]`.
    """

    def call(self, inputs: Any) -> Any:
        """Runs the layer.

        Args:
          inputs: `[batch, inputs]`, mostly zeros.

        Returns:
          `[batch, units]`.
        """
        plain = inputs.shape.rank == 2 and inputs.dtype == self.compute_dtype
        if not plain or tf.config.list_physical_devices("GPU") or vectorizable.required():
            return super().call(inputs)
        outputs = _product(inputs, tf.convert_to_tensor(self.kernel))
        if self.use_bias:
            outputs += self.bias
        return outputs if self.activation is None else self.activation(outputs)


@tf.custom_gradient
def _product(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Returns `x @ kernel`, `[batch, inputs]` times `[inputs, units]`."""
    places = tf.where(tf.not_equal(x, 0))
    sparse = {
        "a_indices": places,
        "a_values": tf.gather_nd(x, places),
        "a_shape": tf.shape(x, tf.int64),
    }

    def gradient(dy: tf.Tensor) -> tuple[Any, Any]:
        dx = tf.matmul(dy, kernel, transpose_b=True)
        return dx, tf.raw_ops.SparseTensorDenseMatMul(**sparse, b=dy, adjoint_a=True)

    return tf.raw_ops.SparseTensorDenseMatMul(**sparse, b=kernel), gradient
