"""One run over several processes and machines: what it costs and what it brings.

    python -m benchmarks.scale PART [--turns=7] [--workloads=w1,w4] [--data_dir=DIR] [--csv=FILE]

Parts, each in minutes, to be run on a quiet machine:
  * `machinery`: processor's time of a round with one worker over that of one without workers, Ray's
    own processes included, on W1, W6 and W4 with 1,000 clients.
  * `two`: clock of two workers of one core each over one of one core, W1.
  * `bytes`: bytes of a round beside the ideal: the model to each worker, an aggregate from each of
    its subtrees of chunks.
  * `memory`: peak memory of the driver for cohorts of 100, 1,000 and 10,000 clients, with and
    without workers.
  * `states`: SCAFFOLD's client states of the EMNIST CNN through the driver's store: bytes and
    seconds of moving them, beside those of the clients' work.
  * `kills`: 200 rounds on a local cluster of two nodes, one of them killed every 20 rounds.
  * `predict`: seconds a round for 8, 64 and 512 workers by simulation, from what the other parts
    measured.

Clients' data are made by the workers, as in a run. `--cohort`, `--workers` and `--runtime` are for
the process that `memory` starts for each measurement.
"""

import argparse
import contextlib
import dataclasses
import os
import resource
import statistics
import subprocess
import sys
import time

from common import command_line

if __name__ == "__main__":
    command_line.answer_help(__doc__)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

from benchmarks import common, scale_tasks  # noqa: F401
from common import imports
from simulation import experiment_flags

_RATE = 0.01
_DATA = {"workloads": ("w1", "w4", "w6")}


class _Rounds:
    """The rounds of a run without a folder."""

    def __init__(
        self,
        stack,
        workload,
        cohort,
        size,
        workers,
        algorithm="fedavg",
        runtime="tff",
        **placed,
    ):
        imports.import_tensorflow()
        from simulation import assembly, runtimes
        from simulation.rounds import in_chunks

        given = dict(
            task="scale",
            scale_workload=workload,
            scale_clients=cohort,
            data_dir=_DATA.get("folder"),
            total_rounds=10_000,
            clients_per_round=cohort,
            client_batch_size={"w4": 10, "w10": 10}.get(workload, 20),
            client_learning_rate=_RATE,
            server_learning_rate=1.0,
            runtime=runtime,
        )
        request = experiment_flags.from_python({**given, "algorithm": algorithm})
        run = {**request.run, "clients_per_chunk": size, "workers": workers, **placed}
        run["import"] = "benchmarks.scale_tasks"
        request = dataclasses.replace(request, run=run)
        parts = assembly.assemble(request)
        stack.enter_context(runtimes.installed(runtime))
        bound = runtimes.bind(parts.process)
        self.process, self.size, self.cohorts = bound, size, parts.cohorts
        self.ahead = self.crew = None
        if size is None:
            from simulation.rounds import cohorts

            def made(r):
                return bound.prepare(parts.cohorts.data(r)[1])

            self.ahead = stack.enter_context(cohorts.Ahead(made, 10_000))
        else:
            self.plan = in_chunks.plan_of(parts.process, run["algorithm"])
            if workers:
                from simulation.workers import start

                self.crew = start.crew(request, {}, self.plan, parts.cohorts, print, stack)
            else:
                threads = len(os.sched_getaffinity(0))
                desk = in_chunks.desk(self.plan, parts.model.model, parts.cohorts, run, threads)
                self.crew = in_chunks.Alone(desk)
                stack.callback(self.crew.close)
            self.process = in_chunks.ChunkedProcess(bound, self.plan, self.crew)
        self.method = parts.process.method
        self.state, self.round = self.process.initialize(), 0

    def __call__(self, states=None):
        """Does a round; returns its seconds, and the processor's of all processes."""
        from simulation.rounds import in_chunks

        before, started = _processor(), time.perf_counter()
        if self.ahead is not None:
            output = self.process.next(self.state, self.ahead(self.round))
        else:
            _, cohort = in_chunks.cohort(self.cohorts, self.size, self.round, 10_000)
            given = [] if states is None else [states]
            output = self.process.next(self.state, cohort, *given)
        self.state, self.round = output.state, self.round + 1
        self.output = output
        return time.perf_counter() - started, _processor() - before


def _processor():
    """Returns the processor's seconds of this process and all that it started."""
    total = 0.0
    own = psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _medians(rounds, turns):
    rounds()
    rounds()
    measured = [rounds() for _ in range(turns)]
    return tuple(statistics.median(column) for column in zip(*measured, strict=True))


