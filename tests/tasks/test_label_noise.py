"""Label noise: who gets it, how much, what stays as it is."""

import numpy as np
import pytest

import tasks
from tasks import label_noise
from tasks.task import ArrayFederatedData
from tff_suite.hparams import HparamError

CLASSES = 5


def data(num_clients=10, size=50):
    rng = np.random.default_rng(0)
    total = num_clients * size
    y = rng.integers(0, CLASSES, total).astype(np.int32)
    x = np.arange(total, dtype=np.float32)[:, None]
    return ArrayFederatedData(x, y, np.split(np.arange(total), num_clients))


def noisy(noisy_clients=0.4, share=0.4, seed=3):
    return label_noise.NoisyLabels(data(), noisy_clients, share, seed)


def changed(spoiled, k):
    return spoiled.examples(k).y != data().examples(k).y


def test_the_shares_asked_for_are_drawn_anew():
    spoiled = noisy(share=1.0)
    assert len(spoiled.noisy) == 4
    for k in range(10):
        examples = spoiled.examples(k)
        assert examples.y.dtype == np.int32 and set(examples.y) <= set(range(CLASSES))
        np.testing.assert_array_equal(examples.x, data().examples(k).x)
        assert changed(spoiled, k).any() == (k in spoiled.noisy)
    # One in five is drawn as it was.
    wrong = np.mean([changed(spoiled, k).mean() for k in spoiled.noisy])
    assert abs(wrong - 0.8) < 0.1
    wrong = [changed(noisy(), k).sum() for k in noisy().noisy]
    assert max(wrong) <= 20 and min(wrong) >= 8


def test_draws_are_a_function_of_the_seed():
    a, b, other = noisy(), noisy(), noisy(seed=4)
    assert a.noisy == b.noisy and a.noisy != other.noisy
    for k in range(10):
        np.testing.assert_array_equal(a.examples(k).y, b.examples(k).y)
        np.testing.assert_array_equal(a.examples(k).y, a.examples(k).y)


def test_all_and_none():
    assert noisy(noisy_clients=1.0).noisy == frozenset(range(10))
    assert not any(changed(noisy(share=0.0), k).any() for k in range(10))


def test_a_task_keeps_its_tests_and_its_true_labels():
    given = dict(seed=5, use_synthetic_data=True, num_clients=10, partition="iid")
    clean = tasks.load("fashion_mnist", **given)
    task = tasks.load("fashion_mnist", noisy_clients=0.4, **given)
    assert clean.clean_train is None
    assert task.settings["noisy_clients"] == 0.4 and task.settings["label_noise"] == 0.4
    wrong = []
    for k in range(10):
        true = clean.train.examples(k)
        np.testing.assert_array_equal(task.clean_train.examples(k).y, true.y)
        np.testing.assert_array_equal(task.test.examples(k).y, clean.test.examples(k).y)
        np.testing.assert_array_equal(task.train.examples(k).x, true.x)
        wrong.append(np.mean(task.train.examples(k).y != true.y))
    assert np.count_nonzero(wrong) == 4 and 0.2 < max(wrong) <= 0.4


def test_refusals():
    with pytest.raises(HparamError, match=r"label_noise is not used with noisy_clients=0.0"):
        tasks.load("synthetic", label_noise=0.4)
    with pytest.raises(HparamError, match=r"noisy_clients=1.5 must be in \[0, 1\]"):
        tasks.load("synthetic", noisy_clients=1.5)
    with pytest.raises(HparamError, match="stackoverflow_word has no setting 'noisy_clients'"):
        tasks.load("stackoverflow_word", noisy_clients=0.5)
