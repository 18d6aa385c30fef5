"""The runtimes: which executor or TFF context carries out a method's rounds.

`per_client`: the engine in this process, client by client, with one thread per core.
`vectorized`: the engine in this process, on stacked clients.
`tff`: the method's TFF computation in this process, by `simulation.tff.context`: TFF's compiler, an
  interpreter of its federated intrinsics, and this process's TensorFlow. It serves as a check of
  the engine.
`native`: the same computation in TFF's own C++ worker, a child process that only uses the CPU. It
  is an independent check of all others, and two to three times slower for small models.

All take and return the same values. `installed` makes one of them the context of this thread's TFF
computations. These go through TFF in every runtime. `bind` returns a method's process in the form
in which the runtime executes it:

    with runtimes.installed('per_client'):
      bound = runtimes.bind(process)
      state = bound.next(bound.initialize(), clients).state

TFF keeps its contexts per thread, so computations must be called in the thread that installed the
runtime. Importing this module imports neither TensorFlow nor TFF.
"""

import contextlib
import ctypes
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simulation.errors import RunError

RUNTIMES = ("per_client", "vectorized", "tff", "native")
# The engine's runtimes.
ENGINE = ("per_client", "vectorized")
CHOICES = ("auto", *RUNTIMES)

# Processor time of a round relative to `per_client`, ten clients of 100 examples, batches of ten,
# dense models: 0.4 with 25,000 parameters, 0.5 with 50,000, 0.8 with 100,000, 1.1 with 200,000;
# softmax regression with 610, 100 clients: 0.06. Client by client the weights stay in a core's
# cache; for a whole cohort they do not. The EMNIST CNN: 3.3, since convolutions with a different
# filter for each client are slow.
MAX_VECTORIZED_PARAMETERS = 100_000

# From glibc's malloc.h.
_M_ARENA_MAX = -8


@contextlib.contextmanager
def installed(name: str, num_threads: int | None = None) -> Iterator[Any]:
    """Runs TFF computations of this thread in the named runtime, within a `with` statement.

    Args:
      name: One of `RUNTIMES`.
      num_threads: Number of clients at a time; by default one per core (`tff`), or as TFF's worker
        decides (`native`). Results do not depend on it.

    Yields:
      The TFF context.

    Raises:
      ValueError: If `name` is not a runtime, or `num_threads` is not positive.
      RuntimeError: If TFF's worker cannot be started (`native`).
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
def _context(name: str, num_threads: int | None) -> Any:
    if name == "native":
        from simulation.tff import native_worker

        with native_worker.native_context(num_threads) as context:
            yield context
    elif name in ENGINE:
        from simulation.engine import process

        stacked = name == "vectorized"
        with contextlib.closing(process.EngineContext(stacked, num_threads)) as context:
            yield context
    else:
        from simulation.tff import context as tff_context

        with contextlib.closing(tff_context.InProcessContext(num_threads)) as context:
            yield context


class Bound:
    """A process as a runtime executes it, with clients' data passed by the caller."""

    def __init__(self, process: Any):
        """Initialises from a `simulation.protocol.Process`."""
        self._process, self._rounds = process, itertools.count()
        self.initialize = process.initialize
        self.model_weights = process.model_weights

    def next(self, state: Any, clients: Any, client_states: Any = None) -> Any:
        """Runs a round.

        Args:
          state: The server's state before it.
          clients: The data of each client, in the form that the process takes.
          client_states: `ClientState` of each client, if the method's clients keep states.

        Returns:
          A `simulation.protocol.RoundOutput`.

        Raises:
          ValueError: If the clients are not in a list, or the states are not one for each.
        """
        from simulation.protocol import Cohort
        from tff_algos import client_data

        client_data.require_list("clients", clients)
        # A method whose clients keep none returns none, which may come back.
        if not isinstance(client_states, list | tuple | None) or client_states:
            client_data.require_states(client_states, len(clients))
        # A new round index in each call: rounds must not share data held for their chunks.
        cohort = Cohort(next(self._rounds), (), len(clients), work=clients)
        output = self._process.next(state, cohort, client_states)
        states = output.client_states
        if not isinstance(states, Sequence):
            states = list(states)  # They can be read only once.
        return output._replace(client_states=states)


def bind(process: Any, clients_per_chunk: int | None = None) -> Bound:
    """Returns a process in the form in which this thread's installed runtime executes it.

    Args:
      process: A process of `tff_algos.build`; through TFF, also one with the same functions.
      clients_per_chunk: Clients per chunk, in the engine; by default the whole cohort.

    Raises:
      NotVectorizable: If it is not a process of `tff_algos.build` and the engine is installed.
    """
    import tensorflow_federated as tff

    from simulation.engine import batched_ops
    from simulation.engine import process as engine
    from simulation.tff.process import TffProcess

    current = tff.framework.get_context_stack().current
    if not isinstance(current, engine.EngineContext):
        return Bound(TffProcess(process))
    if not hasattr(process, "method"):
        raise batched_ops.NotVectorizable(
            "The engine runs processes of tff_algos.build only. Use --runtime=tff."
        )
    return Bound(current.process(process, clients_per_chunk))


