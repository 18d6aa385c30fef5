"""The clients' side of a round for a part of its cohort, and how such parts come together.

A cohort is cut into chunks: so many clients each, in the cohort's order. The cut is a setting of
the run, for a floating-point sum depends on it. Within a chunk sums fold in cohort order, and
chunks come together by a binary tree over their places, whoever works on which chunk and when: node
(l, i) is the sum of nodes (l - 1, 2 i) and (l - 1, 2 i + 1), or the first of them where there is no
other.
"""

import collections
import concurrent.futures
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from simulation.device import eager_tensors, graph_calls
from simulation.engine import batching as vectorized
from simulation.engine.program import (
    CLIENT_STATES,
    CLIENTS,
    Call,
    Phase,
    Plan,
    Symbol,
    key_of,
    number_of,
    part_of,
)
from simulation.tff import streams as tff_streams
from tff_algos.client_data import ClientData, Gathered
from tff_algos.method import least
from tff_algos.model import Model
from tff_suite import compat, memory

# Number of an aggregate → its leaves. Of a mean the last one is the sum of weights; of stacked rows
# each is a list of arrays, one after the other.
Partials = dict[int, list]
# (level, place) of a node of the tree → what it holds.
Nodes = dict[tuple[int, int], Partials]


class Part(NamedTuple):
    """What a chunk of clients gives in a phase.

    Attributes:
      partials: Its aggregates.
      kept: What later phases need, for the same `Hands` only.
      states: What each of its clients keeps: leaves; `None` if the phase does not tell.
    """

    partials: Partials
    kept: Any
    states: list[list[np.ndarray]] | None


class Hands(Protocol):
    """What does the clients' work of a phase, a chunk at a time."""

    def prepare(self, clients: Sequence[ClientData]) -> Any:
        """Returns a chunk's data as `work` takes it; another thread may call it ahead."""

    def work(
        self,
        phase: int,
        prepared: Any,
        received: Mapping[int, list[np.ndarray]],
        states: Sequence[list[np.ndarray]] | None,
        kept: Any,
    ) -> Part:
        """Does a phase for a chunk.

        Args:
          phase: The phase, from 0.
          prepared: The chunk's data, from `prepare`.
          received: Number of a broadcast → its leaves.
          states: What each client keeps, if the phase reads that: leaves.
          kept: What `work` gave for the chunk in the phase before; `None` in the first.
        """


class ClientByClient:
    """Hands that take one client after the other on each thread, as the runtime `tff` does."""

    def __init__(self, plan: Plan, num_threads: int):
        """Initialises for a round and so many threads."""
        self._plan = plan
        self._num_threads = num_threads
        # Who folds helps.
        self._pool = concurrent.futures.ThreadPoolExecutor(max(1, num_threads - 1), "chunk-client")
        self._folds = [_Fold(plan, phase) for phase in plan.phases]

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()

    def prepare(self, clients: Sequence[ClientData]) -> Sequence[ClientData]:
        """As `Hands.prepare`: arrays become tensors where a client's work begins."""
        return clients

    def work(self, phase, prepared, received, states, kept) -> Part:
        """As `Hands.work`."""
        of_phase = self._plan.phases[phase]
        shared = {
            number: self._packed(number, map(tf.convert_to_tensor, received[number]))
            for number in of_phase.received
        }

        def of_client(k):
            given = states[k] if of_phase.reads_states else None
            before = {} if kept is None else kept[k]
            return self._of_client(of_phase, shared, prepared[k], given, before)

        stream = tff_streams.Stream(of_client, range(len(prepared)), {"": lambda result: result})
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

    def _packed(self, number, leaves):
        return tf.nest.pack_sequence_as(self._plan.specs[number], list(leaves))

    def _of_client(self, phase: Phase, shared, data, state, before):
        """Returns what a client adds to the folds, its rows, what is kept, and its state."""
        plan, values = self._plan, dict(shared)
        if phase.reads_data:
            values[CLIENTS] = _tensors(data)
        if state is not None:
            values[CLIENT_STATES] = self._packed(CLIENT_STATES, map(tf.convert_to_tensor, state))

        def value_of(symbol: Symbol):
            if key_of(symbol) in before:
                return before[key_of(symbol)]
            return part_of(values, symbol)

        for word in phase.maps:
            call = plan.calls[word.number]
            leaves = call(tf.nest.flatten(plan.resolve(word.arguments, value_of)))
            values[word.number] = tf.nest.pack_sequence_as(call.structure, leaves)
        folded, rows = [], []
        for word in phase.aggregates:
            leaves = tf.nest.flatten(plan.resolve(word.arguments, value_of))
            if word.kind == "stack":
                rows += [leaf.numpy() for leaf in leaves]
            else:
                folded += leaves
        kept = {key_of(symbol): value_of(symbol) for symbol in phase.kept}
        after = None
        if phase.gives_states:
            after = [t.numpy() for t in tf.nest.flatten(plan.resolve(plan.client_states, value_of))]
        return folded, rows, kept, after


