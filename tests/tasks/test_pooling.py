import numpy as np
import pytest
import tensorflow as tf

from simulation import batched_ops
from tasks.pooling import MaxPool2D
from tests.tasks.gradients import value_and_gradients


@pytest.mark.parametrize("pool_size", [2, (3, 2)], ids=str)
@pytest.mark.parametrize("values", ["distinct", "ties"])
def test_value_and_gradient_are_kerass(pool_size, values):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 7, 8, 5)).astype(np.float32)
    if values == "ties":
        x = np.maximum(np.round(x), 0)
    ours = value_and_gradients(MaxPool2D(pool_size), x)
    keras = value_and_gradients(tf.keras.layers.MaxPool2D(pool_size), x)
    for a, b in zip(ours, keras, strict=True):
        assert a.shape == b.shape and np.any(b)
        np.testing.assert_array_equal(a, b)


def test_has_a_form_over_a_cohort():
    layer = MaxPool2D()
    layer.build((None, 6, 6, 2))
    x = np.random.default_rng(0).normal(size=(4, 3, 6, 6, 2)).astype(np.float32)
    one = tf.function(lambda x: layer(x) ** 2, autograph=False)

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = one(x)
        return tape.gradient(y, x)

    traced = tf.function(gradient, autograph=False).get_concrete_function(
        tf.TensorSpec([None, 6, 6, 2])
    )

    @tf.function(autograph=False)
    def over_all(x):
        captured = traced.captured_inputs
        return batched_ops.over_clients(
            traced.graph, [x, *captured], [True, *[False] * len(captured)], tf.shape(x)[0]
        )[0]

    expected = np.stack([gradient(tf.constant(x[k])) for k in range(4)])
    np.testing.assert_array_equal(over_all(x), expected)


@pytest.mark.parametrize(
    "arguments", [{"strides": 1}, {"padding": "same"}, {"data_format": "channels_first"}], ids=str
)
def test_other_windows_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        MaxPool2D(2, **arguments)
