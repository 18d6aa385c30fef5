"""Carries out missing runs as Ray tasks, on the cores of one machine or on a cluster.

Every run is a task with declared CPUs, GPUs and memory. It does what `run_experiment.py` does with
the run's flags. Without GPUs, a process does up to eight runs, one after the other, and loads their
task once if its settings are equal. Finished runs are skipped, and interrupted runs resume from
their last checkpoint. If a worker or machine is lost, the task restarts on any free resources and
repeats only the rounds since the last checkpoint. A run prints to `log.txt` in its folder.
"""

import contextlib
import dataclasses
import errno
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from reproduction import board, planned_runs, run_folders, storage
from reproduction.items import REPO, PlannedRun, ReproduceError, has_settings
from simulation import cluster
from simulation.errors import DivergedError, RunError
from simulation.records import outputs
from tasks.task import DataError
from tff_suite import command_line, writing
from tff_suite.hparams import HparamError

# Exit codes of `run_experiment.py` for a model that is no longer finite, and for wrong flags.
DIVERGED = 3
_WRONG_FLAGS = 2
LOG = "log.txt"
# Prefix of the source of an estimate that is not based on runs of the set-up.
NEAREST = "nearest measured"
_SECONDS_BETWEEN_PUSHES = 20.0
# What the system and SQLite say of a full disk, and the free bytes too few for any run.
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT), "database or disk is full")
_BYTES_OF_A_FULL_DISK = 1 << 20
# Starting a process and importing TensorFlow takes longer than a small run. The number is limited,
# since each run leaves its graphs in memory, some 10 MB for a small model.
_RUNS_OF_A_PROCESS = 8


