"""Every layer of Keras in a round: trains as in Keras, or is refused in one line that names it."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from simulation.engine.batched_ops import NotVectorizable
from tests.tff_algos.test_keras_features import Y, one_step, step_of_keras
from tff_algos.keras_bridge import from_keras
from tff_algos.model import ModelError

L = tf.keras.layers


def _normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=(len(Y), *shape)).astype(np.float32)


ROW, SEQUENCE, IMAGE, VOLUME = _normal(6), _normal(6, 4), _normal(8, 8, 3), _normal(4, 4, 4, 2)
FILMS = {"1D": _normal(3, 5, 2), "2D": _normal(3, 4, 4, 2), "3D": _normal(2, 3, 3, 3, 2)}
OF_RANK = {"1D": SEQUENCE, "2D": IMAGE, "3D": VOLUME}
WORDS = np.random.default_rng(0).integers(0, 9, (len(Y), 6)).astype(np.int32)


def _two(layer):
    return lambda x: layer([L.Dense(4)(x), L.Dense(4)(x)])


def _adapted():
    layer = L.Normalization()
    layer.adapt(ROW)
    return layer


# Name of the layer's class and a word: inputs, and what makes the layer or calls it.
LAYERS = {
    "Dense": (ROW, lambda: L.Dense(4, "relu")),
    "Dense rank 3": (SEQUENCE, lambda: L.Dense(4)),
    "EinsumDense": (SEQUENCE, lambda: L.EinsumDense("abc,cd->abd", (None, 5), bias_axes="d")),
    "Conv1D": (SEQUENCE, lambda: L.Conv1D(3, 2)),
    "Conv1D causal": (SEQUENCE, lambda: L.Conv1D(3, 2, padding="causal", dilation_rate=2)),
    "Conv2D": (IMAGE, lambda: L.Conv2D(3, 3, 2, "same")),
    "Conv2D dilated": (IMAGE, lambda: L.Conv2D(3, 3, dilation_rate=2)),
    "Conv2D grouped": (IMAGE, lambda: L.Conv2D(6, 3, groups=3)),
    "Conv3D": (VOLUME, lambda: L.Conv3D(3, 2)),
    "Conv1DTranspose": (SEQUENCE, lambda: L.Conv1DTranspose(3, 2, 2)),
    "Conv2DTranspose": (IMAGE, lambda: L.Conv2DTranspose(3, 3, 2)),
    "Conv2DTranspose same": (IMAGE, lambda: L.Conv2DTranspose(3, 3, 2, "same")),
    "Conv3DTranspose": (VOLUME, lambda: L.Conv3DTranspose(3, 2)),
    "DepthwiseConv1D": (SEQUENCE, lambda: L.DepthwiseConv1D(2)),
    "DepthwiseConv2D": (IMAGE, lambda: L.DepthwiseConv2D(3, depth_multiplier=2)),
    "SeparableConv1D": (SEQUENCE, lambda: L.SeparableConv1D(3, 2)),
    "SeparableConv2D": (IMAGE, lambda: L.SeparableConv2D(3, 3)),
    "LocallyConnected1D": (SEQUENCE, lambda: L.LocallyConnected1D(3, 2)),
    "LocallyConnected2D": (IMAGE, lambda: L.LocallyConnected2D(3, 3)),
    "MaxPooling2D same": (IMAGE, lambda: L.MaxPooling2D(3, 2, "same")),
    "GlobalAveragePooling2D kept": (IMAGE, lambda: L.GlobalAveragePooling2D(keepdims=True)),
    "UpSampling2D bilinear": (IMAGE, lambda: L.UpSampling2D(2, interpolation="bilinear")),
    "BatchNormalization": (ROW, L.BatchNormalization),
    "BatchNormalization frozen": (ROW, lambda: L.BatchNormalization(trainable=False)),
    "LayerNormalization": (SEQUENCE, L.LayerNormalization),
    "LayerNormalization axes": (SEQUENCE, lambda: L.LayerNormalization(axis=[1, 2])),
    "GroupNormalization": (IMAGE, lambda: L.GroupNormalization(3)),
    "UnitNormalization": (SEQUENCE, L.UnitNormalization),
    "SpectralNormalization": (ROW, lambda: L.SpectralNormalization(L.Dense(3))),
    "Normalization": (ROW, _adapted),
    "GaussianDropout": (ROW, lambda: L.GaussianDropout(0.5)),
    "GaussianNoise": (ROW, lambda: L.GaussianNoise(0.5)),
    "AlphaDropout": (ROW, lambda: L.AlphaDropout(0.5)),
    "ActivityRegularization": (ROW, lambda: L.ActivityRegularization(0.1)),
    "ELU": (ROW, L.ELU),
    "LeakyReLU": (ROW, L.LeakyReLU),
    "PReLU": (ROW, L.PReLU),
    "PReLU shared": (SEQUENCE, lambda: L.PReLU(shared_axes=[1])),
    "ReLU": (ROW, lambda: L.ReLU(6.0, 0.1, 0.2)),
    "Softmax": (ROW, L.Softmax),
    "Softmax axes": (SEQUENCE, lambda: L.Softmax(axis=[1, 2])),
    "ThresholdedReLU": (ROW, lambda: L.ThresholdedReLU(0.5)),
    "Flatten": (IMAGE, L.Flatten),
    "Reshape": (SEQUENCE, lambda: L.Reshape((3, -1))),
    "Permute": (SEQUENCE, lambda: L.Permute((2, 1))),
    "RepeatVector": (ROW, lambda: L.RepeatVector(3)),
    "Embedding": (WORDS, lambda: L.Embedding(9, 4)),
    "Embedding masked": (WORDS, lambda: L.Embedding(9, 4, mask_zero=True)),
    "Masking": (SEQUENCE, lambda: lambda x: L.LSTM(3)(L.Masking()(x))),
    "LSTM": (SEQUENCE, lambda: L.LSTM(3)),
    "LSTM sequences": (SEQUENCE, lambda: L.LSTM(3, return_sequences=True)),
    "LSTM backwards": (SEQUENCE, lambda: L.LSTM(3, go_backwards=True)),
    "LSTM relu": (SEQUENCE, lambda: L.LSTM(3, activation="relu")),
    "LSTM unrolled": (SEQUENCE, lambda: L.LSTM(3, unroll=True)),
    "LSTM dropout": (SEQUENCE, lambda: L.LSTM(3, dropout=0.3)),
    "GRU": (SEQUENCE, lambda: L.GRU(3)),
    "GRU before": (SEQUENCE, lambda: L.GRU(3, reset_after=False)),
    "SimpleRNN": (SEQUENCE, lambda: L.SimpleRNN(3)),
    "RNN": (SEQUENCE, lambda: L.RNN([L.GRUCell(3), L.LSTMCell(2)])),
    "Bidirectional": (SEQUENCE, lambda: L.Bidirectional(L.GRU(3), merge_mode="sum")),
    "TimeDistributed": (SEQUENCE, lambda: L.TimeDistributed(L.Dense(3))),
    "Dot": (ROW, lambda: _two(L.Dot(1, normalize=True))),
    "MultiHeadAttention": (SEQUENCE, lambda: lambda x: L.MultiHeadAttention(2, 3)(x, x)),
    "Attention": (SEQUENCE, lambda: lambda x: L.Attention(use_scale=True)([x, x])),
    "AdditiveAttention": (SEQUENCE, lambda: lambda x: L.AdditiveAttention()([x, x])),
    "Lambda": (ROW, lambda: L.Lambda(lambda x: x * 2)),
    "Identity": (ROW, L.Identity),
    "Rescaling": (ROW, lambda: L.Rescaling(0.5, 1.0)),
    "Resizing": (IMAGE, lambda: L.Resizing(4, 4)),
    "CenterCrop": (IMAGE, lambda: L.CenterCrop(4, 4)),
    "RandomFlip": (IMAGE, L.RandomFlip),
    "RandomCrop": (IMAGE, lambda: L.RandomCrop(4, 4)),
    "RandomContrast": (IMAGE, lambda: L.RandomContrast(0.1)),
    "CategoryEncoding": (WORDS, lambda: L.CategoryEncoding(9, "multi_hot")),
    "Hashing": (WORDS, lambda: L.Hashing(5)),
    "IntegerLookup": (WORDS, lambda: L.IntegerLookup(vocabulary=[1, 2, 3])),
    **{f"Activation {name}": (ROW, lambda name=name: L.Activation(name)) for name in (
        "elu", "exponential", "gelu", "hard_sigmoid", "mish", "relu", "selu", "sigmoid", "softmax",
        "softplus", "softsign", "swish", "tanh",
    )},
    **{name: (ROW, lambda name=name: _two(getattr(L, name)())) for name in (
        "Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract",
    )},
    **{name + rank: (x, lambda name=name, rank=rank: getattr(L, name + rank)())
       for name in ("AveragePooling", "MaxPooling", "GlobalAveragePooling", "GlobalMaxPooling",
                    "UpSampling", "ZeroPadding", "Cropping")
       for rank, x in OF_RANK.items()},
    **{f"ConvLSTM{rank}": (x, lambda rank=rank: getattr(L, f"ConvLSTM{rank}")(2, 2))
       for rank, x in FILMS.items()},
}  # fmt: skip

# Drawn by the run's seed, so not as Keras draws: see test_keras_bridge.py.
_DROPOUT = {"Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"}
# What other layers are made of, or what has no place in a model that is a function of its weights.
_NO_LAYERS = {
    *("AbstractRNNCell", "Activation", "GRUCell", "InputLayer", "InputSpec", "LSTMCell", "Layer"),
    *("SimpleRNNCell", "StackedRNNCells", "Wrapper", "DenseFeatures"),
    # Like those of their kind above: they draw from a generator, or read text or tables.
    *("RandomBrightness", "RandomHeight", "RandomRotation", "RandomTranslation", "RandomWidth"),
    *("RandomZoom", "Discretization", "HashedCrossing", "StringLookup", "TextVectorization"),
}


def _model(make, x):
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input(x.shape[1:], dtype=x.dtype)
    outputs = make()(inputs)
    if outputs.dtype.is_integer:
        outputs = tf.cast(outputs, tf.float32)
    if outputs.shape.rank > 2:
        outputs = L.Flatten()(outputs)
    return tf.keras.Model(inputs, L.Dense(3)(outputs))


@pytest.mark.slow
@pytest.mark.quick_cases("Dense", "PReLU", "MaxPooling1D", "UpSampling1D", "Attention")
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_is_that_of_keras(name):
    """Of one client in `tff` and of two in `vectorized`, whose batch has padding."""
    x, make = LAYERS[name]
    keras_model = _model(make, x)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    try:
        model = from_keras(keras_model, loss=loss)
    except ModelError as e:
        assert "\n" not in str(e)
        assert "Layer '" in str(e) or "layer '" in str(e)
        return
    want = step_of_keras(keras_model, loss, x)
    for runtime, clients in (("tff", 1), ("vectorized", 2)):
        try:
            weights = one_step(model, x, runtime=runtime, padding=2, clients=clients)
        except NotVectorizable as e:
            assert "\n" not in str(e)
            continue
        for got, value in zip(weights, want, strict=True):
            np.testing.assert_allclose(got, value, rtol=3e-5, atol=3e-6)


def test_no_layer_is_left_out():
    layers = {n for n, c in inspect.getmembers(L, inspect.isclass) if issubclass(c, L.Layer)}
    aliases = {n for n in layers if getattr(L, n).__name__ != n} - {"LSTM", "GRU"}
    named = {name.split(" ")[0] for name in LAYERS}
    assert layers - aliases - named - _DROPOUT - _NO_LAYERS == set()
