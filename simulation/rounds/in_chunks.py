"""A method's process whose rounds go through their cohort chunk by chunk."""

import functools
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from simulation.engine import program as plans
from simulation.engine import scheduler as chunks
from simulation.engine.scheduler import Chunk
from simulation.errors import RunError
from simulation.rounds import staged
from simulation.rounds.cohorts import Cohorts
from tff_algos import process as process_lib
from tff_algos.driver import Assignment
from tff_suite import memory


class RoundCohort(NamedTuple):
    """A round's clients, whose data whoever works on them makes.

    Attributes:
      round_index: The round, from 0.
      chunks: The chunks of its cohort.
      following: Those of the round after it, none after the last one or if they depend on it.
      process: Name of the process, of a method of several.
      assignments: What each client is to do (`tff_algos.driver.Assignment`), of such a method.
      steps: Local steps of each client, about, of such a method; else `Cohorts.steps` tells.
    """

    round_index: int
    chunks: Sequence[Chunk]
    following: Sequence[Chunk] = ()
    process: str = ""
    assignments: Sequence[Assignment] = ()
    steps: np.ndarray | None = None

    def given(self, chunk: Chunk) -> Sequence[Assignment] | None:
        """Returns what the clients of a chunk are to do, where the data depend on that."""
        return self.assignments[chunk.start : chunk.stop] if self.assignments else None


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


def plans_of(process: Any, name: str) -> dict[str, plans.Plan]:
    """Returns the rounds of a method in phases.

    Args:
      process: A process of `tff_algos.build`, or a `StagedProcess`.
      name: The method's name.

    Returns:
      Name of a process, as of `RoundCohort` → its round.

    Raises:
      RunError: If its round cannot be cut.
    """
    try:
        if isinstance(process, staged.StagedProcess):
            return {
                name: plans.Plan(own.method, process.driver.model, own.takes)
                for name, own in process.driver.rounds.items()
            }
        return {"": plans.Plan(process.method, process.model)}
    except plans.NotDivisibleError as e:
        raise RunError(f"Rounds of {name} cannot go through chunks: {e}") from e


def desks(
    all_plans: Mapping[str, plans.Plan],
    process: Any,
    cohorts: Cohorts,
    settings: Mapping[str, Any],
    threads: int,
) -> dict[str, chunks.Desk]:
    """Returns a desk for the rounds of each process, as the run's runtime works.

    Args:
      all_plans: The rounds, from `plans_of`.
      process: As of `plans_of`.
      cohorts: The clients of the run's rounds.
      settings: The run's settings.
      threads: How many clients, or chunks, to work on at the same time.
    """

    def drawn(round_index, chunk, given):
        del given
        return cohorts.part(round_index, chunk.start, chunk.stop)

    def assigned(name, round_index, chunk, given):
        del chunk
        return [process.data(name, round_index, assignment) for assignment in given]

    found = {}
    for name, plan in all_plans.items():
        if settings["runtime"] == "vectorized":
            hands, at_once = chunks.AtOnce(plan, process.model), threads
        else:
            hands, at_once = chunks.ClientByClient(plan, threads), 1
        data_of = functools.partial(assigned, name) if name else drawn
        found[name] = chunks.Desk(plan, hands, data_of, at_once)
    return found


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

    def __init__(self, desks: Mapping[str, chunks.Desk]):
        """Initialises for desks, by the names of their processes."""
        self._desks = desks

    def work(self, cohort, phase, sent, states_of):
        """As `Crew.work`."""
        received = _Sent(sent)
        given = {chunk.index: cohort.given(chunk) for chunk in cohort.chunks}
        arguments = cohort.chunks, received, states_of, cohort.following, given
        desk = self._desks[cohort.process]
        for done in desk.work(cohort.round_index, phase, *arguments):
            states = {} if done.states is None else {done.chunk: done.states}
            yield {(0, done.chunk.index): done.partials}, states

    def close(self) -> None:
        """Ends the desks' threads."""
        for desk in self._desks.values():
            desk.close()


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
      spread: The crew, where it shares evaluations out (`simulation.measures.evaluations.Spread`);
        else `None`.
      moved: What the latest round came to, by the name of its column; nothing where nobody else
        works.
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
        self.spread = crew if hasattr(crew, "evaluate") else None
        self.moved = getattr(crew, "moved", dict)

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

        state, metrics, after = carry_out(
            self._plan, self._crew, state, cohort, states_of, self._states_bytes
        )
        if client_states is None:
            return tff.learning.templates.LearningProcessOutput(state, metrics)
        return process_lib.RoundOutput(state, metrics, after)


