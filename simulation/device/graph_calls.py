"""How this process calls TensorFlow's graphs, several of them at once."""

import contextlib
import copy
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from tff_suite import compat

# What `tf.function` itself calls graphs with.
from tff_suite.compat import atomic_function, cancellation, context, execute


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


class Shared:
    """A function that several threads may call at once, of which the first one has it optimised.

    TensorFlow optimises a function when it is called for the first time, and threads that meet it
    at once would each do so for themselves. What was optimised once all threads find.
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
            # TensorFlow gives nothing in place of an empty list.
            return self._flat(*arguments) or []

    def make_ready(self, *arguments: tf.Tensor) -> None:
        """Has TensorFlow optimise the function, without running it.

        Args:
          *arguments: Its arguments; only their dtypes and devices matter.
        """
        ctx = context.context()
        options = itertools.chain(*ctx.function_call_options.as_attrs().items())
        number = len(self._function.function_type.flat_outputs)
        # A call that ends before it begins.
        cancelled = cancellation.CancellationManager()
        cancelled.start_cancel()
        # What cannot be optimised fails again where it is called, with the names of operations.
        with contextlib.suppress(tf.errors.OpError):
            execute.execute_with_cancellation(
                self._function.name.decode(), number, [*arguments], (*options,), ctx, cancelled
            )


# As operations of their own they wait for a thread of a pool that is as large as the machine has
# cores, and may wait for each other there for ever.
_BRANCHES = frozenset(["Case", "If", "StatelessCase", "StatelessIf"])


# The name that TensorFlow gives the executor that stays in the calling thread.
ONE_THREAD = "SINGLE_THREADED_EXECUTOR"

_LOOPS = frozenset(["While", "StatelessWhile"])


def is_straight(function: Callable) -> bool:
    """Returns whether a concrete function has neither loops nor branches."""
    return not any(node.op in _LOOPS | _BRANCHES for node in _nodes(function))


def runs_in_one_thread(function: Callable) -> bool:
    """Returns whether `ONE_THREAD` can run a concrete function.

    That executor takes loops as operations of their own. A function that was traced within
    `calling(ONE_THREAD)` has them so, but not what it calls, if that had been
    traced before. Branches are not safe as such operations, in whatever executor: a function that
    has some must be traced outside.
    """
    return not any(
        node.op in _BRANCHES or node.attr["_lower_using_switch_merge"].b
        for node in _nodes(function)
    )


def _nodes(function):
    """Returns the operations of a concrete function and of the functions that it calls."""
    graph = function.graph.as_graph_def()
    return itertools.chain(graph.node, *(f.node_def for f in graph.library.function))


@functools.cache
def _options(executor: str, config: bytes):
    proto = config_pb2.ConfigProto.FromString(config)
    rewriting = proto.graph_options.rewrite_options
    rewriting.memory_optimization = rewriting.NO_MEM_OPT
    if not tf.config.list_physical_devices("GPU"):
        # It would infer all shapes and then change nothing: only on a GPU it has a choice.
        rewriting.layout_optimizer = rewriting.OFF
    return context.FunctionCallOptions(executor, proto)
