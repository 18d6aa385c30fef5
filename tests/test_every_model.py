"""Every model builder at its true size, in every runtime, with and without metrics."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from simulation.engine import batching as vectorized
from tasks.models import image_models, losses, models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_REQUIRED = {
    "of_bytes": {
        "model_fn": image_models.resnet18,
        "shape": (32, 32, 3),
        "crop": 24,
        "distort": True,
        "scaling": "standardize",
    },
    "conv_net": {"convolutions": (32, "pool", 64), "padding": "same"},
    "sent140_lstm": {"vocab_size": 1_000},
}
# What the tasks train them with, where it is not a class for each example.
_LOSSES = {
    "autoencoder": losses.squared_error,
    "tag_regression": losses.binary_cross_entropy,
    "shakespeare_lstm": losses.sequence_cross_entropy,
    "word_lstm": losses.sequence_cross_entropy,
}
# By how much of a tensor's change runtimes may differ. Among a ResNet's million ReLUs some argument
# is zero up to rounding, and takes a unit's gradient with it: from starts that differ by 1e-7 `tff`
# itself ends a seventh of a tensor's change apart.
_NEAR, _NEAR_OF_RESNETS = 1e-3, 0.25


def _builders():
    return {
        name: function
        for module in (models, image_models)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def _round(name, runtime, with_metrics):
    keras_model = _builders()[name](0, **_REQUIRED.get(name, {}))
    rng = np.random.default_rng(0)
    loss = _LOSSES.get(name, losses.sparse_softmax_cross_entropy)
    sizes = (3, 2)

    def numbers(shape, dtype, high):
        if np.issubdtype(dtype, np.integer):
            return rng.integers(1, high, shape).astype(dtype)
        return rng.random(shape, np.float32).astype(dtype)

    x_dtype = np.dtype(keras_model.inputs[0].dtype.as_numpy_dtype)
    embedding = [w for w in keras_model.trainable_weights if "embed" in w.name]
    high = 255 if x_dtype == np.uint8 else int(embedding[0].shape[0]) if embedding else 2
    inputs, outputs = keras_model.input_shape[1:], keras_model.output_shape[1:]
    classes = loss not in (losses.squared_error, losses.binary_cross_entropy)
    y_shape = outputs[:-1] if classes else outputs
    y_dtype = np.int32 if classes else np.float32
    clients = [
        tff_algos.batch_client(
            numbers((n, *inputs), x_dtype, high),
            numbers((n, *y_shape), np.dtype(y_dtype), outputs[-1]),
            batch_size=2,
            dropout_seed=(0, k),
            index=k,
        )
        for k, n in enumerate(sizes)
    ]
    model = tff_algos.from_keras(
        keras_model,
        loss=loss,
        metrics={"again": loss} if with_metrics else {},
        y_spec=tf.TensorSpec([None, *y_shape], y_dtype),
    )
    process = tff_algos.build("fedavg", model, client_learning_rate=0.01)
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        # A cohort of several, and one of one.
        output = bound.next(bound.initialize(), clients)
        output = bound.next(output.state, clients[:1])
        return [np.asarray(w) for w in output.state.weights], model.initial_weights


@pytest.fixture(scope="module")
def in_tff():
    known = {}

    def weights(name):
        if name not in known:
            known.clear()
            known[name] = _round(name, "tff", True)
        return known[name]

    return weights


@pytest.mark.quick_cases("tag_regression-per_client-plain")
@pytest.mark.parametrize("with_metrics", [True, False], ids=["metrics", "plain"])
@pytest.mark.parametrize("runtime", runtimes.RUNTIMES)
@pytest.mark.parametrize("name", sorted(_builders()))
def test_runtimes_agree(name, runtime, with_metrics, in_tff):
    expected, initial = in_tff(name)
    try:
        found, _ = _round(name, runtime, with_metrics)
    except vectorized.NotVectorizable as e:
        assert runtime == "vectorized" and "--runtime=tff" in str(e)
        return
    near = _NEAR_OF_RESNETS if name == "of_bytes" or name.startswith("resnet") else _NEAR
    for got, want, before in zip(found, expected, initial, strict=True):
        step = np.abs(want - before).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=near * step + 1e-7)
