"""Sweeps survive the loss of a machine and of the process that drives them."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

from reproduction import board, sweep
from reproduction.items import PlannedRun, ReproduceError
from simulation import experiment_flags
from tests.reproduction import sweep_driver
from tff_suite import command_line

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
NUMBER = int(os.environ.get("FEDOPT_SWEEP_RUNS", "40"))


@pytest.fixture
def flagfile(tmp_path):
    path = tmp_path / "short.flags"
    path.write_text(
        "--task=synthetic\n--synthetic_num_clients=6\n--algorithm=fedavgm\n--total_rounds=2000\n"
        "--clients_per_round=3\n--client_batch_size=10\n--client_learning_rate=0.01\n"
        "--rounds_per_checkpoint=100\n--rounds_per_eval=500\n"
    )
    return path


def start(flagfile, root, *address):
    log = open(f"{root}.log", "a")  # noqa: SIM115  (the driver's, which outlives this function)
    return subprocess.Popen(
        [sys.executable, sweep_driver.__file__, str(flagfile), str(root), str(NUMBER), *address],
        stdout=log,
        stderr=subprocess.STDOUT,
    )


def folder(root):
    return root / "p" / "i" / "s"


def done(root):
    return len(list(folder(root).glob("*/summary.json")))


def wait_for(root, number, driver):
    while done(root) < number:
        assert driver.poll() is None, pathlib.Path(f"{root}.log").read_text()[-3000:]
        time.sleep(0.2)


def wait_for_running(root, number, driver):
    """Waits until so many runs are past their first checkpoint and not yet done."""
    while True:
        assert driver.poll() is None, pathlib.Path(f"{root}.log").read_text()[-3000:]
        running = [
            path
            for path in folder(root).glob("*/metrics.csv")
            if not (path.parent / "summary.json").exists()
            and 110 < path.read_text().count("\n") < 1500
        ]
        if len(running) >= number:
            return
        time.sleep(0.05)


def results(root):
    """Run → what it left, except times."""
    found = {}
    for path in sorted(folder(root).iterdir()):
        with open(path / "metrics.csv", newline="") as f:
            rows = [
                {k: v for k, v in row.items() if not k.startswith("time/")}
                for row in csv.DictReader(f)
            ]
        summary = json.loads((path / "summary.json").read_text())
        for name in ("mean_round_seconds", "run_id", "seal", "seals"):
            del summary[name]
        found[path.name] = rows, summary, (path / "client_metrics.csv").read_text()
    return found


class Connection:
    """What a sweep uses of Ray, for runs that are done at once; may lose its machine.

    Ray itself would put packages of its own before the installed ones in this process.
    """

    class exceptions:  # noqa: N801
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

        class LocalRayletDiedError(RayError):
            pass

    def __init__(self, started, lost_after=None):
        self._started = started
        self._left = lost_after

    def remote(self, **options):
        task = types.SimpleNamespace(remote=self._start)
        return lambda function: types.SimpleNamespace(options=lambda **options: task)

    def _start(self, repository, command, folder, url, home):
        self._started.append(pathlib.Path(folder).name)
        return folder

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2}}]

    def wait(self, references, num_returns, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        if self._left == 0:
            raise self.exceptions.LocalRayletDiedError
        if self._left:
            self._left -= 1
        return sweep.Outcome(0, "done")


def connect_to(monkeypatch, connections):
    connections = iter(connections)
    monkeypatch.setattr(
        sweep, "with_ray", lambda resources: contextlib.nullcontext(next(connections))
    )


def test_a_sweep_goes_on_through_another_machine(monkeypatch, tmp_path, flagfile):
    started = []
    connect_to(monkeypatch, [Connection(started, lost_after=2), Connection(started)])
    runs = sweep_driver.short_runs(flagfile, tmp_path, 5)
    outcomes = sweep.execute(runs, sweep.Resources())
    assert outcomes == {run: sweep.Outcome(0, "done") for run in runs}
    names = [run.folder.name for run in runs]
    # Two were done, and two under way when the machine was lost.
    assert started == names[:4] + names[2:]


def test_a_run_of_each_row_comes_first(monkeypatch, tmp_path, flagfile):
    """So a row that cannot run at all fails at the beginning."""
    started = []
    connect_to(monkeypatch, [Connection(started)])
    runs = sweep_driver.short_runs(flagfile, tmp_path, 6)
    runs = [dataclasses.replace(run, row=row) for run, row in zip(runs, "aaabbc", strict=True)]
    outcomes = sweep.execute(runs, sweep.Resources())
    assert started == [runs[i].folder.name for i in (0, 3, 5, 1, 2, 4)]
    assert set(outcomes) == set(runs)


def test_a_sweep_gives_up_where_every_machine_is_lost(monkeypatch, tmp_path, flagfile):
    connect_to(monkeypatch, [Connection([], lost_after=0) for _ in range(3)])
    runs = sweep_driver.short_runs(flagfile, tmp_path, 2)
    with pytest.raises(ReproduceError, match="lost 3 times; run the same command again"):
        sweep.execute(runs, sweep.Resources(retries=2))


@pytest.mark.parametrize(
    ("said", "free"),
    [
        ("error: Cannot use a/log.txt: No space left on device.", 1 << 30),
        ("error: Cannot use a/client_states.sqlite: database or disk is full.", 1 << 30),
        ("nothing printed", 4096),
    ],
)
def test_a_full_disk_ends_a_sweep_at_once(monkeypatch, tmp_path, flagfile, said, free):
    """Every other run would fail as well, each of them three times."""

    class Full(Connection):
        def get(self, reference):
            return sweep.Outcome(1, said)

    started = []
    connect_to(monkeypatch, [Full(started)])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=free))
    runs = sweep_driver.short_runs(flagfile, tmp_path, 8)
    with pytest.raises(ReproduceError, match=r"no space is left for .*run the same command again"):
        sweep.execute(runs, sweep.Resources())
    assert len(started) == 2


def test_a_full_disk_of_one_machine_of_many_ends_no_sweep(monkeypatch, tmp_path, flagfile):
    class Full(Connection):
        full = True

        def get(self, reference):
            full, self.full = self.full, False
            text = "error: Cannot use a: No space left on device."
            return sweep.Outcome(1, text) if full else super().get(reference)

    connect_to(monkeypatch, [Full([])])
    runs = sweep_driver.short_runs(flagfile, tmp_path / "root", 3)
    resources = sweep.Resources(storage=str(tmp_path / "storage"))
    outcomes = sweep.execute(runs, resources)
    assert {outcome.code for outcome in outcomes.values()} == {0}


def test_a_machine_that_ray_gave_up_is_lost_and_not_too_small(monkeypatch, tmp_path, flagfile):
    class Given(Connection):
        alive = True

        def nodes(self):
            return [{**super().nodes()[0], "Alive": self.alive}]

        def get(self, reference):
            self.alive = False
            return super().get(reference)

    started = []
    connect_to(monkeypatch, [Given(started), Connection(started)])
    runs = sweep_driver.short_runs(flagfile, tmp_path, 5)
    assert set(sweep.execute(runs, sweep.Resources())) == set(runs)
    assert started == [run.folder.name for run in runs]


def test_a_run_stopped_on_its_way_to_more_rounds_is_ended_where_it_is(
    monkeypatch, tmp_path, flagfile
):
    """As after a search that was killed in its second rung, and begins again with the first."""
    commands = {}

    class Listening(Connection):
        def _start(self, repository, command, folder, url, home):
            commands[pathlib.Path(folder).name] = command
            return super()._start(repository, command, folder, url, home)

    connect_to(monkeypatch, [Listening([])])
    runs = sweep_driver.short_runs(flagfile, tmp_path, 3, rounds=10)
    for run, rounds in zip(runs, (7, 10, 25), strict=True):
        run.folder.mkdir(parents=True)
        rows = "".join(f"{r},\n" for r in range(rounds + 1))
        (run.folder / "metrics.csv").write_text(f"round_num,train/loss\n{rows}")
    sweep.execute(runs, sweep.Resources())
    asked = [experiment_flags.parse(commands[r.folder.name]).run["total_rounds"] for r in runs]
    assert asked == [10, 10, 25]


def test_a_run_that_diverged_is_not_repeated(monkeypatch, tmp_path, flagfile, capsys):
    """With other settings, or as a run that was merely stopped, it is."""
    started = []
    connect_to(monkeypatch, [Connection(started)])
    runs = sweep_driver.short_runs(flagfile, tmp_path, 3)
    diverged, other, stopped = runs
    for run in runs:
        run.folder.mkdir(parents=True)
        flags = dict(run.request().in_force)
        if run is other:
            flags["client_learning_rate"] = 99.0
        (run.folder / "hparams.json").write_text(json.dumps({"flags": flags}))
        if run is not stopped:
            (run.folder / "diverged.json").write_text('{"reason": "too large"}')
    outcomes = sweep.execute(runs, sweep.Resources())
    assert started == [other.folder.name, stopped.folder.name]
    assert outcomes[diverged].code == sweep.DIVERGED
    out = capsys.readouterr().out
    assert f"{diverged.name} diverged; the other runs continued." in out
    assert "1 of 3 runs are done already and reused" in out
    assert sweep.execute([diverged], sweep.Resources()) == {diverged: outcomes[diverged]}


@pytest.mark.parametrize("terminal", [False, True])
def test_a_damaged_run_does_not_end_the_sweep_that_shows_it(tmp_path, monkeypatch, terminal):
    """It fails by itself, is named in the end, and the others go on."""
    runs = [PlannedRun("a", seed, {}, tmp_path / f"s{seed}", "", {}, 9, 9) for seed in (1, 2)]
    for run, text in zip(runs, ("round_num,train/loss\n4,0.5\n", "round_num\nx\n"), strict=True):
        run.folder.mkdir()
        (run.folder / "metrics.csv").write_text(text)
    said = io.StringIO()
    said.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", said)
    monkeypatch.setattr(board, "_SECONDS_BETWEEN_LINES", 0.0)
    with board.Board(runs, runs) as shown:
        for run in runs:
            shown.started(run)
        shown.refresh()
    told = ["s1", "4", "s2", "0"] if terminal else ["s1 4/9, s2 0/9"]
    assert all(text in said.getvalue() for text in told)


def test_a_quiet_sweep_shows_no_progress_but_what_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command_line, "_verbosity", -1)
    monkeypatch.setattr(board, "_SECONDS_BETWEEN_LINES", 0.0)
    runs = [PlannedRun("a", seed, {}, tmp_path / f"s{seed}", "", {}, 9, 9) for seed in (1, 2)]
    with board.Board(runs, runs) as shown:
        for run in runs:
            shown.started(run)
        shown.refresh()
        shown.ended(runs[0], "fine")
        shown.failed(runs[1], "lost")
    assert capsys.readouterr().out == f"{runs[1].name} failed and will be restarted: lost\n"


def test_a_storage_that_fails_for_a_time_is_tried_again(monkeypatch, tmp_path, capsys):
    failing, copied = [True], threading.Event()

    def push(folder, url):
        if failing:
            failing.pop()
            raise ReproduceError("--storage: s3://b cannot be used: no answer")
        copied.set()

    monkeypatch.setattr(sweep.storage, "push", push)
    monkeypatch.setattr(sweep, "_SECONDS_BETWEEN_PUSHES", 0.01)
    with sweep._kept("s3://b", tmp_path):
        assert copied.wait(10)
    assert capsys.readouterr().err == "warning: --storage: s3://b cannot be used: no answer\n"


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_lost_machine_and_a_killed_driver_change_no_result(tmp_path, flagfile):
    """Two machines; one is lost and the driver is killed half-way, then started again."""
    from ray.cluster_utils import Cluster

    whole = tmp_path / "whole"
    assert start(flagfile, whole).wait() == 0, pathlib.Path(f"{whole}.log").read_text()[-3000:]
    assert done(whole) == NUMBER

    disturbed = tmp_path / "disturbed"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        other = cluster.add_node(num_cpus=1)
        driver = start(flagfile, disturbed, cluster.address)
        wait_for(disturbed, NUMBER // 4, driver)
        # One on each machine, so that one is lost in the middle of its rounds.
        wait_for_running(disturbed, 2, driver)
        cluster.remove_node(other, allow_graceful=False)
        wait_for(disturbed, NUMBER // 2, driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        before = done(disturbed)
        assert before < NUMBER
        assert start(flagfile, disturbed, cluster.address).wait() == 0
    finally:
        cluster.shutdown()
    log = pathlib.Path(f"{disturbed}.log").read_text()
    assert "failed and will be restarted" in log, "no run was lost with the machine"
    assert f"of {NUMBER} runs are done already" in log
    resumed = [
        json.loads(path.read_text())["resumed"] for path in folder(disturbed).glob("*/hparams.json")
    ]
    assert any(start["round_num"] > 0 for starts in resumed for start in starts)
    assert results(disturbed) == results(whole)


# Ray itself is not needed for what a task does.
_TASKS = """
import sys, types
sys.path.insert(0, '.')
context = types.SimpleNamespace(get_assigned_resources=lambda: {'CPU': 1})
sys.modules['ray'] = types.SimpleNamespace(get_runtime_context=lambda: context)
from reproduction import sweep
root, *names = sys.argv[1:]
flags = {
    'mixed': ['--algorithm=scaffold', '--precision=mixed_bfloat16', '--seed=3'],
    'wrong': ['--algorithm=fedadam', '--server_learning_rate=-1'],
    'other': ['--algorithm=fedavg'],
    'plain': ['--algorithm=fedadam', '--server_learning_rate=0.1'],
}
common = ['--task=synthetic', '--synthetic_num_clients=6', '--total_rounds=3',
          '--clients_per_round=3', '--client_batch_size=10', '--client_learning_rate=0.01']
codes = []
for name in names:
    own = [f'--root_output_dir={root}/p/i/s', f'--experiment_name={name}']
    codes.append(sweep._task('.', common + flags[name] + own, f'{root}/p/i/s/{name}', None).code)
sys.exit(codes != [2 if name == 'wrong' else 0 for name in names])
"""


@pytest.mark.slow
def test_what_a_process_ran_before_changes_no_result(tmp_path):
    def ran(root, *names):
        command = [sys.executable, "-c", _TASKS, str(root), *names]
        subprocess.run(command, cwd=REPO, check=True, timeout=250)
        return root

    # The last two share their task.
    names = ("mixed", "wrong", "other", "plain")
    after_others = ran(tmp_path / "after", *names)
    logs = [folder(after_others) / name / sweep.LOG for name in names]
    found = ["server_learning_rate" in log.read_text() for log in logs]
    assert found == [False, True, False, False]
    for name in names[:-1]:
        shutil.rmtree(folder(after_others) / name)
    alone = results(ran(tmp_path / "alone", "plain"))
    assert results(after_others) == alone and len(alone["plain"][0]) == 4
