"""Methods with one program, the same in every round, on the clients of a run."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from simulation.engine import process as engine
from simulation.engine.batched_ops import NotVectorizable
from simulation.engine.pool import Pool
from simulation.engine.program import Program
from simulation.errors import RunError
from simulation.protocol import Chunk, Cohort, Process
from simulation.rounds.cohorts import Ahead, Cohorts
from simulation.tff.process import TffProcess
from tff_algos import process as process_lib
from tff_algos.driver import Findings
from tff_algos.method import Method

CohortOfRound = Callable[[int, Any], Cohort]


class RunMethod(Protocol):
    """A run's method with its clients, independent of the executor of its rounds.

    Attributes:
      process: The result of `tff_algos.build`.
      method: The method itself; `None` if it has several programs.
      client_state: `ClientState` of a client before its first round; `None` if clients keep no
        state.
      personal_weights: As in `tff_algos.method.Method`.
    """

    process: Any
    method: Method | None
    client_state: Any
    personal_weights: Callable | None

    def programs(self) -> Mapping[str, Program]:
        """Returns name → program of its rounds; the only program of most methods is named "".

        Raises:
          RunError: If the engine does not support its aggregator.
        """

    def data(self, name: str) -> Callable[[int, Chunk, Any], Sequence[Any]]:
        """Returns the function that makes the data of a chunk's clients for a program.

        Its arguments are the round, from 0, the chunk, and the value of `CohortInChunks.given`.

        Args:
          name: The program.
        """

    def in_engine(self, programs: Mapping[str, Program], pool: Pool) -> Process:
        """Returns a process whose rounds a pool executes, chunk by chunk."""

    def through_tff(self) -> Process:
        """Returns a process whose rounds the installed TFF context executes."""

    def cohorts(self, in_engine: bool) -> contextlib.AbstractContextManager[CohortOfRound]:
        """Yields a function from (round, state before it) to the round's cohort.

        Args:
          in_engine: Whether the engine makes the clients' data.
        """

    def findings(self, state: Any) -> Findings | None:
        """Returns a state's findings on clients' labels; `None` if there are none."""


class OneProgram:
    """Implements `RunMethod` for a process of `tff_algos.build`."""

    def __init__(self, process: Any, cohorts: Cohorts, settings: Mapping[str, Any]):
        """Initialises the method.

        Args:
          process: The process.
          cohorts: The clients of the run's rounds.
          settings: The run's settings.
        """
        self.process, self._cohorts, self._settings = process, cohorts, settings
        self.method = method = process.method
        self.personal_weights = method.personal_weights
        keeps = method.client_state is not None
        self.client_state = process_lib.initial_client_state(method) if keeps else None

    def programs(self) -> Mapping[str, Program]:
        """As `RunMethod.programs`."""
        try:
            return {"": engine.program_of(self.process)}
        except NotVectorizable as e:
            raise RunError(f"The engine does not support this aggregator: {e}") from e

    def data(self, name: str) -> Callable[[int, Chunk, Any], Sequence[Any]]:
        """As `RunMethod.data`."""
        del name
        return self._cohorts.part

    def in_engine(self, programs: Mapping[str, Program], pool: Pool) -> Process:
        """As `RunMethod.in_engine`."""
        settings = self._settings
        states_bytes = settings["client_state_memory_mb"] << 20
        size = settings["clients_per_chunk"]
        return engine.EngineProcess(self.process, programs[""], pool, size, states_bytes)

    def through_tff(self) -> Process:
        """As `RunMethod.through_tff`."""
        return TffProcess(self.process)

    @contextlib.contextmanager
    def cohorts(self, in_engine: bool) -> Iterator[CohortOfRound]:
        """As `RunMethod.cohorts`."""
        total = self._settings["total_rounds"]
        if in_engine:

            def drawn(round_index, state):
                del state
                clients = self._cohorts.members(round_index).clients
                following = round_index + 1
                coming = self._cohorts.members(following).clients if following < total else ()
                ids = self._cohorts.ids(clients)
                return Cohort(round_index, ids, len(clients), len(coming))

            yield drawn
            return

        def made(round_index):
            ids, data = self._cohorts.data(round_index)
            return Cohort(round_index, ids, len(data), work=data)

        with Ahead(made, total) as ahead:
            yield lambda round_index, state: ahead(round_index)

    def findings(self, state: Any) -> None:
        """As `RunMethod.findings`; methods with one program have none."""
        del state
