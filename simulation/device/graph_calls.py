"""Calls of TensorFlow graphs from several threads at once."""

import contextlib
import copy
import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tff_suite import compat, graph_defs

# The internals by which `tf.function` calls graphs.
from tff_suite.compat import atomic_function, cancellation, context, execute


@contextlib.contextmanager
def calling(executor: str = "") -> Iterator[None]:
    """Within this context, several threads may call the same graphs at the same time.

    It disables TensorFlow's memory optimizer. That optimizer accumulates sums of many tensors in a
    temporary variable. Concurrent calls of one graph would use the same name for it and fail with
    an `AlreadyExistsError`. Without the optimizer, such a sum needs memory for all its terms.

    Args:
      executor: TensorFlow's name of the executor of graphs; by default TensorFlow chooses.
    """
    ctx = context.context()
    before = ctx.function_call_options
    ctx.function_call_options = copy.copy(_options(executor, before.config_proto_serialized))
    try:
        yield
    finally:
        ctx.function_call_options = before


class Shared:
    """A function that several threads may call at once; only one of them optimises it.

    TensorFlow optimises a function at its first call. Threads that call it first at the same time
    would each optimise it. Here the others wait for the first one.
    """

    def __init__(self, function: atomic_function.AtomicFunction, executor: str = ""):
        """Initialises from a function of flat tensors and the executor that it was traced for."""
        self._function, self._flat = function, compat.flat(function)
        self._executor = executor
        self._ready, self._making_ready = False, threading.Lock()

    def __call__(self, *arguments: tf.Tensor) -> Sequence[tf.Tensor]:
        """Calls the function, within `calling()`."""
        with calling(self._executor):
            if not self._ready:
                with self._making_ready:
                    if not self._ready:
                        self.make_ready(*arguments)
                        self._ready = True
            # TensorFlow returns `None` instead of an empty list.
            return self._flat(*arguments) or []

    def make_ready(self, *arguments: tf.Tensor) -> None:
        """Optimises the function without running it.

        Args:
          *arguments: Its arguments; only their dtypes and devices matter.
        """
        ctx = context.context()
        options = itertools.chain(*ctx.function_call_options.as_attrs().items())
        number = len(self._function.function_type.flat_outputs)
        # A call that is cancelled before it begins.
        cancelled = cancellation.CancellationManager()
        cancelled.start_cancel()
        # If optimisation fails, the actual call fails as well, with the names of operations.
        with contextlib.suppress(tf.errors.OpError):
            execute.execute_with_cancellation(
                self._function.name.decode(), number, [*arguments], (*options,), ctx, cancelled
            )


# Executed as single operations, they wait for a thread of a pool with one thread per core. There
# they may wait for each other forever.
_BRANCHES = frozenset(["Case", "If", "StatelessCase", "StatelessIf"])

# The name that TensorFlow gives the executor that stays in the calling thread.
ONE_THREAD = "SINGLE_THREADED_EXECUTOR"

_LOOPS = frozenset(["While", "StatelessWhile"])


def is_straight(function: Any) -> bool:
    """Returns whether a concrete function has no loops, no branches and inlines all it calls.

    `ONE_THREAD` can wait for ever if two threads call a function that is not inlined.
    """
    graph = function.graph.as_graph_def()
    jumps = any(node.op in _LOOPS | _BRANCHES for node in graph_defs.nodes(graph))
    return not jumps and not any(f.attr["_noinline"].b for f in graph.library.function)


def runs_in_one_thread(function: Any) -> bool:
    """Returns whether `ONE_THREAD` can run a concrete function.

    That executor needs loops in the form of single operations. A function that was traced within
    `calling(ONE_THREAD)` has this form, but functions that it calls do not if they were traced
    earlier. Branches in that form can deadlock in any executor. So a function with branches must be
    traced outside that context.
    """
    return not any(
        node.op in _BRANCHES or node.attr["_lower_using_switch_merge"].b
        for node in graph_defs.nodes(function.graph.as_graph_def())
    )


@functools.cache
def _options(executor: str, config: bytes) -> Any:
    proto = config_pb2.ConfigProto.FromString(config)
    rewriting = proto.graph_options.rewrite_options
    rewriting.memory_optimization = rewriting.NO_MEM_OPT
    if not tf.config.list_physical_devices("GPU"):
        # It only has an effect on a GPU; elsewhere it would infer all shapes for nothing.
        rewriting.layout_optimizer = rewriting.OFF
    return context.FunctionCallOptions(executor, proto)