@dataclasses.dataclass(frozen=True)
class Resources:
    """Where runs are executed, and the resources of each.

    Attributes:
      cpus: Cores per run.
      gpus: GPUs per run; a fraction shares one.
      memory: Memory per run in bytes; 0 if not declared.
      jobs: Most runs at a time; `None` for as many as the resources allow.
      address: Address of a Ray cluster (`auto`, `host:port`, `ray://host:port`); `None` for this
        machine.
      storage: Folder or fsspec URL for copies of runs, for machines without a shared file system.
      retries: How often to restart a run that failed or was lost.
      here: Whether runs are executed in this process, one after the other, and not as Ray tasks.
        Tasks, models or methods that exist only in this process need it.
    """

    cpus: float = 1
    gpus: float = 0
    memory: int = 0
    jobs: int | None = None
    address: str | None = None
    storage: str | None = None
    retries: int = 2
    here: bool = False


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
      code: Exit code of `run_experiment.py`; `None` if its process or machine was lost.
      said: The last line that it printed, or the kind of loss.
    """

    code: int | None
    said: str


def is_done(run: PlannedRun) -> bool:
    """Returns whether the run's folder holds all of its rounds, done with the run's settings.

    A run may have gone on towards the protocol's rounds: a search asks for its rungs again later,
    and a budget may be smaller now. A run that `stop_at` stopped is done, too.

    Raises:
      HparamError: If the run's flags are wrong.
    """
    request = run.request()
    try:
        summary, hparams = run.read().ended, run.read().recorded or {}
    except RunError:
        return False  # The run itself will report the damage.
    recorded = hparams.get("flags")
    # A callback may have stopped it, too, which a sweep does not have.
    stopped = "stopped" in (summary or {}) and request.run["stop_at"] is not None
    if not summary or not isinstance(summary.get("rounds"), int) or not isinstance(recorded, dict):
        return False
    return bool(
        summary.get("finished")
        and outputs.is_intact(summary)
        and summary.get("run_id") == hparams.get("run_id")
        and summary["rounds"] <= run.protocol_rounds
        and (summary["rounds"] >= run.rounds or stopped)
        and has_settings(request, recorded)
    )


def has_diverged(run: PlannedRun) -> bool:
    """Returns whether the run's folder holds a run with its settings that diverged.

    Raises:
      HparamError: If the run's flags are wrong.
    """
    try:
        if not run.read().diverged:
            return False
        recorded = (run.read().recorded or {}).get("flags")
    except RunError:
        return False  # The run itself will report the damage.
    return isinstance(recorded, dict) and has_settings(run.request(), recorded)


def execute(
    runs: Sequence[PlannedRun],
    resources: Resources,
    max_minutes: float | None = None,
    check: Callable[[PlannedRun], None] | None = None,
) -> dict[PlannedRun, Outcome]:
    """Carries out the runs that are not complete. A run that diverged is not repeated.

    Args:
      runs: The runs; complete ones are skipped.
      resources: Where to execute them, and the resources of each.
      max_minutes: Minutes for all runs together, shared equally. A run that reaches its limit stops
        with a checkpoint.
      check: Called with each complete run, beginning with those that were complete before. An error
        that it raises ends the sweep.

    Returns:
      The outcome of each run that was not complete before, diverged ones included.

    Raises:
      ReproduceError: If Ray can't be reached, the disk is full, or runs failed. Divergence does not
        count as failure.
    """
    missing, outcomes = [], {}
    for run in runs:
        if is_done(run):
            if check:
                check(run)
        elif has_diverged(run):
            # On another machine it might not diverge, and the table would have both outcomes.
            outcomes[run] = Outcome(DIVERGED, "")
        else:
            missing.append(run)
    _tell_reused(runs, missing)
    if missing:
        outcomes |= _carried_out(missing, runs, resources, max_minutes, check)
    for run, outcome in outcomes.items():
        if outcome.code == DIVERGED:
            print(f"{run.name} diverged; the other runs continued.", flush=True)
    failed = {r: o for r, o in outcomes.items() if o.code not in (0, DIVERGED)}
    if failed:
        told = "; ".join(
            f"{run.name} ({'lost' if o.code is None else f'exit code {o.code}'}: {o.said})"
            for run, o in failed.items()
        )
        raise ReproduceError(f"{len(failed)} of {len(missing)} runs failed: {told}")
    return outcomes


def _carried_out(
    missing: list[PlannedRun],
    runs: Sequence[PlannedRun],
    resources: Resources,
    max_minutes: float | None,
    check: Callable[[PlannedRun], None] | None,
) -> dict[PlannedRun, Outcome]:
    """Executes the missing ones of `runs`; returns their outcomes in order."""
    # A row that cannot run at all shows at the beginning.
    first = {run.row: run for run in reversed(missing)}
    missing.sort(key=lambda run: run is not first[run.row])
    try:
        missing[0].folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ReproduceError(f"Cannot use {e.filename}: {e.strerror}.") from e
    outcomes: dict[PlannedRun, Outcome] = {}
    deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
    with board.Board(missing, runs) as shown:
        for _ in range(resources.retries + 1):
            if resources.here:
                _run_here(missing, outcomes, shown, deadline, check)
                break
            left = [run for run in missing if run not in outcomes]
            with with_ray(resources) as ray, contextlib.suppress(_NodeLost):
                _Sweep(ray, resources, shown, deadline, check).run(left, outcomes)
                break
        else:
            raise ReproduceError(
                "The connection to the cluster's machine that starts runs was lost "
                f"{resources.retries + 1} times; run the same command again to resume."
            )
    return {run: outcomes[run] for run in missing}


def _tell_reused(runs: Sequence[PlannedRun], missing: Sequence[PlannedRun]) -> None:
    """Says how many runs are done, and which are others than those that are there."""
    done = len(runs) - len(missing)
    told = [f"{done} of {len(runs)} runs are done already and reused"] if done else []
    if told := [*told, *told_kept(missing)]:
        command_line.say(f"{'; '.join(told)}.")


def told_kept(missing: Sequence[PlannedRun]) -> list[str]:
    """Returns a text on the runs to do that leave a run with other settings in its folder, if any.

    Of runs with other code or data, `places.Places` tells.

    Args:
      missing: The runs to do.
    """
    moved = {run: parts for run in missing if run.kept and (parts := _other_settings(run))}
    if not moved:
        return []
    what = ", ".join(dict.fromkeys(part for parts in moved.values() for part in parts))
    return [
        f"own folders for {len(moved)} ({next(iter(moved)).name}): earlier runs differ in {what}, "
        "and are kept"
    ]


def _other_settings(run: PlannedRun) -> list[str]:
    """Returns the settings in which a run differs from the one that has its folder."""
    if run.name.endswith(f".rounds={run.protocol_rounds}"):
        return ["total_rounds"]
    assert run.kept is not None
    flags = (run_folders.opened(run.kept).recorded or {}).get("flags")
    return planned_runs.other_settings(run.request(), flags) if flags else []


def _run_here(missing: Any, outcomes: Any, shown: Any, deadline: float | None, check: Any) -> None:
    """Carries out runs in this process; exceptions from users' code are not caught."""
    import simulation

    for i, run in enumerate(missing):
        minutes = {}
        if deadline is not None:
            left = (deadline - time.monotonic()) / 60 / (len(missing) - i)
            minutes["max_minutes"] = max(left, 0.01)
        shown.started(run)
        flags = {k: v for k, v in run.flags.items() if k not in run.objects}
        file = {"flagfile": run.flagfile} if run.flagfile else {}
        try:
            anew = {"fresh": True} if _lacks_state(run.folder) else {}
            settings = {**file, **flags, **_rounds_beyond(run), **minutes, **anew}
            simulation.run(progress=False, **settings, **run.objects)
            outcomes[run] = Outcome(0, "done")
        except DivergedError as e:
            outcomes[run] = Outcome(DIVERGED, str(e))
        except (DataError, HparamError, RunError) as e:
            outcomes[run] = Outcome(1, str(e))
            _check_disk(run, outcomes[run])
        shown.ended(run, outcomes[run].said)
        shown.refresh()
        if check and outcomes[run].code == 0:
            check(run)


