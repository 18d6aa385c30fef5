"""A TFF execution context that runs computations with this process's TensorFlow.

TFF's own runtime sends every computation to a C++ worker that knows no GPU. `InProcessContext`
compiles a computation with the same compiler as that runtime (`tff.backends.native`), interprets
what the compiler leaves, a handful of federated intrinsics over TensorFlow graphs, and calls each
graph as an eager TensorFlow function. So a computation runs wherever TensorFlow runs.

Guarantees:
  * Clients of one `federated_map` run on a thread pool; sums and aggregates fold in cohort order,
    each client's part as soon as it is its turn where nothing else needs it. So the number of
    threads never changes a result.
  * A graph is a pure function of its arguments: each call creates its own variables and lookup
    tables, which clients, calls and computations never share. A stateful random operation
    (`tf.random.uniform`, as opposed to its stateless form) is as undefined as in TFF's worker.
  * A computation none of whose arguments has an entry for each client has no clients, as in TFF.
    Aggregates over no clients are their zero value.
  * Results are what TFF's runtime returns: NumPy arrays and scalars (`bytes` for a string), in the
    Python containers of the computation's type, `tf.data.Dataset` for a sequence. They never share
    memory with an argument. `tf.Tensor` arguments are used as they are, without a copy.

`tf.data.Dataset.reduce` within a graph sets its function up anew in every call, some 40 ms for each
client. TFF's learning algorithms use it by default; they run 20 times faster here with
`loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR`.

Inside the interpreter a value is: an eager tensor, or at a client an array of the caller's, so that
only the clients at work hold a copy of their data; the variant tensor of a data set; a `tuple` for
a structure, by position; a `list` with an entry for each client of the cohort; an `_AllEqual` for
what is the same at all clients; a one-argument callable for a function. A server-placed value is
just the value.
"""

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import os
import threading
import typing
import weakref
from collections.abc import Callable, Mapping

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import computation_pb2
from tensorflow_federated.python.common_libs import py_typecheck
from tensorflow_federated.python.core.backends.native import compiler
from tensorflow_federated.python.core.impl.compiler import array
from tensorflow_federated.python.core.impl.executors import value_serialization
from tensorflow_federated.python.core.impl.types import computation_types, type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from simulation.runtimes import eager_tensors, graph_calls
from tff_algos.client_data import Gathered
from tff_algos.method import APPEND_ROWS

# `VarHandleOp` makes a fresh variable per execution only under this name, which TensorFlow calls
# `ResourceHandle::ANONYMOUS_NAME`.
_ANONYMOUS_VARIABLE = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_ANONYMOUS_TABLES = {
    "HashTableV2": "AnonymousHashTable",
    "MutableHashTableV2": "AnonymousMutableHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
}
# Not a name that TFF can give a reference.
_NUM_CLIENTS = "<number of clients>"
_MAX_COMPILED_COMPUTATIONS = 128
_ARRAY_TYPES = typing.get_args(array.Array)
# Of numbers these become tensors only when, and where, a graph takes them.
_ARRAYS = (np.ndarray, Gathered)


