import numpy as np
import pytest
import tensorflow as tf

from tasks import vectorizable
from tasks.sparse_inputs import SparseInputDense


def _layers(**kwargs):
    """Our layer and Keras's with the same weights, none of them zero."""
    rng = np.random.default_rng(1)
    pair = SparseInputDense(3, **kwargs), tf.keras.layers.Dense(3, **kwargs)
    weights = None
    for layer in pair:
        layer.build((None, 40))
        weights = weights or [rng.normal(size=w.shape) for w in layer.get_weights()]
        layer.set_weights(weights)
    return pair


def _inputs(share):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(5, 40)) * (rng.random((5, 40)) < share)
    x[3] = 0
    return x.astype(np.float32)


def _value_and_gradients(layer, x):
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = layer(x)
        scalar = tf.reduce_sum(tf.sin(tf.reshape(tf.range(tf.size(y), dtype=y.dtype), y.shape)) * y)
    return [y, *tape.gradient(scalar, [x, *layer.trainable_weights])]


@pytest.mark.parametrize("share", [0, 0.1, 1])
@pytest.mark.parametrize("kwargs", [{}, {"use_bias": False, "activation": "tanh"}], ids=str)
def test_value_and_gradients_are_kerass(kwargs, share):
    x = _inputs(share)
    for a, b in zip(*(_value_and_gradients(layer, x) for layer in _layers(**kwargs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_kerass_code_over_several_clients_and_on_a_gpu(monkeypatch):
    layer, _ = _layers()

    def operations():
        traced = tf.function(layer, autograph=False).get_concrete_function(
            tf.TensorSpec([None, 40])
        )
        return {node.op for node in traced.graph.as_graph_def().node}

    assert "SparseTensorDenseMatMul" in operations()
    with vectorizable.only():
        assert {"MatMul"} == operations() & {"MatMul", "SparseTensorDenseMatMul"}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    assert {"MatMul"} == operations() & {"MatMul", "SparseTensorDenseMatMul"}
