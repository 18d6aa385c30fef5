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

`tf.data.Dataset.reduce` within a graph sets its function up again in every call, some 40 ms a
client. TFF's learning algorithms use it by default; they run 20 times faster here with
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
    """Compiles as `tff.backends.native.desugar_and_transform_to_native`, but leaves graphs alone.

    TFF has TensorFlow rewrite the graphs here, which TensorFlow does anyway when it first runs one.
    The memory optimizer would write temporary variables into them, so that several threads could
    not call one at once (see `graph_calls`); functions that are marked to stay apart would be
    inlined (see `tasks/layers/pooling.py`); and a loop whose function is not inlined can come out
    as a graph that cannot be imported. Between the steps TFF writes the computation down and reads
    it again, which for a model of many weights takes longer than the steps.
    """
    block = comp.to_building_block()
    block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(block)
    try:
        block = transformations.to_call_dominant(block)
        disable = compiled_computation_transformations.transform_tf_call_ops_to_disable_grappler
        return disable(block)[0]
    except ValueError:  # As in TFF: what it cannot compile is run as it is.
        return block


class InProcessContext(tff.program.FederatedContext):
    """Runs TFF computations with this process's TensorFlow.

    TFF's federated programs (`tff.learning.programs`) run only in a `tff.program.FederatedContext`.
    They take values as they are for references to them, so this one hands out no references.

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
        self._num_threads = num_threads
        self._pool = concurrent.futures.ThreadPoolExecutor(num_threads, "tff-client")
        self._interpreter = tff_interpreter.Interpreter(self._pool, num_threads)
        self.intrinsic_calls = self._interpreter.intrinsic_calls
        self._lock = threading.Lock()
        # Keyed by id, since hashing a computation serialises it. An entry goes with its
        # computation, so that building a process a round keeps no memory.
        self._compiled = {}

    def close(self) -> None:
        """Ends the threads. The context can not be used afterwards."""
        self._pool.shutdown()

    def invoke(self, comp: Any, arg: Any) -> Any:
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
            env = {tff_interpreter.NUM_CLIENTS: cohort_sizes.pop() if cohort_sizes else 0}
            return egest(run(env)(arg))

    def _compile(self, comp):
        with self._lock:
            entry = self._compiled.get(id(comp))
            if entry is not None:
                return entry[1]
            # Compilation loses the Python containers, so convert by the types before it.
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
            # Without the lock, which this thread may hold when the collector runs.
            forget = functools.partial(_forget, self._compiled, id(comp))
            self._compiled[id(comp)] = (weakref.ref(comp, forget), compiled)
            return compiled


def _forget(compiled, key, _):
    compiled.pop(key, None)
