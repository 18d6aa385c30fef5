"""Evaluation seconds per example, relative to a round's training, on the runtime of `auto`.

    python -m benchmarks.evaluation --workloads=w1,w4 --rounds=5

Training rounds and evaluations take turns in one process; medians are printed. The round's clients
are evaluated on their own training examples, repeated up to `--examples`. One pass gives results
per client and pooled results, as in a run.
"""

import os
import statistics
import time

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("workloads", "w1,w2,w3,w4,w5,w6", "Workloads, separated by commas.")
PARSER.flag("rounds", 5, "Rounds measured.", minimum=1)
PARSER.flag("examples", 10_000, "Examples to evaluate on.", minimum=1)
PARSER.flag("data_dir", help="Folder of real data.", path=True)
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

import tff_algos
from benchmarks import common, side, workloads
from simulation import runtimes
from simulation.measures import evaluation
from tasks.task import ArrayFederatedData


def measure(name: str, rounds: int, examples: int, data_dir: str | None) -> dict:
    """Returns the record of a workload."""
    workload = workloads.WORKLOADS[name](data_dir)
    model = side.pure_model(workload)
    process = tff_algos.build("fedavg", model, client_learning_rate=workload.learning_rate)
    runtime = runtimes.choose(process)[0]
    x, y = (np.concatenate(parts) for parts in zip(*workload.clients, strict=True))
    ends = np.cumsum([len(own) for _, own in workload.clients])
    rows = np.split(np.arange(len(y)), ends[:-1]) * -(-examples // len(y))
    numbers = int(np.prod(workload.keras_model().output_shape[1:]))
    evaluator = evaluation.Evaluator(model, numbers)
    tests = evaluator.prepare(ArrayFederatedData(x, y, rows))
    trained, evaluated = [], []
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        state = bound.initialize()
        for r in range(rounds + 1):
            cohort = side.batched_cohort(workload, r)
            started = time.perf_counter()
            state = bound.next(state, cohort).state
            weights = [np.asarray(w) for w in bound.model_weights(state)]
            done = time.perf_counter()
            result = evaluator(weights, tests)
            result.pooled()
            result.by_client()
            trained.append((done - started) / len(y))
            evaluated.append((time.perf_counter() - done) / int(tests.sizes.sum()))
    training, evaluating = (statistics.median(v[1:]) for v in (trained, evaluated))
    return {
        "workload": name,
        "runtime": runtime,
        "training_us": round(1e6 * training, 3),
        "evaluation_us": round(1e6 * evaluating, 3),
        "of_training": round(evaluating / training, 3),
    }


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints a Markdown table, writes a CSV."""
    options = PARSER.parse(arguments)
    runtimes.configure_threads()
    with common.report(options) as table:
        for name in options.workloads.split(","):
            table.add(measure(name, options.rounds, options.examples, options.data_dir))
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
