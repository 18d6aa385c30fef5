"""A method's round over the whole cohort at once: `--runtime=vectorized`.

`VectorizedFederation` is the second spelling of the words of `tff_algos.method.Federation`: the
very same client functions, rewritten to take all clients as one tensor dimension. A round is one
TensorFlow program, from the state and the cohort's data to the next state and the metrics.

Clients of unlike length are put into blocks of like length. Within a block they are padded to the
longest, with steps and examples that a mask makes count nothing. Shapes of the data are unknown to
the program, so that one program for each number of blocks, at most `MAX_BLOCKS`, serves all rounds.
Which clients share a block is a function of the cohort's own sizes: nothing has to be remembered
for a resumed run to be the same run.

Nothing falls back to a loop over clients: `NotVectorizable` names an operation that would need it.
"""

import threading
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from simulation.device import eager_tensors, graph_calls
from simulation.engine import aggregators as stacked_interpreter
from simulation.engine import batched_ops
from simulation.engine.batched_ops import NotVectorizable
from simulation.engine.program import field_of
from simulation.tff import context as tff_context
from tasks.layers import vectorizable
from tff_algos import aggregation, client
from tff_algos import process as process_lib
from tff_algos.client_data import Batch, ClientData, Gathered, arrays, of_model
from tff_algos.model import Model
from tff_suite import compat, memory

__all__ = [
    "MAX_BLOCKS",
    "Cohort",
    "NotVectorizable",
    "VectorizedContext",
    "VectorizedFederation",
    "VectorizedProcess",
]

MAX_BLOCKS = 8

# A step of a block costs, besides its clients' work, about that of this number of further clients.
_STEP_OVERHEAD = 8.0

# On every machine as many, since what a client's matrices are stacked with is seen in the last bits
# of their products. Measured with an MLP of 199,210 weights: two take 0.6 of the time of one on two
# cores and 0.9 on one core, four more than two on either.
_USUAL_BLOCKS = 2

# A step of fewer multiplications is over sooner than another thread is of use; measured with
# softmax regression, where a second block costs half of what the first does.
_WORTH_A_THREAD = 1 << 22


def blocks_of(
    steps: Sequence[int], batch_sizes: Sequence[int], at_least: int = 1
) -> list[list[int]]:
    """Groups clients so that padding costs least.

    Args:
      steps: Local steps of each client.
      batch_sizes: Examples of a minibatch of each client, padding included.
      at_least: Number of blocks wanted in any case, if there are as many clients, since blocks run
        at the same time; at most `MAX_BLOCKS`.

    Returns:
      At most `MAX_BLOCKS` lists of places in the cohort, each ascending; together all of them.
    """
    sizes = sorted(set(zip(steps, batch_sizes, strict=True)))
    members = {size: [] for size in sizes}
    for place, size in enumerate(zip(steps, batch_sizes, strict=True)):
        members[size].append(place)
    cost = _costs(np.array(sizes), np.array([len(members[size]) for size in sizes]))
    # least[j]: cost of the first j sizes in as many blocks as there are rows of `starts`, which
    # keeps where the last of these blocks starts.
    least = np.full(len(sizes) + 1, np.inf)
    least[0] = 0.0
    totals, starts = [], []
    for _ in range(min(MAX_BLOCKS, len(sizes))):
        candidates = least[:, None] + cost
        starts.append(candidates.argmin(0))
        least = candidates.min(0)
        totals.append(least[-1])
    blocks, end = [], len(sizes)
    for start in starts[np.argmin(totals) :: -1]:
        blocks.append(sorted(k for size in sizes[start[end] : end] for k in members[size]))
        end = start[end]

    def work(block):
        # A block of one client cannot be split.
        return len(block) > 1 and max(steps[k] * batch_sizes[k] for k in block) * len(block)

    while len(blocks) < at_least and max(map(work, blocks)):
        most = max(blocks, key=work)
        blocks.remove(most)
        blocks += [most[::2], most[1::2]]
    return sorted(blocks)


def _costs(sizes, counts):
    """Returns the cost of a block of the sizes from i to j, excluded: `[i, j]`, `i < j`."""
    number = len(sizes)
    cost = np.full((number + 1, number + 1), np.inf)
    before = np.concatenate([[0], np.cumsum(counts)])
    for i in range(number):
        widest = np.maximum.accumulate(sizes[i:, 1])
        clients = before[i + 1 :] - before[i] + _STEP_OVERHEAD
        cost[i, i + 1 :] = sizes[i:, 0] * widest * clients
    return cost


