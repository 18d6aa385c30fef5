"""Growth of memory over many rounds of FedAvg.

    python -m benchmarks.memory --workload=distinct --rounds=100 --from_round=10

It prints the resident memory of this process and its children after `from_round` rounds and after
the last round, and their ratio. The workloads have the same clients in every round, with their
examples in another order each time. So every shape of data has occurred by `from_round`.
`distinct` has 100 new clients of new sizes in every round (100 rounds: 10,000 clients). The sum
over processes counts shared pages several times, but still shows growth.
"""

import gc
import sys

from benchmarks import harness
from simulation import runtimes
from tff_suite import parser
from tff_suite.hparams import HparamError

BENCHMARK = harness.Benchmark(
    __doc__,
    {
        "workload": "workload",
        "runtime": "runtime",
        "from_round": "from round",
        "to_round": "to round",
        "first_mib": "MiB",
        "last_mib": "MiB",
        "growth": "growth",
    },
)
BENCHMARK.flag("workload", "w4", "distinct or a workload of benchmarks.speed.")
BENCHMARK.flag("rounds", 1000, "Rounds in all.", minimum=1)
BENCHMARK.flag("from_round", 50, "Round of the first reading.", minimum=1)
BENCHMARK.flag("runtime", "auto", "The run's --runtime.", choices=runtimes.CHOICES)


def resident_bytes() -> int:
    """Returns the resident memory of this process and all below it."""
    import psutil

    process = psutil.Process()
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])


def distinct(workload, round_index):
    """Returns the data of 100 clients of a round that no other round has."""
    import numpy as np

    from benchmarks import side

    rng = np.random.default_rng([1, round_index])
    sizes = np.minimum(rng.lognormal(3.0, 1.0, 100).astype(int) + 1, 500)
    clients = [
        (rng.random((n, 60), np.float32), rng.integers(0, 10, n).astype(np.int32)) for n in sizes
    ]
    return side.batched_cohort(workload._replace(clients=clients), round_index)


def records(options):
    """Yields the one record of a run."""
    import tff_algos
    from benchmarks import side, workloads

    name, known = options.workload, ("distinct", *workloads.WORKLOADS)
    if name not in known:
        raise HparamError(parser.said_of_unknown("workload", name, known))
    if options.from_round > options.rounds:
        raise HparamError(f"--from_round={options.from_round} must be at most --rounds.")
    runtimes.configure_threads()
    workload = workloads.WORKLOADS["w4" if name == "distinct" else name](None)
    cohort_of = distinct if name == "distinct" else side.batched_cohort
    process = tff_algos.build(
        "fedavg", side.pure_model(workload), client_learning_rate=workload.learning_rate
    )
    readings = {}
    runtime = runtimes.choose(process)[0] if options.runtime == "auto" else options.runtime
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        state = bound.initialize()
        for i in range(1, options.rounds + 1):
            state = bound.next(state, cohort_of(workload, i - 1)).state
            if i in (options.from_round, options.rounds) or i % 100 == 0:
                gc.collect()
                readings[i] = resident_bytes()
                print(f"round {i}: {readings[i] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    first, last = readings[options.from_round], readings[options.rounds]
    yield {
        "workload": name,
        "runtime": runtime,
        "from_round": options.from_round,
        "to_round": options.rounds,
        "first_mib": round(first / 2**20, 1),
        "last_mib": round(last / 2**20, 1),
        "growth": round(last / first - 1, 5),
    }


if __name__ == "__main__":
    BENCHMARK.run(records)