def _check_disk(run: PlannedRun, outcome: Outcome) -> None:
    """Ends the sweep if a run failed because its disk is full, since all others would fail, too.

    It may have no space even for the line that says so.
    """
    folder = run.folder.parent
    full = any(text in outcome.said for text in _FULL)
    if not full and folder.is_dir():  # A lost run may not have made it.
        full = shutil.disk_usage(folder).free < _BYTES_OF_A_FULL_DISK
    if full:
        raise ReproduceError(
            f"{run.name}: no space is left for {folder}. Free some, then run the same command "
            "again to resume."
        )


class Estimate(NamedTuple):
    """The estimated remaining cost of a row.

    Attributes:
      row: Name of the row.
      runs: Number of runs that are not complete.
      rounds: Rounds that they still have to do.
      seconds: Seconds per round; `None` if unknown.
      source: Source of the seconds: `measured` in runs of the row; `measured, other rows`; `item`;
        `nearest measured: ` followed by a workload; or `unknown`.
    """

    row: str
    runs: int
    rounds: int
    seconds: float | None
    source: str


def estimate(
    runs: Sequence[PlannedRun],
    given: Mapping[str, float],
    nearest: Mapping[str, tuple[float, str]] | None = None,
    anew: Collection[PlannedRun] = (),
) -> list[Estimate]:
    """Estimates the remaining cost of a set-up's rows.

    Args:
      runs: The set-up's runs.
      given: Row → seconds per round that the item gives; `*` stands for any row.
      nearest: Row → seconds per round by the nearest measured workload, and its name; used if there
        is nothing better.
      anew: Existing runs that will start anew.
    """
    measured = {}
    for run in runs:
        seconds = run.read().values("time/round_seconds")[1].tolist()
        # The first rounds include tracing and compilation.
        if len(seconds) > 2:
            measured.setdefault(run.row, []).append(statistics.median(seconds))
    result = []
    for row in dict.fromkeys(run.row for run in runs):
        missing = [r for r in runs if r.row == row and (r in anew or not is_done(r))]
        rounds = sum(
            run.rounds if run in anew else max(0, run.rounds - board.rounds_done(run))
            for run in missing
        )
        neighbours = [s for some in measured.values() for s in some]
        if row in measured:
            seconds, source = statistics.mean(measured[row]), "measured"
        elif row in given or "*" in given:
            seconds, source = given.get(row, given.get("*")), "item"
        elif neighbours:
            seconds, source = statistics.mean(neighbours), "measured, other rows"
        elif nearest is not None and row in nearest:
            seconds, source = nearest[row][0], f"{NEAREST}: {nearest[row][1]}"
        else:
            seconds, source = None, "unknown"
        result.append(Estimate(row, len(missing), rounds, seconds, source))
    return result


