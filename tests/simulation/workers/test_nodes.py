"""Machines of a cluster that join and go while a run is under way."""

import contextlib
import dataclasses
import time
import uuid

import psutil
import pytest

from simulation import cluster
from simulation.records import checkpoints
from simulation.workers import start
from tasks import fingerprint
from tests.simulation.engine.test_scheduler import assert_same_bits
from tests.simulation.workers import test_runs
from tests.simulation.workers.test_workers import ROUNDS, Run, request_of


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedfa", "scaffold"])
def test_machines_that_join_and_go_leave_no_trace(name):
    """One joins after the first round and works in the second; it is lost in the third."""
    from ray.cluster_utils import Cluster

    request = request_of(name)
    run, said = Run(request), []
    alone = run.rounds([run.alone()] * ROUNDS)
    data = fingerprint.of_task(run.parts.task)
    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    with contextlib.ExitStack() as stack:
        stack.callback(nodes.shutdown)
        placed = {"workers": 2, "ray_address": nodes.address, "cpus_per_worker": 1.0}
        shared = dataclasses.replace(request, run={**request.run, **placed})
        pool = start.pool(
            shared,
            data,
            run.programs,
            run.parts.cohorts,
            say=said.append,
            warn=said.append,
            stack=stack,
        )
        assert len(pool.ready()) == 1
        assert (
            "The machines currently have resources for 1 of 2 workers." in said and len(said) == 2
        )
        at_work = []

        def pools():
            yield pool
            node = nodes.add_node(num_cpus=1)
            nodes.wait_for_nodes()
            pool.wait_for_all()
            at_work.append(pool.moved()["workers"])
            yield pool
            assert len({facts.node for facts in pool.ready()}) == 2
            at_work.append(pool.moved()["workers"])
            nodes.remove_node(node, allow_graceful=False)
            yield pool
            at_work.append(pool.moved()["workers"])
            yield pool

        assert_same_bits(run.rounds(pools()), alone)
        assert at_work == [1, 2, 1] and len(pool.ready()) == 1
        assert len(said) == 3 and "was lost" in said[2], said


@pytest.mark.long
def test_a_run_without_workers_left_stops_with_a_checkpoint_and_goes_on(tmp_path):
    """Exit code 1 and one line; when there is room again, the same command goes on."""
    from ray.cluster_utils import Cluster

    rounds, mark = 300, uuid.uuid4().hex
    more = f"--total_rounds={rounds}", "--rounds_per_checkpoint=1000"
    assert test_runs.start(tmp_path, "alone", mark, *more).wait(timeout=300) == 0
    with contextlib.ExitStack() as stack:
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        stack.callback(nodes.shutdown)
        # So long a worker may take to start, too.
        more += "--workers=1", f"--ray_address={nodes.address}", "--worker_timeout=45"
        run = test_runs.start(tmp_path, "shared", mark, *more)
        table = tmp_path / "shared" / "metrics.csv"
        until = time.monotonic() + 200
        while not (table.exists() and len(table.read_text().splitlines()) > 6):
            assert run.poll() is None and time.monotonic() < until, run.communicate()[0]
            time.sleep(0.05)
        with cluster.connected(nodes.address) as ray:
            # Somebody else has waited for the core that the worker leaves.
            other = ray.remote(_Other).options(num_cpus=1).remote()
            asked = other.answer.remote()
            done, _ = ray.wait([asked], timeout=1.0)
            workers = workers_of_clusters()
            assert not done and len(workers) == 1
            workers[0].kill()
            assert ray.get(asked, timeout=60) == "here"
            said = run.communicate(timeout=200)[0]
        assert run.returncode == 1 and "Traceback" not in said, said
        end = [line for line in said.splitlines() if "There was no worker" in line]
        assert len(end) == 1, said
        assert end[0].endswith("There was no worker for 45 seconds (--worker_timeout)."), said
        checkpoint, _ = checkpoints.load_newest(str(tmp_path / "shared" / "checkpoints"))
        assert 5 <= checkpoint.round_num < rounds
        # Row 0 and the header are two more.
        assert len(table.read_text().splitlines()) == checkpoint.round_num + 2
        again = test_runs.start(tmp_path, "shared", mark, *more)
        said = again.communicate(timeout=300)[0]
        assert again.returncode == 0, said
        assert f"Resuming after round {checkpoint.round_num}" in said, said
    assert test_runs.result(tmp_path, "shared") == test_runs.result(tmp_path, "alone")


@pytest.mark.long
def test_a_cluster_ends_the_workers_of_a_run_that_is_killed(tmp_path):
    """The machine of a run may be lost, with whoever would tell the workers."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    with contextlib.ExitStack() as stack:
        stack.callback(nodes.shutdown)
        more = "--total_rounds=100000", "--workers=1", f"--ray_address={nodes.address}"
        run = test_runs.start(tmp_path, "shared", uuid.uuid4().hex, *more)
        table = tmp_path / "shared" / "metrics.csv"
        until = time.monotonic() + 200
        while not (table.exists() and len(table.read_text().splitlines()) > 6):
            assert run.poll() is None and time.monotonic() < until, run.communicate()[0]
            time.sleep(0.05)
        assert len(workers_of_clusters()) == 1
        run.kill()
        run.wait()
        until = time.monotonic() + 60
        while workers_of_clusters() and time.monotonic() < until:
            time.sleep(0.2)
        assert workers_of_clusters() == []


def workers_of_clusters():
    """Returns the workers' processes on nodes that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("ray::Worker" in part for part in process.cmdline()):
                found.append(process)
    return found


class _Other:
    def answer(self):
        return "here"
