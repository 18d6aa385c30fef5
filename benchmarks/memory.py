"""Growth of memory over many rounds of `run_experiment.py`'s loop on `synthetic`, FedAvg.

    python -m benchmarks.memory [--rounds=1000] [--from_round=50] [--runtime=auto]

Prints the resident memory of this process and its children after `from_round` rounds and after the
last, and their ratio. All 100 clients take part in every round, so that by `from_round` every shape
of data has been seen. A sum over processes counts shared pages twice; growth shows all the same.
"""

import argparse
import gc

import psutil

import tasks
from benchmarks import common
from simulation import runtimes


def resident_bytes() -> int:
    """Returns the resident memory of this process and all below it."""
    process = psutil.Process()
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)])


def main() -> None:
    """Runs the benchmark and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000, help="rounds in all")
    parser.add_argument("--from_round", type=int, default=50, help="round of the first reading")
    parser.add_argument("--runtime", default="auto", choices=runtimes.CHOICES)
    options = parser.parse_args()
    runtimes.configure_threads()
    workload = common.WORKLOADS[0]
    task = tasks.load(workload.task, seed=1)
    process = common.build(task, workload.learning_rate)
    readings = {}
    runtime = runtimes.choose(process)[0] if options.runtime == "auto" else options.runtime
    print(f"runtime {runtime}")
    with runtimes.installed(runtime):
        process = runtimes.bind(process)
        state = process.initialize()
        for i, cohort in enumerate(common.cohorts(task, workload, options.rounds), start=1):
            state = process.next(state, cohort).state
            if i in (options.from_round, options.rounds) or i % 100 == 0:
                gc.collect()
                readings[i] = resident_bytes()
                print(f"round {i}: {readings[i] / 2**20:.1f} MiB", flush=True)
    first, last = readings[options.from_round], readings[options.rounds]
    print(f"growth from round {options.from_round} to {options.rounds}: {last / first - 1:+.2%}")


if __name__ == "__main__":
    main()
