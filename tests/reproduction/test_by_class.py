"""Clients' accuracy by class, without the chance of few test examples."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import run_experiment
import tasks
import tasks.layers.registered
from reproduction import by_class, run_folders
from simulation.measures import fairness

SETTINGS = {
    "partition": "shards",
    "num_clients": 10,
    "shards_per_client": 2,
    "num_validation": 0,
    "client_tests": "official",
    "model": "mlp",
}


def run(root, seed, **settings):
    flags = [f"--cifar10_image_{name}={value}" for name, value in settings.items()]
    arguments = [
        "--task=cifar10_image",
        "--algorithm=fedavg",
        "--client_learning_rate=0.1",
        "--use_synthetic_data",
        "--total_rounds=2",
        "--clients_per_round=5",
        "--client_batch_size=10",
        f"--seed={seed}",
        f"--experiment_name=run_{seed}",
        f"--root_output_dir={root}",
        *flags,
    ]
    assert run_experiment.main(arguments) == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        run(root, seed, **SETTINGS)
    return root


def test_accuracy_of_each_class():
    predicted, labels = np.array([0, 1, 1, 2, 0]), np.array([0, 1, 0, 1, 0])
    got = by_class.accuracy_by_class(predicted, labels, 3)
    np.testing.assert_allclose(got, [2 / 3, 1 / 2, np.nan])


def test_a_clients_accuracy_is_that_of_test_examples_in_its_shares(root, capsys):
    """Oracle: the central test examples, each weighted by the client's share of its class."""
    output = root / "by_class.csv"
    assert by_class.main([str(root), f"--output={output}"]) == 0
    assert "fedavg" in capsys.readouterr().out
    table = pd.read_csv(output).set_index("seed")
    assert list(table.index) == [1, 2]
    for seed in (1, 2):
        task = tasks.load("cifar10_image", use_synthetic_data=True, seed=seed, **SETTINGS)
        model = tf.keras.models.load_model(root / f"run_{seed}" / "model" / "final.keras")
        test = task.central_test
        right = np.asarray(model(test.x)).argmax(axis=1) == test.y
        of_clients = []
        for index in range(10):
            own = task.train.examples(index).y
            weights = np.array([(own == y).mean() / (test.y == y).sum() for y in test.y])
            assert weights.sum() == pytest.approx(1)
            of_clients.append(weights @ right)
        want = fairness.summarize(np.array(of_clients), np.ones(10))
        for name in ("avg", "std", "worst10", "best30"):
            assert table.loc[seed, name] == pytest.approx(want[f"{name}_u"], abs=1e-6), name


def test_clients_without_training_examples_are_left_out(tmp_path):
    """Half of these clients have none. They used to count as clients that are always wrong."""
    settings = {"num_validation": 0, "client_tests": "official", "model": "mlp"}
    drawn = {"partition": "dirichlet", "alpha": 0.01, "min_share": 0.0, "num_clients": 50}
    run(tmp_path, 1, **settings, **drawn)
    got = by_class.of_run(run_folders.read_run(str(tmp_path / "run_1")))
    task = tasks.load("cifar10_image", use_synthetic_data=True, seed=1, **settings, **drawn)
    model = tf.keras.models.load_model(tmp_path / "run_1" / "model" / "final.keras")
    test = task.central_test
    predicted = np.asarray(model(test.x)).argmax(axis=1)
    of_class = [(predicted[test.y == c] == c).mean() for c in range(10)]
    held = [task.train.examples(k).y for k in np.flatnonzero(task.train.sizes)]
    assert len(held) < 40
    want = [np.mean([of_class[c] for c in own]) for own in held]
    assert got["avg"] == pytest.approx(np.mean(want)) and got["std"] == pytest.approx(np.std(want))


def test_what_is_no_ended_run_is_one_line(root, tmp_path, capsys):
    assert by_class.main([str(tmp_path), f"--output={tmp_path}/a.csv"]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} holds no run")
    (tmp_path / "hparams.json").write_bytes((root / "run_1" / "hparams.json").read_bytes())
    (tmp_path / "metrics.csv").write_bytes((root / "run_1" / "metrics.csv").read_bytes())
    assert by_class.main([str(tmp_path), f"--output={tmp_path}/a.csv"]) == 1
    assert "has no final model" in capsys.readouterr().err
    assert not (tmp_path / "a.csv").exists()
