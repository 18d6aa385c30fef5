"""A method's round, cut where server and clients meet, so that clients may be anywhere.

`next_round` is run once, with words that only write down what is asked for (`record`). What comes
out is straight on: words ask for functions of values that nobody has yet, so nothing in it can
depend on them. Everybody who takes part in a round, server or worker, writes it down for itself and
gets the same words under the same numbers; values then travel by number, functions never.

The words fall into phases. Phase 0 of the server is what it can do before it hears of a client;
phase p of the clients is what they can do with what the server sends in its phases 0 to p, and ends
with their aggregates, with which phase p + 1 of the server begins. FedAvg has one phase of clients,
TERM two, FedFA three. TFF's own form for this (`tff.framework.MergeableCompForm`) has one phase: it
refuses an aggregate that depends on another.
"""

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from simulation.device import eager_tensors, graph_calls
from tff_algos import process as process_lib
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_suite import memory
from tff_suite.errors import FedError

# Numbers of the values that a round begins with.
STATE, CLIENTS, CLIENT_STATES = range(3)

AGGREGATES = ("mean", "sum", "max", "stack")


class NotDivisibleError(FedError, ValueError):
    """A round with a word that cannot be said to a part of the cohort; its text is one line."""


class Symbol:
    """A value that a round speaks of, or a part of one; taken apart as TFF's values are.

    All names without an underscore at their beginning are names of fields.
    """

    __slots__ = ("_key", "_spec")

    def __init__(self, number: int, spec: Any, path: tuple = ()):
        """Initialises the symbol of what a word gives, or of what selections make of it.

        Args:
          number: The word's number.
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
    """Returns the number of the word that gives a value, and the keys of the selections from it."""
    return symbol._key


def number_of(symbol: Symbol) -> int:
    """Returns the number of the word that gives a value."""
    return symbol._key[0]


def part_of(values: Mapping[int, Any], symbol: Symbol) -> Any:
    """Returns what a symbol stands for.

    Args:
      values: Number of a word → the structure that it gives.
      symbol: The symbol.
    """
    number, path = key_of(symbol)
    return functools.reduce(field_of, path, values[number])


def field_of(value: Any, key: str | int) -> Any:
    """Returns a part of a structure by name or place, as TFF's values allow."""
    if isinstance(value, Mapping):
        return value[key] if isinstance(key, str) else list(value.values())[key]
    return getattr(value, key) if isinstance(key, str) else value[key]


class Word(NamedTuple):
    """One word of a round.

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
    """Words that write themselves down."""

    def __init__(self, trace, specs):
        self.words: list[Word] = []
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

    def mean_of_updates(self, value, weight):
        # An aggregator has another one, with a word that a part of a cohort has no answer to.
        return self.mean(value, weight)

    def sum(self, value):
        return self._add("sum", None, value, at_server=True)

    def max(self, value):
        return self._add("max", None, value, at_server=True)

    def stack(self, value):
        return self._add("stack", None, value, at_server=True)

    def __getattr__(self, name):
        raise NotDivisibleError(f"{name} is no word that can be said to a part of a cohort.")

    def _add(self, kind, fn, arguments, at_server):
        number = CLIENT_STATES + 1 + len(self.words)
        phase = max((self._of[number_of(s)][0] for s in _symbols(arguments)), default=0)
        self.words.append(Word(number, kind, fn, arguments, phase))
        self._of[number] = phase + (kind in AGGREGATES), at_server
        self._trace(self.words[-1])
        return Symbol(number, self._specs[number])


def _symbols(structure):
    return [s for s in tf.nest.flatten(structure) if isinstance(s, Symbol)]


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
        # Binding arguments by signature would take longer than a small graph does.
        self._shared = graph_calls.Shared(graph._inference_function)
        self._captured = graph.captured_inputs
        given = graph.structured_outputs
        self.structure = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), given)

    def __call__(self, tensors: Sequence[Any]) -> list[tf.Tensor]:
        """Returns the leaves of what it gives, for the leaves of its arguments."""
        return list(map(eager_tensors.lean, self._shared(*tensors, *self._captured)))


def data_spec(model: Model) -> ClientData:
    """Returns the `tf.TensorSpec`s of one client's data: steps and batch size are unknown."""

    def stacked(spec):
        return tf.TensorSpec([None, None, *spec.shape[1:]], spec.dtype)

    scalar = tf.TensorSpec([], tf.int32)
    return ClientData(
        x=stacked(model.x_spec),
        y=stacked(model.y_spec),
        mask=tf.TensorSpec([None, None], tf.float32),
        steps_per_epoch=scalar,
        num_examples=scalar,
        participates=tf.TensorSpec([], tf.float32),
        seed=tf.TensorSpec([2], tf.int32),
        index=scalar,
    )


