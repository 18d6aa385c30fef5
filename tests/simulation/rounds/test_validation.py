"""Held-out examples: which they are, that they train nothing, and what is measured on them."""

import csv
import dataclasses
import json
import pathlib
import warnings

import numpy as np
import pytest

import simulation
import tasks
from simulation.rounds import randomness, validation
from tasks.task import ArrayFederatedData
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tff_suite.hparams import HparamError

RUN = {
    "algorithm": "fedavg",
    "total_rounds": 3,
    "client_batch_size": 3,
    "client_learning_rate": 0.3,
    "client_epochs_per_round": 2,
    "runtime": "tff",
    "progress": False,
}
SIZES = (3, 8, 5, 12, 7, 1)


def settings(fraction=0.0, clients=0.0, seed=0):
    return {"validation_fraction": fraction, "validation_clients": clients, "seed": seed}


def numbered(order=(0, 1, 2, 3, 4, 5)):
    """A task whose inputs say which client's and which example they are."""
    x = [np.stack([np.full(SIZES[k], k), np.arange(SIZES[k])], 1) for k in order]
    ends = np.cumsum([len(part) for part in x])
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    x = np.concatenate(x).astype(np.float32)
    data = ArrayFederatedData(x, x[:, 0].astype(np.int32), rows, [f"c{k}" for k in order])
    return dataclasses.replace(tasks.load("toy"), train=data, test=None)


def held(data):
    """Client id → its examples' numbers."""
    return {
        name: data.examples(i).x[:, 1].astype(int).tolist()
        for i, name in enumerate(data.client_ids)
    }


def test_a_fraction_of_every_client_is_held_out():
    whole = numbered()
    task = validation.split(whole, settings(0.3))
    train, out = held(task.train), held(task.validation)
    assert task.validation.sizes.tolist() == [1, 2, 2, 4, 2]  # Half up; a single example trains.
    assert task.train.sizes.tolist() == [2, 6, 3, 8, 5, 1]
    for k, size in enumerate(SIZES):
        name = f"c{k}"
        assert sorted(train[name] + out.get(name, [])) == list(range(size))
        assert train[name] == sorted(train[name]), "the order that the examples had"


def test_whole_clients_are_held_out_beside_a_fraction_of_the_others():
    task = validation.split(numbered(), settings(0.3, 0.4))
    train, out = held(task.train), held(task.validation)
    whole = [name for name in out if name not in train]
    assert len(whole) == 2 and len(train) == 4  # 0.4 of 6, rounded.
    for name in whole:
        assert out[name] == list(range(SIZES[int(name[1:])]))
    only = validation.split(numbered(), settings(0.0, 0.4))
    assert sorted(held(only.validation)) == sorted(whole)
    assert held(only.train) == {k: v for k, v in held(numbered().train).items() if k not in whole}


def test_the_split_is_a_function_of_seed_and_id():
    """Other clients beside it, or another order, move none of a client's examples."""
    one = validation.split(numbered(), settings(0.3))
    other = validation.split(numbered(order=[4, 1, 3]), settings(0.3))
    for name, rows in held(other.validation).items():
        assert rows == held(one.validation)[name]
    assert held(validation.split(numbered(), settings(0.3, seed=1)).validation) != held(
        one.validation
    )
    ids = [f"client {k}" for k in range(1000)]
    drawn = randomness.held_out_clients(3, ids, 100)
    backwards = randomness.held_out_clients(3, ids[::-1], 100)
    assert {ids[k] for k in drawn} == {ids[::-1][k] for k in backwards}
    # Without the first of them the next one in order takes its place; the others stay.
    fewer = [name for k, name in enumerate(ids) if k != drawn[0]]
    again = {fewer[k] for k in randomness.held_out_clients(3, fewer, 100)}
    assert len(again & {ids[k] for k in drawn}) == 99


def test_rows_are_drawn_uniformly():
    counts = np.zeros(10)
    for k in range(2000):
        counts[randomness.held_out_rows(0, str(k), 10, 3)] += 1
    # 600 of each expected, with a deviation of sqrt(2000 * 0.3 * 0.7) = 20.
    assert np.all(np.abs(counts - 600) < 90)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (settings(0.01), "holds out nothing: clients have at most 12 examples"),
        (settings(0.0, 0.01), "holds out 0 of 6 clients"),
        (settings(0.0, 0.99), "holds out 6 of 6 clients"),
    ],
)
def test_refusals(given, says):
    with pytest.raises(HparamError, match=says):
        validation.split(numbered(), given)


@pytest.mark.parametrize("is_held_out", [True, False])
def test_clients_without_examples_are_not_all_that_is_held_out_or_left(is_held_out):
    whole, given = numbered(), settings(clients=0.5)
    (drawn,) = randomness.held_out_clients(given["seed"], ["c0", "c1"], 1)
    empty = drawn if is_held_out else 1 - drawn
    rows = [[] if k == empty else [0, 1, 2] for k in range(2)]
    data = ArrayFederatedData(*whole.train.examples(1), rows, ["c0", "c1"])
    says = "holds out" if is_held_out else "leaves"
    with pytest.raises(HparamError, match=rf"=0.5 {says} 1 client \(c{empty}\).* without examples"):
        validation.split(dataclasses.replace(whole, train=data), given)


