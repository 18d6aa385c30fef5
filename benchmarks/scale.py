"""Cost and benefit of one run over several processes.

    python -m benchmarks.scale machinery --workloads=w1,w4 --turns=7

Each part takes minutes and should run on a quiet machine:
  * `machinery`: processor time of a round with one worker, relative to one without workers. It
    includes Ray's own processes. Workloads: W1, W6 and W4 with 1,000 clients.
  * `two`: wall-clock time on W1 with two workers of one core each, relative to one such worker.
    Also how much longer the clients' work takes in total with two, and its share of the wall clock.
  * `bytes`: bytes of a round, compared with the ideal: the model to each worker, and one aggregate
    from each of its subtrees of chunks.

Workers make the data of their clients, as in a run.
"""

import contextlib
import dataclasses
import os
import statistics
import sys
import time

import psutil

from benchmarks import harness, scale_tasks  # noqa: F401
from simulation import experiment_flags
from tff_suite import imports

BENCHMARK = harness.Benchmark(
    __doc__,
    {
        "part": "part",
        "what": "what",
        "ratio": "ratio",
        "of_the_worker": "the worker's",
        "of_the_driver": "the driver's",
        "of_ray": "Ray's",
        "clock_ratio": "by the clock",
        "work_with_two": "work with two",
        "down": "bytes down",
        "up": "bytes up",
    },
)
BENCHMARK.positional("part", "what to measure", choices=("machinery", "two", "bytes"))
BENCHMARK.flag("turns", 7, "Turns of each side.", minimum=1)
BENCHMARK.flag("workloads", "w1,w4,w6", "Workloads of the machinery, separated by commas.")
BENCHMARK.flag("data_dir", help="Folder of MNIST and its writers, for w6.", path=True)

_RATE = 0.01


class _Rounds:
    """The rounds of a run of FedAvg without a folder."""

    def __init__(self, stack, data_dir, workload, cohort, size, workers, **placed):
        imports.import_tensorflow()
        from simulation import assembly
        from simulation.engine import pool

        request = experiment_flags.from_python(
            dict(
                task="scale",
                algorithm="fedavg",
                scale_workload=workload,
                scale_clients=cohort,
                data_dir=data_dir,
                total_rounds=10_000,
                clients_per_round=cohort,
                client_batch_size=10 if workload == "w4" else 20,
                client_learning_rate=_RATE,
                server_learning_rate=1.0,
                runtime="per_client",
            )
        )
        run = {**request.run, "clients_per_chunk": size, "workers": workers, **placed}
        run["import"] = "benchmarks.scale_tasks"
        request = dataclasses.replace(request, run=run)
        parts = assembly.assemble(request)
        method = parts.method
        programs = method.programs()
        self.program = programs[""]
        if workers:
            from simulation.workers import start

            self.pool = start.pool(
                request, {}, programs, parts.cohorts, say=_say, warn=_say, stack=stack
            )
        else:
            threads = len(os.sched_getaffinity(0))
            self.pool = pool.InProcess(pool.schedulers(programs, method.data, run, threads))
            stack.callback(self.pool.close)
        self._process = method.in_engine(programs, self.pool)
        self._cohort_of_round = stack.enter_context(method.cohorts(in_engine=True))
        self._state, self._round = self._process.initialize(), 0

    def __call__(self):
        """Does a round; returns its wall-clock seconds."""
        started = time.perf_counter()
        cohort = self._cohort_of_round(self._round, self._state)
        self._state = self._process.next(self._state, cohort).state
        self._round += 1
        return time.perf_counter() - started


def _say(text):
    print(text, file=sys.stderr)