def _tensors(value):
    """Returns what a client works on as tensors."""
    if isinstance(value, tuple):
        return type(value)(*map(_tensors, value))
    if isinstance(value, Gathered | np.ndarray):
        return eager_tensors.copy_of(value)
    return tf.convert_to_tensor(value)


class _Fold:
    """Adds clients up one by one, with the operations that TFF's aggregates have."""

    def __init__(self, plan: Plan, phase: Phase):
        self._words = phase.aggregates
        self._specs = {word.number: plan.spec(word.arguments) for word in self._words}
        folded = [w for w in self._words if w.kind != "stack"]
        specs = [self._specs[w.number] for w in folded]

        def add(totals, values):
            return [
                _ADD[word.kind](total, value)
                for word, total, value in zip(folded, totals, values, strict=True)
            ]

        self._folded = folded
        self._add = Call(add, (specs, specs)) if folded else None

    def start(self):
        """Returns totals of nobody."""
        totals = []
        for word in self._folded:
            for spec in tf.nest.flatten(self._specs[word.number]):
                first = least(spec.dtype) if word.kind == "max" else 0
                totals.append(tf.fill(spec.shape, tf.constant(first, spec.dtype)))
        return totals

    def add(self, totals, values):
        """Returns totals with one more client's values."""
        return self._add([*totals, *values]) if self._add else totals

    def partials(self, totals, rows) -> Partials:
        """Returns what a chunk gives, of its totals and of the rows of each client."""
        totals, columns = iter(totals), iter(zip(*rows, strict=True))
        partials = {}
        for word in self._words:
            number = len(tf.nest.flatten(self._specs[word.number]))
            if word.kind == "stack":
                partials[word.number] = [[np.stack(next(columns))] for _ in range(number)]
            else:
                partials[word.number] = [next(totals).numpy() for _ in range(number)]
        return partials


def _add_weighted(total, value):
    (sums, total_weight), (value, weight) = total, value
    return tf.nest.map_structure(lambda t, v: t + weight * v, sums, value), total_weight + weight


_ADD = {
    "mean": _add_weighted,
    "sum": lambda total, value: tf.nest.map_structure(tf.add, total, value),
    "max": lambda total, value: tf.nest.map_structure(tf.maximum, total, value),
}