class Phase(NamedTuple):
    """What clients do between two meetings with the server.

    Attributes:
      received: Numbers of the broadcasts that they use, earlier ones included, in order.
      maps: The words `map_clients`, in order.
      aggregates: The words that end the phase, in order.
      kept: Symbols of what later phases need of this or an earlier one, in order.
      used: Symbols of earlier phases that this one needs.
      reads_data: Whether the clients' data is needed.
      reads_states: Whether what clients keep is needed.
      gives_states: Whether what clients keep is known at its end, and was not before.
    """

    received: tuple[int, ...]
    maps: tuple[Word, ...]
    aggregates: tuple[Word, ...]
    kept: tuple[Symbol, ...]
    used: tuple[Symbol, ...]
    reads_data: bool
    reads_states: bool
    gives_states: bool


class Plan:
    """A round as words in phases.

    Attributes:
      phases: What clients do, phase by phase.
      specs: Number of a value → its structure of `tf.TensorSpec`s; of a client's, for one client.
      calls: Number of a map → its function, traced for these.
      state_spec: The server's state.
      state_after: Structure of symbols: the state after the round.
      metrics: Structure of symbols: the round's metrics.
      client_states: Structure of symbols: what each client keeps, or finds; `None` if that is
        nothing.
      states_spec: Its `tf.TensorSpec`s.
    """

    def __init__(self, method: Method, model: Model, takes: Callable | None = None):
        """Writes the round of a method down and traces its functions.

        Args:
          method: The method.
          model: The model that it was built for.
          takes: `tf.TensorSpec`s of a `ClientData` → those of what a client works on, see
            `tff_algos.driver.Round`; by default the same.

        Raises:
          NotDivisibleError: If it cannot be said to a part of the cohort.
        """
        initial = tf.function(method.initialize, autograph=False).get_concrete_function()
        self.state_spec = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), initial.structured_outputs
        )
        data = data_spec(model)
        self.specs = {STATE: self.state_spec, CLIENTS: data if takes is None else takes(data)}
        if method.client_state is not None:
            self.specs[CLIENT_STATES] = process_lib.client_state_spec(method)
        given = [Symbol(number, self.specs[number]) for number in sorted(self.specs)]
        self.calls = {}
        recorder = _Recorder(self._trace, self.specs)
        self.state_after, self.metrics, *kept = method.next_round(recorder, *given)
        self.client_states = kept[0] if kept else None
        self._words = recorder.words
        self.states_spec = self.specs.get(CLIENT_STATES)
        if kept and self.states_spec is None:
            self.states_spec = self.spec(self.client_states)
        self.phases = self._phases()

    def spec(self, structure: Any) -> Any:
        """Returns the `tf.TensorSpec`s of a structure of symbols."""
        return self.resolve(structure, lambda s: part_of(self.specs, s))

    def resolve(self, structure: Any, value_of: Callable[[Symbol], Any]) -> Any:
        """Returns a structure with values in the place of symbols."""
        return tf.nest.map_structure(
            lambda leaf: value_of(leaf) if isinstance(leaf, Symbol) else leaf, structure
        )

    def _trace(self, word):
        arguments = self.spec(word.arguments)
        if word.fn is not None:
            self.calls[word.number] = call = Call(word.fn, arguments)
            self.specs[word.number] = call.structure
        elif word.kind == "mean":
            self.specs[word.number] = arguments[0]
        elif word.kind == "stack":
            self.specs[word.number] = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape], t.dtype), arguments
            )
        else:
            self.specs[word.number] = arguments

    def _phases(self):
        at_clients = [w for w in self._words if w.kind == "map_clients" or w.kind in AGGREGATES]
        states = _symbols(self.client_states) if self.client_states is not None else []
        phase_of = {word.number: word.phase for word in self._words}
        known = max((phase_of.get(number_of(s), 0) for s in states), default=None)
        number = 1 + max((word.phase for word in at_clients), default=0)
        # What each phase looks at: symbols of its words, and of the states that it gives.
        looks = [[] for _ in range(number)]
        for word in at_clients:
            looks[word.phase] += _symbols(word.arguments)
        if known is not None:
            looks[known] += states
        given = (STATE, CLIENTS, CLIENT_STATES)
        maps = {word.number: word for word in self._words if word.kind == "map_clients"}

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
                        w for w in self._words if w.kind in AGGREGATES and w.phase == phase
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
        stacked = [word.arguments for word in self._words if word.kind == "stack"]
        return memory.nbytes(self.spec(stacked))

    def sent_bytes(self) -> tuple[int, int]:
        """Returns the bytes of all broadcasts, and of all partial aggregates but stacked rows."""
        down = {n for phase in self.phases for n in phase.received}
        up = [w for w in self._words if w.kind in ("mean", "sum", "max")]
        sent = [word.arguments[0] if word.kind == "mean" else word.arguments for word in up]
        return memory.nbytes([self.specs[n] for n in down]), memory.nbytes(self.spec(sent))

    def server(self, state: Any) -> "ServerRound":
        """Returns the server's side of a round that begins with a state."""
        return ServerRound(self, self._words, state)


