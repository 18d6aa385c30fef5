"""Starts a run's pool of workers from its settings."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import tasks
import tff_algos
from simulation import cluster
from simulation.engine.program import Program
from simulation.errors import RunError
from simulation.experiment_flags import Request
from simulation.rounds.cohorts import Cohorts
from simulation.workers import worker
from simulation.workers.pool import RayPool
from tff_suite import code_digests
from tff_suite.hparams import HparamError


def pool(
    request: Request,
    data: Mapping[str, str],
    programs: Mapping[str, Program],
    cohorts: Cohorts,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    stack: contextlib.ExitStack,
) -> RayPool:
    """Starts the workers of a run, on this machine or on a cluster.

    Args:
      request: The run's settings; the runtime is not `auto`.
      data: Digests of its data.
      programs: Name → program, as from `simulation.rounds.one_program.RunMethod`.
      cohorts: The clients of its rounds.
      say: Prints or logs a line.
      warn: Prints or logs a warning of one line.
      stack: When it closes, the workers end, and Ray if it was started here.

    Raises:
      HparamError: If the workers declare more than this machine has, or if objects given or
        registered in Python cannot be sent to them.
      RunError: If the cluster cannot be reached or lacks the resources for a worker.
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
        say(f"The machines currently have resources for {found} of {number} workers.")
    started = RayPool(
        ray,
        programs,
        _maker(ray, request, data),
        number,
        steps=cohorts.steps,
        room=lambda: room(ray, settings),
        timeout=settings["worker_timeout"],
        warn=warn,
    )
    stack.callback(started.close)
    started.wait_for_all()
    ready = started.ready()
    machines = len({facts.node for facts in ready})
    say(f"workers: {len(ready)}, on {machines} machine{'s' * (machines > 1)}")
    return started


def room(ray: Any, settings: Mapping[str, Any]) -> int:
    """Returns the number of workers for which the current machines have resources."""
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
    """Returns a function that starts a worker."""
    settings = request.run
    cpus, gpus = settings["cpus_per_worker"], settings["gpus_per_worker"]
    actor_class = ray.remote(worker.Worker).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0)
    run = {**settings, "import": ",".join(_modules(settings)) or None}
    # Workers on other machines must have the same data and modules of the user as this one.
    data = {**data, **code_digests.of_modules(_modules(settings))}
    given = _sent(ray, dataclasses.replace(request, run=run)), ray.put(data)
    node = ray.get_runtime_context().get_node_id()

    def make():
        actor = actor_class.remote(os.getcwd(), cpus, 0 < gpus < 1)
        return actor, actor.begin.remote(*given, node)

    return make


def _sent(ray, request):
    """Returns a reference to a request, including the user's own objects.

    Each machine's object store holds it once; the workers share its arrays, read-only.

    Raises:
      HparamError: If the objects cannot be sent.
    """
    # Only plain NumPy arrays are shared; memory maps would be copied into each worker.
    ray.util.register_serializer(np.memmap, serializer=np.asarray, deserializer=np.asarray)
    try:
        return ray.put(request)
    except Exception as e:  # Pickling a user's object can raise anything.
        if not request.objects:
            raise
        kinds = " and ".join(request.objects)
        reason = " ".join(str(e).split())[:300]
        raise HparamError(
            f"--workers cannot send the {kinds} given in Python to other "
            f"processes ({reason}); register it in a module and name that with --import, so that "
            "each process can create it."
        ) from e


def _modules(settings: Mapping[str, Any]) -> list[str]:
    """Returns the modules that workers must import to know a run's method and task.

    These are the modules of `--import`, and those of methods or tasks that a user's program has
    registered by importing them.
    """
    found = list(filter(None, (settings["import"] or "").split(",")))
    for kind, at in (("algorithm", tff_algos), ("task", tasks)):
        if settings[kind] in at.names():
            spec = at.get(settings[kind])
            module = _module_of(spec.builder if kind == "algorithm" else spec.loader)
            if module == "__main__":
                raise HparamError(
                    f"--workers cannot find the {kind} {settings[kind]}, which the main program "
                    "registers; register it in a separate module."
                )
            if module.split(".")[0] not in ("tff_algos", "tasks"):
                found.append(module)
    return list(dict.fromkeys(found))


def _module_of(function: str | Callable) -> str:
    """Returns the module of a function, given as `module:name` or as the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.split(":")[0] if isinstance(function, str) else function.__module__