class AtOnce:
    """Hands that take all clients of a chunk at once, as the runtime `vectorized` does."""

    def __init__(self, plan: Plan, model: Model):
        """Initialises for a round.

        Args:
          plan: The round.
          model: The model that the clients' data is for.
        """
        self._plan, self._model = plan, model
        self._programs = vectorized.Programs()

    def close(self) -> None:
        """As of other hands."""

    def prepare(self, clients: Sequence[ClientData]) -> vectorized.Cohort:
        """As `Hands.prepare`."""
        return vectorized.prepare(clients, self._model, self._programs.at_least)

    def check(self) -> None:
        """Raises `NotVectorizable` if an operation has no form over several clients."""
        for phase in range(len(self._plan.phases)):
            self._program(phase, 1)

    def work(self, phase, prepared, received, states, kept) -> Part:
        """As `Hands.work`."""
        of_phase, number = self._plan.phases[phase], len(prepared.blocks)
        given = [leaf for n in of_phase.received for leaf in received[n]]
        given += [np.int32(len(block.index)) for block in prepared.blocks]
        given.append(prepared.places)
        if of_phase.reads_data:
            given += tf.nest.flatten(prepared.blocks)
        if of_phase.reads_states:
            spec = self._plan.specs[CLIENT_STATES]
            packed = [tf.nest.pack_sequence_as(spec, leaves) for leaves in states]
            given += tf.nest.flatten(vectorized.stack_states(packed, prepared))
        for symbol in of_phase.used:
            given += kept[key_of(symbol)]
        given = [tf.convert_to_tensor(leaf) for leaf in given]
        program = self._program(phase, number)
        with graph_calls.calling(self._programs.executors[phase, number]):
            # TensorFlow gives nothing in place of an empty list.
            outputs = compat.flat(program._inference_function)(*given) or []
        outputs = tf.nest.pack_sequence_as(program.structured_outputs, list(outputs))
        partials = {}
        for word, values in zip(of_phase.aggregates, outputs["aggregates"], strict=True):
            leaves = [t.numpy() for t in tf.nest.flatten(values)]
            partials[word.number] = [[a] for a in leaves] if word.kind == "stack" else leaves
        after = None
        if of_phase.gives_states:
            leaves = [t.numpy() for t in tf.nest.flatten(outputs["states"])]
            after = [[leaf[k] for leaf in leaves] for k in range(len(prepared.places))]
        carried = dict(kept or {})
        for symbol, values in zip(self._new(of_phase), outputs["kept"], strict=True):
            carried[key_of(symbol)] = tf.nest.flatten(values)
        return Part(partials, {key_of(s): carried[key_of(s)] for s in of_phase.kept}, after)

    def _new(self, phase):
        """Returns what is kept from a phase that it does not only pass on."""
        made = {word.number for word in phase.maps}
        return [symbol for symbol in phase.kept if number_of(symbol) in made]

    def _program(self, phase, num_blocks):
        return self._programs.of(
            (phase, num_blocks), num_blocks, lambda: self._trace(phase, num_blocks)
        )

    def _trace(self, number, num_blocks):
        plan, phase = self._plan, self._plan.phases[number]

        def of_blocks(structure):
            block = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape], t.dtype), structure
            )
            return (block,) * num_blocks

        given = {
            "received": [plan.specs[n] for n in phase.received],
            "sizes": (tf.TensorSpec([], tf.int32),) * num_blocks,
            "places": tf.TensorSpec([None], tf.int32),
        }
        order = ["received", "sizes", "places"]
        if phase.reads_data:
            given["data"] = of_blocks(plan.specs[CLIENTS])
            order.append("data")
        if phase.reads_states:
            given["states"] = of_blocks(plan.specs[CLIENT_STATES])
            order.append("states")
        given["used"] = [of_blocks(plan.spec(symbol)) for symbol in phase.used]
        order.append("used")
        structure = [given[name] for name in order]

        def of_phase(*flat):
            got = dict(zip(order, tf.nest.pack_sequence_as(structure, flat), strict=True))
            federation = vectorized.VectorizedFederation(
                got["sizes"], got["places"] if num_blocks > 1 else None
            )
            values = {
                n: federation.broadcast(value)
                for n, value in zip(phase.received, got["received"], strict=True)
            }
            for n, name in ((CLIENTS, "data"), (CLIENT_STATES, "states")):
                if name in got:
                    values[n] = vectorized.at_clients(got[name])
            before = {
                key_of(symbol): vectorized.at_clients(blocks)
                for symbol, blocks in zip(phase.used, got["used"], strict=True)
            }

            def value_of(symbol):
                key = key_of(symbol)
                return before[key] if key in before else part_of(values, symbol)

            for word in phase.maps:
                arguments = plan.resolve(word.arguments, value_of)
                values[word.number] = federation.map_clients(word.fn, *arguments)
            says = {
                "mean": lambda pair: federation.weighted_sum(*pair),
                "sum": federation.sum,
                "max": federation.max,
                "stack": federation.stack,
            }
            given = {
                "aggregates": [
                    says[word.kind](plan.resolve(word.arguments, value_of))
                    for word in phase.aggregates
                ],
                "kept": [vectorized.blocks_at(value_of(s)) for s in self._new(phase)],
            }
            if phase.gives_states:
                given["states"] = federation.stack(plan.resolve(plan.client_states, value_of))
            return given

        program = tf.function(of_phase, autograph=False).get_concrete_function(
            *tf.nest.flatten(structure)
        )
        assert not program.captured_inputs, "work gives a program its own inputs only"
        return program


