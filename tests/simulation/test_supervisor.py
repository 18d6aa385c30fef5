"""What a supervisor starts is this user's alone, and ends with its parent."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from simulation import supervisor
from tests.simulation import namespaces

_PR_SET_DUMPABLE = 4
# Listens as TFF's worker does, on every address, and gives back what it gets.
_ECHO = f"""#!{sys.executable} -IS
import socket, sys, threading
server = socket.create_server(("::", int(sys.argv[1].split("=")[1])), family=socket.AF_INET6,
                              dualstack_ipv6=True, reuse_port=True)
def echo(connection):
    while data := connection.recv(1 << 20):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_RDWR)
while True:
    threading.Thread(target=echo, args=[server.accept()[0]], daemon=True).start()
"""


@pytest.fixture
def echo(tmp_path):
    """A supervised echo server: the supervisor, and the name of the socket that leads to it."""
    binary = tmp_path / "echo"
    binary.write_text(_ECHO)
    binary.chmod(0o755)
    name = f"\0test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(name)
        listener.listen()
        started = supervisor.start(
            ["worker", str(listener.fileno()), str(binary)], pass_fds=[listener.fileno()]
        )
    yield started, name
    if started.poll() is None:
        supervisor.stop(started)


def asked(name, data):
    """What comes back for `data`; nothing if the connection is closed before."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(name)
        with contextlib.suppress(OSError):
            connection.sendall(data)
        got = b""
        with contextlib.suppress(OSError):
            while len(got) < len(data) and (part := connection.recv(1 << 20)):
                got += part
    return got


def wait_until_it_answers(name):
    deadline = time.monotonic() + 60
    while asked(name, b"x") != b"x":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def the_worker(started):
    (worker,) = psutil.Process(started.pid).children()
    return worker


def test_bytes_pass_unchanged_and_closed_connections_leave_nothing(echo):
    started, name = echo
    wait_until_it_answers(name)

    def number_open():
        return len(os.listdir(f"/proc/{started.pid}/fd"))

    def wait_until_open(number):
        deadline = time.monotonic() + 10
        while number_open() > number:
            assert time.monotonic() < deadline, f"{number_open()} descriptors, not {number}"
            time.sleep(0.02)

    time.sleep(0.5)
    at_rest = number_open()
    for data in (os.urandom(number) for number in (1, 100, 70_000, 3_000_000)):
        assert asked(name, data) == data
    wait_until_open(at_rest)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as idle:
        idle.connect(name)
        assert asked(name, b"beside") == b"beside"
        assert number_open() > at_rest
    wait_until_open(at_rest)


def test_the_worker_can_not_be_reached_but_through_the_socket(echo):
    if not namespaces.are_allowed():
        pytest.skip("this kernel gives an ordinary user no network namespace")
    started, name = echo
    wait_until_it_answers(name)
    assert supervisor.has_own_network(started)
    worker = the_worker(started)
    assert os.readlink(f"/proc/{worker.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    devices = pathlib.Path(f"/proc/{worker.pid}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]
    port = next(int(p.split("=")[1]) for p in worker.cmdline() if p.startswith("--port="))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port)).close()


def test_an_ordinary_user_may_have_one_as_well():
    """Where the tests run as root, which needs no user namespace."""
    command = ["unshare", "--user", "--net", "true"]
    user = {"user": 65534} if os.geteuid() == 0 else {}
    try:
        allowed = subprocess.run(command, capture_output=True, **user).returncode == 0
    except FileNotFoundError:
        allowed = False
    if not allowed:
        pytest.skip("this kernel gives an ordinary user no network namespace")
    # In a process of one thread, which alone may make a user namespace.
    program = f"""
import ctypes, os, socket
from simulation import supervisor
if {bool(user)}:
    os.setuid(65534)
    # A process that changes its user may no longer write its own files in /proc.
    ctypes.CDLL(None).prctl({_PR_SET_DUMPABLE}, 1)
supervisor._isolate()
with socket.create_server(("127.0.0.1", 0)) as server:
    # Not `create_connection`, for which Python reads files that may be another user's alone.
    socket.socket().connect(server.getsockname())
"""
    repository = pathlib.Path(supervisor.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_another_user_is_turned_away(echo):
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    _, name = echo
    wait_until_it_answers(name)
    child = os.fork()
    if not child:
        os.setuid(65534)
        os._exit(asked(name, b"let me in") != b"")
    assert os.waitpid(child, 0)[1] == 0
    assert asked(name, b"me") == b"me"


def test_where_the_kernel_gives_no_namespace_the_worker_runs_all_the_same(tmp_path):
    """As in a container that forbids them: the supervisor says so and continues."""
    if not namespaces.are_allowed():
        pytest.skip("so it is here for every test")
    script = tmp_path / "asks.py"
    script.write_text(
        f"import sys, pathlib\nsys.path[:0] = {sys.path!r}\n"
        "from tests.simulation import test_supervisor as t\n"
        "assert not t.namespaces.are_allowed()\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "started, name = next(generator := t.echo.__wrapped__(folder))\n"
        "t.wait_until_it_answers(name)\n"
        "assert not t.supervisor.has_own_network(started)\n"
        "list(generator)\n"
    )
    command = [sys.executable, namespaces.__file__, sys.executable, script, tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("network namespace: "), ended.stdout


@pytest.mark.parametrize("what", ["stop", "worker", "supervisor"])
def test_none_is_left(echo, what):
    started, name = echo
    wait_until_it_answers(name)
    worker = the_worker(started)
    if what == "stop":
        supervisor.stop(started)
    else:
        (worker if what == "worker" else started).kill()
        started.wait(20)
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        # Nobody reaps an orphan in a container without an init process.
        while worker.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    with pytest.raises(ConnectionRefusedError):
        asked(name, b"x")


def test_a_sweep_takes_all_that_is_marked_and_nothing_else(tmp_path):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    mark = uuid.uuid4().hex
    marked = {**os.environ, "TEST_MARK": mark}
    sleeps = [sys.executable, "-ISc", "import time; time.sleep(600)"]
    # One that is in no process tree of ours, and one that no ordinary signal ends.
    orphan = (
        "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.fork() and os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    )
    got = subprocess.Popen([sys.executable, "-ISc", orphan], env=marked, stdout=subprocess.PIPE)
    with got:
        orphaned = psutil.Process(int(got.stdout.readline()))
        ours = subprocess.Popen(sleeps, env=marked)
        other = subprocess.Popen(sleeps)
        sweeper = supervisor.start(["sweep", mark, str(folder)])
        time.sleep(0.3)
        assert ours.poll() is None and orphaned.is_running() and folder.exists()
        supervisor.stop(sweeper)
    assert ours.wait(10) == -signal.SIGKILL
    assert not orphaned.is_running() or orphaned.status() == psutil.STATUS_ZOMBIE
    assert not folder.exists()
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_child_that_is_to_die_with_its_parent_does():
    script = (
        f"import sys\nsys.path[:0] = {sys.path!r}\n"
        "import subprocess, time\nfrom simulation import supervisor\n"
        "child = subprocess.Popen(supervisor.dying_with_parent(['sleep', '600']))\n"
        "print(child.pid, flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 10
    with contextlib.suppress(psutil.NoSuchProcess):
        while child.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)
