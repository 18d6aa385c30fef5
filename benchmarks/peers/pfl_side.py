"""pfl-research as a side of the speed benchmark, in its own environment.

    .venv-peers/pfl/bin/python benchmarks/peers/pfl_side.py WORK.npz

It uses `FederatedAveraging` on the `SimulatedBackend` with a PyTorch model. `torchrun` starts one
process per core with one thread each. On two busy cores this was several times as fast as one
process with threads inside the operations. As in pfl's `Dataset`, a user's minibatches are sliced
once and keep their order. Nothing is evaluated.
"""

import contextlib
import os
import sys

if __name__ == "__main__" and {"--help", "-h"} & set(sys.argv):
    with contextlib.suppress(BrokenPipeError):
        print(__doc__, flush=True)
    os._exit(0)
if __name__ == "__main__" and "RANK" not in os.environ:
    processes = f"--nproc-per-node={len(os.sched_getaffinity(0))}"
    os.environ["OMP_NUM_THREADS"] = "1"
    torchrun = ["-m", "torch.distributed.run", "--standalone", processes]
    os.execv(sys.executable, [sys.executable, *torchrun, *sys.argv])

import protocol
import torch
import torch_models
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel


class Rounds:
    """Rounds of FedAvg on a workload; `model` has the weights."""

    def __init__(self, work: protocol.Work):
        users = [PyTorchTensorDataset(client) for client in torch_models.tensors(work)]
        sizes = {k: len(user) for k, user in enumerate(users)}
        data = FederatedDataset(
            users.__getitem__, get_user_sampler("minimize_reuse", list(sizes)), sizes
        )
        self.model = torch_models.Model(work.name)
        self._trained = PyTorchModel(
            self.model,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(self.model.parameters(), lr=1.0),
        )
        self._backend = SimulatedBackend(data, data, [WeightByDatapoints()])
        self._algorithm = FederatedAveraging()
        self._cohort_size = len(users)
        self._train_params = NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=work.learning_rate,
            local_batch_size=work.batch_size,
        )

    def __call__(self, numbers: range) -> None:
        """Runs the rounds up to the last number, from where the call before stopped."""
        params = NNAlgorithmParams(
            central_num_iterations=numbers.stop,
            evaluation_frequency=sys.maxsize,
            train_cohort_size=self._cohort_size,
            val_cohort_size=None,
        )
        self._algorithm.run(
            params,
            self._backend,
            self._trained,
            self._train_params,
            send_metrics_to_platform=False,
        )


def _announced(numbers=range(0)):
    """Returns, in every process, the rounds that the first process announces."""
    bounds = torch.tensor([numbers.start, numbers.stop])
    torch.distributed.broadcast(bounds, 0)
    return range(*bounds.tolist())


def main() -> None:
    """Serves the workload of the file that the command line names."""
    answers = protocol.take_over_output()
    work = protocol.read(sys.argv[1])
    rounds = Rounds(work)
    if torch.distributed.get_rank() == 0:
        protocol.serve(lambda n: rounds(_announced(n)), work.rounds_a_turn, answers)
        _announced()
    else:
        while numbers := _announced():
            rounds(numbers)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