def combine(nodes: Nodes, plan: Plan, phase: int, number: int) -> Nodes:
    """Brings together what can be of some nodes of the tree, the same way wherever it happens.

    Args:
      nodes: The nodes, which must not overlap.
      plan: The round.
      phase: The phase whose aggregates they are.
      number: Number of all chunks.

    Returns:
      As few nodes as the same clients can be told by; one, of a whole cohort.
    """
    kinds = {word.number: word.kind for word in plan.phases[phase].aggregates}
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


# On arrays, or lists of rows.
_MERGE = {
    "mean": np.add,
    "sum": np.add,
    "max": np.maximum,
    "stack": lambda a, b: a + b,
}


class Totals:
    """The aggregates of a phase, as chunks come in."""

    def __init__(self, plan: Plan, phase: int, number: int):
        """Initialises for so many chunks."""
        self._plan, self._phase, self._number = plan, phase, number
        self._nodes: Nodes = {}

    def add(self, nodes: Nodes) -> None:
        """Takes some nodes."""
        self._nodes = combine({**self._nodes, **nodes}, self._plan, self._phase, self._number)

    def whole(self) -> dict[int, list[np.ndarray]]:
        """Returns number of an aggregate → its leaves, once all chunks are there; can be had once.

        What was taken is let go of: stacked rows are as many vectors as there are clients.
        """
        (partials,) = self._nodes.values()
        self._nodes, totals = {}, {}
        for word in self._plan.phases[self._phase].aggregates:
            leaves = partials[word.number]
            if word.kind == "mean":
                totals[word.number] = [
                    tf.math.divide_no_nan(s, tf.cast(leaves[-1], s.dtype)) for s in leaves[:-1]
                ]
            elif word.kind == "stack":
                totals[word.number] = list(map(_one_array, leaves))
            else:
                totals[word.number] = leaves
        return totals


def _one_array(rows):
    """Returns a list of arrays as one, and empties it; the server takes that without a copy."""
    if len(rows) == 1:
        return rows.pop()
    shape = (sum(map(len, rows)), *rows[0].shape[1:])
    joined = eager_tensors.empty(shape, rows[0].dtype)
    np.concatenate(rows, out=joined)
    rows.clear()
    return eager_tensors.adopt(joined)


class Chunk(NamedTuple):
    """A part of a round's cohort.

    Attributes:
      index: Its place among the chunks.
      start: Place in the cohort of its first client.
      stop: Place after its last one.
    """

    index: int
    start: int
    stop: int


def cut(number: int, size: int | None) -> list[Chunk]:
    """Cuts a cohort.

    Args:
      number: Clients of the cohort.
      size: Clients of a chunk, the last one may have fewer; `None` is all.
    """
    size = size or max(number, 1)
    starts = range(0, number, size)
    return [Chunk(i, start, min(start + size, number)) for i, start in enumerate(starts)]


class Done(NamedTuple):
    """A phase of a chunk that is done.

    Attributes:
      chunk: The chunk.
      partials: Its aggregates.
      states: As of `Part`.
      seconds: What it took, the wait for its data left out.
    """

    chunk: Chunk
    partials: Partials
    states: list[list[np.ndarray]] | None
    seconds: float


# Data that is wanted in several phases of a round is held up to this size, and else made again.
_HELD_BYTES = 1 << 28


