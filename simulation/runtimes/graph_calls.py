"""How this process calls TensorFlow's graphs, several of them at once."""

import contextlib
import copy
import functools
import itertools
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

# What `tf.function` itself calls graphs with.
from tensorflow.python.eager import cancellation, context, execute


@contextlib.contextmanager
def calling(executor: str = "") -> Iterator[None]:
    """Within it this thread calls graphs so that other threads may call the same ones meanwhile.

    TensorFlow's memory optimizer has the sum of many tensors accumulate in a temporary variable,
    for which calls of one graph at the same time take the same name: they would end with an
    `AlreadyExistsError`. Without it that sum takes memory for all its terms.

    Args:
      executor: TensorFlow's name of what runs the graphs; by default its own choice.
    """
    ctx = context.context()
    before = ctx.function_call_options
    ctx.function_call_options = copy.copy(_options(executor, before.config_proto_serialized))
    try:
        yield
    finally:
        ctx.function_call_options = before


def make_ready(name: bytes, arguments: Sequence[tf.Tensor], num_outputs: int) -> None:
    """Has TensorFlow optimise a function for calls from eager code, without running it.

    TensorFlow does so at the first call, and threads that meet it at once each do it for
    themselves. What it has done once it keeps, for calls under the same options.

    Args:
      name: The function, as TensorFlow's context knows it.
      arguments: Its flat arguments; only their dtypes and devices matter.
      num_outputs: How many tensors it gives.
    """
    ctx = context.context()
    options = tuple(itertools.chain(*ctx.function_call_options.as_attrs().items()))
    cancelled = cancellation.CancellationManager()
    cancelled.start_cancel()
    # What TensorFlow cannot optimise fails when it is called, with the names of its operations.
    with contextlib.suppress(tf.errors.OpError):
        execute.execute_with_cancellation(
            name.decode(), num_outputs, list(arguments), options, ctx, cancelled
        )


# As operations of their own they wait for a thread of a pool that is as large as the machine has
# cores, and may wait for each other there for ever.
_BRANCHES = frozenset(["Case", "If", "StatelessCase", "StatelessIf"])


def runs_in_one_thread(function) -> bool:
    """Returns whether `SINGLE_THREADED_EXECUTOR` can run a concrete function.

    That executor takes loops as operations of their own. A function that was traced within
    `calling("SINGLE_THREADED_EXECUTOR")` has them so, but not what it calls, if that had been
    traced before. Branches are not safe as such operations, in whatever executor: a function that
    has some must be traced outside.
    """
    graph = function.graph.as_graph_def()
    bodies = [graph.node, *(f.node_def for f in graph.library.function)]
    return not any(
        node.op in _BRANCHES or node.attr["_lower_using_switch_merge"].b
        for body in bodies
        for node in body
    )


@functools.cache
def _options(executor: str, config: bytes):
    proto = config_pb2.ConfigProto.FromString(config)
    rewriting = proto.graph_options.rewrite_options
    rewriting.memory_optimization = rewriting.NO_MEM_OPT
    if not tf.config.list_physical_devices("GPU"):
        # It would infer all shapes and then change nothing: only on a GPU it has a choice.
        rewriting.layout_optimizer = rewriting.OFF
    return context.FunctionCallOptions(executor, proto)