class Cohort(NamedTuple):
    """A round's clients, ready for the program.

    Attributes:
      blocks: `ClientData` of several clients each, all fields with a first dimension for them.
      places: int32 `[K]`: where in the blocks, one after the other, each client of the cohort is.
    """

    blocks: tuple[ClientData, ...]
    places: tf.Tensor


_MASK = tf.TensorSpec([None], tf.float32)
# What a client has once, not for every step.
_ONCE = {
    "steps_per_epoch": np.int32,
    "num_examples": np.int32,
    "participates": np.float32,
    "seed": np.int32,
    "index": np.int32,
}


def prepare(clients: Sequence[ClientData], model: Model, at_least: int = 1) -> Cohort:
    """Pads and stacks the data of a round's clients.

    Args:
      clients: Data of each client, NumPy arrays (what can be converted to them will do), or as
        `tff_algos.batch_cohort` gives it.
      model: The model they are for.
      at_least: Number of blocks wanted where there is work for them, see `blocks_of`.

    Raises:
      ValueError: If there is no client.
      TypeError: If a client's data has not the types and shapes of the model's.
      HparamError: If the data would not fit into memory.
    """
    if not clients:
        raise ValueError("A round needs at least one client.")
    clients = [_as_arrays(c) for c in clients]
    checked = set()
    for c in clients:
        form = tuple((a.shape, a.dtype) for a in (c.x, c.y, c.mask))
        if form not in checked:
            _check(c, model)
            checked.add(form)
    steps, batch_sizes = zip(*(c.mask.shape for c in clients), strict=True)
    if sum(batch_sizes) * sum(w.size for w in model.initial_weights) < _WORTH_A_THREAD:
        at_least = 1
    blocks = blocks_of(steps, batch_sizes, at_least)
    _require_room(clients, blocks)
    places = np.empty(len(clients), np.int32)
    places[[k for block in blocks for k in block]] = np.arange(len(clients), dtype=np.int32)
    stacked = tuple(_stack([clients[k] for k in block]) for block in blocks)
    return Cohort(stacked, tf.constant(places))


def _require_room(clients, blocks):
    def slots(block):
        return len(block) * int(np.prod(np.max([clients[k].mask.shape for k in block], axis=0)))

    first = clients[0]
    of_slot = sum(memory.size_of(a.shape[2:], a.dtype) for a in (first.x, first.y))
    memory.require(
        of_slot * sum(map(slots, blocks)),
        f"The examples of {len(clients):,} clients at once",
        "--clients_per_chunk, --runtime=tff or fewer epochs take less",
    )


def _as_arrays(data):
    """Returns a client's data as arrays, save those that `_stack` has better put in their place."""
    if type(data.x) is type(data.y) is Gathered:
        return data
    return arrays(data)


def _check(data, model):
    for name, spec in (("x", model.x_spec), ("y", model.y_spec), ("mask", _MASK)):
        found, wanted = getattr(data, name), tuple(spec.shape[1:])
        fits = len(found.shape) == len(wanted) + 2 and all(
            w in (None, f) for w, f in zip(wanted, found.shape[2:], strict=True)
        )
        if not fits or found.dtype != spec.dtype.as_numpy_dtype:
            raise TypeError(
                f"Client data {name} must be {spec.dtype.name} "
                f"{['steps', 'batch', *wanted]}, found {found.dtype} {list(found.shape)}."
            )
        if found.shape[:2] != data.mask.shape:
            raise TypeError(f"Client data {name} and mask differ in steps or batch size.")


def _stack(clients: list[ClientData]) -> ClientData:
    size = tuple(np.max([c.mask.shape for c in clients], axis=0))
    filled = [k for k, c in enumerate(clients) if c.mask.size]
    padded = {}
    for name in ("x", "y", "mask"):
        of_clients = [getattr(c, name) for c in clients]
        shape = (len(clients), *size, *of_clients[0].shape[2:])
        block = eager_tensors.empty(shape, of_clients[0].dtype)
        for k, values in enumerate(of_clients):
            place = block[k, : values.shape[0], : values.shape[1]]
            if isinstance(values, Gathered):
                values.into(place)
            else:
                place[:] = values
        # The mask leaves out all places beyond a client's own. But the model runs on them as well,
        # so they hold examples that it takes: the client's, or those of another if it has none.
        for k, values in enumerate(of_clients if filled else ()):
            steps, width = values.shape[:2]
            if name == "mask":
                block[k, :steps, width:] = block[k, steps:] = 0
                continue
            given = block[k, :steps, :1] if steps and width else block[filled[0], :1, :1]
            block[k, :steps, width:] = given
            block[k, steps:] = given[:1]
        padded[name] = block
    rest = {
        name: np.array([getattr(c, name) for c in clients], dtype) for name, dtype in _ONCE.items()
    }
    return tf.nest.map_structure(eager_tensors.adopt, ClientData(**padded, **rest))


