"""Finds operations of methods and models without a GPU kernel; does not need a GPU.

    python -m benchmarks.gpu_kernels --methods=fedavg,scaffold --tasks=emnist_character

Without `--methods`, or `--tasks`, all are checked; an empty list stands for none. `--precision` is
the precision of the tasks' models.

TensorFlow's GPU build lists its GPU kernels even on a machine without a GPU. This benchmark looks
up every operation in two kinds of graphs. One is a method's round, for the `tff` and the
`vectorized` runtime. The other is a task's model, with its layers in the form that they have on a
GPU. The exit code is 1 if an operation inside a loop has no GPU kernel, but an input or output on
the GPU. That tensor would be copied in every step.

Copies to or from operations on 32-bit integers are not counted. By convention, TensorFlow keeps
these on the host (shapes, loop counters, class numbers). Only a GPU can show whether kernels are
correct and fast (`benchmarks.gpu_check`).
"""

import collections
import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

from tff_suite import command_line, compat, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("methods", help="Methods, separated by commas; blank for none. Default: all.")
PARSER.flag("tasks", help="Tasks, separated by commas; blank for none. Default: all.")
PARSER.flag(
    "precision",
    "float32",
    "Precision of the tasks' models.",
    choices=("float32", "mixed_float16", "mixed_bfloat16"),
)

tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_federated as tff
from google.protobuf import message
from tensorflow_federated.proto.v0 import computation_pb2

import tasks
import tff_algos
from simulation import run_hparams, runtimes, task_models
from simulation.engine import batching, executors
from simulation.engine import process as engine
from tasks.models import losses, models
from tff_algos.client_data import Batch
from tff_suite import hparams
from tff_suite.compat import computation_impl, kernels, op_def_registry

# Where an operation runs: on the GPU; on the host, with a GPU kernel that by TensorFlow's
# convention keeps all its tensors there (32-bit integers, shapes); on the CPU, since it has no GPU
# kernel.
GPU, HOST, CPU = "GPU", "host", "CPU"

_PRECISION = [h for h in run_hparams.RUN_HPARAMS if h.name in ("precision", "loss_scale")]
_WHILE = frozenset(["StatelessWhile", "While"])
_LOOPS = _WHILE | {"For", "MapDefun"}
# Operations of loops in TensorFlow 1's control flow, which does not nest their bodies.
_FLAT_LOOPS = frozenset(["Enter", "RefEnter"])
_ALWAYS_ON_HOST = frozenset([tf.string.as_datatype_enum, tf.resource.as_datatype_enum])
# Types on the host as arguments and results of functions; kernels may have int32 on the GPU.
_ON_HOST_IN_CALLS = _ALWAYS_ON_HOST | {tf.int32.as_datatype_enum}


class Operation(NamedTuple):
    """A kind of operation in a graph.

    Attributes:
      name: TensorFlow's name for it.
      dtypes: The values of its type attributes, in order of the attributes' names.
      place: `GPU`, `HOST` or `CPU`.
      in_loop: Whether it is inside a loop.
      copies: Whether an input or output is copied between GPU and host for it.
    """

    name: str
    dtypes: tuple[str, ...]
    place: str
    in_loop: bool
    copies: bool


class _Tensor(NamedTuple):
    """An input or output of an operation: its argument, and whether it is on the host."""

    argument: str
    on_host: bool


def _types(attributes, declared) -> list[int]:
    """Returns the types that an attribute names, explicitly or by default."""
    value = attributes.get(declared.name, declared.default_value)
    return [value.type] if value.WhichOneof("value") == "type" else list(value.list.type)


def _type_attributes(node) -> dict[str, list[int]]:
    return {
        declared.name: _types(node.attr, declared)
        for declared in op_def_registry.get(node.op).attr
        if declared.type in ("type", "list(type)")
    }


@functools.cache
def _kernels_beside_a_gpu(op: str):
    return [
        kernel
        for kernel in kernels.get_registered_kernels_for_op(op).kernel
        if kernel.device_type in ("GPU", "DEFAULT")
    ]


