import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tasks.layers import sparse_inputs, vectorizable
from tasks.models import losses, models
from tests.tasks.gradients import value_and_gradients


def _layers(**kwargs):
    """Our layer and Keras's with the same weights, none of them zero."""
    rng = np.random.default_rng(1)
    pair = sparse_inputs.Dense(3, **kwargs), tf.keras.layers.Dense(3, **kwargs)
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


@pytest.mark.parametrize("share", [0, 0.1, 1])
@pytest.mark.parametrize("kwargs", [{}, {"use_bias": False, "activation": "tanh"}], ids=str)
def test_value_and_gradients_are_kerass(kwargs, share):
    x = _inputs(share)
    for a, b in zip(*(value_and_gradients(layer, x) for layer in _layers(**kwargs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "x", [_inputs(0.2).astype(np.int32), np.stack([_inputs(0.2)] * 2)], ids=["whole", "positions"]
)
def test_other_inputs_are_kerass(x):
    got, wanted = (layer(x) for layer in _layers())
    assert np.any(wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


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


@pytest.mark.slow
def test_a_cohort_at_once_as_client_by_client():
    """Finding the places that are not zero has no form over several clients."""
    rng = np.random.default_rng(3)
    clients = [
        tff_algos.batch_client(
            (rng.random((n, 12)) * (rng.random((n, 12)) < 0.2)).astype(np.float32),
            (rng.random((n, 3)) < 0.3).astype(np.float32),
            batch_size=2,
        )
        for n in (5, 2, 4)
    ]
    process = tff_algos.build(
        "fedavg",
        tff_algos.from_keras(
            models.tag_regression(0, num_words=12, num_tags=3),
            loss=losses.binary_cross_entropy,
            y_spec=tf.TensorSpec([None, 3]),
            loss_reduction="sum",
        ),
        client_learning_rate=0.5,
    )
    after = []
    for runtime in ("tff", "vectorized"):
        with runtimes.installed(runtime):
            bound = runtimes.bind(process)
            state = bound.initialize()
            for _ in range(2):
                state = bound.next(state, clients).state
            after.append(bound.model_weights(state))
    for a, b, start in zip(*after, process.model.initial_weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert np.max(np.abs(a - start)) > 1e-2
