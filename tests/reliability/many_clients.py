"""A task of very many clients with a few examples each, registered on import."""

import functools

import numpy as np

import tasks
from tff_suite.hparams import Hparam

_EXAMPLES, _FEATURES, _CLASSES = 2, 20, 10

tasks.register(
    tasks.TaskSpec(
        name="many_clients",
        summary="Softmax regression on very many clients of two examples each.",
        loader="tests.reliability.many_clients:load",
        hparams=(Hparam("num_clients", 100_000, "Number of clients.", "choice", minimum=1),),
        needs_data=False,
    )
)


def load(*, data_dir, seed, use_synthetic_data, num_clients):
    import tensorflow as tf

    from tasks.task import ArrayFederatedData, Task

    draws = np.random.default_rng(seed)
    number = num_clients * _EXAMPLES
    x = draws.standard_normal((number, _FEATURES), np.float32)
    y = np.argmax(x[:, :_CLASSES], axis=1).astype(np.int32)
    data = ArrayFederatedData(x, y, np.arange(number).reshape(num_clients, _EXAMPLES))

    def model(seed):
        layer = tf.keras.layers.Dense(_CLASSES, kernel_initializer="zeros")
        return tf.keras.Sequential([tf.keras.Input([_FEATURES]), layer])

    return Task(
        name="many_clients",
        train=data,
        test=data,
        central_test=None,
        keras_model_fn=model,
        loss=functools.partial(tf.keras.losses.sparse_categorical_crossentropy, from_logits=True),
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
    )
