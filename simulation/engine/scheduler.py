"""Scheduling of a cohort's chunks, and combination of their aggregates.

A cohort is divided into chunks with a fixed number of clients each, in the cohort's order. The
division is a setting of the run, since floating-point sums depend on it. Within a chunk, sums fold
in cohort order. Chunks are combined in a binary tree over their positions. The tree does not depend
on which worker processes a chunk, or when. Node (l, i) is the sum of nodes (l - 1, 2 i) and
(l - 1, 2 i + 1), or the first of them if the second does not exist.
"""

import collections
import concurrent.futures
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulation.device import eager_tensors
from simulation.engine.executors import Executor, OnChunks, Partials
from simulation.engine.program import Program
from simulation.protocol import Chunk

# (level, position) of a node of the tree → its aggregates.
Nodes = dict[tuple[int, int], Partials]


def combine(nodes: Nodes, program: Program, phase: int, number: int) -> Nodes:
    """Combines nodes of the tree as far as possible, with the same result on any machine.

    Args:
      nodes: The nodes, which must not overlap.
      program: The round.
      phase: The phase of the aggregates.
      number: Total number of chunks.

    Returns:
      The smallest set of nodes that covers the same clients; a single node for a whole cohort.
    """
    kinds = {p.number: p.kind for p in program.phases[phase].aggregates}
    nodes = dict(nodes)
    level, size = 0, number
    while size > 1:
        for _, place in sorted(key for key in nodes if key[0] == level):
            parent = level + 1, place // 2
            if place % 2 == 0 and place == size - 1:
                nodes[parent] = nodes.pop((level, place))
            elif place % 2 and (level, place - 1) in nodes:
                left, right = nodes.pop((level, place - 1)), nodes.pop((level, place))
                nodes[parent] = {
                    n: [_MERGE[kind](a, b) for a, b in zip(left[n], right[n], strict=True)]
                    for n, kind in kinds.items()
                }
        level, size = level + 1, -(-size // 2)
    return nodes


def arrays(nodes: Nodes) -> Nodes:
    """Returns nodes with tensors replaced by arrays, which can be sent to other processes."""

    def of_leaf(leaf):
        return list(map(np.asarray, leaf)) if isinstance(leaf, list) else np.asarray(leaf)

    return {
        key: {number: list(map(of_leaf, leaves)) for number, leaves in partials.items()}
        for key, partials in nodes.items()
    }


# These work on arrays, tensors, or lists of rows.
_MERGE = {
    "mean": lambda a, b: np.add(np.asarray(a), np.asarray(b)),
    "sum": lambda a, b: np.add(np.asarray(a), np.asarray(b)),
    "max": lambda a, b: np.maximum(np.asarray(a), np.asarray(b)),
    "stack": lambda a, b: a + b,
}


class Totals:
    """The aggregates of a phase, combined as chunks arrive."""

    def __init__(self, program: Program, phase: int, number: int):
        """Initialises for a number of chunks."""
        self._program, self._phase, self._number = program, phase, number
        self._nodes: Nodes = {}

    def add(self, nodes: Nodes) -> None:
        """Adds some nodes."""
        self._nodes = combine({**self._nodes, **nodes}, self._program, self._phase, self._number)

    def whole(self) -> dict[int, list[Any]]:
        """Returns number of an aggregate → its leaves, once all chunks have arrived; call it once.

        It releases the nodes, since stacked rows hold one vector for each client.
        """
        (partials,) = self._nodes.values()
        self._nodes, totals = {}, {}
        for aggregate in self._program.phases[self._phase].aggregates:
            leaves = partials[aggregate.number]
            if aggregate.kind == "mean":
                divide = self._program.calls[aggregate.number]
                totals[aggregate.number] = divide(list(map(eager_tensors.as_tensor, leaves)))
            elif aggregate.kind == "stack":
                totals[aggregate.number] = list(map(_one_array, leaves))
            else:
                totals[aggregate.number] = leaves
        return totals


def _one_array(rows):
    """Joins a list of arrays into one and empties the list; the server can adopt the result."""
    if len(rows) == 1:
        return rows.pop()
    rows[:] = map(np.asarray, rows)
    shape = (sum(map(len, rows)), *rows[0].shape[1:])
    joined = eager_tensors.empty(shape, rows[0].dtype)
    np.concatenate(rows, out=joined)
    rows.clear()
    return eager_tensors.adopt(joined)


def cut(number: int, size: int | None) -> list[Chunk]:
    """Divides a cohort into chunks.

    Args:
      number: Clients of the cohort.
      size: Clients per chunk, of which the last may have fewer; `None` for a single chunk.
    """
    size = size or max(number, 1)
    starts = range(0, number, size)
    return [Chunk(i, start, min(start + size, number)) for i, start in enumerate(starts)]


class CohortInChunks(NamedTuple):
    """A round's clients in chunks; the pool makes a chunk's data where it processes the chunk.

    Attributes:
      round_index: The round, from 0.
      chunks: The chunks of its cohort.
      following: The chunks of the next round; empty after the last one, or if they depend on this
        round.
      stage: Name of the program, for methods with several.
      work: As in `simulation.protocol.Cohort`.
      steps: Approximate local steps of each client; `None` if they follow from the settings.
    """

    round_index: int
    chunks: Sequence[Chunk]
    following: Sequence[Chunk] = ()
    stage: str = ""
    work: Sequence[Any] | None = None
    steps: np.ndarray | None = None

    def given(self, chunk: Chunk) -> Sequence[Any] | None:
        """Returns the part of `work` for a chunk, if known."""
        return None if self.work is None else self.work[chunk.start : chunk.stop]


class Done(NamedTuple):
    """A completed phase of a chunk.

    Attributes:
      chunk: The chunk.
      partials: Its aggregates.
      states: As in `executors.Part`.
      seconds: Its duration without waiting for data.
    """

    chunk: Chunk
    partials: Partials
    states: Sequence[list[np.ndarray]] | None
    seconds: float


class _Later:
    """A deferred call, executed by `result`; it replaces a `concurrent.futures.Future`."""

    def __init__(self, function, *arguments):
        self.result = functools.partial(function, *arguments)


class Scheduler:
    """Runs an executor on chunks, and holds the values that a chunk keeps between phases."""

    def __init__(
        self,
        program: Program,
        executor: Executor,
        data_of: Callable[[int, Chunk, Any], Sequence[Any]],
        at_once: int = 1,
    ):
        """Initialises the scheduler.

        Args:
          program: The round.
          executor: Executes the clients' work.
          data_of: (round from 0, chunk, `given` of the order) → the data of its clients.
          at_once: Number of chunks to process at the same time.
        """
        self._program, self._at_once = program, at_once
        self._executor = OnChunks(executor, data_of)
        self._workers = None
        if at_once > 1:
            self._workers = concurrent.futures.ThreadPoolExecutor(at_once, "chunk")
        # Chunk → the last phase that was done for it in the round at hand, and what was kept.
        self._round: int | None = None
        self._kept: dict[Chunk, Any] = {}

    def close(self) -> None:
        """Ends the threads."""
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)
        self._executor.close()

    def work(
        self,
        round_index: int,
        phase: int,
        chunks: Sequence[Chunk],
        received: Mapping[int, list[np.ndarray]],
        states_of: Callable[[Chunk], Sequence[list[np.ndarray]] | None],
        following: Sequence[Chunk] = (),
        given: Mapping[int, Any] | None = None,
    ) -> Iterator[Done]:
        """Executes a phase for some chunks, after any earlier phases that a chunk lacks here.

        Args:
          round_index: The round, from 0.
          phase: The phase.
          chunks: The chunks.
          received: Number of a broadcast → its leaves, for this phase and those before.
          states_of: What the clients of a chunk keep, where a phase up to this one reads that.
          following: Chunks of the next round whose data may be made meanwhile.
          given: Number of a chunk → what `data_of` is told of it, `None` where that is nothing.

        Yields:
          Completed chunks, in the order of `chunks`.
        """
        if round_index != self._round:
            self._executor.begin(round_index)
            self._round, self._kept = round_index, {}
        waiting, under_way = collections.deque(chunks), collections.deque()
        # A single chunk at a time is processed in this thread, when its result is read.
        workers = self._workers if len(chunks) > 1 else None
        begin = workers.submit if workers else _Later
        given, reads = given or {}, self._executor.reads_data[phase]
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self._at_once:
                    chunk = waiting.popleft()
                    if reads:
                        self._executor.ahead(round_index, [chunk], given)
                    # The store of states may only be used by one thread at a time.
                    states = self._states(phase, chunk, states_of)
                    order = round_index, phase, chunk, received, states, given
                    under_way.append(begin(self._work, *order))
                # One more than are being processed, so that the next one can always begin.
                if reads:
                    coming = list(itertools.islice(waiting, self._at_once + 1))
                    self._executor.ahead(round_index, coming, given)
                if not waiting:
                    # Limited to the chunks processed at a time; otherwise the data of the whole
                    # cohort would be in memory.
                    self._executor.ahead(round_index + 1, following[: self._at_once], {})
                yield under_way.popleft().result()
        finally:
            if workers:
                concurrent.futures.wait(under_way)

    def _states(self, phase, chunk, states_of):
        first = phase if self._kept.get(chunk, (-1,))[0] == phase - 1 else 0
        reads = any(of.reads_states for of in self._program.phases[first : phase + 1])
        return states_of(chunk) if reads else None

    def _work(self, round_index, phase, chunk, received, states, given):
        done, kept = self._kept.pop(chunk, (-1, None))
        if done != phase - 1:
            done, kept = -1, None
        for earlier in range(done + 1, phase):
            part, _ = self._executor.work(
                round_index, earlier, chunk, received, states, given, kept
            )
            kept = part.kept
        part, seconds = self._executor.work(
            round_index, phase, chunk, received, states, given, kept
        )
        if phase + 1 < len(self._program.phases):
            self._kept[chunk] = phase, part.kept
        return Done(chunk, part.partials, part.states, seconds)
