"""The interface between the loop and a method's process, regardless of its executor.

The engine (`simulation.engine.process`), TFF's contexts (`simulation.tff.process`) and methods in
stages (`simulation.rounds.staged`) implement the same `Process`.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np


class Cohort(NamedTuple):
    """The clients of a round.

    Attributes:
      round_index: The round, from 0.
      ids: Ids of the clients, by which their states are stored.
      number: Number of clients.
      following: Number of clients of the next round, if their data may be made in advance; else 0.
      work: The data (`ClientData`) or assignment (`tff_algos.driver.Assignment`) of each client;
        `None` if the engine derives it from the settings.
    """

    round_index: int
    ids: Sequence[str]
    number: int
    following: int = 0
    work: Sequence[Any] | None = None


class Chunk(NamedTuple):
    """A part of a round's cohort.

    Attributes:
      number: Its place among the chunks, from 0.
      start: Place in the cohort of its first client.
      stop: Place after its last one.
    """

    number: int
    start: int
    stop: int


class RoundOutput(NamedTuple):
    """The results of a round.

    Attributes:
      state: The server's state after it.
      metrics: Name → scalar.
      client_states: The state or finding of each client, in the cohort's order; empty if none.
      moved: Column → megabytes sent and numbers of workers; empty in one process.
    """

    state: Any
    metrics: Mapping[str, Any]
    client_states: Iterable[Any] = ()
    moved: Mapping[str, float] = types.MappingProxyType({})


class Process(Protocol):
    """A method whose rounds the loop runs."""

    def initialize(self) -> Any:
        """Returns the server's state before the first round, a structure of arrays."""

    def next(
        self, state: Any, cohort: Cohort, client_states: Sequence[Any] | None = None
    ) -> RoundOutput:
        """Runs a round.

        Args:
          state: The server's state before it.
          cohort: Its clients.
          client_states: `ClientState` of each client, if the method's clients keep states. It is
            only read by slices.
        """

    def model_weights(self, state: Any) -> list[np.ndarray]:
        """Returns the model's trainable weights in a state."""

    def set_model_weights(self, state: Any, weights: Sequence[np.ndarray]) -> Any:
        """Returns a state with its trainable weights replaced."""
