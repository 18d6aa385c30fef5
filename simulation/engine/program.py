"""A method's round as a program: primitives in phases, cut where server and clients meet.

`next_round` runs once, with a federation that only records what it asks for. The record is a
straight line: primitives apply functions to values that do not exist yet, so none can depend on
them. The server and every worker record the round for themselves and get the same primitives under
the same numbers. Values travel by number, functions never.

The primitives fall into phases. Phase 0 of the server needs nothing of a client. Phase p of the
clients needs what the server sends in its phases 0 to p. It ends with the clients' aggregates, and
phase p + 1 of the server begins with them. FedAvg has one phase of clients, TERM two, FedFA three.
TFF's own form for this (`tff.framework.MergeableCompForm`) has one phase: it refuses an aggregate
that depends on another.
"""

import collections
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from simulation.device import eager_tensors, graph_calls
from simulation.engine import aggregators
from simulation.engine.batching import field_of
from tff_algos import process as process_lib
from tff_algos.method import Method
from tff_algos.model import Model
from tff_suite import memory

# Numbers of the values that a round begins with.
STATE, CLIENTS, CLIENT_STATES = range(3)

AGGREGATES = ("mean", "sum", "max", "stack")


# On every machine as many, since what a client's matrices are stacked with is seen in the last bits
# of their products. Measured with an MLP of 199,210 weights: two take 0.6 of the time of one on two
# cores and 0.9 on one core, four more than two on either.
_USUAL_BLOCKS = 2


class Symbol:
    """A value of a round, or a part of one; taken apart as TFF's values are.

    All names without an underscore at their beginning are names of fields.
    """

    __slots__ = ("_key", "_spec")

    def __init__(self, number: int, spec: Any, path: tuple = ()):
        """Initialises the symbol of a primitive's value, or of a selection from it.

        Args:
          number: The primitive's number.
          spec: The value's `tf.TensorSpec`s.
          path: Keys of the selections.
        """
        self._key, self._spec = (number, path), spec

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key):
        if isinstance(key, slice):
            return tuple(self)[key]
        number, path = self._key
        return Symbol(number, field_of(self._spec, key), (*path, key))

    def __iter__(self):
        # A spec itself has no length, and neither has a tensor parts.
        return (self[i] for i in range(len(self._spec)))


def key_of(symbol: Symbol) -> tuple[int, tuple]:
    """Returns the number of the primitive that gives a value, and the keys of the selections."""
    return symbol._key


def number_of(symbol: Symbol) -> int:
    """Returns the number of the primitive that gives a value."""
    return symbol._key[0]


def part_of(values: Mapping[int, Any], symbol: Symbol) -> Any:
    """Returns the value of a symbol.

    Args:
      values: Number of a primitive → the structure that it gives.
      symbol: The symbol.
    """
    number, path = key_of(symbol)
    return functools.reduce(field_of, path, values[number])


class Place(NamedTuple):
    """Where a leaf of a round's values is.

    Rounds work on flat leaves: to pack structures anew for each client would take longer than a
    small client's training.

    Attributes:
      number: Number of the primitive that gives it.
      index: Its place among the leaves of that primitive's value.
    """

    number: int
    index: int


class Primitive(NamedTuple):
    """One primitive of a round.

    Attributes:
      number: Its place, which is the name of its value.
      kind: `broadcast`, `map_clients`, `map_server`, or one of `AGGREGATES`.
      fn: The function of a map; `None` for the others.
      arguments: Structure of `Symbol`s.
      phase: See the module; of an aggregate that of the clients.
    """

    number: int
    kind: str
    fn: Callable | None
    arguments: Any
    phase: int


class _Recorder:
    """A federation that records its primitives."""

    def __init__(self, trace, specs):
        self.primitives: list[Primitive] = []
        self._trace, self._specs = trace, specs
        # Phase of each value, and whether it is the server's.
        self._of = {STATE: (0, True), CLIENTS: (0, False), CLIENT_STATES: (0, False)}

    def broadcast(self, value):
        return self._add("broadcast", None, value, at_server=False)

    def map_clients(self, fn, *values):
        return self._add("map_clients", fn, values, at_server=False)

    def map_server(self, fn, *values):
        return self._add("map_server", fn, values, at_server=True)

    def mean(self, value, weight):
        return self._add("mean", None, (value, weight), at_server=True)

    def sum(self, value):
        return self._add("sum", None, value, at_server=True)

    def max(self, value):
        return self._add("max", None, value, at_server=True)

    def stack(self, value):
        return self._add("stack", None, value, at_server=True)

    def aggregate(self, process, state, value, weight):
        # The server runs TFF's computation on the rows of all clients, whoever sent them.
        rows = self.stack((value, weight) if process.weighted else (value,))
        return self.map_server(aggregators.on_rows(process), state, rows)

    def _add(self, kind, fn, arguments, at_server):
        number = CLIENT_STATES + 1 + len(self.primitives)
        phase = max((self._of[number_of(s)][0] for s in _symbols(arguments)), default=0)
        self.primitives.append(Primitive(number, kind, fn, arguments, phase))
        self._of[number] = phase + (kind in AGGREGATES), at_server
        self._trace(self.primitives[-1])
        return Symbol(number, self._specs[number])


