"""Warnings name the line of a user's program, whatever of the suite lies between."""

import dataclasses
import inspect
import warnings

import numpy as np
import pytest

from tasks.models import losses
from tasks.task import ArrayFederatedData, Examples, Task
from tests.simulation.one_round import one_round
from tff_suite import user_warnings

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 4)).astype(np.float32)
LABELS = np.arange(8, dtype=np.int32) % 2


def model(seed):
    import tensorflow as tf

    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(4,))])


@pytest.fixture
def made():
    return Task(
        name="mine",
        train=ArrayFederatedData(PIXELS / 255, LABELS, [[0, 1, 2], [3, 4, 5, 6, 7]]),
        test=None,
        central_test=None,
        keras_model_fn=model,
        loss=losses.sparse_softmax_cross_entropy,
        metrics={},
        primary_metric="loss",
    )


def line_of_a_warning(call):
    """Returns the line of the only warning of `call`, counted from its first."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    (warning,) = [w for w in found if w.category is RuntimeWarning]
    assert warning.filename == __file__
    return warning.lineno - call.__code__.co_firstlineno


def test_a_direct_call():
    def call():
        user_warnings.warn("a")

    assert line_of_a_warning(call) == 1


def test_without_a_line_outside_the_suite_the_first_is_named(monkeypatch):
    monkeypatch.setattr(user_warnings, "_module", lambda frame: "tasks.task")

    def call():
        user_warnings.warn("a")

    assert line_of_a_warning(call) == 1


def test_a_warning_is_shown_once_a_line():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for text in ("twice", "twice", "once"):
            user_warnings.warn(text)
    assert [str(w.message) for w in found] == ["twice", "once"]


def test_a_copied_task(made):
    def call():
        dataclasses.replace(made, test=ArrayFederatedData(PIXELS[:1] / 2, LABELS[:1], [[0]]))

    assert line_of_a_warning(call) == 1


@pytest.mark.slow
def test_a_run(made, tmp_path):
    """A run warns of its task in the middle of its start."""
    wrong = dataclasses.replace(made, central_test=Examples(PIXELS, LABELS))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        one_round(wrong, tmp_path)
    (warning,) = [w for w in found if "scale both alike" in str(w.message)]
    assert warning.filename == inspect.getsourcefile(one_round)