class _AllEqual:
    """A value that is the same at every client."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def _per_client(value, num_clients: int) -> list:
    return [value.value] * num_clients if type(value) is _AllEqual else value


# TensorFlow graphs.


def _binding_tensor_names(binding) -> list[str]:
    """Names of the tensors of a TFF binding, in the order of a flattened value."""
    kind = binding.WhichOneof("binding")
    if kind == "tensor":
        return [binding.tensor.tensor_name]
    if kind == "sequence":
        return [binding.sequence.variant_tensor_name]
    return [name for e in binding.struct.element for name in _binding_tensor_names(e)]


def _flatten(value, flat: list):
    if type(value) is tuple:
        for element in value:
            _flatten(element, flat)
    else:
        flat.append(value)


def _assembler(binding) -> Callable:
    """Returns a function from an iterator over flat tensors to the value of a TFF binding."""
    if binding.WhichOneof("binding") != "struct":
        return next
    elements = [_assembler(e) for e in binding.struct.element]
    return lambda tensors: tuple([element(tensors) for element in elements])


def _rename_functions(graph_def, suffix: str):
    """Appends `suffix` to the name of every function that `graph_def` defines.

    Functions of all graphs live in one name space of the eager runtime, and TFF's graphs give
    different functions the same name.
    """
    names = {f.signature.name: f.signature.name + suffix for f in graph_def.library.function}

    def rename_attributes(attributes):
        for attribute in attributes.values():
            kind = attribute.WhichOneof("value")
            if kind == "func":
                attribute.func.name = names.get(attribute.func.name, attribute.func.name)
            elif kind == "list":
                for function in attribute.list.func:
                    function.name = names.get(function.name, function.name)
            elif kind == "s" and (new := names.get(attribute.s.decode("utf-8", "replace"))):
                attribute.s = new.encode()

    def rename_nodes(nodes):
        for node in nodes:
            node.op = names.get(node.op, node.op)
            rename_attributes(node.attr)

    rename_nodes(graph_def.node)
    for function in graph_def.library.function:
        function.signature.name = names[function.signature.name]
        rename_nodes(function.node_def)
        rename_attributes(function.attr)
    for gradient in graph_def.library.gradient:
        gradient.function_name = names.get(gradient.function_name, gradient.function_name)
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)


def _make_resources_anonymous(graph_def):
    """Makes each execution of the graph create its own variables and lookup tables.

    Raises:
      NotImplementedError: If the graph holds another resource that executions would share.
    """
    bodies = [graph_def.node] + [f.node_def for f in graph_def.library.function]
    for node in (node for body in bodies for node in body):
        if "shared_name" not in node.attr:
            continue
        if node.op == "VarHandleOp":
            node.attr["shared_name"].s = _ANONYMOUS_VARIABLE
        elif node.op in _ANONYMOUS_TABLES:
            node.op = _ANONYMOUS_TABLES[node.op]
            for name in ("container", "shared_name", "use_node_name_sharing"):
                node.attr.pop(name, None)
        else:
            raise NotImplementedError(
                f"The TensorFlow graph of this TFF computation uses a {node.op} ({node.name}), "
                "which clients would share. The in-process runtime can not run it."
            )


def _initialize_first(graph_def, initialize_op: str):
    """Makes everything that uses what `initialize_op` initialises wait for it.

    TFF's worker runs the initialiser in a session call of its own. Here one call does both, so
    every node outside the initialiser that takes an input from inside it must wait.
    """
    nodes = {node.name: node for node in graph_def.node}

    def inputs(node):
        return (name.lstrip("^").split(":")[0] for name in node.input)

    initializer, pending = set(), [initialize_op]
    while pending:
        name = pending.pop()
        if name not in initializer:
            initializer.add(name)
            pending.extend(inputs(nodes[name]))
    for node in graph_def.node:
        if node.name not in initializer and not initializer.isdisjoint(inputs(node)):
            node.input.append("^" + initialize_op)


def _appends_rows(graph_def, fetches: list[str]) -> bool:
    """Whether all that a graph gives is rows with those of one more client appended."""
    ops = {node.name: node for node in graph_def.node}

    def source(tensor):
        node = ops[tensor.split(":")[0]]
        return source(node.input[0]) if node.op == "Identity" else node

    return bool(fetches) and all(
        node.op == "ConcatV2" and node.name.split("/")[-1].startswith(APPEND_ROWS)
        for node in map(source, fetches)
    )


class _Graph:
    """A TensorFlow graph of a TFF computation, callable with a value and returning a value.

    Attributes:
      appends_rows: Whether it is what `tff_algos.method.TffFederation.stack` does for each client.
    """

    def __init__(self, tensorflow_pb, digest: str):
        graph_def = tf.compat.v1.GraphDef.FromString(tensorflow_pb.graph_def.value)
        _rename_functions(graph_def, "_" + digest[:32])
        _make_resources_anonymous(graph_def)
        if tensorflow_pb.initialize_op:
            _initialize_first(graph_def, tensorflow_pb.initialize_op)
        wrapped = tf.compat.v1.wrap_function(
            lambda: tf.compat.v1.import_graph_def(graph_def, name=""), []
        )
        feeds = _binding_tensor_names(tensorflow_pb.parameter)
        if tensorflow_pb.session_token_tensor_name:
            feeds.append(tensorflow_pb.session_token_tensor_name)
            self._extra_arguments = [tf.constant(b"")]
        else:
            self._extra_arguments = []
        fetches = _binding_tensor_names(tensorflow_pb.result)
        self.appends_rows = _appends_rows(graph_def, fetches)
        self._assemble = _assembler(tensorflow_pb.result)
        self._function = wrapped.prune(feeds, fetches) if fetches else None

    def __call__(self, argument):
        if self._function is None:
            return self._assemble(iter(()))
        flat = []
        if argument is not None:
            _flatten(argument, flat)
            flat = [eager_tensors.copy_of(x) if type(x) in _ARRAYS else x for x in flat]
        with graph_calls.calling():
            # Binding arguments by signature would take longer than a small graph does.
            outputs = self._function._inference_function(*flat, *self._extra_arguments)
        return self._assemble(map(eager_tensors.lean, outputs))


_graphs_lock = threading.Lock()
_graphs = weakref.WeakValueDictionary()


def _load_graph(tensorflow_pb) -> _Graph:
    """Returns the `_Graph` of a `computation_pb2.TensorFlow`, one for all equal ones in use."""
    key = computation_pb2.TensorFlow()
    key.CopyFrom(tensorflow_pb)
    key.ClearField("cache_key")
    digest = hashlib.sha256(key.SerializeToString(deterministic=True)).hexdigest()
    with _graphs_lock:
        graph = _graphs.get(digest)
        if graph is None:
            graph = _graphs[digest] = _Graph(tensorflow_pb, digest)
        return graph


def _to_native_form(comp):
    """Compiles as `tff.backends.native.desugar_and_transform_to_native`, but leaves graphs alone.

    TFF has TensorFlow rewrite the graphs here, which TensorFlow does anyway when it first runs one.
    The memory optimizer would write temporary variables into them, so that several threads could
    not call one at once (see `graph_calls`); functions that are marked to stay apart would be
    inlined (see `tasks/layers/pooling.py`); and a loop whose function is not inlined can come out
    as a graph that cannot be imported.
    """
    block, _ = compiler.tensorflow_tree_transformations.replace_intrinsics_with_bodies(
        comp.to_building_block()
    )
    desugared = compiler.computation_impl.ConcreteComputation(
        computation_proto=block.proto, context_stack=tff.framework.get_context_stack()
    )
    return compiler.transform_to_native_form(desugared)


def _only_called(function):
    """Returns the compiled computation f of `x -> let y = f(x) in y`, as the compiler writes f."""
    blocks = tff.framework
    body = function.result
    if not isinstance(body, blocks.Block) or len(body.locals) != 1:
        return None
    name, call = body.locals[0]
    called = (
        isinstance(call, blocks.Call)
        and isinstance(call.function, blocks.CompiledComputation)
        and isinstance(call.argument, blocks.Reference)
        and call.argument.name == function.parameter_name
        and isinstance(body.result, blocks.Reference)
        and body.result.name == name
    )
    return call.function if called else None


# Arguments and results.


def _tensor_ingester(type_spec: tff.TensorType, where: str, keep_arrays: bool) -> Callable:
    np_dtype = type_spec.dtype.type
    dtype = tf.as_dtype(np_dtype)
    dims = type_spec.shape
    is_number = np.dtype(np_dtype).kind in "biufc"

    def fail(found):
        raise TypeError(f"{where} must be a tensor of type {type_spec}, found {found}.")

    def ingest_array(value):
        return value if keep_arrays else eager_tensors.copy_of(value)

    def ingest_value(value):
        if type(value) in _ARRAYS and value.dtype == np_dtype:
            return ingest_array(value)
        if isinstance(value, Gathered):
            value = np.asarray(value)
        if isinstance(value, tf.Variable):
            value = eager_tensors.lean(value.read_value())
        if tf.is_tensor(value):
            if value.dtype != dtype:
                fail(f"dtype {value.dtype.name}")
            return value
        if isinstance(value, (list, tuple)):
            if not all(array.is_compatible_dtype(x, np_dtype) for x in tf.nest.flatten(value)):
                fail(f"{value!r:.200}")
            value = np.asarray(value, np_dtype)
        if not isinstance(value, _ARRAY_TYPES):
            fail(type(value))
        if not array.is_compatible_dtype(value, np_dtype):
            fail(f"dtype {getattr(value, 'dtype', type(value).__name__)}")
        if is_number:
            return ingest_array(np.asarray(value, np_dtype))
        return eager_tensors.lean(tf.constant(value, dtype))

    def ingest(value, cohort_sizes):
        del cohort_sizes
        ingested = ingest_value(value)
        if dims is not None:
            found = list(ingested.shape)
            if len(found) != len(dims) or any(
                d not in (None, f) for d, f in zip(dims, found, strict=True)
            ):
                fail(f"shape {found}")
        return ingested

    return ingest


def _struct_ingester(type_spec: tff.StructType, where: str, keep_arrays: bool) -> Callable:
    elements = list(tff.structure.iter_elements(type_spec))
    names = [name for name, _ in elements]
    ingesters = [
        _ingester(element, f"{where}.{name}" if name else f"{where}[{i}]", keep_arrays)
        for i, (name, element) in enumerate(elements)
    ]

    def fail(value):
        raise TypeError(f"{where} must be a structure of type {type_spec}, found {value!r:.200}.")

    def ingest(value, cohort_sizes):
        if isinstance(value, tff.structure.Struct):
            found = tff.structure.name_list_with_nones(value)
            if len(found) != len(names) or any(
                f not in (n, None) for f, n in zip(found, names, strict=True)
            ):
                fail(value)
        elif isinstance(value, Mapping):
            if len(value) != len(names) or any(name not in value for name in names):
                fail(value)
            value = [value[name] for name in names]
        elif attrs.has(type(value)):
            found = [field.name for field in attrs.fields(type(value))]
            if found != names:
                fail(value)
            value = [getattr(value, name) for name in names]
        elif isinstance(value, (list, tuple)):
            found = getattr(value, "_fields", None)
            if len(value) != len(names) or (
                found is not None and any(names) and list(found) != names
            ):
                fail(value)
        else:
            fail(value)
        return tuple([ingest(x, cohort_sizes) for ingest, x in zip(ingesters, value, strict=True)])

    return ingest


def _sequence_ingester(type_spec: tff.SequenceType, where: str) -> Callable:
    accepted_specs = collections.deque(maxlen=1)

    def ingest(value, cohort_sizes):
        del cohort_sizes
        if isinstance(value, list):
            value = tensorflow_utils.make_data_set_from_elements(None, value, type_spec.element)
        if not isinstance(value, tf.data.Dataset):
            raise TypeError(
                f"{where} must be a tf.data.Dataset of {type_spec}, found {type(value)}."
            )
        # Clients' data sets have equal specs, and a comparison is far cheaper than a TFF type.
        if value.element_spec not in accepted_specs:
            element = computation_types.tensorflow_to_type(value.element_spec)
            value_serialization._check_container_compat_with_tf_nest(element)
            if not type_spec.is_assignable_from(tff.SequenceType(element)):
                raise TypeError(
                    f"{where} must be a tf.data.Dataset of {type_spec}, found elements of type "
                    f"{element}."
                )
            accepted_specs.append(value.element_spec)
        return tf.data.experimental.to_variant(value)

    return ingest


def _federated_ingester(type_spec: tff.FederatedType, where: str) -> Callable:
    if type_spec.placement is tff.SERVER:
        return _ingester(type_spec.member, where)
    if type_spec.all_equal:
        ingest_member = _ingester(type_spec.member, where)
        return lambda value, cohort_sizes: _AllEqual(ingest_member(value, cohort_sizes))

    ingest_member = _ingester(type_spec.member, where, keep_arrays=True)

    def ingest(value, cohort_sizes):
        if not isinstance(value, (list, tuple)):
            raise TypeError(
                f"{where} must be a list with an entry for each client, of type {type_spec}; found "
                f"{type(value)}."
            )
        cohort_sizes.add(len(value))
        return [ingest_member(member, cohort_sizes) for member in value]

    return ingest


def _ingester(type_spec: tff.Type, where: str, keep_arrays: bool = False) -> Callable:
    """Returns a function `(value, cohort_sizes)` from a user's value to the interpreter's.

    It adds the number of clients of every client-placed value to the set `cohort_sizes`, and raises
    a `TypeError` for a value that is not of `type_spec`; `where` is what messages call the value.
    With `keep_arrays`, arrays of numbers stay arrays, which become tensors when a graph takes them.
    """
    if isinstance(type_spec, tff.TensorType):
        return _tensor_ingester(type_spec, where, keep_arrays)
    if isinstance(type_spec, tff.StructType):
        return _struct_ingester(type_spec, where, keep_arrays)
    if isinstance(type_spec, tff.SequenceType):
        return _sequence_ingester(type_spec, where)
    if isinstance(type_spec, tff.FederatedType):
        return _federated_ingester(type_spec, where)
    raise NotImplementedError(f"{where} of type {type_spec} can not be passed to a computation.")


def _struct_egester(type_spec: tff.StructType) -> Callable:
    elements = list(tff.structure.iter_elements(type_spec))
    names = [name for name, _ in elements]
    egesters = [_egester(element) for _, element in elements]
    container = type_spec.python_container
    if any(names) and not all(names):
        raise ValueError(f"No Python container holds both named and unnamed elements: {type_spec}.")
    if container is None:
        container = collections.OrderedDict if any(names) else tuple

    def values(value):
        return [egest(x) for egest, x in zip(egesters, value, strict=True)]

    if not any(names):
        return lambda value: container(values(value))
    if isinstance(container, py_typecheck.SupportsNamedTuple) or attrs.has(container):
        return lambda value: container(**dict(zip(names, values(value), strict=True)))
    return lambda value: container(zip(names, values(value), strict=True))


def _sequence_egester(type_spec: tff.SequenceType) -> Callable:
    spec = type_conversions.type_to_tf_structure(type_spec.element)

    def egest(value):
        dataset = tf.data.experimental.from_variant(value, spec)
        return tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(dataset, type_spec.element)

    return egest


def _egester(type_spec: tff.Type) -> Callable:
    """Returns a function from the interpreter's value of `type_spec` to the user's."""
    if isinstance(type_spec, tff.TensorType):
        return lambda v: v[()].copy() if type(v) is np.ndarray else v.numpy()
    if isinstance(type_spec, tff.StructType):
        return _struct_egester(type_spec)
    if isinstance(type_spec, tff.SequenceType):
        return _sequence_egester(type_spec)
    if isinstance(type_spec, tff.FederatedType):
        egest_member = _egester(type_spec.member)
        if type_spec.placement is tff.SERVER:
            return egest_member
        if type_spec.all_equal:
            return lambda value: egest_member(value.value)
        return lambda value: [egest_member(member) for member in value]
    raise NotImplementedError(f"A computation can not return a value of type {type_spec}.")


# The interpreter.


class InProcessContext(tff.framework.SyncContext):
    """Runs TFF computations with this process's TensorFlow.

    Attributes:
      intrinsic_calls: A `collections.Counter` of the intrinsics interpreted so far, by URI.
    """

    def __init__(self, num_threads: int | None = None):
        """Initializes the context.

        Args:
          num_threads: How many clients run at once; by default the number of cores of this process.
            Results do not depend on it.

        Raises:
          ValueError: If `num_threads` is not positive.
        """
        if num_threads is None:
            num_threads = len(os.sched_getaffinity(0))
        if num_threads < 1:
            raise ValueError(f"num_threads must be positive, found {num_threads}.")
        self.intrinsic_calls = collections.Counter()
        self._num_threads = num_threads
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads, "tff-client")
        self._lock = threading.Lock()
        # Keyed by id, since hashing a computation serialises it; each entry holds its computation,
        # so an id can not come to mean another one.
        self._compiled = collections.OrderedDict()

    def close(self):
        """Ends the threads. The context can not be used afterwards."""
        self._pool.shutdown()

    def invoke(self, comp, arg):
        """Runs `comp` on `arg`; called by TFF when a computation is called.

        Raises:
          NotImplementedError: If the computation uses what this context can not interpret.
          TypeError: If `arg` is not of the computation's parameter type.
          ValueError: If client-placed arguments name cohorts of different sizes.
        """
        ingest, run, egest = self._compile(comp)
        with tf.init_scope():
            cohort_sizes = set()
            arg = ingest(arg, cohort_sizes) if ingest else None
            if len(cohort_sizes) > 1:
                raise ValueError(
                    "Client-placed arguments are for different numbers of clients: "
                    f"{sorted(cohort_sizes)}."
                )
            env = {_NUM_CLIENTS: cohort_sizes.pop() if cohort_sizes else 0}
            return egest(run(env)(arg))

    def _compile(self, comp):
        with self._lock:
            entry = self._compiled.get(id(comp))
            if entry is not None:
                self._compiled.move_to_end(id(comp))
                return entry[1]
            # Compilation loses the Python containers, so convert by the types before it.
            parameter, result = comp.type_signature.parameter, comp.type_signature.result
            ingest = _ingester(parameter, "The argument") if parameter is not None else None
            native = _to_native_form(comp)
            compiled = (ingest, self._resolve(native.to_building_block()), _egester(result))
            self._compiled[id(comp)] = (comp, compiled)
            if len(self._compiled) > _MAX_COMPILED_COMPUTATIONS:
                self._compiled.popitem(last=False)
            return compiled

    def _resolve(self, block) -> Callable[[dict], object]:
        """Turns a building block into a function from values of references to the block's value."""
        blocks = tff.framework
        if isinstance(block, blocks.Reference):
            name = block.name
            return lambda env: env[name]
        if isinstance(block, blocks.CompiledComputation):
            return self._resolve_compiled(block)
        if isinstance(block, blocks.Intrinsic):
            return self._resolve_intrinsic(block)
        if isinstance(block, blocks.Call):
            function = self._resolve(block.function)
            if block.argument is None:
                return lambda env: function(env)(None)
            argument = self._resolve(block.argument)
            return lambda env: function(env)(argument(env))
        if isinstance(block, blocks.Selection):
            source, index = self._resolve(block.source), block.as_index()
            return lambda env: source(env)[index]
        if isinstance(block, blocks.Lambda):
            graph = _only_called(block)
            if graph is not None:
                return self._resolve_compiled(graph)
            name, result = block.parameter_name, self._resolve(block.result)
            return lambda env: lambda argument: result({**env, name: argument})
        if isinstance(block, blocks.Block):
            return self._resolve_block(block)
        if isinstance(block, blocks.Struct):
            elements = [self._resolve(element) for element in block]
            return lambda env: tuple([element(env) for element in elements])
        if isinstance(block, blocks.Literal):
            value = tf.constant(block.value, tf.as_dtype(block.type_signature.dtype.type))
            return lambda env: value
        raise NotImplementedError(
            f"The in-process runtime can not interpret a {type(block).__name__} ({block!s:.200})."
        )

    def _resolve_compiled(self, block):
        kind = block.proto.WhichOneof("computation")
        if kind != "tensorflow":
            raise NotImplementedError(
                f'The in-process runtime runs TensorFlow computations only, not one of "{kind}".'
            )
        graph = _load_graph(block.proto.tensorflow)
        return lambda env: graph

    def _resolve_block(self, block):
        streamed = _streamed(block)
        within = set().union(*(names for names, _ in streamed.values()))
        variables = []
        for name, value in block.locals:
            if name in streamed:
                variables.append((name, streamed[name][1], self._resolve(value.argument)))
            elif name not in within:
                variables.append((name, None, self._resolve(value)))
        result = self._resolve(block.result)

        def run(env):
            env = dict(env)
            with contextlib.ExitStack() as streams:
                for name, taken, value in variables:
                    if taken is None:
                        env[name] = value(env)
                        continue
                    self.intrinsic_calls["federated_map"] += 1
                    function, arguments = value(env)
                    stream = _Stream(function, _per_client(arguments, env[_NUM_CLIENTS]), taken)
                    env.update((name, stream.values(name)) for name in taken)
                    streams.callback(stream.end)
                    stream.start(self._pool, self._num_threads)
                return result(env)

        return run

    def _resolve_intrinsic(self, block):
        uri = block.uri
        handlers = {
            "federated_aggregate": self._aggregate,
            "federated_apply": self._apply,
            "federated_broadcast": self._value_at_clients,
            "federated_eval_at_clients": self._eval_at_clients,
            "federated_eval_at_server": self._eval_at_server,
            "federated_map": self._map,
            "federated_map_all_equal": self._map_all_equal,
            "federated_select": functools.partial(self._select, block.type_signature.result),
            "federated_value_at_clients": self._value_at_clients,
            "federated_value_at_server": self._identity,
            "federated_zip_at_clients": self._zip_at_clients,
            "federated_zip_at_server": self._identity,
        }
        if uri not in handlers:
            raise NotImplementedError(
                f'The in-process runtime does not know the intrinsic "{uri}". It interprets: '
                f"{', '.join(handlers)}."
            )
        handler = handlers[uri]

        def bind(env):
            self.intrinsic_calls[uri] += 1
            return functools.partial(handler, env[_NUM_CLIENTS])

        return bind

    def _identity(self, num_clients, value):
        del num_clients
        return value

    def _apply(self, num_clients, argument):
        del num_clients
        function, value = argument
        return function(value)

    def _value_at_clients(self, num_clients, value):
        del num_clients
        return _AllEqual(value)

    def _eval_at_server(self, num_clients, function):
        del num_clients
        return function(None)

    def _eval_at_clients(self, num_clients, function):
        return self._run_clients(function, [None] * num_clients)

    def _map(self, num_clients, argument):
        function, values = argument
        return self._run_clients(function, _per_client(values, num_clients))

    def _map_all_equal(self, num_clients, argument):
        del num_clients
        function, value = argument
        return _AllEqual(function(value.value))

    def _zip_at_clients(self, num_clients, value):
        if type(value) is not tuple:
            return value
        elements = [self._zip_at_clients(num_clients, element) for element in value]
        if all(type(element) is _AllEqual for element in elements):
            return _AllEqual(tuple([element.value for element in elements]))
        return list(zip(*[_per_client(e, num_clients) for e in elements], strict=True))

    def _aggregate(self, num_clients, argument):
        # The merge function is for partial sums, and there are none here.
        values, total, accumulate, _, report = argument
        values = _per_client(values, num_clients)
        # One client after the other, every step would copy all the rows before it.
        if num_clients and getattr(accumulate, "appends_rows", False):
            return report(_stack(list(values)))
        for value in values:
            total = accumulate((total, value))
            # The next one may be made now; this one is as large as the model.
            del value
        return report(total)

    def _select(self, result_type, num_clients, argument):
        keys, _, server_value, function = argument
        element_type = result_type.member.element

        def select(client_keys):
            slices = [function((server_value, key)) for key in tf.unstack(client_keys)]
            return _dataset_of(slices, element_type)

        return self._run_clients(select, _per_client(keys, num_clients))

    def _run_clients(self, function, arguments: list) -> list:
        """Returns `function` of each client's argument, in cohort order.

        Raises:
          What `function` raises for the first client, in cohort order, for which it does.
        """
        results = [None] * len(arguments)
        failures = []
        # A thread takes the next client when it is free; taking from a range's iterator is atomic.
        clients = iter(range(len(arguments)))

        def work():
            for i in clients:
                try:
                    results[i] = function(arguments[i])
                except BaseException as error:
                    failures.append((i, error))
                    collections.deque(clients, maxlen=0)

        helpers = min(self._num_threads, len(arguments)) - 1
        futures = [self._pool.submit(work) for _ in range(helpers)]
        try:
            work()
            concurrent.futures.wait(futures)
        finally:
            collections.deque(clients, maxlen=0)
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        return results


