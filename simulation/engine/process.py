"""A method's rounds, executed by the engine, in the form that the loop needs."""

import os
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from simulation.device import state as state_lib
from simulation.engine import batching
from simulation.engine.pool import InProcess, Pool, scheduler
from simulation.engine.program import Program
from simulation.engine.scheduler import CohortInChunks, Totals, cut
from simulation.protocol import Chunk, Cohort, RoundOutput
from simulation.tff import context as tff_context
from tff_algos import client_data
from tff_algos.model import unfit_explained
from tff_algos.process import StackedStates
from tff_suite import memory

# Cached, since tracing a large model takes seconds.
_programs: MutableMapping[Any, Program] = weakref.WeakKeyDictionary()


def program_of(process: Any) -> Program:
    """Returns the program of a process of `tff_algos.build`, recorded once.

    Raises:
      NotVectorizable: As of `Program`.
    """
    if process not in _programs:
        _programs[process] = Program(process.method, process.model)
    return _programs[process]


class EngineProcess:
    """Implements `simulation.protocol.Process` by the engine, for a method of one program."""

    def __init__(
        self,
        process: Any,
        program: Program,
        pool: Pool,
        chunk_size: int | None = None,
        states_bytes: int = 1 << 30,
    ):
        """Initialises the process.

        Args:
          process: A process of `tff_algos.build`.
          program: Its program.
          pool: Executes the clients' side.
          chunk_size: Clients per chunk; `None` for the whole cohort.
          states_bytes: Bytes of new client states to keep in memory until the round is over; the
            rest goes to a file.
        """
        self._process, self._program, self._pool = process, program, pool
        self._chunk_size, self._states_bytes = chunk_size, states_bytes

    def initialize(self) -> Any:
        """As `simulation.protocol.Process.initialize`."""
        return state_lib.initial(self._process.method)

    def next(
        self, state: Any, cohort: Cohort, client_states: Sequence[Any] | None = None
    ) -> RoundOutput:
        """As `simulation.protocol.Process.next`.

        Raises:
          NotVectorizable: If clients are stacked and an operation cannot be vectorised over them.
          TypeError: If the state, or a client's data, has other types or shapes than the method's.
          ValueError: If there is no client, or the numbers of states and clients differ.
        """
        work = cohort.work
        if work is not None:
            work = client_data.of_model(work, self._process.model, int(state.round_num))
            self._process.check_clients(work)
        shared = CohortInChunks(
            cohort.round_index,
            cut(cohort.number, self._chunk_size),
            cut(cohort.following, self._chunk_size),
            work=work,
        )

        def states_of(chunk: Chunk) -> Any:
            assert client_states is not None  # Only a method whose clients keep some asks.
            if len(client_states) != cohort.number:
                # A single state would be broadcast to all clients.
                raise ValueError(
                    f"A cohort of {cohort.number} clients needs as many states, found "
                    f"{len(client_states)}."
                )
            given = client_states[chunk.start : chunk.stop]
            if isinstance(given, StackedStates):
                return batching.StackedLeaves(tf.nest.flatten(given.stacked))
            return [[np.asarray(a) for a in tf.nest.flatten(own)] for own in given]

        return carry_out(self._program, self._pool, state, shared, states_of, self._states_bytes)

    def model_weights(self, state: Any) -> list[np.ndarray]:
        """As `simulation.protocol.Process.model_weights`."""
        return [np.asarray(w) for w in state.weights]

    def set_model_weights(self, state: Any, weights: Sequence[np.ndarray]) -> Any:
        """As `simulation.protocol.Process.set_model_weights`."""
        state = state._replace(weights=tuple(weights))
        adopt = self._process.method.adopt_weights
        return adopt(state) if adopt else state


def carry_out(
    program: Program,
    pool: Pool,
    state: Any,
    cohort: CohortInChunks,
    states_of: Callable[[Chunk], Any],
    states_bytes: int,
) -> RoundOutput:
    """Executes a round with a pool.

    Args:
      program: The round.
      pool: Executes the clients' side.
      state: The state before it.
      cohort: Its clients.
      states_of: Function from a chunk to the leaves of its clients' states.
      states_bytes: As for `EngineProcess`.

    Raises:
      ValueError: If there is no client.
      ModelError: If a client's examples do not fit the model.
    """
    if not cohort.chunks:
        raise ValueError("A round needs at least one client.")
    server = program.server(state)
    after = _States(program, cohort.chunks, states_bytes)
    for phase in range(len(program.phases)):
        totals = Totals(program, phase, len(cohort.chunks))
        with unfit_explained():
            for nodes, states in pool.work(cohort, phase, server.sent, states_of):
                totals.add(nodes)
                after.add(states)
        server.take(totals.whole())
    gives_states = program.client_states is not None
    return RoundOutput(*server.outcome(), after.whole() if gives_states else (), pool.moved())


class EngineContext(tff_context.InProcessContext):
    """TFF computations in this process, and the rounds of `runtimes.bind` by the engine."""

    def __init__(self, stacked: bool, num_threads: int | None = None):
        """Initialises the context.

        Args:
          stacked: Whether clients are stacked; otherwise they are processed one by one.
          num_threads: Number of clients at a time; by default the number of cores.
        """
        super().__init__(num_threads)
        self._stacked = stacked
        self._threads = num_threads or len(os.sched_getaffinity(0))

    def process(self, built: Any, chunk_size: int | None = None) -> EngineProcess:
        """Returns the engine's form of a process; its cohorts contain their clients' data.

        Args:
          built: A process of `tff_algos.build`.
          chunk_size: Clients per chunk; `None` for the whole cohort.

        Raises:
          NotVectorizable: As for `Program`.
        """
        program = program_of(built)
        work = scheduler(program, self._stacked, lambda r, chunk, given: given, self._threads)
        return EngineProcess(built, program, InProcess({"": work}), chunk_size)


class _States:
    """The new states of a round's clients: in memory up to a size, the rest in a file.

    The run's store takes them when the round is over. So an aborted round leaves no trace.
    """

    def __init__(self, program, all_chunks, most_bytes):
        self._program, self._chunks, self._most = program, all_chunks, most_bytes
        self._held, self._bytes, self._places = {}, 0, {}
        self._file: Any = None

    def add(self, states: Mapping[Chunk, Any]) -> None:
        for chunk, of_clients in states.items():
            self._bytes += memory.nbytes(of_clients)
            if self._bytes <= self._most:
                self._held[chunk] = of_clients
                continue
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
            self._places[chunk] = self._file.seek(0, 2)
            pickle.dump(of_clients, self._file, protocol=5)

    def whole(self) -> Iterable[Any]:
        """Returns each client's state; stacked, if they are and form a single chunk in memory."""
        held = self._held.get(self._chunks[0])
        if len(self._chunks) > 1 or not isinstance(held, batching.StackedLeaves):
            return self
        return StackedStates(tf.nest.pack_sequence_as(self._program.states_spec, held.leaves))

    def __iter__(self):
        spec = self._program.states_spec
        for chunk in self._chunks:
            of_clients = self._held.pop(chunk, None)
            if of_clients is None:
                self._file.seek(self._places[chunk])
                of_clients = pickle.load(self._file)
            for leaves in of_clients:
                yield tf.nest.pack_sequence_as(spec, leaves)
        if self._file is not None:
            self._file.close()
