import numpy as np
import pytest
import tensorflow as tf

from simulation.engine import batched_ops
from tasks.layers import pooling, vectorizable
from tasks.layers.pooling import MaxPool2D
from tests.tasks.gradients import value_and_gradients


@pytest.mark.parametrize("pool_size", [2, (3, 2)], ids=str)
@pytest.mark.parametrize("values", ["distinct", "ties"])
@pytest.mark.parametrize("has_onednn", [True, False])
def test_value_and_gradient_are_kerass(monkeypatch, has_onednn, pool_size, values):
    monkeypatch.setattr(pooling.pywrap_util_port, "IsMklEnabled", lambda: has_onednn)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 7, 8, 5)).astype(np.float32)
    if values == "ties":
        x = np.maximum(np.round(x), 0)
    ours = value_and_gradients(MaxPool2D(pool_size), x)
    keras = value_and_gradients(tf.keras.layers.MaxPool2D(pool_size), x)
    for a, b in zip(ours, keras, strict=True):
        assert a.shape == b.shape and np.any(b)
        np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(
    not pooling.pywrap_util_port.IsMklEnabled(), reason="TensorFlow runs without oneDNN here"
)
def test_the_gradient_in_a_loop_is_onednns():
    """The order of a loop's operations, by chance, decides whether TensorFlow's own would be."""
    layer = MaxPool2D()
    with tf.Graph().as_default():
        images = tf.compat.v1.placeholder(tf.float32, [3, 2, 6, 6, 4])
        weights = tf.compat.v1.placeholder(tf.float32, [3, 2, 3, 3, 4])

        def step(i, scale):
            x = images[i] * scale
            loss = tf.reduce_sum(layer(x) * weights[i])
            return i + 1, scale - tf.reduce_mean(tf.gradients(loss, x)[0] * images[i])

        last = tf.while_loop(lambda i, _: i < 3, step, (0, tf.ones([])))[1]
        ran = tf.compat.v1.RunMetadata()
        with tf.compat.v1.Session() as session:
            session.run(
                last,
                {images: np.ones(images.shape), weights: np.ones(weights.shape)},
                tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE),
                ran,
            )
    labels = [n.timeline_label for d in ran.step_stats.dev_stats for n in d.node_stats]
    gradients = [label for label in labels if "= " in label and "MaxPoolGrad(" in label]
    assert len(gradients) == 3
    assert all("= _MklNativeMaxPoolGrad(" in label for label in gradients)


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

    with vectorizable.only():
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
