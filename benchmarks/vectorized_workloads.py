"""Seconds a round, client by client (`tff`) and over the whole cohort at once (`vectorized`).

    python -m benchmarks.vectorized_workloads w4 w5 mlp cnn --threads=1 --rounds=20

Both runtimes take turns in one process on the same cohorts, so that what else the machine does
falls on both; medians and their ratio are printed, with how much of the vectorised work is padding.
On a busy machine the processor's time says more than the clock.
"""

import argparse
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import tff_algos  # noqa: E402
from simulation import runtimes, vectorized  # noqa: E402
from tasks import models  # noqa: E402


def _lognormal_sizes(rng):
    return np.minimum(rng.lognormal(4.0, 2.0, 100).astype(int) + 50, 2000)


# Name → (model, classes, batch size, sizes of the clients of a round).
WORKLOADS = {
    "w4": (models.softmax_regression, 10, 10, lambda rng: [100] * 100),
    "w5": (models.softmax_regression, 10, 10, _lognormal_sizes),
    "mlp": (models.mlp, 10, 10, lambda rng: [100] * 10),
    "mlp100": (models.mlp, 10, 10, lambda rng: [100] * 100),
    "cnn": (models.emnist_cnn, 62, 20, lambda rng: [198] * 10),
}


def cross_entropy(y, outputs):
    """Sparse softmax cross-entropy by example."""
    return tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def workload(name: str):
    """Returns the FedAvg process of a workload and its cohort."""
    make_model, classes, batch_size, sizes = WORKLOADS[name]
    rng = np.random.default_rng(0)
    keras_model = make_model(0)
    model = tff_algos.from_keras(
        keras_model,
        loss=cross_entropy,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
    )
    cohort = [
        tff_algos.batch_client(
            rng.random((n, *keras_model.input_shape[1:]), np.float32),
            rng.integers(0, classes, n).astype(np.int32),
            batch_size=batch_size,
            order_seed=(k,),
            dropout_seed=(k,),
        )
        for k, n in enumerate(sizes(rng))
    ]
    process = tff_algos.build("fedavg", model, client_learning_rate=0.01, server_learning_rate=1.0)
    return process, cohort


def _measure(name, rounds):
    process, cohort = workload(name)
    start = process.initialize()
    runners = {"tff": lambda: process.next(start, cohort)}
    for blocks in (1, len(os.sched_getaffinity(0))):
        whole = vectorized.VectorizedProcess(process, blocks)
        runners[f"vectorized, {blocks}+ blocks"] = lambda w=whole: w.next(start, cohort)
        prepared = whole.prepare(cohort)
        runners[f"  inputs ready, {blocks}+"] = lambda w=whole, p=prepared: w.next(start, p)
        sizes = [tuple(b.mask.shape[:2]) for b in prepared.blocks]
        padded = sum(k * steps for k, steps in sizes) / sum(len(c.mask) for c in cohort)
        print(f"{name}: blocks (clients, steps) {sizes}, padded/useful {padded:.2f}")
    seconds = {runner: [] for runner in runners}
    for turn in range(rounds + 1):
        for runner, run in runners.items():
            began = time.perf_counter(), time.process_time()
            np.asarray(run().state.weights[0])
            ended = time.perf_counter(), time.process_time()
            # The first round also traces.
            if turn:
                seconds[runner].append(np.subtract(ended, began))
    base = np.median(seconds["tff"], axis=0)
    for runner, values in seconds.items():
        wall, cpu = np.median(values, axis=0)
        print(
            f"  {runner:24} median {1e3 * wall:8.1f} ms (of tff {wall / base[0]:.3f}), "
            f"processor {1e3 * cpu:8.1f} ms (of tff {cpu / base[1]:.3f}), "
            f"least {1e3 * min(values, key=lambda v: v[0])[0]:8.1f} ms",
            flush=True,
        )


def main():
    """Measures the workloads named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=["w4", "w5"], metavar="workload")
    parser.add_argument("--threads", type=int, default=1, help="threads inside an operation")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    with runtimes.installed("tff"):
        for name in arguments.names:
            _measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