def _machinery(turns):
    for workload, cohort in (("w1", 10), ("w6", 10), ("w4", 1000)):
        if workload not in _DATA["workloads"] or workload == "w6" and not _DATA.get("folder"):
            continue
        found = {}
        for workers in (0, 1):
            with contextlib.ExitStack() as stack:
                size = cohort if workers else None
                more = {} if workers == 0 else {"cpus_per_worker": 2.0}
                rounds = _Rounds(stack, workload, cohort, size, workers, **more)
                found[workers] = _medians(rounds, turns)
        (clock, processor), (clock1, processor1) = found[0], found[1]
        yield dict(
            part="machinery",
            what=f"{workload}, {cohort} clients",
            without=processor,
            with_one=processor1,
            ratio=processor1 / processor,
            clock_ratio=clock1 / clock,
        )


def _two(turns):
    found = {}
    for workers in (1, 2):
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, "w1", 10, 1, workers)
            found[workers] = _medians(rounds, turns)
    yield dict(
        part="two",
        what="w1, 10 chunks of a client",
        one_seconds=found[1][0],
        two_seconds=found[2][0],
        ratio=found[1][0] / found[2][0],
    )


def _bytes(turns):
    del turns
    for workload, cohort, size in (("w1", 16, 2), ("w4", 256, 16)):
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, workload, cohort, size, 2)
            for _ in range(3):
                rounds()
            down, up = rounds.plan.sent_bytes()
            moved = rounds.crew.bytes
            # Down goes through the object store of a machine, once, whatever the workers on it.
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


def _memory(turns):
    del turns
    for runtime, workers in (("tff", 0), ("vectorized", 0), ("tff", 1)):
        for cohort in (100, 1000, 10_000):
            command = [sys.executable, "-m", "benchmarks.scale", "one_memory"]
            command += [f"--cohort={cohort}", f"--workers={workers}", f"--runtime={runtime}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            yield dict(
                part="memory",
                what=f"w4, {cohort} clients in chunks of 50, {runtime}, {workers} workers",
                peak_mib=float(done.stdout.split()[-1]),
            )


def _one_memory(cohort, workers, runtime):
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(stack, "w4", cohort, 50, workers, runtime=runtime)
        for _ in range(2):
            rounds()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def _states(turns):
    del turns
    from tff_algos import process as process_lib

    with contextlib.ExitStack() as stack:
        rounds = _Rounds(stack, "stateful", 16, 2, 2, algorithm="scaffold")
        first = process_lib.initial_client_state(rounds.method)
        states = [first] * 16
        for _ in range(3):
            seconds, _ = rounds(states)
            states = list(rounds.output.client_states)
        moved = rounds.crew.bytes
        yield dict(
            part="states",
            what="SCAFFOLD, EMNIST CNN, 16 clients of 198 examples, 2 workers",
            seconds=seconds,
            states_mb=moved["states"] / 1e6,
            model_mb=moved["down"] / 1e6,
        )
    import ray

    with contextlib.ExitStack() as stack:
        from simulation.runtimes import cluster

        stack.enter_context(cluster.connected(None))
        one = np.random.default_rng(0).normal(size=1_206_590).astype(np.float32)
        started = time.perf_counter()
        for _ in range(20):
            ray.get(ray.put([one + 0]))
        yield dict(
            part="states",
            what="to and from the object store, a client's state",
            seconds=(time.perf_counter() - started) / 20,
        )


def _kills(turns):
    del turns
    from ray.cluster_utils import Cluster

    rounds_to_do, every = 200, 20
    with contextlib.ExitStack() as stack:
        whole = _Rounds(stack, "w4", 40, 5, 0)
        for _ in range(rounds_to_do):
            whole()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, "w4", 40, 5, 2, ray_address=cluster.address)
            started, killed = time.perf_counter(), 0
            for r in range(rounds_to_do):
                if r % every == every - 1:
                    cluster.remove_node(node, allow_graceful=False)
                    node, killed = cluster.add_node(num_cpus=1), killed + 1
                rounds()
            seconds = time.perf_counter() - started
            same = all(
                np.asarray(a).tobytes() == np.asarray(b).tobytes()
                for a, b in zip(rounds.state.weights, whole.state.weights, strict=True)
            )
    finally:
        cluster.shutdown()
    yield dict(
        part="kills",
        what=f"w4, 40 clients, {rounds_to_do} rounds, {killed} nodes killed",
        seconds=seconds,
        same_bits=same,
    )


