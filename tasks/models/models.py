"""Keras models of the tasks. They return logits, and only the seed determines initial weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import layers


class _Initial:
    """Gives each layer its own explicitly seeded initialisers, in the order of the calls."""

    def __init__(self, scheme: str, seed: int):
        if scheme not in ("torch", "keras"):
            raise ValueError(f"init={scheme!r} must be 'torch' or 'keras'.")
        self._scheme = scheme
        self._seed = seed
        self._asked = 0

    def __call__(
        self, fan_in: int, kernel: Callable | None = None
    ) -> dict[str, tf.keras.initializers.Initializer]:
        """Returns `kernel_initializer` and `bias_initializer` of a layer.

        Args:
          fan_in: Number of inputs of each output of the layer.
          kernel: Class of the kernel's initialiser under `keras`; Glorot's uniform by default.
        """
        kernel_seed, bias_seed = self._next_seed(), self._next_seed()
        if self._scheme == "keras":
            kernel = (kernel or tf.keras.initializers.GlorotUniform)(seed=kernel_seed)
            bias = tf.keras.initializers.Zeros()
        else:
            bound = fan_in**-0.5
            kernel = tf.keras.initializers.RandomUniform(-bound, bound, seed=kernel_seed)
            bias = tf.keras.initializers.RandomUniform(-bound, bound, seed=bias_seed)
        return {"kernel_initializer": kernel, "bias_initializer": bias}

    def embedding(self) -> tf.keras.initializers.Initializer:
        """Returns the initialiser of an embedding, U(-0.05, 0.05) in Keras and N(0, 1) in torch."""
        if self._scheme == "keras":
            return tf.keras.initializers.RandomUniform(seed=self._next_seed())
        return tf.keras.initializers.RandomNormal(stddev=1.0, seed=self._next_seed())

    def lstm(self, units: int, kernel: Callable | None = None) -> dict[str, Any]:
        """Returns initialisers of an LSTM and whether its forget gates start open.

        Args:
          units: Size of its state.
          kernel: Class of the input kernel's initialiser under `keras`; Glorot's uniform by
            default.
        """
        seeds = [self._next_seed() for _ in range(4)]
        if self._scheme == "keras":
            kernel = kernel or tf.keras.initializers.GlorotUniform
            return {
                "kernel_initializer": kernel(seed=seeds[0]),
                "recurrent_initializer": tf.keras.initializers.Orthogonal(seed=seeds[1]),
            }
        uniform = functools.partial(
            tf.keras.initializers.RandomUniform, -(units**-0.5), units**-0.5
        )
        return {
            "kernel_initializer": uniform(seed=seeds[0]),
            "recurrent_initializer": uniform(seed=seeds[1]),
            # PyTorch has two biases where Keras has one.
            "bias_initializer": layers.initializers.Zeros(
                _sum_of(uniform(seed=seeds[2]), uniform(seed=seeds[3]))
            ),
            "unit_forget_bias": False,
        }

    def _next_seed(self) -> int:
        self._asked += 1
        word = np.random.SeedSequence([self._seed, self._asked]).generate_state(1)[0]
        return int(word >> 1)  # Keras wants a non-negative int32.


def _sum_of(*parts: Callable) -> Callable:
    """Returns an initialiser that is the sum of independent initialisers."""

    def initializer(shape: Any, dtype: Any = None, **kwargs: Any) -> tf.Tensor:
        return tf.add_n([part(shape, dtype=dtype, **kwargs) for part in parts])

    return initializer


def softmax_regression(
    seed: int, *, num_inputs: int = 60, num_classes: int = 10, init: str = "torch"
) -> tf.keras.Model:
    """Makes a softmax regression: one dense layer (AdaFedAdam, Synthetic: 610 parameters).

    Args:
      seed: Seed of the initial weights.
      num_inputs: Features of an example.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, num_inputs]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input((num_inputs,))
    x = tf.keras.layers.Dense(num_classes, name="logits", **initial(num_inputs))(x)
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
    layers), 784-200-200-10 with 199,210 parameters; neither paper states the width.

    Args:
      seed: Seed of the initial weights.
      input_shape: Shape of an example; it is flattened first.
      hidden: Units of each hidden layer.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, *input_shape]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    inputs = tf.keras.Input(tuple(input_shape))
    x = tf.keras.layers.Flatten(name="flatten")(inputs)
    for i, units in enumerate(hidden, start=1):
        dense = tf.keras.layers.Dense(
            units, activation="relu", name=f"dense{i}", **initial(x.shape[-1])
        )
        x = dense(x)
    x = tf.keras.layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="mlp")


