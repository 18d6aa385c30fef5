"""A method of several processes (`tff_algos.driver`) as the loop runs it."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

import tff_algos
from simulation.rounds import cohorts, randomness
from tasks.task import FederatedData
from tff_algos import client_data
from tff_algos.driver import Assignment, Driver, Findings
from tff_algos.registry import RoundPlan

# Examples of a batch that is only looked at.
_LOOK_BATCH = 100


class TrainingClients:
    """The training clients of a run, as `tff_algos.driver.Clients`.

    Attributes:
      num_examples: int64 `[N]`, examples of each that are trained on.
    """

    def __init__(self, train: FederatedData, settings: Mapping[str, Any]):
        """Initialises from what the clients train on and the run's settings."""
        self._train = train
        size = cohorts.batch_size(train, settings)
        self._settings = {**settings, "client_batch_size": size}
        self.num_examples = np.asarray(train.sizes, np.int64)

    def labels(self, client: int) -> np.ndarray:
        """As `Clients.labels`."""
        return self._train.examples(client).y

    def permutation(self, iteration: int) -> np.ndarray:
        """As `Clients.permutation`."""
        seed = self._settings["client_datasets_random_seed"]
        return randomness.visits(seed, iteration, len(self.num_examples))

    def sample(self, round_index: int, among: np.ndarray) -> np.ndarray:
        """As `Clients.sample`; where `among` is all clients, the draw is that of other methods."""
        seed = self._settings["client_datasets_random_seed"]
        size = min(self._settings["clients_per_round"], len(among))
        return among[randomness.cohort(seed, round_index, len(among), size)]

    def batches(self, round_index: int, client: int, labels: np.ndarray) -> tff_algos.ClientData:
        """As `Clients.batches`."""
        examples = self._train.examples(client)._replace(y=labels)
        (data,) = cohorts.batched([examples], RoundPlan(), self._settings, round_index, [client])
        return client_data.arrays(data)

    def in_order(self, client: int, labels: np.ndarray) -> tff_algos.ClientData:
        """As `Clients.in_order`."""
        x = self._train.examples(client).x
        size = min(max(len(x), 1), _LOOK_BATCH)
        return tff_algos.batch_client(x, labels, batch_size=size, shuffle=False, index=client)


class StagedProcess:
    """A driver with its clients; has what the loop needs of a process.

    Attributes:
      driver: The driver.
      clients: The clients that it trains on.
    """

    def __init__(self, driver: Driver, clients: TrainingClients):
        """Initialises from the driver and the clients that it trains on."""
        self.driver = driver
        self.clients = clients

    def initialize(self) -> Any:
        """Returns the state before the first round."""
        return self.driver.initialize(self.clients)

    def cohort(self, state: Any) -> list[Assignment]:
        """Returns what each client of the next round is to do."""
        return self.driver.cohort(state, self.clients)

    def data(self, name: str, round_index: int, assignment: Assignment) -> Any:
        """Returns what a client works on in a round of a process, see `Driver.data`."""
        return self.driver.data(name, round_index, assignment, self.clients)

    def next(self, state: Any, cohort: Sequence[Assignment]) -> Any:
        """Runs a round and what is to be done after it."""
        return self.driver.next(state, cohort, self.clients)

    def get_model_weights(self, state: Any) -> tff.learning.models.ModelWeights:
        """Returns the model's weights in a state."""
        return tff.learning.models.ModelWeights(list(state.weights), [])

    def findings(self, state: Any) -> Findings | None:
        """Returns what the state says of clients' labels."""
        return self.driver.findings(state)


def label_noise(
    findings: Findings, given: TrainingClients, true: TrainingClients
) -> collections.OrderedDict[str, float]:
    """Compares what a method thinks of clients' labels with the truth, for reports only.

    Args:
      findings: What the method thinks.
      given: The clients with the labels that they came with.
      true: The same clients with true labels.

    Returns:
      `noise/noisy_clients`, those with a wrong label, and `noise/found_clients`; of the latter's
      agreement with the former `noise/precision` and `noise/recall`; `noise/labels_wrong`, the
      share of all labels that is wrong now; `noise/labels_corrected`, the share right now of those
      that were wrong; `noise/labels_spoiled`, the share wrong now of those that were right. A ratio
      to nothing is left out.
    """
    everyone = range(len(given.num_examples))
    truth = np.concatenate([true.labels(k) for k in everyone])
    wrong = np.concatenate([given.labels(k) for k in everyone]) != truth
    wrong_now = findings.labels != truth
    noisy = np.array(
        [part.any() for part in np.split(wrong, np.cumsum(given.num_examples)[:-1])], bool
    )
    found = np.asarray(findings.noisy, bool)
    both = np.sum(noisy & found)
    ratios = (
        ("precision", both, np.sum(found)),
        ("recall", both, np.sum(noisy)),
        ("labels_wrong", np.sum(wrong_now), len(truth)),
        ("labels_corrected", np.sum(wrong & ~wrong_now), np.sum(wrong)),
        ("labels_spoiled", np.sum(~wrong & wrong_now), np.sum(~wrong)),
    )
    columns = collections.OrderedDict(
        [("noise/noisy_clients", float(noisy.sum())), ("noise/found_clients", float(found.sum()))]
    )
    columns.update((f"noise/{name}", part / whole) for name, part, whole in ratios if whole)
    return columns