def _kernel(node):
    """Returns an operation's GPU kernel, `None` if it has none."""
    types = _type_attributes(node)
    label = node.attr["_kernel"].s.decode() if "_kernel" in node.attr else ""
    for kernel in _kernels_beside_a_gpu(node.op):
        if kernel.label == label and all(
            set(types.get(c.name, ())) <= set(c.allowed_values.list.type) for c in kernel.constraint
        ):
            return kernel
    return None


def place(node: tf.compat.v1.NodeDef) -> str:
    """Returns where TensorFlow runs an operation on a machine with a GPU.

    Args:
      node: A node of a graph; its operation is TensorFlow's own, not a function of the graph.

    Returns:
      `GPU`, `HOST` or `CPU`.
    """
    kernel = _kernel(node)
    if kernel is None:
        return CPU
    declared = op_def_registry.get(node.op)
    arguments = {a.name for a in (*declared.input_arg, *declared.output_arg)}
    return HOST if arguments and arguments <= set(kernel.host_memory_arg) else GPU


def _tensors(node, arguments, kernel) -> list[_Tensor]:
    """Returns the tensors of an operation's arguments, inputs or outputs, in order."""
    declared = {a.name: a for a in op_def_registry.get(node.op).attr}
    in_calls = node.op in _LOOPS or any(a.type == "func" for a in declared.values())
    found = []
    for argument in arguments:
        if argument.type_list_attr:
            types = _types(node.attr, declared[argument.type_list_attr])
        else:
            of_one = argument.type or _types(node.attr, declared[argument.type_attr])[0]
            number = node.attr[argument.number_attr].i if argument.number_attr else 1
            types = [of_one] * number
        on_host = kernel is None or argument.name in kernel.host_memory_arg
        for dtype in types:
            always = dtype in (_ON_HOST_IN_CALLS if in_calls else _ALWAYS_ON_HOST)
            found.append(_Tensor(argument.name, on_host or always))
    return found


class _Body:
    """The operations of a graph or of one of its functions, and where their tensors are."""

    def __init__(self, nodes, signature, functions):
        self.nodes = nodes
        self._functions = functions
        self._outputs = {}
        for argument in signature.input_arg if signature else ():
            on_host = argument.type in _ON_HOST_IN_CALLS
            self._outputs[argument.name] = [_Tensor(argument.name, on_host)]
        # TensorFlow removes these from a function before running it.
        self._passes_on = {node.name: node.input[0] for node in nodes if node.op == "Identity"}
        self._inputs = {}
        for node in nodes:
            self._inputs[node.name], self._outputs[node.name] = self._sides(node)

    def _sides(self, node):
        if node.op in self._functions:
            signature = self._functions[node.op].signature
            return [
                [_Tensor(a.name, a.type in _ON_HOST_IN_CALLS) for a in arguments]
                for arguments in (signature.input_arg, signature.output_arg)
            ]
        declared, kernel = op_def_registry.get(node.op), _kernel(node)
        return [_tensors(node, a, kernel) for a in (declared.input_arg, declared.output_arg)]

    def _source(self, name):
        """Follows identities back to the original tensor."""
        while (node := name.split(":")[0]) in self._passes_on:
            name = self._passes_on[node]
        return name

    def is_on_host(self, name: str) -> bool:
        """Returns whether a tensor (`node`, `node:index`, `node:argument:index`) is on the host."""
        node, *rest = self._source(name).split(":")
        outputs = self._outputs[node]
        if len(rest) == 2:
            outputs = [t for t in outputs if t.argument == rest[0]]
        return outputs[int(rest[-1]) if rest else 0].on_host

    def copying(self, wanted_on_host=()) -> set[str]:
        """Returns the names of the nodes with an input or output that is copied.

        Args:
          wanted_on_host: Tensors that are needed on the host in any case.
        """
        found = {
            self._source(name).split(":")[0] for name in wanted_on_host if not self.is_on_host(name)
        }
        for node in self.nodes:
            if node.name in self._passes_on:
                continue
            given = [name for name in node.input if not name.startswith("^")]
            for name, taken in zip(given, self._inputs[node.name], strict=True):
                if self.is_on_host(name) != taken.on_host:
                    found |= {node.name, self._source(name).split(":")[0]}
        return found


