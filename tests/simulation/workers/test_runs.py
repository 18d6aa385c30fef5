"""Runs with workers as a user starts them: killed, gone on with others, refused."""

import contextlib
import csv
import os
import pathlib
import signal
import socketserver
import subprocess
import sys
import threading
import time
import uuid

import psutil
import pytest

import simulation
from simulation import cluster, run_hparams
from simulation.errors import RunError
from simulation.records import checkpoints
from tff_suite import command_line

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
    checksum = checkpoint.checksums["client_states.sqlite"]
    return rows, [leaf.tobytes() for leaf in checkpoint.leaves], checksum


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
    assert "Resuming after round" in said, said
    assert result(tmp_path, "shared") == result(tmp_path, "alone")
    assert gone(mark)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:x", ":"])
def test_no_cluster_at_the_address_is_one_line(address):
    with pytest.raises(RunError, match=f"^--ray_address={address} can't be reached") as error:
        with cluster.connected(address):
            pass
    assert "\n" not in str(error.value)


def test_what_answers_at_the_address_but_is_not_ray_is_one_line(monkeypatch):
    monkeypatch.setattr(cluster, "_SECONDS_TO_CONNECT", 0.5)
    with socketserver.TCPServer(("127.0.0.1", 0), OfTheWeb) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        with pytest.raises(RunError, match=r"the service at this address is not Ray.$") as error:
            with cluster.connected(address):
                pass
        server.shutdown()
    assert str(error.value).startswith(f"--ray_address={address} can't be reached: ")


class OfTheWeb(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(100)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("left", [None, "127.0.0.1:1"])
def test_no_cluster_that_could_be_meant_is_one_line(left, monkeypatch):
    """A cluster that went without a word leaves its address behind, where Ray would wait."""
    from ray._private import services

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: left)
    where = "--ray_address=auto" + (f", {left}," if left else "")
    with pytest.raises(RunError, match=f"^{where} can't be reached: .*(refused|not find)") as error:
        with cluster.connected("auto"):
            pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_slow_start_is_tried_once_more(failures, monkeypatch):
    """Ray gives up after 30 seconds, by a bare `Exception`."""
    import ray

    folders = []

    def init(**options):
        folders.append(pathlib.Path(options["_temp_dir"]).parent)
        assert folders[-1].is_dir()
        if len(folders) <= failures:
            raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with contextlib.ExitStack() as stack:
        if failures == 2:
            reason = (
                "^Ray on this machine can't be reached: The current node timed out during startup"
            )
            stack.enter_context(pytest.raises(RunError, match=reason))
        with cluster.connected(None):
            assert [folder.exists() for folder in folders] == [False, True]
    assert len(folders) == 2 and not any(folder.exists() for folder in folders)


def test_a_stop_while_ray_starts_is_heeded(monkeypatch):
    """Ray's own handler would end the process with exit code 15 and without a word."""
    import ray
    from ray._private import utils

    def init(**options):
        utils.set_sigterm_handler(lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(ray, "init", init)
    handlers = command_line.handle_stops(command_line.raise_stop)
    try:
        with pytest.raises(KeyboardInterrupt), cluster.connected(None):
            pass
        assert command_line.received() == signal.SIGTERM
    finally:
        command_line.restore(handlers)


def test_a_start_does_not_wait_for_processes_that_are_slow():
    """Ray ends a process that starts too slowly; its driver waits forever for those it counts on.

    A second is too short for any. A process of its own, since Ray reads its settings once.
    """
    script = "from simulation import cluster\nwith cluster.connected(None, 2): print('connected')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPO,
        env={**os.environ, "RAY_worker_register_timeout_seconds": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout == "connected\n", done.stderr


def test_ray_starts_without_forks():
    """A process with gRPC's threads must not fork: the child may crash before it is Ray's."""
    script = """
import subprocess
from simulation import cluster

begun = []

class Seen(subprocess.Popen):
    def __init__(self, command, preexec_fn=None, **options):
        begun.append(preexec_fn)
        super().__init__(command, preexec_fn=preexec_fn, **options)

subprocess.Popen = Seen
with cluster.connected(None, 2):
    print(len(begun) > 4, *{start for start in begun if start})
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "True\n", done.stderr


def test_the_cut_belongs_to_the_run_and_its_workers_do_not(tmp_path):
    given = dict(task="synthetic", algorithm="fedavg", clients_per_round=4, client_batch_size=10)
    given |= dict(client_learning_rate=0.01, root_output_dir=tmp_path, progress=False)
    given |= dict(runtime="tff", server_learning_rate=1.0, experiment_name="cut")
    simulation.run(**given, total_rounds=1, clients_per_chunk=2)
    with pytest.raises(RunError, match="clients_per_chunk") as error:
        simulation.run(**given, total_rounds=2, clients_per_chunk=1)
    assert "\n" not in str(error.value)
    placement = {"workers", "ray_address", "cpus_per_worker", "gpus_per_worker", "worker_timeout"}
    assert placement <= run_hparams.MAY_CHANGE
