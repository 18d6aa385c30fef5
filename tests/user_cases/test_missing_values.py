"""Examples with missing values are named, and never make a number."""

import csv
import os

import numpy as np
import pytest
import tensorflow as tf

import simulation
from simulation.errors import DivergedError
from tasks import missing
from tasks.models import losses
from tasks.task import ArrayFederatedData, Examples, Task
from tff_algos.client_data import Batch
from tff_algos.keras_bridge import from_keras

pytestmark = pytest.mark.slow

M, L = tf.keras.metrics, tf.keras.layers
NAN, INF = float("nan"), float("inf")
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _own_loss(y, outputs):
    """It looks at the output of the true class alone."""
    return -tf.gather(outputs, y, batch_dims=1)


CLASSES, ONE_HOT = tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 3])
METRICS = {
    "sparse_categorical_accuracy": (M.sparse_categorical_accuracy, CLASSES),
    "sparse_top_k": (M.SparseTopKCategoricalAccuracy(2), CLASSES),
    "sparse_categorical_crossentropy": (M.sparse_categorical_crossentropy, CLASSES),
    "own sparse_accuracy": (losses.sparse_accuracy, CLASSES),
    "own accuracy_of_class": (losses.accuracy_of_class(0), CLASSES),
    "categorical_accuracy": (M.categorical_accuracy, ONE_HOT),
    "top_k": (M.TopKCategoricalAccuracy(2), ONE_HOT),
    "binary_accuracy": (M.binary_accuracy, ONE_HOT),
    "mae": (M.mean_absolute_error, ONE_HOT),
    "cosine": (M.CosineSimilarity(), ONE_HOT),
    "hinge": (M.Hinge(), ONE_HOT),
    "own precision": (losses.precision, ONE_HOT),
    "own recall": (losses.recall_at(2), ONE_HOT),
    "own absolute_error": (losses.absolute_error, ONE_HOT),
    "of the user": (lambda y, z: tf.cast(z[:, 0] > 0.5, tf.float32), ONE_HOT),
}
LOSSES = {
    "int32": {"crossentropy": LOSS, "own": losses.sparse_softmax_cross_entropy, "mine": _own_loss},
    "float32": {"mse": "mse", "hinge": "hinge", "own": losses.binary_cross_entropy},
}


@pytest.mark.parametrize("name", METRICS)
def test_no_metric_makes_a_number_of_outputs_that_are_none(name):
    """One output of the first example is not a number, whichever; the second example has all."""
    metric, spec = METRICS[name]
    y = np.array([0, 0]) if spec is CLASSES else np.eye(3)[[0, 0]]
    for loss in LOSSES[spec.dtype.name].values():
        # Its outputs are its inputs, number by number.
        keras_model = tf.keras.Sequential([L.InputLayer((3,)), L.PReLU()])
        model = from_keras(keras_model, loss=loss, metrics={"m": metric}, y_spec=spec)
        for place in range(3):
            x = np.array([[0.9, 0.2, 0.3], [0.9, 0.2, 0.3]], np.float32)
            x[0, place] = NAN
            batch = Batch(tf.constant(x), tf.constant(y, spec.dtype), tf.ones([2]))
            found = model.forward(model.initial_weights, batch, False, tf.zeros([2], tf.int32))
            values, counts = found.metrics["m"]
            assert np.isnan(values).tolist() == [True, False], (loss, place)
            assert counts[0] > 0


def _task(x, y, test_x=None, test_y=None, central=True):
    rows = np.split(np.arange(len(y)), 4)
    test_x, test_y = (x, y) if test_x is None else (test_x, test_y)
    return Task(
        name="missing",
        train=ArrayFederatedData(x, y, rows, client_ids=list("abcd")),
        test=ArrayFederatedData(test_x, test_y, rows, client_ids=list("abcd")),
        central_test=Examples(test_x[::2], test_y[::2]) if central else None,
        keras_model_fn=lambda seed: tf.keras.Sequential([L.Dense(2, input_shape=(4,))]),
        loss=lambda y, z: tf.keras.losses.sparse_categorical_crossentropy(y, z, from_logits=True),
        metrics={"accuracy": M.sparse_categorical_accuracy},
        primary_metric="accuracy",
    )