def stack_states(client_states: Sequence[Any], cohort: Cohort) -> tuple:
    """Returns the states of the cohort's clients as structures of tensors, one for each block.

    Raises:
      ValueError: If they are of another number of clients.
    """
    if len(client_states) != len(cohort.places):
        # One state for all would be taken for each client's.
        raise ValueError(
            f"A cohort of {len(cohort.places)} clients with the states of {len(client_states)}."
        )
    if isinstance(client_states, process_lib.StackedStates):
        stacked = client_states.stacked
    else:
        stacked = tf.nest.map_structure(lambda *values: np.stack(values), *client_states)
    if len(cohort.blocks) == 1:
        return (tf.nest.map_structure(eager_tensors.adopt, stacked),)
    in_blocks = np.argsort(cohort.places.numpy())
    ends = np.cumsum([len(block.index) for block in cohort.blocks])
    return tuple(
        tf.nest.map_structure(lambda values: eager_tensors.adopt(values[members]), stacked)  # noqa: B023
        for members in np.split(in_blocks, ends[:-1])
    )


def _check_state(leaves, program):
    # A program takes what can be broadcast, too, and then gives other numbers.
    for leaf, like in zip(leaves, program.inputs, strict=False):
        if leaf.dtype != like.dtype or not like.shape.is_compatible_with(leaf.shape):
            raise TypeError(
                f"The state must hold {like.dtype.name} {like.shape.as_list()}, found "
                f"{leaf.dtype.name} {leaf.shape.as_list()}."
            )


def _block_spec(model: Model) -> ClientData:
    def stacked(spec):
        return tf.TensorSpec([None, None, None, *spec.shape[1:]], spec.dtype)

    return ClientData(
        x=stacked(model.x_spec),
        y=stacked(model.y_spec),
        mask=tf.TensorSpec([None, None, None], tf.float32),
        seed=tf.TensorSpec([None, 2], tf.int32),
        **{name: tf.TensorSpec([None], dtype) for name, dtype in _ONCE.items() if name != "seed"},
    )


class _Placed:
    """What clients hold; fields are selected by name or place, as TFF's values allow."""

    def _select(self, key):
        raise NotImplementedError

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._select(name)

    def __getitem__(self, key):
        return self._select(key)


class _AtClients(_Placed):
    """A value of each client: for each block a structure of tensors `[clients, ...]`."""

    def __init__(self, blocks):
        self.__dict__["_blocks"] = tuple(blocks)

    def _select(self, key):
        return _AtClients([field_of(block, key) for block in self._blocks])


class _Broadcast(_Placed):
    """A value that all clients share."""

    def __init__(self, value):
        self.__dict__["_value"] = value

    def _select(self, key):
        return _Broadcast(field_of(self._value, key))


class Aggregate(NamedTuple):
    """What an aggregator gives, as `tff.templates.MeasuredProcessOutput`."""

    state: Any
    result: Any
    measurements: Any


def at_clients(blocks: Sequence[Any]) -> _AtClients:
    """Returns what clients hold, given as structures of tensors `[clients, ...]`, one a block."""
    return _AtClients(blocks)


def blocks_at(value: Any) -> tuple:
    """Returns the structures that a value at clients is, one for each block."""
    return value._blocks