def carry_out(
    plan: plans.Plan,
    crew: Crew,
    state: Any,
    cohort: RoundCohort,
    states_of: Callable[[Chunk], Any],
    states_bytes: int,
) -> tuple[Any, Mapping[str, Any], Iterable[Any]]:
    """Has a crew carry a round out.

    Args:
      plan: The round.
      crew: Who works.
      state: The state before it.
      cohort: Its clients.
      states_of: What the clients of a chunk keep: leaves of each.
      states_bytes: As of `ChunkedProcess`.

    Returns:
      The state after it, its metrics, and what each client keeps or finds.
    """
    server = plan.server(state)
    after = _States(plan, cohort.chunks, states_bytes)
    for phase in range(len(plan.phases)):
        totals = chunks.Totals(plan, phase, len(cohort.chunks))
        for nodes, states in crew.work(cohort, phase, server.sent, states_of):
            totals.add(nodes)
            after.add(states)
        server.take(totals.whole())
    return *server.outcome(), after


class StagedInChunks(staged.StagedProcess):
    """A method of several processes whose rounds go through their cohorts chunk by chunk.

    Attributes:
      spread: As of `ChunkedProcess`.
      moved: As of `ChunkedProcess`.
    """

    def __init__(
        self,
        process: staged.StagedProcess,
        all_plans: Mapping[str, plans.Plan],
        crew: Crew,
        settings: Mapping[str, Any],
    ):
        """Initialises the process.

        Args:
          process: The method with its clients.
          all_plans: Its rounds, from `plans_of`.
          crew: Who works.
          settings: The run's settings.
        """
        super().__init__(process.driver, process.clients)
        self._plans, self._crew, self._settings = all_plans, crew, settings
        self.spread = crew if hasattr(crew, "evaluate") else None
        self.moved = getattr(crew, "moved", dict)

    def next(self, state: Any, cohort: Sequence[Assignment]) -> Any:
        """As `StagedProcess.next`."""
        round_index, settings = int(state.round_num), self._settings

        def by_crew(name, state, assignments):
            sizes = np.array([len(a.labels) for a in assignments])
            shared = RoundCohort(
                round_index,
                chunks.cut(len(assignments), settings["clients_per_chunk"]),
                process=name,
                assignments=assignments,
                steps=-(-sizes // settings["client_batch_size"]),
            )
            most = settings["client_state_memory_mb"] << 20
            return carry_out(self._plans[name], self._crew, state, shared, lambda _: None, most)

        return self.driver.next(state, cohort, self.clients, by_crew)


class _States:
    """What clients keep after a round, in memory up to a size and in a file beyond it.

    The store of a run takes it when the round is over: a round that is broken off leaves no trace.
    """

    def __init__(self, plan, all_chunks, most_bytes):
        self._plan, self._chunks, self._most = plan, all_chunks, most_bytes
        self._held, self._bytes, self._file, self._places = {}, 0, None, {}

    def add(self, states) -> None:
        for chunk, of_clients in states.items():
            self._bytes += memory.nbytes(of_clients)
            if self._bytes <= self._most:
                self._held[chunk] = of_clients
                continue
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self._places[chunk] = self._file.seek(0, 2)
            pickle.dump(of_clients, self._file, protocol=5)

    def __iter__(self):
        spec = self._plan.states_spec
        for chunk in self._chunks:
            of_clients = self._held.pop(chunk, None)
            if of_clients is None:
                self._file.seek(self._places[chunk])
                of_clients = pickle.load(self._file)
            for leaves in of_clients:
                yield tf.nest.pack_sequence_as(spec, leaves)
        if self._file is not None:
            self._file.close()