def emnist_cnn(seed: int, *, num_classes: int = 62, init: str = "keras") -> tf.keras.Model:
    """Makes the EMNIST CNN of FedOpt (Reddi et al. 2021, Table 4).

    Two 3x3 convolutions without padding (32 and 64 filters), 2x2 max-pooling, dropout 0.25, a dense
    layer of 128 units, dropout 0.5: 1,206,590 parameters with 62 classes, 1,199,882 with 10. As in
    TFF, which produced the paper's numbers, ReLU follows both convolutions and the 128 units; the
    table has it after the second convolution only. TFF's model ends in a softmax; this one returns
    the logits before it.

    Args:
      seed: Seed of the initial weights.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, 28, 28, 1]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input((28, 28, 1))
    for i, filters in enumerate((32, 64), start=1):
        fan_in = 9 * x.shape[-1]
        conv = layers.convolution.Conv2D(
            filters, 3, activation="relu", name=f"conv{i}", **initial(fan_in)
        )
        x = conv(x)
    x = layers.pooling.MaxPool2D(name="pool")(x)
    x = tf.keras.layers.Dropout(0.25, name="dropout1")(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    x = layers.dense.Dense(128, activation="relu", name="dense", **initial(x.shape[-1]))(x)
    x = tf.keras.layers.Dropout(0.5, name="dropout2")(x)
    x = tf.keras.layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="emnist_cnn")


def femnist_cnn(seed: int, *, num_classes: int = 62, init: str = "torch") -> tf.keras.Model:
    """Makes the FEMNIST CNN of Ditto (Li et al. 2021), which AdaFed uses.

    Two 5x5 convolutions with zero padding (16 and 32 filters), each with ReLU and 2x2 max-pooling.
    Then dropout 0.25, a dense layer of 128 units with ReLU, and dropout 0.5. It has 222,078
    parameters with 62 classes, 215,370 with 10.

    Args:
      seed: Seed of the initial weights.
      num_classes: Number of classes.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, 28, 28, 1]` to logits `[B, num_classes]`.
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input((28, 28, 1))
    for i, filters in enumerate((16, 32), start=1):
        conv = layers.convolution.Conv2D(
            filters,
            5,
            padding="same",
            activation="relu",
            name=f"conv{i}",
            **initial(25 * x.shape[-1]),
        )
        x = layers.pooling.MaxPool2D(name=f"pool{i}")(conv(x))
    x = tf.keras.layers.Dropout(0.25, name="dropout1")(x)
    x = tf.keras.layers.Flatten(name="flatten")(x)
    x = tf.keras.layers.Dense(128, activation="relu", name="dense", **initial(x.shape[-1]))(x)
    x = tf.keras.layers.Dropout(0.5, name="dropout2")(x)
    x = tf.keras.layers.Dense(num_classes, name="logits", **initial(x.shape[-1]))(x)
    return tf.keras.Model(inputs, x, name="femnist_cnn")


def autoencoder(seed: int, *, code: str = "linear", init: str = "keras") -> tf.keras.Model:
    """Makes the EMNIST autoencoder of FedOpt (Reddi et al. 2021, Table 3), 2,837,314 parameters.

    Dense layers 784-1000-500-250-30-250-500-1000-784 with sigmoids, the output's included.

    Args:
      seed: Seed of the initial weights.
      code: Activation of the 30 units in the middle: `linear` as in TFF and the released code, or
        `sigmoid` as the table prints it.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, 784]` to pixels of the same shape, in (0, 1).
    """
    initial = _Initial(init, seed)
    x = inputs = tf.keras.Input((784,))
    for i, units in enumerate((1000, 500, 250, 30, 250, 500, 1000, 784), start=1):
        dense = tf.keras.layers.Dense(
            units,
            activation=code if units == 30 else "sigmoid",
            name=f"dense{i}",
            **initial(x.shape[-1]),
        )
        x = dense(x)
    return tf.keras.Model(inputs, x, name="autoencoder")


def shakespeare_lstm(
    seed: int,
    *,
    vocab_size: int = 90,
    length: int = 80,
    num_layers: int = 2,
    units: int = 256,
    next_of_each: bool = True,
    init: str = "keras",
) -> tf.keras.Model:
    """Makes a next-character model: embedding of 8, LSTM layers, dense.

    The defaults give TFF's and FedOpt's model (Table 5, 820,522 parameters): the next character
    after each position, padding (0) masked. `vocab_size=80, next_of_each=False` gives LEAF's: the
    character after the window (AdaFed: two layers, 817,872 parameters; FedCAda and AdaFed's second
    setup: one layer, 292,560).

    Args:
      seed: Seed of the initial weights.
      vocab_size: Number of tokens.
      length: Tokens of an example.
      num_layers: Number of LSTM layers.
      units: Size of each LSTM layer.
      next_of_each: Whether to predict the next token after every position, with padding masked, or
        only after the last, without padding.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, int32 `[B, length]` to logits `[B, length, vocab_size]` or `[B, vocab_size]`.
    """
    initial = _Initial(init, seed)
    inputs = tf.keras.Input((length,), dtype=tf.int32)
    x = tf.keras.layers.Embedding(
        vocab_size,
        8,
        mask_zero=next_of_each,
        embeddings_initializer=initial.embedding(),
        name="embedding",
    )(inputs)
    for i in range(1, num_layers + 1):
        x = layers.lstm.LSTM(
            units,
            return_sequences=next_of_each or i < num_layers,
            name=f"lstm{i}",
            **initial.lstm(units, kernel=tf.keras.initializers.HeNormal),
        )(x)
    x = layers.sequences.Dense(vocab_size, name="logits", **initial(units))(x)
    return tf.keras.Model(inputs, x, name="shakespeare_lstm")


def sent140_lstm(
    seed: int,
    *,
    vocab_size: int,
    length: int = 25,
    vectors: np.ndarray | None = None,
    embedding_size: int = 300,
    units: int = 100,
    init: str = "torch",
) -> tf.keras.Model:
    """Makes the Sent140 model of AdaFedAdam: word vectors, two LSTM layers, dense layer of 2.

    It has 241,002 trainable parameters with frozen vectors; trained vectors add 300 per token.
    Padding (0) is masked.

    Args:
      seed: Seed of the initial weights.
      vocab_size: Number of tokens, including padding and the unknown word.
      length: Tokens of an example.
      vectors: Frozen word vectors, float32 `[vocab_size, embedding_size]`; `None`: trained.
      embedding_size: Size of a word's vector.
      units: Size of each LSTM layer.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, int32 `[B, length]` to logits `[B, 2]`.
    """
    initial = _Initial(init, seed)
    inputs = tf.keras.Input((length,), dtype=tf.int32)
    x = tf.keras.layers.Embedding(
        vocab_size,
        embedding_size,
        mask_zero=True,
        embeddings_initializer=(
            initial.embedding()
            if vectors is None
            else layers.initializers.Zeros(tf.constant_initializer(vectors))
        ),
        trainable=vectors is None,
        name="embedding",
    )(inputs)
    for i in (1, 2):
        lstm = layers.lstm.LSTM(
            units, return_sequences=i == 1, name=f"lstm{i}", **initial.lstm(units)
        )
        x = lstm(x)
    x = tf.keras.layers.Dense(2, name="logits", **initial(units))(x)
    return tf.keras.Model(inputs, x, name="sent140_lstm")


def word_lstm(
    seed: int,
    *,
    vocab_size: int = 10_004,
    length: int = 20,
    embedding_size: int = 96,
    units: int = 670,
    init: str = "keras",
) -> tf.keras.Model:
    """Makes the next-word model of FedOpt and TFF (Reddi et al. 2021, Table 6).

    Embedding, LSTM, dense layer of the embedding's size, dense: 4,050,748 parameters. Padding (0)
    is masked.

    Args:
      seed: Seed of the initial weights.
      vocab_size: Number of tokens, special ones included.
      length: Tokens of an example.
      embedding_size: Size of a word's embedding.
      units: Size of the LSTM layer.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, int32 `[B, length]` to logits `[B, length, vocab_size]`.
    """
    initial = _Initial(init, seed)
    inputs = tf.keras.Input((length,), dtype=tf.int32)
    x = tf.keras.layers.Embedding(
        vocab_size,
        embedding_size,
        mask_zero=True,
        embeddings_initializer=initial.embedding(),
        name="embedding",
    )(inputs)
    x = layers.lstm.LSTM(units, return_sequences=True, name="lstm", **initial.lstm(units))(x)
    x = layers.sequences.Dense(embedding_size, name="projection", **initial(units))(x)
    x = layers.sequences.Dense(vocab_size, name="logits", **initial(embedding_size))(x)
    return tf.keras.Model(inputs, x, name="word_lstm")


def tag_regression(
    seed: int, *, num_words: int = 10_000, num_tags: int = 500, init: str = "keras"
) -> tf.keras.Model:
    """Makes the tag prediction of FedOpt and TFF, a logistic regression of 5,000,500 parameters.

    TFF's model ends in a sigmoid; this one returns the logits before it.

    Args:
      seed: Seed of the initial weights.
      num_words: Words of the bag of words.
      num_tags: Number of tags.
      init: `torch` or `keras`, see `tasks.settings`.

    Returns:
      A built model, float32 `[B, num_words]` to logits `[B, num_tags]`.
    """
    initial = _Initial(init, seed)
    inputs = tf.keras.Input((num_words,))
    x = layers.sparse_inputs.Dense(num_tags, name="logits", **initial(num_words))(inputs)
    return tf.keras.Model(inputs, x, name="tag_regression")
