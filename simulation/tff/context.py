"""A TFF execution context that runs computations with this process's TensorFlow.

TFF's own runtime sends every computation to a C++ worker that does not support GPUs.
`InProcessContext` compiles a computation with the same compiler as that runtime
(`tff.backends.native`). The compiler's output consists of a few federated intrinsics over
TensorFlow graphs. This context interprets the intrinsics and calls each graph as an eager
TensorFlow function. So a computation runs wherever TensorFlow runs.

Guarantees:
  * Clients of one `federated_map` run on a thread pool. Sums and aggregates fold in cohort order. A
    client's result is folded at its turn and then released, unless it is needed elsewhere. So the
    number of threads never changes a result.
  * A graph is a pure function of its arguments: each call creates its own variables and lookup
    tables, which clients, calls and computations never share. The results of stateful random
    operations (`tf.random.uniform`, not its stateless form) are undefined, as in TFF's worker.
  * A computation none of whose arguments has an entry for each client has no clients, as in TFF.
    Aggregates over no clients are their zero value.
  * Results are what TFF's runtime returns: NumPy arrays and scalars (`bytes` for a string), in the
    Python containers of the computation's type, `tf.data.Dataset` for a sequence. They never share
    memory with an argument. `tf.Tensor` arguments are used as they are, without a copy.

`tf.data.Dataset.reduce` within a graph sets up its function anew in every call, which takes some
40 ms per client. TFF's learning algorithms use it by default. They run 20 times faster here with
`loop_implementation=tff.learning.LoopImplementation.DATASET_ITERATOR`.
"""

import concurrent.futures
import functools
import os
import threading
import weakref
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from simulation.tff import interpreter as tff_interpreter
from simulation.tff import values as tff_values
from tff_suite import memory
from tff_suite.compat import (
    compiled_computation_transformations,
    tensorflow_tree_transformations,
    transformations,
)


def _to_native_form(comp):
    """As `tff.backends.native.desugar_and_transform_to_native`, without optimising graphs.

    At this point TFF lets TensorFlow optimise the graphs, which TensorFlow does anyway at their
    first call. Skipping it avoids several problems:

    - The memory optimizer would insert temporary variables, and then several threads could not call
      a graph at the same time (see `graph_calls`).
    - Functions that must not be inlined would be inlined (see `tasks/layers/pooling.py`).
    - A loop whose function is not inlined can become a graph that cannot be imported.

    TFF also serialises the computation between its steps. For models with many weights this takes
    longer than the steps themselves.
    """
    block = comp.to_building_block()
    block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(block)
    try:
        block = transformations.to_call_dominant(block)
        disable = compiled_computation_transformations.transform_tf_call_ops_to_disable_grappler
        return disable(block)[0]
    except ValueError:  # As in TFF: a computation that cannot be compiled runs as it is.
        return block


class InProcessContext(tff.program.FederatedContext):
    """Runs TFF computations with this process's TensorFlow.

    TFF's federated programs (`tff.learning.programs`) run only in a `tff.program.FederatedContext`.
    They accept plain values in place of references, so this context returns plain values.

    Attributes:
      intrinsic_calls: A `collections.Counter` of the intrinsics interpreted so far, by URI.
    """

    def __init__(self, num_threads: int | None = None):
        """Initializes the context.

        Args:
          num_threads: Number of clients at a time; by default the number of cores of this process.
            Results do not depend on it.

        Raises:
          ValueError: If `num_threads` is not positive.
        """
        if num_threads is None:
            num_threads = len(os.sched_getaffinity(0))
        if num_threads < 1:
            raise ValueError(f"num_threads must be positive, found {num_threads}.")
        self._num_threads = num_threads
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads, "tff-client")
        self._interpreter = tff_interpreter.Interpreter(self._pool, num_threads)
        self.intrinsic_calls = self._interpreter.intrinsic_calls
        self._lock = threading.Lock()
        # Keyed by id, since hashing a computation serialises it. An entry is removed together with
        # its computation, so that building a process in each round does not leak memory.
        self._compiled = {}

    def close(self) -> None:
        """Ends the threads. The context cannot be used afterwards."""
        self._pool.shutdown()

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs `comp` on `arg`; called by TFF when a computation is called.

        Raises:
          NotImplementedError: If this context cannot interpret a part of the computation.
          TypeError: If `arg` does not have the computation's parameter type.
          ValueError: If client-placed arguments have different numbers of clients.
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
            env = {tff_interpreter.NUM_CLIENTS: cohort_sizes.pop() if cohort_sizes else 0}
            return egest(run(env)(arg))

    def _compile(self, comp):
        with self._lock:
            entry = self._compiled.get(id(comp))
            if entry is not None:
                return entry[1]
            # Compilation loses the Python containers, so use the types from before.
            parameter, result = comp.type_signature.parameter, comp.type_signature.result
            ingest = (
                tff_values.ingester(parameter, "The argument") if parameter is not None else None
            )
            with memory.without_collection():
                compiled = (
                    ingest,
                    self._interpreter.resolve(_to_native_form(comp)),
                    tff_values.egester(result),
                )
            # Must not take the lock, which this thread may hold when the garbage collector runs.
            forget = functools.partial(_forget, self._compiled, id(comp))
            self._compiled[id(comp)] = (weakref.ref(comp, forget), compiled)
            return compiled


def _forget(compiled, key, _):
    compiled.pop(key, None)
