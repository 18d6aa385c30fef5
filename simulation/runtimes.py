"""Where TFF computations run.

`tff`: in this process, by `tff_context.InProcessContext`: TFF's compiler, an interpreter of its
  federated intrinsics, and this process's TensorFlow with its GPU, if it has one. The default.
`native`: in TFF's own C++ worker, a child process that uses the CPU only. The independent check on
  `tff`; the same computations, two to three times slower for small models.

Both take and return the same values. `installed` makes one of them the context in which TFF
computations run:

    with runtimes.installed('tff'):
      state = process.initialize()

TFF keeps its contexts per thread, so computations must be called in the thread that installed the
runtime. Importing this module imports neither TensorFlow nor TFF.
"""

import contextlib
import os

RUNTIMES = ("tff", "native")


@contextlib.contextmanager
def installed(name: str, num_threads: int | None = None):
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
        from simulation import native_worker

        with native_worker.native_context(num_threads) as context:
            yield context
    else:
        from simulation import tff_context

        with contextlib.closing(tff_context.InProcessContext(num_threads)) as context:
            yield context


def configure_threads() -> None:
    """Gives each TensorFlow operation one thread on a CPU; call before TensorFlow does any work.

    Clients run on a thread a core, so threads inside operations only compete with them (a round of
    ten clients of a small CNN takes twice as long), and with one the result of an operation does
    not depend on the number of cores. With a GPU, or once TensorFlow has started, nothing changes.
    """
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


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
