"""Batching of a cohort: blocks of similar clients, stacked, and primitives over a whole block.

`StackedFederation` runs a method's own client functions, vectorised over all clients of a block.

Clients are grouped into blocks of similar length. Within a block they are padded to the longest,
with steps and examples that a mask excludes. Programs do not fix the shapes of data. So one program
for each number of blocks, at most `MAX_BLOCKS`, serves all rounds. The blocks depend on the
clients' sizes alone, so a resumed run gives the same results.

Nothing falls back to a loop over clients: `NotVectorizable` names an operation that would need one.
"""

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from simulation.device import eager_tensors
from simulation.engine import batched_ops
from simulation.engine.batched_ops import NotVectorizable as NotVectorizable
from tasks.layers import vectorizable
from tff_algos import client
from tff_algos.client_data import Batch, ClientData, Gathered, arrays
from tff_algos.model import Model
from tff_suite import graph_defs, memory

MAX_BLOCKS = 8

# The overhead of a block's step equals the work of about this number of further clients.
_STEP_OVERHEAD = 8.0

# For steps with fewer multiplications, another thread does not pay off; measured with softmax
# regression, where a second block costs half as much as the first.
_WORTH_A_THREAD = 1 << 22


def blocks_of(
    steps: Sequence[int], batch_sizes: Sequence[int], at_least: int = 1
) -> list[list[int]]:
    """Groups clients into blocks such that padding costs least.

    Args:
      steps: Local steps of each client.
      batch_sizes: Minibatch size of each client, padding included.
      at_least: Smallest number of blocks, if there are as many clients, since blocks run at the
        same time; at most `MAX_BLOCKS`.

    Returns:
      At most `MAX_BLOCKS` lists of positions in the cohort, each ascending. Together they contain
      all positions.
    """
    sizes = sorted(set(zip(steps, batch_sizes, strict=True)))
    members = {size: [] for size in sizes}
    for place, size in enumerate(zip(steps, batch_sizes, strict=True)):
        members[size].append(place)
    cost = _costs(np.array(sizes), np.array([len(members[size]) for size in sizes]))
    # least[j]: cost of the first j sizes in as many blocks as `starts` has rows. `starts` holds the
    # start of the last of these blocks.
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


class Stack(NamedTuple):
    """Data of several clients, stacked for a program.

    Attributes:
      blocks: `ClientData` of several clients each, all fields with a first dimension for them.
      places: int32 `[K]`: where in the blocks, one after the other, each client of the cohort is.
      sizes: Number of clients of each block, int32 scalars.
    """

    blocks: tuple[ClientData, ...]
    places: tf.Tensor
    sizes: tuple[tf.Tensor, ...]


_MASK = tf.TensorSpec([None], tf.float32)
# Fields that a client has once and not for every step.
_ONCE = {
    "steps_per_epoch": np.int32,
    "num_examples": np.int32,
    "participates": np.float32,
    "seed": np.int32,
    "index": np.int32,
}


def prepare(clients: Sequence[ClientData], model: Model, at_least: int = 1) -> Stack:
    """Pads and stacks the data of a round's clients.

    Args:
      clients: Data of each client: NumPy arrays or objects convertible to these, or the result of
        `tff_algos.batch_cohort`.
      model: The model.
      at_least: Smallest number of blocks if there is enough work, see `blocks_of`.

    Raises:
      ValueError: If `clients` is empty.
      TypeError: If a client's data does not have the types and shapes of the model.
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
    sizes = (eager_tensors.adopt(np.array(len(block), np.int32)) for block in blocks)
    return Stack(stacked, eager_tensors.adopt(places), tuple(sizes))


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
    """Returns a client's data as arrays, except fields that `_stack` converts more efficiently."""
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
    size = tuple(map(int, np.max([c.mask.shape for c in clients], axis=0)))
    filled = [k for k, c in enumerate(clients) if c.mask.size]
    short = [k for k, c in enumerate(clients) if c.mask.shape != size]
    padded = {}
    for name in ("x", "y", "mask"):
        of_clients = [getattr(c, name) for c in clients]
        shape = (len(clients), *size, *of_clients[0].shape[2:])
        block = eager_tensors.empty(shape, of_clients[0].dtype)
        for k, values in enumerate(of_clients):
            place = block[k, : values.shape[0], : values.shape[1]]
            if type(values) is Gathered:
                values.into(place)
            else:
                place[:] = values
        # The mask excludes padding, but the model runs on it as well. So padding consists of valid
        # examples: the client's own, or another's if it has none.
        for k in short if filled else ():
            steps, width = of_clients[k].shape[:2]
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


class StackedLeaves(Sequence):
    """What several clients keep, stacked: entry k is the list of client k's leaves.

    Attributes:
      leaves: The arrays `[clients, ...]`, which must not be changed.
    """

    def __init__(self, leaves: Iterable[np.ndarray]):
        """Initialises from the arrays, at least one."""
        self.leaves = list(leaves)

    def __len__(self) -> int:
        return len(self.leaves[0])

    def __getitem__(self, k: Any) -> Any:
        return [leaf[k] for leaf in self.leaves]

    @property
    def nbytes(self) -> int:
        """Their size."""
        return memory.nbytes(self.leaves)


