"""Memory over 10,000 distinct clients that each keep something between rounds.

    python -m benchmarks.client_states --clients=10000

Prints the resident memory after a quarter of the clients have been seen and after all of them, and
their ratio: of rounds of 50 clients on `synthetic`, of FedAvg, whose clients keep nothing, and of
SCAFFOLD, whose control variates may take 1 MiB of memory; and of the store alone, with states of
50,000 numbers of which 64 MiB may stay in memory. What is on disk lies in a temporary folder.
"""

import contextlib
import gc
import os
import tempfile

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("clients", 10_000, "Clients in all.", minimum=4)

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np

import tasks
import tff_algos
from benchmarks import common
from benchmarks.memory import resident_bytes
from simulation import runtimes
from simulation.records.client_states import ClientStates

_PER_ROUND = 50


class Readings:
    """Resident memory, a reading a round."""

    def __init__(self):
        self._bytes = []

    def take(self) -> None:
        """Takes a reading."""
        gc.collect()
        self._bytes.append(resident_bytes())

    def report(self, name: str, path: str) -> None:
        """Prints one line of the result; `path` is the file of the states, if there is one."""
        early, late = self._bytes[len(self._bytes) // 4 - 1], self._bytes[-1]
        size = os.path.getsize(path) / 2**20 if os.path.exists(path) else 0
        print(
            f"{name}: {early / 2**20:.1f} MiB after a quarter of the clients, "
            f"{late / 2**20:.1f} MiB after all, {late / early - 1:+.2%}; {size:.0f} MiB on disk",
            flush=True,
        )


def of_rounds(algorithm: str, task: tasks.task.Task, clients: int, path: str) -> None:
    """Measures a method's rounds, in each of which other clients take part."""
    process = tff_algos.build(
        algorithm, common.build(task, 0.01).model, num_clients=clients, client_learning_rate=0.01
    )
    states, readings = None, Readings()
    if process.method.client_state is not None:
        states = ClientStates(path, process.initial_client_state(), 1 << 20)
    with runtimes.installed("vectorized"), contextlib.ExitStack() as stack:
        if states:
            stack.enter_context(contextlib.closing(states))
        bound = runtimes.bind(process)
        state = bound.initialize()
        for r in range(clients // _PER_ROUND):
            cohort = range(r * _PER_ROUND, (r + 1) * _PER_ROUND)
            data = [client_data(task, r, k) for k in cohort]
            ids = [task.train.client_ids[k] for k in cohort]
            output = bound.next(state, data, *([states.read(ids)] if states else []))
            state = output.state
            if states:
                states.write(dict(zip(ids, output.client_states, strict=True)), r + 1)
                states.commit(r + 1)
            readings.take()
        readings.report(f"{algorithm} on synthetic", path)


def client_data(task: tasks.task.Task, round_index: int, client: int) -> tff_algos.ClientData:
    """Returns a client's data of a round, in batches of 10."""
    x, y = task.train.examples(client)
    return tff_algos.batch_client(
        x, y, batch_size=10, order_seed=(1, round_index, client), index=client
    )


def of_store(clients: int, path: str) -> None:
    """Measures the store alone."""
    rng = np.random.default_rng(0)
    readings = Readings()
    with contextlib.closing(ClientStates(path, np.zeros(50_000, np.float32), 64 << 20)) as states:
        for r in range(clients // _PER_ROUND):
            ids = [str(r * _PER_ROUND + k) for k in range(_PER_ROUND)]
            states.read(ids)
            states.write({i: rng.random(50_000, np.float32) for i in ids}, r + 1)
            readings.take()
        states.commit(clients // _PER_ROUND)
        readings.report("the store alone", path)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark and prints the result."""
    options = PARSER.parse(arguments)
    runtimes.configure_threads()
    print(common.machine())
    with tempfile.TemporaryDirectory() as folder:
        of_store(options.clients, os.path.join(folder, "store.sqlite"))
        task = tasks.load("synthetic", seed=1, num_clients=options.clients)
        for name in ("fedavg", "scaffold"):
            of_rounds(name, task, options.clients, os.path.join(folder, f"{name}.sqlite"))
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
