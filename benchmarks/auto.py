"""Measurements behind `--runtime=auto`: a round of `vectorized` relative to one of `tff`.

    python -m benchmarks.auto --models=dense_64,cnn --turns=20

Both runtimes take turns in one process on the same cohort of FedAvg, as a run does its rounds. The
benchmark compares their medians, and the processor time of all turns, which is more reliable on a
busy machine. The rule itself is `simulation.runtimes.choose`.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("models", help="Models, separated by commas. Unset: all.")
PARSER.flag("turns", 20, "Turns of each side.", minimum=1)
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from benchmarks import common
from simulation import runtimes
from tasks.models import losses, models


class Work(NamedTuple):
    """A round: a model, clients, examples of each, minibatch size B."""

    keras_model: Callable[[], tf.keras.Model]
    clients: int
    examples: int
    batch_size: int


def _dense(units: int) -> Work:
    return Work(lambda: models.mlp(0, hidden=(units,)), clients=10, examples=100, batch_size=10)


MODELS = {
    "softmax": Work(lambda: models.softmax_regression(0), clients=100, examples=100, batch_size=10),
    **{f"dense_{units}": _dense(units) for units in (32, 64, 96, 128, 256)},
    "cnn": Work(lambda: models.emnist_cnn(0), clients=10, examples=198, batch_size=20),
}


def measure(name: str, turns: int) -> dict:
    """Returns the record of a model."""
    work = MODELS[name]
    keras_model = work.keras_model()
    classes = keras_model.output_shape[-1]
    rng = np.random.default_rng(0)
    model = tff_algos.from_keras(keras_model, loss=losses.sparse_softmax_cross_entropy)
    process = tff_algos.build("fedavg", model, client_learning_rate=0.01)
    shape = (work.examples, *keras_model.input_shape[1:])
    clients = [
        (rng.random(shape, np.float32), rng.integers(0, classes, work.examples).astype(np.int32))
        for _ in range(work.clients)
    ]
    seeds = [(0, k) for k in range(work.clients)]
    cohort = tff_algos.batch_cohort(
        clients,
        batch_size=work.batch_size,
        order_seeds=seeds,
        dropout_seeds=seeds,
        indices=range(work.clients),
    )
    seconds, processor = ({"per_client": [], "vectorized": []} for _ in range(2))
    stack = tff.framework.get_context_stack()
    with contextlib.ExitStack() as opened:
        bound = {}
        for runtime in seconds:
            context = opened.enter_context(runtimes.installed(runtime))
            bound[runtime] = context, runtimes.bind(process)
        state = process.initialize()
        for turn in range(turns + 1):
            for runtime, (context, runs) in bound.items():
                with stack.install(context):
                    started, used = time.perf_counter(), time.process_time()
                    np.asarray(runs.next(state, cohort).state.weights[0])
                if turn:  # The first round also traces.
                    seconds[runtime].append(time.perf_counter() - started)
                    processor[runtime].append(time.process_time() - used)
    clock = {runtime: statistics.median(values) for runtime, values in seconds.items()}
    return {
        "model": name,
        "parameters": keras_model.count_params(),
        "clients": work.clients,
        "per_client_ms": round(1e3 * clock["per_client"], 2),
        "vectorized_ms": round(1e3 * clock["vectorized"], 2),
        "of_per_client": round(clock["vectorized"] / clock["per_client"], 3),
        "processor_of_per_client": round(
            sum(processor["vectorized"]) / sum(processor["per_client"]), 3
        ),
        "auto": runtimes.choose(process)[0],
    }


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints a Markdown table, writes a CSV."""
    options = PARSER.parse(arguments)
    runtimes.configure_threads()
    with common.report(options) as table:
        for name in options.models.split(",") if options.models else MODELS:
            table.add(measure(name, options.turns))
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
