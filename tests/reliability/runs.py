"""Runs of the command in children of one process that has imported TensorFlow already.

Most of a short run is imports. Python's `forkserver` imports once (`preload`) and forks a child for
every run, before TensorFlow has started a thread: each child is a process of its own, with a
TensorFlow of its own, and is killed like one.
"""

import contextlib
import functools
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from typing import NamedTuple

import psutil

from simulation.records import checkpoints, client_states
from tests.reliability import disturb
from tests.test_run_experiment import assert_same_run, rows_but_times

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
KILLED = -signal.SIGKILL
ROUNDS = 40
_MARK = "FEDOPT_RELIABILITY_CASE"
_SECONDS = 900

COMMON = (
    "--import=tests.simulation.toy_extension",
    "--task=toy",
    "--experiment_name=run",
    "--clients_per_round=3",
    "--client_batch_size=3",
    "--client_epochs_per_round=2",
    "--client_learning_rate=0.3",
    "--rounds_per_checkpoint=3",
    "--rounds_per_eval=2",
)


class Family(NamedTuple):
    """Methods that keep the same kinds of state.

    Attributes:
      flags: Flags of the method that stands for them.
      always: What is done in every process, also in those that are left in peace.
      least_rounds: Rounds that a run needs to come through all that the method does.
    """

    flags: tuple[str, ...]
    always: tuple[Callable[[], None], ...] = ()
    least_rounds: int = 3


FAMILIES = {
    "stateless": Family(("--algorithm=fedavgm",)),
    "client_state": Family(
        ("--algorithm=scaffold", "--server_learning_rate=0.5"),
        # So that states lie in SQLite, and are written there in the middle of rounds.
        (functools.partial(disturb.keep_states_in_memory, 2),),
    ),
    # Both of its stages that end, in the first rounds.
    "staged": Family(
        (
            "--algorithm=fedcorr",
            "--fedcorr_iterations=1",
            "--fedcorr_stage1_clients=3",
            "--fedcorr_stage2_rounds=1",
        ),
        least_rounds=5,
    ),
    "server_vectors": Family(("--algorithm=adafed", "--server_learning_rate=0.5")),
}


def command(family: str, runtime: str, rounds: int = ROUNDS, **changed) -> list[str]:
    """Returns the arguments of a run; `changed` are further flags."""
    more = [f"--{name}={value}" for name, value in changed.items()]
    flags = FAMILIES[family].flags
    return [*COMMON, *flags, f"--runtime={runtime}", f"--total_rounds={rounds}", *more]


class Outcome(NamedTuple):
    """How a run ended: exit code (minus the signal, if killed), stdout and stderr."""

    code: int
    out: str
    err: str


class Child:
    """A run in a process of its own, with `folder` as working directory.

    Attributes:
      pid: Its process.
      rounds: The rounds whose rows it has written so far, as far as they were asked for.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        folder: pathlib.Path,
        disturbances: Sequence[Callable[[], None]] = (),
    ):
        self._case = uuid.uuid4().hex
        self._log = folder / f"log-{self._case}"
        context = _context()
        self._receiver, sender = context.Pipe(duplex=False)
        with sender:
            self._process = context.Process(
                target=_work,
                args=(list(arguments), str(folder), str(self._log), self._case),
                kwargs={"disturbances": list(disturbances), "rounds": sender},
                daemon=True,
            )
            self._process.start()
        self.pid = self._process.pid
        self.rounds: list[int] = []

    def wait_for_round(self, round_num: int) -> bool:
        """Returns once that round or a later one has its row; false if the run ended before."""
        while not (self.rounds and self.rounds[-1] >= round_num):
            if not self._receiver.poll(_SECONDS):
                raise TimeoutError(f"no round in {_SECONDS} s: {self._outcome()}")
            try:
                self.rounds.append(self._receiver.recv())
            except EOFError:
                return False
        return True

    def signal(self, number: int) -> None:
        """Sends a signal, if the process still runs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = _SECONDS) -> Outcome:
        """Waits for the end of the run and of every process that it has started."""
        deadline = time.monotonic() + seconds
        # Rounds are read to the last: a full pipe would halt the run.
        with contextlib.suppress(EOFError):
            while self._receiver.poll(max(0, deadline - time.monotonic())):
                self.rounds.append(self._receiver.recv())
        self._process.join(max(0, deadline - time.monotonic()))
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"the run did not end in {seconds} s: {self._outcome()}")
        _wait_for_the_end_of_all(self._case)
        outcome = self._outcome()
        self._receiver.close()
        self._process.close()
        for kind in ("out", "err"):
            # A child that is killed early enough has made none.
            pathlib.Path(f"{self._log}.{kind}").unlink(missing_ok=True)
        return outcome

    def _outcome(self):
        texts = (pathlib.Path(f"{self._log}.{k}") for k in ("out", "err"))
        texts = [t.read_text() if t.exists() else "" for t in texts]
        return Outcome(self._process.exitcode, *texts)


