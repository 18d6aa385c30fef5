"""The workloads of the speed benchmark: models, clients' data and settings of a round.

W1–W4, W7 and W8 have clients of equal size. W5, W6 and W9 are as unequal as real cohorts, and W10
is a large cohort.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tasks
from tasks.models import image_models, losses, models


class Workload(NamedTuple):
    """A round of FedAvg.

    Attributes:
      title: A description.
      keras_model: Makes the model.
      loss: Elementwise loss.
      loss_reduction: `mean` or `sum` over a batch.
      y_spec: Spec of a batch of targets.
      clients: (x, y) of each client of a round.
      batch_size: Examples of a minibatch.
      learning_rate: Client learning rate.
      rounds_a_turn: Number of consecutive rounds that are timed together.
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


def _w7(data_dir):
    del data_dir
    # Like the output of the task's first layer: standardised squares of 24 x 24 pixels.
    images = _classified(np.random.default_rng(0), [40] * 10, (24, 24, 3), 100)
    return Workload(
        "W7: CIFAR-100, ResNet-18 with group normalisation, 10 clients of 40 examples, B = 20",
        lambda: image_models.resnet18(0, num_classes=100),
        losses.sparse_softmax_cross_entropy,
        "mean",
        _LABELS,
        [((x - 0.5) * np.float32(12**0.5), y) for x, y in images],
        20,
        0.01,
        1,
    )


def _sentences(rng, number, length, vocabulary):
    """Returns tokens of sentences, padded with 0, and their next tokens.

    Sentences have 5 to `length` words. Frequencies of words follow Zipf's law, with a word's number
    as its rank.
    """
    ranks = (vocabulary - 4) ** rng.random((number, length + 1))
    words = np.minimum(ranks, vocabulary - 4).astype(np.int32)
    sizes = rng.integers(5, length + 1, (number, 1))
    words *= np.arange(length + 1) < sizes
    return words[:, :-1], words[:, 1:]


def _w8(data_dir):
    del data_dir
    rng = np.random.default_rng(0)
    return Workload(
        "W8: next word, LSTM of 670, 10,004 words, 10 clients of 48 sentences of 20, B = 16",
        lambda: models.word_lstm(0),
        losses.sequence_cross_entropy,
        "mean",
        tf.TensorSpec([None, 20], tf.int32),
        [_sentences(rng, 48, 20, 10_004) for _ in range(10)],
        16,
        0.3,
        1,
    )


def _w9(data_dir):
    del data_dir
    rng = np.random.default_rng(0)
    return _w1(None)._replace(
        title="W9: EMNIST CNN, 100 clients of 7 to 60 examples, B = 20",
        clients=_classified(rng, rng.integers(7, 61, 100), (28, 28, 1), 62),
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
WORKLOADS = {
    "w1": _w1,
    "w2": _w2,
    "w3": _w3,
    "w4": _w4,
    "w5": _w5,
    "w6": _w6,
    "w7": _w7,
    "w8": _w8,
    "w9": _w9,
    "w10": _w10,
}
