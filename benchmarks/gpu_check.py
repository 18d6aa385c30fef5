"""Checks and measures the suite on a machine with a CUDA GPU, and writes a report.

    python -m benchmarks.gpu_check --rounds=20 --report=gpu_report.md

Run it in the environment of `make venv-gpu`, on either stack. It fails in any of these cases:

- TensorFlow finds no GPU.
- A runtime on the GPU does not agree with the same runtime on the CPU.
- A round over a whole cohort executes more operations for more clients, which reveals a loop over
  clients.
- A run with `--deterministic_ops` ends with other bits if it is resumed in a new process.
- A run ends with an error.

Before these checks, which take minutes, it measures FedAvg's round on the tasks for which FLUTE's
paper (Dimitriadis et al. 2022, arXiv 2203.13789) gives seconds per round, in every precision. The
data are synthetic, with the tasks' true shapes, so that nothing has to be downloaded. Pass
`--data_dir` to use real data.

TensorFloat-32, TensorFlow's default for float32 products, is off when agreement is checked and on
when time is measured.

`benchmarks.bits --tolerance` compares every method and task with the CPU, and the sides `…_on_cpu`
of `benchmarks.speed` show what a GPU gains.
"""

import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tff_suite import command_line, compat, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("rounds", 20, "Rounds measured of each task.", minimum=1)
PARSER.flag("data_dir", help="Folder of real data. Default: made up.", path=True)
PARSER.flag("report", "gpu_report.md", "File to write the report to.", path=True)
PARSER.flag("reference")

if __name__ == "__main__":
    command_line.begin(PARSER)

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tff_algos
from benchmarks import harness, side, workloads
from simulation import in_python, runtimes
from simulation.engine.batched_ops import NotVectorizable
from simulation.records import outputs

# Task → clients per round, minibatch size, FLUTE's seconds per round.
_TASKS = {
    "emnist_character": (10, 20, 0.33),
    "cifar100_image": (10, 20, 1.53),
    "shakespeare_character": (10, 4, 1.09),
}
# Runtime and precision of the runs that are measured of each task.
_MEASURED = (
    ("auto", "float32"),
    ("per_client", "float32"),
    ("auto", "mixed_bfloat16"),
    ("auto", "mixed_float16"),
)
_AGREEMENT = ("w1", "w3", "w4", "w7", "w8")
_RUNTIMES = ("per_client", "vectorized")
_TOLERANCE = 1e-4
# The first compute capability with which TensorFlow 2.20 and 2.21 are reported to fail.
_BLACKWELL = (10, 0)
_OPERATION = re.compile(r"(?<!:):[A-Z]\w*$")


def executed_operations(run: Callable[[], object]) -> int:
    """Returns the number of operations that TensorFlow executes in a call.

    Args:
      run: Called twice; only the second call is counted.
    """
    run()
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            run()
        finally:
            tf.profiler.experimental.stop()
        count = 0
        for path in glob.glob(f"{folder}/**/*.xplane.pb", recursive=True):
            with open(path, "rb") as f:
                space = xplane_pb2.XSpace.FromString(f.read())
            # Operations on any device are events 'name:Type' of the host's threads.
            for plane in (p for p in space.planes if p.name.startswith("/host:CPU")):
                names = {i: m.name for i, m in plane.event_metadata.items()}
                events = (e for line in plane.lines for e in line.events)
                count += sum(bool(_OPERATION.search(names[e.metadata_id])) for e in events)
    return count


def operations_by_clients(process, make_client: Callable[[int], object]) -> dict[int, int]:
    """Returns number of clients → operations of a round over that many stacked clients.

    Args:
      process: The process.
      make_client: Number of a client → its `ClientData`; all of the same size.
    """
    state = process.initialize()
    counts = {}
    for number in (2, 16):
        clients = [make_client(k) for k in range(number)]
        counts[number] = executed_operations(lambda c=clients: process.next(state, c))
    return counts


def _small(name):
    """Returns a workload with few clients and examples, and its process."""
    workload = workloads.WORKLOADS[name](None)
    workload = workload._replace(clients=[(x[:12], y[:12]) for x, y in workload.clients[:3]])
    model = side.pure_model(workload)
    return workload, tff_algos.build("fedavg", model, client_learning_rate=workload.learning_rate)


