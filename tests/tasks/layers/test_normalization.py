import numpy as np
import pytest
import tensorflow as tf

from tasks.layers.normalization import GroupNormalization
from tests.simulation.engine.test_batched_ops import assert_same
from tests.tasks.gradients import value_and_gradients


def layer_like(cls, shape, groups, **arguments):
    layer = cls(groups, **arguments)
    layer.build((None, *shape))
    rng = np.random.default_rng(1)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.get_weights()])
    return layer


def examples(*shape):
    # Far from zero, and each channel elsewhere.
    rng = np.random.default_rng(0)
    return (rng.normal(size=shape) + 5 * rng.normal(size=shape[-1])).astype(np.float32)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("shape", [(5, 4, 8), (1, 1, 8), (7, 8), (8,)], ids=str)
def test_value_and_gradients_are_kerass(shape, groups):
    x = examples(6, *shape)
    if groups == 8 and len(shape) == 1:
        pytest.skip("A number alone is its own mean.")
    ours, keras = (
        value_and_gradients(layer_like(cls, shape, groups), x)
        for cls in (GroupNormalization, tf.keras.layers.GroupNormalization)
    )
    assert len(ours) == len(keras) == 4
    for a, b in zip(ours, keras, strict=True):
        # What Keras's own sums leave of zeros has no digits.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5 * max(1, np.abs(b).max()))


def test_a_value_by_hand():
    layer = GroupNormalization(2, epsilon=0.0)
    layer.build((None, 2, 4))
    layer.set_weights([np.array([1.0, 2.0, 1.0, 1.0]), np.array([0.0, 10.0, 0.0, 0.0])])
    x = np.array([[[1.0, 3.0, 0.0, 10.0], [3.0, 1.0, 10.0, 0.0]]], np.float32)
    expected = [[[-1.0, 12.0, -1.0, 1.0], [1.0, 8.0, 1.0, -1.0]]]
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "mask"), [({"scale": False}, None), ({"axis": 1}, None), ({}, np.ones([6, 4, 8]))]
)
def test_everything_else_is_kerass_own(arguments, mask):
    x = examples(6, 4, 8)
    ours, keras = (
        layer_like(cls, (4, 8), 2, **arguments)(x, mask=mask)
        for cls in (GroupNormalization, tf.keras.layers.GroupNormalization)
    )
    np.testing.assert_array_equal(ours, keras)


def test_is_some_operations_only():
    layer = layer_like(GroupNormalization, (3, 3, 8), 2)
    traced = tf.function(lambda x: value_and_gradients(layer, x)[1:], autograph=False)
    graph = traced.get_concrete_function(tf.TensorSpec([6, 3, 3, 8])).graph
    keras = layer_like(tf.keras.layers.GroupNormalization, (3, 3, 8), 2)
    traced = tf.function(lambda x: value_and_gradients(keras, x)[1:], autograph=False)
    theirs = traced.get_concrete_function(tf.TensorSpec([6, 3, 3, 8])).graph
    assert len(graph.get_operations()) < 0.6 * len(theirs.get_operations())


@pytest.mark.parametrize("shape", [(3, 2, 8), (1, 1, 8)])
def test_has_a_form_over_a_cohort(shape):
    layer = layer_like(GroupNormalization, shape, 2)
    assert_same(lambda x: value_and_gradients(layer, x), examples(3, 4, *shape))