def simulate(
    steps: np.ndarray,
    workers: int,
    *,
    step_seconds: float,
    client_seconds: float,
    clients_per_chunk: int,
    model_bytes: float,
    order_seconds: float,
    bytes_per_second: float,
    merge_bytes_per_second: float,
    workers_per_machine: int = 8,
) -> dict[str, float]:
    """Returns what a round takes, by the same placement as a run's.

    Args:
      steps: Local steps of each client, `[n]`.
      workers: Number of workers.
      step_seconds: Of a local step.
      client_seconds: Of a client besides.
      clients_per_chunk: Clients of a chunk.
      model_bytes: Of a broadcast, and of an aggregate.
      order_seconds: Of the driver, for an order.
      bytes_per_second: Of the network at the driver.
      merge_bytes_per_second: Of the driver's sums.
      workers_per_machine: Who share a broadcast.

    Returns:
      `work`, until the last worker is done; `driver`, what the driver does meanwhile and after:
      broadcast, orders, what it receives and adds; `seconds` of the round; `efficiency` of it.
    """
    from simulation.workers import placement

    starts = range(0, len(steps), clients_per_chunk)
    per_client = client_seconds + step_seconds * steps
    costs = [float(per_client[s : s + clients_per_chunk].sum()) for s in starts]
    places = placement.shares(costs, [1.0] * workers)
    work = max(sum(costs[i] for i in p) for p in places)
    orders = subtrees = 0
    for p in places:
        # Each order takes half of what is left.
        number = len(p)
        orders += number.bit_length()
        subtrees += number.bit_length()
    machines = -(-workers // workers_per_machine)
    # Over the network a broadcast goes from machine to machine, as Ray's object store has it.
    down = model_bytes / bytes_per_second * np.ceil(np.log2(machines + 1))
    up = subtrees * model_bytes * (1 / bytes_per_second + 1 / merge_bytes_per_second)
    driver = orders * order_seconds + up
    # What comes in while others work is added meanwhile; the last of each worker is not.
    after = workers * model_bytes * (1 / bytes_per_second + 1 / merge_bytes_per_second)
    seconds = down + max(work + after, driver)
    return dict(
        work=work,
        driver=driver,
        seconds=float(seconds),
        efficiency=float(sum(costs) / workers / seconds),
    )


def stack_overflow_sizes(number: int, seed: int = 0) -> np.ndarray:
    """Draws how many sentences users of Stack Overflow have, 1,000 at most.

    The data are not at hand: an assumed log-normal law of sigma 1.5 with the mean of the 342,477
    training users, 397 (135,818,730 sentences).
    """
    rng = np.random.default_rng(seed)
    sigma = 1.5
    sizes = rng.lognormal(np.log(397.0) - sigma**2 / 2, sigma, number)
    return np.clip(sizes, 1, 1000).astype(int)


def _predict(turns):
    del turns
    measured = _constants()
    for cohort, size, most in ((1000, 1, 1000), (10_000, 8, 1000), (10_000, 8, 64)):
        sizes = np.minimum(stack_overflow_sizes(cohort), most)
        for model, model_bytes, factor in (("EMNIST CNN", 4.8e6, 1.0), ("100 MB", 1e8, 20.0)):
            for workers in (8, 64, 512):
                given = {**measured, "step_seconds": measured["step_seconds"] * factor}
                what = f"{model}, {cohort:,} clients of at most {most}, chunks of {size}"
                found = simulate(
                    -(-sizes // 16),
                    workers,
                    model_bytes=model_bytes,
                    clients_per_chunk=size,
                    **given,
                )
                yield dict(part="predict", what=what, workers=workers, **found)


def _constants():
    """Measures what `simulate` is given, but the network, which is taken to have 10 Gbit/s."""
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(stack, "w1", 10, 1, 1)
        _, processor = _medians(rounds, 3)
        small = _Rounds(stack, "w4", 8, 1, 0)
        # An order of a trivial chunk: what the driver does for it.
        order = max(1e-3, _medians(small, 3)[0] / 8)
    a = np.zeros(1_206_590, np.float32)
    started = time.perf_counter()
    for _ in range(20):
        a + a
    merge = 20 * a.nbytes / (time.perf_counter() - started)
    # Ten clients of ten steps.
    return dict(
        step_seconds=processor / 100,
        client_seconds=1e-3,
        order_seconds=order,
        bytes_per_second=1.25e9,
        merge_bytes_per_second=merge,
    )


_PARTS = {
    "machinery": _machinery,
    "two": _two,
    "bytes": _bytes,
    "memory": _memory,
    "states": _states,
    "kills": _kills,
    "predict": _predict,
}


def main() -> None:
    """Runs a part and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=[*_PARTS, "one_memory"])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--csv")
    parser.add_argument("--workloads", default="w1,w4,w6", help="of the machinery")
    parser.add_argument("--data_dir", help="of MNIST and its writers, for W6")
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--runtime", default="tff")
    given = parser.parse_args()
    _DATA["workloads"] = given.workloads.split(",")
    if given.data_dir:
        _DATA["folder"] = given.data_dir
    if given.part == "one_memory":
        _one_memory(given.cohort, given.workers, given.runtime)
        return
    records = []
    for record in _PARTS[given.part](given.turns):
        records.append(record)
        numbers = (
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in record.items()
        )
        print("  ".join(numbers), flush=True)
    if given.csv:
        common.write_csv(given.csv, records)


if __name__ == "__main__":
    main()
