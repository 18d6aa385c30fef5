"""However a command ends, nothing of it is left; while it runs, nobody else can talk to it.

What is looked at are the processes that a test started, found by a mark in their environment.
"""

import contextlib
import importlib.util
import ipaddress
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import uuid

import psutil
import pytest

pytestmark = pytest.mark.slow

REPO = pathlib.Path(__file__).resolve().parent.parent
_MARK = "FEDOPT_TEST_ENDING"
_SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


class Started:
    """A command, with a folder for temporary files of its own."""

    def __init__(self, *command):
        self.mark = uuid.uuid4().hex
        self.temporary = pathlib.Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
        self.output = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", _RUN_WITH_SIGNALS, *map(str, command)],
            env={**os.environ, _MARK: self.mark, "TMPDIR": str(self.temporary)},
            cwd=REPO,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.output,
        )

    def said(self):
        size = os.fstat(self.output.fileno()).st_size
        return os.pread(self.output.fileno(), size, 0).decode()

    def tree(self):
        """The processes that are there."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self.mark:
                    found.append(process)
        return found

    def wait_until(self, holds, seconds=120):
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        return value

    def assert_nothing_is_left(self):
        deadline = time.monotonic() + 10
        while left := self.tree():
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        assert os.listdir(self.temporary) == []

    def close(self):
        for process in self.tree():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        shutil.rmtree(self.temporary)


# A shell starts what it runs in the background with Ctrl-C ignored.
_RUN_WITH_SIGNALS = (
    "import os, signal, sys\n"
    "for n in (signal.SIGINT, signal.SIGHUP): signal.signal(n, signal.SIG_DFL)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@contextlib.contextmanager
def running(*command):
    started = Started(*command)
    try:
        yield started
    finally:
        started.close()


def reachable(processes):
    """Sockets through which another machine could talk to one of the processes."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            if not os.path.samefile(f"/proc/{process.pid}/ns/net", "/proc/self/ns/net"):
                devices = pathlib.Path(f"/proc/{process.pid}/net/dev").read_text()
                assert [line.split(":")[0].strip() for line in devices.splitlines()[2:]] == ["lo"]
                continue
            for c in process.net_connections("inet"):
                waits = c.status == psutil.CONN_LISTEN or (
                    c.type == socket.SOCK_DGRAM and not c.raddr
                )
                if (
                    waits
                    and not ipaddress.ip_address(c.laddr.ip.removeprefix("::ffff:")).is_loopback
                ):
                    found.append((process.name(), c.laddr))
    return found


def test_the_check_sees_an_open_port():
    me = [psutil.Process()]
    with socket.create_server(("127.0.0.1", 0)):
        assert not reachable(me)
    with socket.create_server(("", 0)) as open_server:
        assert [address.port for _, address in reachable(me)] == [open_server.getsockname()[1]]


# A sweep's Ray, with a task that is under way on every core.

_RAY = """
import pathlib, sys, time
sys.path.insert(0, ".")
from tff_suite import command_line
command_line.begin()
from reproduction import sweep

def work(folder):
    import os
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(600)

try:
    command_line.stops_raise()
    with sweep.with_ray(sweep.Resources()) as ray:
        task = ray.remote(work).options(num_cpus=1)
        going = [task.remote(sys.argv[1]) for _ in range(int(ray.available_resources()["CPU"]))]
        if sys.argv[2] == "wait":
            while True:
                ray.wait(going, timeout=1.0)
        while not list(pathlib.Path(sys.argv[1]).iterdir()):
            time.sleep(0.1)
        if sys.argv[2] == "raise":
            raise ValueError("on purpose")
except KeyboardInterrupt:
    number = command_line.received()
    print(f"stopped by {number.name}", flush=True)
    sys.exit(128 + number)
"""


def _called(how):
    return getattr(how, "name", how)


@pytest.mark.quick_cases("SIGKILL")
@pytest.mark.parametrize("how", [*_SIGNALS, "raise", "end"], ids=_called)
def test_ray_of_a_sweep(tmp_path, how):
    waits = isinstance(how, signal.Signals)
    with running("-c", _RAY, tmp_path, "wait" if waits else how) as started:
        if waits:
            started.wait_until(lambda: list(tmp_path.iterdir()))
            names = {process.name() for process in started.tree()}
            assert {"gcs_server", "raylet"} <= names and len(started.tree()) >= 9
            assert reachable(started.tree()) == []
            (folder,) = started.temporary.iterdir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert list(folder.glob("ray/session_*/sockets/raylet"))
            started.process.send_signal(how)
        code = started.process.wait(60)
        said = started.said()
        if how == signal.SIGKILL:
            assert code == -how
        elif waits:
            assert code == 128 + how and said == f"stopped by {how.name}\n"
        elif how == "raise":
            assert code == 1 and said.splitlines()[-1] == "ValueError: on purpose"
        else:
            assert code == 0 and said == ""
        started.assert_nothing_is_left()