class VectorizedFederation:
    """The words of a round over blocks of stacked clients; for use while a graph is built."""

    def __init__(self, num_clients: Sequence[tf.Tensor], places: tf.Tensor | None):
        """Initialises the words of a round.

        Args:
          num_clients: Number of clients of each block, int32 scalars.
          places: int32 `[K]`: where in the blocks, one after the other, each client of the cohort
            is. `None` if the blocks are in the cohort's order.
        """
        self._num_clients = tuple(num_clients)
        self._places = places

    def broadcast(self, value):
        """As `tff_algos.method.Federation.broadcast`."""
        return _Broadcast(value)

    def map_server(self, fn, *values):
        """As `tff_algos.method.Federation.map_server`."""
        # A function's own numbers come as they are, where it is no `tf.function`.
        return tf.nest.map_structure(tf.convert_to_tensor, _fresh(fn)(*values))

    def map_clients(self, fn, *values):
        """As `tff_algos.method.Federation.map_clients`.

        Raises:
          NotVectorizable: If an operation of `fn` has no form over several clients.
        """

        def of_block(b):
            return tf.nest.map_structure(
                lambda v: v._blocks[b] if isinstance(v, _AtClients) else v._value, values
            )

        def is_stacked(value):
            content = value._blocks[0] if isinstance(value, _AtClients) else value._value
            return tf.nest.map_structure(lambda _: isinstance(value, _AtClients), content)

        stacked = tf.nest.flatten(tf.nest.map_structure(is_stacked, values))

        # Traced once, since all blocks have the same, partly unknown shapes.
        @tf.function(autograph=False)
        def over_block(num_clients, arguments):
            return _over_clients(fn, arguments, stacked, num_clients)

        return _AtClients(over_block(n, of_block(b)) for b, n in enumerate(self._num_clients))

    def mean(self, value, weight):
        """As `tff_algos.method.Federation.mean`."""
        sums, total = self.weighted_sum(value, weight)
        return tf.nest.map_structure(
            lambda s: tf.math.divide_no_nan(s, tf.cast(total, s.dtype)), sums
        )

    def weighted_sum(self, value, weight):
        """Returns the sums that a mean is the quotient of: of weight times value, and of weight."""
        weights = self._of_cohort(weight)

        def weighed(v):
            w = tf.reshape(weights, [-1] + [1] * (v.shape.rank - 1))
            return tf.reduce_sum(w * v, 0)

        return tf.nest.map_structure(weighed, self._of_cohort(value)), tf.reduce_sum(weights)

    def sum(self, value):
        """As `tff_algos.method.Federation.sum`."""
        return tf.nest.map_structure(lambda v: tf.reduce_sum(v, 0), self._of_cohort(value))

    def max(self, value):
        """As `tff_algos.method.Federation.max`."""
        return tf.nest.map_structure(lambda v: tf.reduce_max(v, 0), self._of_cohort(value))

    def stack(self, value):
        """As `tff_algos.method.Federation.stack`."""
        return self._of_cohort(value)

    def aggregate(self, process, state, value, weight):
        """As `tff_algos.method.Federation.aggregate`.

        Raises:
          NotVectorizable: If a part of the aggregator has no form over several clients.
        """
        types = process.next.type_signature
        state = aggregation.unpack(types.parameter[0].member, state)
        of_clients = [value, weight][: 1 + process.weighted]
        argument = (state, *map(stacked_interpreter.of_each, map(self._of_cohort, of_clients)))
        interpreter = stacked_interpreter.StackedInterpreter(_over_clients)
        outputs = interpreter.run(process.next, argument, tf.add_n(self._num_clients))
        return Aggregate(
            *(
                aggregation.pack(of.member, iter(tf.nest.flatten(output)))
                for of, output in zip(types.result, outputs, strict=True)
            )
        )

    def _of_cohort(self, value):
        """Returns a client value as tensors `[K, ...]` in the order of the cohort."""

        def tensors(placed):
            if isinstance(placed, _Broadcast):
                return tf.nest.map_structure(self._repeated, placed._value)
            return tf.nest.map_structure(self._joined, *placed._blocks)

        return tf.nest.map_structure(tensors, value)

    def _repeated(self, tensor):
        tensor = tf.convert_to_tensor(tensor)
        number = tf.add_n(self._num_clients)
        return tf.repeat(tensor[tf.newaxis], number, axis=0)

    def _joined(self, *tensors):
        joined = tf.concat(tensors, 0) if len(tensors) > 1 else tensors[0]
        return joined if self._places is None else tf.gather(joined, self._places)


