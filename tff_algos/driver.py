"""Methods of several processes: which one runs in a round, on what, and what happens in between.

Most methods are one `tff_algos.method.Method`, the same in every round. A method in stages, which
also finds out things about clients or their labels between rounds, is a `Driver` instead. All that
it knows is in its state, arrays in a fixed structure, so that a checkpoint of the state is one of
the whole method. A driver is pure: it keeps nothing from one call to the next.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from tff_algos.client_data import ClientData
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


class Driver(Protocol):
    """A method of several processes.

    States are `NamedTuple`s of arrays, with fields `weights` (a tuple, in the model's order) and
    `round_num` (int32 scalar, rounds done in all stages).

    Attributes:
      model: The model that is trained.
    """

    model: Model

    def initialize(self, clients: Clients) -> Any:
        """Returns the state before the first round."""

    def cohort(self, state: Any, clients: Clients) -> list:
        """Returns what each client of the next round works on."""

    def next(self, state: Any, cohort: list, clients: Clients) -> Any:
        """Runs a round, then what is to be done before the following one.

        Returns:
          A `tff.learning.templates.LearningProcessOutput`.
        """

    def findings(self, state: Any) -> Findings | None:
        """Returns what the state says of clients' labels; `None` if that is nothing."""
