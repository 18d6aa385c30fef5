"""Counts the numbers that a method's round sends over the network.

    python -m simulation.measures.communication fedavg scaffold

For every method it prints how many numbers one client receives (down) and sends (up) in a round, as
multiples of the model's size. `RecordingFederation` executes a round with one client. It counts the
numbers broadcast to the client, and those of its values that are aggregated. A value in two
aggregates counts once. Client states are not sent. Metrics are counted, but they are few.
"""

import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tff_suite import command_line, imports, parser, tables
from tff_suite.hparams import HparamError

PARSER = parser.Parser(__doc__)
PARSER.positional("method", "methods; by default all", many=True, required=False)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

import tff_algos

# So that `--help` does not wait for TensorFlow.
with imports.when_used():
    import tensorflow as tf

if typing.TYPE_CHECKING:
    from tff_algos.client_data import ClientData
    from tff_algos.process import Process, StatefulProcess


class Cost(NamedTuple):
    """Numbers that one client exchanges with the server in one round.

    Attributes:
      down: Numbers that it receives.
      up: Numbers that it sends.
      model_size: Numbers of the model (M).
    """

    down: int
    up: int
    model_size: int

    def in_models(self) -> tuple[float, float]:
        """Returns `down` and `up` in multiples of the model's size."""
        return self.down / self.model_size, self.up / self.model_size


class RecordingFederation:
    """A `tff_algos.method.Federation` of one client that executes eagerly and counts numbers.

    Attributes:
      down: Numbers broadcast so far.
      up: Numbers aggregated so far.
    """

    def __init__(self):
        self.down = 0
        self.up = 0
        self._sent = {}

    def broadcast(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.broadcast`."""
        self.down += sum(int(tf.size(v)) for v in tf.nest.flatten(value))
        return value

    def map_clients(self, fn: Callable, *values: Any) -> Any:
        """As `tff_algos.method.Federation.map_clients`."""
        return fn(*values)

    def map_server(self, fn: Callable, *values: Any) -> Any:
        """As `tff_algos.method.Federation.map_server`."""
        return fn(*values)

    def mean(self, value: Any, weight: Any) -> Any:
        """As `tff_algos.method.Federation.mean`."""
        self._send((value, weight))
        return tf.nest.map_structure(
            lambda v: tf.math.divide_no_nan(v * tf.cast(weight, v.dtype), tf.cast(weight, v.dtype)),
            value,
        )

    def sum(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.sum`."""
        self._send(value)
        return value

    def max(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.max`."""
        self._send(value)
        return value

    def stack(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.stack`."""
        self._send(value)
        return tf.nest.map_structure(lambda v: tf.convert_to_tensor(v)[None], value)

    def _send(self, value):
        for v in tf.nest.flatten(value):
            if id(v) not in self._sent:
                self._sent[id(v)] = v  # Kept alive, so that its id is not reused.
                self.up += int(tf.size(v))


def measure(process: "Process | StatefulProcess", clients: "Sequence[ClientData]") -> Cost:
    """Runs rounds of one client each and counts the numbers sent in the last one.

    Args:
      process: A process of `tff_algos.build`.
      clients: The client's data for each round. Pass two rounds for methods whose first round sends
        more than later ones.

    Returns:
      The cost of the last round.
    """
    method = process.method
    state = method.initialize()
    kept = []
    if method.client_state is not None:
        kept = [_tensors(tff_algos.initial_client_state(method))]
    for data in clients:
        federation = RecordingFederation()
        state, _, *kept = method.next_round(federation, state, _tensors(data), *kept)
    size = sum(int(np.size(w)) for w in process.model.initial_weights)
    return Cost(federation.down, federation.up, size)


def _tensors(value: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, value)


def measure_method(name: str, **settings: Any) -> Cost:
    """Measures a method with its default settings on a dense layer of 20,200 numbers.

    Args:
      name: The method.
      **settings: Settings for `tff_algos.build` that override the defaults.

    Returns:
      The cost of the second round.
    """
    layer = tf.keras.layers.Dense(100, input_shape=(201,))
    model = tff_algos.from_keras(
        tf.keras.Sequential([layer]),
        loss=lambda y, out: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=out),
        metrics={
            "accuracy": lambda y, out: tf.cast(
                tf.equal(tf.argmax(out, -1), tf.cast(y, tf.int64)), tf.float32
            )
        },
    )
    given = {"client_learning_rate": 0.1, "server_learning_rate": 1.0, **settings}
    process: Any = tff_algos.build(name, model, num_clients=2, **given)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 201)).astype(np.float32)
    y = rng.integers(0, 100, 6).astype(np.int32)
    rounds = []
    for r in range(2):
        plan = process.plan(r, 100)
        rounds.append(
            tff_algos.batch_client(
                x,
                y,
                batch_size=2,
                steps=plan.local_steps,
                full_batch=plan.batches == "full_batch",
                order_seed=(r,),
                index=0,
            )
        )
    return measure(process, rounds)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prints the cost of methods; see the module's docstring."""
    # The costs of a method in stages are those of its processes, which are in the table.
    known = [name for name in tff_algos.names() if not tff_algos.get(name).staged]
    options = PARSER.parse(arguments)
    names = options.method or known
    for name in names:
        if name not in known:
            told = parser.said_of_unknown("method", name, known)
            raise HparamError(f"{told} Known: {', '.join(known)}.")
    heads = {"method": "method", "down": "down, M", "up": "up, M"}
    with tables.printed(options.json, heads) as table:
        for name in names:
            down, up = measure_method(name).in_models()
            table.add({"method": name, "down": round(down, 2), "up": round(up, 2)})
    return 0


if __name__ == "__main__":
    command_line.run(main)
