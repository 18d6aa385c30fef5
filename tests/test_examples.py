"""The worked examples: a method and a task in packages of their own, brought in by `--import`."""

import csv
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import examples.moving_blobs  # noqa: F401  (registers the task)
import examples.tff_objects as tff_objects
import tasks
import tff_algos
from simulation import runtimes
from tests.oracles import fedopt
from tests.oracles import problem as problem_lib
from tests.tff_algos import shared, toy

pytestmark = pytest.mark.slow

REPO = pathlib.Path(__file__).resolve().parent.parent


def test_command_line(tmp_path):
    """The command of examples/README.md."""
    text = (REPO / "examples" / "README.md").read_text()
    command = text.split("    .venv/bin/python run_experiment.py", 1)[1].split("\n\n", 1)[0]
    arguments = command.replace("\\\n", " ").split()
    done = subprocess.run(
        [sys.executable, "run_experiment.py", *arguments, f"--root_output_dir={tmp_path}"],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "moving_blobs_clipped_fedavg"
    flags = json.loads((folder / "hparams.json").read_text())["flags"]
    assert flags["clipped_fedavg_clip_norm"] == 0.5 and flags["moving_blobs_spread"] == 2.0
    with open(folder / "metrics.csv", newline="") as f:
        rows = list(csv.DictReader(f))
    assert [int(r["round_num"]) for r in rows] == list(range(21))


CLIP, RATE = 1.0, 0.3


@pytest.fixture(scope="module")
def clipped_fedavg():
    return tff_algos.build(
        "clipped_fedavg",
        toy.plain_model(problem_lib.make_problem()),
        clip_norm=CLIP,
        client_learning_rate=RATE,
        server_learning_rate=0.8,
    )


@pytest.mark.quick_cases("vectorized")
@pytest.mark.parametrize("runtime", runtimes.RUNTIMES)
def test_clipped_fedavg_oracle(clipped_fedavg, runtime):
    """Updates longer than S are shortened to S; the others, and their mean, are FedAvg's."""
    problem = problem_lib.make_problem()
    clip, rate = CLIP, RATE
    cohorts = toy.COHORTS
    orders = toy.batch_orders(problem, cohorts)
    x, clipped, want = problem.initial_weights, [], []
    for r, cohort in enumerate(cohorts):
        mean = [np.zeros_like(w) for w in x]
        total = sum(len(problem.clients[k][1]) for k in cohort)
        for k in cohort:
            features, labels = problem.clients[k]
            delta = fedopt.client_update(
                x,
                features,
                labels,
                orders[r][k],
                lr=rate,
                optimizer=fedopt.client_optimizers.build("sgd"),
            )
            norm = np.sqrt(sum(np.sum(d**2) for d in delta))
            clipped.append(norm > clip)
            for m, d in zip(mean, delta, strict=True):
                m += len(labels) / total * d * min(1.0, clip / norm)
        x = tuple(w + 0.8 * m for w, m in zip(x, mean, strict=True))
        want.append(x)
    assert any(clipped) and not all(clipped), "the test needs both kinds of client"
    with runtimes.installed(runtime):
        states, _ = toy.run(clipped_fedavg, problem)
    for state, weights in zip(states, want, strict=True):
        for got, expected in zip(state.weights, weights, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-5)


def test_moving_blobs():
    task = tasks.load("moving_blobs", num_clients=5, spread=0.5, seed=3)
    assert list(task.train.sizes + task.test.sizes) == [20, 30, 40, 50, 20]
    assert task.keras_model_fn(0).count_params() == 51
    again = tasks.load("moving_blobs", num_clients=5, spread=0.5, seed=3)
    np.testing.assert_array_equal(task.train.examples(2).x, again.train.examples(2).x)


@pytest.mark.parametrize("part", tff_objects.PARTS)
def test_tffs_objects(part):
    with shared.installed("tff"):
        loss = part(tff_objects.client_data())
    assert loss < np.log(2)  # That of the weights of zero it starts from.


@pytest.mark.parametrize(
    ("kind", "pairs"), [*((kind, False) for kind in tff_objects.MODELS), ("a model_fn", True)]
)
def test_tffs_models(kind, pairs):
    """All are one model, on examples that are the same in either form."""
    losses, data = [], tff_objects.client_data(pairs=True)
    for client_id in data.client_ids:
        kernel, bias = np.zeros((4, 2)), np.zeros(2)
        for x, y in tff_objects.batches(data, client_id).as_numpy_iterator():
            odds = np.exp(x @ kernel + bias)
            shares = odds / odds.sum(axis=1, keepdims=True)
            losses.extend(-np.log(shares[np.arange(len(y)), y]))
            slopes = (shares - np.eye(2)[y]) / len(y)
            kernel, bias = kernel - 0.1 * x.T @ slopes, bias - 0.1 * slopes.sum(axis=0)
    with shared.installed("tff"):
        got = tff_objects.any_model(tff_objects.client_data(pairs), kind)
    assert got == pytest.approx(np.mean(losses), rel=1e-5)


def test_tffs_program_goes_on_where_it_was_stopped(tmp_path):
    data = tff_objects.client_data()
    process = tff_algos.build(
        "fedadam", tff_objects.model_fn, client_learning_rate=0.1, server_learning_rate=0.1
    )
    taking = tff_algos.from_datasets(process, tff_objects.BATCH_SIZE)

    def run(folder, rounds):
        return tff_objects.tffs_program(
            taking, tff_objects.Cohorts(data), tmp_path / folder, rounds
        )

    with shared.installed("tff"):
        want = run("whole", 3)
        run("stopped", 1)
        got = run("stopped", 3)
    tf.nest.map_structure(np.testing.assert_array_equal, got, want)
    assert set(want["metrics"]["model_metrics"]) == {"loss", "accuracy", "num_examples"}
