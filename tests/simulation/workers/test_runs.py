"""Runs with workers as a user starts them: killed, gone on with others, refused."""

import csv
import os
import pathlib
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from simulation.errors import RunError
from simulation.records import checkpoints
from simulation.runtimes import cluster

REPO = pathlib.Path(__file__).resolve().parents[3]
_MARK = "FEDOPT_TEST_WORKERS"


def start(folder, name, mark, *arguments):
    return subprocess.Popen(
        [
            *(sys.executable, "run_experiment.py", "--task=synthetic", "--algorithm=scaffold"),
            *("--clients_per_round=8", "--client_batch_size=10", "--client_learning_rate=0.01"),
            *("--clients_per_chunk=2", "--runtime=tff", "--total_rounds=12"),
            *("--rounds_per_checkpoint=2", "--rounds_per_eval=4"),
            *(f"--root_output_dir={folder}", f"--experiment_name={name}", *arguments),
        ],
        cwd=REPO,
        env={**os.environ, _MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def left_of(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def gone(mark, seconds=60):
    until = time.monotonic() + seconds
    while left_of(mark) and time.monotonic() < until:
        time.sleep(0.2)
    return not left_of(mark)


def result(folder, name):
    with open(folder / name / "metrics.csv") as f:
        rows = [{k: v for k, v in r.items() if "time/" not in k} for r in csv.DictReader(f)]
    checkpoint, damaged = checkpoints.load_newest(str(folder / name / "checkpoints"))
    assert not damaged
    seal = checkpoint.seal["client_states.sqlite"]
    return rows, [leaf.tobytes() for leaf in checkpoint.leaves], seal


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_with_other_workers_to_the_same_bits(tmp_path):
    mark = uuid.uuid4().hex
    assert start(tmp_path, "alone", mark).wait(timeout=300) == 0
    killed = start(tmp_path, "shared", mark, "--workers=2")
    table = tmp_path / "shared" / "metrics.csv"
    until = time.monotonic() + 300
    while not (table.exists() and len(table.read_text().splitlines()) > 6):
        assert killed.poll() is None and time.monotonic() < until, killed.communicate()[0]
        time.sleep(0.1)
    # One worker first, in a round; then the run itself, of which nothing stays.
    workers = [p for p in left_of(mark) if any("Worker" in part for part in p.cmdline())]
    assert workers
    os.kill(workers[0].pid, signal.SIGKILL)
    time.sleep(1.0)
    killed.kill()
    killed.wait()
    assert gone(mark), [p.cmdline() for p in left_of(mark)]
    again = start(tmp_path, "shared", mark, "--workers=1")
    said = again.communicate(timeout=300)[0]
    assert again.returncode == 0, said
    assert "Going on after round" in said
    assert result(tmp_path, "shared") == result(tmp_path, "alone")
    assert gone(mark)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:x", ":"])
def test_no_cluster_at_the_address_is_one_line(address):
    with pytest.raises(RunError, match=f"^--ray_address={address} can't be reached") as error:
        with cluster.connected(address):
            pass
    assert "\n" not in str(error.value)
