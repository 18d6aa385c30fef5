"""Growth of memory over many rounds of FedAvg.

    python -m benchmarks.memory --workload=synthetic --rounds=1000 --from_round=50

It prints the resident memory of this process and its children after `from_round` rounds and after
the last round, and their ratio. `synthetic` and the workloads have the same clients in every round,
with their examples in another order each time. So every shape of data has occurred by `from_round`.
`distinct` has 100 new clients of new sizes in every round (100 rounds: 10,000 clients). The sum
over processes counts shared pages several times, but still shows growth.
"""

import gc
import sys

from tff_suite import command_line, parser, tables
from tff_suite.hparams import HparamError

PARSER = parser.Parser(__doc__)
PARSER.flag("workload", "synthetic", "synthetic, distinct or a workload of benchmarks.speed.")
PARSER.flag("rounds", 1000, "Rounds in all.", minimum=1)
PARSER.flag("from_round", 50, "Round of the first reading.", minimum=1)
PARSER.flag(
    "runtime", "auto", "The run's --runtime.", choices=("auto", "tff", "native", "vectorized")
)
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np
import psutil

import tasks
import tff_algos
from benchmarks import common, side, workloads
from simulation import runtimes


def resident_bytes() -> int:
    """Returns the resident memory of this process and all below it."""
    process = psutil.Process()
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])


def _distinct(workload, round_index):
    rng = np.random.default_rng([1, round_index])
    sizes = np.minimum(rng.lognormal(3.0, 1.0, 100).astype(int) + 1, 500)
    clients = [
        (rng.random((n, 60), np.float32), rng.integers(0, 10, n).astype(np.int32)) for n in sizes
    ]
    return side.batched_cohort(workload._replace(clients=clients), round_index)


def _process_and_cohorts(name, rounds):
    if name == "synthetic":
        workload = common.Workload("synthetic", clients=100, batch_size=10, learning_rate=0.01)
        task = tasks.load(workload.task, seed=1)
        process = common.build(task, workload.learning_rate)
        return process, common.cohorts(task, workload, rounds)
    workload = workloads.WORKLOADS["w4" if name == "distinct" else name](None)
    process = tff_algos.build(
        "fedavg", side.pure_model(workload), client_learning_rate=workload.learning_rate
    )
    make = _distinct if name == "distinct" else side.batched_cohort
    return process, (make(workload, r) for r in range(rounds))


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark and prints the result."""
    options = PARSER.parse(arguments)
    known = ("synthetic", *workloads.WORKLOADS, "distinct")
    if options.workload not in known:
        raise HparamError(f"--workload={options.workload} must be one of {', '.join(known)}.")
    runtimes.configure_threads()
    process, cohorts = _process_and_cohorts(options.workload, options.rounds)
    readings = {}
    runtime = runtimes.choose(process)[0] if options.runtime == "auto" else options.runtime
    with runtimes.installed(runtime):
        process = runtimes.bind(process)
        state = process.initialize()
        for i, cohort in enumerate(cohorts, start=1):
            state = process.next(state, cohort).state
            if i in (options.from_round, options.rounds) or i % 100 == 0:
                gc.collect()
                readings[i] = resident_bytes()
                print(f"round {i}: {readings[i] / 2**20:.1f} MiB", file=sys.stderr, flush=True)
    first, last = readings[options.from_round], readings[options.rounds]
    with common.report(options) as table:
        table.add(
            {
                "workload": options.workload,
                "runtime": runtime,
                "from_round": options.from_round,
                "to_round": options.rounds,
                "first_mib": round(first / 2**20, 1),
                "last_mib": round(last / 2**20, 1),
                "growth": round(last / first - 1, 5),
            }
        )
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
