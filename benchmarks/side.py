"""One side of the speed benchmark in a process of its own: rounds of FedAvg on request.

    python -m benchmarks.side SIDE WORKLOAD [DATA_DIR]

Sides: `tff`, `vectorized`, `auto` are this suite's runtimes; `tff_worker` and `tff_worker_file` are
TFF's `build_weighted_fed_avg` as shipped, in its own C++ worker and with its fastest loop over a
client's data, which are held in memory or read from a file.

After its first round it writes a line; for every line it reads it runs another round and writes its
seconds. The driver (`benchmarks.speed`) keeps several sides at once and lets them take turns.
"""

import contextlib
import os
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_OURS = ("tff", "vectorized", "auto")
SIDES = (*_OURS, "tff_worker", "tff_worker_file")


@contextlib.contextmanager
def _our_round(runtime, workload):
    import tff_algos
    from simulation import runtimes

    runtimes.configure_threads()
    model = tff_algos.from_keras(
        workload.keras_model(),
        loss=workload.loss,
        y_spec=workload.y_spec,
        loss_reduction=workload.loss_reduction,
    )
    process = tff_algos.build("fedavg", model, client_learning_rate=workload.learning_rate)
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        state = bound.initialize()

        def a_round(round_index):
            nonlocal state
            cohort = [
                tff_algos.batch_client(
                    x,
                    y,
                    batch_size=workload.batch_size,
                    order_seed=(round_index, k),
                    dropout_seed=(round_index, k),
                    index=k,
                )
                for k, (x, y) in enumerate(workload.clients)
            ]
            state = bound.next(state, cohort).state

        yield a_round


def _as_shipped(workload):
    """Returns the workload's model with Keras's own layers, as TFF ships it, and its Keras loss."""
    import tensorflow as tf

    layers = tf.keras.layers
    mean = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if workload.title.startswith("W3"):
        model = tf.keras.Sequential([layers.Embedding(90, 8, input_length=80, mask_zero=True)])
        for _ in range(2):
            model.add(layers.LSTM(256, return_sequences=True, kernel_initializer="he_normal"))
        model.add(layers.Dense(90))
        return model, mean
    if workload.title.startswith("W2"):
        total = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="sum")
        return workload.keras_model(), total
    return workload.keras_model(), mean


@contextlib.contextmanager
def _worker_round(from_file, workload):
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff

    from simulation import native_worker

    x_spec = tf.TensorSpec([None, *workload.clients[0][0].shape[1:]], workload.clients[0][0].dtype)

    def model_fn():
        keras_model, loss = _as_shipped(workload)
        return tff.learning.models.from_keras_model(
            keras_model, loss=loss, input_spec=(x_spec, workload.y_spec)
        )

    process = tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(workload.learning_rate),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
        loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR,
    )

    def from_records(path, x, y):
        rows = [np.concatenate([a.reshape(len(a), -1).view(np.uint8) for a in (x, y)], 1)]
        np.concatenate(rows).tofile(path)
        split = x[0].nbytes

        def parse(records):
            parts = (tf.strings.substr(records, 0, split), tf.strings.substr(records, split, -1))
            return tuple(
                tf.reshape(tf.io.decode_raw(part, a.dtype), [-1, *a.shape[1:]])
                for part, a in zip(parts, (x, y), strict=True)
            )

        records = tf.data.FixedLengthRecordDataset(path, split + y[0].nbytes)
        return records.shuffle(len(y)).batch(workload.batch_size).map(parse)

    with tempfile.TemporaryDirectory() as folder, native_worker.native_context() as context:
        datasets = []
        for k, (x, y) in enumerate(workload.clients):
            if from_file:
                dataset = from_records(os.path.join(folder, str(k)), x, y)
            else:
                dataset = tf.data.Dataset.from_tensor_slices((x, y))
                dataset = dataset.shuffle(len(y)).batch(workload.batch_size)
            datasets.append(dataset)
        with tff.framework.get_context_stack().install(context):
            state = process.initialize()

            def a_round(round_index):
                del round_index
                nonlocal state
                state = process.next(state, datasets).state

            yield a_round


def main() -> None:
    """Runs the side that the command line names until standard input closes."""
    side, name, *rest = sys.argv[1:]
    # What libraries print must not come between our lines.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    from benchmarks import workloads

    workload = workloads.WORKLOADS[name](rest[0] if rest else None)
    if side in _OURS:
        a_side = _our_round(side, workload)
    else:
        a_side = _worker_round(side == "tff_worker_file", workload)
    with a_side as a_round:
        round_index = 0
        a_round(round_index)
        print("ready", file=answers)
        for _ in sys.stdin:
            round_index += 1
            started = time.perf_counter()
            a_round(round_index)
            print(time.perf_counter() - started, file=answers)


if __name__ == "__main__":
    main()