class _Stream:
    """A function of each client's argument, whose results are taken as they come, in cohort order.

    So nobody holds more results than are ahead of their turn: what a client sends back is often as
    large as the model.
    """

    def __init__(self, function: Callable, arguments: list, projections: Mapping[str, Callable]):
        """Initializes the stream.

        Args:
          function: The function.
          arguments: An argument for each client.
          projections: Name → what to take of a client's result, by a function.
        """
        self._function, self._arguments, self._projections = function, arguments, projections
        self._taken = {name: {} for name in projections}
        self._failures = {}
        self._done = [False] * len(arguments)
        self._one_more = threading.Condition()
        # A thread takes the next client when it is free; taking from a range's iterator is atomic.
        self._clients = iter(range(len(arguments)))
        self._workers = []

    def start(self, pool: concurrent.futures.Executor, num_threads: int):
        """Starts to work through the clients, on one thread less: who takes the results helps."""
        helpers = min(num_threads, len(self._arguments)) - 1
        self._workers = [pool.submit(self._work) for _ in range(helpers)]

    def end(self):
        """Starts no further client and waits for those under way."""
        collections.deque(self._clients, maxlen=0)
        concurrent.futures.wait(self._workers)

    def values(self, name: str):
        """Yields what is taken under a name, once, in cohort order.

        Raises:
          What the function raised for a client when it is that client's turn.
        """
        taken = self._taken[name]
        for i in range(len(self._done)):
            while not self._done[i] and self._work_on_next():
                pass
            with self._one_more:
                self._one_more.wait_for(lambda: self._done[i])  # noqa: B023
            if i in self._failures:
                raise self._failures[i]
            # No name may hold it while the caller is at work on it.
            yield taken.pop(i)

    def _work(self):
        while self._work_on_next():
            pass

    def _work_on_next(self) -> bool:
        """Works on the next client; returns whether there was one."""
        i = next(self._clients, None)
        if i is None:
            return False
        try:
            result = self._function(self._arguments[i])
            for name, projection in self._projections.items():
                self._taken[name][i] = projection(result)
            del result
        except BaseException as error:
            self._failures[i] = error
            collections.deque(self._clients, maxlen=0)
        with self._one_more:
            self._done[i] = True
            self._one_more.notify_all()
        return True