def stopped_at(
    round_num: int,
    arguments: Sequence[str],
    folder: pathlib.Path,
    disturbances: Sequence[Callable[[], None]] = (),
) -> Child:
    """Starts a run that stands still when the row of a round is written, until SIGCONT."""
    stop = functools.partial(disturb.stop_at_round, round_num)
    child = Child(arguments, folder, [*disturbances, stop])
    deadline = time.monotonic() + _SECONDS
    while psutil.Process(child.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, "the run did not come to its round"
        time.sleep(0.02)
    return child


def run(
    arguments: Sequence[str],
    folder: pathlib.Path,
    disturbances: Sequence[Callable[[], None]] = (),
    seconds: float = _SECONDS,
) -> Outcome:
    """Runs the command to its end, which must come within so many seconds."""
    return Child(arguments, folder, disturbances).wait(seconds)


def finish(
    arguments: Sequence[str],
    folder: pathlib.Path,
    disturbances: Sequence[Callable[[], None]] = (),
    seconds: float = _SECONDS,
) -> pathlib.Path:
    """Runs the command, which must succeed, and returns the folder of its results."""
    outcome = run(arguments, folder, disturbances, seconds)
    assert outcome.code == 0 and not outcome.err, outcome
    return results(folder)


def results(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the results of a run with `folder` as working directory."""
    return folder / "results" / "run"


def assert_same(got: pathlib.Path, want: pathlib.Path) -> None:
    """Checks that two runs' folders hold the same bits, except times."""
    assert_same_run(got, want)
    newest = [checkpoints.rounds(str(f / "checkpoints"))[-1] for f in (got, want)]
    assert newest[0] == newest[1] == int(rows_but_times(want)[-1]["round_num"])
    kept = [f / "client_states.sqlite" for f in (got, want)]
    assert kept[0].exists() == kept[1].exists()
    if kept[0].exists():
        states = [client_states.read_all(str(path)) for path in kept]
        assert states[0].keys() == states[1].keys()
        for client, parts in states[0].items():
            for name, value in parts.items():
                assert value.tobytes() == states[1][client][name].tobytes(), (client, name)
    files = [
        sorted(p.relative_to(f).as_posix() for p in f.rglob("*") if "tfevents" not in p.name)
        for f in (got, want)
    ]
    assert files[0] == files[1]


def assert_refused(outcome: Outcome, *names: str) -> None:
    """Checks that a run was refused in one line that has one of the names in it."""
    assert outcome.code in (1, 2), outcome
    assert len(outcome.err.splitlines()) == 1 and outcome.err.startswith("error: "), outcome
    assert not names or any(name in outcome.err for name in names), outcome


def copied(folder: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """Copies a run with its working directory; returns that of the copy."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    return to


@functools.cache
def _context():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.reliability.preload"])
    # The server looks for what it imports where Python does, not where pytest does.
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPO), *([path] if path else [])])
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if path:
            os.environ["PYTHONPATH"] = path
    return context


def _work(arguments, folder, log, case, disturbances, rounds):
    """The child's main function."""
    assert "tests.reliability.preload" in sys.modules, "the import was to be done before the fork"
    for number, kind in ((1, "out"), (2, "err")):
        file = os.open(f"{log}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ[_MARK] = case
    os.chdir(folder)
    import run_experiment

    disturb.tell_rounds(rounds)
    for disturbance in disturbances:
        disturbance()
    code = run_experiment.main(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _wait_for_the_end_of_all(case):
    """Waits until nothing is left of what a run has started, which must not take long."""
    deadline = time.monotonic() + 20
    while left := [p for p in psutil.process_iter(["name"]) if _started_by(p, case)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def _started_by(process, case):
    # The run itself has no such mark: it was set after its start. What it starts inherits it.
    try:
        return process.environ().get(_MARK) == case
    except psutil.Error:
        return False


def number(name: str, default: int) -> int:
    """Returns how many cases to take: FEDOPT_<name>, e.g. FEDOPT_KILLS=5, or the default."""
    return int(os.environ.get(f"FEDOPT_{name}", default))