def _over_clients(fn: Callable, arguments: Any, stacked: Sequence[bool], num_clients: tf.Tensor):
    """Applies a client's function to all clients of a block.

    Args:
      fn: The function.
      arguments: Its arguments, structures of tensors; those of clients are `[K, ...]`.
      stacked: For each tensor of the arguments, whether it is of clients.
      num_clients: K, int32 scalar.
    """
    flat = tf.nest.flatten(arguments)
    specs = [
        tf.TensorSpec(t.shape[1:] if has_clients else t.shape, t.dtype)
        for t, has_clients in zip(flat, stacked, strict=True)
    ]
    fn = _fresh(fn)

    def of_one(*arguments):
        return fn(*arguments)

    with client.stacked_clients(), vectorizable.only():
        traced = tf.function(of_one, autograph=False).get_concrete_function(
            *tf.nest.pack_sequence_as(arguments, specs)
        )
    captured = traced.captured_inputs
    outputs = batched_ops.over_clients(
        traced.graph, [*flat, *captured], [*stacked, *[False] * len(captured)], num_clients
    )
    return tf.nest.pack_sequence_as(traced.structured_outputs, outputs)


def _fresh(fn: Callable) -> Callable:
    """Returns a method's function without the traces that others have left in its cache.

    They would be for one client, or for another of TensorFlow's executors.
    """
    clone = getattr(fn, "_clone", None)
    return fn if clone is None else clone(None)


def has_convolution(model: Model) -> bool:
    """Returns whether a forward pass of a model convolves anything."""
    specs = [tf.TensorSpec([1, *s.shape[1:]], s.dtype) for s in (model.x_spec, model.y_spec)]

    def forward(x, y):
        weights = tuple(map(tf.constant, model.initial_weights))
        batch = Batch(x, y, tf.ones([1]))
        return model.forward(weights, batch, True, tf.zeros([2], tf.int32)).objective

    traced = tf.function(forward, autograph=False).get_concrete_function(*specs)
    graph = traced.graph.as_graph_def()
    bodies = [graph.node, *(f.node_def for f in graph.library.function)]
    return any(node.op.startswith(("Conv", "DepthwiseConv")) for body in bodies for node in body)


class Programs:
    """Programs, and each one's executor.

    Attributes:
      traced: Key of a program → the program.
      executors: The same → TensorFlow's name of what runs it.
      on_gpu: Whether they are for a GPU.
      at_least: Blocks that a cohort is split into where there is work for them.
    """

    def __init__(self):
        """Initialises without programs."""
        self.traced, self.executors = {}, {}
        self.on_gpu = bool(tf.config.list_physical_devices("GPU"))
        self.at_least = 1 if self.on_gpu else _USUAL_BLOCKS
        self._lock = threading.Lock()

    def of(
        self, key: Any, num_blocks: int, trace: Callable
    ) -> tf.types.experimental.ConcreteFunction:
        """Returns a program.

        Args:
          key: What tells it from others.
          num_blocks: Blocks that its clients make.
          trace: Makes it, where it is not there yet.
        """
        with self._lock:
            if key not in self.traced:
                # The operations of one block follow one another. To hand them from thread to
                # thread takes a quarter of a small model's round and of its processor's time.
                executor = "" if num_blocks > 1 or self.on_gpu else "SINGLE_THREADED_EXECUTOR"
                with graph_calls.calling(executor):
                    program = trace()
                if executor and not graph_calls.runs_in_one_thread(program):
                    executor = ""
                    with graph_calls.calling(executor):
                        program = trace()
                self.traced[key], self.executors[key] = program, executor
            return self.traced[key]


# So that what `runtimes.choose` has traced to see whether it can be is what the run then runs.
_programs: MutableMapping[Any, Programs] = weakref.WeakKeyDictionary()