def test_a_tasks_own_validation_is_not_split_twice():
    task = dataclasses.replace(numbered(), validation=numbered().train)
    assert validation.split(task, settings()) is task
    with pytest.raises(HparamError, match="already has validation examples"):
        validation.split(task, settings(0.3))


def own_task(spoil=False):
    """The toy task; with `spoil`, no example that is held out is a number."""
    task = dataclasses.replace(tasks.load("toy", dropout=0.0), name="mine")
    train = task.train
    parts = [train.examples(k) for k in range(len(train.client_ids))]
    x = [part.x.copy() for part in parts]
    if spoil:
        split = validation.split(task, settings(0.3, 0.2))
        for k, name in enumerate(train.client_ids):
            if name not in split.train.client_ids:
                x[k][:] = np.nan
                continue
            number = len(x[k]) - split.train.sizes[split.train.client_ids.index(name)]
            x[k][randomness.held_out_rows(0, name, len(x[k]), number)] = np.nan
    ends = np.cumsum(train.sizes)
    rows = np.split(np.arange(ends[-1]), ends[:-1])
    y = np.concatenate([part.y for part in parts])
    data = ArrayFederatedData(np.concatenate(x), y, rows, train.client_ids)
    return dataclasses.replace(task, train=data)


def run(folder, task=None, **changes):
    held_out = {"validation_fraction": 0.3, "validation_clients": 0.2, "clients_per_round": 4}
    return simulation.run(
        task=task or own_task(), **{**RUN, **held_out, "root_output_dir": folder, **changes}
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run(tmp_path_factory.mktemp("validation"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"runtime": "vectorized"},
        {"clients_per_chunk": 2},
        {"algorithm": "scaffold"},
        {"algorithm": "centralized", "clients_per_round": None},
    ],
    ids=str,
)
def test_what_is_held_out_never_enters_a_gradient(tmp_path, changes):
    """Not a bit of the weights changes when every held-out example is NaN."""
    clean = run(tmp_path / "clean", **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of examples that are not numbers.
        spoiled = run(tmp_path / "spoiled", own_task(spoil=True), **changes)
    assert all(map(np.array_equal, clean.weights, spoiled.weights))
    assert np.isfinite(clean.rounds["validation/loss"]).all()
    assert np.isnan(spoiled.rounds["validation/loss"]).all()


def test_the_columns_are_of_the_held_out_examples(result):
    """Against NumPy, on the final model."""
    task = validation.split(own_task(), settings(0.3, 0.2))
    kernel, bias = (w.astype(np.float64) for w in result.weights)
    parts = [task.validation.examples(k) for k in range(len(task.validation.client_ids))]
    x, y = (np.concatenate(v) for v in zip(*parts, strict=True))
    logits = x @ kernel + bias
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]
    assert result.summary["final"]["validation/loss"] == pytest.approx(losses.mean(), rel=1e-5)
    accuracy = (logits.argmax(1) == y).mean()
    assert result.summary["final"]["validation/accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert result.rounds["validation/loss"].iloc[-1] == result.summary["final"]["validation/loss"]


@pytest.mark.parametrize(
    "changes",
    [
        {"runtime": "vectorized"},
        pytest.param({"runtime": "native"}, marks=pytest.mark.long),
        {"clients_per_chunk": 1},
        pytest.param({"clients_per_chunk": 1, "workers": 2}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_every_execution_has_the_same_split(result, tmp_path, changes):
    other = run(tmp_path, **changes)
    for column in ("validation/loss", "validation/accuracy", "train/loss"):
        np.testing.assert_allclose(other.rounds[column], result.rounds[column], rtol=1e-5)
    np.testing.assert_array_equal(
        other.rounds["train/num_examples"], result.rounds["train/num_examples"]
    )


def test_personal_models_are_validated_on_their_own_examples(tmp_path):
    rounds = run(tmp_path, algorithm="ditto").rounds
    assert np.isfinite(rounds["validation/loss"]).all()


def test_the_folder_says_what_was_held_out(result):
    recorded = json.loads((pathlib.Path(result.folder) / "hparams.json").read_text())
    split = validation.split(own_task(), settings(0.3, 0.2))
    assert recorded["num_clients"] == len(split.train.client_ids)
    assert recorded["num_training_examples"] == split.train.sizes.sum()
    assert recorded["validation"]["examples"] == split.validation.sizes.sum()
    with open(pathlib.Path(result.folder) / "metrics.csv", newline="") as file:
        assert "validation/loss" in next(csv.reader(file))


def test_without_test_data_the_training_is_the_same(result, tmp_path):
    blind = run(tmp_path, evaluate_test=False)
    assert all(map(np.array_equal, blind.weights, result.weights))
    of_tests = {c for c in result.rounds if c.startswith(("eval/", "fairness/"))}
    assert of_tests and set(result.rounds) - of_tests == set(blind.rounds)
    np.testing.assert_array_equal(blind.rounds["validation/loss"], result.rounds["validation/loss"])
    assert not (pathlib.Path(blind.folder) / "client_metrics.csv").exists()


@pytest.mark.parametrize("flag", ["evaluate_classes", "evaluate_all_local_data"])
def test_what_evaluates_test_data_needs_them(tmp_path, flag):
    with pytest.raises(HparamError, match=f"--{flag} .* needs --evaluate_test"):
        run(tmp_path, evaluate_test=False, **{flag: True})
