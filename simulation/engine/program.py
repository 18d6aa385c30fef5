"""A method's round as a program: primitives in phases, divided where server and clients meet.

`next_round` runs once, with a federation that only records its primitives. The record has no
branches: values do not exist yet while it is made, so no primitive can depend on one. The server
and every worker record the round separately, and get the same primitives with the same numbers.
Values are sent with their number; functions are never sent.

The primitives are divided into phases:

- Phase 0 of the server needs nothing from clients.
- Phase p of the clients needs the server's broadcasts from its phases 0 to p.
- It ends with the clients' aggregates, with which phase p + 1 of the server begins.

FedAvg has one phase of clients, TERM two, FedFA three. TFF's form for this,
`tff.framework.MergeableCompForm`, has only one phase: it refuses an aggregate that depends on
another.
"""

import collections
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from simulation.device import eager_tensors, graph_calls
from simulation.engine import aggregators
from simulation.engine.batching import field_of
from tff_algos import process as process_lib
from tff_algos import purity
from tff_algos.method import Method, check_mean
from tff_algos.model import Model
from tff_suite import memory

# Numbers of the values with which a round begins.
STATE, CLIENTS, CLIENT_STATES = range(3)

AGGREGATES = ("mean", "sum", "max", "stack")


# The same on every machine, since it affects the last bits of matrix products of stacked clients.
# Measured with an MLP of 199,210 weights: two blocks take 0.6 of the time of one on two cores and
# 0.9 on one core; four take more time than two on either.
_USUAL_BLOCKS = 2


class Symbol:
    """A value of a round, or a part of one; parts are selected as in TFF's values.

    Every attribute without a leading underscore is a field of the value.
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

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return tuple(self)[key]
        number, path = self._key
        return Symbol(number, field_of(self._spec, key), (*path, key))

    def __iter__(self) -> Iterator[Any]:
        # A single spec has no length, as a tensor has no parts.
        return (self[i] for i in range(len(self._spec)))


def key_of(symbol: Symbol) -> tuple[int, tuple]:
    """Returns the number of the primitive that computes a value, and the keys of selections."""
    return symbol._key


def number_of(symbol: Symbol) -> int:
    """Returns the number of the primitive that computes a value."""
    return symbol._key[0]


def part_of(values: Mapping[int, Any], symbol: Symbol) -> Any:
    """Returns the value of a symbol.

    Args:
      values: Number of a primitive → the structure of its value.
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
      leaf: Its place among the leaves of that primitive's value.
    """

    number: int
    leaf: int


class Primitive(NamedTuple):
    """One primitive of a round.

    Attributes:
      number: Its position, which identifies its value.
      kind: `broadcast`, `map_clients`, `map_server`, or one of `AGGREGATES`.
      fn: The function of a map; `None` for the others.
      arguments: Structure of `Symbol`s.
      phase: See the module; for an aggregate, the phase of the clients.
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
        # The server runs TFF's computation on the rows of all clients.
        rows = self.stack((value, weight) if process.weighted else (value,))
        return self.map_server(aggregators.OnRows(process), state, rows)

    def _add(self, kind, fn, arguments, at_server):
        number = CLIENT_STATES + 1 + len(self.primitives)
        phase = max((self._of[number_of(s)][0] for s in _symbols(arguments)), default=0)
        self.primitives.append(Primitive(number, kind, fn, arguments, phase))
        self._of[number] = phase + (kind in AGGREGATES), at_server
        self._trace(self.primitives[-1])
        return Symbol(number, self._specs[number])


def _symbols(structure):
    return [s for s in tf.nest.flatten(structure) if isinstance(s, Symbol)]


def _divide(sums, weight):
    return tf.nest.map_structure(lambda s: tf.math.divide_no_nan(s, tf.cast(weight, s.dtype)), sums)


# A few operations on tensors of this size are over sooner than TensorFlow hands them to a thread.
_SMALL_BYTES = 1 << 20


def _is_small(specs):
    sizes = [t.shape.num_elements() for t in tf.nest.flatten(specs)]
    return None not in sizes and memory.nbytes(specs) <= _SMALL_BYTES


