"""Examples that a model cannot take end a process of `build` in one line, as they end a run."""

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tff_algos.model import ModelError

L = tf.keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)
Y = np.array([1, 2, 0, 1, 2, 0], np.int32)


def dense():
    return tf.keras.Sequential([L.InputLayer((4,)), L.Dense(3)])


def embedding():
    inner = [L.Embedding(5, 4), L.Flatten(), L.Dense(3)]
    return tf.keras.Sequential([L.InputLayer((3,), dtype="int32"), *inner])


def channels_first():
    convolution = L.Conv2D(3, 3, data_format="channels_first")
    return tf.keras.Sequential([L.InputLayer((2, 6, 6)), convolution, L.Flatten(), L.Dense(3)])


UNFIT = "Examples of a client do not fit the model: "
LABEL = r"Received a label value of {} which is outside the valid range of \[0, 3\)\."
CASES = {
    "large label": (dense, X, np.where(Y == 2, 3, Y), UNFIT + LABEL.format(3)),
    "negative label": (dense, X, np.where(Y == 2, -1, Y), UNFIT + LABEL.format(-1)),
    "large id": (
        embedding,
        np.array([[1, 2, 7]] * 6, np.int32),
        Y,
        UNFIT + r"indices\[[\d,]*2\] = 7 is not in \[0, 5\)\.",
    ),
    "channels_first": (
        channels_first,
        RNG.normal(size=(6, 2, 6, 6)).astype(np.float32),
        Y,
        r"A layer has data_format='channels_first', which .* only supports (the )?NHWC",
    ),
}


def _keras_trains(model, x):
    try:
        with tf.GradientTape() as tape:
            outputs = model(x)
        tape.gradient(outputs, model.trainable_weights)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError):
        return False
    return True


@pytest.mark.parametrize("runtime", ["per_client", "vectorized", "tff"])
@pytest.mark.parametrize("what", CASES)
def test_examples_that_do_not_fit_are_told_in_one_line(what, runtime):
    make, x, y, told = CASES[what]
    if what == "channels_first":
        if _keras_trains(make(), x):
            pytest.skip("TensorFlow trains it here: on a GPU, or with oneDNN on newer CPUs.")
        if runtime == "vectorized":
            pytest.skip("It has no vectorised form, which is told before.")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = tff_algos.from_keras(make(), loss=loss)
    with runtimes.installed(runtime):
        process = runtimes.bind(tff_algos.build("fedavg", model, client_learning_rate=0.1))
        data = [tff_algos.batch_client(x, y.astype(np.int32), batch_size=6)]
        with pytest.raises(ModelError, match=f"^{told}") as e:
            process.next(process.initialize(), data)
    assert "\n" not in str(e.value)
    assert isinstance(e.value.__cause__, tf.errors.InvalidArgumentError)
