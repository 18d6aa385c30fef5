"""Memory and time of methods whose server needs every client's vector.

    python -m benchmarks.server_vectors --clients=100 --runtimes=tff,vectorized --model=cnn

It runs rounds of AdaFed and FedMGDA+ with 100 clients and a model of 1.2 million parameters. `cnn`
is the EMNIST CNN (1,206,590), `mlp` a dense network of 784-1024-384-10 (1,201,290). Each client has
198 examples, Federated EMNIST's mean, with B = 20 and one epoch.

Every row is measured in its own process. It shows the peak resident memory, the part of it above
the same round of FedAvg, the seconds of a round, and those of the server's step alone. The step
includes stacking the clients' vectors. Shares are of processor time, which other work on the
machine affects least. `native` copies quadratically; use at most 20 clients with it.
"""

import collections
import importlib
import json
import resource
import subprocess
import sys
import time

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.positional("row", "of a process that measures one row", many=True, required=False)
PARSER.flag("clients", 100, "Clients of a round.", minimum=1)
PARSER.flag("runtimes", "tff,vectorized", "Runtimes, separated by commas.")
PARSER.flag("model", "cnn", "The model.", choices=("cnn", "mlp"))
PARSER.flag("methods", "fedavg,adafed,fedmgda_plus", "Methods, separated by commas.")
PARSER.flag("rounds", 2, "Rounds measured.", minimum=1)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np
import tensorflow as tf

import tff_algos
from benchmarks import common
from simulation import runtimes
from tasks.models import losses, models

EXAMPLES, BATCH_SIZE = 198, 20


def _dense(seed):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer((784,)),
            tf.keras.layers.Dense(1024, activation="relu"),
            tf.keras.layers.Dense(384, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    rng = np.random.default_rng(seed)
    model.set_weights([rng.normal(0, 0.03, w.shape) for w in model.get_weights()])
    return model


MODELS = {"cnn": models.emnist_cnn, "mlp": _dense}


class _Answered:
    """The primitives of a round whose clients' results are given, one value per client."""

    def __init__(self, updates):
        self._updates = updates

    def broadcast(self, value):
        return value

    def map_server(self, fn, *values):
        return fn(*values)

    def map_clients(self, fn, *values):
        return tf.nest.map_structure(lambda *leaves: _Leaves(leaves), *self._updates)

    def stack(self, value):
        return tf.nest.map_structure(lambda leaves: tf.stack(leaves.values), value)

    def sum(self, value):
        return tf.nest.map_structure(lambda leaves: tf.add_n(leaves.values), value)


class _Leaves:
    """One tensor of every client."""

    def __init__(self, values):
        self.values = list(values)


def _updates(name, model, number, rng):
    """Makes synthetic updates of clients."""
    module = importlib.import_module(f"tff_algos.{name}")
    one = tf.ones([])
    metrics = collections.OrderedDict(
        training={}, num_examples=one, num_clients=one, clients_dropped=0 * one
    )
    for _ in range(number):
        vector = tuple(
            tf.constant(rng.normal(0, 0.01, w.shape).astype(np.float32))
            for w in model.initial_weights
        )
        rest = [tf.constant(rng.uniform(0.5, 2), tf.float32), one]
        fields = len(module.Report._fields)
        yield module.ClientUpdate(module.Report(vector, *rest[-(fields - 1) :]), metrics)


def server_seconds(process, name: str, number: int, turns: int = 4) -> list[float]:
    """Returns median seconds of the server's step with stacking: wall clock and processor."""
    rng = np.random.default_rng(0)
    answered = _Answered(list(_updates(name, process.model, number, rng)))
    state, seconds = process.method.initialize(), []
    for _ in range(turns):
        started = _now()
        after, _ = process.method.next_round(answered, state, None)
        np.asarray(after.weights[-1])
        seconds.append(_now() - started)
    # The first one traces.
    return np.median(seconds[1:], axis=0).tolist()


def _now():
    return np.array([time.perf_counter(), time.process_time()])


def measure(name: str, runtime: str, model_name: str, number: int, rounds: int) -> dict:
    """Measures one method in one runtime; for a process that does nothing else.

    Returns:
      Peak resident memory over the rounds, in bytes; median seconds of a round after the first, and
      of the server's step (0 for FedAvg), each by wall clock and processor.
    """
    runtimes.configure_threads()
    rng = np.random.default_rng(1)
    keras_model = MODELS[model_name](0)
    model = tff_algos.from_keras(keras_model, loss=losses.sparse_softmax_cross_entropy, metrics={})
    classes = keras_model.output_shape[-1]
    clients = [
        tff_algos.batch_client(
            rng.random((EXAMPLES, *keras_model.input_shape[1:]), np.float32),
            rng.integers(0, classes, EXAMPLES).astype(np.int32),
            batch_size=BATCH_SIZE,
            index=k,
        )
        for k in range(number)
    ]
    process = tff_algos.build(name, model, client_learning_rate=0.01)
    seconds = []
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        state = bound.initialize()
        for _ in range(rounds + 1):
            started = _now()
            state = bound.next(state, clients).state
            np.asarray(state.weights[-1])
            seconds.append(_now() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    server = [0.0, 0.0] if name == "fedavg" else server_seconds(process, name, number)
    return {"peak": peak, "round": np.median(seconds[1:], axis=0).tolist(), "server": server}


def _in_its_own_process(*arguments) -> dict:
    command = [sys.executable, "-m", "benchmarks.server_vectors", *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark and prints a Markdown table."""
    options = PARSER.parse(arguments)
    if options.row:
        name, runtime, model_name, number, rounds = options.row
        print(json.dumps(measure(name, runtime, model_name, int(number), int(rounds))))
        return 0
    with tables.printed(options.json) as table:
        table.say(f"{common.machine()}; {options.clients} clients, {options.model}\n")
        for runtime in options.runtimes.split(","):
            base = None
            for name in options.methods.split(","):
                work = name, runtime, options.model, options.clients, options.rounds
                row = _in_its_own_process(*work)
                base = base or row["peak"]
                (wall, cpu), (server_wall, server_cpu) = row["round"], row["server"]
                table.add(
                    {
                        "runtime": runtime,
                        "method": name,
                        "peak_mib": round(row["peak"] / 2**20),
                        "above_fedavg_mib": round((row["peak"] - base) / 2**20),
                        "round_seconds": round(wall, 2),
                        "round_processor_seconds": round(cpu, 2),
                        "server_seconds": round(server_wall, 2),
                        "server_processor_seconds": round(server_cpu, 2),
                        "server_share_of_processor": round(server_cpu / cpu, 3),
                    }
                )
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
