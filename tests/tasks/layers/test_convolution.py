import numpy as np
import pytest
import tensorflow as tf

from tasks.layers.convolution import Conv2D
from tests.tasks.gradients import value_and_gradients


@pytest.mark.parametrize(
    "arguments",
    [
        {"activation": "relu"},
        {"padding": "same", "strides": 2},
        {"use_bias": False},
        {"dilation_rate": 2},
    ],
    ids=str,
)
def test_value_and_gradients_are_kerass(arguments):
    x = np.random.default_rng(0).normal(size=(6, 11, 9, 3)).astype(np.float32)
    layers = [cls(5, 3, **arguments) for cls in (tf.keras.layers.Conv2D, Conv2D)]
    for layer in layers:
        layer.build((None, 11, 9, 3))
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=w.shape).astype(np.float32) for w in layers[0].get_weights()]
    for layer in layers:
        layer.set_weights(weights)
    keras, ours = (
        tf.function(lambda x, layer=layer: value_and_gradients(layer, x), autograph=False)(x)
        for layer in layers
    )
    assert len(ours) == 2 + len(weights)
    for a, b in zip(ours, keras, strict=True):
        assert np.any(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def test_the_bias_is_summed_apart_from_the_filter():
    layer = Conv2D(4, 3)
    layer.build((None, 8, 8, 3))
    traced = tf.function(lambda x: value_and_gradients(layer, x)[1:], autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([2, 8, 8, 3])).graph
    # TensorFlow joins `BiasAddGrad` with the filter's gradient.
    assert "BiasAddGrad" not in {op.type for op in graph.get_operations()}
