import numpy as np
import pytest
import tensorflow as tf

from tasks.layers.dense import Dense
from tests.simulation.engine.test_batched_ops import assert_same
from tests.tasks.gradients import value_and_gradients

FEATURES, UNITS = 1100, 128  # Two blocks of 512 and one of 76.


def layer_like(cls, **arguments):
    layer = cls(UNITS, **arguments)
    layer.build((None, FEATURES))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    return layer


@pytest.mark.parametrize("arguments", [{"activation": "relu"}, {"use_bias": False}], ids=str)
def test_value_and_gradients_are_kerass(arguments):
    x = np.random.default_rng(0).normal(size=(6, FEATURES)).astype(np.float32)
    ours, keras = (
        value_and_gradients(layer_like(cls, **arguments), x)
        for cls in (Dense, tf.keras.layers.Dense)
    )
    np.testing.assert_array_equal(ours[0], keras[0])
    assert len(ours) == len(keras)
    for a, b in zip(ours, keras, strict=True):
        assert np.any(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def products(units, *shape):
    layer = Dense(units)
    layer.build((None, shape[-1]))
    traced = tf.function(lambda x: value_and_gradients(layer, x), autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec(shape)).graph
    return [op.outputs[0].shape for op in graph.get_operations() if op.type == "MatMul"]


def test_the_inputs_gradient_is_made_in_blocks_of_a_large_kernel():
    assert products(UNITS, 6, FEATURES) == [
        (6, UNITS), (6, 512), (6, 512), (6, 76), (FEATURES, UNITS),
    ]  # fmt: skip
    assert products(4, 6, FEATURES) == [(6, 4), (6, FEATURES), (FEATURES, 4)]


def test_has_a_form_over_a_cohort():
    layer = layer_like(Dense, activation="relu")

    def run(x):
        return value_and_gradients(layer, x)

    assert_same(run, np.random.default_rng(0).normal(size=(3, 4, FEATURES)).astype(np.float32))


def test_whole_numbers_are_cast_as_kerass():
    x = np.random.default_rng(0).integers(0, 3, (6, FEATURES))
    got, wanted = (layer_like(cls)(x) for cls in (Dense, tf.keras.layers.Dense))
    assert np.any(wanted)
    np.testing.assert_array_equal(got, wanted)


def test_computes_in_16_bits_outside_of_the_suite():
    x = np.random.default_rng(0).normal(size=(6, FEATURES)).astype(np.float32)
    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    got, wanted = layer_like(Dense, dtype=policy)(x), layer_like(Dense)(x)
    assert got.dtype == tf.float16
    np.testing.assert_allclose(got, wanted, atol=0.01 * np.abs(wanted).max())
