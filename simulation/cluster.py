"""Connects to Ray, on this machine or on a cluster, and leaves nothing of it behind."""

import contextlib
import functools
import os
import signal
import socket
import tempfile
import threading
import uuid
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from simulation import supervisor
from simulation.errors import RunError
from tff_suite import command_line

# Environment variable that marks all processes started on this machine.
_MARK = "REPRODUCE_SWEEP"
_SECONDS_TO_CONNECT = 20.0


@contextlib.contextmanager
def connected(address: str | None, num_cpus: int | None = None) -> Iterator[Any]:
    """Connects to Ray, or starts it on this machine; all started processes end with this one.

    Args:
      address: Address of a Ray cluster (`auto`, `host:port`, `ray://host:port`); `None` for this
        machine.
      num_cpus: Number of cores that Ray assumes on this machine; by default those of this process.

    Yields:
      The module `ray`.

    Raises:
      RunError: If Ray cannot be reached, or does not start in two attempts.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Silences errors about Ray's dashboards and metrics, which are not used.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # On a busy machine, Ray's processes may need more than the minute after which Ray ends them. It
    # then waits forever for those that it starts in advance (ray-project/ray#40131).
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    os.environ.setdefault("RAY_worker_register_timeout_seconds", "600")
    import ray

    with contextlib.ExitStack() as stack:
        if address:
            _join(f"--ray_address={address}", address=_knock(address))
        else:
            cores = num_cpus or len(os.sched_getaffinity(0))
            try:
                stack.enter_context(_started(cores))
            except RunError:  # Ray gives up after 30 seconds; a busy machine may need longer.
                stack.enter_context(_started(cores))
        stack.callback(ray.shutdown)
        yield ray


def _join(where: str, **options: Any) -> None:
    """Connects to Ray."""
    import ray

    try:
        with _own_handlers(), _without_forks(), _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except Exception as e:  # Ray reports a slow start by this class itself.
        raise RunError(f"{where} can't be reached: {' '.join(str(e).split())}") from e


@contextlib.contextmanager
def _started(num_cpus: int) -> Iterator[None]:
    """Starts Ray on this machine and connects to it; ends what was started with this context."""
    with _ends_with_this_process() as options:
        options |= {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
        _join("Ray on this machine", **options)
        yield


def _knock(address: str) -> str:
    """Refuses an address at which Ray does not listen; Ray itself would wait for minutes.

    Returns:
      The address; `auto` is resolved. Ray keeps that address even if its cluster has ended.
    """
    from ray._private import services

    where = f"--ray_address={address}"
    try:
        if address == "auto":
            address = services.get_ray_address_from_environment(address, None)
            where += f", {address},"
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:  # Without one it is a special name of Ray's.
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
            if not _is_ray(f"{host}:{port}"):
                raise RunError(f"{where} can't be reached: the service at this address is not Ray.")
    except (OSError, ValueError, OverflowError) as e:
        raise RunError(f"{where} can't be reached: {e}") from e
    return address


def _is_ray(address: str) -> bool:
    """Returns whether the service at an address speaks Ray's protocol."""
    import grpc
    from ray._private import grpc_utils, ray_constants

    options = ray_constants.GLOBAL_GRPC_OPTIONS
    with contextlib.closing(grpc_utils.init_grpc_channel(address, options)) as channel:
        try:
            grpc.channel_ready_future(channel).result(_SECONDS_TO_CONNECT)
        except grpc.FutureTimeoutError:
            return False
    return True


@contextlib.contextmanager
def _ends_with_this_process() -> Iterator[dict[str, Any]]:
    """Yields options for a Ray that other users cannot reach and that ends with this context.

    By default, Ray listens on every interface of the machine and lets all users write to the folder
    of its sockets and logs. If its driver is killed, its agents keep running: each waits for the
    end of a pipe that another one holds.
    """
    # Paths of Ray's sockets are 87 characters longer and must be shorter than 108.
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="reproduce-", dir=parent if len(parent) < 20 else "/tmp")
    mark = uuid.uuid4().hex
    sweeper = supervisor.start(["sweep", mark, folder])
    before = os.environ.get(_MARK)
    os.environ[_MARK] = mark
    try:
        yield {"_node_ip_address": "127.0.0.1", "_temp_dir": f"{folder}/ray"}
    finally:
        if before is None:
            del os.environ[_MARK]
        else:
            os.environ[_MARK] = before
        supervisor.stop(sweeper)


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keeps this process's signal handlers, which Ray would replace by its own."""
    from ray._private import utils

    before = {}
    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.getsignal(number) for number in command_line.SIGNALS}
    with _replaced(utils, "set_sigterm_handler", lambda handler: None):
        try:
            yield
        finally:  # Ray's core installs some, too.
            command_line.restore(before)


@contextlib.contextmanager
def _without_forks() -> Iterator[None]:
    """Has Ray start its processes without `preexec_fn`, for which `subprocess` would fork.

    In a process with gRPC's threads, such as TFF's, a forked child may crash. Ray uses it to end
    its processes with this one, and to keep Ctrl-C from them.
    """
    from ray._private import services

    original = services.ConsolePopen

    def start(command: Sequence[str], preexec_fn: Any = None, **options: Any) -> Any:
        return original(supervisor.dying_with_parent(command), process_group=0, **options)

    with _replaced(services, "ConsolePopen", start):
        yield


@contextlib.contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Discards output that bypasses Python, such as the greeting of Ray's core on stderr."""
    before = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@functools.cache
def take_cores() -> Sequence[socket.socket]:
    """Keeps a process of Ray to cores that no other has, as many as it first declared.

    Returns:
      What keeps others of this machine from them until this process ends.
    """
    import ray

    wanted = max(1, round(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    taken = {}
    for core in sorted(os.sched_getaffinity(0)):
        if len(taken) < wanted:
            # An abstract socket's name belongs to one process until it ends, and other users cannot
            # tamper with it as with a file in a folder.
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0reproduce-core-{core}")
            except OSError:
                lock.close()
            else:
                taken[core] = lock
    # If other processes have taken the cores already, the operating system shares them.
    if len(taken) == wanted:
        os.sched_setaffinity(0, taken)
    return list(taken.values())
