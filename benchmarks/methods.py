"""Each method's round relative to FedAvg's: its time, and the amount of work that explains it.

    python -m benchmarks.methods --workloads=w4,w6 --methods=fedavg,scaffold --turns=5

A method and FedAvg take turns, on the runtime that `auto` chooses. Seconds are the median of the
turns by the wall clock. There are ratios of these, and of processor time over all turns, which is
more reliable on a busy machine. Work is counted and not taken from a paper. It is the number of
examples that pass forward through the model in a round, plus twice the number that pass backward,
relative to FedAvg's. Settings are the methods' defaults, with a learning rate where one is
required.
"""

import contextlib
import time
from unittest import mock

import numpy as np

import tff_algos
from benchmarks import harness
from simulation import runtimes
from tff_algos import purity
from tff_suite.hparams import HparamError

BENCHMARK = harness.Benchmark(
    __doc__,
    {
        "workload": "workload",
        "method": "method",
        "runtime": "runtime",
        "seconds": "s per round",
        "of_fedavg": "time, of fedavg",
        "processor_of_fedavg": "processor time, of fedavg",
        "work_of_fedavg": "work, of fedavg",
        "note": "note",
    },
)
BENCHMARK.flag("workloads", "w4,w6", "Workloads, separated by commas.")
BENCHMARK.flag("methods", help="Methods, separated by commas. Default: all but staged ones.")
BENCHMARK.flag("turns", 5, "Turns of each side.", minimum=1)
BENCHMARK.flag("data_dir", help="Folder of real data.", path=True)

_BASE = "fedavg"


class _Counts:
    """Numbers of examples that passed through a model."""

    def __init__(self):
        self.forward = self.backward = 0.0

    def add_forward(self, examples):
        self.forward += float(examples)
        return np.float32(0)

    def add_backward(self, examples):
        self.backward += float(examples)
        return np.float32(0)

    def work(self) -> float:
        return self.forward + 2 * self.backward


def _counted(model: "tff_algos.Model", counts: _Counts) -> "tff_algos.Model":
    """Returns a model that also counts its examples, on the `tff` runtime."""
    import tensorflow as tf

    @tf.custom_gradient
    def noticed(weight, examples):
        def gradient(d):
            nothing = tf.numpy_function(counts.add_backward, [examples], tf.float32)
            nothing.set_shape([])
            return d + nothing, None

        return tf.identity(weight), gradient

    def forward(weights, batch, training, seed):
        examples = tf.reduce_sum(batch.mask)
        nothing = tf.numpy_function(counts.add_forward, [examples], tf.float32)
        nothing.set_shape([])
        weights = (noticed(weights[0], examples), *weights[1:])
        result = model.forward(weights, batch, training, seed)
        metrics = {name: (v + nothing, w) for name, (v, w) in result.metrics.items()}
        return result._replace(
            objective=result.objective + nothing, metrics=type(result.metrics)(metrics)
        )

    return model._replace(forward=forward, forward_on_changed=None)


def _settings(name: str) -> dict:
    spec = tff_algos.get(name)
    settings = {"client_learning_rate": 0.001}
    if spec.has_server_step and spec.server_learning_rate is None:
        settings["server_learning_rate"] = 0.001
    return settings


class _Rounds:
    """A method's rounds on a workload."""

    def __init__(self, name, workload, model, runtime=None):
        from simulation.records.client_states import ClientStates

        process = tff_algos.build(name, model, num_clients=len(workload.clients), **_settings(name))
        self.runtime = runtime or runtimes.choose(process)[0]
        plan = process.plan(0, 1)
        self._cohort = [
            tff_algos.batch_client(
                x,
                y,
                batch_size=workload.batch_size,
                steps=plan.local_steps,
                full_batch=plan.batches == "full_batch",
                order_seed=(k,),
                dropout_seed=(k,),
                index=k,
            )
            for k, (x, y) in enumerate(workload.clients)
        ]
        with runtimes.installed(self.runtime):
            self._process = runtimes.bind(process)
            self._state = self._process.initialize()
        self._client_states, self._ids = None, [str(k) for k in range(len(self._cohort))]
        if process.method.client_state is not None:
            first = tff_algos.initial_client_state(process.method)
            self._client_states = ClientStates(":memory:", first, 1 << 30)

    def run(self, rounds: int = 1) -> tuple[float, float]:
        """Runs rounds; returns the wall-clock and the processor seconds per round."""
        started = time.perf_counter(), time.process_time()
        with runtimes.installed(self.runtime):
            for _ in range(rounds):
                kept = self._client_states
                given = [] if kept is None else [kept.read(self._ids)]
                output = self._process.next(self._state, self._cohort, *given)
                self._state = output.state
                if kept is not None:
                    kept.take(self._ids, output.client_states, 1)
        ended = time.perf_counter(), time.process_time()
        return tuple((b - a) / rounds for a, b in zip(started, ended, strict=True))


def _work(name, workload, model) -> float:
    counts = _Counts()
    # The counted model calls Python, which the suite refuses in what TFF executes.
    with mock.patch.object(purity, "required", return_value=contextlib.nullcontext()):
        rounds = _Rounds(name, workload, _counted(model, counts), "tff")
        counts.forward = counts.backward = 0.0
        rounds.run()
    return counts.work()


def measure(workload_name: str, names: list[str], turns: int, data_dir: str | None):
    """Yields a record for each method; if it cannot be built, the record holds the reason."""
    from benchmarks import workloads
    from tasks.models import losses

    workload = workloads.WORKLOADS[workload_name](data_dir)
    model = tff_algos.from_keras(
        workload.keras_model(),
        loss=workload.loss,
        metrics={"accuracy": losses.sparse_accuracy},
        y_spec=workload.y_spec,
        loss_reduction=workload.loss_reduction,
    )
    base, base_work = _Rounds(_BASE, workload, model), _work(_BASE, workload, model)
    base.run()
    for name in names:
        record = {"workload": workload_name, "method": name}
        try:
            method = _Rounds(name, workload, model)
        except HparamError as e:
            yield {**record, "note": str(e)}
            continue
        method.run()
        number = workload.rounds_a_turn
        taken = np.array([(base.run(number), method.run(number)) for _ in range(turns)])
        clock, processor = np.median(taken[:, :, 0], 0), taken[:, :, 1].mean(0)
        yield {
            **record,
            "runtime": method.runtime,
            "seconds": round(clock[1], 5),
            "of_fedavg": round(clock[1] / clock[0], 3),
            "processor_of_fedavg": round(processor[1] / processor[0], 3),
            "work_of_fedavg": round(_work(name, workload, model) / base_work, 3),
        }


def records(options):
    """Yields the record of each method on each workload."""
    methods = [n for n in tff_algos.names() if not tff_algos.get(n).staged]
    methods = options.methods.split(",") if options.methods else methods
    runtimes.configure_threads()
    for workload in options.workloads.split(","):
        yield from measure(workload, methods, options.turns, options.data_dir)


if __name__ == "__main__":
    BENCHMARK.run(records)
