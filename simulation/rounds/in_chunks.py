"""A method's process whose rounds go through their cohort chunk by chunk."""

import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from common import memory
from simulation.errors import RunError
from simulation.rounds.cohorts import Cohorts
from simulation.runtimes import chunks, plans
from simulation.runtimes.chunks import Chunk
from tff_algos import process as process_lib
from tff_algos.model import Model


class RoundCohort(NamedTuple):
    """A round's clients, whose data whoever works on them makes.

    Attributes:
      round_index: The round, from 0.
      chunks: The chunks of its cohort.
      following: Those of the round after it, none after the last one.
    """

    round_index: int
    chunks: Sequence[Chunk]
    following: Sequence[Chunk] = ()


def cohort(
    cohorts: Cohorts, size: int | None, round_index: int, total_rounds: int
) -> tuple[list[str], RoundCohort]:
    """Returns the ids of the clients that take part in a round, and its chunks.

    Args:
      cohorts: The clients of the run's rounds.
      size: Clients of a chunk; `None` is all.
      round_index: The round, from 0.
      total_rounds: Rounds of the run.
    """
    clients = cohorts.members(round_index).clients
    following = ()
    if round_index + 1 < total_rounds:
        following = chunks.cut(len(cohorts.members(round_index + 1).clients), size)
    own = chunks.cut(len(clients), size)
    return cohorts.ids(clients), RoundCohort(round_index, own, following)


def plan_of(process: Any, name: str) -> plans.Plan:
    """Returns the round of a process in phases.

    Args:
      process: A process of `tff_algos.build`.
      name: The method's name.

    Raises:
      RunError: If its round cannot be cut.
    """
    try:
        return plans.Plan(process.method, process.model)
    except plans.NotDivisibleError as e:
        raise RunError(f"Rounds of {name} cannot go through chunks: {e}") from e


def require_room(plan: plans.Plan, number: int, name: str) -> None:
    """Refuses a cohort whose vectors the server could not hold side by side.

    Args:
      plan: The round.
      number: Clients of the largest cohort.
      name: The method's name.

    Raises:
      HparamError: If they would not fit into memory.
    """
    # Rows as they come in, the matrix that they become, and what the server makes of it.
    memory.require(
        3 * number * plan.stacked_bytes(),
        f"{name}, whose server holds a vector of each of {number:,} clients,",
        "fewer clients a round take less",
    )


def desk(
    plan: plans.Plan, model: Model, cohorts: Cohorts, settings: Mapping[str, Any], threads: int
) -> chunks.Desk:
    """Returns the desk for a run's rounds, as its runtime works.

    Args:
      plan: The round.
      model: The model.
      cohorts: The clients of the run's rounds.
      settings: The run's settings.
      threads: How many clients, or chunks, to work on at the same time.
    """
    if settings["runtime"] == "vectorized":
        hands, at_once = chunks.AtOnce(plan, model, at_least=1), threads
    else:
        hands, at_once = chunks.ClientByClient(plan, threads), 1
    return chunks.Desk(plan, hands, cohorts.part, at_once)


class Crew(Protocol):
    """What does the clients' side of rounds."""

    def work(
        self,
        cohort: RoundCohort,
        phase: int,
        sent: Callable[[int], list[np.ndarray]],
        states_of: Callable[[Chunk], Any],
    ) -> Iterator[tuple[chunks.Nodes, Any]]:
        """Does a phase of a round.

        Args:
          cohort: The round's clients.
          phase: The phase.
          sent: Number of a broadcast → its leaves.
          states_of: What the clients of a chunk keep: leaves of each.

        Yields:
          Nodes of the tree of chunks, and chunk → what its clients keep, of those that tell.
        """

    def close(self) -> None:
        """Ends its work."""


class Alone:
    """This process, as the whole crew."""

    def __init__(self, desk: chunks.Desk):
        """Initialises for a desk."""
        self._desk = desk

    def work(self, cohort, phase, sent, states_of):
        """As `Crew.work`."""
        received = _Sent(sent)
        arguments = cohort.chunks, received, states_of, cohort.following
        for done in self._desk.work(cohort.round_index, phase, *arguments):
            states = {} if done.states is None else {done.chunk: done.states}
            yield {(0, done.chunk.index): done.partials}, states

    def close(self) -> None:
        """Ends the desk's threads."""
        self._desk.close()


