"""Random Keras models with data, written as recipes: what hypothesis draws and a failure prints."""

import contextlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

L = tf.keras.layers


class Recipe(NamedTuple):
    """A Keras model and its data.

    Attributes:
      inputs: Kind of the inputs, a key of `INPUTS`.
      x_dtype: Their dtype.
      layers: Of each layer its name in `LAYERS`, and whether it is frozen.
      head: What the model predicts, a key of `HEADS`.
      loss: Place among the losses of the head, counted round and round.
      metrics: Places among its metrics.
      y_dtype: Dtype of the targets.
      column: Whether targets without a last dimension get one of 1.
      size: Number of examples.
      batch: Examples of a batch.
      seed: Seed of weights and examples.
    """

    inputs: str
    x_dtype: str
    layers: tuple[tuple[str, bool], ...]
    head: str
    loss: int
    metrics: tuple[int, ...]
    y_dtype: str
    column: bool
    size: int
    batch: int
    seed: int


# Shape of an example, and the greatest whole number in it.
INPUTS = {"row": ((4,), 9), "series": ((5, 3), 9), "image": ((6, 6, 2), 9), "words": ((5,), 7)}
_NUMBERS = ("float32", "float64", "float16", "int32", "int64", "uint8", "bool")
# Labels that are floats are refused by losses of classes.
_LABELS = ("int32", "int64", "uint8", "int8", "bool", "int16", "int32", "float32")
_X_DTYPES = dict.fromkeys(INPUTS, _NUMBERS) | {"words": ("int32", "int64", "uint8")}

