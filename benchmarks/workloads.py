"""The workloads of the speed benchmark: models, clients' data, and what a round asks for.

W1–W4 have equal clients; W5 and W6 are cohorts as unequal as real ones, and W10 is a large one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tasks
from tasks.models import losses, models


class Workload(NamedTuple):
    """A round of FedAvg.

    Attributes:
      title: In words.
      keras_model: Makes the model.
      loss: Elementwise loss.
      loss_reduction: `mean` or `sum` over a batch.
      y_spec: Batch of targets.
      clients: (x, y) of each client of a round.
      batch_size: Examples of a minibatch.
      learning_rate: Client learning rate.
      rounds_a_turn: How many rounds are timed together, one after the other as in a run.
    """

    title: str
    keras_model: Callable[[], tf.keras.Model]
    loss: Callable[..., Any]
    loss_reduction: str
    y_spec: tf.TensorSpec
    clients: Sequence[tuple[np.ndarray, np.ndarray]]
    batch_size: int
    learning_rate: float
    rounds_a_turn: int = 2


_LABELS = tf.TensorSpec([None], tf.int32)


def _classified(rng, sizes, shape, classes):
    return [
        (rng.random((n, *shape), np.float32), rng.integers(0, classes, n).astype(np.int32))
        for n in sizes
    ]


def _w1(data_dir):
    del data_dir
    return Workload(
        "W1: EMNIST CNN, 10 clients of 198 examples, B = 20",
        lambda: models.emnist_cnn(0),
        losses.sparse_softmax_cross_entropy,
        "mean",
        _LABELS,
        _classified(np.random.default_rng(0), [198] * 10, (28, 28, 1), 62),
        20,
        0.01,
    )


def _w2(data_dir):
    del data_dir
    rng = np.random.default_rng(0)
    clients = []
    for _ in range(10):
        words = (rng.random((300, 10_000), np.float32) < 0.003).astype(np.float32)
        words /= np.maximum(words.sum(1, keepdims=True), 1)
        clients.append((words, (rng.random((300, 500)) < 0.006).astype(np.float32)))
    return Workload(
        "W2: tag regression 10,000 to 500, 10 clients of 300 examples, B = 100, dense",
        lambda: models.tag_regression(0),
        losses.binary_cross_entropy,
        "sum",
        tf.TensorSpec([None, 500], tf.float32),
        clients,
        100,
        1.0,
    )


def _w3(data_dir):
    del data_dir
    rng = np.random.default_rng(0)
    clients = [
        tuple(rng.integers(1, 87, (20, 80)).astype(np.int32) for _ in range(2)) for _ in range(10)
    ]
    return Workload(
        "W3: Shakespeare, 2 LSTM of 256, 10 clients of 20 sequences of 80, B = 4",
        lambda: models.shakespeare_lstm(0),
        losses.sequence_cross_entropy,
        "mean",
        tf.TensorSpec([None, 80], tf.int32),
        clients,
        4,
        0.1,
    )


def _w4(data_dir):
    del data_dir
    return Workload(
        "W4: softmax regression 60 to 10, 100 clients of 100 examples, B = 10",
        lambda: models.softmax_regression(0),
        losses.sparse_softmax_cross_entropy,
        "mean",
        _LABELS,
        _classified(np.random.default_rng(0), [100] * 100, (60,), 10),
        10,
        0.01,
        20,
    )


def _w5(data_dir):
    del data_dir
    rng = np.random.default_rng(0)
    sizes = np.minimum(rng.lognormal(4.0, 2.0, 100).astype(int) + 50, 2000)
    return _w4(None)._replace(
        title="W5: as W4 with clients of lognormal(4, 2) + 50 examples, 2,000 at most",
        clients=_classified(rng, sizes, (60,), 10),
    )


def _w6(data_dir):
    task = tasks.load("mnist_writers", data_dir=data_dir, seed=1)
    writers = np.random.default_rng(0).choice(len(task.train.client_ids), 10, replace=False)
    return _w1(None)._replace(
        title="W6: EMNIST CNN with 10 outputs, 10 writers of mnist_writers, B = 20",
        keras_model=lambda: task.keras_model_fn(0),
        clients=[tuple(task.train.examples(int(k))) for k in writers],
    )


def _w10(data_dir):
    del data_dir
    rng = np.random.default_rng(0)
    return Workload(
        "W10: MLP 784-200-200-10, 1,000 clients of 5 to 40 examples, B = 10",
        lambda: models.mlp(0, input_shape=(784,)),
        losses.sparse_softmax_cross_entropy,
        "mean",
        _LABELS,
        _classified(rng, rng.integers(5, 41, 1000), (784,), 10),
        10,
        0.05,
    )


# Name → maker, given the folder of real data or `None`.
WORKLOADS = {"w1": _w1, "w2": _w2, "w3": _w3, "w4": _w4, "w5": _w5, "w6": _w6, "w10": _w10}
