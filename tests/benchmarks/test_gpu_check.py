"""The parts of the GPU check that need no GPU."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from benchmarks import gpu_check
from simulation import runtimes
from simulation.engine import executors
from simulation.engine import process as engine
from tests.oracles import problem as problem_lib
from tests.tff_algos import toy


@pytest.fixture(scope="module")
def process():
    model = toy.toy_model(problem_lib.make_problem())
    with runtimes.installed("vectorized"):
        built = tff_algos.build("fedavg", model, client_learning_rate=0.1)
        # As on a GPU: TensorFlow's executor of one thread reports no operations.
        engine.program_of(built).graphs.on_gpu = True
        yield runtimes.bind(built)


def make_client(k):
    x, y = problem_lib.make_problem().clients[0]
    x, y = x[:6].astype(np.float32), y[:6].astype(np.int32)
    return tff_algos.batch_client(x, y, batch_size=3, dropout_seed=(k,))


def test_a_round_over_a_whole_cohort_does_not_loop_over_clients(process):
    few, many = gpu_check.operations_by_clients(process, make_client).values()
    assert few == many > 50


def test_a_loop_over_clients_is_seen(process, monkeypatch):
    loop = tf.function(lambda x: tf.map_fn(tf.sin, x))
    work = executors.Stacked.work

    def looping(executor, phase, prepared, *rest):
        loop(tf.ones([len(prepared.places)]))
        return work(executor, phase, prepared, *rest)

    monkeypatch.setattr(executors.Stacked, "work", looping)
    few, many = gpu_check.operations_by_clients(process, make_client).values()
    assert many > few


def test_without_a_gpu_it_says_so_and_fails(monkeypatch, capsys):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert gpu_check.main([]) == 1
    assert "TensorFlow finds no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("capability", "told"), [((8, 9), 0), ((9, 0), 0), ((10, 0), 1), ((12, 0), 1)]
)
def test_cards_that_tensorflow_is_reported_to_fail_on_are_named(capability, told, monkeypatch):
    details = {"device_name": "A card", "compute_capability": capability}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda _: details)
    lines = gpu_check.too_new([types.SimpleNamespace(name="GPU:0")])
    assert len(lines) == told
    assert all("A card" in line and "CUDA_ERROR_INVALID_PTX" in line for line in lines)


class _Idle:
    """A GPU's utilisation where there is no GPU."""

    def start(self):
        self.started = True

    def end(self):
        assert self.started
        return 50.0, 300.0


def test_a_task_is_measured_by_a_run_of_the_suite(monkeypatch):
    monkeypatch.setattr(gpu_check, "_Utilisation", _Idle)
    monkeypatch.setitem(gpu_check._TASKS, "synthetic", (3, 10, 0.5))
    line = gpu_check._measure("synthetic", None, 2, "auto", "float32").strip("| ").split(" | ")
    assert line[:4] == ["synthetic", "vectorized", "float32", "3"]
    assert line[6:] == ["0.5", "50", "300"]
    assert float(line[4]) > 3 and float(line[5]) > 0


def test_the_report_goes_on_after_a_failure(monkeypatch):
    def measure(name, *rest):
        if name == "cifar100_image":
            raise RuntimeError("out of memory\nmore")
        return f"| {name} |"

    def agreement(failures):
        failures.append("w1 differs")
        yield "| w1 |"

    monkeypatch.setattr(gpu_check, "_measure", measure)
    monkeypatch.setattr(gpu_check, "_check_no_loop_over_clients", lambda failures: ["| none |"])
    monkeypatch.setattr(gpu_check, "_check_agreement", agreement)
    monkeypatch.setattr(gpu_check, "_check_resumption", lambda name, *rest: f"| {name} same |")
    failures = []
    lines = list(gpu_check._report(2, None, failures))
    assert "| shakespeare_character |" in lines and "| cifar100_image same |" in lines
    assert len(failures) == len(gpu_check._MEASURED) + 1
    assert failures[0] == "cifar100_image, auto, float32: RuntimeError: out of memory"
    assert lines[-1] == "w1 differs" and "out of memory" in lines[-2]


@pytest.mark.parametrize("same", [True, False])
def test_a_resumed_run_is_compared_with_a_whole_one(same, monkeypatch):
    trained = []

    def alone(train, settings):
        assert train is gpu_check._train and settings.pop("deterministic_ops")
        trained.append(settings["total_rounds"])
        weights = train({**settings, "seed": 1 if same else len(trained)})
        # As in a process of its own: nothing of the run is left but its folder.
        return [w.copy() for w in weights]

    monkeypatch.setattr(gpu_check.harness, "alone", alone)
    monkeypatch.setitem(gpu_check._TASKS, "synthetic", (3, 10, 0.5))
    failures = []
    line = gpu_check._check_resumption("synthetic", None, failures)
    assert trained == [4, 2, 4]
    assert ("same bits" in line, len(failures)) == ((True, 0) if same else (False, 1))