def _machinery(options):
    chosen = options.workloads.split(",")
    for workload, cohort in (("w1", 10), ("w6", 10), ("w4", 1000)):
        if workload not in chosen or (workload == "w6" and not options.data_dir):
            continue
        turns, given = options.turns, (options.data_dir, workload, cohort)
        with contextlib.ExitStack() as stack:
            # Both exist all the time and take turns, so that other work on the machine, and its
            # speed, affect both alike. The waiting one uses hardly any resources.
            alone = _Rounds(stack, *given, None, 0)
            shared = _Rounds(stack, *given, cohort, 1, cpus_per_worker=2.0)
            found = {}, {}
            for turn in range(turns + 2):
                for rounds, took in zip((alone, shared), found, strict=True):
                    before, clock = _by_kind(), rounds()
                    spent = {k: v - before.get(k, 0.0) for k, v in _by_kind().items()}
                    if turn >= 2:
                        for kind, seconds in {"clock": clock, **spent}.items():
                            took.setdefault(kind, []).append(seconds)
            without, own = ({k: sum(v) / turns for k, v in took.items()} for took in found)
            with_one = own["driver"] + own["worker"] + own["ray"]
        yield dict(
            part="machinery",
            what=f"{workload}, {cohort} clients",
            without=without["driver"],
            with_one=with_one,
            ratio=with_one / without["driver"],
            of_the_worker=own["worker"] / without["driver"],
            of_the_driver=own["driver"] / without["driver"],
            of_ray=own["ray"] / without["driver"],
            clock_ratio=own["clock"] / without["clock"],
        )


def _by_kind():
    """Returns the processor seconds of this process, of workers and of Ray's own processes."""
    found = {"driver": sum(psutil.Process().cpu_times()[:2]), "worker": 0.0, "ray": 0.0}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            is_worker = any("ray::" in part for part in process.cmdline())
            found["worker" if is_worker else "ray"] += sum(process.cpu_times()[:2])
    return found


def _two(options):
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(stack, None, "w1", 10, 1, 2)
        pool, at_work = rounds.pool, []
        members, learn = list(pool._members), pool._learn

        def learn_and_note(process, member, chunks, seconds):
            at_work.extend(seconds)
            learn(process, member, chunks, seconds)

        pool._learn = learn_and_note
        # Both workers exist all the time; the second is idle in every other turn.
        clock, busy = {1: [], 2: []}, {1: [], 2: []}
        for turn in range(options.turns + 1):
            for workers in (1, 2):
                pool._number, pool._members[:] = workers, members[:workers]
                rounds()
                for _ in range(3):
                    at_work.clear()
                    seconds = rounds()
                    if turn:
                        clock[workers].append(seconds)
                        busy[workers].append(sum(at_work))
        pool._number, pool._members[:] = 2, members
    one, two = (statistics.median(clock[n]) for n in (1, 2))
    yield dict(
        part="two",
        what="w1, 10 chunks of a client",
        one_seconds=one,
        two_seconds=two,
        ratio=one / two,
        # The remainder is lost to contention for memory, and to the driver.
        work_with_two=statistics.median(busy[2]) / statistics.median(busy[1]),
        at_work_of_one=statistics.median(busy[1]) / one,
        at_work_of_two=statistics.median(busy[2]) / 2 / two,
    )


def _bytes(options):
    del options
    for workload, cohort, size in (("w1", 16, 2), ("w4", 256, 16)):
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, None, workload, cohort, size, 2)
            for _ in range(3):
                rounds()
            down, up = rounds.program.sent_bytes()
            moved = rounds.pool.bytes
        # The broadcast passes through each machine's object store once, for all its workers.
        yield dict(
            part="bytes",
            what=f"{workload}, {cohort // size} chunks, 2 workers",
            down=moved["down"],
            ideal_down=down,
            up=moved["up"],
            nodes=moved["nodes"],
            ideal_up=up * moved["nodes"],
            ratio=(moved["down"] + moved["up"]) / (down + up * moved["nodes"]),
        )


_PARTS = {"machinery": _machinery, "two": _two, "bytes": _bytes}


def records(options):
    """Yields the records of a part, numbers with four digits."""
    for record in _PARTS[options.part](options):
        yield {k: float(f"{v:.4g}") if type(v) is float else v for k, v in record.items()}


if __name__ == "__main__":
    BENCHMARK.run(records)
