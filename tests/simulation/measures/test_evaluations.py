"""What a run measures of its clients, against NumPy."""

import functools
import types

import numpy as np
import pytest

import simulation
import tasks
from simulation import task_models
from simulation.measures import evaluations, fairness
from simulation.records import client_states
from tasks.models import losses, models
from tasks.task import ArrayFederatedData, Task
from tff_suite.hparams import HparamError

SETTINGS = {
    "task": "synthetic",
    "synthetic_num_clients": 6,
    "synthetic_max_examples": 30,
    "total_rounds": 2,
    "clients_per_round": 3,
    "client_batch_size": 5,
    "client_learning_rate": 0.05,
    "runtime": "tff",
    "progress": False,
}


def accuracies(weights, *parts):
    """Returns each client's accuracy on the examples of all parts; `weights` by client."""
    found = []
    for k in range(len(parts[0].client_ids)):
        kernel, bias = weights(k)
        examples = [part.examples(k) for part in parts]
        x = np.concatenate([e.x for e in examples])
        y = np.concatenate([e.y for e in examples])
        found.append(np.mean(np.argmax(x @ kernel + bias, 1) == y))
    return np.array(found)


def assert_measured(final, weights):
    task = tasks.load("synthetic", num_clients=6, max_examples=30)
    trained, tested = task.train.sizes, task.test.sizes
    on_all = accuracies(weights, task.train, task.test)
    on_tests = accuracies(weights, task.test)
    for prefix, values, sizes in (
        ("fairness_all", on_all, trained + tested),
        ("fairness", on_tests, tested),
    ):
        averages = {"u": None, "w": sizes, "t": trained}
        for ending, weighting in averages.items():
            want = np.average(values, weights=weighting)
            assert final[f"{prefix}/accuracy_avg_{ending}"] == pytest.approx(want, abs=1e-9)
        assert final[f"{prefix}/accuracy_worst30_u"] == pytest.approx(np.sort(values)[:2].mean())
    assert np.abs(on_all - on_tests).max() > 0.01


def test_all_local_data_are_training_and_test_examples(tmp_path):
    result = simulation.run(
        algorithm="fedavg", root_output_dir=tmp_path, evaluate_all_local_data=True, **SETTINGS
    )
    assert_measured(result.summary["final"], lambda _: result.weights)
    assert result.rounds["fairness_all/accuracy_avg_t"].notna().all()


def test_all_local_data_with_models_of_the_clients(tmp_path):
    result = simulation.run(
        algorithm="ditto",
        ditto_lambda=1.0,
        root_output_dir=tmp_path,
        evaluate_all_local_data=True,
        **SETTINGS,
    )
    kept = client_states.read_all(f"{result.folder}/client_states.sqlite")
    own = {client: list(parts.values()) for client, parts in kept.items()}

    def weights(k):
        parts = own.get(str(k))
        return [p for p in parts if p.ndim][-2:] if parts else result.weights

    assert 0 < len(own) < 6
    assert_measured(result.summary["final"], weights)


def test_clients_without_tests_have_no_local_data_to_measure(tmp_path):
    of_all = {k: v for k, v in SETTINGS.items() if not k.startswith("synthetic_")}
    with pytest.raises(HparamError, match="--evaluate_all_local_data needs"):
        simulation.run(
            algorithm="fedavg",
            use_synthetic_data=True,
            root_output_dir=tmp_path,
            evaluate_all_local_data=True,
            **(of_all | {"task": "cifar10_image", "cifar10_image_model": "mlp"}),
        )


def test_clients_of_whom_nothing_can_be_measured_are_left_out():
    """Of no example of theirs the metric says anything, as of sentences of unknown words alone."""
    x = np.random.default_rng(0).normal(size=(12, 2)).astype(np.float32)
    y = np.repeat([0, 1, 1, 0, 0, 1], 2).astype(np.int32)
    rows = [*np.split(np.arange(12), [4, 6, 9]), np.arange(0)]
    data = ArrayFederatedData(x, y, rows)
    task = Task(
        name="own",
        train=data,
        test=data,
        central_test=None,
        keras_model_fn=functools.partial(models.softmax_regression, num_inputs=2, num_classes=2),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"found": losses.accuracy_of_class(0)},
        primary_metric="found",
    )
    settings = {
        "seed": 0,
        "precision": "float32",
        "loss_scale": None,
        "num_validation_examples": -1,
        "evaluate_classes": False,
        "evaluate_all_local_data": False,
        "track_clients": None,
    }
    built = task_models.build(task, settings)
    kernel, bias = weights = [np.asarray(w) for w in built.model.initial_weights]
    measured = evaluations.Evaluations(
        task,
        data,
        settings,
        built,
        method=types.SimpleNamespace(personal_weights=None, findings=lambda state: None),
    )
    found = measured(weights, None, None).columns
    left = [0, 2, 3]  # Of class 0 the others have no example.
    hits = np.argmax(x @ kernel + bias, 1) == y
    values = np.array([np.mean(hits[rows[k]][y[rows[k]] == 0]) for k in left])
    sizes = data.sizes[left]
    want = fairness.summarize(values, sizes, train_sizes=sizes)
    assert np.isfinite(want["avg_u"])
    for name, value in want.items():
        assert found[f"fairness/found_{name}"] == pytest.approx(value, nan_ok=True), name
