"""What the loop asks of a method's process, whoever carries its rounds out.

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
      ids: Ids of the clients, under which their states are kept.
      number: How many there are.
      following: How many the next round has, if their data may be made meanwhile; else 0.
      work: What each client works on (`ClientData`) or is to do (`tff_algos.driver.Assignment`);
        `None` where the engine draws it from the settings.
    """

    round_index: int
    ids: Sequence[str]
    number: int
    following: int = 0
    work: Sequence[Any] | None = None


class RoundOutput(NamedTuple):
    """What a round gives.

    Attributes:
      state: The server's state after it.
      metrics: Name → scalar.
      client_states: What each client keeps or finds, in the cohort's order; empty if nothing.
      moved: Megabytes and workers of the round, by the column's name; empty in one process.
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
          client_states: `ClientState` of each client, if the method's clients keep anything; only
            slices are taken.
        """

    def model_weights(self, state: Any) -> list[np.ndarray]:
        """Returns the model's trainable weights in a state."""

    def set_model_weights(self, state: Any, weights: Sequence[np.ndarray]) -> Any:
        """Returns the state with other trainable weights."""
