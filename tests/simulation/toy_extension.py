"""A task with dropout, registered on import: what a user brings in with --import."""

import numpy as np

import tasks
from tff_suite.hparams import Hparam

tasks.register(
    tasks.TaskSpec(
        name="toy",
        summary="Softmax regression with dropout on five clients.",
        loader="tests.simulation.toy_extension:load",
        hparams=(
            Hparam(
                "dropout",
                0.4,
                "Dropout rate.",
                "choice",
                minimum=0,
                maximum=1,
                exclusive_maximum=True,
            ),
        ),
        needs_data=False,
    )
)


def load(*, data_dir, seed, use_synthetic_data, dropout):
    import tensorflow as tf

    from tasks.task import ArrayFederatedData, Task
    from tests.oracles import problem as problem_lib
    from tests.tff_algos import toy

    problem = problem_lib.make_problem(seed, num_examples=(3, 8, 5, 12, 7, 1))
    ends = np.cumsum([len(y) for _, y in problem.clients])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    x = np.concatenate([x for x, _ in problem.clients]).astype(np.float32)
    y = np.concatenate([y for _, y in problem.clients]).astype(np.int32)
    data = ArrayFederatedData(x, y, rows)
    return Task(
        name="toy",
        train=data,
        test=data,
        central_test=None,
        keras_model_fn=lambda seed: toy.keras_model(problem, dropout),
        loss=toy.cross_entropy,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
    )
