"""Tests that are scaled in another way than training examples are named."""

import numpy as np
import pytest

from tasks import frames, scales
from tasks.task import ArrayFederatedData, Examples, Task
from tests.simulation.one_round import one_round

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 4)).astype(np.float32)
LABELS = np.arange(8, dtype=np.int32) % 2
UNIT, STANDARDIZED = PIXELS / 255, (PIXELS / 255 - 0.286) / 0.353


def data(x):
    return ArrayFederatedData(x, LABELS, [[], [0, 1, 2], [3, 4, 5, 6, 7]])


def task(train, **parts):
    return Task(
        name="mine",
        train=data(train),
        **{"test": None, "central_test": None, **parts},
        keras_model_fn=None,
        loss="mse",
        metrics={},
        primary_metric="loss",
    )


@pytest.mark.parametrize("scaled", [UNIT, STANDARDIZED, UNIT.astype(np.float64)])
def test_pixels_beside_scaled_ones(scaled):
    made = task(scaled, test=data(PIXELS), central_test=Examples(PIXELS.astype(np.int64), LABELS))
    lines = scales.in_tests(made)
    assert [line.split(" are whole")[0] for line in lines] == [
        "inputs of test",
        "inputs of central_test",
    ]
    assert all(line.endswith("; scale both alike") for line in lines)
    (line,) = scales.in_tests(task(PIXELS, validation=data(scaled)))
    assert line.startswith("inputs of train are whole numbers up to 2")
    assert "those of validation are fractions up to" in line


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (UNIT, STANDARDIZED),
        (PIXELS, PIXELS),
        (PIXELS, np.zeros_like(PIXELS)),
        (PIXELS * 300, UNIT),
        (np.full_like(PIXELS, np.nan), PIXELS),
        (PIXELS.astype(np.uint8), PIXELS.astype(np.uint8)),
    ],
)
def test_other_inputs(train, test):
    of_clients = {"test": data(test), "validation": data(train)}
    assert scales.in_tests(task(train, **of_clients)) == []
    assert scales.in_tests(task(train, central_test=Examples(test[:0], LABELS[:0]))) == []
    none = ArrayFederatedData(test, LABELS, [[], [], []])
    assert scales.in_tests(task(train, test=none)) == []


@pytest.mark.slow
def test_a_run_warns(tmp_path):
    import tensorflow as tf

    def model(seed):
        tf.keras.utils.set_random_seed(seed)
        return tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(4,))])

    own = frames.from_arrays(
        UNIT,
        LABELS,
        [0] * 4 + [1] * 4,
        model=model,
        target_type="category",
        test_arrays=(PIXELS, LABELS),
    )
    with pytest.warns(RuntimeWarning, match="inputs of central_test are whole numbers up to"):
        one_round(own, tmp_path)
