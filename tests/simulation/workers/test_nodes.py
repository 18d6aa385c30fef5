"""Machines of a cluster that join and go while a run is under way."""

import contextlib
import dataclasses

import pytest

from simulation.workers import start
from tasks import fingerprint
from tests.simulation.runtimes.test_chunks import assert_same_bits
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
        crew = start.crew(shared, data, run.plans, run.parts.cohorts, said.append, stack)
        assert len(crew.ready()) == 1
        assert "There is room for 1 of 2 workers now." in said and len(said) == 2
        at_work = []

        def crews():
            yield crew
            node = nodes.add_node(num_cpus=1)
            nodes.wait_for_nodes()
            crew.wait_for_all()
            at_work.append(crew.moved()["workers"])
            yield crew
            assert len({facts.node for facts in crew.ready()}) == 2
            at_work.append(crew.moved()["workers"])
            nodes.remove_node(node, allow_graceful=False)
            yield crew
            at_work.append(crew.moved()["workers"])
            yield crew

        assert_same_bits(run.rounds(crews()), alone)
        assert at_work == [1, 2, 1] and len(crew.ready()) == 1
        assert len(said) == 3 and "was lost" in said[2], said