class Desk:
    """Hands, with the data of their chunks and what they keep of them from phase to phase."""

    def __init__(
        self,
        plan: Plan,
        hands: Hands,
        data_of: Callable[[int, Chunk, Any], Sequence[Any]],
        at_once: int = 1,
    ):
        """Initialises the desk.

        Args:
          plan: The round.
          hands: Who works.
          data_of: (round from 0, chunk, what the order says of it) → the data of its clients.
          at_once: Chunks to work on at the same time.
        """
        self._plan, self._hands, self._data_of, self._at_once = plan, hands, data_of, at_once
        # Who takes clients at once sees in their data which of them share a block.
        sees_blocks = isinstance(hands, AtOnce)
        self._reads = [of.reads_data or sees_blocks for of in plan.phases]
        reading = [phase for phase, reads in enumerate(self._reads) if reads]
        self._last_to_read = max(reading, default=0)
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "chunk-data")
        self._workers = concurrent.futures.ThreadPoolExecutor(at_once, "chunk")
        self._lock = threading.Lock()
        self._coming: dict[tuple[int, Chunk], concurrent.futures.Future] = {}
        self._held = collections.OrderedDict()
        # Chunk → the last phase that was done for it in the round at hand, and what was kept.
        self._round, self._kept = None, {}

    def close(self) -> None:
        """Ends the threads."""
        self._workers.shutdown(cancel_futures=True)
        self._reader.shutdown(cancel_futures=True)
        self._hands.close()

    def ahead(self, round_index: int, chunks: Sequence[Chunk], given: Mapping[int, Any]) -> None:
        """Begins to make the data of chunks; `given` is as of `work`."""
        with self._lock:
            for chunk in chunks:
                key = round_index, chunk
                if key not in self._coming and key not in self._held:
                    self._coming[key] = self._reader.submit(self._make, *key, given)

    def _make(self, round_index, chunk, given):
        return self._hands.prepare(self._data_of(round_index, chunk, given.get(chunk.index)))

    def _data(self, round_index, chunk, phase, given):
        """Returns the data of a chunk; holds on to it if a later phase will ask again."""
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
        chunks: Sequence[Chunk],
        received: Mapping[int, list[np.ndarray]],
        states_of: Callable[[Chunk], Sequence[list[np.ndarray]] | None],
        following: Sequence[Chunk] = (),
        given: Mapping[int, Any] | None = None,
    ) -> Iterator[Done]:
        """Does a phase for some chunks, and what has to come before for those that are new here.

        Args:
          round_index: The round, from 0.
          phase: The phase.
          chunks: The chunks.
          received: Number of a broadcast → its leaves, for this phase and those before.
          states_of: What the clients of a chunk keep, where a phase up to this one reads that.
          following: Chunks of the next round whose data may be made meanwhile.
          given: Index of a chunk → what `data_of` is told of it, `None` where that is nothing.

        Yields:
          What is done, in the order of `chunks`.
        """
        if round_index != self._round:
            with self._lock:
                for key in [key for key in self._coming if key[0] < round_index]:
                    self._coming.pop(key).cancel()
                self._held.clear()
            self._round, self._kept = round_index, {}
        waiting, under_way = collections.deque(chunks), collections.deque()
        given = given or {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < self._at_once:
                    chunk = waiting.popleft()
                    # The states come from a store that one thread at a time may ask.
                    states = self._states(phase, chunk, states_of)
                    order = round_index, phase, chunk, received, states, given
                    under_way.append(self._workers.submit(self._work, *order))
                # One more than are worked on, since there is always one to begin with next.
                if self._reads[phase]:
                    coming = list(itertools.islice(waiting, self._at_once + 1))
                    self.ahead(round_index, coming, given)
                if not waiting:
                    # No more than is worked on at once, or the whole cohort's data would be held.
                    self.ahead(round_index + 1, following[: self._at_once], {})
                yield under_way.popleft().result()
        finally:
            concurrent.futures.wait(under_way)

    def _states(self, phase, chunk, states_of):
        first = phase if self._kept.get(chunk, (-1,))[0] == phase - 1 else 0
        reads = any(of.reads_states for of in self._plan.phases[first : phase + 1])
        return states_of(chunk) if reads else None

    def _work(self, round_index, phase, chunk, received, states, given):
        done, kept = self._kept.pop(chunk, (-1, None))
        if done != phase - 1:
            done, kept = -1, None
        for earlier in range(done + 1, phase):
            part, _ = self._of_phase(round_index, earlier, chunk, received, states, given, kept)
            kept = part.kept
        part, seconds = self._of_phase(round_index, phase, chunk, received, states, given, kept)
        if phase + 1 < len(self._plan.phases):
            self._kept[chunk] = phase, part.kept
        return Done(chunk, part.partials, part.states, seconds)

    def _of_phase(self, round_index, phase, chunk, received, states, given, kept):
        prepared = range(chunk.stop - chunk.start)
        if self._reads[phase]:
            prepared = self._data(round_index, chunk, phase, given)
        started = time.perf_counter()
        part = self._hands.work(phase, prepared, received, states, kept)
        return part, time.perf_counter() - started