class Call:
    """A function of structures as a graph from flat tensors to flat tensors.

    Attributes:
      structure: Its result, as a structure of `tf.TensorSpec`s.
    """

    def __init__(
        self,
        fn: Callable,
        specs: Any,
        must_be_pure: bool = True,
        model_calls_python: bool = False,
    ):
        """Traces the function.

        Args:
          fn: The function.
          specs: Its arguments, a tuple of structures of `tf.TensorSpec`s.
          must_be_pure: Whether it is refused if it draws without a seed or changes variables.
          model_calls_python: As for `purity.required`.

        Raises:
          MethodError: If it must be pure and is not, or if its result contains None.
        """
        # A new trace, since cached ones may be for another of TensorFlow's executors.
        fresh = getattr(fn, "_clone", None)
        fn = fn if fresh is None else fresh(None)

        checked: Any = contextlib.nullcontext()
        if must_be_pure:
            checked = purity.required(fn, model_calls_python)

        def flat(*tensors):
            with checked:
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
        if any(t is None for t in tf.nest.flatten(given)):
            raise purity.MethodError(
                f"{purity.name_of(fn)} of the method returned None in place of a tensor; leave it "
                "out of the structure, or return zeros."
            )
        self.structure = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), given)

    def __call__(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the leaves of the result for the leaves of the arguments."""
        return list(map(eager_tensors.lean, self._shared(*tensors, *self._captured)))


class Graphs:
    """Graphs over stacked clients, with the TensorFlow executor for each.

    Attributes:
      traced: Key of a graph → the graph.
      vectorised: Client function → its form over a block of clients.
      executors: Key of a graph → TensorFlow's name of its executor.
      on_gpu: Whether they are for a GPU.
      at_least: Smallest number of blocks of a chunk if there is enough work.
    """

    def __init__(self):
        """Initialises without graphs."""
        self.traced, self.executors = {}, {}
        self.vectorised: dict[Any, Callable] = {}
        self.on_gpu = bool(tf.config.list_physical_devices("GPU"))
        self.at_least = 1 if self.on_gpu else _USUAL_BLOCKS
        self._lock = threading.Lock()

    def of(
        self, key: Any, num_blocks: int, trace: Callable
    ) -> tf.types.experimental.ConcreteFunction:
        """Returns a graph.

        Args:
          key: Key of the graph.
          num_blocks: Number of blocks of its clients.
          trace: Makes the graph if it does not exist yet.
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
    """The work of clients between two exchanges with the server.

    Attributes:
      received: Numbers of the broadcasts that they use, earlier ones included, in order.
      maps: The primitives `map_clients`, in order.
      aggregates: The primitives that end the phase, in order.
      kept: Symbols of this or earlier phases that later ones need, in order.
      used: Symbols of earlier phases that this one needs.
      reads_data: Whether it needs the clients' data.
      reads_states: Whether it needs the clients' states.
      gives_states: Whether the clients' new states are known at its end but not before.
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
      calls: Number of a map → its function, traced for these; of a mean → the division of the sums
        by the sum of weights.
      arguments: Number of a primitive → where the leaves of its arguments are.
      state_spec: The server's state.
      state_after: Structure of symbols: the state after the round.
      metrics: Structure of symbols: the round's metrics.
      outcome: Structure of `tf.TensorSpec`s of both, and where their leaves are.
      client_states: Structure of symbols: what each client keeps, or finds; `None` if that is
        nothing.
      states_spec: Its `tf.TensorSpec`s.
      model: The model to train.
      graphs: The graphs that `executors.Stacked` has traced for it.
    """

    def __init__(self, method: Method, model: Model, takes: Callable | None = None):
        """Records the round of a method and traces its functions.

        Args:
          method: The method.
          model: The model for which it was built.
          takes: Function from the `tf.TensorSpec`s of a `ClientData` to those of a client's input,
            see `tff_algos.driver.Round`; by default the identity.

        Raises:
          NotVectorizable: If a part of its aggregator cannot be vectorised over clients.
          MethodError: If a function of it is not pure, see `tff_algos.purity`.
        """
        self.model, self.graphs = model, Graphs()
        initial = Call(method.initialize, ())
        self.state_spec = initial.structure
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
        """Returns a structure with symbols replaced by values."""
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
            # Users are warned of an aggregator's own draws.
            is_methods = not isinstance(primitive.fn, aggregators.OnRows)
            self.calls[primitive.number] = call = Call(
                primitive.fn, arguments, is_methods, self.model.calls_python
            )
            self.specs[primitive.number] = call.structure
        elif primitive.kind == "mean":
            check_mean(arguments[0])
            self.calls[primitive.number] = call = Call(_divide, arguments)
            self.specs[primitive.number] = call.structure
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
        # Symbols that each phase reads: those of its primitives, and of the states it computes.
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
        """Returns the bytes per client of aggregates that the server stacks."""
        stacked = [
            primitive.arguments for primitive in self._primitives if primitive.kind == "stack"
        ]
        return memory.nbytes(self.spec(stacked))

    def sent_bytes(self) -> tuple[int, int]:
        """Returns bytes of all broadcasts, and of all partial aggregates except stacked rows."""
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
            # A graph would also accept shapes that can be broadcast, with wrong results.
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
        """Executes the primitives of the server whose inputs are known."""
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