class ServerRound:
    """The server's side of one round."""

    def __init__(self, plan: Plan, words: Sequence[Word], state: Any):
        """Initialises for the state before the round; use `Plan.server`."""
        self._plan, self._words = plan, words
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(state)]
        self._values = {STATE: tf.nest.pack_sequence_as(plan.state_spec, leaves)}
        self._phase = -1
        self._work()

    def sent(self, number: int) -> list[np.ndarray]:
        """Returns the leaves of a broadcast."""
        return [leaf.numpy() for leaf in tf.nest.flatten(self._values[number])]

    def take(self, totals: Mapping[int, list[np.ndarray]]) -> None:
        """Takes the aggregates of the next phase of the clients: number → leaves."""
        for number, leaves in totals.items():
            leaves = [tf.convert_to_tensor(leaf) for leaf in leaves]
            self._values[number] = tf.nest.pack_sequence_as(self._plan.specs[number], leaves)
        self._work()

    def _work(self):
        """Does what the server can do now."""
        self._phase += 1
        for word in self._words:
            if word.phase == self._phase and word.kind in ("map_server", "broadcast"):
                arguments = self._resolved(word.arguments)
                if word.kind == "broadcast":
                    self._values[word.number] = arguments
                else:
                    call = self._plan.calls[word.number]
                    leaves = call(tf.nest.flatten(arguments))
                    self._values[word.number] = tf.nest.pack_sequence_as(call.structure, leaves)

    def _resolved(self, structure):
        return self._plan.resolve(structure, lambda s: part_of(self._values, s))

    def outcome(self) -> tuple[Any, collections.OrderedDict]:
        """Returns the state after the round and its metrics, arrays, once all phases are done."""
        given = self._resolved((self._plan.state_after, self._plan.metrics))
        return tf.nest.map_structure(lambda t: t.numpy(), given)