def measure(runs: Sequence[PlannedRun], resources: Resources) -> dict[str, float]:
    """Measures row → seconds per round, by two rounds of a temporary run.

    Args:
      runs: Runs; the first one of each row is measured.
      resources: Where to execute runs.

    Returns:
      Row → seconds of the second round. Rows whose run fails are left out.
    """
    first = {run.row: run for run in reversed(runs)}
    command_line.say(f"Measuring the time of two rounds of {', '.join(first)}.")
    with tempfile.TemporaryDirectory() as folder:
        short = []
        for i, run in enumerate(first.values()):
            place = {"root_output_dir": folder, "experiment_name": f"run{i}"}
            flags = {**run.flags, **place, "total_rounds": 2}
            path = pathlib.Path(folder, f"run{i}")
            short.append(dataclasses.replace(run, folder=path, flags=flags, rounds=2, kept=None))
        try:
            execute(short, dataclasses.replace(resources, storage=None))
        except ReproduceError as e:
            command_line.warn(str(e))
        seconds = {run.row: run.read().values("time/round_seconds")[1].tolist() for run in short}
    return {row: some[-1] for row, some in seconds.items() if len(some) > 1}


@contextlib.contextmanager
def with_ray(resources: Resources) -> Iterator[Any]:
    """Connects to Ray, or starts it on this machine until the context ends."""
    cores = len(os.sched_getaffinity(0))
    if not resources.address and resources.cpus > cores:
        raise ReproduceError(
            f"--cpus_per_run={resources.cpus:g} is more than this machine's {cores} cores."
        )
    with contextlib.ExitStack() as stack:
        try:
            ray = stack.enter_context(cluster.connected(resources.address))
        except RunError as e:
            raise ReproduceError(str(e)) from e
        yield ray


class _NodeLost(Exception):  # noqa: N818
    """The machine that this process is connected to was lost; the cluster may still exist."""


