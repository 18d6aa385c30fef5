"""Cost and benefit of one run over several processes and machines.

    python -m benchmarks.scale machinery --workloads=w1,w4 --turns=7

Each part takes minutes and should run on a quiet machine:
  * `machinery`: processor time of a round with one worker, relative to one without workers. It
    includes Ray's own processes. Workloads: W1, W6 and W4 with 1,000 clients.
  * `two`: wall-clock time on W1 with two workers of one core each, relative to one such worker.
    Also how much longer the clients' work takes in total with two, and its share of the wall clock.
  * `cores`: how much more two cores can do than one. A process on one core does W1 without workers,
    alternately alone and while another process does the same on the other core.
  * `bytes`: bytes of a round, compared with the ideal: the model to each worker, and one aggregate
    from each of its subtrees of chunks.
  * `memory`: peak memory of the driver for cohorts of 100, 1,000 and 10,000 clients, with and
    without workers.
  * `states`: SCAFFOLD with the EMNIST CNN on 10,000 clients, 20 per round, with their states in the
    driver's store: bytes, and seconds of transfer and storage compared with those of the work.
  * `kills`: rounds on a local cluster of two nodes. Every 20 rounds one node is killed during a
    round and replaced, `--turns` times.
  * `predict`: seconds per round for 8, 64 and 512 workers by simulation. Its inputs are measured
    first: time per client, per step and per order of the driver, and rates of broadcasts and sums.

Workers make the data of their clients, as in a run. `--cohort`, `--workers`, `--runtime` and
`--core` are for the processes that `memory` and `cores` start.
"""

import contextlib
import dataclasses
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from tff_suite import command_line, parser, tables
from tff_suite.hparams import HparamError

PARSER = parser.Parser(__doc__)
PARSER.positional("part", "what to measure")
PARSER.flag("turns", 7, "Turns of each side.", minimum=1)
PARSER.flag("csv", help="File to write the records to.", path=True)
tables.add_flag(PARSER)
PARSER.flag("workloads", "w1,w4,w6", "Workloads of the machinery, separated by commas.")
PARSER.flag("data_dir", help="Folder of MNIST and its writers, for w6.", path=True)
# For the processes that `memory` and `cores` start.
PARSER.flag("cohort", 100)
PARSER.flag("workers", 0)
PARSER.flag("runtime", "tff")
PARSER.flag("core", 0)

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import psutil

