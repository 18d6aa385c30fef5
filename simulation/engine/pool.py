"""Pools, which execute the clients' side of rounds in this process or in many."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from simulation.engine.executors import PerClient, Stacked
from simulation.engine.program import Program
from simulation.engine.scheduler import CohortInChunks, Nodes, Scheduler
from simulation.protocol import Chunk


class Spread(Protocol):
    """Distributes evaluations over workers, see `simulation.measures.evaluation`."""

    def evaluate(
        self, name: Any, weights: Sequence[Any], number: int, size: int
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Evaluates all chunks of a test set."""

    def evaluate_each(
        self,
        name: str,
        weights: Sequence[Any],
        own_of: Callable[[int], Any],
        clients: Sequence[int],
        sizes: Sequence[int],
    ) -> Iterator[tuple[int, Any]]:
        """Evaluates clients with their own weights."""


class Pool(Protocol):
    """Executes the clients' side of rounds; see `InProcess`, `simulation.workers.pool.RayPool`.

    Attributes:
      spread: Distributes evaluations; `None` if the caller evaluates.
    """

    spread: Spread | None

    def work(
        self,
        cohort: CohortInChunks,
        phase: int,
        sent: Callable[[int], list[tf.Tensor]],
        states_of: Callable[[Chunk], Any],
    ) -> Iterator[tuple[Nodes, Mapping[Chunk, Any]]]:
        """Executes a phase of a round.

        Args:
          cohort: The round's clients.
          phase: The phase.
          sent: Number of a broadcast → its leaves.
          states_of: Function from a chunk to the leaves of its clients' states.

        Yields:
          Nodes of the tree of chunks, and chunk → new states of its clients, if computed.
        """

    def moved(self) -> Mapping[str, float]:
        """Returns column → measurement of the latest round's communication."""

    def close(self) -> None:
        """Ends its work."""


class InProcess:
    """This process as the pool."""

    spread: Spread | None = None

    def __init__(self, schedulers: Mapping[str, Scheduler]):
        """Initialises for the schedulers of a method's programs, by their names."""
        self._schedulers = schedulers

    def work(self, cohort: Any, phase: Any, sent: Any, states_of: Any) -> Any:
        """As `Pool.work`."""
        received = Sent(sent)
        given = {chunk.number: cohort.given(chunk) for chunk in cohort.chunks}
        arguments = cohort.chunks, received, states_of, cohort.following, given
        scheduler = self._schedulers[cohort.stage]
        for done in scheduler.work(cohort.round_index, phase, *arguments):
            states = {} if done.states is None else {done.chunk: done.states}
            yield {(0, done.chunk.number): done.partials}, states

    def moved(self) -> Mapping[str, float]:
        """As `Pool.moved`: nothing, in one process."""
        return {}

    def close(self) -> None:
        """Ends the schedulers' threads."""
        for scheduler in self._schedulers.values():
            scheduler.close()


def scheduler(
    program: Program, stacked: bool, data_of: Callable[[int, Chunk, Any], Any], threads: int
) -> Scheduler:
    """Returns the scheduler for the chunks of a program.

    Args:
      program: The program.
      stacked: Whether clients are stacked; otherwise they are processed one by one.
      data_of: As for `Scheduler`.
      threads: Number of clients, or of stacked chunks, to process at the same time.
    """
    executor = Stacked(program) if stacked else PerClient(program, threads)
    return Scheduler(program, executor, data_of, threads if stacked else 1)


def schedulers(
    programs: Mapping[str, Program],
    data: Callable[[str], Callable[[int, Chunk, Any], Any]],
    settings: Mapping[str, Any],
    threads: int,
) -> dict[str, Scheduler]:
    """Returns name → scheduler for the chunks of a run's programs.

    Args:
      programs: Name → program, as from `simulation.rounds.one_program.RunMethod`.
      data: Name → function that makes clients' data, as `RunMethod.data`.
      settings: The run's settings.
      threads: As for `scheduler`.
    """
    stacked = settings["runtime"] == "vectorized"
    return {
        name: scheduler(program, stacked, data(name), threads) for name, program in programs.items()
    }


class Sent(dict):
    """Broadcasts by number, each computed once when first needed."""

    def __init__(self, sent: Callable[[int], list[tf.Tensor]]):
        """Initialises from a function that returns the leaves of a broadcast."""
        super().__init__()
        self._sent = sent

    def __missing__(self, number: int) -> list[tf.Tensor]:
        self[number] = self._sent(number)
        return self[number]
