"""A worker: a Ray actor that holds task, model and method, and processes chunks."""

import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from simulation import cluster
from tff_suite import compat

_SUITE = pathlib.Path(__file__).resolve().parents[2]


class Facts(NamedTuple):
    """Machine, process and versions of a worker.

    Attributes:
      node: Id of its machine in the cluster.
      host: Name of the machine.
      pid: Id of its process there.
      versions: Name → version of all packages and code that affect results.
    """

    node: str
    host: str
    pid: int
    versions: Mapping[str, str]


class Order(NamedTuple):
    """An order for a worker.

    Attributes:
      stage: Name of the program, for methods with several.
      round_index: The round, from 0.
      phase: The phase of the round.
      chunks: The chunks, in order.
      number: Number of all chunks of the round.
      sent: For each phase up to this one a reference to its broadcasts, number → leaves.
      states: Number of a chunk → what its clients keep, where that is needed.
      given: Number of a chunk → what its clients are to do, where the data depend on that.
      following: Chunks of the next round that are likely to come here.
    """

    stage: str
    round_index: int
    phase: int
    chunks: Sequence[Any]
    number: int
    sent: Sequence[Any]
    states: Mapping[int, Any]
    given: Mapping[int, Any]
    following: Sequence[Any]


class Answer(NamedTuple):
    """The result of an order.

    Attributes:
      nodes: Nodes of the tree of chunks, combined as far as possible.
      states: Chunk → new states of its clients, if computed.
      seconds: Seconds of each chunk, in order.
      busy: Seconds of the whole order.
    """

    nodes: Mapping[tuple[int, int], Any]
    states: Mapping[Any, Any]
    seconds: Sequence[float]
    busy: float


@functools.cache
def versions() -> dict[str, str]:
    """Returns versions and digests of the code, which affect results besides settings and data."""
    digest = hashlib.sha256()
    for folder in ("tff_algos", "simulation", "tasks", "tff_suite", "."):
        pattern = "*.py" if folder == "." else "**/*.py"
        for path in sorted((_SUITE / folder).glob(pattern)):
            digest.update(f"{path.relative_to(_SUITE)}\0".encode() + path.read_bytes())
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in (*compat.packages(), "ray")},
        "the suite's files": digest.hexdigest()[:12],
    }


class Worker:
    """The actor: `begin` loads a run, `work` processes parts of its rounds."""

    def __init__(self, folder: str, cpus: float, share_gpu: bool):
        """Initialises the process.

        Args:
          folder: The driver's working directory, to which paths in its settings are relative.
          cpus: Number of cores that it has declared.
          share_gpu: Whether it shares its GPU with other workers.
        """
        os.chdir(folder)
        for path in (str(_SUITE), folder):
            if path not in sys.path:
                sys.path.append(path)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if share_gpu:
            os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        if cpus >= 1:
            cluster.take_cores()
        self._threads = max(1, int(cpus))
        from simulation import runtimes
        from tff_suite import imports

        imports.import_tensorflow()
        runtimes.configure_threads()
        self._schedulers = {}

    def facts(self) -> Facts:
        """Returns this worker's facts."""
        import ray

        node = ray.get_runtime_context().get_node_id()
        return Facts(node, platform.node(), os.getpid(), versions())

    def begin(self, request: Any, data: Mapping[str, str], node: str) -> Facts:
        """Loads a run.

        Args:
          request: The run's settings; the runtime is not `auto`.
          data: Digests of the data and of the user's modules, to be checked on other machines.
          node: Id of the driver's machine.

        Returns:
          This worker's facts.

        Raises:
          HparamError: As a run itself.
          RunError: As a run itself, and if the data differ.
          tasks.task.DataError: As a run itself.
        """
        import importlib

        from simulation import assembly
        from simulation.engine import pool
        from simulation.errors import RunError
        from tasks import fingerprint
        from tff_suite import code_digests

        for scheduler in self._schedulers.values():
            scheduler.close()
        modules = list(filter(None, (request.run["import"] or "").split(",")))
        for module in modules:
            importlib.import_module(module)
        parts = assembly.assemble(request)
        facts = self.facts()
        if facts.node != node:
            found = fingerprint.of_task(parts.task) | code_digests.of_modules(modules)
            differing = fingerprint.differences(data, found)
            if differing:
                raise RunError(f"its data or code differ from the run's: {differing[0]}")
        self._programs = parts.method.programs()
        self._schedulers = pool.schedulers(
            self._programs, parts.method.data, request.run, self._threads
        )
        self._sent = _Received(None)
        self._begun = request, parts
        self._measured: Any = None
        return facts

    def work(self, order: Order) -> Answer:
        """Processes chunks in a phase of a round."""
        from simulation.engine import scheduler

        started = time.perf_counter()
        of_round = order.stage, order.round_index
        if self._sent.of_round != of_round:
            self._sent = _Received(of_round)
        self._sent.refer(order.sent)
        nodes, states, seconds = {}, {}, []
        program = self._programs[order.stage]
        for done in self._schedulers[order.stage].work(
            order.round_index,
            order.phase,
            order.chunks,
            self._sent,
            lambda chunk: order.states.get(chunk.number),
            order.following,
            order.given,
        ):
            nodes[0, done.chunk.number] = done.partials
            nodes = scheduler.combine(nodes, program, order.phase, order.number)
            if done.states is not None:
                states[done.chunk] = done.states
            seconds.append(done.seconds)
        return Answer(scheduler.arrays(nodes), states, seconds, time.perf_counter() - started)

    def evaluate(self, name: Any, weights: Sequence[Any], chunks: range, size: int) -> list[Any]:
        """As `simulation.measures.evaluations.Share.sums`."""
        return self._share().sums(name, weights, chunks, size)

    def evaluate_each(self, name: str, weights: Sequence[Any], own: Sequence[Any]) -> list[Any]:
        """As `simulation.measures.evaluations.Share.of_each`."""
        return self._share().of_each(name, weights, own)

    def _share(self):
        from simulation.measures import evaluations

        if self._measured is None:
            request, parts = self._begun
            self._measured = evaluations.Share(parts.task, parts.train, request.run, parts.model)
        return self._measured


class _Received(dict):
    """Broadcasts of a round by number, fetched once."""

    def __init__(self, of_round):
        super().__init__()
        self.of_round, self._references, self._fetched = of_round, [], 0

    def refer(self, references):
        self._references = references

    def __missing__(self, number):
        import ray

        for reference in self._references[self._fetched :]:
            self._fetched += 1
            self.update(ray.get(reference))
            if number in self:
                break
        return dict.__getitem__(self, number) if number in self else self._absent(number)

    def _absent(self, number):
        raise KeyError(f"the server has sent no {number} in this round")
