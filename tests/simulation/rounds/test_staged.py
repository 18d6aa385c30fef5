"""What a run gives a method of several processes, and how its findings are held to the truth."""

import numpy as np
import pytest

from simulation import experiment_flags, runtimes
from simulation.rounds import cohorts, randomness, staged
from tasks.task import ArrayFederatedData
from tff_algos.driver import Findings
from tff_algos.registry import RoundPlan
from tff_suite.hparams import HparamError

SETTINGS = {
    "client_datasets_random_seed": 1,
    "seed": 0,
    "clients_per_round": 3,
    "client_batch_size": 4,
    "client_epochs_per_round": 2,
    "client_epochs_distribution": "fixed",
}
SIZES = (5, 9, 1, 130, 12)


def data(labels=None):
    ends = np.cumsum(SIZES)
    x = np.arange(ends[-1], dtype=np.float32)[:, None]
    y = np.arange(ends[-1], dtype=np.int32) if labels is None else labels
    return ArrayFederatedData(x, y, np.split(np.arange(ends[-1]), ends[:-1]))


def clients(labels=None, first=None):
    return staged.TrainingClients(cohorts.first_examples(data(labels), first), SETTINGS)


def test_batches_are_those_of_other_methods_with_labels_of_ones_own():
    ours = clients().batches(3, 1, 100 + clients().labels(1))
    (theirs,) = cohorts.batched([data().examples(1)], RoundPlan(), SETTINGS, 3, [1])
    for name in theirs._fields:
        wanted = np.asarray(getattr(theirs, name))
        if name == "y":
            wanted = wanted + 100
        np.testing.assert_array_equal(getattr(ours, name), wanted)


def test_examples_in_order():
    for k, size in enumerate(SIZES):
        given = clients().in_order(k, clients().labels(k))
        assert given.mask.shape[1] <= 100 and int(given.index) == k
        np.testing.assert_array_equal(given.x[given.mask > 0], data().examples(k).x)
        np.testing.assert_array_equal(given.y[given.mask > 0], data().examples(k).y)
        assert given.mask.sum() == size


def test_only_the_first_examples_where_that_is_asked_for():
    few = clients(first=4)
    np.testing.assert_array_equal(few.num_examples, [4, 4, 1, 4, 4])
    np.testing.assert_array_equal(few.labels(1), data().examples(1).y[:4])
    assert few.in_order(3, few.labels(3)).mask.sum() == 4
    assert few.batches(0, 3, few.labels(3)).mask.sum() == 8


def test_draws():
    everyone = np.arange(5)
    np.testing.assert_array_equal(clients().sample(7, everyone), randomness.cohort(1, 7, 5, 3))
    for r in range(5):
        drawn = clients().sample(r, np.array([1, 4]))
        assert sorted(drawn) == [1, 4]
    orders = [tuple(clients().permutation(i)) for i in range(6)]
    assert all(sorted(o) == list(range(5)) for o in orders) and len(set(orders)) > 3
    np.testing.assert_array_equal(clients().permutation(2), orders[2])


def test_findings_beside_the_truth():
    true = np.zeros(sum(SIZES), np.int32)
    given = true.copy()
    given[:4] = 1  # Client 0.
    given[20:24] = 2  # Client 3.
    now = given.copy()
    now[:3] = 0  # Mended.
    now[[30, 31]] = 5  # Spoiled.
    found = Findings(np.array([True, True, False, False, False]), now)
    columns = staged.label_noise(found, clients(given), clients(true))
    assert columns == {
        "noise/noisy_clients": 2,
        "noise/found_clients": 2,
        "noise/precision": 0.5,
        "noise/recall": 0.5,
        "noise/labels_wrong": 7 / 157,
        "noise/labels_corrected": 3 / 8,
        "noise/labels_spoiled": 2 / 149,
    }
    nothing = Findings(np.zeros(5, bool), true)
    columns = staged.label_noise(nothing, clients(true), clients(true))
    assert "noise/precision" not in columns and "noise/recall" not in columns
    assert columns["noise/labels_wrong"] == 0


def test_there_is_no_form_over_a_whole_cohort():
    arguments = (
        "--task=synthetic --algorithm=fedcorr --total_rounds=3 --clients_per_round=2 "
        "--client_batch_size=2 --client_learning_rate=0.1 --runtime=vectorized"
    )
    with pytest.raises(HparamError, match="--runtime=vectorized cannot run fedcorr"):
        experiment_flags.parse(arguments.split())
    arguments = arguments.replace("--runtime=vectorized", "--evaluate_improvement")
    with pytest.raises(HparamError, match="--evaluate_improvement does not support fedcorr"):
        experiment_flags.parse(arguments.split())
    assert runtimes.choose(object()) == ("per_client", "a method in stages")
