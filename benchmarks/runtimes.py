"""Seconds a round of the `tff` runtime relative to TFF's own worker (`native`), FedAvg.

    python -m benchmarks.runtimes [--data_dir=DIR] [--rounds=N]

Both run the same rounds in one process, in turn, so that whatever else the machine does meets both.
Only the ratio means anything; the absolute times are this machine's at this moment. A task whose
data are missing is skipped, and said to be.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow_federated as tff

import tasks
from benchmarks import common
from simulation import native_worker, runtimes, tff_context
from tasks.task import DataError


def measure(task: tasks.task.Task, workload: common.Workload, rounds: int) -> dict[str, float]:
    """Returns the median seconds a round of each runtime; the first round of each is left out.

    Raises:
      AssertionError: If the runtimes disagree about the model after the first round. (Later on
        the differences of float32 grow by themselves where a model has kinks.)
    """
    process = common.build(task, workload.learning_rate)
    stack = tff.framework.get_context_stack()
    seconds = {"tff": [], "native": []}
    with native_worker.native_context() as native:
        contexts = {"tff": tff_context.InProcessContext(), "native": native}
        states = {}
        for name, context in contexts.items():
            with stack.install(context):
                states[name] = process.initialize()
        for cohort in common.cohorts(task, workload, rounds + 1):
            for name, context in contexts.items():
                with stack.install(context):
                    started = time.perf_counter()
                    states[name] = process.next(states[name], cohort).state
                    seconds[name].append(time.perf_counter() - started)
            if len(seconds["tff"]) == 1:
                for a, b in zip(states["tff"].weights, states["native"].weights, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        contexts["tff"].close()
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def main() -> None:
    """Runs the benchmark and prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default=None, help="folder of the tasks' data")
    parser.add_argument("--rounds", type=int, default=20, help="rounds measured")
    options = parser.parse_args()
    runtimes.configure_threads()
    print(f"{common.machine()}; medians of {options.rounds} rounds, alternating\n")
    print("| task | clients a round | tff s | native s | tff / native |")
    print("| --- | --- | --- | --- | --- |")
    for workload in common.WORKLOADS:
        try:
            task = tasks.load(workload.task, data_dir=options.data_dir, seed=1)
        except DataError as e:
            print(f"| {workload.task} | skipped: {e} | | | |")
            continue
        s = measure(task, workload, options.rounds)
        print(
            f"| {workload.task} | {workload.clients} | {s['tff']:.3f} | {s['native']:.3f} | "
            f"{s['tff'] / s['native']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
