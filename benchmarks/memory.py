"""Growth of memory over many rounds of FedAvg.

    python -m benchmarks.memory [--workload=synthetic] [--rounds=1000] [--from_round=50]
        [--runtime=auto] [--csv=FILE]

Prints the resident memory of this process and its children after `from_round` rounds and after the
last, and their ratio. `synthetic` and the workloads have the same clients in every round, whose
examples come in another order each time, so that by `from_round` every shape of data has been seen;
in `distinct` 100 new clients of new sizes come in every round (100 rounds: 10,000 clients). A sum
over processes counts shared pages twice; growth shows all the same.
"""

import argparse
import gc

from tff_suite import command_line

if __name__ == "__main__":
    command_line.answer_help(__doc__)

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


def main() -> None:
    """Runs the benchmark and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choices = ("synthetic", *workloads.WORKLOADS, "distinct")
    parser.add_argument("--workload", default="synthetic", choices=choices)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds in all")
    parser.add_argument("--from_round", type=int, default=50, help="round of the first reading")
    parser.add_argument("--runtime", default="auto", choices=runtimes.CHOICES)
    parser.add_argument("--csv", default=None, help="file to write the record to")
    options = parser.parse_args()
    runtimes.configure_threads()
    process, cohorts = _process_and_cohorts(options.workload, options.rounds)
    readings = {}
    runtime = runtimes.choose(process)[0] if options.runtime == "auto" else options.runtime
    print(f"runtime {runtime}")
    with runtimes.installed(runtime):
        process = runtimes.bind(process)
        state = process.initialize()
        for i, cohort in enumerate(cohorts, start=1):
            state = process.next(state, cohort).state
            if i in (options.from_round, options.rounds) or i % 100 == 0:
                gc.collect()
                readings[i] = resident_bytes()
                print(f"round {i}: {readings[i] / 2**20:.1f} MiB", flush=True)
    first, last = readings[options.from_round], readings[options.rounds]
    print(f"growth from round {options.from_round} to {options.rounds}: {last / first - 1:+.2%}")
    if options.csv:
        record = {
            "workload": options.workload,
            "runtime": runtime,
            "from_round": options.from_round,
            "to_round": options.rounds,
            "first_mib": round(first / 2**20, 1),
            "last_mib": round(last / 2**20, 1),
            "growth": round(last / first - 1, 5),
        }
        common.write_csv(options.csv, [record])


if __name__ == "__main__":
    main()
