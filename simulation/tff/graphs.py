"""TensorFlow graphs of TFF computations as functions of this process's TensorFlow.

A graph is a pure function of its arguments: each call creates its own variables and lookup tables,
which clients, calls and computations never share.
"""

import hashlib
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow_federated.proto.v0 import computation_pb2

from simulation.device import eager_tensors, graph_calls
from simulation.tff.values import ARRAYS
from tff_algos.method import APPEND_ROWS
from tff_suite import graph_defs
from tff_suite.compat import (
    atomic_function,
    context,  # The eager context, in which functions are registered.
    func_graph,
)

# `VarHandleOp` makes a fresh variable per execution only under this name, which TensorFlow calls
# `ResourceHandle::ANONYMOUS_NAME`.
_ANONYMOUS_VARIABLE = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_ANONYMOUS_TABLES = {
    "HashTableV2": "AnonymousHashTable",
    "MutableHashTableV2": "AnonymousMutableHashTable",
    "MutableHashTableOfTensorsV2": "AnonymousMutableHashTableOfTensors",
    "MutableDenseHashTableV2": "AnonymousMutableDenseHashTable",
}


def _binding_tensor_names(binding: Any) -> list[str]:
    """Names of the tensors of a TFF binding, in the order of a flattened value."""
    kind = binding.WhichOneof("binding")
    if kind == "tensor":
        return [binding.tensor.tensor_name]
    if kind == "sequence":
        return [binding.sequence.variant_tensor_name]
    return [name for e in binding.struct.element for name in _binding_tensor_names(e)]


def _flatten(value: Any, flat: list) -> None:
    if type(value) is tuple:
        for element in value:
            _flatten(element, flat)
    else:
        flat.append(value)


def _assembler(binding: Any) -> Callable:
    """Returns a function from an iterator over flat tensors to the value of a TFF binding."""
    if binding.WhichOneof("binding") != "struct":
        return next
    elements = [_assembler(e) for e in binding.struct.element]
    return lambda tensors: tuple([element(tensors) for element in elements])


def _rename_functions(graph_def: Any, suffix: str) -> None:
    """Appends `suffix` to the name of every function that `graph_def` defines.

    Functions of all graphs share one namespace in the eager runtime, but TFF's graphs use the same
    name for different functions.
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
      NotImplementedError: If the graph has another kind of resource, which executions would share.
    """
    for node in graph_defs.nodes(graph_def):
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
                "which clients would share. The in-process runtime does not support it."
            )


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]


def _ancestors(graph_def: Any, names: Iterable[str]) -> set[str]:
    """Returns the names of nodes and of all their ancestors."""
    nodes = {node.name: node for node in graph_def.node}
    found, pending = set(), list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(map(_node_of, nodes[name].input))
    return found


def _initialize_first(graph_def: Any, initialize_op: str) -> None:
    """Adds control dependencies on `initialize_op` to the nodes that use initialised values.

    TFF's worker runs the initialiser in a separate session call. Here one call does both, so every
    node outside the initialiser with an input from inside it must wait.
    """
    initializer = _ancestors(graph_def, [initialize_op])
    for node in graph_def.node:
        if node.name not in initializer and not initializer.isdisjoint(map(_node_of, node.input)):
            node.input.append("^" + initialize_op)


def _function_of(graph_def: Any, feeds: list[str], fetches: list[str], name: str) -> Any:
    """Returns a function from some tensors of a graph to others, with flat arguments.

    It is equivalent to `tf.compat.v1.wrap_function` with `prune`, which would create all nodes anew
    in Python.
    """
    needed = _ancestors(graph_def, map(_node_of, [*feeds, *fetches]))
    for i in reversed(range(len(graph_def.node))):
        if graph_def.node[i].name not in needed:
            del graph_def.node[i]
    graph = func_graph.FuncGraph(name, collections={})
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
    graph.inputs = [graph.get_tensor_by_name(tensor) for tensor in feeds]
    graph.outputs = [graph.get_tensor_by_name(tensor) for tensor in fetches]
    for function in graph_def.library.function:
        context.context().add_function_def(function)
    return atomic_function.from_func_graph(name, graph, {})


def _appends_rows(graph_def: Any, fetches: list[str]) -> bool:
    """Returns whether a graph only appends a client's rows to its inputs."""
    ops = {node.name: node for node in graph_def.node}

    def source(tensor):
        node = ops[tensor.split(":")[0]]
        return source(node.input[0]) if node.op == "Identity" else node

    return bool(fetches) and all(
        node.op == "ConcatV2" and node.name.split("/")[-1].startswith(APPEND_ROWS)
        for node in map(source, fetches)
    )


class Graph:
    """A TensorFlow graph of a TFF computation, callable with a value and returning a value.

    Attributes:
      appends_rows: Whether it is the step of `tff_algos.method.TffFederation.stack` for one client.
    """

    def __init__(self, tensorflow_pb: Any, digest: str):
        graph_def = tf.compat.v1.GraphDef.FromString(tensorflow_pb.graph_def.value)
        suffix = "_" + digest[:32]
        _rename_functions(graph_def, suffix)
        _make_resources_anonymous(graph_def)
        if tensorflow_pb.initialize_op:
            _initialize_first(graph_def, tensorflow_pb.initialize_op)
        feeds = _binding_tensor_names(tensorflow_pb.parameter)
        if tensorflow_pb.session_token_tensor_name:
            feeds.append(tensorflow_pb.session_token_tensor_name)
            self._extra_arguments = [tf.constant(b"")]
        else:
            self._extra_arguments = []
        fetches = _binding_tensor_names(tensorflow_pb.result)
        self.appends_rows = _appends_rows(graph_def, fetches)
        self._assemble = _assembler(tensorflow_pb.result)
        self._function = None
        if fetches:
            self._function = _function_of(graph_def, feeds, fetches, f"graph{suffix}")
            self._shared = graph_calls.Shared(self._function)

    def __call__(self, argument: Any) -> Any:
        """Returns the graph's value; `argument` is `None` for a graph without parameter."""
        if self._function is None:
            return self._assemble(iter(()))
        flat = []
        if argument is not None:
            _flatten(argument, flat)
            flat = [eager_tensors.copy_of(x) if type(x) in ARRAYS else x for x in flat]
        outputs = self._shared(*flat, *self._extra_arguments)
        return self._assemble(map(eager_tensors.lean, outputs))

    def call_in_graph(self, flat: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the value for flat arguments, within the graph that is being built."""
        if self._function is None:
            return self._assemble(iter(()))
        return self._assemble(iter(self._function(*flat, *self._extra_arguments)))


_graphs_lock = threading.Lock()
_graphs = weakref.WeakValueDictionary()


def load(tensorflow_pb: Any) -> Graph:
    """Returns the `Graph` of a `computation_pb2.TensorFlow`; equal ones share one object."""
    key = computation_pb2.TensorFlow()
    key.CopyFrom(tensorflow_pb)
    key.ClearField("cache_key")
    digest = hashlib.sha256(key.SerializeToString(deterministic=True)).hexdigest()
    with _graphs_lock:
        graph = _graphs.get(digest)
        if graph is None:
            graph = _graphs[digest] = Graph(tensorflow_pb, digest)
        return graph