def _streamed(block) -> dict[str, tuple[set[str], dict[str, Callable]]]:
    """Finds maps over clients whose results go into aggregates of the same block and nowhere else.

    Args:
      block: A `tff.framework.Block`.

    Returns:
      Name of the map → names of its results and of all parts of them, and for each name that an
      aggregate takes, that as a function of a map's result.
    """
    found = {}
    for name, value in block.locals:
        if (
            _called(value, "federated_map")
            and isinstance(value.argument, tff.framework.Struct)
            and not _is_projection(value.argument[0])
        ):
            taken = _taken_by_aggregates(block, name)
            if taken is not None:
                found[name] = taken
    return found


def _taken_by_aggregates(block, map_name: str) -> tuple[set[str], dict[str, Callable]] | None:
    """Returns what `_streamed` does for one map, `None` if something else takes of its results."""
    of_result = {map_name: lambda result: result}
    taken = {}
    for name, value in block.locals:
        used = _references(value) & of_result.keys()
        if not used:
            continue
        source = value.argument if isinstance(value, tff.framework.Call) else None
        parts = list(source) if isinstance(source, tff.framework.Struct) else []
        if (
            _called(value, "federated_map")
            and _is_projection(parts[0])
            and isinstance(parts[1], tff.framework.Reference)
        ):
            of_result[name] = _composed(_projection(parts[0].result), of_result[parts[1].name])
        elif _called(value, "federated_zip_at_clients") and all(
            isinstance(p, tff.framework.Reference) and p.name in of_result for p in parts
        ):
            of_result[name] = _joined([of_result[p.name] for p in parts])
        elif (
            _called(value, "federated_aggregate")
            and isinstance(parts[0], tff.framework.Reference)
            and used == {parts[0].name}
            and parts[0].name not in taken
            and not any(_references(p) & of_result.keys() for p in parts[1:])
        ):
            taken[parts[0].name] = of_result[parts[0].name]
        else:
            return None
    if not taken or _references(block.result) & of_result.keys():
        return None
    return set(of_result), taken