def test_cores_are_shared_by_all_sweeps_of_a_machine():
    """A core is one process's until that ends, and then anyone's; no folder is made for it."""
    script = (
        "import os, sys, types\nsys.path.insert(0, '.')\n"
        "context = types.SimpleNamespace(get_assigned_resources=lambda: {'CPU': 1})\n"
        "sys.modules['ray'] = types.SimpleNamespace(get_runtime_context=lambda: context)\n"
        "from simulation import cluster\n"
        "taken = cluster.take_cores()\n"
        "print(len(taken), *sorted(os.sched_getaffinity(0)), flush=True)\ninput()"
    )

    def another():
        started = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        number, *cores = map(int, started.stdout.readline().split())
        return started, number, cores

    allowed = sorted(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        taken = []
        for _ in range(len(allowed) + 1):
            started, number, cores = another()
            stack.callback(started.communicate)
            taken += cores if number else []
            if not number:
                # Each core has its run, of this test or of others that run beside it.
                assert cores == allowed
        assert number == 0 and len(set(taken)) == len(taken)
        if taken:
            first = stack.pop_all()
            first.close()
    if taken:
        started, number, cores = another()
        started.communicate()
        assert number in (0, 1)


# A whole sweep.


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [*_SIGNALS, "end"], ids=lambda how: getattr(how, "name", how))
def test_reproduce(tmp_path, how):
    """Its runs are TFF's worker's; what they have done so far stays."""
    rounds = "rounds=2" if how == "end" else "rounds=2000"
    item = ["--paper=adafedadam", "--item=table5", "--setup=synthetic", "--rows=fedavg"]
    options = ["--seeds=1,2", f"--budget={rounds}", f"--root_output_dir={tmp_path}"]
    with running("reproduce.py", *item, *options) as started:
        if how == "end":
            assert started.process.wait(600) == 0, started.said()
            assert len(list(tmp_path.rglob("summary.json"))) == 2
        else:
            started.wait_until(lambda: list(tmp_path.rglob("*.checkpoint")), 300)
            assert reachable(started.tree()) == []
            started.process.send_signal(how)
            code = started.process.wait(60)
            assert code == (-how if how == signal.SIGKILL else 128 + how)
            if how != signal.SIGKILL:
                last = started.said().splitlines()[-1]
                assert last.startswith(f"error: stopped by {how.name}; run the same"), (
                    started.said()
                )
            assert "***" not in started.said() and "Traceback" not in started.said()
            assert list(tmp_path.rglob("*.checkpoint"))
        started.assert_nothing_is_left()


# One run.

