"""Flower as a side of the speed benchmark, in its own environment.

    .venv-peers/flower/bin/python benchmarks/peers/flower_side.py WORK.npz

It consists of a `ServerApp` with Flower's `FedAvg` and a `ClientApp` in PyTorch. Flower's
simulation engine runs them on Ray, with one actor per core and one thread in each. An actor reads
the clients' data once and makes its model once. Clients train, and nothing is evaluated. The engine
polls for messages every 0.1 s; this cannot be changed by settings. A turn has at most two rounds,
since they take long.
"""

import contextlib
import functools
import os
import sys

if __name__ == "__main__" and {"--help", "-h"} & set(sys.argv):
    with contextlib.suppress(BrokenPipeError):
        print(__doc__, flush=True)
    os._exit(0)

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import protocol
import torch
import torch_models
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


@functools.cache
def _held_by_actor(path):
    torch.set_num_threads(1)
    work = protocol.read(path)
    return work, torch_models.tensors(work), torch_models.Model(work.name)


def train(path: str, message: Message, partition: int) -> Message:
    """Trains the weights in a message for a client's epoch of SGD and returns the result."""
    work, clients, model = _held_by_actor(path)
    x, y = clients[partition]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=work.learning_rate)
    for batch in torch.randperm(len(y)).split(work.batch_size):
        optimizer.zero_grad()
        model.loss(x[batch], y[batch]).backward()
        optimizer.step()
    records = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(RecordDict(records), reply_to=message)


def main() -> None:
    """Serves the workload of the file that the command line names."""
    # Imported so that functions are pickled by name, and actors keep the data that they have read.
    import flower_side

    answers = protocol.take_over_output()
    path = os.path.abspath(sys.argv[1])
    work = protocol.read(path)
    client, server = ClientApp(), ServerApp()
    arrays = ArrayRecord(torch_models.Model(work.name).state_dict())

    @client.train()
    def answer(message, context):
        return flower_side.train(path, message, context.node_config["partition-id"])

    @server.main()
    def serve(grid, context):
        del context
        strategy = FedAvg(fraction_evaluate=0.0)

        def rounds(numbers):
            nonlocal arrays
            arrays = strategy.start(grid, arrays, len(numbers)).arrays

        protocol.serve(rounds, min(2, work.rounds_a_turn), answers)

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server,
        client,
        len(work.clients),
        backend_config={
            "init_args": {"address": "local", "num_cpus": cores},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    main()
