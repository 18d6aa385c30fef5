"""A user's own models of TFF are trained as by hand."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)
Y = (np.arange(6) % 3).astype(np.int32)
RATE = 0.1
SPEC = collections.OrderedDict(x=tf.TensorSpec([None, 4]), y=tf.TensorSpec([None], tf.int32))
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
KERNEL, BIAS = RNG.normal(size=(4, 3)).astype(np.float32), np.zeros(3, np.float32)


def dense():
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), tf.keras.layers.Dense(3)])
    model.set_weights([KERNEL, BIAS])
    return model


def step(model, runtime="per_client"):
    """Returns the weights after a round of one client with one batch, and the round's loss."""
    with runtimes.installed(runtime):
        process = runtimes.bind(tff_algos.build("fedavg", model, client_learning_rate=RATE))
        data = [tff_algos.batch_client(X, Y, batch_size=6)]
        output = process.next(process.initialize(), data)
    return [np.asarray(w) for w in output.state.weights], float(output.metrics["loss"])


def by_hand(scale=1.0):
    weights = [tf.Variable(KERNEL), tf.Variable(BIAS)]
    with tf.GradientTape() as tape:
        loss = LOSS(Y, scale * (X @ weights[0] + weights[1]))
    gradient = tape.gradient(loss, weights)
    return [(w - RATE * g).numpy() for w, g in zip(weights, gradient, strict=True)], float(loss)


def functional(weights, predict):
    return tff.learning.models.FunctionalModel(
        initial_weights=(weights, ()),
        predict_on_batch_fn=tf.function(predict),
        loss_fn=lambda output, label, sample_weight=None: LOSS(label, output),
        input_spec=SPEC,
    )


def assert_step(model, expected):
    (weights, loss), (wanted, wanted_loss) = step(model), expected
    assert loss == pytest.approx(wanted_loss, rel=1e-5)
    for a, b in zip(weights, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_function_of_the_users_that_closes_over_a_keras_model_is_the_users():
    keras_model = dense()

    def predict(weights, x, training=True):
        kernel, bias = weights[0]
        # Named as in TFF's own function.
        return 2.0 * (x @ kernel + bias)[:, : keras_model.output_shape[-1]]

    assert_step(functional((KERNEL, BIAS), predict), by_hand(2.0))


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
def test_weights_in_a_dictionary_keep_its_order(kind):
    def predict(weights, x, training=True):
        trainable, _ = weights
        return x @ trainable["kernel"] + trainable["bias"]

    weights = kind([("kernel", KERNEL), ("bias", BIAS)])
    assert_step(functional(weights, predict), by_hand())