class _Sweep:
    """The loop that keeps as many runs going as the resources allow."""

    def __init__(self, ray, resources, shown, deadline, check):
        self._ray = ray
        self._resources = resources
        self._shown = shown
        self._deadline = deadline
        self._check = check
        # TensorFlow gives a GPU's memory back only when its process ends.
        calls = 1 if resources.gpus else _RUNS_OF_A_PROCESS
        self._task = ray.remote(max_calls=calls, max_retries=0)(_task).options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            **({"memory": resources.memory} if resources.memory else {}),
        )

    def run(self, missing, ended):
        """Carries out the missing runs and puts each one's outcome into `ended`.

        Raises:
          ReproduceError: If no machine has the resources for a run.
          _NodeLost: If runs can no longer be started or monitored through this connection.
        """
        waiting, going = [(run, 0) for run in missing], {}
        while waiting or going:
            nodes = [node for node in self._ray.nodes() if node["Alive"]]
            if not nodes and not going:
                # Ray drops a machine that does not answer in time, as under heavy load.
                raise _NodeLost
            room = self._room(nodes)
            if not room and not going:
                raise ReproduceError(
                    f"No machine of the cluster has {self._resources.cpus:g} CPUs, "
                    f"{self._resources.gpus:g} GPUs and {self._resources.memory / 1e9:g} GB of "
                    "memory for a run."
                )
            while waiting and len(going) < room:
                run, tries = waiting.pop(0)
                going[self._start(run, len(waiting) + 1, room)] = run, tries
                self._shown.started(run)
            done, _ = self._ray.wait(list(going), num_returns=1, timeout=1.0)
            for reference in done:
                run, tries = going.pop(reference)
                outcome = self._outcome(reference)
                if outcome.code not in (0, DIVERGED, _WRONG_FLAGS):
                    if not self._resources.storage:  # With it, machines have disks of their own.
                        _check_disk(run, outcome)
                    if tries < self._resources.retries and outcome.code != 128 + 2:
                        self._shown.failed(run, outcome.said)
                        waiting.insert(0, (run, tries + 1))
                        continue
                if self._resources.storage:
                    storage.pull(url_of(run, self._resources), run.folder, results_only=True)
                ended[run] = outcome
                self._shown.ended(run, outcome.said)
                if self._check and outcome.code == 0:
                    self._check(run)
            self._shown.refresh()

    def _room(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """Returns how many runs fit on the machines that Ray lists as `nodes`."""
        room = 0
        for node in nodes:
            has = node["Resources"]
            fits = [has.get("CPU", 0) / self._resources.cpus if self._resources.cpus else 1e6]
            if self._resources.gpus:
                fits.append(has.get("GPU", 0) / self._resources.gpus)
            if self._resources.memory:
                fits.append(has.get("memory", 0) / self._resources.memory)
            room += int(min(fits) + 1e-9)
        return min(room, self._resources.jobs or room)

    def _start(self, run, left, room):
        command = [*run.command, *(f"--{k}={v}" for k, v in _rounds_beyond(run).items())]
        if self._deadline is not None:
            # The remaining time is divided by the number of waves that the remaining runs need.
            minutes = (self._deadline - time.monotonic()) / 60 / -(-left // room)
            command.append(f"--max_minutes={max(minutes, 0.01):.3f}")
        url = url_of(run, self._resources) if self._resources.storage else None
        return self._task.remote(str(REPO), command, str(run.folder), url, run.home)

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as e:
            return Outcome(1, f"{type(e.cause).__name__}: {' '.join(str(e.cause).split())}")
        except self._ray.exceptions.LocalRayletDiedError as e:
            raise _NodeLost from e
        except self._ray.exceptions.RayError as e:
            return Outcome(None, type(e).__name__)


def _rounds_beyond(run: PlannedRun) -> dict[str, int]:
    """Returns the flag that ends a run where it is, if it has done more than its planned rounds.

    That happens if the run was stopped on the way to more rounds, e.g. to a search's next rung, or
    if the budget is smaller now. A run cannot go back, so this only makes it write its results.
    """
    try:
        done = board.rounds_done(run)
    except RunError:
        return {}  # The run itself will report the damage.
    return {"total_rounds": done} if done > run.rounds else {}


def _lacks_state(folder: pathlib.Path) -> bool:
    """Returns whether a run with more rounds to do has results, but no state to go on from.

    `tools/finished_runs.py` brings such runs, and a search may promote them.
    """
    try:
        summary = run_folders.opened(folder).ended or {}
    except RunError:
        return False  # The run itself will report the damage.
    return bool(summary.get("finished")) and not any(folder.glob("checkpoints/*"))


def url_of(run: PlannedRun, resources: Resources) -> str:
    """Returns where the storage, which must be set, keeps a run."""
    assert resources.storage is not None
    return storage.join(resources.storage, *run.folder.parts[-4:])


def _task(
    repository: str, command: list[str], folder: str, url: str | None, home: str = ""
) -> Outcome:
    """Does a run in this process, one at a time; what it prints goes to its log."""
    os.chdir(repository)
    if repository not in sys.path:
        sys.path.insert(0, repository)
    if home and home not in sys.path:
        sys.path.append(home)
    path = pathlib.Path(folder)
    cluster.take_cores()
    if url:
        storage.pull(url, path)
    if _lacks_state(path):
        command = [*command, "--fresh"]
    path.mkdir(parents=True, exist_ok=True)
    # Redirect the descriptors themselves, since TensorFlow and TFF's worker bypass Python.
    with writing.open_to_append(path / LOG, "a", encoding="utf-8") as log:
        for descriptor in (1, 2):
            os.dup2(log.fileno(), descriptor)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    import run_experiment
    from simulation import assembly

    assembly.share_task()
    with _kept(url, path) if url else contextlib.nullcontext():
        code = run_experiment.train(command)
    sys.stdout.flush()
    sys.stderr.flush()
    return Outcome(code, last_line(path))


@contextlib.contextmanager
def _kept(url, folder):
    """Copies a run's folder to the storage at regular intervals and at its end."""
    stop = threading.Event()

    def push_now_and_then():
        while not stop.wait(_SECONDS_BETWEEN_PUSHES):
            try:
                storage.push(folder, url)
            except ReproduceError as e:
                # The next copy may succeed; an error of the last one is raised.
                command_line.warn(str(e))

    thread = threading.Thread(target=push_now_and_then, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        storage.push(folder, url)


def last_line(folder: pathlib.Path) -> str:
    """Returns the last line of a run's log."""
    try:
        lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "nothing printed"