class VectorizedProcess:
    """A method's process whose rounds take the whole cohort at once.

    Has what the loop needs of a `tff_algos.process.Process` or `StatefulProcess`. Its states are
    those of the process itself, save that they hold tensors instead of arrays.
    """

    def __init__(self, process, at_least: int | None = None):
        """Initialises the process.

        Args:
          process: A `tff_algos.process.Process`.
          at_least: Blocks of a cohort where there is work for them, see `prepare`; `None` is as
            many as is best on a CPU or GPU. It is seen in the last bits of clients' results.
        """
        self._process = process
        self._programs = _programs.setdefault(process, Programs())
        self._at_least = self._programs.at_least if at_least is None else at_least

    def initialize(self):
        """Returns the state before the first round."""
        return self._process.initialize()

    def get_model_weights(self, state) -> tff.learning.models.ModelWeights:
        """Returns the model's weights in a state."""
        return self._process.get_model_weights(state)

    def set_model_weights(self, state, weights):
        """Returns the state with other model weights."""
        return self._process.set_model_weights(state, weights)

    def prepare(self, clients: Sequence[ClientData]) -> Cohort:
        """Pads and stacks a round's client data, which another thread may do ahead of the round.

        Raises:
          ValueError: If there is no client, or the method can not work with these.
        """
        self._process.check_clients(clients)
        return prepare(clients, self._process.model, self._at_least)

    def next(
        self,
        state,
        clients: Sequence[ClientData] | Cohort,
        client_states: Sequence[Any] | None = None,
    ):
        """Runs a round.

        Args:
          state: The state before it.
          clients: Data of each client, or what `prepare` made of it.
          client_states: `ClientState` of each client, if the method's clients keep anything.

        Returns:
          A `tff.learning.templates.LearningProcessOutput`, or with client state a
          `tff_algos.process.RoundOutput`.

        Raises:
          NotVectorizable: If an operation has no form over several clients.
          TypeError: If the state holds arrays of other types or shapes than the method's.
          ValueError: If there is no client, or the states are of another number of clients.
        """
        if not isinstance(clients, Cohort):
            clients = self.prepare(of_model(clients, self._process.model, int(state.round_num)))
        cohort = clients
        program = self.program(len(cohort.blocks))
        given = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(state)]
        # The state after the round has as many.
        number = len(given)
        _check_state(given, program)
        given += tf.nest.flatten(cohort)
        if client_states is not None:
            given += tf.nest.flatten(stack_states(client_states, cohort))
        with graph_calls.calling(self._programs.executors[len(cohort.blocks)]):
            # Binding arguments by signature would take longer than a small model's step does.
            outputs = compat.flat(program._inference_function)(*given)
        # Unlike `numpy()`, without a copy.
        outputs[number:] = map(np.asarray, outputs[number:])
        after, metrics, *states_after = tf.nest.pack_sequence_as(
            program.structured_outputs, outputs
        )
        if not states_after:
            return tff.learning.templates.LearningProcessOutput(after, metrics)
        return process_lib.RoundOutput(after, metrics, process_lib.StackedStates(states_after[0]))

    def program(self, num_blocks: int = 1) -> tf.types.experimental.ConcreteFunction:
        """Returns the program of rounds whose clients make this number of blocks.

        Raises:
          NotVectorizable: If an operation has no form over several clients.
        """
        return self._programs.of(num_blocks, num_blocks, lambda: self._trace(num_blocks))

    def _trace(self, num_blocks):
        method = self._process.method
        initial = tf.function(method.initialize, autograph=False).get_concrete_function()
        given = [
            tf.nest.map_structure(
                lambda t: tf.TensorSpec(t.shape, t.dtype), initial.structured_outputs
            ),
            Cohort(
                (_block_spec(self._process.model),) * num_blocks, tf.TensorSpec([None], tf.int32)
            ),
        ]
        if method.client_state is not None:
            of_block = tf.nest.map_structure(
                lambda t: tf.TensorSpec([None, *t.shape], t.dtype),
                process_lib.client_state_spec(method),
            )
            given.append((of_block,) * num_blocks)

        def a_round(*flat):
            state, cohort, *client_states = tf.nest.pack_sequence_as(given, flat)
            sizes = [tf.shape(b.index)[0] for b in cohort.blocks]
            federation = VectorizedFederation(sizes, cohort.places if num_blocks > 1 else None)
            at_clients = map(_AtClients, (cohort.blocks, *client_states))
            state, metrics, *states_after = method.next_round(federation, state, *at_clients)
            return state, metrics, *map(federation.stack, states_after)

        traced = tf.function(a_round, autograph=False)
        program = traced.get_concrete_function(*tf.nest.flatten(given))
        assert not program.captured_inputs, "next gives a program its own inputs only"
        return program


class VectorizedContext(tff_context.InProcessContext):
    """Runs TFF computations in this process, and rounds of methods over the whole cohort at once.

    A round is only run so by what `bind` returns: to TFF, a computation is a computation.
    """

    def bind(self, process) -> VectorizedProcess:
        """Returns a process whose rounds take the whole cohort at once.

        Raises:
          NotVectorizable: If the process does not tell its method.
        """
        if not hasattr(process, "method"):
            raise NotVectorizable(
                "Only processes of tff_algos.build can be run over a whole cohort at once. "
                "Use --runtime=tff."
            )
        return VectorizedProcess(process)
