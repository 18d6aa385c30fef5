"""Executors: the clients' side of a phase for a chunk of the cohort, `PerClient` or `Stacked`.

`OnChunks` makes the data of chunks in advance and gives them to an executor.
"""

import collections
import concurrent.futures
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from simulation.device import eager_tensors, graph_calls, streams
from simulation.engine import batching
from simulation.engine.program import (
    CLIENT_STATES,
    CLIENTS,
    Call,
    Phase,
    Place,
    Program,
    key_of,
    number_of,
    part_of,
)
from simulation.protocol import Chunk
from tff_algos.client_data import ClientData, Gathered
from tff_algos.method import least
from tff_suite import compat, memory

# Number of an aggregate → its leaves, arrays or tensors. The last leaf of a mean is the sum of
# weights. Each leaf of stacked rows is a list of rows.
Partials = dict[int, list]


class Part(NamedTuple):
    """The result of a phase for a chunk of clients.

    Attributes:
      partials: Its aggregates.
      kept: Values that later phases need; only the same executor can use them.
      states: The leaves of each client's new state, as a list or `batching.StackedLeaves`; `None`
        if the phase does not compute it.
    """

    partials: Partials
    kept: Any
    states: Sequence[list[np.ndarray]] | None


class Executor(Protocol):
    """Executes the clients' work of a phase, one chunk at a time.

    Attributes:
      reads_data: For each phase, whether it reads a chunk's data.
    """

    reads_data: Sequence[bool]

    def close(self) -> None:
        """Ends its threads, if it has any."""

    def prepare(self, clients: Sequence[ClientData]) -> Any:
        """Returns a chunk's data in the form for `work`; another thread may call it in advance."""

    def work(
        self,
        phase: int,
        prepared: Any,
        received: Mapping[int, list[Any]],
        states: Sequence[list[np.ndarray]] | None,
        kept: Any,
    ) -> Part:
        """Executes a phase for a chunk.

        Args:
          phase: The phase, from 0.
          prepared: The chunk's data, from `prepare`.
          received: Number of a broadcast → its leaves, arrays or tensors.
          states: The leaves of each client's state, if the phase reads them: a list, or
            `batching.StackedLeaves`.
          kept: `Part.kept` of the chunk's previous phase; `None` in the first.
        """


class PerClient:
    """An executor in which each thread processes one client after the other."""

    def __init__(self, program: Program, num_threads: int):
        """Initialises for a round and a number of threads."""
        self._program = program
        self.reads_data: Sequence[bool] = [phase.reads_data for phase in program.phases]
        self._num_threads = num_threads
        self._kept = [program.places(phase.kept) for phase in program.phases]
        self._states = program.places(program.client_states)
        # Who folds helps.
        self._pool = concurrent.futures.ThreadPoolExecutor(max(1, num_threads - 1), "chunk-client")
        self._folds = [_Fold(program, phase) for phase in program.phases]

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def prepare(self, clients: Sequence[ClientData]) -> Sequence[ClientData]:
        """As `Executor.prepare`; arrays become tensors only when a client's work begins."""
        return clients

    def work(self, phase: Any, prepared: Any, received: Any, states: Any, kept: Any) -> Part:
        """As `Executor.work`."""
        of_phase = self._program.phases[phase]
        shared = {
            number: list(map(eager_tensors.as_tensor, received[number]))
            for number in of_phase.received
        }

        def of_client(k):
            values = dict(shared)
            if of_phase.reads_data:
                values[CLIENTS] = list(map(_tensor, tf.nest.flatten(prepared[k])))
            if of_phase.reads_states:
                values[CLIENT_STATES] = list(map(tf.convert_to_tensor, states[k]))
            return self._of_client(phase, values, {} if kept is None else kept[k])

        stream = streams.Stream(of_client, range(len(prepared)), {"": lambda result: result})
        fold = self._folds[phase]
        totals, rows, keeps, states_after = fold.start(), [], [], []
        try:
            stream.start(self._pool, self._num_threads)
            for values, own_rows, own_kept, own_state in stream.values(""):
                totals = fold.add(totals, values)
                rows.append(own_rows)
                keeps.append(own_kept)
                states_after.append(own_state)
                del values
        finally:
            stream.end()
        return Part(
            fold.partials(totals, rows),
            keeps if of_phase.kept else None,
            states_after if of_phase.gives_states else None,
        )

    def _of_client(self, number: int, values: dict[int, list], before: dict[Place, Any]) -> tuple:
        """Returns what a client adds to the folds, its rows, what is kept, and its state.

        Args:
          number: The phase, from 0.
          values: Number of a value → its leaves, of what the phase begins with.
          before: What was kept of earlier phases.
        """
        program, phase = self._program, self._program.phases[number]

        def leaves_at(places):
            return [values[p.number][p.leaf] if p.number in values else before[p] for p in places]

        for primitive in phase.maps:
            call = program.calls[primitive.number]
            values[primitive.number] = call(leaves_at(program.arguments[primitive.number]))
        folded, rows = [], []
        for primitive in phase.aggregates:
            leaves = leaves_at(program.arguments[primitive.number])
            if primitive.kind == "stack":
                rows += map(np.asarray, leaves)
            else:
                folded += leaves
        kept = dict(zip(self._kept[number], leaves_at(self._kept[number]), strict=True))
        after = None
        if phase.gives_states:
            after = [leaf.numpy() for leaf in leaves_at(self._states)]
        return folded, rows, kept, after


