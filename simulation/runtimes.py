"""Where TFF computations run.

`tff`: in this process, by `tff_context.InProcessContext`: TFF's compiler, an interpreter of its
  federated intrinsics, and this process's TensorFlow with its GPU, if it has one. The default.
`native`: in TFF's own C++ worker, a child process that uses the CPU only. The independent check on
  `tff`; the same computations, two to three times slower for small models.

`vectorized`: in this process; a round of one of our methods is one TensorFlow program over the
  whole cohort (`vectorized.VectorizedProcess`). Other TFF computations run as in `tff`.

All take and return the same values. `installed` makes one of them the context in which TFF
computations run, and `bind` gives a process as that runtime runs it:

    with runtimes.installed('tff'):
      bound = runtimes.bind(process)
      state = bound.next(bound.initialize(), clients).state

TFF keeps its contexts per thread, so computations must be called in the thread that installed the
runtime. Importing this module imports neither TensorFlow nor TFF.
"""

import contextlib
import ctypes
import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from simulation.errors import RunError

RUNTIMES = ("tff", "native", "vectorized")
CHOICES = ("auto", *RUNTIMES)

# Processor time of a round relative to `tff`, ten clients of 100 examples, batches of ten, dense
# models: 0.4 with 25,000 parameters, 0.5 with 50,000, 0.8 with 100,000, 1.1 with 200,000; softmax
# regression with 610, 100 clients: 0.06. Client by client the weights stay in a core's cache; for
# a whole cohort they do not. The EMNIST CNN: 3.3, for want of a fast convolution with a filter for
# each client.
MAX_VECTORIZED_PARAMETERS = 100_000

# In glibc's malloc.h.
_M_ARENA_MAX = -8


@contextlib.contextmanager
def installed(name: str, num_threads: int | None = None) -> Iterator[Any]:
    """Runs TFF computations of this thread in the named runtime, within a `with` statement.

    Args:
      name: One of `RUNTIMES`.
      num_threads: How many clients run at once; by default one a core (`tff`), or as TFF's worker
        decides (`native`). The result of a computation does not depend on it.

    Yields:
      The TFF context.

    Raises:
      ValueError: If there is no runtime `name`, or `num_threads` is not positive.
      RuntimeError: If TFF's worker can not be started (`native`).
    """
    if name not in RUNTIMES:
        raise ValueError(f'There is no runtime "{name}"; there are: {", ".join(RUNTIMES)}.')
    if num_threads is not None and num_threads < 1:
        raise ValueError(f"num_threads must be positive, found {num_threads}.")
    import tensorflow_federated as tff

    with _context(name, num_threads) as context:
        with tff.framework.get_context_stack().install(context):
            yield context


@contextlib.contextmanager
def _context(name: str, num_threads: int | None):
    if name == "native":
        from simulation.tff import native_worker

        with native_worker.native_context(num_threads) as context:
            yield context
    elif name == "vectorized":
        from simulation.engine import batching as vectorized

        with contextlib.closing(vectorized.VectorizedContext(num_threads)) as context:
            yield context
    else:
        from simulation.tff import context as tff_context

        with contextlib.closing(tff_context.InProcessContext(num_threads)) as context:
            yield context


class Bound(NamedTuple):
    """A process as a runtime runs it.

    Attributes:
      initialize: `() -> state`.
      next: `(state, clients) -> output`, of `tff.learning.templates.LearningProcessOutput`; clients
        as the process itself takes them, or as `prepare` returns them.
      get_model_weights: `state -> tff.learning.models.ModelWeights`.
      prepare: `clients -> clients`, which another thread may call ahead of the round.
    """

    initialize: Callable[[], Any]
    next: Callable[[Any, Any], Any]
    get_model_weights: Callable[[Any], Any]
    prepare: Callable[[Any], Any]


def bind(process: Any) -> Bound:
    """Returns a process as the runtime that this thread has installed runs it.

    Args:
      process: A process of `tff_algos.build`, or one with the same functions.

    Raises:
      NotVectorizable: If it is not a process of `tff_algos.build` (`vectorized`).
    """
    import tensorflow_federated as tff

    from simulation.tff import context as tff_context

    current = tff.framework.get_context_stack().current
    method = getattr(process, "method", None)
    if hasattr(current, "bind"):
        process = current.bind(process)
    in_process = isinstance(current, tff_context.InProcessContext)
    initialize = process.initialize
    if in_process and method is not None:
        initialize = functools.partial(_initialize, method)
    if in_process:
        prepare = getattr(process, "prepare", lambda clients: clients)
    else:
        # TFF knows arrays only.
        prepare = _prepare_arrays
    return Bound(initialize, process.next, process.get_model_weights, prepare)