def stack_states(states: Sequence[Sequence[np.ndarray]], cohort: Stack) -> list[tf.Tensor]:
    """Returns the stacked leaves of clients' states, of one block after the other.

    Args:
      states: The leaves of each client's state, best `StackedLeaves`.
      cohort: The clients.
    """
    if not isinstance(states, StackedLeaves):
        states = StackedLeaves([np.stack(values) for values in zip(*states, strict=True)])
    if len(cohort.blocks) == 1:
        return list(map(eager_tensors.adopt, states.leaves))
    in_blocks = np.argsort(cohort.places.numpy())
    ends = np.cumsum([size.numpy() for size in cohort.sizes])
    return [
        eager_tensors.adopt(leaf[members])
        for members in np.split(in_blocks, ends[:-1])
        for leaf in states.leaves
    ]


def field_of(value: Any, key: str | int) -> Any:
    """Returns a part of a structure by name or position, as TFF's values allow."""
    if isinstance(value, Mapping):
        return value[key] if isinstance(key, str) else list(value.values())[key]
    return getattr(value, key) if isinstance(key, str) else value[key]


class _Placed:
    """A value at clients; fields are selected by name or position, as TFF's values allow."""

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


def at_clients(blocks: Sequence[Any]) -> _AtClients:
    """Returns a value at clients from structures of tensors `[clients, ...]`, one per block."""
    return _AtClients(blocks)


def blocks_at(value: Any) -> tuple:
    """Returns the structures of a value at clients, one for each block."""
    return value._blocks


class StackedFederation:
    """The primitives of a round over blocks of stacked clients; for use while a graph is built."""

    def __init__(
        self,
        num_clients: Sequence[tf.Tensor],
        places: tf.Tensor | None,
        vectorised: MutableMapping[Any, Callable] | None = None,
    ):
        """Initialises the primitives of a round.

        Args:
          num_clients: Number of clients of each block, int32 scalars.
          places: int32 `[K]`: where in the blocks, one after the other, each client of the cohort
            is. `None` if the blocks are in the cohort's order.
          vectorised: Client function → its form over a block, which this adds to. Graphs of other
            numbers of blocks can use the same ones.
        """
        self._num_clients = tuple(num_clients)
        self._places = places
        self._vectorised = {} if vectorised is None else vectorised

    def broadcast(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.broadcast`."""
        return _Broadcast(value)

    def map_clients(self, fn: Callable, *values: Any) -> Any:
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
        def over_new_block(num_clients, arguments):
            return over_clients(fn, arguments, stacked, num_clients)

        over_block = self._vectorised.setdefault((fn, tuple(stacked)), over_new_block)
        return _AtClients(over_block(n, of_block(b)) for b, n in enumerate(self._num_clients))

    def weighted_sum(self, value: Any, weight: Any) -> Any:
        """Returns numerator and denominator of a mean: sums of weight · value, and of weight."""
        weights = self._of_cohort(weight)

        def weighed(v):
            w = tf.reshape(weights, [-1] + [1] * (v.shape.rank - 1))
            return tf.reduce_sum(w * v, 0)

        return tf.nest.map_structure(weighed, self._of_cohort(value)), tf.reduce_sum(weights)

    def sum(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.sum`."""
        return tf.nest.map_structure(lambda v: tf.reduce_sum(v, 0), self._of_cohort(value))

    def max(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.max`."""
        return tf.nest.map_structure(lambda v: tf.reduce_max(v, 0), self._of_cohort(value))

    def stack(self, value: Any) -> Any:
        """As `tff_algos.method.Federation.stack`."""
        return self._of_cohort(value)

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


def over_clients(
    fn: Callable, arguments: Any, stacked: Sequence[bool], num_clients: tf.Tensor
) -> Any:
    """Applies a client's function to all clients of a block.

    For use while a graph is built.

    Args:
      fn: The function.
      arguments: Its arguments, structures of tensors; values of clients are `[K, ...]`.
      stacked: For each tensor of the arguments, whether it is a value of clients.
      num_clients: K, int32 scalar.

    Raises:
      NotVectorizable: If an operation of the function cannot be vectorised over clients.
    """
    flat = tf.nest.flatten(arguments)
    specs = [
        tf.TensorSpec(t.shape[1:] if has_clients else t.shape, t.dtype)
        for t, has_clients in zip(flat, stacked, strict=True)
    ]
    fn = fresh(fn)

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


def fresh(fn: Callable) -> Callable:
    """Returns a method's function without the traces that other callers have cached.

    These would be for a single client, or for another of TensorFlow's executors.
    """
    clone = getattr(fn, "_clone", None)
    return fn if clone is None else clone(None)


def has_convolution(model: Model) -> bool:
    """Returns whether a model's forward pass includes a convolution."""
    specs = [tf.TensorSpec([1, *s.shape[1:]], s.dtype) for s in (model.x_spec, model.y_spec)]

    def forward(x, y):
        weights = tuple(map(tf.constant, model.initial_weights))
        batch = Batch(x, y, tf.ones([1]))
        return model.forward(weights, batch, True, tf.zeros([2], tf.int32)).objective

    traced = tf.function(forward, autograph=False).get_concrete_function(*specs)
    nodes = graph_defs.nodes(traced.graph.as_graph_def())
    return any(node.op.startswith(("Conv", "DepthwiseConv")) for node in nodes)