def in_engine(settings: Mapping[str, Any]) -> bool:
    """Returns whether the engine carries out a run's rounds, according to its settings.

    Only the engine has chunks: with `clients_per_chunk`, `tff` means `per_client`.
    """
    return settings["runtime"] in ENGINE or settings["clients_per_chunk"] is not None


def choose(process: Any, first_clients: Callable[[], Any] | None = None) -> tuple[str, str]:
    """Returns the runtime that `auto` chooses, and the reason.

    The rule is based on measurements (docs/performance.md). It chooses `vectorized` if every
    operation of the method's round can be vectorised over clients. On a CPU the model must also
    have no convolution and at most `MAX_VECTORIZED_PARAMETERS` parameters. Otherwise it chooses
    `per_client`. A method in stages runs in `per_client`, and a method whose aggregator cannot be
    vectorised in `tff`.

    Args:
      process: From `tff_algos.build`.
      first_clients: Makes the data of the first round's clients, if these are known. Then the
        program traced here is the one that the first round runs.
    """
    import tensorflow as tf

    from simulation.engine import batching, executors
    from simulation.engine import process as engine

    if not hasattr(process, "method"):
        return "per_client", "a method in stages"
    try:
        program = engine.program_of(process)
    except batching.NotVectorizable as e:
        return "tff", str(e).removesuffix(" Use --runtime=tff.")
    if not tf.config.list_physical_devices("GPU"):
        number = sum(w.size for w in process.model.initial_weights)
        if number > MAX_VECTORIZED_PARAMETERS:
            reason = f"{number:,} parameters, more than {MAX_VECTORIZED_PARAMETERS:,}, on a CPU"
            return "per_client", reason
        if batching.has_convolution(process.model):
            return "per_client", "convolutions on a CPU"
    stacked = executors.Stacked(program)
    try:
        stacked.check(len(stacked.prepare(first_clients()).blocks) if first_clients else 1)
    except batching.NotVectorizable as e:
        return "per_client", str(e).removesuffix(" Use --runtime=tff.")
    return "vectorized", "every operation has a form over stacked clients"


def configure_threads() -> None:
    """Gives each TensorFlow operation one thread on a CPU; call before TensorFlow does any work.

    Clients run on one thread per core, so threads inside operations only compete with them: a round
    of ten clients of a small CNN takes twice as long. With one thread, the result of an operation
    also does not depend on the number of cores. With a GPU, or once TensorFlow has started, this
    function changes nothing about threads.

    It also limits malloc to one heap per two cores. So memory that a client has freed can be used
    by the next one on another thread.
    """
    import tensorflow as tf

    with contextlib.suppress(OSError, AttributeError):
        number = max(1, len(os.sched_getaffinity(0)) // 2)
        ctypes.CDLL("libc.so.6").mallopt(_M_ARENA_MAX, number)
    if not tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


def configure_gpus(memory_mb: int | None, deterministic: bool) -> None:
    """Configures how this process uses its GPUs; call before TensorFlow does any work.

    Without a limit, TensorFlow takes GPU memory as needed, instead of nearly all of it at the
    start. Once TensorFlow has started, this cannot be changed.

    Args:
      memory_mb: Most MiB of each GPU's memory for TensorFlow; `None` for no limit.
      deterministic: Whether operations must give the same bits in every execution; operations that
        cannot do so raise an error. This applies to the whole process from now on.

    Raises:
      RunError: If an argument is set without a GPU, or if TensorFlow has started without the limit.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    asked = {"gpu_memory_mb": memory_mb is not None, "deterministic_ops": deterministic}
    for flag, is_asked in asked.items():
        if is_asked and not gpus:
            raise RunError(f"--{flag} is for a GPU, and TensorFlow finds none here.")
    for gpu in gpus:
        if memory_mb is None:
            # ValueError: an earlier call in this process has set a limit.
            with contextlib.suppress(RuntimeError, ValueError):
                tf.config.experimental.set_memory_growth(gpu, True)
        elif _memory_limits(gpu) != [memory_mb]:
            limited = tf.config.LogicalDeviceConfiguration(memory_limit=memory_mb)
            try:
                tf.config.set_logical_device_configuration(gpu, [limited])
            except (RuntimeError, ValueError) as e:
                raise RunError(
                    f"--gpu_memory_mb={memory_mb} cannot take effect: TensorFlow has already "
                    "started in this process, or lets a GPU's memory grow."
                ) from e
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def _memory_limits(gpu: Any) -> list[float]:
    import tensorflow as tf

    return [c.memory_limit for c in tf.config.get_logical_device_configuration(gpu) or ()]


def device_description() -> str:
    """Returns TensorFlow's device here, e.g. 'CPU (2 cores)' or 'GPU: NVIDIA H200 x1'."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return f"CPU ({len(os.sched_getaffinity(0))} cores)"
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus
    ]
    return "GPU: " + ", ".join(f"{name} x{names.count(name)}" for name in dict.fromkeys(names))
