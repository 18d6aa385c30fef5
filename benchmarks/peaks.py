"""Peak memory of runs, compared with the lower bound for their largest round (`least_memory`).

    python -m benchmarks.peaks --cases=per_client-fedavg-20-t2

Each case is a run of three rounds in its own process, with a runtime, a method and a number of
clients. The model is dense with one hidden layer (784-6000-10, 4.8 million parameters) and 40
examples per client, or it is a workload of the speed benchmark. The table shows the resident
memory when the rounds begin, and its largest growth with TFF's worker. Beside it are the lower
bound by which runs are refused, and the ratio of growth to bound. Other work on the machine hardly
affects these numbers, but it is random which clients of a round overlap.
"""

import contextlib
import functools
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import psutil

from benchmarks import harness
from tff_suite import parser
from tff_suite.hparams import HparamError

BENCHMARK = harness.Benchmark(
    __doc__,
    {
        "what": "model",
        "runtime": "runtime",
        "method": "method",
        "clients": "clients",
        "chunk": "in chunks of",
        "threads": "cores",
        "model_mib": "M, MiB",
        "before_mib": "before, MiB",
        "grown_mib": "grown by, MiB",
        "least_mib": "least, MiB",
        "of_least": "of the least",
    },
)
BENCHMARK.flag("cases", help="Cases, separated by commas. Default: all.")

_ROUNDS, _EXAMPLES, _BATCH = 3, 40, 20


class Case(NamedTuple):
    """A run.

    Attributes:
      runtime: The runtime.
      method: The method.
      clients: Clients per round.
      chunk: `--clients_per_chunk`; 0 if unset.
      threads: Cores of the process.
      hidden: Units of the model's hidden layer.
      workload: A workload of the speed benchmark that replaces the dense model.
    """

    runtime: str
    method: str
    clients: int
    chunk: int = 0
    threads: int = 2
    hidden: int = 6000
    workload: str = ""

    @property
    def name(self) -> str:
        """Returns its name on the command line."""
        parts = [self.workload, self.runtime, self.method, str(self.clients)]
        parts += [f"by{self.chunk}"] * bool(self.chunk) + [f"t{self.threads}"]
        return "-".join(filter(None, parts))


CASES = [
    Case("per_client", "fedavg", 20, threads=1),
    Case("per_client", "fedavg", 20),
    Case("per_client", "fedavg", 40),
    Case("per_client", "fedda_sgdm", 20),
    Case("per_client", "scaffold", 20),
    Case("per_client", "scaffold", 40),
    Case("per_client", "scaffold", 40, chunk=10),
    Case("per_client", "term", 20),
    Case("per_client", "adafed", 20),
    Case("per_client", "adafed", 40),
    Case("per_client", "adafed", 40, chunk=10),
    Case("vectorized", "fedavg", 20),
    Case("vectorized", "fedavg", 40),
    Case("vectorized", "fedavg", 40, chunk=10),
    Case("vectorized", "fedda_sgdm", 20),
    Case("vectorized", "scaffold", 20),
    Case("vectorized", "adafed", 20),
    Case("native", "fedavg", 10),
    Case("native", "fedavg", 20),
    Case("native", "scaffold", 10),
    Case("native", "adafed", 10),
    Case("per_client", "fedavg", 10, workload="w2"),
    Case("per_client", "fedavg", 10, workload="w7"),
    Case("per_client", "fedavg", 10, workload="w8"),
    Case("per_client", "fedavg", 1000, workload="w10"),
    Case("vectorized", "fedavg", 1000, workload="w10"),
    Case("vectorized", "fedavg", 1000, chunk=50, workload="w10"),
]


def dense(hidden: int):
    """Makes a dense Keras model of one hidden layer, 784 to 10."""
    import tensorflow as tf

    layers = [tf.keras.layers.InputLayer((784,))]
    layers += [tf.keras.layers.Dense(hidden, "relu"), tf.keras.layers.Dense(10)]
    return tf.keras.Sequential(layers)


def _workload(case):
    """Returns the workload of a case, see `benchmarks.workloads`."""
    import numpy as np
    import tensorflow as tf

    from benchmarks import workloads
    from tasks.models import losses

    if case.workload:
        return workloads.WORKLOADS[case.workload](None)
    rng = np.random.default_rng(0)
    x = rng.random((_EXAMPLES, 784), np.float32)
    return workloads.Workload(
        "dense",
        functools.partial(dense, case.hidden),
        losses.sparse_softmax_cross_entropy,
        "mean",
        tf.TensorSpec([None], tf.int32),
        [(x, rng.integers(0, 10, _EXAMPLES).astype(np.int32))],
        _BATCH,
        0.01,
    )


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@contextlib.contextmanager
def _watched(found: dict) -> Iterator[None]:
    """Notes the current and the peak resident memory of this process and its children."""
    gc.collect()
    me = psutil.Process()
    pids = [me.pid, *(child.pid for child in me.children(recursive=True))]
    found["before"] = found["peak"] = sum(map(_resident, pids))
    over = threading.Event()

    def watch():
        while not over.is_set():
            found["peak"] = max(found["peak"], sum(map(_resident, pids)))
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def measure(case: Case) -> dict:
    """Measures a case; for a process that does nothing else.

    Returns:
      Bytes: `model`, the model's size; `before`, resident before the rounds; `peak`, the peak of
      the rounds; `least`, the lower bound for a round.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: case.threads])
    from tff_suite import imports

    imports.import_tensorflow()
    from benchmarks import scale_tasks
    from simulation import in_python
    from simulation.rounds import least_memory, loop
    from tff_suite import memory

    found, rounds, require = {}, loop.run, memory.require

    def noted(num_bytes, what, advice):
        if what.startswith("A round of"):
            found["least"] = num_bytes
        require(num_bytes, what, advice)

    def watched(*arguments, **named):
        with _watched(found):
            return rounds(*arguments, **named)

    # Forces the check, which is skipped for models that are small enough.
    least_memory._MOST_VECTORS = 1 << 40
    memory.require, loop.run = noted, watched
    workload = _workload(case)
    with tempfile.TemporaryDirectory() as folder:
        result = in_python.run(
            task=scale_tasks.task_of("peaks", workload, case.clients),
            algorithm=case.method,
            progress=False,
            runtime=case.runtime,
            clients_per_round=case.clients,
            clients_per_chunk=case.chunk or None,
            client_batch_size=workload.batch_size,
            client_learning_rate=workload.learning_rate,
            server_learning_rate=1.0,
            total_rounds=_ROUNDS,
            rounds_per_eval=_ROUNDS,
            rounds_per_checkpoint=_ROUNDS,
            root_output_dir=folder,
        )
    return {**found, "model": memory.nbytes(result.weights)}


def record_of(case: Case) -> dict:
    """Returns the record of a case."""
    found = harness.alone(measure, case)
    grown = found["peak"] - found["before"]
    return {
        "what": case.workload or "dense",
        **{name: getattr(case, name) for name in ("runtime", "method", "clients")},
        "chunk": case.chunk or "",
        "threads": case.threads,
        "model_mib": round(found["model"] / 2**20, 1),
        "before_mib": round(found["before"] / 2**20),
        "grown_mib": round(grown / 2**20),
        "least_mib": round(found["least"] / 2**20),
        "of_least": round(grown / found["least"], 2),
    }


def records(options):
    """Yields the record of each case."""
    known = {case.name: case for case in CASES}
    for name in options.cases.split(",") if options.cases else known:
        if name not in known:
            raise HparamError(parser.said_of_unknown("case", name, known))
        yield record_of(known[name])


if __name__ == "__main__":
    BENCHMARK.run(records)
