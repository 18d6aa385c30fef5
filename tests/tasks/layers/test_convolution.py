import numpy as np
import pytest
import tensorflow as tf

from tasks.layers.convolution import Conv2D
from tests.simulation.engine.test_batched_ops import assert_same
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


@pytest.mark.quick_cases("3-*", "size3-*")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("strides", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, (5, 2)])
def test_small_images_have_kerass_value_and_gradients(size, strides, padding):
    rng = np.random.default_rng(0)
    products = 0
    for shape in [(1, 1), (2, 2), (3, 3), (1, 4), (5, 3), (4, 7)]:
        kernel = size if isinstance(size, tuple) else (size, size)
        if padding == "valid" and any(n < k for n, k in zip(shape, kernel, strict=True)):
            continue
        x = rng.normal(size=(4, *shape, 3)).astype(np.float32)
        keras, ours = (cls(5, size, strides, padding) for cls in (tf.keras.layers.Conv2D, Conv2D))
        for layer in (keras, ours):
            layer.build(x.shape)
            layer.set_weights(keras.get_weights())
        assert ours.compute_output_shape(x.shape) == ours(x).shape
        for a, b in zip(value_and_gradients(ours, x), value_and_gradients(keras, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
        products += operations(ours, x.shape).count("MatMul") > 0
    assert products


def operations(layer, shape):
    traced = tf.function(layer, autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([None, *shape[1:]])).graph
    return [op.type for op in graph.get_operations()]


def test_a_convolution_that_gives_few_pixels_is_a_product_without_the_padding():
    layer = Conv2D(8, 3, padding="same", use_bias=False)
    layer.build((None, 1, 1, 4))
    assert "Conv2D" not in operations(layer, (None, 3, 3, 4))
    assert "Conv2D" in operations(layer, (None, 3, 4, 4))
    graph = tf.function(layer, autograph=False).get_concrete_function(tf.TensorSpec([6, 1, 1, 4]))
    (product,) = (op for op in graph.graph.get_operations() if op.type == "MatMul")
    assert [t.shape.as_list() for t in product.inputs] == [[6, 4], [4, 8]]


@pytest.mark.parametrize(("shape", "strides"), [((1, 1), 1), ((2, 2), 2), ((3, 3), 1)])
def test_a_product_has_a_form_over_a_cohort(shape, strides):
    layer = Conv2D(5, 3, strides, "same")
    layer.build((None, *shape, 3))
    x = np.random.default_rng(0).normal(size=(3, 4, *shape, 3)).astype(np.float32)
    assert_same(lambda x: value_and_gradients(layer, x), x)


def test_the_bias_is_summed_apart_from_the_filter():
    layer = Conv2D(4, 3)
    layer.build((None, 8, 8, 3))
    traced = tf.function(lambda x: value_and_gradients(layer, x)[1:], autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([2, 8, 8, 3])).graph
    # TensorFlow joins `BiasAddGrad` with the filter's gradient.
    assert "BiasAddGrad" not in {op.type for op in graph.get_operations()}


@pytest.mark.parametrize("size", [3, 6], ids=["few pixels", "many"])
def test_inputs_of_more_dimensions_are_kerass(size):
    x = np.random.default_rng(0).normal(size=(2, 3, size, size, 2)).astype(np.float32)
    ours, keras = (cls(4, 3, padding="same") for cls in (Conv2D, tf.keras.layers.Conv2D))
    for layer in (keras, ours):
        layer.build(x.shape)
        layer.set_weights(keras.get_weights())
    for a, b in zip(value_and_gradients(ours, x), value_and_gradients(keras, x), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("size", [3, 6], ids=["few pixels", "many"])
def test_computes_in_16_bits_outside_of_the_suite(size):
    x = np.random.default_rng(0).normal(size=(2, size, size, 2)).astype(np.float32)
    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    exact, ours = Conv2D(4, 3, padding="same"), Conv2D(4, 3, padding="same", dtype=policy)
    for layer in (exact, ours):
        layer.build(x.shape)
        layer.set_weights([exact.get_weights()[0], np.arange(4)])
    got = ours(x)
    assert got.dtype == tf.float16
    np.testing.assert_allclose(got, exact(x), atol=0.01)