def _tensor(value):
    """Returns an array of what a client works on as a tensor."""
    if isinstance(value, Gathered | np.ndarray):
        return eager_tensors.copy_of(value)
    return tf.convert_to_tensor(value)


class _Fold:
    """Adds up clients one by one, with the same operations as TFF's aggregates."""

    def __init__(self, program: Program, phase: Phase):
        self._primitives = phase.aggregates
        self._specs = {
            primitive.number: program.spec(primitive.arguments) for primitive in self._primitives
        }
        folded = [w for w in self._primitives if w.kind != "stack"]
        specs = [self._specs[w.number] for w in folded]

        def add(totals, values):
            return [
                _ADD[primitive.kind](total, value)
                for primitive, total, value in zip(folded, totals, values, strict=True)
            ]

        self._folded = folded
        self._add = Call(add, (specs, specs)) if folded else None

    def start(self):
        """Returns totals over no clients."""
        totals = []
        for primitive in self._folded:
            for spec in tf.nest.flatten(self._specs[primitive.number]):
                first = least(spec.dtype) if primitive.kind == "max" else 0
                totals.append(tf.fill(spec.shape, tf.constant(first, spec.dtype)))
        return totals

    def add(self, totals, values):
        """Returns totals with one more client's values."""
        return self._add([*totals, *values]) if self._add else totals

    def partials(self, totals: Sequence[Any], rows: Sequence[Any]) -> Partials:
        """Returns a chunk's aggregates from its totals and the rows of each client."""
        left, columns = iter(totals), iter(zip(*rows, strict=True))
        partials = {}
        for primitive in self._primitives:
            number = len(tf.nest.flatten(self._specs[primitive.number]))
            if primitive.kind == "stack":
                partials[primitive.number] = [[_one_array(next(columns))] for _ in range(number)]
            else:
                partials[primitive.number] = [next(left) for _ in range(number)]
        return partials


def _one_array(rows):
    """Returns the rows of clients as one array, whose memory TensorFlow can adopt."""
    joined = eager_tensors.empty((len(rows), *rows[0].shape), rows[0].dtype)
    return np.stack(rows, out=joined)


def _add_weighted(total, value):
    (sums, total_weight), (value, weight) = total, value
    return tf.nest.map_structure(lambda t, v: t + weight * v, sums, value), total_weight + weight


_ADD = {
    "mean": _add_weighted,
    "sum": lambda total, value: tf.nest.map_structure(tf.add, total, value),
    "max": lambda total, value: tf.nest.map_structure(tf.maximum, total, value),
}


