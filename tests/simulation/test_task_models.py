"""A task's model in a run's precision."""

import warnings

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tests.simulation.one_round import one_round


def begin(folder, x, precision, first=tf.keras.layers.Flatten):
    """Runs a round on four clients, with a linear model."""

    def model(seed):
        tf.keras.utils.set_random_seed(seed)
        flat, last = tf.keras.layers.Flatten(), tf.keras.layers.Dense(2)
        return tf.keras.Sequential([first(input_shape=x.shape[1:]), flat, last])

    y, users = np.arange(len(x)) % 2, np.arange(len(x)) % 4
    task = tasks.from_arrays(x, y, users, model=model, target_type="category", test=None)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="--precision")
        one_round(task, folder, client_learning_rate=1e-9, precision=precision)


def test_features_that_a_precision_rounds_coarsely_are_said(tmp_path):
    rng = np.random.default_rng(0)
    near = rng.normal(size=(40, 2)).astype("float32")
    years = np.stack([near[:, 0], rng.integers(1990, 2021, 40)], axis=1).astype("float32")
    # A bfloat16 in this range is a multiple of 8.
    off = np.abs(np.round(years[:, 1] / 8) * 8 - years[:, 1]).max()
    says = rf"--precision=mixed_bfloat16: bfloat16 rounds feature 1 by up to {off:.3g}, .*; stand"
    with pytest.raises(RuntimeWarning, match=says):
        begin(tmp_path / "coarse", years, "mixed_bfloat16")
    with pytest.raises(RuntimeWarning, match="float16 rounds feature 1 by up to inf"):
        begin(tmp_path / "beyond", years * 100, "mixed_float16")
    begin(tmp_path / "exact", years, "float32")
    begin(tmp_path / "near", near, "mixed_bfloat16")
    begin(tmp_path / "images", years.reshape(10, 2, 2, 2), "mixed_bfloat16")

    def in_float32(**fields):
        return tf.keras.layers.Rescaling(0.001, -2.0, dtype="float32", **fields)

    begin(tmp_path / "scaled", years, "mixed_bfloat16", in_float32)
