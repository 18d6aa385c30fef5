"""From a run's settings to its crew of workers."""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from hparams import HparamError
from simulation.errors import RunError
from simulation.experiment_flags import Request
from simulation.rounds.cohorts import Cohorts
from simulation.runtimes import cluster
from simulation.runtimes.plans import Plan
from simulation.workers import worker
from simulation.workers.crew import Crew


def crew(
    request: Request,
    data: Mapping[str, str],
    plan: Plan,
    cohorts: Cohorts,
    say: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> Crew:
    """Starts the workers of a run, on this machine or on a cluster.

    Args:
      request: The run's settings, its runtime settled.
      data: Digests of its data.
      plan: The round.
      cohorts: The clients of its rounds.
      say: Takes a line.
      stack: Ends the workers, and Ray where it was started, when it is closed.

    Raises:
      HparamError: If this machine has less than the workers are to have.
      RunError: If the cluster cannot be reached or has no room for a worker.
    """
    settings = request.run
    address, number = settings["ray_address"], settings["workers"]
    cpus, cores = settings["cpus_per_worker"], len(os.sched_getaffinity(0))
    if address is None and number * cpus > cores:
        raise HparamError(
            f"--workers={number} of --cpus_per_worker={cpus:g} need {number * cpus:g} cores, but "
            f"there are {cores}."
        )
    ray = stack.enter_context(cluster.connected(address))
    found = room(ray, settings)
    if not found:
        raise RunError(
            f"No machine has {cpus:g} CPUs and {settings['gpus_per_worker']:g} GPUs for a worker."
        )
    if found < number:
        say(f"There is room for {found} of {number} workers now.")
    started = Crew(
        ray,
        plan,
        _maker(ray, request, data),
        number,
        steps=cohorts.steps,
        room=lambda: room(ray, settings),
        timeout=settings["worker_timeout"],
        say=say,
    )
    stack.callback(started.close)
    started.wait_for_all()
    ready = started.ready()
    machines = len({facts.node for facts in ready})
    say(f"workers: {len(ready)}, on {machines} machine{'s' * (machines > 1)}")
    return started


def room(ray: Any, settings: Mapping[str, Any]) -> int:
    """Returns how many workers the machines that are there have room for."""
    number = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = [has.get("CPU", 0) / settings["cpus_per_worker"]]
            if settings["gpus_per_worker"]:
                fits.append(has.get("GPU", 0) / settings["gpus_per_worker"])
            number += int(min(fits) + 1e-9)
    return number


def _maker(ray, request, data):
    """Returns what starts a worker."""
    settings = request.run
    cpus, gpus = settings["cpus_per_worker"], settings["gpus_per_worker"]
    actor_class = ray.remote(worker.Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0)
    given = ray.put(request), ray.put(data)
    node = ray.get_runtime_context().get_node_id()

    def make():
        actor = actor_class.remote(os.getcwd(), cpus, 0 < gpus < 1)
        return actor, actor.begin.remote(*given, node)

    return make