class Stacked:
    """An executor that processes all clients of a chunk at once.

    Attributes:
      reads_data: As of `Executor`.
      graphs: The graphs that it has traced.
    """

    def __init__(self, program: Program, at_least: int | None = None):
        """Initialises for a round.

        Args:
          program: The round.
          at_least: Smallest number of blocks of a chunk, see `batching.prepare`; `None` for the
            best number on the CPU or GPU. It affects the last bits of clients' results.
        """
        self._program, self.graphs = program, program.graphs
        # The data determine which clients share a block.
        self.reads_data: Sequence[bool] = [True] * len(program.phases)
        self._at_least = program.graphs.at_least if at_least is None else at_least
        # (phase, number of blocks) → where the graph's flat outputs are: of each aggregate, of each
        # kept value, of the states.
        self._places: dict[tuple[int, int], tuple[list, list, list]] = {}

    def close(self) -> None:
        """Does nothing; other executors have threads to end."""

    def prepare(self, clients: Sequence[ClientData]) -> batching.Stack:
        """As `Executor.prepare`."""
        return batching.prepare(clients, self._program.model, self._at_least)

    def check(self, num_blocks: int = 1) -> None:
        """Traces the programs for chunks of `num_blocks` blocks.

        Raises:
          NotVectorizable: If an operation cannot be vectorised over clients.
        """
        for phase in range(len(self._program.phases)):
            self._traced(phase, num_blocks)

    def work(self, phase: Any, prepared: Any, received: Any, states: Any, kept: Any) -> Part:
        """As `Executor.work`."""
        of_phase, number = self._program.phases[phase], len(prepared.blocks)
        given = [leaf for n in of_phase.received for leaf in received[n]]
        given += [*prepared.sizes, prepared.places]
        if of_phase.reads_data:
            given += tf.nest.flatten(prepared.blocks)
        if of_phase.reads_states:
            given += batching.stack_states(states, prepared)
        for symbol in of_phase.used:
            given += kept[key_of(symbol)]
        given = list(map(eager_tensors.as_tensor, given))
        traced = self._traced(phase, number)
        with graph_calls.calling(self.graphs.executors[phase, number]):
            # TensorFlow returns `None` instead of an empty list.
            outputs = compat.flat(traced._inference_function)(*given, *traced.captured_inputs) or []
        of_aggregates, of_kept, of_states = self._places[phase, number]
        partials = {}
        for primitive, places in zip(of_phase.aggregates, of_aggregates, strict=True):
            leaves = [outputs[i] for i in places]
            if primitive.kind == "stack":
                leaves = [[rows] for rows in leaves]
            partials[primitive.number] = leaves
        after = None
        if of_phase.gives_states:
            after = batching.StackedLeaves(np.asarray(outputs[i]) for i in of_states)
        carried = dict(kept or {})
        for symbol, places in zip(self._new(of_phase), of_kept, strict=True):
            carried[key_of(symbol)] = [outputs[i] for i in places]
        return Part(partials, {key_of(s): carried[key_of(s)] for s in of_phase.kept}, after)

    def _new(self, phase):
        """Returns the kept values that a phase computes itself and does not only pass on."""
        made = {primitive.number for primitive in phase.maps}
        return [symbol for symbol in phase.kept if number_of(symbol) in made]

    def _traced(self, phase, num_blocks):
        key = phase, num_blocks
        traced = self.graphs.of(key, num_blocks, lambda: self._trace(phase, num_blocks))
        if key not in self._places:
            # Once: to pack a round's outputs takes longer than to run a small model's server step.
            outputs = traced.structured_outputs
            given = tf.nest.pack_sequence_as(outputs, range(len(tf.nest.flatten(outputs))))
            of_aggregates, of_kept = (
                [tf.nest.flatten(value) for value in given[name]] for name in ("aggregates", "kept")
            )
            self._places[key] = of_aggregates, of_kept, tf.nest.flatten(given.get("states", ()))
        return traced

    def _trace(self, number, num_blocks):
        program, phase = self._program, self._program.phases[number]

        def of_blocks(structure):
            block = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape], t.dtype), structure
            )
            return (block,) * num_blocks

        given = {
            "received": [program.specs[n] for n in phase.received],
            "sizes": (tf.TensorSpec([], tf.int32),) * num_blocks,
            "places": tf.TensorSpec([None], tf.int32),
        }
        order = ["received", "sizes", "places"]
        if phase.reads_data:
            given["data"] = of_blocks(program.specs[CLIENTS])
            order.append("data")
        if phase.reads_states:
            given["states"] = of_blocks(program.specs[CLIENT_STATES])
            order.append("states")
        given["used"] = [of_blocks(program.spec(symbol)) for symbol in phase.used]
        order.append("used")
        structure = [given[name] for name in order]

        def of_phase(*flat):
            got = dict(zip(order, tf.nest.pack_sequence_as(structure, flat), strict=True))
            federation = batching.StackedFederation(
                got["sizes"],
                got["places"] if num_blocks > 1 else None,
                # A single block may be traced for another of TensorFlow's executors.
                self.graphs.vectorised if num_blocks > 1 else None,
            )
            values = {
                n: federation.broadcast(value)
                for n, value in zip(phase.received, got["received"], strict=True)
            }
            for n, name in ((CLIENTS, "data"), (CLIENT_STATES, "states")):
                if name in got:
                    values[n] = batching.at_clients(got[name])
            before = {
                key_of(symbol): batching.at_clients(blocks)
                for symbol, blocks in zip(phase.used, got["used"], strict=True)
            }

            def value_of(symbol):
                key = key_of(symbol)
                return before[key] if key in before else part_of(values, symbol)

            for primitive in phase.maps:
                arguments = program.resolve(primitive.arguments, value_of)
                values[primitive.number] = federation.map_clients(primitive.fn, *arguments)
            says = {
                "mean": lambda pair: federation.weighted_sum(*pair),
                "sum": federation.sum,
                "max": federation.max,
                "stack": federation.stack,
            }
            given = {
                "aggregates": [
                    says[primitive.kind](program.resolve(primitive.arguments, value_of))
                    for primitive in phase.aggregates
                ],
                "kept": [batching.blocks_at(value_of(s)) for s in self._new(phase)],
            }
            if phase.gives_states:
                given["states"] = federation.stack(program.resolve(program.client_states, value_of))
            return given

        traced = tf.function(of_phase, autograph=False).get_concrete_function(
            *tf.nest.flatten(structure)
        )
        return traced