def _symbols(structure):
    return [s for s in tf.nest.flatten(structure) if isinstance(s, Symbol)]


# A few operations on tensors of this size are over sooner than TensorFlow hands them to a thread.
_SMALL_BYTES = 1 << 20


def _is_small(specs):
    sizes = [t.shape.num_elements() for t in tf.nest.flatten(specs)]
    return None not in sizes and memory.nbytes(specs) <= _SMALL_BYTES


class Call:
    """A function of structures as a graph that takes and gives flat tensors.

    Attributes:
      structure: What it gives, a structure of `tf.TensorSpec`s.
    """

    def __init__(self, fn: Callable, specs: Any):
        """Traces the function.

        Args:
          fn: The function.
          specs: Its arguments, a tuple of structures of `tf.TensorSpec`s.
        """
        # A trace of one's own: others would be for another of TensorFlow's executors.
        fresh = getattr(fn, "_clone", None)
        fn = fn if fresh is None else fresh(None)

        def flat(*tensors):
            return fn(*tf.nest.pack_sequence_as(specs, tensors))

        with graph_calls.calling():
            graph = tf.function(flat, autograph=False).get_concrete_function(
                *tf.nest.flatten(specs)
            )
        executor = ""
        if _is_small(specs) and graph_calls.is_straight(graph):
            executor = graph_calls.ONE_THREAD
        # Binding arguments by signature would take longer than a small graph does.
        self._shared = graph_calls.Shared(graph._inference_function, executor)
        self._captured = graph.captured_inputs
        given = graph.structured_outputs
        self.structure = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), given)

    def __call__(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the leaves of what it gives, for the leaves of its arguments."""
        return list(map(eager_tensors.lean, self._shared(*tensors, *self._captured)))


class Graphs:
    """Graphs over stacked clients, and which of TensorFlow's executors runs each.

    Attributes:
      traced: Key of a graph → the graph.
      executors: The same → TensorFlow's name of what runs it.
      on_gpu: Whether they are for a GPU.
      at_least: Blocks that a chunk is split into where there is work for them.
    """

    def __init__(self):
        """Initialises without graphs."""
        self.traced, self.executors = {}, {}
        self.on_gpu = bool(tf.config.list_physical_devices("GPU"))
        self.at_least = 1 if self.on_gpu else _USUAL_BLOCKS
        self._lock = threading.Lock()

    def of(
        self, key: Any, num_blocks: int, trace: Callable
    ) -> tf.types.experimental.ConcreteFunction:
        """Returns a graph.

        Args:
          key: What tells it from others.
          num_blocks: Blocks that its clients make.
          trace: Makes it, where it is not there yet.
        """
        with self._lock:
            if key not in self.traced:
                # The operations of one block follow one another. To hand them from thread to
                # thread takes a quarter of a small model's round and of its processor's time.
                executor = "" if num_blocks > 1 or self.on_gpu else graph_calls.ONE_THREAD
                with graph_calls.calling(executor):
                    graph = trace()
                if executor and not graph_calls.runs_in_one_thread(graph):
                    executor = ""
                    with graph_calls.calling(executor):
                        graph = trace()
                self.traced[key], self.executors[key] = graph, executor
            return self.traced[key]


class Phase(NamedTuple):
    """What clients do between two meetings with the server.

    Attributes:
      received: Numbers of the broadcasts that they use, earlier ones included, in order.
      maps: The primitives `map_clients`, in order.
      aggregates: The primitives that end the phase, in order.
      kept: Symbols of what later phases need of this or an earlier one, in order.
      used: Symbols of earlier phases that this one needs.
      reads_data: Whether the clients' data is needed.
      reads_states: Whether what clients keep is needed.
      gives_states: Whether what clients keep is known at its end, and was not before.
    """

    received: tuple[int, ...]
    maps: tuple[Primitive, ...]
    aggregates: tuple[Primitive, ...]
    kept: tuple[Symbol, ...]
    used: tuple[Symbol, ...]
    reads_data: bool
    reads_states: bool
    gives_states: bool


class Program:
    """A round as primitives in phases.

    Attributes:
      phases: What clients do, phase by phase.
      specs: Number of a value → its structure of `tf.TensorSpec`s; of a client's, for one client.
      calls: Number of a map → its function, traced for these.
      arguments: Number of a primitive → where the leaves of its arguments are.
      state_spec: The server's state.
      state_after: Structure of symbols: the state after the round.
      metrics: Structure of symbols: the round's metrics.
      outcome: Structure of `tf.TensorSpec`s of both, and where their leaves are.
      client_states: Structure of symbols: what each client keeps, or finds; `None` if that is
        nothing.
      states_spec: Its `tf.TensorSpec`s.
      model: The model that is trained.
      graphs: What `executors.Stacked` has traced of it.
    """

    def __init__(self, method: Method, model: Model, takes: Callable | None = None):
        """Records the round of a method and traces its functions.

        Args:
          method: The method.
          model: The model that it was built for.
          takes: `tf.TensorSpec`s of a `ClientData` → those of what a client works on, see
            `tff_algos.driver.Round`; by default the same.

        Raises:
          NotVectorizable: If a part of its aggregator has no form over several clients.
        """
        self.model, self.graphs = model, Graphs()
        initial = tf.function(method.initialize, autograph=False).get_concrete_function()
        self.state_spec = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), initial.structured_outputs
        )
        data = process_lib.client_data_spec(model)
        self.specs = {STATE: self.state_spec, CLIENTS: data if takes is None else takes(data)}
        if method.client_state is not None:
            self.specs[CLIENT_STATES] = process_lib.client_state_spec(method)
        given = [Symbol(number, self.specs[number]) for number in sorted(self.specs)]
        self.calls, self.arguments = {}, {}
        recorder = _Recorder(self._trace, self.specs)
        self.state_after, self.metrics, *kept = method.next_round(recorder, *given)
        self.client_states = kept[0] if kept else None
        self._primitives = recorder.primitives
        self.states_spec = self.specs.get(CLIENT_STATES)
        if kept and self.states_spec is None:
            self.states_spec = self.spec(self.client_states)
        self.phases = self._phases()
        after = self.state_after, self.metrics
        self.outcome = self.spec(after), self.places(after)

    def spec(self, structure: Any) -> Any:
        """Returns the `tf.TensorSpec`s of a structure of symbols."""
        return self.resolve(structure, lambda s: part_of(self.specs, s))

    def resolve(self, structure: Any, value_of: Callable[[Symbol], Any]) -> Any:
        """Returns a structure with values in the place of symbols."""
        return tf.nest.map_structure(
            lambda leaf: value_of(leaf) if isinstance(leaf, Symbol) else leaf, structure
        )

    def places(self, structure: Any) -> tuple[Place, ...]:
        """Returns where the leaves of a structure of symbols are."""
        places = []
        for symbol in _symbols(structure):
            number, spec = number_of(symbol), self.specs[number_of(symbol)]
            indices = tf.nest.pack_sequence_as(spec, range(len(tf.nest.flatten(spec))))
            found = tf.nest.flatten(part_of({number: indices}, symbol))
            places += [Place(number, index) for index in found]
        return tuple(places)

    def _trace(self, primitive):
        arguments = self.spec(primitive.arguments)
        self.arguments[primitive.number] = self.places(primitive.arguments)
        if primitive.fn is not None:
            self.calls[primitive.number] = call = Call(primitive.fn, arguments)
            self.specs[primitive.number] = call.structure
        elif primitive.kind == "mean":
            self.specs[primitive.number] = arguments[0]
        elif primitive.kind == "stack":
            self.specs[primitive.number] = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape], t.dtype), arguments
            )
        else:
            self.specs[primitive.number] = arguments

    def _phases(self):
        at_clients = [
            w for w in self._primitives if w.kind == "map_clients" or w.kind in AGGREGATES
        ]
        states = _symbols(self.client_states) if self.client_states is not None else []
        phase_of = {primitive.number: primitive.phase for primitive in self._primitives}
        known = max((phase_of.get(number_of(s), 0) for s in states), default=None)
        number = 1 + max((primitive.phase for primitive in at_clients), default=0)
        # What each phase looks at: symbols of its primitives, and of the states that it gives.
        looks = [[] for _ in range(number)]
        for primitive in at_clients:
            looks[primitive.phase] += _symbols(primitive.arguments)
        if known is not None:
            looks[known] += states
        given = (STATE, CLIENTS, CLIENT_STATES)
        maps = {
            primitive.number: primitive
            for primitive in self._primitives
            if primitive.kind == "map_clients"
        }

        def of_earlier(symbols, phase):
            found = {
                key_of(s): s
                for s in symbols
                if number_of(s) in maps and phase_of[number_of(s)] < phase
            }
            return tuple(found[key] for key in sorted(found, key=repr))

        phases = []
        for phase in range(number):
            numbers = {number_of(s) for s in looks[phase]}
            later = [s for looked in looks[phase + 1 :] for s in looked]
            phases.append(
                Phase(
                    received=tuple(sorted(n for n in numbers if n not in given and n not in maps)),
                    maps=tuple(w for w in maps.values() if w.phase == phase),
                    aggregates=tuple(
                        w for w in self._primitives if w.kind in AGGREGATES and w.phase == phase
                    ),
                    kept=of_earlier(later, phase + 1),
                    used=of_earlier(looks[phase], phase),
                    reads_data=CLIENTS in numbers,
                    reads_states=CLIENT_STATES in numbers,
                    gives_states=known == phase,
                )
            )
        return tuple(phases)

    def stacked_bytes(self) -> int:
        """Returns how many bytes of one client the server holds side by side with the others'."""
        stacked = [
            primitive.arguments for primitive in self._primitives if primitive.kind == "stack"
        ]
        return memory.nbytes(self.spec(stacked))

    def sent_bytes(self) -> tuple[int, int]:
        """Returns the bytes of all broadcasts, and of all partial aggregates but stacked rows."""
        down = {n for phase in self.phases for n in phase.received}
        up = [w for w in self._primitives if w.kind in ("mean", "sum", "max")]
        sent = [
            primitive.arguments[0] if primitive.kind == "mean" else primitive.arguments
            for primitive in up
        ]
        return memory.nbytes([self.specs[n] for n in down]), memory.nbytes(self.spec(sent))

    def server(self, state: Any) -> "ServerRound":
        """Returns the server's side of a round that begins with a state."""
        return ServerRound(self, self._primitives, state)


class ServerRound:
    """The server's side of one round."""

    def __init__(self, program: Program, primitives: Sequence[Primitive], state: Any):
        """Initialises for the state before the round; use `Program.server`."""
        self._program, self._primitives = program, primitives
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(state)]
        for leaf, like in zip(leaves, tf.nest.flatten(program.state_spec), strict=True):
            # A graph takes what can be broadcast, too, and then gives other numbers.
            if leaf.dtype != like.dtype or not like.shape.is_compatible_with(leaf.shape):
                raise TypeError(
                    f"The state must hold {like.dtype.name} {like.shape.as_list()}, found "
                    f"{leaf.dtype.name} {leaf.shape.as_list()}."
                )
        # Number of a value → its leaves.
        self._values = {STATE: leaves}
        self._phase = -1
        self._work()

    def sent(self, number: int) -> list[tf.Tensor]:
        """Returns the leaves of a broadcast."""
        return self._values[number]

    def take(self, totals: Mapping[int, list[Any]]) -> None:
        """Takes the aggregates of the next phase of the clients: number → leaves."""
        for number, leaves in totals.items():
            self._values[number] = list(map(eager_tensors.as_tensor, leaves))
        self._work()

    def _work(self):
        """Does what the server can do now."""
        self._phase += 1
        for primitive in self._primitives:
            if primitive.phase == self._phase and primitive.kind in ("map_server", "broadcast"):
                places = self._program.arguments[primitive.number]
                leaves = [self._values[number][index] for number, index in places]
                if primitive.kind == "map_server":
                    leaves = self._program.calls[primitive.number](leaves)
                self._values[primitive.number] = leaves

    def outcome(self) -> tuple[Any, collections.OrderedDict]:
        """Returns the state after the round, tensors, and its metrics, once all phases are done."""
        spec, places = self._program.outcome
        leaves = [self._values[number][index] for number, index in places]
        state, metrics = tf.nest.pack_sequence_as(spec, leaves)
        return state, tf.nest.map_structure(lambda t: t.numpy(), metrics)
