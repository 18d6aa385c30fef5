"""Three Gaussian blobs at a different place for every client: a worked example of a task.

Use it as

    python run_experiment.py --import=examples.moving_blobs --task=moving_blobs ...
"""

from tasks import TaskSpec, register
from tff_suite.hparams import Hparam


def load(*, data_dir, seed, use_synthetic_data, num_clients, spread):
    """Makes the task; see `tasks.registry.TaskSpec` for the arguments."""
    # Here, so that flags can be checked before TensorFlow is imported.
    import numpy as np
    import tensorflow as tf

    from tasks.task import ArrayFederatedData, Examples, Task

    del data_dir, use_synthetic_data
    rng = np.random.default_rng([seed, 0])
    x, y, rows = [], [], []
    for k in range(num_clients):
        n = 20 + 10 * (k % 4)
        labels = rng.integers(0, 3, n)
        centres = np.array([[0, 2], [2, -1], [-2, -1]]) + spread * rng.normal(size=2)
        x.append(centres[labels] + rng.normal(size=(n, 2)))
        y.append(labels)
        rows.append(np.arange(n) + sum(map(len, rows)))
    x, y = np.concatenate(x).astype(np.float32), np.concatenate(y).astype(np.int32)

    def keras_model_fn(seed):
        def initializer(layer):
            return tf.keras.initializers.GlorotUniform(seed=1000 * layer + seed)

        return tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer((2,)),
                tf.keras.layers.Dense(8, activation="relu", kernel_initializer=initializer(1)),
                tf.keras.layers.Dropout(0.1),
                tf.keras.layers.Dense(3, kernel_initializer=initializer(2)),
            ]
        )

    def loss(labels, logits):
        return tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    # Every fourth example is for its client's test. All of these are the central test set.
    return Task(
        name="moving_blobs",
        train=ArrayFederatedData(x, y, [r[r % 4 != 3] for r in rows]),
        test=ArrayFederatedData(x, y, [r[r % 4 == 3] for r in rows]),
        central_test=Examples(x[3::4], y[3::4]),
        keras_model_fn=keras_model_fn,
        loss=loss,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
        settings={"num_clients": num_clients, "spread": spread},
    )


register(
    TaskSpec(
        name="moving_blobs",
        summary="Three Gaussian blobs in the plane, shifted from client to client (51 parameters).",
        loader=load,
        needs_data=False,
        metrics=("accuracy",),
        hparams=(
            Hparam("num_clients", 12, "Number of clients.", source="choice", minimum=1),
            Hparam(
                "spread",
                1.0,
                "Standard deviation of the clients' shifts.",
                source="choice",
                minimum=0.0,
            ),
        ),
    )
)