# Dimensions of an example that a layer takes (all if none are named), and what makes it.
LAYERS = {
    "dense relu": ((1, 2), lambda: L.Dense(4, "relu")),
    "dense tanh": ((1, 2), lambda: L.Dense(3, "tanh", kernel_regularizer="l2")),
    "dense l1": ((1, 2), lambda: L.Dense(3, bias_regularizer="l1_l2", bias_initializer="ones")),
    "dense without bias": ((1, 2), lambda: L.Dense(4, "elu", use_bias=False)),
    "einsum": ((2,), lambda: L.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d")),
    "sigmoid": ((), lambda: L.Activation("sigmoid")),
    "swish": ((), lambda: L.Activation("swish")),
    "leaky": ((), L.LeakyReLU),
    "prelu": ((), L.PReLU),
    "softmax": ((), L.Softmax),
    "rescaling": ((), lambda: L.Rescaling(0.5, 0.1)),
    "lambda": ((), lambda: L.Lambda(lambda x: x - 0.1 * tf.square(x) / (1 + tf.square(x)))),
    "layer norm": ((), L.LayerNormalization),
    "batch norm": ((), lambda: L.BatchNormalization(trainable=False)),
    "group norm": ((2, 3), lambda: L.GroupNormalization(1)),
    "unit norm": ((1, 2), L.UnitNormalization),
    "repeat": ((1,), lambda: L.RepeatVector(3)),
    "flatten": ((2, 3), L.Flatten),
    "permute": ((2,), lambda: L.Permute((2, 1))),
    "masking": ((2,), lambda: L.Masking(0.0)),
    "lstm": ((2,), lambda: L.LSTM(3)),
    "lstm of each": ((2,), lambda: L.LSTM(3, return_sequences=True)),
    "gru": ((2,), lambda: L.GRU(3)),
    "rnn": ((2,), lambda: L.SimpleRNN(3, return_sequences=True)),
    "bidirectional": ((2,), lambda: L.Bidirectional(L.SimpleRNN(2))),
    "time distributed": ((2,), lambda: L.TimeDistributed(L.Dense(3, "relu"))),
    "conv1d": ((2,), lambda: L.Conv1D(3, 2, padding="same", activation="relu")),
    "separable1d": ((2,), lambda: L.SeparableConv1D(3, 2, padding="same")),
    "average1d": ((2,), L.GlobalAveragePooling1D),
    "max1d": ((2,), lambda: L.MaxPooling1D(2, padding="same")),
    "conv2d": ((3,), lambda: L.Conv2D(3, 3, padding="same", kernel_regularizer="l2")),
    "strided": ((3,), lambda: L.Conv2D(2, 2, 2, "same", activation="relu")),
    "depthwise": ((3,), lambda: L.DepthwiseConv2D(2, padding="same")),
    "transposed": ((3,), lambda: L.Conv2DTranspose(2, 2, padding="same")),
    "average2d": ((3,), lambda: L.AveragePooling2D(2, padding="same")),
    "max2d": ((3,), L.GlobalMaxPooling2D),
    "zeros2d": ((3,), lambda: L.ZeroPadding2D(1)),
}  # fmt: skip

_K = tf.keras.losses
_M = tf.keras.metrics
# Activation and number of outputs, number of classes of the targets (0: any numbers; `labels`: 0 or
# 1 each; `hot`: one-hot), losses and metrics.
HEADS = {
    "number": (None, 1, 0, ("mse", "mae", lambda: _K.Huber(0.3), "log_cosh",
        lambda: _K.MeanSquaredError(reduction="sum"), "mape"),
        ("mae", "mse", _M.LogCoshError, _M.MeanSquaredLogarithmicError)),
    "numbers": (None, 3, 0, ("mse", _K.MeanAbsoluteError, lambda: _K.CosineSimilarity(),
        lambda: _K.LogCosh(reduction="sum")), ("mae", _M.CosineSimilarity, _M.MeanSquaredError)),
    "yes or no": ("sigmoid", 1, 2, ("binary_crossentropy", lambda: _K.BinaryCrossentropy(
        label_smoothing=0.2), _K.BinaryFocalCrossentropy, "mse", "hinge"),
        ("accuracy", "acc", _M.BinaryAccuracy, lambda: _M.BinaryAccuracy(threshold=0.4),
         "crossentropy", _M.Accuracy, "squared_hinge")),
    "yes or no logit": (None, 1, 2, (lambda: _K.BinaryCrossentropy(from_logits=True), "hinge"),
        (lambda: _M.BinaryAccuracy(threshold=0.0), "binary_accuracy")),
    "classes": ("softmax", 3, 3, ("sparse_categorical_crossentropy", lambda:
        _K.SparseCategoricalCrossentropy(ignore_class=1)),
        ("accuracy", "ce", "sparse_categorical_accuracy", lambda:
         _M.SparseTopKCategoricalAccuracy(2))),
    "logits": (None, 3, 3, (lambda: _K.SparseCategoricalCrossentropy(from_logits=True),
        lambda: _K.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")),
        ("accuracy", _M.SparseCategoricalAccuracy)),
    "one-hot": ("softmax", 3, "hot", ("categorical_crossentropy", lambda:
        _K.CategoricalCrossentropy(label_smoothing=0.1), "kl_divergence", "categorical_hinge",
        _K.CategoricalFocalCrossentropy), ("accuracy", "categorical_accuracy", "ce", "poisson",
        lambda: _M.TopKCategoricalAccuracy(2))),
    "labels": ("sigmoid", 3, "labels", ("binary_crossentropy", "mse", _K.BinaryFocalCrossentropy,
        lambda: _K.Poisson()), ("binary_accuracy", "accuracy", _M.BinaryCrossentropy,
        _M.KLDivergence)),
}  # fmt: skip


def _recipes(kind, head):
    return st.builds(
        Recipe,
        st.just(kind),
        st.sampled_from(_X_DTYPES[kind]),
        st.lists(
            st.tuples(st.sampled_from(list(LAYERS)), st.sampled_from([False, False, True])),
            max_size=4,
        ).map(tuple),
        st.just(head),
        st.integers(0, 5),
        st.lists(st.integers(0, 6), max_size=2, unique=True).map(tuple),
        st.sampled_from(_LABELS if head in ("classes", "logits") else _NUMBERS),
        st.booleans(),
        st.integers(1, 9),
        st.integers(2, 5),
        st.integers(0, 10**6),
    )


RECIPES = st.sampled_from([(kind, head) for kind in INPUTS for head in HEADS]).flatmap(
    lambda pair: _recipes(*pair)
)


def _made(kind):
    return kind() if callable(kind) else kind


def model_of(recipe: Recipe) -> tf.keras.Model:
    """Makes the compiled model of a recipe, without layers that do not take what is before them."""
    tf.keras.utils.set_random_seed(recipe.seed)
    shape, largest = INPUTS[recipe.inputs]
    inputs = tf.keras.Input(shape, dtype=recipe.x_dtype)
    if recipe.inputs == "words":
        embedding = L.Embedding(largest + 1, 3, mask_zero=recipe.seed % 2 > 0)
        outputs = embedding(inputs)
    else:
        outputs = tf.cast(inputs, tf.float32)
        if recipe.seed % 3 == 0:
            x = inputs_of(recipe).astype(np.float32)
            # `adapt` traces a graph.
            layer = L.Normalization(mean=x.mean(), variance=x.var() + 1)
            outputs = layer(outputs)
    for name, frozen in recipe.layers:
        ranks, make = LAYERS[name]
        if not ranks or outputs.shape.rank - 1 in ranks:
            layer = make()
            with contextlib.suppress(ValueError):  # Such as a softmax over what is masked.
                outputs = layer(outputs)
                layer.trainable = layer.trainable and not frozen
    if outputs.shape.rank > 3 or (outputs.shape.rank == 3 and recipe.seed % 5):
        outputs = L.Flatten()(outputs)
    activation, number, _, losses, metrics = HEADS[recipe.head]
    keras_model = tf.keras.Model(inputs, L.Dense(number, activation)(outputs))
    named = {str(m): m for m in (metrics[i % len(metrics)] for i in recipe.metrics)}
    keras_model.compile(
        tf.keras.optimizers.SGD(0.05),
        _made(losses[recipe.loss % len(losses)]),
        [_made(m) for m in named.values()],
        run_eagerly=True,
    )
    return keras_model


def inputs_of(recipe: Recipe) -> np.ndarray:
    """Returns the inputs of a recipe's examples."""
    shape, largest = INPUTS[recipe.inputs]
    rng, size = np.random.default_rng(recipe.seed), (recipe.size, *shape)
    if recipe.x_dtype.startswith("float"):
        return rng.normal(size=size).astype(recipe.x_dtype)
    return rng.integers(0, largest + 1, size).astype(recipe.x_dtype)


def targets_of(recipe: Recipe, outputs_shape) -> np.ndarray:
    """Returns the targets of a recipe's examples, as of outputs of this shape."""
    _, number, classes, _, _ = HEADS[recipe.head]
    rng = np.random.default_rng(recipe.seed + 1)
    size = [recipe.size, *outputs_shape[1:-1]]
    if classes == 0:
        y = rng.normal(size=[*size, number]) + 2
    elif classes == "labels":
        y = rng.integers(0, 2, [*size, number])
    elif classes == "hot":
        y = np.eye(number)[rng.integers(0, number, size)]
    else:
        y = rng.integers(0, classes, [*size, 1])
        if recipe.y_dtype == "bool" and classes > 2:
            y = y > 0
    if y.shape[-1] == 1 and not recipe.column:
        y = y[..., 0]
    return y.astype(recipe.y_dtype)
