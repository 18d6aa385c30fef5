"""Seconds to the end of the first round and peak memory of every task.

    python -m benchmarks.loading --tasks=synthetic,fashion_mnist

Each task runs in its own process. It loads its data, builds its model and FedAvg, and runs one
round of ten clients (at most 100 examples each, minibatches of 20), without evaluation. If
`--data_dir` has no data for a task, the task makes synthetic data, and the table says so. Peak
memory is the largest resident memory of the process. Processor seconds are those of the process up
to the end of the round; other work on the machine affects them less than wall-clock seconds.
"""

import json
import os
import resource
import subprocess
import sys
import time

from tff_suite import command_line, parser, tables

PARSER = parser.Parser(__doc__)
PARSER.flag("data_dir", help="Folder with the tasks' folders of data.", path=True)
PARSER.flag("tasks", help="Tasks, separated by commas. Unset: all.")
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)
PARSER.flag("child")

if __name__ == "__main__":
    command_line.begin(PARSER)

# TensorFlow reads this when it is imported, in child processes too.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_CLIENTS = 10


def child(name: str, data_dir: str | None) -> dict:
    """Loads a task and runs a round in this process; returns its time and memory."""
    started = time.perf_counter()
    from tff_suite import imports

    imports.import_tensorflow()
    import tasks
    from benchmarks import common
    from simulation import runtimes
    from simulation.rounds import cohorts
    from tasks.task import DataError
    from tff_algos.registry import RoundPlan

    imported = time.perf_counter()
    data = "real"
    try:
        if data_dir is None and tasks.get(name).needs_data:
            raise DataError("no --data_dir")
        task = tasks.load(name, data_dir=data_dir, seed=1)
    except DataError:
        imported, data = time.perf_counter(), "synthetic"
        task = tasks.load(name, seed=1, use_synthetic_data=True)
    loaded = time.perf_counter()
    runtimes.configure_threads()
    process = common.build(task, 0.01)
    settings = {
        "clients_per_round": min(_CLIENTS, len(task.train.client_ids)),
        "client_batch_size": 20,
        "client_epochs_per_round": 1,
        "client_epochs_distribution": "fixed",
        "client_datasets_random_seed": 1,
        "seed": 1,
    }
    runtime = runtimes.choose(process)[0]
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        state = bound.initialize()
        built = time.perf_counter()
        train = cohorts.first_examples(task.train, 100)
        cohort = cohorts.cohort_data(train, RoundPlan(), settings, 0)
        drawn = time.perf_counter()
        bound.next(state, cohort)
    done = time.perf_counter()
    return {
        "task": name,
        "data": data if tasks.get(name).needs_data else "generated",
        "clients": len(task.train.client_ids),
        "import_seconds": round(imported - started, 1),
        "load_seconds": round(loaded - imported, 2),
        "build_seconds": round(built - loaded, 1),
        "cohort_seconds": round(drawn - built, 3),
        "round_seconds": round(done - drawn, 1),
        "first_round_seconds": round(done - started, 1),
        "cpu_seconds": round(time.process_time(), 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the benchmark, prints a Markdown table, writes a CSV; returns the exit code."""
    options = PARSER.parse(arguments)
    if options.child:
        print(json.dumps(child(options.child, options.data_dir)))
        return 0
    import tasks
    from benchmarks import common

    with common.report(options) as table:
        table.say(f"{common.machine()}\n")
        for name in options.tasks.split(",") if options.tasks else tasks.names():
            command = [sys.executable, "-m", "benchmarks.loading", f"--child={name}"]
            if options.data_dir:
                command.append(f"--data_dir={os.path.abspath(options.data_dir)}")
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
                print(f"{name}: {reason}", file=sys.stderr)
                continue
            table.add(json.loads(done.stdout.strip().splitlines()[-1]))
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