_ARGUMENTS = [
    "--task=synthetic",
    "--synthetic_num_clients=6",
    "--algorithm=fedavg",
    "--clients_per_round=3",
    "--client_batch_size=10",
    "--client_learning_rate=0.01",
    "--experiment_name=x",
]
# A signal that comes when a module is imported, or when a function of it is called first.
_SIGNAL_TO_ITSELF = """
import importlib.machinery, os, runpy, signal, sys

_, at, number, *sys.argv = sys.argv
module, _, name = at.partition(":")

def come():
    print("The signal comes.", flush=True)
    os.kill(os.getpid(), int(number))

class Finder:
    def find_spec(self, found, path=None, target=None):
        if found != module:
            return None
        if not name:
            return come()
        spec = importlib.machinery.PathFinder.find_spec(found, path)
        execute = spec.loader.exec_module
        def exec_module(made):
            execute(made)
            original = getattr(made, name)
            def call(*args, **kwargs):
                come()
                return original(*args, **kwargs)
            setattr(made, name, call)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
sys.path.insert(0, ".")
if at == "ignored":
    signal.signal(int(number), signal.SIG_IGN)
    module, name = "simulation.rounds.loop", "run"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_STOPS = [number for number in _SIGNALS if number != signal.SIGKILL]
_BEFORE_ROUNDS = [
    "absl",
    "tff_suite.hparams",
    "simulation.experiment",
    "simulation.experiment_flags:parse",
    "tensorflow",
    "simulation.tff.context",
    "tasks:load",
    "simulation.runtimes:configure_threads",
    "simulation.engine.process:program_of",
    "simulation.records.trackers:opened",
]


def test_there_is_what_runs_are_stopped_at():
    for at in _BEFORE_ROUNDS:
        module, _, name = at.partition(":")
        assert importlib.util.find_spec(module), at
        assert not name or hasattr(importlib.import_module(module), name), at


@pytest.mark.quick_cases("absl-*", "simulation.experiment_flags:parse-SIGINT", "tensorflow-SIGTERM")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", _STOPS, ids=_called)
@pytest.mark.parametrize("at", _BEFORE_ROUNDS)
def test_stopped_before_the_first_round(tmp_path, at, how):
    arguments = [*_ARGUMENTS, "--total_rounds=1", f"--root_output_dir={tmp_path}"]
    if at == "simulation.tff.context":
        arguments.append("--runtime=tff")  # Other runtimes do without it.
    with running("-c", _SIGNAL_TO_ITSELF, at, int(how), "run_experiment.py", *arguments) as started:
        code = started.process.wait(120)
        said = started.said()
        assert "The signal comes." in said and code == 128 + how, said
        assert said.splitlines()[-1].startswith(f"error: stopped by {how.name}"), said
        assert said.count("stopped by") == 1 and "Traceback" not in said, said
        started.assert_nothing_is_left()


@pytest.mark.quick_cases("SIGHUP")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", _STOPS, ids=_called)
def test_what_is_ignored_stays_ignored(tmp_path, how):
    """As SIGHUP is under `nohup`, and SIGINT in the background of a script."""
    arguments = [*_ARGUMENTS, "--total_rounds=1", f"--root_output_dir={tmp_path}"]
    command = ("-c", _SIGNAL_TO_ITSELF, "ignored", int(how), "run_experiment.py")
    with running(*command, *arguments) as started:
        assert started.process.wait(120) == 0, started.said()
        assert "The signal comes." in started.said()
        started.assert_nothing_is_left()


_AT_ROUND_3 = """
import errno
from simulation.records import metrics_csv
original = metrics_csv.MetricsCsv.append
def append(self, round_num, values):
    if round_num == 3:
        raise {error}
    original(self, round_num, values)
metrics_csv.MetricsCsv.append = append
"""
_ERRORS = {
    "full disk": "OSError(errno.ENOSPC, 'No space left on device')",
    "exception": "ZeroDivisionError('on purpose')",
}


@pytest.mark.quick_cases("native-SIGKILL")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [*_SIGNALS, *_ERRORS, "end"], ids=_called)
@pytest.mark.parametrize("runtime", ["per_client", "native", "vectorized"])
def test_run_experiment(tmp_path, runtime, how):
    (tmp_path / "at_round_3.py").write_text(_AT_ROUND_3.format(error=_ERRORS.get(how)))
    arguments = [
        *_ARGUMENTS,
        f"--runtime={runtime}",
        f"--root_output_dir={tmp_path}",
        f"--total_rounds={10**6 if isinstance(how, signal.Signals) else 4}",
    ]
    if how in _ERRORS:
        # `--import` finds what is beside the command.
        arguments.append("--import=at_round_3")
        command = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.path.insert(0, '.'); "
        command += "import runpy; sys.argv[0] = 'run_experiment.py'; "
        command += "runpy.run_path('run_experiment.py', run_name='__main__')"
        arguments = ["-c", command, *arguments]
    else:
        arguments.insert(0, "run_experiment.py")
    table = tmp_path / "x" / "metrics.csv"
    with running(*arguments) as started:
        if isinstance(how, signal.Signals):
            started.wait_until(lambda: table.exists() and table.read_text().count("\n") > 3)
            assert reachable(started.tree()) == []
            names = [process.name() for process in started.tree()]
            assert names.count("worker_binary") == (runtime == "native")
            started.process.send_signal(how)
        code = started.process.wait(120)
        said = started.said()
        if how == signal.SIGKILL:
            assert code == -how
        elif isinstance(how, signal.Signals):
            assert code == 128 + how, said
            assert said.splitlines()[-1].startswith(f"Stopped by {how.name}. "), said
        elif how == "full disk":
            assert code == 1 and said.splitlines()[-1].startswith("error: "), said
        elif how == "exception":
            assert code != 0 and "on purpose" in said.splitlines()[-1], said
        else:
            assert code == 0, said
        started.assert_nothing_is_left()
