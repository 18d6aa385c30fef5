"""Ensures that child processes end with their parent, even if the parent is killed.

A process that is killed cannot end its children. So this file runs as a script beside it, the
supervisor. It holds the read end of a pipe whose only write end belongs to its parent. When the
parent ends, the kernel closes the pipe, and the supervisor acts.

`worker`: runs TFF's worker, in a private network namespace if the kernel allows it. It relays
  between the worker and a socket that only this user can use, and kills the worker at the end. If
  the supervisor dies, the kernel kills the worker.
`sweep`: kills every process whose environment contains a mark, and removes a folder.
`child`: becomes another command, which the kernel kills when the thread that started it ends.

It must start quickly and without this project on its path, so it imports only the standard library.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
# Size of a pipe that does not require privileges.
_RELAYED_BYTES = 1 << 20
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_GO = 30.0


def start(arguments: list[str], **options: Any) -> subprocess.Popen:
    """Starts a supervisor; it acts when its standard input closes or this process ends.

    Args:
      arguments: `worker LISTENER BINARY ARGUMENTS...`, where `LISTENER` is the number of an
        inherited socket, or `sweep MARK FOLDER`.
      **options: Options of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(__file__), *arguments],
        stdin=subprocess.PIPE,
        # Ctrl-C and hang-ups only go to the parent, which then ends the supervisor.
        start_new_session=True,
        **options,
    )


def stop(supervisor: subprocess.Popen) -> None:
    """Has a supervisor act, and waits until it has."""
    assert supervisor.stdin is not None  # See start.
    supervisor.stdin.close()
    supervisor.wait()


def has_own_network(supervisor: subprocess.Popen) -> bool:
    """Returns whether a supervisor has a network namespace different from this process's."""
    theirs, ours = (os.stat(f"/proc/{pid}/ns/net") for pid in (supervisor.pid, "self"))
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)


def dying_with_parent(command: Sequence[str]) -> list[str]:
    """Returns a command that does the same, and that the kernel kills when its parent ends.

    This process must start it. What counts is the end of the thread that does. Processes that the
    command starts are not killed.
    """
    # `preexec_fn` forks instead, and where a process has gRPC's threads its child may crash.
    child = [sys.executable, "-I", "-S", os.path.abspath(__file__), "child", str(os.getpid())]
    return [*child, *command]


def _parent_is_there(parent: int) -> bool:
    """Waits briefly; returns whether the pipe is still open and the parent alive."""
    # Another child of the parent may outlive it and keep the pipe open, so watch the parent as
    # well.
    closed = select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0]
    return not closed and os.getppid() == parent


def _worker(parent: int, listener: str, binary: str, *arguments: str) -> None:
    """Runs TFF's worker until it ends or the parent does."""
    if _can_be_isolated():
        _isolate()
    # Bound but never listening, this reserves the port for the worker, which shares it by
    # `SO_REUSEPORT`, as every gRPC server does.
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("", 0))
    port = reservation.getsockname()[1]
    worker = subprocess.Popen(
        dying_with_parent([binary, f"--port={port}", *arguments]), stdin=subprocess.DEVNULL
    )
    try:
        accepting = socket.socket(fileno=int(listener))
        threading.Thread(target=_relay, args=(accepting, port), daemon=True).start()
        while worker.poll() is None and _parent_is_there(parent):
            pass
    finally:
        worker.kill()
        worker.wait()


def _child(parent: int, starter: str, *command: str) -> None:
    """Becomes a command that ends with its parent, unless `starter` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent == os.getppid() == int(starter):
        os.execvp(command[0], command)
    os._exit(1)


def _can_be_isolated() -> bool:
    """Tries in a child process, since a partial success cannot be undone."""
    child = os.fork()
    if not child:
        try:
            _isolate()
        except OSError as e:
            print(f"network namespace: {e}", flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _isolate() -> None:
    """Moves this process into a network namespace that only has a loopback device.

    Raises:
      OSError: If the kernel does not allow it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    # Root needs no user namespace, and in one could no longer read other users' files.
    if libc.unshare(_CLONE_NEWNET):
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # A `struct ifreq`.
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))


def _relay(listener, port):
    """Joins every connection of this user to a connection to the worker."""
    while True:
        client, _ = listener.accept()
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, user, _ = struct.unpack("3i", credentials)
        try:
            if user != os.geteuid():
                raise PermissionError
            worker = socket.create_connection(("127.0.0.1", port))
            worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            # If the worker does not listen yet, the client tries again.
            client.close()
            continue
        for ends in ((client, worker), (worker, client)):
            threading.Thread(target=_pump, args=ends, daemon=True).start()


def _pump(source, sink):
    """Forwards data from one socket to another through a pipe, and so without a copy."""
    read, write = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, _RELAYED_BYTES)
    try:
        while number := os.splice(source.fileno(), write, _RELAYED_BYTES):
            while number:
                number -= os.splice(read, sink.fileno(), number)
    except OSError:
        pass
    finally:
        os.close(read)
        os.close(write)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _sweep(parent: int, mark: str, folder: str) -> None:
    """Waits for the end of the parent; then kills all processes with `mark`, removes the folder."""
    import shutil

    while _parent_is_there(parent):
        pass
    # A killed process may have started another one meanwhile and may take a while to end. One that
    # waits for a dead disk never ends, hence the limit.
    until = time.monotonic() + _SECONDS_TO_GO
    while (marked := _marked(mark.encode())) and time.monotonic() < until:
        for process in marked:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    shutil.rmtree(folder, ignore_errors=True)


def _marked(mark):
    """Returns the processes of this user whose environment, as they started, holds `mark`."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            # Those that have ended have none.
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    found.append(int(name))
    return found


if __name__ == "__main__":
    if {"--help", "-h"} & set(sys.argv[1:2]):
        with contextlib.suppress(BrokenPipeError):
            print(__doc__, flush=True)
        os._exit(0)
    _parent = os.getppid()
    _commands: dict[str, Callable[..., None]] = {
        "worker": _worker,
        "sweep": _sweep,
        "child": _child,
    }
    _commands[sys.argv[1]](_parent, *sys.argv[2:])
    # Threads that relay still wait for bytes.
    sys.stdout.flush()
    os._exit(0)
