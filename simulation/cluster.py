"""Ray on this machine or on a cluster: how it is reached, and that nothing of it stays behind."""

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

# In the environment of all that is started on this machine.
_MARK = "REPRODUCE_SWEEP"
_SECONDS_TO_CONNECT = 20.0


@contextlib.contextmanager
def connected(address: str | None, num_cpus: int | None = None) -> Iterator[Any]:
    """Connects to Ray, or starts it on this machine; what it started ends with this process.

    Args:
      address: Of a Ray cluster (`auto`, `host:port`, `ray://host:port`); `None` is this machine.
      num_cpus: Cores that Ray on this machine takes itself to have; by default those of this
        process.

    Yields:
      The module `ray`.

    Raises:
      RunError: If Ray cannot be reached.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of its own trouble with dashboards and metrics, which nobody asked for.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray

    with contextlib.ExitStack() as stack:
        if address:
            options = {"address": _knock(address)}
        else:
            local = stack.enter_context(_ends_with_this_process())
            cores = num_cpus or len(os.sched_getaffinity(0))
            options = {"address": "local", "num_cpus": cores, "include_dashboard": False, **local}
        try:
            with _own_handlers(), _quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, OSError, RuntimeError, ValueError) as e:
            where = f"--ray_address={address}" if address else "Ray on this machine"
            raise RunError(f"{where} can't be reached: {' '.join(str(e).split())}") from e
        stack.callback(ray.shutdown)
        yield ray


def _knock(address):
    """Refuses an address at which no Ray listens; Ray itself would wait there for minutes.

    Returns:
      The address, and for `auto` where that is: of a cluster that is gone, Ray keeps it.
    """
    from ray._private import services

    where = f"--ray_address={address}"
    try:
        if address == "auto":
            address = services.get_ray_address_from_environment(address, None)
            where += f", {address},"
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:  # Or it is a name of Ray's own.
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
            if not _is_ray(f"{host}:{port}"):
                raise RunError(f"{where} can't be reached: what answers there is not Ray.")
    except (OSError, ValueError, OverflowError) as e:
        raise RunError(f"{where} can't be reached: {e}") from e
    return address


def _is_ray(address):
    """Returns whether what listens there speaks as Ray does."""
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
def _ends_with_this_process():
    """Yields options of a Ray that nobody else can reach and that is gone when this is over.

    Ray listens on every address of the machine by default, lets everybody write to the folder of
    its sockets and logs, and leaves its agents running when its driver is killed: each waits for
    the end of a pipe that the other one holds.
    """
    # The path of a socket of Ray, longer by 87 characters, must be shorter than 108.
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
def _own_handlers():
    """Keeps this process's handling of signals; Ray puts its own in their place."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in command_line.SIGNALS}
    try:
        yield
    finally:
        command_line.restore(before)


@contextlib.contextmanager
def _quiet():
    """Sends what is printed without Python nowhere: Ray's core greets on standard error."""
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
            # A name that one process can have, until it ends; no folder that others could prepare.
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                lock.bind(f"\0reproduce-core-{core}")
            except OSError:
                lock.close()
            else:
                taken[core] = lock
    # Where others have the cores already, processes share them as the system sees fit.
    if len(taken) == wanted:
        os.sched_setaffinity(0, taken)
    return list(taken.values())
