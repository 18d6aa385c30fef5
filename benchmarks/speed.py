"""Seconds per round, start-up and memory of every side on every workload, relative to TFF's worker.

    python -m benchmarks.speed --workloads=w1,w4 --sides=tff,vectorized --turns=5

Each side runs in its own process. Our runtimes, TFF's and plain loops are in `benchmarks.side`. The
peers FedJAX, pfl-research and Flower (`benchmarks/peers`) each run in the environment that `make
venv-peers` makes for them. A peer without an environment is left out with a note.

The sides take turns of a few rounds, so that other work on the machine affects all of them alike.
Sides that are not on turn are halted, since Ray's services are never idle. The table shows medians
and their ratios. Only ratios are meaningful. On a busy machine, where the threads of a side compete
with other processes, ratios of processor time are more reliable than ratios of wall-clock time.

All sides are started several times, since each process chooses some of TensorFlow's kernels by
chance. The table shows the smallest and the largest median of a start. Start-up is the time from
starting the process to the end of its first round. It includes the data, which a peer reads from a
file. Memory is the largest resident memory of the process and its children at the end of a round.

The side `floor` takes the lower bound of a round on this machine (`benchmarks.floor`). With it, the
table shows every side's time as a multiple of that bound.

A side `tff@DIR` runs another checkout of the suite, e.g. an earlier commit: `--sides=tff,tff@DIR
--base=tff@DIR` compares a change with the version before it. A side `tff@PYTHON` runs on another
interpreter, e.g. that of the published stack:

    python -m benchmarks.speed --sides=tff,tff@.venv-published/bin/python \
        --base=tff@.venv-published/bin/python
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import psutil

from benchmarks import harness
from benchmarks.peers import protocol

BENCHMARK = harness.Benchmark(
    __doc__,
    {
        "workload": "workload",
        "side": "side",
        "seconds": "s per round",
        "range": "by start",
        "of_base": "of {base}",
        "processor_seconds": "processor s",
        "processor_of_base": "processor time, of {base}",
        "of_floor": "of the floor",
        "start_up_seconds": "start-up to first round, s",
        "memory_mib": "memory, MiB",
        "note": "note",
    },
)
BENCHMARK.flag("workloads", help="Workloads, separated by commas. Default: all.")
BENCHMARK.flag("sides", help="Sides, separated by commas. Default: all.")
BENCHMARK.flag("turns", 5, "Turns after each start.", minimum=1)
BENCHMARK.flag("starts", 3, "Times that each side is started.", minimum=1)
BENCHMARK.flag("base", "tff_worker", "The side that ratios are to.")
BENCHMARK.flag("data_dir", help="Folder of real data.", path=True)

_HERE = os.path.dirname(os.path.abspath(__file__))
PEERS = ("fedjax", "pfl", "flower")
_GRACE_SECONDS = 10  # Before processes that a side has left behind are killed.
_PEER_VENVS = os.path.join(os.path.dirname(_HERE), ".venv-peers")
_WORKLOADS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9", "w10")


def _command(side: str, workload: str, data_dir: str | None, folder: str) -> list[str]:
    """Returns the command of a side; a peer reads the workload from a file in `folder`."""
    if side not in PEERS:
        name, _, where = side.partition("@")
        python = os.path.abspath(where) if os.path.isfile(where) else sys.executable
        return [python, "-m", "benchmarks.side", name, workload, *filter(None, [data_dir])]
    python = os.path.join(_PEER_VENVS, side, "bin", "python")
    if not os.path.exists(python):
        raise RuntimeError(f"{side} has no environment; run make venv-peers PEERS={side}")
    path = os.path.join(folder, f"{workload}.npz")
    if not os.path.exists(path):
        from benchmarks import workloads  # TensorFlow, which nothing else here needs.

        w = workloads.WORKLOADS[workload](data_dir)
        numbers = w.batch_size, w.learning_rate, w.rounds_a_turn
        protocol.write(path, protocol.Work(workload, w.clients, *numbers))
    return [python, os.path.join(_HERE, "peers", f"{side}_side.py"), path]


def _peak_bytes(process: psutil.Process) -> int:
    """Returns the peak resident memory of a process; its current memory if unknown."""
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{process.pid}/status") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss


class _Side:
    """A running side."""

    def __init__(self, side, command):
        self.name = side
        where = side.partition("@")[2]
        checkout = where if where and not os.path.isfile(where) else None
        self.seconds = []
        self.processor_seconds = []
        self.memory = 0
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._seen = set()
        started = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=checkout,
        )
        self._rounds_a_turn = int(self._answer())
        self.start_up = time.perf_counter() - started
        self.halt()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            tail = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
            self.close()
            raise RuntimeError(f"{self.name} ended: {' '.join(tail)}")
        self.memory = max(self.memory, self._sum(_peak_bytes))
        return line

    def _each(self, do):
        """Applies `do` to each of the side's processes, including those of Flower's Ray."""
        process = psutil.Process(self._process.pid)
        tree = [process, *process.children(recursive=True)]
        self._seen.update(tree)
        given = []
        for p in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                given.append(do(p))
        return given

    def _sum(self, of):
        return sum(self._each(of))

    def halt(self):
        """Halts the side's processes until its next turn."""
        self._each(psutil.Process.suspend)

    def _processor_time(self):
        # User and system time of the process and of its ended children.
        return self._sum(lambda p: sum(p.cpu_times()[:4]))

    def take_a_turn(self):
        self._each(psutil.Process.resume)
        before = self._processor_time()
        # If the process has ended, reading its answer will report that.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        self.seconds.append(float(self._answer()))
        used = self._processor_time() - before
        self.processor_seconds.append(used / self._rounds_a_turn)
        self.halt()

    def close(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self._each(psutil.Process.resume)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._log.close()
        _, left = psutil.wait_procs(self._seen, timeout=_GRACE_SECONDS)
        for p in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        psutil.wait_procs(left, timeout=_GRACE_SECONDS)


class _Measured(NamedTuple):
    """Results of one start of a side: medians of its turns, seconds of start-up, bytes."""

    seconds: float
    processor_seconds: float
    start_up: float
    memory: int


def _start(workload: str, sides: list[str], turns: int, data_dir: str | None) -> dict:
    """Returns the results of each side, or the reason why it failed."""
    running, results = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for side in sides:
            try:
                running.append(_Side(side, _command(side, workload, data_dir, folder)))
            except RuntimeError as e:
                results[side] = str(e)
        for _ in range(turns):
            for side in list(running):
                try:
                    side.take_a_turn()
                except RuntimeError as e:
                    running.remove(side)
                    results[side.name] = str(e)
    for side in running:
        side.close()
        results[side.name] = _Measured(
            statistics.median(side.seconds),
            # The mean, since the kernel measures only in steps of 10 ms.
            statistics.fmean(side.processor_seconds),
            side.start_up,
            side.memory,
        )
    return results


def measure(
    workload: str,
    sides: list[str],
    turns: int,
    starts: int,
    data_dir: str | None,
    base_side: str = "tff_worker",
) -> list[dict]:
    """Returns a record for each side, with numbers or the reason why it failed."""
    results = {side: [] for side in sides}
    for _ in range(starts):
        # A side that failed is not started again.
        in_order = [side for side in sides if not any(isinstance(r, str) for r in results[side])]
        for side, result in _start(workload, in_order, turns, data_dir).items():
            results[side].append(result)
    records, medians = [], {}
    for side, found in results.items():
        if reasons := [r for r in found if isinstance(r, str)]:
            records.append({"workload": workload, "side": side, "note": reasons[0]})
        else:
            medians[side] = _Measured(*map(statistics.median, zip(*found, strict=True)))
    base, floor = medians.get(base_side), medians.get("floor")
    for side, m in medians.items():
        each = [r.seconds for r in results[side]]
        records.append(
            {
                "workload": workload,
                "side": side,
                "seconds": round(m.seconds, 5),
                "range": f"{min(each):.3g} to {max(each):.3g}",
                "of_base": round(m.seconds / base.seconds, 4) if base else "",
                "processor_seconds": round(m.processor_seconds, 5),
                "processor_of_base": (
                    round(m.processor_seconds / base.processor_seconds, 4) if base else ""
                ),
                "of_floor": round(m.seconds / floor.seconds, 2) if floor else "",
                "start_up_seconds": round(m.start_up, 1),
                "memory_mib": round(max(r.memory for r in results[side]) / 2**20),
            }
        )
    return records


def records(options):
    """Yields the record of each side on each workload."""
    from benchmarks.side import SIDES

    data_dir = options.data_dir and os.path.abspath(options.data_dir)
    for workload in options.workloads.split(",") if options.workloads else list(_WORKLOADS):
        sides = options.sides.split(",") if options.sides else [*SIDES, *PEERS]
        work = workload, sides, options.turns, options.starts, data_dir, options.base
        yield from measure(*work)


if __name__ == "__main__":
    BENCHMARK.run(records)
