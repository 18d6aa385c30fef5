"""Losses and metrics of Keras's that take what they are not made for: a run and `build` say so."""

import functools
import warnings

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tasks.task import ArrayFederatedData, Task
from tests.simulation.one_round import one_round

L, K, M = tf.keras.layers, tf.keras.losses, tf.keras.metrics
RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
YES = (X[:, :1] > 0).astype(np.float32)
BCE, FLOATS = K.BinaryCrossentropy, tf.TensorSpec([None, 1], tf.float32)
PARTIAL = functools.partial(K.binary_crossentropy, from_logits=True)


def dense(outputs, activation=None):
    return tf.keras.Sequential([L.InputLayer((4,)), L.Dense(outputs, activation)])


class _OnLogits(BCE):
    def call(self, y, outputs):
        return super().call(y, tf.sigmoid(outputs))


@pytest.mark.parametrize(
    ("outputs", "options", "doubts"),
    [
        (dense(3), {"loss": "sparse_categorical_crossentropy"}, ["The loss takes probabilities"]),
        (
            dense(1),
            {"loss": BCE()},
            ["The loss takes probabilities, but an output"],
        ),
        (dense(1), {"loss": PARTIAL}, []),
        (dense(1), {"loss": _OnLogits()}, []),
        (
            dense(1),
            {"loss": BCE(from_logits=True), "metrics": ["accuracy", "ce", M.BinaryAccuracy]},
            [
                "Metric 'accuracy' takes outputs above 0.5 for class 1",
                "Metric 'ce' takes probabilities",
                "Metric 'binary_accuracy' takes outputs above 0.5",
            ],
        ),
        (dense(1), {"loss": PARTIAL, "metrics": [M.BinaryAccuracy(threshold=0.0)]}, []),
        (dense(1, "sigmoid"), {"loss": "bce", "metrics": ["accuracy", "ce"]}, []),
        (dense(3, "softmax"), {"loss": "categorical_crossentropy", "metrics": ["accuracy"]}, []),
        (dense(1), {"loss": BCE(from_logits=True), "examples": (X, YES)}, []),
        (
            dense(1),
            {"loss": BCE(from_logits=True), "examples": (X, YES + 1)},
            ["The loss takes targets from 0 to 1, but a target is 2:"],
        ),
        (
            dense(3),
            {"loss": "mse", "y_spec": FLOATS},
            [r"The loss compares targets [None, 1] with outputs [None, 3] by repeating"],
        ),
        (
            dense(3),
            {"loss": "huber", "y_spec": tf.TensorSpec([None], tf.float32)},
            [r"The loss compares targets [None] with outputs [None, 3] by repeating"],
        ),
        (dense(1), {"loss": "mse", "y_spec": tf.TensorSpec([None], tf.float32)}, []),
        (dense(3), {"loss": lambda y, o: tf.reduce_sum(o, -1)}, []),
    ],
)
def test_what_keras_takes_without_a_word_is_told(outputs, options, doubts):
    found = tff_algos.from_keras(outputs, **options).doubts
    assert len(found) == len(doubts)
    for text, begins in zip(found, doubts, strict=True):
        assert text.startswith(begins)
        assert "\n" not in text


def test_build_and_a_run_warn(tmp_path):
    model = tff_algos.from_keras(dense(1), loss="binary_crossentropy")
    with pytest.warns(RuntimeWarning, match="^The loss takes probabilities"):
        tff_algos.build("fedavg", model, client_learning_rate=0.1)
    data = ArrayFederatedData(X, YES, [np.arange(4), np.arange(4, 8)])
    loss = BCE(from_logits=True)
    task = Task("own", data, None, None, lambda seed: dense(1), loss, {"a": "accuracy"}, "a")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        one_round(task, tmp_path)
    told = [str(t.message) for t in told if "takes outputs" in str(t.message)]
    (text,) = told
    assert text.startswith("model of task own: Metric 'a' takes outputs above 0.5")
