"""Methods of several processes: which one runs in a round, on which data, and what happens between.

Most methods are one `tff_algos.method.Method`, the same in every round. A method in stages, which
also learns about clients or their labels between rounds, is a `Driver` instead. Its whole knowledge
is in its state, arrays in a fixed structure, so a checkpoint of the state is a checkpoint of the
method. A driver is pure: it stores nothing between calls.

A client's data depends on what earlier rounds found out. So the driver describes it in two steps:
`Assignment`s, which are small and can be sent, and the data, which the executing worker builds from
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model


class Clients(Protocol):
    """All training clients of a run, as its settings batch their examples.

    Attributes:
      num_examples: int64 `[N]`, training examples of each client.
    """

    num_examples: np.ndarray

    def labels(self, client: int) -> np.ndarray:
        """Returns a client's original targets, `[n_k, ...]`."""

    def permutation(self, iteration: int) -> np.ndarray:
        """Returns all clients in an order drawn for an iteration of a stage, int64 `[N]`."""

    def sample(self, round_index: int, among: np.ndarray) -> np.ndarray:
        """Draws the clients of a round: as many as the run samples, or all of `among` if fewer."""

    def batches(self, round_index: int, client: int, labels: np.ndarray) -> ClientData:
        """Returns a client's minibatches of a round, with `labels` as targets."""

    def in_order(self, client: int, labels: np.ndarray) -> ClientData:
        """Returns a client's examples once, in stored order, with `labels` as targets."""


class Findings(NamedTuple):
    """A driver's current findings on the clients' labels.

    Attributes:
      noisy: bool `[N]`, which clients are believed to have wrong labels.
      labels: Current targets of all clients' examples, client after client.
    """

    noisy: np.ndarray
    labels: np.ndarray


class Assignment(NamedTuple):
    """A client's task in a round, before its examples are read.

    Attributes:
      client: Its position among all training clients.
      labels: Current targets of its examples, `[n_k, ...]`.
      facts: Further values from the driver, a structure of arrays.
    """

    client: int
    labels: np.ndarray
    facts: Any = ()


class Round(NamedTuple):
    """A round of one of a driver's processes, as pure functions.

    Attributes:
      method: The method of the round. If clients return findings, `next_round` returns them third,
        as a client value. It takes no client states.
      takes: `tf.TensorSpec`s of a `ClientData` → those of one client's data in this round.
    """

    method: Method
    takes: Callable[[ClientData], Any]


# Name of a round, state before it, what its clients are to do → state after it, metrics, and what
# each client found.
CarryOut = Callable[[str, Any, Sequence[Assignment]], tuple[Any, Any, Iterable[Any]]]


class Driver(Protocol):
    """A method of several processes.

    States are `NamedTuple`s of arrays, with fields `weights` (a tuple, in the model's order) and
    `round_num` (int32 scalar, rounds done in all stages).

    Attributes:
      model: The model that is trained.
      rounds: Name of a process → its round.
    """

    model: Model
    rounds: Mapping[str, Round]

    def initialize(self, clients: Clients) -> Any:
        """Returns the state before the first round."""

    def cohort(self, state: Any, clients: Clients) -> list[Assignment]:
        """Returns the assignment of each client of the next round."""

    def data(self, name: str, round_index: int, assignment: Assignment, clients: Clients) -> Any:
        """Returns a client's data in a round of a process. It is a pure function."""

    def next(
        self,
        state: Any,
        cohort: Sequence[Assignment],
        clients: Clients,
        carry_out: CarryOut | None = None,
    ) -> Any:
        """Runs a round, then the work that precedes the following one.

        Args:
          state: The state before it.
          cohort: What `cohort` returned for the state.
          clients: All clients.
          carry_out: Executes rounds of the processes; by default TFF does, on data made here.

        Returns:
          A `tff.learning.templates.LearningProcessOutput`.
        """

    def findings(self, state: Any) -> Findings | None:
        """Returns what the state says about clients' labels; `None` if nothing."""