def _prepare_arrays(clients):
    from tff_algos import client_data
    from tff_suite import memory

    # All at once, and in TFF's worker once more.
    memory.require(
        2 * memory.nbytes([(c.x, c.y) for c in clients]),
        f"The examples of {len(clients):,} clients at once, here and in TFF's worker,",
        "--runtime=tff, fewer clients a round or fewer epochs take less",
    )
    return list(map(client_data.arrays, clients))


def _initialize(method):
    """Returns a method's first state, and to the system the memory that building it has freed.

    Without a graph, which would hold the model's weights as constants, in several copies.
    """
    import tensorflow as tf

    state = tf.nest.map_structure(lambda t: tf.convert_to_tensor(t).numpy(), method.initialize())
    gc.collect()
    # What is free, glibc keeps, until it is asked for it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return state


def choose(process: Any, first_clients: Callable[[], Any] | None = None) -> tuple[str, str]:
    """Returns the runtime that `auto` stands for, and why.

    A method of several processes runs in `tff`. The rule for the others, from the measurements of
    `benchmarks/auto.py`: `vectorized` if every operation of the method's round has a form over a
    whole cohort and, on a CPU, the model has no convolution and at most `MAX_VECTORIZED_PARAMETERS`
    parameters; else `tff`.

    Args:
      process: What `tff_algos.build` gives, or a process made of it.
      first_clients: Makes the data of the first round's clients, if they are known. What is traced
        here is then the program that the first round runs.
    """
    import tensorflow as tf

    from simulation.engine import batching as vectorized

    if not hasattr(process, "method"):
        return "tff", "a method of several processes"
    if not tf.config.list_physical_devices("GPU"):
        number = sum(w.size for w in process.model.initial_weights)
        if number > MAX_VECTORIZED_PARAMETERS:
            return (
                "tff",
                f"{number:,} parameters, more than {MAX_VECTORIZED_PARAMETERS:,}, on a CPU",
            )
        if vectorized.has_convolution(process.model):
            return "tff", "convolutions on a CPU"
    whole = vectorized.VectorizedProcess(process)
    try:
        whole.program(len(whole.prepare(first_clients()).blocks) if first_clients else 1)
    except vectorized.NotVectorizable as e:
        return "tff", str(e).removesuffix(" Use --runtime=tff.")
    return "vectorized", "every operation has a form over a whole cohort"


def configure_threads() -> None:
    """Gives each TensorFlow operation one thread on a CPU; call before TensorFlow does any work.

    Clients run on a thread a core, so threads inside operations only compete with them (a round of
    ten clients of a small CNN takes twice as long), and with one the result of an operation does
    not depend on the number of cores. With a GPU, or once TensorFlow has started, that stays as it
    is.

    Two threads share a heap: what a client has freed, the next one takes, on whatever thread.
    """
    import tensorflow as tf

    with contextlib.suppress(OSError, AttributeError):
        number = max(1, len(os.sched_getaffinity(0)) // 2)
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, number)
    if not tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


def configure_gpus(memory_mb: int | None, deterministic: bool) -> None:
    """Settles how this process uses its GPUs; call before TensorFlow does any work.

    Where no limit is asked for, TensorFlow takes of a GPU's memory what it comes to need, in place
    of nearly all of it at once; once it has started, that stays as it is.

    Args:
      memory_mb: Most MiB that TensorFlow may take of each GPU's memory; `None` for no limit.
      deterministic: Whether operations are to give the same bits whenever they are run again, or
        else to be refused. TensorFlow does so from then on in all of this process.

    Raises:
      RunError: If something is asked for and there is no GPU, or if TensorFlow has started without
        that limit.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    asked = {"gpu_memory_mb": memory_mb is not None, "deterministic_ops": deterministic}
    for flag, is_asked in asked.items():
        if is_asked and not gpus:
            raise RunError(f"--{flag} is for a GPU, and TensorFlow finds none here.")
    for gpu in gpus:
        if memory_mb is None:
            # ValueError: in this process a limit was asked for before.
            with contextlib.suppress(RuntimeError, ValueError):
                tf.config.experimental.set_memory_growth(gpu, True)
        elif _memory_limits(gpu) != [memory_mb]:
            limited = tf.config.LogicalDeviceConfiguration(memory_limit=memory_mb)
            try:
                tf.config.set_logical_device_configuration(gpu, [limited])
            except (RuntimeError, ValueError) as e:
                raise RunError(
                    f"--gpu_memory_mb={memory_mb} comes too late: TensorFlow has already started "
                    "in this process, or lets a GPU's memory grow."
                ) from e
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def _memory_limits(gpu) -> list[float]:
    import tensorflow as tf

    return [c.memory_limit for c in tf.config.get_logical_device_configuration(gpu) or ()]


def device_description() -> str:
    """Returns what TensorFlow computes on here, as 'CPU (2 cores)' or 'GPU: NVIDIA H200 x1'."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return f"CPU ({len(os.sched_getaffinity(0))} cores)"
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus
    ]
    return "GPU: " + ", ".join(f"{name} x{names.count(name)}" for name in dict.fromkeys(names))
