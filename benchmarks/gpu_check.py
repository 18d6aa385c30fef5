"""Checks and measures the suite on a machine with a CUDA GPU, and writes a report.

    python -m benchmarks.gpu_check --rounds=20 --report=gpu_report.md

Run it in the environment of `make venv-gpu`, on either stack. It fails in any of these cases:

- TensorFlow finds no GPU.
- A runtime on the GPU does not agree with the same runtime on the CPU.
- A round over a whole cohort executes more operations for more clients, which reveals a loop over
  clients.

Then it measures FedAvg's round on the tasks for which FLUTE's paper (Dimitriadis et al. 2022, arXiv
2203.13789) gives seconds per round. The data are synthetic, with the tasks' true shapes, so that
nothing has to be downloaded. Pass `--data_dir` to use real data.

TensorFloat-32, TensorFlow's default for float32 products, is off when agreement is checked and on
when time is measured. Mixed precision is always off.
"""

import glob
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence

from tff_suite import command_line, compat, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("rounds", 20, "Rounds measured of each task.", minimum=1)
PARSER.flag("data_dir", help="Folder of real data. Unset: made up.", path=True)
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


def _check_agreement() -> list[str]:
    """Returns lines for the report.

    Raises:
      AssertionError: If the GPU does not agree with the CPU.
    """
    expected, found = _reference(), _weights_after_two_rounds()
    lines = []
    for name in _AGREEMENT:
        for runtime in _RUNTIMES:
            keys = [k for k in found if k.startswith(f"{name} {runtime} ")]
            if not keys:
                lines.append(f"| {name} | {runtime} | has no such form |")
                continue
            # Compared with `tff` on the CPU: the LSTM has a vectorised form on the CPU only.
            of_cpu = [expected[k.replace(runtime, "per_client")] for k in keys]
            largest = max(
                float(np.max(np.abs(found[k] - w))) for k, w in zip(keys, of_cpu, strict=True)
            )
            lines.append(f"| {name} | {runtime} | {largest:.1e} |")
            for k, w in zip(keys, of_cpu, strict=True):
                np.testing.assert_allclose(found[k], w, rtol=_TOLERANCE, atol=_TOLERANCE, err_msg=k)
    return lines


def _check_no_loop_over_clients() -> list[str]:
    """Returns lines for the report.

    Raises:
      AssertionError: If a round over a whole cohort loops over its clients.
    """
    lines = []
    for name in ("w1", "w4"):
        workload, process = _small(name)
        x, y = workload.clients[0]

        def make_client(k, workload=workload, x=x, y=y):
            return tff_algos.batch_client(x, y, batch_size=workload.batch_size, dropout_seed=(k,))

        with runtimes.installed("vectorized"):
            counts = operations_by_clients(runtimes.bind(process), make_client)
        lines.append(f"| {name} | {' | '.join(map(str, counts.values()))} |")
        if len(set(counts.values())) != 1:
            raise AssertionError(
                f"A round of {name} over a whole cohort loops over clients: operations by number "
                f"of clients {counts}."
            )
    return lines


class _Utilisation(threading.Thread):
    """Reads the GPU's utilisation and memory use from the driver twice per second."""

    def __init__(self):
        super().__init__(daemon=True)
        self.readings, self._done = [], threading.Event()

    def run(self):
        command = ["nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader"]
        while not self._done.wait(0.5):
            line = subprocess.run(
                [*command, "--id=0"], capture_output=True, text=True, check=True
            ).stdout
            self.readings.append([float(part.split()[0]) for part in line.split(",")])

    def end(self) -> tuple[float, float]:
        """Returns mean utilisation in percent and peak memory in MiB; NaN without readings."""
        self._done.set()
        self.join()
        if not self.readings:
            return float("nan"), float("nan")
        busy, memory = zip(*self.readings, strict=True)
        return statistics.fmean(busy), max(memory)


def _measure(name: str, data_dir: str | None, rounds: int) -> str:
    """Returns a task's line of the report, of `rounds` rounds after the first two."""
    clients, batch_size, published = _TASKS[name]
    watch, last = _Utilisation(), 2 + rounds

    def follow(done):
        if done.number == 2:
            watch.start()
        elif done.number == last:
            watch.busy, watch.memory = watch.end()

    with tempfile.TemporaryDirectory() as folder:
        result = in_python.run(
            task=name,
            algorithm="fedavg",
            callbacks=[follow],
            progress=False,
            data_dir=data_dir,
            use_synthetic_data=data_dir is None,
            clients_per_round=clients,
            client_batch_size=batch_size,
            client_learning_rate=0.03,
            # The last round ends with an evaluation, so one more than is measured.
            total_rounds=last + 1,
            rounds_per_eval=last + 1,
            rounds_per_checkpoint=last + 1,
            root_output_dir=folder,
        )
        runtime = outputs.read_json(os.path.join(result.folder, "hparams.json"))["flags"]["runtime"]
    measured = result.rounds[result.rounds["round_num"].between(3, last)]
    return (
        f"| {name} | {runtime} | {clients} | "
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
        print(f"warning: {line}", file=sys.stderr)
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    lines = [
        "# On a GPU",
        "",
        f"{harness.machine()}; {runtimes.device_description()}; TensorFlow {tf.__version__} "
        f"({compat.stack()} stack).",
        "",
    ]
    try:
        lines += ["| workload | operations, 2 clients | 16 clients |", "| --- | --- | --- |"]
        lines += _check_no_loop_over_clients()
        lines += ["", "Largest difference of weights from the CPU's, after two rounds:", ""]
        lines += ["| workload | runtime | difference |", "| --- | --- | --- |"]
        lines += _check_agreement()
    except AssertionError as e:
        print(e, file=sys.stderr)
        return 1
    tf.config.experimental.enable_tensor_float_32_execution(True)
    lines += [
        "",
        f"FedAvg, medians of {options.rounds} rounds; examples are the mean of a round.",
        "",
        "| task | runtime | clients | examples | s/round | FLUTE's | GPU busy % | memory MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in _TASKS:
        lines.append(_measure(name, options.data_dir, options.rounds))
    text = "\n".join(lines) + "\n"
    with open(options.report, "w") as f:
        f.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    command_line.stops_raise()
    command_line.run(main)
