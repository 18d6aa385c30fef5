"""Keras models of the tasks: they give logits, and a seed alone decides the initial weights."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

_layers = tf.keras.layers
_initializers = tf.keras.initializers


class _Initial:
    """Hands each layer its own explicitly seeded initialisers, in the order of asking."""

    def __init__(self, scheme: str, seed: int):
        if scheme not in ("torch", "keras"):
            raise ValueError(f"init={scheme!r} must be 'torch' or 'keras'.")
        self._scheme = scheme
        self._seed = seed
        self._asked = 0

    def __call__(self, fan_in: int) -> dict[str, tf.keras.initializers.Initializer]:
        """Returns `kernel_initializer` and `bias_initializer` of a layer.

        Args:
          fan_in: Inputs that one output of the layer sees.
        """
        kernel_seed, bias_seed = self._next_seed(), self._next_seed()
        if self._scheme == "keras":
            kernel, bias = _initializers.GlorotUniform(seed=kernel_seed), _initializers.Zeros()
        else:
            bound = fan_in**-0.5
            kernel = _initializers.RandomUniform(-bound, bound, seed=kernel_seed)
            bias = _initializers.RandomUniform(-bound, bound, seed=bias_seed)
        return {"kernel_initializer": kernel, "bias_initializer": bias}

    def _next_seed(self) -> int:
        self._asked += 1
        word = np.random.SeedSequence([self._seed, self._asked]).generate_state(1)[0]
        return int(word >> 1)  # Keras wants a non-negative int32.


def softmax_regression(
    seed: int, *, num_inputs: int = 60, num_classes: int = 10, init: str = "torch"
) -> tf.keras.Model:
    """Makes a softmax regression: one dense layer (AdaFedAdam, Synthetic: 610 parameters).

    Args:
      seed: Seed of the initial weights.
      num_inputs: Features of an example.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.builtin`.

    Returns:
      A built model, float32 `[B, num_inputs]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input((num_inputs,))
    x = _layers.Dense(num_classes, name="logits", **initial(num_inputs))(x)
    return tf.keras.Model(inputs, x, name="softmax_regression")


def mlp(
    seed: int,
    *,
    input_shape: Sequence[int] = (28, 28, 1),
    hidden: Sequence[int] = (200, 200),
    num_classes: int = 10,
    init: str = "torch",
) -> tf.keras.Model:
    """Makes a multi-layer perceptron with ReLU between its dense layers.

    The defaults are the Fashion-MNIST model of FedCAda (three layers) and AdaFed (two hidden
    layers), 784-200-200-10 with 199,210 parameters; both papers leave the width open.

    Args:
      seed: Seed of the initial weights.
      input_shape: Shape of an example; it is flattened first.
      hidden: Units of each hidden layer.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.builtin`.

    Returns:
      A built model, float32 `[B, *input_shape]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    inputs = tf.keras.Input(tuple(input_shape))
    x = _layers.Flatten(name="flatten")(inputs)
    for i, units in enumerate(hidden, start=1):
        dense = _layers.Dense(units, activation="relu", name=f"dense{i}", **initial(x.shape[-1]))
        x = dense(x)
    x = _layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="mlp")


def emnist_cnn(seed: int, *, num_classes: int = 62, init: str = "keras") -> tf.keras.Model:
    """Makes the EMNIST CNN of FedOpt (Reddi et al. 2021, Table 4).

    Two 3x3 convolutions without padding (32 and 64 filters), 2x2 max-pooling, dropout 0.25, a dense
    layer of 128 units, dropout 0.5: 1,206,590 parameters with 62 classes, 1,199,882 with 10. As in
    TFF, which produced the paper's numbers, ReLU follows both convolutions and the 128 units; the
    table prints it after the second convolution only. TFF's model ends in a softmax; this one gives
    the logits before it.

    Args:
      seed: Seed of the initial weights.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.builtin`.

    Returns:
      A built model, float32 `[B, 28, 28, 1]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input((28, 28, 1))
    for i, filters in enumerate((32, 64), start=1):
        fan_in = 9 * x.shape[-1]
        conv = _layers.Conv2D(filters, 3, activation="relu", name=f"conv{i}", **initial(fan_in))
        x = conv(x)
    x = _layers.MaxPool2D(name="pool")(x)
    x = _layers.Dropout(0.25, name="dropout1")(x)
    x = _layers.Flatten(name="flatten")(x)
    x = _layers.Dense(128, activation="relu", name="dense", **initial(x.shape[-1]))(x)
    x = _layers.Dropout(0.5, name="dropout2")(x)
    x = _layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="emnist_cnn")
