"""TFF's own C++ runtime, started and ended by us.

TFF starts its `worker_binary` by itself, lets it write to the parent's output and leaves it running
when the parent ends. Here a supervisor stands between: this file run as a script, a process of one
thread that starts the worker, holds the read end of a pipe whose only write end is in the parent,
and kills the worker when the pipe closes -- which the kernel sees to, however the parent ends. The
kernel also kills the worker should the supervisor die. The worker writes to a file that vanishes
with its last user.

The supervisor must start quickly and without this project on its path, so the top of this file
imports only the standard library.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

_START_ATTEMPTS = 3
_START_TIMEOUT_SECONDS = 60
_MAX_MESSAGE_BYTES = 2 * 1000 * 1000 * 1000
_CHANNEL_OPTIONS = [
    ("grpc.max_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    # The first attempts to connect come before the worker listens; by default the next is a second
    # later.
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 20),
]
_PR_SET_PDEATHSIG = 1


def _supervise(command: list[str]) -> None:
    """Runs `command` until it ends or standard input closes; then nothing of it is left."""
    libc = ctypes.CDLL(None, use_errno=True)
    supervisor, parent = os.getpid(), os.getppid()

    def die_with_supervisor():
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)

    worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_supervisor)
    try:
        # A child forked by the parent, if it outlives the parent, keeps the pipe open; so watch the
        # parent as well.
        while worker.poll() is None and os.getppid() == parent:
            if select.select([sys.stdin], [], [], 0.2)[0]:
                break
    finally:
        worker.kill()
        worker.wait()


class _Worker:
    """A running worker.

    Attributes:
      port: The TCP port of this machine that it serves.
    """

    def __init__(self, binary: str, num_threads: int | None):
        self._log = tempfile.TemporaryFile()
        # Bound but never listening, this keeps the port from everybody but the worker, which shares
        # it by `SO_REUSEPORT`, as every gRPC server does.
        self._reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reservation.bind(("", 0))
        self.port = self._reservation.getsockname()[1]
        self._supervisor = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                os.path.abspath(__file__),
                binary,
                f"--port={self.port}",
                f"--max_concurrent_computation_calls={num_threads or -1}",
            ],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            # Ctrl-C is for the parent, which then ends the worker.
            start_new_session=True,
        )

    def check_running(self) -> None:
        """Raises a `RuntimeError` with the end of the worker's output if it has ended."""
        if self._supervisor.poll() is not None:
            self._log.seek(0)
            tail = self._log.read().decode("utf-8", "replace")[-2000:].strip()
            raise RuntimeError(
                f"TFF's worker has ended. The end of its output:\n{tail or '(none)'}"
            )

    def close(self) -> None:
        self._supervisor.stdin.close()
        self._supervisor.wait()
        self._reservation.close()
        self._log.close()


def _worker_binary() -> str:
    import tensorflow_federated as tff

    binary = os.path.join(os.path.dirname(tff.__file__), "data", "worker_binary")
    if not os.access(binary, os.X_OK):
        raise RuntimeError(f"TFF's worker is missing or can not be executed: {binary}.")
    return binary


def _connect(worker: _Worker, channel):
    """Returns TFF's stub of `worker` once it answers; raises a `RuntimeError` if it does not."""
    from tensorflow_federated.python.core.impl.executors import remote_executor_grpc_stub

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
def _running_worker(num_threads: int | None):
    """Yields a running worker and TFF's stub of it; tries again if the worker ends at its start."""
    import grpc

    binary = _worker_binary()
    for attempts_left in reversed(range(_START_ATTEMPTS)):
        with contextlib.closing(_Worker(binary, num_threads)) as worker:
            with grpc.insecure_channel(f"localhost:{worker.port}", _CHANNEL_OPTIONS) as channel:
                try:
                    stub = _connect(worker, channel)
                except RuntimeError:
                    if attempts_left:
                        continue
                    raise
                yield worker, stub
                return


@contextlib.contextmanager
def native_context(num_threads: int | None = None):
    """Starts TFF's worker, yields a TFF context that runs computations in it, and ends it.

    Args:
      num_threads: How many TensorFlow graphs the worker runs at once; by default it sets no limit.

    Yields:
      A `tff.framework.SyncContext`. A call of a computation raises a `RuntimeError` if the worker
      has ended.

    Raises:
      RuntimeError: If the worker is missing or does not start.
    """
    from tensorflow_federated.python.core.backends.native import compiler
    from tensorflow_federated.python.core.environments.tensorflow_frontend import (
        tensorflow_computation,
    )
    from tensorflow_federated.python.core.impl.execution_contexts import sync_execution_context
    from tensorflow_federated.python.core.impl.executor_stacks import python_executor_stacks
    from tensorflow_federated.python.core.impl.executors import remote_executor
    from tensorflow_federated.python.core.impl.types import placements

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


if __name__ == "__main__":
    _supervise(sys.argv[1:])
