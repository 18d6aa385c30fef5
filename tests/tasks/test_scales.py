"""Tests that are scaled in another way than training examples are named."""

import dataclasses

import numpy as np
import pytest

from simulation.errors import DivergedError
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
    assert [line.split(" are pixels")[0] for line in lines] == [
        "inputs of test",
        "inputs of central_test",
    ]
    assert all(line.endswith("; scale both alike") for line in lines)
    (line,) = scales.in_tests(task(PIXELS, validation=data(scaled)))
    assert line.startswith("inputs of train are pixels up to 2")
    assert "those of validation are fractions up to" in line


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (PIXELS, LABELS, "scale the inputs (up to 248), or lower the learning rate"),
        (PIXELS, 1e6 * UNIT, "scale the inputs (up to 248) and the targets (up to 9.73e+05), or"),
        (STANDARDIZED, 1e6 * UNIT[:, 0], "scale the targets (up to 8.51e+05), or"),
        (np.full((8, 4), 1e30, np.float32), LABELS, "scale the inputs (up to 1e+30), or"),
        (STANDARDIZED, STANDARDIZED, None),
        (PIXELS.astype(np.uint8), 100 * LABELS, None),
        (np.zeros((8, 4), "S3"), LABELS, None),
        (np.where(PIXELS > 200, np.nan, PIXELS), LABELS, None),
    ],
)
def test_numbers_that_are_too_large_for_usual_rates(x, y, says):
    rows = [[], [0, 1, 2], [3, 4, 5, 6, 7]]
    large = scales.large_numbers(
        dataclasses.replace(task(UNIT), train=ArrayFederatedData(x, y, rows))
    )
    assert scales.cure(large).startswith(says or "") and bool(large) == bool(says)
    assert bool(scales.in_training(large, None)) == bool(says)


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


def test_pixels_of_resized_images_are_fractions():
    images = np.random.default_rng(1).uniform(0, 254.5, (8, 6, 6, 3)).astype(np.float32)
    (line,) = scales.in_tests(task(images / 255, test=data(images)))
    assert line.startswith("inputs of test are pixels up to 25")
    # As numbers of a table they may be anything.
    flat = images.reshape(8, -1)
    assert scales.in_tests(task(flat / 255, test=data(flat))) == []


RAW = np.stack([np.linspace(18, 90, 8), np.linspace(2e4, 9e4, 8), np.arange(8) % 2], 1)
ZERO_MEAN = (RAW - RAW.mean(0)) / RAW.std(0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_raw_features_beside_standardized_ones(dtype):
    raw, scaled = RAW.astype(dtype), ZERO_MEAN.astype(dtype)
    (line,) = scales.in_tests(task(scaled, test=data(raw)))
    says = "input 0 has a median of 54 in test, and in train it looks standardized, with a "
    assert line == f"{says}deviation of 1; scale both alike"
    (line,) = scales.in_tests(task(raw, central_test=Examples(scaled, LABELS)))
    assert "54 in train, and in central_test it looks standardized" in line
    (line,) = scales.in_tests(task(scaled[:, 1:], test=data(raw[:, 1:])))
    assert line.startswith("input 0 has a median of 5.5e+04 in test")
    signals = scaled[:, :1, None] + np.linspace(-0.1, 0.1, 5)[:, None]
    (line,) = scales.in_tests(task(signals, test=data(100 * signals)))
    assert line.startswith("the input has a median of")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (RAW, RAW + 5),
        (ZERO_MEAN, ZERO_MEAN + 3),
        # Heavy tails, counts and fractions are not scaled, whatever their size is elsewhere.
        (np.where(np.arange(8) == 7, 1e6, ZERO_MEAN[:, 0])[:, None], ZERO_MEAN[:, :1]),
        (RAW[:, :1], RAW[:, :1] / 90),
    ],
)
def test_features_that_may_be_alike(train, test):
    assert scales.in_tests(task(train, test=data(test))) == []


def test_few_rows_tell_nothing():
    assert scales.in_tests(task(ZERO_MEAN, central_test=Examples(RAW[:7], LABELS[:7]))) == []


def test_many_clients_are_looked_at():
    """The first client alone may be unlike the others."""

    def each(x):
        return ArrayFederatedData(x, LABELS, [[k] for k in range(8)])

    shifted = np.sort(ZERO_MEAN, 0)
    made = dataclasses.replace(task(shifted), train=each(shifted), test=each(RAW))
    (line,) = scales.in_tests(made)
    assert line.startswith("input 0 has a median of 54")


def dense(units):
    import tensorflow as tf

    def model(seed):
        tf.keras.utils.set_random_seed(seed)
        return tf.keras.Sequential([tf.keras.layers.Dense(units, input_shape=(4,))])

    return model


@pytest.mark.slow
def test_inputs_that_a_layer_scales_are_not_named():
    import tensorflow as tf

    large = {"inputs": 1e3, "targets": 1e6}
    assert scales.in_training(large, dense(1)(0)).startswith(
        "training has inputs as large as 1e+03 and targets as large as 1e+06; unless the model"
    )
    layers = [tf.keras.layers.Rescaling(1e-3, input_shape=(4,)), tf.keras.layers.Dense(1)]
    alone = tf.keras.Sequential(layers)
    inside = tf.keras.Sequential([tf.keras.Sequential(layers), tf.keras.layers.Dense(1)])
    for model in (alone, inside):
        found = scales.in_training(large, model)
        assert found.startswith("training has targets as large as 1e+06; ")


@pytest.mark.slow
def test_a_run_that_diverges_on_raw_numbers_says_to_scale_them(tmp_path):
    y = 1000 * PIXELS[:, 0]
    own = frames.from_arrays(PIXELS, y, [0] * 4 + [1] * 4, model=dense(1), test=None)
    says = r"stops here; scale the inputs \(up to 248\) and the targets \(up to .*\), or lower the"
    with pytest.warns(RuntimeWarning, match=r"training has inputs as large as 248 and targets as"):
        with pytest.raises(DivergedError, match=says):
            one_round(own, tmp_path, client_learning_rate=1e6)


@pytest.mark.slow
def test_a_run_warns(tmp_path):
    own = frames.from_arrays(
        UNIT,
        LABELS,
        [0] * 4 + [1] * 4,
        model=dense(2),
        target_type="category",
        test_arrays=(PIXELS, LABELS),
    )
    with pytest.warns(RuntimeWarning, match="inputs of central_test are pixels up to"):
        one_round(own, tmp_path)