def operations(graph_def: tf.compat.v1.GraphDef, in_loop: bool = False) -> collections.Counter:
    """Counts the operations of a graph and of all functions that it calls.

    For a function with several implementations (Keras's LSTM), the one for GPUs is counted.

    Args:
      graph_def: The graph.
      in_loop: Whether all of it runs in a loop.

    Returns:
      `Operation` → its number of nodes, in all functions together.

    Raises:
      ValueError: If the graph has a loop of TensorFlow 1, which cannot be separated from the rest
        of the graph.
    """
    functions = {f.signature.name: f for f in graph_def.library.function}
    for_gpu = {
        f.attr["api_implements"].s: name
        for name, f in functions.items()
        if f.attr["api_preferred_device"].s == b"GPU"
    }
    found, seen = collections.Counter(), set()

    def called(node):
        """Yields the functions of a node, and whether their result is a loop's condition."""
        if node.op in functions:
            yield node.op, False
        for key, value in node.attr.items():
            for f in (value.func, *value.list.func):
                if f.name in functions:
                    yield f.name, node.op in _WHILE and key == "cond"

    def visit(body, in_loop, wanted_on_host=()):
        copying = body.copying(wanted_on_host)
        for node in body.nodes:
            if node.op in _FLAT_LOOPS:
                raise ValueError(f"{node.name} is part of a loop of TensorFlow 1.")
            if node.op not in functions:
                types = [t for _, ts in sorted(_type_attributes(node).items()) for t in ts]
                names = tuple(tf.as_dtype(t).name for t in types)
                kind = Operation(node.op, names, place(node), in_loop, node.name in copying)
                found[kind] += 1
            within = in_loop or node.op in _LOOPS
            for name, is_condition in called(node):
                name = for_gpu.get(functions[name].attr["api_implements"].s, name)
                if (name, within) not in seen:
                    seen.add((name, within))
                    f = functions[name]
                    wanted = f.ret.values() if is_condition else ()
                    visit(_Body(f.node_def, f.signature, functions), within, wanted)

    visit(_Body(graph_def.node, None, functions), in_loop)
    return found


def _tensorflow_graphs(proto: message.Message) -> Iterator[tf.compat.v1.GraphDef]:
    """Yields the TensorFlow graphs within a TFF computation."""
    if isinstance(proto, computation_pb2.TensorFlow):
        yield tf.compat.v1.GraphDef.FromString(proto.graph_def.value)
        return
    for field, value in proto.ListFields():
        if field.message_type is not None:
            for part in value if compat.is_repeated(field) else [value]:
                yield from _tensorflow_graphs(part)


def of_computation(computation) -> collections.Counter:
    """Counts the operations of a TFF computation, clients' and server's, as `operations` does."""
    proto = computation_impl.ConcreteComputation.get_proto(computation)
    return sum(map(operations, _tensorflow_graphs(proto)), collections.Counter())


def of_round(process) -> dict[str, collections.Counter]:
    """Counts the operations of a round, as `operations` does.

    Args:
      process: From `tff_algos.build`. For a method of several processes, all are counted.

    Returns:
      Runtime → the operations; without `vectorized` if the method or model does not support it.
    """
    if not hasattr(process, "method"):
        parts = [getattr(part, "next", part) for part in vars(process).values()]
        parts = [part for part in parts if isinstance(part, tff.Computation)]
        return {"tff": sum(map(of_computation, parts), collections.Counter())}
    found = {"tff": of_computation(process.next)}
    with contextlib.suppress(batching.NotVectorizable):
        stacked = executors.Stacked(engine.program_of(process))
        stacked.check()
        graphs = stacked.graphs.traced.values()
        counted = (operations(graph.graph.as_graph_def()) for graph in graphs)
        found["vectorized"] = sum(counted, collections.Counter())
    return found


