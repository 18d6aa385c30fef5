"""Shares of TensorFlow's operations in the time of a client's training.

    python -m benchmarks.operations --workloads=w7,w8,w9,w10

The first client of a workload of `benchmarks.speed` is trained for its round, alone and in one
thread, under TensorFlow's profiler. Operations of similar kind are added up; kinds below 1 % go
into `others`. The table also has the client's processor seconds, which include TensorFlow's time
between operations that the profiler does not see.
"""

import collections
import glob
import os
import statistics
import tempfile
import time

from benchmarks import harness

BENCHMARK = harness.Benchmark(
    __doc__,
    {
        "workload": "workload",
        "seconds": "a client's processor s",
        "operations": "operations",
        "number": "number",
        "share": "share",
    },
)
BENCHMARK.flag("workloads", "w7,w8,w9,w10", "Workloads, separated by commas.")

_RUNS = 5
# Part of an operation's type → its kind; other kinds have TensorFlow's name.
_KINDS = {
    "MatMul": "products of matrices",
    "Conv2D": "convolutions",
    "MaxPool": "pooling",
    "Random": "random numbers",
}


def kind(operation: str) -> str:
    """Returns the kind of an operation, given its type."""
    for part, name in _KINDS.items():
        if part in operation:
            return name
    return operation.removeprefix("_Mkl").removeprefix("Native")


def shares(name: str) -> list[dict]:
    """Returns the records of a workload, the largest share first."""
    import tensorflow as tf
    import tensorflow_federated as tff
    from tensorflow.tsl.profiler.protobuf import xplane_pb2  # What the profiler writes.

    from benchmarks import side, workloads
    from tff_algos import client

    workload = workloads.WORKLOADS[name](None)
    data = side.batched_cohort(workload._replace(clients=workload.clients[:1]), 0)[0]
    data = tf.nest.map_structure(tf.convert_to_tensor, data)
    model = side.pure_model(workload)
    optimizer = client.Optimizer(tff.learning.optimizers.build_sgdm(workload.learning_rate))
    rate = tf.constant(workload.learning_rate)
    weights = tuple(map(tf.constant, model.initial_weights))

    @tf.function(autograph=False)
    def train(weights, data):
        return client.train(model, optimizer, rate, weights, data).weights

    train(weights, data)
    seconds = []
    for _ in range(_RUNS):
        started = time.process_time()
        train(weights, data)
        seconds.append(time.process_time() - started)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        train(weights, data)
        tf.profiler.experimental.stop()
        (path,) = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
        with open(path, "rb") as file:
            space = xplane_pb2.XSpace.FromString(file.read())
    times, counts = _times(space)
    whole = sum(times.values())
    small = [kind for kind, time in times.items() if time < 0.01 * whole]
    for kind_ in small:
        times["others"] += times.pop(kind_)
        counts["others"] += counts.pop(kind_)
    return [
        {
            "workload": name,
            "seconds": round(statistics.median(seconds), 4),
            "operations": operations,
            "number": counts[operations],
            "share": round(time / whole, 3),
        }
        for operations, time in sorted(times.items(), key=lambda item: -item[1])
    ]


def _times(space) -> tuple[collections.Counter, collections.Counter]:
    """Returns picoseconds and number of operations of each kind."""
    times, counts = collections.Counter(), collections.Counter()
    for plane in space.planes:
        if not plane.name.startswith("/host:CPU"):
            continue
        for event in (event for line in plane.lines for event in line.events):
            name, _, operation = plane.event_metadata[event.metadata_id].name.rpartition(":")
            # Operations are named name:type; events of Python and of graphs have other names.
            is_one = name and not name.endswith(":") and " " not in operation and name[0] != "$"
            # Skip calls of functions, since the operations inside are listed as well.
            if is_one and not operation.endswith(("Call", "While")):
                times[kind(operation)] += event.duration_ps
                counts[kind(operation)] += 1
    return times, counts


def records(options):
    """Yields the records of each workload."""
    import tensorflow as tf

    from simulation import runtimes

    runtimes.configure_threads()
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for name in options.workloads.split(","):
        yield from shares(name)


if __name__ == "__main__":
    BENCHMARK.run(records)