def _data(seed=0):
    x = np.random.default_rng(seed).normal(size=(40, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int32)


def run(task, tmp_path, **settings):
    given = dict(
        task=task,
        algorithm="fedavg",
        total_rounds=2,
        clients_per_round=4,
        client_batch_size=5,
        client_learning_rate=0.1,
        root_output_dir=str(tmp_path),
        progress=False,
        runtime="tff",
    )
    return simulation.run(**given | settings)


@pytest.mark.parametrize("value", [NAN, INF])
def test_tests_with_missing_values_give_no_number_and_a_warning(value, tmp_path):
    x, y = _data()
    tests = x.copy()
    tests[[10, 11, 39]] = value
    with pytest.warns(RuntimeWarning) as told:
        result = run(_task(x, y, tests, y, central=False), tmp_path)
    lines = [str(w.message) for w in told]
    assert any("3 of 40 test examples, of 2 clients (b, d), have inputs" in line for line in lines)
    (line,) = [line for line in lines if "not finite: the model gives" in line]
    assert "eval/loss, eval/accuracy are" in line and "2 clients (b, d)" in line
    final = result.summary["final"]
    assert final["eval/accuracy"] is None and final["fairness/accuracy_avg_u"] is None
    assert np.isnan(result.rounds["eval/accuracy"]).all()
    with open(os.path.join(result.folder, "client_metrics.csv"), newline="") as file:
        accuracies = [row["accuracy"] for row in csv.DictReader(file)]
    assert [accuracies[1], accuracies[3]] == ["nan", "nan"]
    assert all(0 <= float(accuracies[k]) <= 1 for k in (0, 2))


def test_training_with_missing_values_names_the_clients(tmp_path):
    x, y = _data()
    tests = x.copy()
    x[[3, 25], 1] = NAN, INF
    with pytest.warns(RuntimeWarning) as told:
        result = run(_task(x, y, tests, y), tmp_path)
    lines = [str(w.message) for w in told]
    (line,) = [line for line in lines if "training examples" in line]
    assert "2 of 40 training examples, of 2 clients (a, c), have inputs or targets that" in line
    assert result.rounds["train/clients_dropped"].tolist()[1:] == [2, 2]
    assert np.isfinite(result.rounds["eval/accuracy"]).all()


def test_a_run_that_missing_values_end_does_not_advise_a_lower_rate(tmp_path):
    x, y = _data()
    tests = x.copy()
    x[::10] = NAN
    with pytest.warns(RuntimeWarning), pytest.raises(DivergedError) as e:
        run(_task(x, y, tests, y), tmp_path)
    assert "4 of 40 training examples, of 4 clients (a, b, c, d)" in str(e.value)
    assert "rate" not in str(e.value)


def test_whole_data_are_not_warned_of():
    x, y = _data()
    assert missing.in_training(_task(x, y)) is None and missing.in_tests(_task(x, y)) == []
    whole = _task((100 * x).astype(np.int32), y)
    assert missing.in_training(whole) is None


def test_large_numbers_are_not_missing():
    x, y = _data()
    # Finite, though their sum in float32 is not.
    assert missing.in_training(_task(np.full_like(x, 3e38), y)) is None


RATES = {"1e20": (1e20, 2), "1e20 once": (1e20, 1), "1e9": (1e9, 4), "1e12 long": (1e12, 12)}


@pytest.mark.parametrize("name", RATES)
def test_a_run_that_ends_with_a_huge_loss_has_diverged(name, tmp_path):
    rate, rounds = RATES[name]
    x, y = _data()
    noisy = np.where(np.arange(40) % 7 == 0, 1 - y, y)
    task = _task(x, noisy)
    with pytest.raises(DivergedError, match="training diverged, so the run stops here; a lower"):
        run(task, tmp_path, client_learning_rate=rate, total_rounds=rounds)
    assert not os.path.exists(os.path.join(tmp_path, "missing_fedavg", "summary.json"))


def test_an_honest_high_loss_has_not_diverged(tmp_path):
    """Targets in dollars: the loss is 1e12 from the beginning, and goes down."""
    x, _ = _data()
    y = (1e6 * x[:, :1] + 3e6).astype(np.float32)
    task = _task(x, y)
    one_output = lambda seed: tf.keras.Sequential([L.Dense(1, input_shape=(4,))])  # noqa: E731
    task = Task(
        **{
            **vars(task),
            "keras_model_fn": one_output,
            "loss": tf.keras.losses.mean_squared_error,
            "metrics": {"mae": M.mean_absolute_error},
            "primary_metric": "mae",
        }
    )
    result = run(task, tmp_path)
    assert result.summary["finished"] and result.rounds["train/loss"].iloc[-1] > 1e9