def of_model(model: tff_algos.Model) -> collections.Counter:
    """Counts the operations of a model's training step and of its evaluation, as if in a loop."""

    def train(weights, x, y, mask, seed):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            objective = model.forward(weights, Batch(x, y, mask), True, seed).objective
        return tape.gradient(objective, weights)

    def evaluate(weights, x, y, mask, seed):
        return model.forward(weights, Batch(x, y, mask), False, seed)

    specs = (
        tuple(tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights),
        model.x_spec,
        model.y_spec,
        tf.TensorSpec([None]),
        tf.TensorSpec([2], tf.int32),
    )
    return sum(
        (
            operations(
                tf.function(part, autograph=False)
                .get_concrete_function(*specs)
                .graph.as_graph_def(),
                in_loop=True,
            )
            for part in (train, evaluate)
        ),
        collections.Counter(),
    )


@contextlib.contextmanager
def layers_as_beside_a_gpu() -> Iterator[None]:
    """Within this context, layers have the form that they have on a GPU."""
    devices = tf.config.list_physical_devices

    def with_one(kind=None):
        gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
        return [gpu] if kind == "GPU" else devices(kind)

    with mock.patch.object(tf.config, "list_physical_devices", with_one):
        yield


def lacking(found: collections.Counter, in_loop: bool) -> list[str]:
    """Lists the operations without a GPU kernel that need copies from or to the GPU.

    Args:
      found: From `operations`.
      in_loop: Whether to list those inside loops or those outside.
    """
    return sorted(
        f"{o.name}[{', '.join(o.dtypes)}]"
        for o in found
        if o.place == CPU and o.copies and o.in_loop == in_loop
    )


def of_methods(names: list[str]) -> Iterator[tuple[str, collections.Counter]]:
    """Yields (description, operations) of the methods' rounds with a softmax regression."""
    model = tff_algos.from_keras(
        models.softmax_regression(0),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_accuracy},
        y_spec=tf.TensorSpec([None], tf.int32),
    )
    for name in names:
        rate = tff_algos.get(name).server_learning_rate
        process = tff_algos.build(
            name,
            model,
            num_clients=10,
            client_learning_rate=0.1,
            **({"server_learning_rate": 0.1} if rate is None else {}),
        )
        for runtime, found in of_round(process).items():
            yield f"{name}, {runtime}", found


def of_tasks(
    names: list[str], precision: str = "float32"
) -> Iterator[tuple[str, collections.Counter]]:
    """Yields (description, operations) of the tasks' models in this `--precision`."""
    settings = {"seed": 0, **hparams.resolve("run", _PRECISION, {"precision": precision})}
    for name in names:
        few = {"num_clients": 2} if name == "clothing1m" else {}
        task = tasks.load(name, use_synthetic_data=True, seed=0, **few)
        with layers_as_beside_a_gpu():
            model = task_models.build(task, settings).model
            yield f"model of {name}", of_model(model)
            process = tff_algos.build("fedavg", model, client_learning_rate=0.1)
            rounds = of_round(process)
        if "vectorized" in rounds:
            yield f"fedavg on {name}, vectorized", rounds["vectorized"]


_HEADS = {
    "graph": "graph",
    "kinds": "kinds",
    "on_host": "on the host",
    "with_copies": "on the CPU with copies",
    "in_loops": "of these in loops",
}


@command_line.reported
def main(arguments: list[str]) -> int:
    """Prints a table; returns the exit code."""
    options = PARSER.parse(arguments)
    if not tf.test.is_built_with_cuda():
        print("This TensorFlow was built without CUDA and knows no GPU kernels.", file=sys.stderr)
        return 1
    failed = False
    methods = tff_algos.names() if options.methods is None else options.methods.split(",")
    models = tasks.names() if options.tasks is None else options.tasks.split(",")
    tasks_of = functools.partial(of_tasks, precision=options.precision)
    with runtimes.installed("tff"), tables.printed(options.json, _HEADS) as table:
        for of, names in ((of_methods, methods), (tasks_of, models)):
            for what, found in of(list(filter(None, names))):
                kinds = {(o.name, o.dtypes): o.place for o in found}
                host = sum(where != GPU for where in kinds.values())
                sides = [lacking(found, in_loop) for in_loop in (False, True)]
                failed = failed or bool(sides[1])
                copied, of_loops = (", ".join(names) or "none" for names in sides)
                counts = {"kinds": len(kinds), "on_host": host}
                table.add({"graph": what, **counts, "with_copies": copied, "in_loops": of_loops})
    return 1 if failed else 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