# Data that several phases of a round need is kept up to this size; larger data is made again.
_HELD_BYTES = 1 << 28


class OnChunks:
    """An executor on chunks of clients, whose data it makes in advance.

    Attributes:
      reads_data: As of `Executor`.
    """

    def __init__(self, executor: Executor, data_of: Callable[[int, Chunk, Any], Sequence[Any]]):
        """Initialises for an executor.

        Args:
          executor: Executes the clients' work.
          data_of: (round from 0, chunk, `given` of the order) → the data of its clients.
        """
        self.reads_data = executor.reads_data
        self._executor, self._data_of = executor, data_of
        reading = [phase for phase, reads in enumerate(self.reads_data) if reads]
        self._last_to_read = max(reading, default=0)
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "chunk-data")
        self._lock = threading.Lock()
        self._coming: dict[tuple[int, Chunk], concurrent.futures.Future] = {}
        self._held = collections.OrderedDict()

    def close(self) -> None:
        """Ends the threads."""
        self._reader.shutdown(cancel_futures=True)
        self._executor.close()

    def begin(self, round_index: int) -> None:
        """Forgets the data of earlier rounds."""
        with self._lock:
            for key in [key for key in self._coming if key[0] < round_index]:
                self._coming.pop(key).cancel()
            self._held.clear()

    def ahead(self, round_index: int, chunks: Sequence[Chunk], given: Mapping[int, Any]) -> None:
        """Starts making the data of chunks; `given` is as in `work`."""
        with self._lock:
            for chunk in chunks:
                key = round_index, chunk
                if key not in self._coming and key not in self._held:
                    self._coming[key] = self._reader.submit(self._make, *key, given)

    def _make(self, round_index, chunk, given):
        return self._executor.prepare(self._data_of(round_index, chunk, given.get(chunk.number)))

    def _data(self, round_index, chunk, phase, given):
        """Returns the data of a chunk, and keeps it if a later phase needs it again."""
        key = round_index, chunk
        with self._lock:
            prepared, coming = self._held.get(key), self._coming.pop(key, None)
        if prepared is None:
            coming = coming or self._reader.submit(self._make, *key, given)
            prepared = coming.result()
        with self._lock:
            if phase < self._last_to_read:
                self._held[key] = prepared
                while memory.nbytes(self._held) > _HELD_BYTES and len(self._held) > 1:
                    self._held.popitem(last=False)
            else:
                self._held.pop(key, None)
        return prepared

    def work(
        self,
        round_index: int,
        phase: int,
        chunk: Chunk,
        received: Mapping[int, list[Any]],
        states: Sequence[list[np.ndarray]] | None,
        given: Mapping[int, Any],
        kept: Any,
    ) -> tuple[Part, float]:
        """Executes a phase for a chunk.

        Args:
          round_index: The round, from 0.
          phase: The phase.
          chunk: The chunk.
          received: As for `Executor.work`.
          states: As for `Executor.work`.
          given: Number of a chunk → what `data_of` is told of it, `None` where that is nothing.
          kept: As for `Executor.work`.

        Returns:
          The result, and its duration in seconds without waiting for data.
        """
        prepared: Any = range(chunk.stop - chunk.start)
        if self.reads_data[phase]:
            prepared = self._data(round_index, chunk, phase, given)
        started = time.perf_counter()
        part = self._executor.work(phase, prepared, received, states, kept)
        return part, time.perf_counter() - started
