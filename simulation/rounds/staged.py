"""Methods in stages (`tff_algos.driver`) on the clients of a run, with a program per stage."""

import collections
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tff_algos
from simulation.engine import process as engine
from simulation.engine.pool import Pool
from simulation.engine.program import Program
from simulation.engine.scheduler import CohortInChunks, cut
from simulation.protocol import Chunk, Cohort, RoundOutput
from simulation.rounds import cohorts, randomness
from simulation.rounds.one_program import CohortOfRound
from tasks.task import FederatedData
from tff_algos import client_data
from tff_algos.driver import Driver, Findings
from tff_algos.method import Method
from tff_algos.registry import RoundPlan

# Batch size for passes over examples without training.
_LOOK_BATCH = 100


class TrainingClients:
    """The training clients of a run, as `tff_algos.driver.Clients`.

    Attributes:
      num_examples: int64 `[N]`, number of training examples of each client.
    """

    def __init__(self, train: FederatedData, settings: Mapping[str, Any]):
        """Initialises from the clients' training examples and the run's settings."""
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
        """As `Clients.sample`; if `among` is all clients, the draw equals that of other methods."""
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


class Stages:
    """Implements `simulation.rounds.one_program.RunMethod` for a driver.

    It has a program for each stage; the state determines which one a round runs.
    """

    method: Method | None = None
    client_state: Any = None
    personal_weights: Callable | None = None

    def __init__(self, driver: Driver, clients: TrainingClients, settings: Mapping[str, Any]):
        """Initialises the method.

        Args:
          driver: The driver.
          clients: The clients that it trains on.
          settings: The run's settings.
        """
        self.process, self.clients, self._settings = driver, clients, settings

    def programs(self) -> Mapping[str, Program]:
        """As `RunMethod.programs`."""
        driver = self.process
        return {
            name: Program(own.method, driver.model, own.takes)
            for name, own in driver.rounds.items()
        }

    def data(self, name: str) -> Callable[[int, Chunk, Any], Sequence[Any]]:
        """As `RunMethod.data`."""

        def made(round_index, chunk, given):
            del chunk
            return [self.process.data(name, round_index, own, self.clients) for own in given]

        return made

    def in_engine(self, programs: Mapping[str, Program], pool: Pool) -> "StagedProcess":
        """As `RunMethod.in_engine`."""
        settings = self._settings
        size, batch = settings["clients_per_chunk"], settings["client_batch_size"]
        most = settings["client_state_memory_mb"] << 20

        def carry_out(round_index, name, state, assignments):
            sizes = np.array([len(own.labels) for own in assignments])
            chunks, steps = cut(len(assignments), size), -(-sizes // batch)
            cohort = CohortInChunks(round_index, chunks, stage=name, work=assignments, steps=steps)
            return engine.carry_out(programs[name], pool, state, cohort, lambda _: None, most)

        return StagedProcess(self.process, self.clients, carry_out)

    def through_tff(self) -> "StagedProcess":
        """As `RunMethod.through_tff`."""
        return StagedProcess(self.process, self.clients)

    @contextlib.contextmanager
    def cohorts(self, in_engine: bool) -> Iterator[CohortOfRound]:
        """As `RunMethod.cohorts`; clients and their assignments follow from the state."""
        del in_engine

        def told(round_index, state):
            work = self.process.cohort(state, self.clients)
            return Cohort(round_index, (), len(work), work=work)

        yield told

    def findings(self, state: Any) -> Findings | None:
        """As `RunMethod.findings`."""
        return self.process.findings(state)


class StagedProcess:
    """Implements `simulation.protocol.Process` for a driver."""

    def __init__(self, driver: Driver, clients: TrainingClients, carry_out: Callable | None = None):
        """Initialises the process.

        Args:
          driver: The driver.
          clients: The clients that it trains on.
          carry_out: (round from 0, program, state before it, assignments) → `RoundOutput`; by
            default TFF executes rounds.
        """
        self._driver, self._clients, self._carry_out = driver, clients, carry_out

    def initialize(self) -> Any:
        """As `simulation.protocol.Process.initialize`."""
        return self._driver.initialize(self._clients)

    def next(
        self, state: Any, cohort: Cohort, client_states: Sequence[Any] | None = None
    ) -> RoundOutput:
        """As `simulation.protocol.Process.next`, followed by the driver's step after the round."""
        del client_states
        moved = {}

        carry_out = self._carry_out

        def by_engine(name: str, of_stage: Any, assignments: Sequence[Any]) -> Any:
            assert carry_out is not None
            output = carry_out(cohort.round_index, name, of_stage, assignments)
            moved.update(output.moved)
            return output.state, output.metrics, output.client_states

        by = None if carry_out is None else by_engine
        assert cohort.work is not None  # See Stages.cohorts.
        output = self._driver.next(state, cohort.work, self._clients, by)
        return RoundOutput(output.state, output.metrics, moved=moved)

    def model_weights(self, state: Any) -> list[np.ndarray]:
        """As `simulation.protocol.Process.model_weights`."""
        return [np.asarray(w) for w in state.weights]

    def set_model_weights(self, state: Any, weights: Sequence[np.ndarray]) -> Any:
        """As `simulation.protocol.Process.set_model_weights`."""
        return state._replace(weights=tuple(weights))


def label_noise(
    findings: Findings, given: TrainingClients, true: TrainingClients
) -> collections.OrderedDict[str, float]:
    """Compares a method's findings on clients' labels with the truth, for reports only.

    Args:
      findings: The method's findings.
      given: The clients with their original labels.
      true: The same clients with true labels.

    Returns:
      Column → value. A ratio with denominator 0 is left out.

      * `noise/noisy_clients`: number of clients with a wrong label.
      * `noise/found_clients`: number of clients that the method considers noisy; `noise/precision`
        and `noise/recall` compare them with the former.
      * `noise/labels_wrong`: share of all labels that are wrong now.
      * `noise/labels_corrected`: share of originally wrong labels that are right now.
      * `noise/labels_spoiled`: share of originally right labels that are wrong now.
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