def _called(value, uri: str) -> bool:
    """Returns whether a building block is a call of an intrinsic."""
    blocks = tff.framework
    return (
        isinstance(value, blocks.Call)
        and isinstance(value.function, blocks.Intrinsic)
        and value.function.uri == uri
    )


def _references(block) -> set[str]:
    """Returns the names that a building block refers to, those it binds itself included."""
    blocks = tff.framework
    if isinstance(block, blocks.Reference):
        return {block.name}
    if isinstance(block, blocks.Call):
        parts = [block.function, block.argument]
    elif isinstance(block, blocks.Selection):
        parts = [block.source]
    elif isinstance(block, blocks.Lambda):
        parts = [block.result]
    elif isinstance(block, blocks.Block):
        parts = [value for _, value in block.locals] + [block.result]
    elif isinstance(block, blocks.Struct):
        parts = list(block)
    else:
        parts = []
    return set().union(*(_references(part) for part in parts if part is not None))


def _is_projection(function) -> bool:
    """Returns whether a building block is a function that only selects parts of its argument."""
    blocks = tff.framework

    def selects(body):
        if isinstance(body, blocks.Selection):
            return selects(body.source)
        if isinstance(body, blocks.Struct):
            return all(map(selects, body))
        return isinstance(body, blocks.Reference) and body.name == function.parameter_name

    return isinstance(function, blocks.Lambda) and selects(function.result)


def _projection(body) -> Callable:
    blocks = tff.framework
    if isinstance(body, blocks.Selection):
        source, index = _projection(body.source), body.as_index()
        return lambda argument: source(argument)[index]
    if isinstance(body, blocks.Struct):
        return _joined([_projection(part) for part in body])
    return lambda argument: argument


def _composed(second: Callable, first: Callable) -> Callable:
    return lambda argument: second(first(argument))


def _joined(functions: list[Callable]) -> Callable:
    return lambda argument: tuple([function(argument) for function in functions])


def _stack(values: list):
    """Returns clients' values of one type as a value of tensors with a row for each client."""
    if type(values[0]) is tuple:
        return tuple([_stack(elements) for elements in zip(*values, strict=True)])
    return eager_tensors.lean(tf.stack(values))


def _dataset_of(elements: list, element_type: tff.Type) -> tf.Tensor:
    """Returns the variant tensor of a data set of values of `element_type`."""
    egest = _egester(element_type)
    dataset = tensorflow_utils.make_data_set_from_elements(
        None, [egest(element) for element in elements], element_type
    )
    return tf.data.experimental.to_variant(dataset)
