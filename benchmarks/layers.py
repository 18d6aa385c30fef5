"""The benefit of the suite's own layers: a client's training with Keras's version of one layer.

    python -m benchmarks.layers --layers=pool,dense --starts=5 --turns=10

A client of a workload of `benchmarks.speed` is trained for its round with two models. One is the
suite's. In the other, one of the suite's layers is replaced by Keras's, by dropout of 32 random
bits per entry, or by TensorFlow's loss. The two take turns in one process with one thread inside
each operation, as in a run. Ratios are of processor time: median, smallest and largest over several
processes, since each process chooses some of TensorFlow's kernels anew, by chance.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("layers", help="Layers, separated by commas. Unset: all.")
PARSER.flag("starts", 5, "Processes.", minimum=1)
PARSER.flag("turns", 10, "Turns of each side.", minimum=1)
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)
PARSER.flag("child", False)

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import common, side, workloads
from simulation import runtimes
from tasks.layers import convolution, dense, lstm, normalization, pooling, sparse_inputs
from tasks.models import losses
from tff_algos import client, random

_layers = tf.keras.layers


def _dropout_of_words(x, rate, seed, noise_shape=None):
    keep = random.uniform(tf.shape(x) if noise_shape is None else noise_shape, seed) >= rate
    return x * (tf.cast(keep, x.dtype) * (1.0 / (1.0 - rate)))


def _loss_of_tensorflow(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)


class Layer(NamedTuple):
    """One of the suite's layers.

    Attributes:
      workload: A workload whose model has it.
      place: Module and name under which it is looked up.
      instead: The replacement.
    """

    workload: str
    place: tuple[object, str]
    instead: Callable


LAYERS = {
    "convolution": Layer("w1", (convolution, "Conv2D"), _layers.Conv2D),
    "small_images": Layer("w7", (convolution, "Conv2D"), _layers.Conv2D),
    "normalization": Layer("w7", (normalization, "GroupNormalization"), _layers.GroupNormalization),
    "pool": Layer("w1", (pooling, "MaxPool2D"), _layers.MaxPool2D),
    "dense": Layer("w1", (dense, "Dense"), _layers.Dense),
    "dropout": Layer("w1", (random, "dropout"), _dropout_of_words),
    "lstm": Layer("w3", (lstm, "LSTM"), _layers.LSTM),
    "sparse_inputs": Layer("w2", (sparse_inputs, "Dense"), _layers.Dense),
    "many_classes": Layer("w8", (losses, "_of_many_classes"), _loss_of_tensorflow),
}


def _training(layer: Layer, replaced: bool) -> Callable[[], None]:
    """Returns a function that trains the workload's first client; it has already been traced."""
    workload = workloads.WORKLOADS[layer.workload](None)
    data = side.batched_cohort(workload._replace(clients=workload.clients[:1]), 0)[0]
    optimizer = client.Optimizer(tff.learning.optimizers.build_sgdm(workload.learning_rate))
    rate = tf.constant(workload.learning_rate)

    @tf.function(autograph=False)
    def train(weights, data):
        return client.train(model, optimizer, rate, weights, data).weights

    given = tf.nest.map_structure(tf.convert_to_tensor, data)
    with mock.patch.object(*layer.place, layer.instead) if replaced else contextlib.nullcontext():
        model = side.pure_model(workload)
        weights = tuple(map(tf.constant, model.initial_weights))
        train(weights, given)
    return lambda: train(weights, given)


def ratio(layer: Layer, turns: int) -> float:
    """Returns the ratio of processor times, suite's layer to replacement, in this process."""
    sides = [_training(layer, replaced) for replaced in (False, True)]
    seconds = [[], []]
    for _ in range(turns):
        for run, measured in zip(sides, seconds, strict=True):
            started = time.process_time()
            run()
            measured.append(time.process_time() - started)
    ours, other = map(statistics.median, seconds)
    return ours / other


def measure(names: list[str], starts: int, turns: int) -> list[dict]:
    """Returns the record of each layer, from several processes one after the other."""
    found = {name: [] for name in names}
    for _ in range(starts):
        command = [sys.executable, "-m", "benchmarks.layers", "--child", f"--turns={turns}"]
        done = subprocess.run(
            [*command, f"--layers={','.join(names)}"], stdout=subprocess.PIPE, text=True, check=True
        )
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            found[name].append(value)
    return [
        {
            "layer": name,
            "workload": LAYERS[name].workload,
            "of_other": round(statistics.median(values), 3),
            "least": round(min(values), 3),
            "greatest": round(max(values), 3),
        }
        for name, values in found.items()
    ]


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints a Markdown table, writes a CSV."""
    options = PARSER.parse(arguments)
    names = options.layers.split(",") if options.layers else list(LAYERS)
    if options.child:
        runtimes.configure_threads()
        print(json.dumps({name: ratio(LAYERS[name], options.turns) for name in names}))
        return 0
    with common.report(options) as table:
        for record in measure(names, options.starts, options.turns):
            table.add(record)
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
