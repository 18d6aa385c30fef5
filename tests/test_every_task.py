"""Every registered task at its true model, on data of the true shape, as a user gets it."""

import csv
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import run_experiment
import tasks
import tff_algos
from simulation import experiment_flags, runtimes, task_models
from simulation.measures import columns, evaluation
from tasks import images
from tests import metrics_page
from tests.tasks.test_registry import LIKE_CIFAR100, OWN, RESNETS
from tff_algos.client_data import Batch

pytestmark = pytest.mark.slow

_REPO = pathlib.Path(__file__).resolve().parent.parent

# Clothing1M generates 20 large pictures a client; a table's metrics are told by its target's type.
_SETTINGS = {"clothing1m": {"num_clients": 2}, "table": {"target_type": "category"}}


@pytest.fixture
def few_tests(monkeypatch):
    """Evaluations of few images, in chunks that are not padded to many: minutes of a ResNet."""
    synthetic = images.synthetic

    def few(*arguments):
        train, test = synthetic(*arguments)
        return train, test._replace(images=test.images[:16], labels=test.labels[:16])

    monkeypatch.setattr(images, "synthetic", few)
    monkeypatch.setattr(evaluation, "_MIN_CHUNK", 4)
    monkeypatch.setattr(evaluation, "_MAX_CHUNK", 16)


# The others have the first one's model.
@pytest.mark.quick_cases(*(name for name in OWN if name not in LIKE_CIFAR100))
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OWN)
def test_one_round_with_the_runtime_that_auto_is(name, request, tmp_path, capsys):
    if name in RESNETS:
        request.getfixturevalue("few_tests")
    # Each thread that has a client optimises the round's graph for itself, seconds of a ResNet's.
    clients, examples = (1, 3) if name in RESNETS else (2, 12)
    arguments = [
        f"--task={name}",
        "--use_synthetic_data",
        "--algorithm=fedavg",
        "--total_rounds=1",
        f"--clients_per_round={clients}",
        f"--client_batch_size={4 if clients > 1 else 2}",
        f"--max_elements_per_client={examples // clients}",
        "--client_learning_rate=0.01",
        "--num_validation_examples=8",
        f"--root_output_dir={tmp_path}",
        "--experiment_name=run",
        *(f"--{name}_{setting}={value}" for setting, value in _SETTINGS.get(name, {}).items()),
    ]
    assert run_experiment.main(arguments) == 0, capsys.readouterr().err
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        before, after = csv.DictReader(file)
    assert metrics_page.undefined(before) == []
    request_of_run = experiment_flags.parse(arguments)
    foreseen = columns.in_rounds(request_of_run)
    assert before.keys() - {"round_num"} <= set(foreseen.names) and not foreseen.beginnings
    # Of clients without tests there is nothing to tell.
    assert all(name.startswith("fairness/") for name in set(foreseen.names) - before.keys())
    path = tmp_path / "run" / "client_metrics.csv"
    if path.exists():
        header = path.read_text().splitlines()[0].split(",")
        assert set(header[1:]) == set(columns.of_clients(request_of_run).names)
    assert 0 < float(after["train/num_examples"]) <= examples
    assert np.isfinite(float(after["train/loss"]))
    assert before["eval/loss"] != after["eval/loss"]


# The test above covers most of it; one task without and one with layers of the suite's.
@pytest.mark.quick_cases("synthetic", "shakespeare_character")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OWN)
def test_one_round_without_metrics(name):
    task = tasks.load(name, use_synthetic_data=True, seed=0, **_SETTINGS.get(name, {}))
    primary, *others = tasks.get(name).metrics_with(task.settings)
    assert primary == task.primary_metric and {primary, *others} == task.metrics.keys()
    examples = task.train.examples(0)
    model = tff_algos.from_keras(
        task.keras_model_fn(0),
        loss=task.loss,
        y_spec=tf.TensorSpec([None, *examples.y.shape[1:]], examples.y.dtype),
        loss_reduction=task.loss_reduction,
    )
    process = tff_algos.build("fedavg", model, client_learning_rate=0.01)
    clients = [tff_algos.batch_client(examples.x[:3], examples.y[:3], batch_size=2, index=0)]
    with runtimes.installed("tff"):
        after = process.next(process.initialize(), clients)
    assert np.isfinite(after.metrics["loss"])
    moved = zip(after.state.weights, model.initial_weights, strict=True)
    assert any(np.any(w != before) for w, before in moved)
    assert all(np.all(np.isfinite(w)) for w in after.state.weights)


def _gradient(task, examples, precision, loss_scale):
    settings = {"seed": 0, "precision": precision, "loss_scale": loss_scale}
    model = task_models.build(task, settings).model
    weights = tuple(map(tf.constant, model.initial_weights))

    @tf.function(autograph=False)
    def gradient():
        batch = Batch(*(tf.constant(a[:2]) for a in examples), tf.ones([2]))
        with tf.GradientTape() as tape:
            tape.watch(weights)
            objective = model.forward(weights, batch, True, tf.constant([1, 2])).objective
        return tape.gradient(objective, weights)

    return np.concatenate([np.ravel(tf.convert_to_tensor(g)) for g in gradient()])


@pytest.mark.quick_cases("emnist_character")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OWN)
def test_gradients_in_16_bits_are_those_of_float32_in_the_main(name):
    task = tasks.load(name, use_synthetic_data=True, seed=0, **_SETTINGS.get(name, {}))
    examples = task.train.examples(0)
    whole = _gradient(task, examples, "float32", None)
    for precision, scale, most in (("mixed_float16", 256.0, 0.05), ("mixed_bfloat16", None, 0.2)):
        got = _gradient(task, examples, precision, scale)
        assert got.dtype == np.float32 and np.any(got != whole)
        assert np.linalg.norm(got - whole) < most * np.linalg.norm(whole)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", OWN)
def test_two_rounds(name, tmp_path):
    command = [
        sys.executable,
        str(_REPO / "run_experiment.py"),
        f"--task={name}",
        "--use_synthetic_data",
        "--algorithm=fedavg",
        "--total_rounds=2",
        "--clients_per_round=2",
        "--client_batch_size=10",
        "--client_learning_rate=0.01",
        "--rounds_per_eval=2",
        "--num_validation_examples=64",
        f"--root_output_dir={tmp_path}",
        "--experiment_name=run",
    ]
    # Files, not pipes: TFF's worker may hold a pipe open longer than the run lasts.
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-2000:]
    with open(tmp_path / "run" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert metrics_page.undefined(rows[0]) == []
    assert [row["round_num"] for row in rows] == ["0", "1", "2"]
    assert all(float(row["train/num_examples"]) > 0 for row in rows[1:])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["finished"] and any(key.startswith("eval/") for key in summary["final"])
