"""What a process started ends with it, however it ends.

A process that is killed can't end what it started. So this file, run as a script, stands by: it
holds the read end of a pipe whose only write end is in its parent, and acts when the pipe closes,
which the kernel ensures.

`worker`: runs TFF's worker, in a network namespace of its own where the kernel allows it, and
  relays between it and a socket that only this user can talk through; then kills it. The kernel
  also kills the worker should the supervisor die.
`sweep`: kills every process whose environment holds a mark, and removes a folder.

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
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
# Of a pipe that nobody needs a privilege for.
_RELAYED_BYTES = 1 << 20
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_GO = 30.0


def start(arguments: list[str], **options: Any) -> subprocess.Popen:
    """Starts a supervisor; it acts when its standard input closes or this process ends.

    Args:
      arguments: What it does: `worker LISTENER BINARY ARGUMENTS...`, where `LISTENER` is the number
        of an inherited socket, or `sweep MARK FOLDER`.
      **options: Of `subprocess.Popen`.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.abspath(__file__), *arguments],
        stdin=subprocess.PIPE,
        # Ctrl-C, and the end of a terminal, are for the parent, which then ends the supervisor.
        start_new_session=True,
        **options,
    )


def stop(supervisor: subprocess.Popen) -> None:
    """Has a supervisor act, and waits until it has."""
    assert supervisor.stdin is not None  # See start.
    supervisor.stdin.close()
    supervisor.wait()


def has_own_network(supervisor: subprocess.Popen) -> bool:
    """Returns whether a supervisor is in another network namespace than this process."""
    theirs, ours = (os.stat(f"/proc/{pid}/ns/net") for pid in (supervisor.pid, "self"))
    return (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino)


def die_with_parent() -> Callable[[], None]:
    """Returns what a child that this thread starts does first, to be killed when the thread ends.

    For `preexec_fn` of `subprocess`; what the child starts itself is not killed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def prepare():
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def _parent_is_there(parent: int) -> bool:
    """Waits a little; returns whether the pipe is open still and the parent alive."""
    # A child forked by the parent, if it outlives the parent, keeps the pipe open; so watch the
    # parent as well.
    closed = select.select([sys.stdin], [], [], _SECONDS_BETWEEN_LOOKS)[0]
    return not closed and os.getppid() == parent


def _worker(parent: int, listener: str, binary: str, *arguments: str) -> None:
    """Runs TFF's worker until it ends or the parent does."""
    if _can_be_isolated():
        _isolate()
    # Bound but never listening, this keeps the port from everybody but the worker, which shares it
    # by `SO_REUSEPORT`, as every gRPC server does.
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    reservation.bind(("", 0))
    port = reservation.getsockname()[1]
    worker = subprocess.Popen(
        [binary, f"--port={port}", *arguments],
        stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent(),
    )
    try:
        accepting = socket.socket(fileno=int(listener))
        threading.Thread(target=_relay, args=(accepting, port), daemon=True).start()
        while worker.poll() is None and _parent_is_there(parent):
            pass
    finally:
        worker.kill()
        worker.wait()


def _can_be_isolated() -> bool:
    """Tries in a child, for what succeeds half-way can't be undone."""
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
    """Moves this process into a network namespace that holds a loopback and nothing else.

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
    """Moves what comes from one socket to another, through a pipe and so without a copy."""
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
    """Waits for the end of the parent; then no process with `mark` is left, nor the folder."""
    import shutil

    while _parent_is_there(parent):
        pass
    # One that is killed may have started another in between, and may take a while to go; one that
    # waits for a dead disk never goes.
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
    _commands: dict[str, Callable[..., None]] = {"worker": _worker, "sweep": _sweep}
    _commands[sys.argv[1]](_parent, *sys.argv[2:])
    # Threads that relay still wait for bytes.
    sys.stdout.flush()
    os._exit(0)
