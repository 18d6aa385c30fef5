"""Methods of several processes: which one runs in a round, on what, and what happens in between.

Most methods are one `tff_algos.method.Method`, the same in every round. A method in stages, which
also finds out things about clients or their labels between rounds, is a `Driver` instead. All that
it knows is in its state, arrays in a fixed structure, so that a checkpoint of the state is one of
the whole method. A driver is pure: it keeps nothing from one call to the next.

What a client works on depends on what was found out so far, so the driver says it in two steps:
`Assignment`s, which are small and can be sent, and the data, which whoever works on them makes.
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
        """Returns the targets that a client came with, `[n_k, ...]`."""

    def permutation(self, iteration: int) -> np.ndarray:
        """Returns all clients in an order drawn for an iteration of a stage, int64 `[N]`."""

    def sample(self, round_index: int, among: np.ndarray) -> np.ndarray:
        """Draws the clients of a round, as many as the run asks for or all of `among`."""

    def batches(self, round_index: int, client: int, labels: np.ndarray) -> ClientData:
        """Returns a client's minibatches of a round, with these targets in place of its own."""

    def in_order(self, client: int, labels: np.ndarray) -> ClientData:
        """Returns a client's examples once, in their own order, with these targets."""


class Findings(NamedTuple):
    """What a driver thinks of the clients' labels.

    Attributes:
      noisy: bool `[N]`, which clients are held to have labels that are wrong.
      labels: Targets of all clients' examples, client after client, as they are used now.
    """

    noisy: np.ndarray
    labels: np.ndarray


class Assignment(NamedTuple):
    """What a client is to do in a round, before its examples are read.

    Attributes:
      client: Its place among all training clients.
      labels: Targets of its examples as they are used now, `[n_k, ...]`.
      facts: What else the driver tells it, a structure of arrays.
    """

    client: int
    labels: np.ndarray
    facts: Any = ()


class Round(NamedTuple):
    """A round of one of a driver's processes, as pure functions.

    Attributes:
      method: `next_round` gives as a third what each client finds, a client value, where clients
        find something; it takes no client states.
      takes: `tf.TensorSpec`s of a `ClientData` → those of what one client works on.
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
        """Returns what each client of the next round is to do."""

    def data(self, name: str, round_index: int, assignment: Assignment, clients: Clients) -> Any:
        """Returns what a client works on in a round of a process, as a pure function."""

    def next(
        self,
        state: Any,
        cohort: list[Assignment],
        clients: Clients,
        carry_out: CarryOut | None = None,
    ) -> Any:
        """Runs a round, then what is to be done before the following one.

        Args:
          state: The state before it.
          cohort: What `cohort` returned for the state.
          clients: All clients.
          carry_out: Carries rounds of the processes out; by default TFF does, on data made here.

        Returns:
          A `tff.learning.templates.LearningProcessOutput`.
        """

    def findings(self, state: Any) -> Findings | None:
        """Returns what the state says of clients' labels; `None` if that is nothing."""
