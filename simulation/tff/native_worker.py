"""Starts and ends TFF's own C++ runtime.

By default, TFF starts its `worker_binary` itself, lets it write to the parent's output and leaves
it running when the parent ends. The worker also accepts unauthenticated connections on every
interface. So this module runs it under a supervisor (`supervisor.py`). The supervisor kills the
worker when the parent ends, even if the parent is killed. It also keeps the worker in a private
network namespace. Only this user can connect, through a Unix socket without a name in the file
system. The worker writes to a temporary file that is removed with its last user.
"""

import contextlib
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

from simulation import supervisor
from tff_suite import command_line

_START_ATTEMPTS = 3
_START_TIMEOUT_SECONDS = 60
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL_OPTIONS = [
    ("grpc.max_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # The first attempts to connect come before the worker listens; by default gRPC would wait a
    # second before the next one.
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 20),
]


class _Worker:
    """A running worker.

    Attributes:
      address: Its address, in gRPC's form.
    """

    def __init__(self, binary: str, num_threads: int | None):
        name = f"tff-worker-{uuid.uuid4().hex}"
        self.address = f"unix-abstract:{name}"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0{name}")
            listener.listen()
            number = listener.fileno()
            self._supervisor = supervisor.start(
                [
                    "worker",
                    str(number),
                    binary,
                    f"--max_concurrent_computation_calls={num_threads or -1}",
                ],
                stdout=self._log,
                stderr=self._log,
                pass_fds=[number],
            )

    def check_running(self) -> None:
        """Raises a `RuntimeError` with the end of the worker's output if it has ended."""
        if self._supervisor.poll() is not None:
            tail = self._output()[-2000:] or "(none)"
            raise RuntimeError(f"TFF's worker has ended. The end of its output:\n{tail}")

    def warn_if_open(self) -> None:
        """Prints a warning if other users may connect to the worker."""
        try:
            if supervisor.has_own_network(self._supervisor):
                return
        except FileNotFoundError:
            # The worker has ended; the next call of a computation will report it.
            return
        why = self._output().split("\n", 1)[0]
        command_line.warn(
            "TFF's worker accepts unauthenticated connections from other machines, since the "
            f"kernel does not allow a private network here ({why})"
        )

    def _output(self):
        # Read by position, since the file's offset is shared with the worker.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode("utf-8", "replace").strip()

    def close(self) -> None:
        supervisor.stop(self._supervisor)
        self._log.close()


def _worker_binary() -> str:
    import tensorflow_federated as tff

    binary = os.path.join(os.path.dirname(tff.__file__), "data", "worker_binary")
    if not os.access(binary, os.X_OK):
        raise RuntimeError(f"TFF's worker is missing or cannot be executed: {binary}.")
    return binary


def _connect(worker: _Worker, channel: Any) -> Any:
    """Returns TFF's stub for `worker` once it answers; raises a `RuntimeError` if it does not."""
    from tff_suite.compat import remote_executor_grpc_stub

    stub = remote_executor_grpc_stub.RemoteExecutorGrpcStub(channel)
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while not stub.is_ready:
        worker.check_running()
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"TFF's worker did not answer within {_START_TIMEOUT_SECONDS} seconds."
            )
        time.sleep(0.005)
    worker.check_running()
    return stub


@contextlib.contextmanager
def _running_worker(num_threads: int | None) -> Any:
    """Yields a running worker and TFF's stub; retries if the worker ends during its start."""
    import grpc

    binary = _worker_binary()
    for attempts_left in reversed(range(_START_ATTEMPTS)):
        with contextlib.closing(_Worker(binary, num_threads)) as worker:
            with grpc.insecure_channel(worker.address, _CHANNEL_OPTIONS) as channel:
                try:
                    stub = _connect(worker, channel)
                except RuntimeError:
                    if attempts_left:
                        continue
                    raise
                worker.warn_if_open()
                yield worker, stub
                return


@contextlib.contextmanager
def native_context(num_threads: int | None = None) -> Iterator[Any]:
    """Starts TFF's worker, yields a TFF context that runs computations in it, and ends it.

    Args:
      num_threads: Number of TensorFlow graphs that the worker runs at once; by default unlimited.

    Yields:
      A `tff.framework.SyncContext`. A call of a computation raises a `RuntimeError` if the worker
      has ended.

    Raises:
      RuntimeError: If the worker is missing or does not start.
    """
    from tff_suite.compat import (
        compiler,
        placements,
        python_executor_stacks,
        remote_executor,
        sync_execution_context,
        tensorflow_computation,
    )

    with _running_worker(num_threads) as (worker, stub):

        def create_executor(cardinalities):
            worker.check_running()
            executor = remote_executor.RemoteExecutor(stub)
            executor.set_cardinalities({placements.CLIENTS: 0, **cardinalities})
            return executor

        yield sync_execution_context.SyncExecutionContext(
            executor_fn=python_executor_stacks.ResourceManagingExecutorFactory(create_executor),
            compiler_fn=compiler.desugar_and_transform_to_native,
            transform_args=tensorflow_computation.transform_args,
            transform_result=tensorflow_computation.transform_result,
        )