from benchmarks import common, scale_tasks  # noqa: F401
from simulation import experiment_flags
from tasks import fingerprint
from tff_suite import imports

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
        runtime="per_client",
        clients=None,
        **placed,
    ):
        imports.import_tensorflow()
        from simulation import assembly, runtimes
        from simulation.engine import pool

        given = dict(
            task="scale",
            scale_workload=workload,
            scale_clients=clients or cohort,
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
        method, self.pool = parts.method, None
        if runtimes.in_engine(run):
            programs = method.programs()
            self.program = programs[""]
            if workers:
                from simulation.workers import start

                # Workers on another node compare this with their own data.
                data = fingerprint.of_task(parts.task) if "ray_address" in placed else {}
                self.pool = start.pool(request, data, programs, parts.cohorts, print, stack)
            else:
                threads = len(os.sched_getaffinity(0))
                self.pool = pool.InProcess(pool.schedulers(programs, method.data, run, threads))
                stack.callback(self.pool.close)
            self.process = method.in_engine(programs, self.pool)
        else:
            stack.enter_context(runtimes.installed(runtime))
            self.process = method.through_tff()
        self._cohort_of_round = stack.enter_context(method.cohorts(runtimes.in_engine(run)))
        self.method = method.process.method
        self.state, self.round = self.process.initialize(), 0

    def __call__(self, states=None):
        """Does a round; returns its wall-clock seconds, and processor seconds of all processes."""
        before, started = _processor(), time.perf_counter()
        cohort = self._cohort_of_round(self.round, self.state)
        given = None if states is None else states.slices(cohort.ids)
        output = self.process.next(self.state, cohort, given)
        self.state, self.round = output.state, self.round + 1
        if states is not None:
            states.take(cohort.ids, output.client_states, self.round)
            states.commit(self.round)
            states.forget_before(self.round)
        return time.perf_counter() - started, _processor() - before


def _processor():
    """Returns the processor seconds of this process and its descendants."""
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
        if workload not in _DATA["workloads"] or (workload == "w6" and not _DATA.get("folder")):
            continue
        with contextlib.ExitStack() as stack:
            # Both exist all the time and take turns, so that other work on the machine, and its
            # speed, affect both alike. The waiting one uses hardly any resources.
            alone = _Rounds(stack, workload, cohort, None, 0)
            shared = _Rounds(stack, workload, cohort, cohort, 1, cpus_per_worker=2.0)
            found = {}, {}
            for turn in range(turns + 2):
                for rounds, took in zip((alone, shared), found, strict=True):
                    before, (clock, _) = _by_kind(), rounds()
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


def _two(turns):
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(stack, "w1", 10, 1, 2)
        crew, at_work = rounds.pool, []
        members, learn = list(crew._members), crew._learn

        def learn_and_note(process, member, chunks, seconds):
            at_work.extend(seconds)
            learn(process, member, chunks, seconds)

        crew._learn = learn_and_note
        # Both workers exist all the time; the second is idle in every other turn.
        clock, busy = {1: [], 2: []}, {1: [], 2: []}
        for turn in range(turns + 1):
            for workers in (1, 2):
                crew._number, crew._members[:] = workers, members[:workers]
                rounds()
                for _ in range(3):
                    at_work.clear()
                    seconds, _ = rounds()
                    if turn:
                        clock[workers].append(seconds)
                        busy[workers].append(sum(at_work))
        crew._number, crew._members[:] = 2, members
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


def _cores(turns):
    cores = sorted(os.sched_getaffinity(0))[:2]
    with contextlib.ExitStack() as stack:
        processes = []
        for core in cores:
            command = [sys.executable, "-m", "benchmarks.scale", "one_core", f"--core={core}"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            processes.append(process)
        one, other = processes
        one.send_signal(signal.SIGCONT)
        found = {False: [], True: []}
        for _ in range(turns):
            for both in (False, True):
                other.send_signal(signal.SIGCONT if both else signal.SIGSTOP)
                one.stdout.readline()  # Skip the round in which the other process came or went.
                found[both] += [float(one.stdout.readline()) for _ in range(3)]
    alone, beside = (statistics.median(found[both]) for both in (False, True))
    yield dict(
        part="cores",
        what="w1, 10 chunks of a client",
        alone_seconds=alone,
        beside_seconds=beside,
        at_most=2 * alone / beside,
    )


def _one_core(core):
    os.sched_setaffinity(0, {core})
    with contextlib.ExitStack() as stack:
        rounds = _Rounds(stack, "w1", 10, 1, 0)
        rounds()
        while True:
            print(rounds()[0], flush=True)


def _bytes(turns):
    del turns
    for workload, cohort, size in (("w1", 16, 2), ("w4", 256, 16)):
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, workload, cohort, size, 2)
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


class _Timed:
    """A store of client states that measures its seconds."""

    def __init__(self, states):
        self._states, self.seconds = states, 0.0

    def slices(self, clients):
        from simulation.records import client_states

        return client_states.Slices(self, clients)

    def __getattr__(self, name):
        call = getattr(self._states, name)

        def timed(*args):
            started = time.perf_counter()
            try:
                return call(*args)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def _states(turns):
    from simulation.records import client_states
    from tff_algos import process as process_lib

    number, cohort = 10_000, 20
    for workers in (0, 2):
        with contextlib.ExitStack() as stack:
            given = dict(algorithm="scaffold", clients=number)
            rounds = _Rounds(stack, "stateful", cohort, 2, workers, **given)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            first = process_lib.initial_client_state(rounds.method)
            # Less memory than all states need, so that some go to the file.
            path = os.path.join(folder, "states.sqlite")
            plain = client_states.ClientStates(path, first, 200 << 20)
            store = _Timed(stack.enter_context(contextlib.closing(plain)))
            measured = []
            for _ in range(turns + 1):
                store.seconds, driver = 0.0, time.process_time()
                clock, _ = rounds(store)
                measured.append((clock, store.seconds, time.process_time() - driver))
            clock, stored, driver = np.median(measured[1:], axis=0)
            yield dict(
                part="states",
                what=f"SCAFFOLD, EMNIST CNN, {cohort} of {number:,} clients, {workers} workers",
                seconds=float(clock),
                store_seconds=float(stored),
                driver_processor_seconds=float(driver),
                file_mb=os.path.getsize(path) / 1e6,
                **(rounds.pool.moved() if workers else {}),
            )
    import ray

    with contextlib.ExitStack() as stack:
        from simulation import cluster

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
    from ray.cluster_utils import Cluster

    every = 20
    rounds_to_do = every * turns
    with contextlib.ExitStack() as stack:
        whole = _Rounds(stack, "w4", 40, 5, 0)
        for _ in range(rounds_to_do):
            whole()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, "w4", 40, 5, 2, ray_address=cluster.address)
            # The driver is connected through the first node, which must not be killed.
            node = cluster.add_node(num_cpus=1)
            started, lost = time.perf_counter(), 0
            for r in range(rounds_to_do):
                killer = None
                if r % every == every - 1:
                    # Ensures that a worker on the node is busy when the node is killed.
                    rounds.pool.wait_for_all()
                    lost += len({facts.node for facts in rounds.pool.ready()}) - 1
                    killer = threading.Thread(target=cluster.remove_node, args=(node, False))
                    killer.start()
                rounds()
                if killer:
                    killer.join()
                    node = cluster.add_node(num_cpus=1)
            seconds = time.perf_counter() - started
            same = all(
                np.asarray(a).tobytes() == np.asarray(b).tobytes()
                for a, b in zip(rounds.state.weights, whole.state.weights, strict=True)
            )
    finally:
        cluster.shutdown()
    yield dict(
        part="kills",
        what=f"w4, 40 clients, {rounds_to_do} rounds, {lost} nodes killed",
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
    put_bytes_per_second: float,
    bytes_per_second: float,
    merge_bytes_per_second: float,
    workers_per_machine: int = 8,
) -> dict[str, float]:
    """Simulates the time of a round, with the same placement of clients as in a run.

    Args:
      steps: Local steps of each client, `[n]`.
      workers: Number of workers.
      step_seconds: Seconds per local step.
      client_seconds: Further seconds per client.
      clients_per_chunk: Clients per chunk.
      model_bytes: Bytes of a broadcast, and of an aggregate.
      order_seconds: The driver's seconds per order.
      put_bytes_per_second: Rate of the driver's broadcasts into its object store.
      bytes_per_second: Rate of the network at the driver.
      merge_bytes_per_second: Rate of the driver's sums.
      workers_per_machine: Number of workers that share a broadcast.

    Returns:
      `work`, seconds until the last worker is done; `driver`, seconds of the driver for broadcast,
      orders, receiving and adding; `seconds` of the round; and its `efficiency`.
    """
    from simulation.workers import placement

    starts = range(0, len(steps), clients_per_chunk)
    per_client = client_seconds + step_seconds * steps
    costs = [float(per_client[s : s + clients_per_chunk].sum()) for s in starts]
    places = placement.shares(costs, [1.0] * workers)
    work = max(sum(costs[i] for i in p) for p in places)
    orders = subtrees = 0
    for p in places:
        # Each order takes half of the remaining chunks.
        number = len(p)
        orders += number.bit_length()
        subtrees += number.bit_length()
    machines = -(-workers // workers_per_machine)
    # Ray's object store passes a broadcast on from machine to machine.
    down = model_bytes / put_bytes_per_second
    down += model_bytes / bytes_per_second * np.ceil(np.log2(machines + 1))
    up = subtrees * model_bytes * (1 / bytes_per_second + 1 / merge_bytes_per_second)
    driver = orders * order_seconds + up
    # Aggregates that arrive early are added meanwhile; the last one of each worker is added after.
    after = workers * model_bytes * (1 / bytes_per_second + 1 / merge_bytes_per_second)
    seconds = down + max(work + after, driver)
    return dict(
        work=work,
        driver=driver,
        seconds=float(seconds),
        efficiency=float(sum(costs) / workers / seconds),
    )


def stack_overflow_sizes(number: int, seed: int = 0) -> np.ndarray:
    """Draws numbers of sentences of Stack Overflow's users, cut off at 1,000 each.

    This is an assumed log-normal distribution with sigma 1.5, as the real sizes are not available.
    Before the cut, its mean is that of the 342,477 training users: 397 (135,818,730 sentences).
    """
    rng = np.random.default_rng(seed)
    sigma = 1.5
    sizes = rng.lognormal(np.log(397.0) - sigma**2 / 2, sigma, number)
    return np.clip(sizes, 1, 1000).astype(int)


_NETWORK = 1.25e9  # Bytes per second of 10 Gbit/s.


def _predict(turns):
    clients, models = _measured(turns)
    for model, rates in models.items():
        yield dict(part="predict", what=f"measured for {model}", **clients, **rates)
    for cohort, size, most in ((1000, 1, 1000), (10_000, 8, 1000), (10_000, 8, 64)):
        sizes = np.minimum(stack_overflow_sizes(cohort), most)
        yield dict(part="predict", what=f"{cohort:,} users", mean_sentences=float(sizes.mean()))
        for model, factor in (("EMNIST CNN", 1.0), ("100 MB", 20.0)):
            for workers in (8, 64, 512):
                given = {**clients, "step_seconds": clients["step_seconds"] * factor}
                what = f"{model}, {cohort:,} clients of at most {most}, chunks of {size}"
                found = simulate(
                    -(-sizes // 16),
                    workers,
                    clients_per_chunk=size,
                    bytes_per_second=_NETWORK,
                    **given,
                    **models[model],
                )
                yield dict(part="predict", what=what, workers=workers, **found)


def _measured(turns):
    """Measures the arguments of `simulate`, except the network's.

    Returns:
      Processor seconds per client and per order, and for each model its size and rates.
    """
    import ray

    by_steps = {}
    for steps in (1, 10):
        with contextlib.ExitStack() as stack:
            rounds = _Rounds(stack, "w1", 10, 1, 0, max_elements_per_client=20 * steps)
            by_steps[steps] = _medians(rounds, turns)[1] / 10
    step = (by_steps[10] - by_steps[1]) / 9
    with contextlib.ExitStack() as stack:
        rounds, of_cut = _Rounds(stack, "w4", 64, 1, 1), {}
        # The size of chunks determines the number of orders and nothing else.
        for size in (1, 64):
            rounds.size, spent = size, []
            for _ in range(2 + 2 * turns):
                before = time.process_time()
                rounds()
                spent.append(time.process_time() - before)
            of_cut[size] = statistics.median(spent[2:]), rounds.pool.bytes["orders"]
        (many, orders), (one, least) = of_cut[1], of_cut[64]
        models = {}
        for model, size in (("EMNIST CNN", 4 * 1_206_590), ("100 MB", 100_000_000)):
            a = np.ones(size // 4, np.float32)
            models[model] = dict(
                model_bytes=float(size),
                put_bytes_per_second=size / _seconds(lambda a=a: ray.put([a])),
                merge_bytes_per_second=size / _seconds(lambda a=a: a + a),
            )
    clients = dict(
        step_seconds=step,
        client_seconds=max(0.0, by_steps[1] - step),
        order_seconds=(many - one) / (orders - least),
    )
    return clients, models


def _seconds(call):
    """Returns the median seconds of a call."""
    call()
    found = []
    for _ in range(20):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


_PARTS = {
    "machinery": _machinery,
    "two": _two,
    "cores": _cores,
    "bytes": _bytes,
    "memory": _memory,
    "states": _states,
    "kills": _kills,
    "predict": _predict,
}


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs a part and prints its results."""
    given = PARSER.parse(arguments)
    known = [*_PARTS, "one_memory", "one_core"]
    if given.part not in known:
        raise HparamError(parser.said_of_unknown("part", given.part, known))
    _DATA["workloads"] = given.workloads.split(",")
    if given.data_dir:
        _DATA["folder"] = given.data_dir
    if given.part == "one_memory":
        _one_memory(given.cohort, given.workers, given.runtime)
        return 0
    if given.part == "one_core":
        _one_core(given.core)
    with common.report(given) as table:
        for record in _PARTS[given.part](given.turns):
            table.add({k: float(f"{v:.4g}") if type(v) is float else v for k, v in record.items()})
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