def _weights_after_two_rounds() -> dict[str, np.ndarray]:
    """Returns the weights that each runtime reaches; empty if it does not support the model."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    weights = {}
    for name in _AGREEMENT:
        workload, process = _small(name)
        for runtime in _RUNTIMES:
            with runtimes.installed(runtime):
                try:
                    bound = runtimes.bind(process)
                    state = bound.initialize()
                    for r in range(2):
                        state = bound.next(state, side.batched_cohort(workload, r)).state
                except NotVectorizable:
                    continue
            for i, w in enumerate(state.weights):
                weights[f"{name} {runtime} {i}"] = np.asarray(w)
    return weights


def _reference() -> dict[str, np.ndarray]:
    """Returns `_weights_after_two_rounds` from a process without GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights.npz")
        subprocess.run(
            [sys.executable, "-m", "benchmarks.gpu_check", f"--reference={path}"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            check=True,
        )
        with np.load(path) as file:
            return dict(file)


def too_new(gpus: Sequence[tf.config.PhysicalDevice]) -> list[str]:
    """Returns a line for each GPU on which this TensorFlow is reported to fail."""
    lines = []
    for gpu in gpus:
        details = tf.config.experimental.get_device_details(gpu)
        capability = details.get("compute_capability", (0, 0))
        if capability >= _BLACKWELL:
            lines.append(
                f"{details.get('device_name', gpu.name)} has compute capability "
                f"{'.'.join(map(str, capability))}; TensorFlow 2.20 and 2.21 are reported to fail "
                "on Blackwell cards (CUDA_ERROR_INVALID_PTX)."
            )
    return lines


def _check_agreement(failures: list[str]) -> Iterator[str]:
    """Yields lines for the report; adds to `failures` where the GPU does not agree."""
    expected, found = _reference(), _weights_after_two_rounds()
    for name in _AGREEMENT:
        for runtime in _RUNTIMES:
            keys = [k for k in found if k.startswith(f"{name} {runtime} ")]
            if not keys:
                yield f"| {name} | {runtime} | has no such form |"
                continue
            # Compared with `tff` on the CPU: the LSTM has a vectorised form on the CPU only.
            of_cpu = [expected[k.replace(runtime, "per_client")] for k in keys]
            largest = max(
                float(np.max(np.abs(found[k] - w))) for k, w in zip(keys, of_cpu, strict=True)
            )
            yield f"| {name} | {runtime} | {largest:.1e} |"
            within = (
                np.allclose(found[k], w, rtol=_TOLERANCE, atol=_TOLERANCE)
                for k, w in zip(keys, of_cpu, strict=True)
            )
            if not all(within):
                failures.append(
                    f"{name} in {runtime} differs from the CPU by {largest:.1e}, more than "
                    f"{_TOLERANCE:.0e}."
                )


def _check_no_loop_over_clients(failures: list[str]) -> Iterator[str]:
    """Yields lines for the report; adds to `failures` where a round loops over its clients."""
    for name in ("w1", "w4"):
        workload, process = _small(name)
        x, y = workload.clients[0]

        def make_client(k, workload=workload, x=x, y=y):
            return tff_algos.batch_client(x, y, batch_size=workload.batch_size, dropout_seed=(k,))

        with runtimes.installed("vectorized"):
            counts = operations_by_clients(runtimes.bind(process), make_client)
        yield f"| {name} | {' | '.join(map(str, counts.values()))} |"
        if len(set(counts.values())) != 1:
            failures.append(
                f"A round of {name} over a whole cohort loops over clients: operations by number "
                f"of clients {counts}."
            )


class _Utilisation(threading.Thread):
    """Reads the GPU's utilisation from the driver twice per second, and what tensors take."""

    def __init__(self):
        super().__init__(daemon=True)
        self.readings, self._done = [], threading.Event()

    def run(self):
        tf.config.experimental.reset_memory_stats("GPU:0")
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader", "--id=0"]
        while not self._done.wait(0.5):
            line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            self.readings.append(float(line.split()[0]))

    def end(self) -> tuple[float, float]:
        """Returns mean utilisation in percent, NaN without readings, and the tensors' peak MiB."""
        self._done.set()
        self.join()
        busy = statistics.fmean(self.readings) if self.readings else float("nan")
        return busy, tf.config.experimental.get_memory_info("GPU:0")["peak"] / 2**20


def _settings(name: str, data_dir: str | None) -> dict[str, Any]:
    """Returns the settings of a task's run, but for rounds and folder."""
    clients, batch_size, _ = _TASKS[name]
    return {
        "task": name,
        "algorithm": "fedavg",
        "progress": False,
        "data_dir": data_dir,
        "use_synthetic_data": data_dir is None,
        "clients_per_round": clients,
        "client_batch_size": batch_size,
        "client_learning_rate": 0.03,
    }


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"


def _train(settings: dict[str, Any]) -> list[np.ndarray]:
    """Returns the weights that a run ends with."""
    return in_python.run(**settings).weights


def _check_resumption(name: str, data_dir: str | None, failures: list[str]) -> str:
    """Returns a task's line for the report; adds to `failures` if bits differ."""
    rounds = {"rounds_per_eval": 2, "rounds_per_checkpoint": 2, "deterministic_ops": True}
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        settings = {**_settings(name, data_dir), **rounds}

        def run(folder, total_rounds):
            more = {"root_output_dir": folder, "total_rounds": total_rounds}
            return harness.alone(_train, {**settings, **more})

        try:
            expected = run(whole, 4)
            run(parts, 2)
            resumed = run(parts, 4)
        except Exception as e:  # Of any kind, as in `_report`.
            failures.append(f"{name} with --deterministic_ops: {_first_line(e)}")
            return f"| {name} | error |"
    if all(a.tobytes() == b.tobytes() for a, b in zip(expected, resumed, strict=True)):
        return f"| {name} | same bits |"
    failures.append(f"{name} with --deterministic_ops ends with other bits when resumed.")
    return f"| {name} | other bits |"


def _measure(name: str, data_dir: str | None, rounds: int, runtime: str, precision: str) -> str:
    """Returns a line of the report about a task's run, of `rounds` rounds after the first two."""
    watch, last = _Utilisation(), 2 + rounds

    def follow(done):
        if done.number == 2:
            watch.start()
        elif done.number == last:
            watch.busy, watch.memory = watch.end()

    with tempfile.TemporaryDirectory() as folder:
        result = in_python.run(
            **_settings(name, data_dir),
            callbacks=[follow],
            runtime=runtime,
            precision=precision,
            # The last round ends with an evaluation, so one more than is measured.
            total_rounds=last + 1,
            rounds_per_eval=last + 1,
            rounds_per_checkpoint=last + 1,
            root_output_dir=folder,
        )
        flags = outputs.read_json(os.path.join(result.folder, "hparams.json"))["flags"]
    measured = result.rounds[result.rounds["round_num"].between(3, last)]
    clients, _, published = _TASKS[name]
    return (
        f"| {name} | {flags['runtime']} | {precision} | {clients} | "
        f"{measured['train/num_examples'].mean():.0f} | "
        f"{measured['time/round_seconds'].median():.3f} | {published} | {watch.busy:.0f} | "
        f"{watch.memory:.0f} |"
    )


@command_line.reported
def main(arguments: list[str]) -> int:
    """Runs the checks; returns the exit code."""
    options = PARSER.parse(arguments)
    if options.reference:
        np.savez(options.reference, **_weights_after_two_rounds())
        return 0
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        print(
            "TensorFlow finds no GPU: check the driver (nvidia-smi) and that this environment has "
            "requirements-gpu.txt (make venv-gpu).",
            file=sys.stderr,
        )
        return 1
    for line in too_new(gpus):
        command_line.warn(line)
    runtimes.configure_gpus(None, False)
    failures: list[str] = []
    with open(options.report, "w") as report:
        for line in _report(options.rounds, options.data_dir, failures):
            print(line, flush=True)
            # At once: the checks take minutes, and a lent GPU may be taken back.
            print(line, file=report, flush=True)
    return 1 if failures else 0


def _report(rounds: int, data_dir: str | None, failures: list[str]) -> Iterator[str]:
    """Yields the lines of the report; adds to `failures`."""
    yield from [
        "# On a GPU",
        "",
        f"{harness.machine()}; {runtimes.device_description()}; TensorFlow {tf.__version__} "
        f"({compat.stack()} stack).",
        "",
        f"FedAvg, medians of {rounds} rounds; examples are the mean of a round, memory is "
        "the most that tensors took on the GPU.",
        "",
        "| task | runtime | precision | clients | examples | s/round | FLUTE's | GPU busy % | "
        "memory MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in _TASKS:
        for form in _MEASURED:
            try:
                yield _measure(name, data_dir, rounds, *form)
            except Exception as e:  # Of any kind: the report goes on with the next run.
                failures.append(f"{name}, {', '.join(form)}: {_first_line(e)}")
    yield from ["", "| workload | operations, 2 clients | 16 clients |", "| --- | --- | --- |"]
    yield from _check_no_loop_over_clients(failures)
    yield from ["", "Largest difference of weights from the CPU's, after two rounds:", ""]
    yield from ["| workload | runtime | difference |", "| --- | --- | --- |"]
    yield from _check_agreement(failures)
    yield from ["", "Runs with `--deterministic_ops`, resumed in a new process:", ""]
    yield from ["| task | result |", "| --- | --- |"]
    for name in _TASKS:
        yield _check_resumption(name, data_dir, failures)
    if failures:
        yield from ["", *failures]


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