class _Sent(dict):
    """Broadcasts by number, asked for once."""

    def __init__(self, sent):
        super().__init__()
        self._sent = sent

    def __missing__(self, number):
        self[number] = self._sent(number)
        return self[number]


class ChunkedProcess:
    """Has what the loop needs of a process; its cohorts are `RoundCohort`s.

    Attributes:
      reads_states: That `next` asks for client states by slices, and gives them one by one.
      evaluate: As `spread` of `simulation.measures.evaluation.Evaluator`; `None` if the crew does
        not evaluate.
    """

    reads_states = True

    def __init__(self, process: Any, plan: plans.Plan, crew: Crew, states_bytes: int = 1 << 30):
        """Initialises the process.

        Args:
          process: As the loop would take it for rounds that are not cut, see `runtimes.bind`.
          plan: The round.
          crew: Who works.
          states_bytes: Up to this size what clients keep stays in memory until the round is over.
        """
        self.initialize = process.initialize
        self._plan, self._crew, self._states_bytes = plan, crew, states_bytes
        # Of a crew that does.
        self.evaluate = getattr(crew, "evaluate", None)

    def close(self) -> None:
        """Ends the crew's work."""
        self._crew.close()

    def get_model_weights(self, state: Any) -> tff.learning.models.ModelWeights:
        """Returns the model's weights in a state."""
        return tff.learning.models.ModelWeights(list(state.weights), [])

    def next(self, state: Any, cohort: RoundCohort, client_states: Sequence[Any] | None = None):
        """Runs a round.

        Args:
          state: The state before it.
          cohort: The round's clients.
          client_states: `ClientState` of each client; only slices are taken.

        Returns:
          A `tff.learning.templates.LearningProcessOutput`, or with client state a
          `tff_algos.process.RoundOutput` whose states are an iterable.
        """

        def states_of(chunk):
            if client_states is None:
                return None
            given = client_states[chunk.start : chunk.stop]
            return [[np.asarray(a) for a in tf.nest.flatten(own)] for own in given]

        plan, server = self._plan, self._plan.server(state)
        after = _States(plan, cohort.chunks, self._states_bytes)
        for phase in range(len(plan.phases)):
            totals = chunks.Totals(plan, phase, len(cohort.chunks))
            for nodes, states in self._crew.work(cohort, phase, server.sent, states_of):
                totals.add(nodes)
                after.add(states)
            server.take(totals.whole())
        state, metrics = server.outcome()
        if client_states is None:
            return tff.learning.templates.LearningProcessOutput(state, metrics)
        return process_lib.RoundOutput(state, metrics, after)


class _States:
    """What clients keep after a round, in memory up to a size and in a file beyond it.

    The store of a run takes it when the round is over: a round that is broken off leaves no trace.
    """

    def __init__(self, plan, all_chunks, most_bytes):
        self._plan, self._chunks, self._most = plan, all_chunks, most_bytes
        self._held, self._bytes, self._file, self._places = {}, 0, None, {}

    def add(self, states) -> None:
        for chunk, of_clients in states.items():
            self._bytes += sum(leaf.nbytes for leaves in of_clients for leaf in leaves)
            if self._bytes <= self._most:
                self._held[chunk] = of_clients
                continue
            if self._file is None:
                self._file = tempfile.TemporaryFile()
            self._places[chunk] = self._file.seek(0, 2)
            pickle.dump(of_clients, self._file, protocol=5)

    def __iter__(self):
        spec = self._plan.specs[plans.CLIENT_STATES]
        for chunk in self._chunks:
            of_clients = self._held.pop(chunk, None)
            if of_clients is None:
                self._file.seek(self._places[chunk])
                of_clients = pickle.load(self._file)
            for leaves in of_clients:
                yield tf.nest.pack_sequence_as(spec, leaves)
        if self._file is not None:
            self._file.close()
