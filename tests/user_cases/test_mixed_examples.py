"""What depends on the other examples of a batch is refused, whenever and wherever it shows."""

import numpy as np
import pytest
import tensorflow as tf

from simulation.errors import RunError
from tasks.task import ArrayFederatedData, Examples, Task
from tests.simulation.one_round import one_round
from tff_algos.keras_bridge import from_keras
from tff_algos.model import ModelError

pytestmark = pytest.mark.slow

L = tf.keras.layers
LOSS = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class _InTraining(L.Layer):
    """A layer that works on the whole batch in training only."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def call(self, inputs, training=None):
        return self._function(inputs) if training else inputs


def _in_groups(size):
    def of_group(x):
        groups = tf.reshape(x, [-1, size, 3])
        return tf.reshape(groups - tf.reduce_mean(groups, 1, keepdims=True), [-1, 3])

    return of_group


def _neighbour(x):
    """Combines examples 0 and 1, 2 and 3, and so on."""
    number = tf.shape(x)[0]
    return x - 0.5 * tf.gather(x, tf.minimum(tf.range(number) ^ 1, number - 1))


LAYERS = {
    "pairs": _neighbour,
    "statistics": lambda x: (x - tf.reduce_mean(x, 0)) / tf.math.reduce_std(x, 0),
    "largest": lambda x: x / tf.reduce_max(tf.abs(x), 0),
    "all before": lambda x: tf.cumsum(x, 0),
    "neighbour": lambda x: x + tf.roll(x, 1, 0),
    "reversed": lambda x: x[::-1],
    "attention": lambda x: tf.matmul(tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x),
    "size": lambda x: x / tf.cast(tf.shape(x)[0], x.dtype),
    "after a logarithm": lambda x: tf.math.log(x) - tf.reduce_mean(tf.math.log(x), 0),
}


def _model(*before, dtype=tf.float32):
    tf.keras.utils.set_random_seed(1)
    inputs = tf.keras.Input((3,), dtype=dtype)
    x = tf.cast(inputs, tf.float32)
    for layer in before:
        x = layer(x)
    return tf.keras.Model(inputs, L.Dense(5)(x))


@pytest.mark.parametrize("dropout", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_mix_in_training_only_are_refused(name, dtype, dropout):
    before = [_InTraining(LAYERS[name])] + [L.Dropout(0.5)] * dropout
    with pytest.raises(ModelError, match=r"^Model .*, in training, mixes the examples of a batch"):
        from_keras(_model(*before, dtype=dtype), loss=LOSS)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_mix_always_are_refused(name):
    with pytest.raises(ModelError, match=r"^Model '[^']*' mixes the examples of a batch"):
        from_keras(_model(L.Lambda(LAYERS[name])), loss=LOSS)


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("only", [True, False], ids=["in training", "always"])
def test_layers_that_take_groups_of_examples_are_refused(size, only):
    function = _in_groups(size)
    layer = _InTraining(function) if only else L.Lambda(function)
    with pytest.raises(ModelError, match=rf"takes {3 if size == 3 else 4} examples but not") as e:
        from_keras(_model(layer), loss=LOSS)
    assert "\n" not in str(e.value)


def _crossentropy(y, outputs):
    return tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def _balanced(y, outputs):
    """Classes count alike, however many examples of a batch they have."""
    counts = tf.reduce_sum(tf.one_hot(y, 5), 0)
    return _crossentropy(y, outputs) / tf.gather(counts, y)


def _balanced_by_weights(y, outputs):
    counts = tf.reduce_sum(tf.one_hot(y, 5), 0)
    return _crossentropy(y, outputs), 1.0 / tf.gather(counts, y)


def _contrast(y, outputs):
    alike = tf.cast(tf.equal(y[:, tf.newaxis], y), outputs.dtype)
    scores = tf.nn.log_softmax(tf.matmul(outputs, outputs, transpose_b=True))
    return -tf.reduce_sum(alike * scores, 1) / tf.reduce_sum(alike, 1)


def _shared_by_all(y, outputs):
    return _crossentropy(y, outputs) / tf.cast(tf.size(y), tf.float32)


def _rare_class(y, outputs):
    """Only the batch's number of examples of class 4 tells."""
    share = tf.reduce_mean(tf.cast(tf.equal(y, 4), tf.float32))
    return _crossentropy(y, outputs) * (1.0 + share)


def _of_pairs(y, outputs):
    return _neighbour(_crossentropy(y, outputs))


def _of_all_before(y, outputs):
    return tf.cumsum(_crossentropy(y, outputs))


ALWAYS = [_of_pairs, _of_all_before, _balanced, _balanced_by_weights, _contrast, _shared_by_all]


@pytest.mark.parametrize("loss", ALWAYS)
def test_losses_of_other_examples_are_refused(loss):
    with pytest.raises(ModelError, match=r"^The loss mixes the examples of a batch"):
        from_keras(_model(), loss=loss)
    with pytest.raises(ModelError, match=r"^Metric 'm' mixes the examples of a batch"):
        from_keras(_model(), loss=LOSS, metrics={"m": loss})


def _task(make, loss, x=None, labels=(0, 1, 2)):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 3)).astype(np.float32) if x is None else x
    # As bad as can be: every client has one class, and the first none.
    y = np.repeat(labels, 10).astype(np.int32)
    clients = [np.zeros(0, np.int64), *np.split(np.arange(30), 3)]
    data = ArrayFederatedData(x, y, clients)
    return Task(
        name="own",
        train=data,
        test=data,
        central_test=Examples(x, y),
        keras_model_fn=lambda seed: make(),
        loss=loss,
        metrics={"accuracy": tf.keras.metrics.sparse_categorical_accuracy},
        primary_metric="accuracy",
    )


class _OfLargeInputs(L.Layer):
    """A layer in which only inputs above 100 meet, such as made-up ones never are."""

    def call(self, inputs, training=None):
        large = tf.cast(inputs > 100.0, tf.float32)
        return inputs + tf.reduce_sum(large, 0) if training else inputs


LARGE = np.where(np.arange(30)[:, None] % 3 == 0, 101.0, 1.0) * np.ones(3)
OWN = {
    "layer": (_task(lambda: _model(_OfLargeInputs()), LOSS, LARGE.astype(np.float32)), "Model"),
    "loss": (_task(_model, _rare_class, labels=(0, 3, 4)), "The loss"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_run_looks_at_the_task_s_own_examples_before_its_first_round(name, tmp_path):
    task, what = OWN[name]
    from_keras(task.keras_model_fn(0), loss=task.loss)  # Made-up examples do not show it.
    with pytest.raises(RunError, match=f"{what}.* mixes the examples of a batch"):
        one_round(task, tmp_path)
    assert not list(tmp_path.rglob("metrics.csv"))


class _Drawing(L.Layer):
    """A layer of one's own that draws for every example, as docs/tff.md says."""

    def call(self, inputs, training=None, uniform=tf.random.uniform):
        return inputs + uniform(tf.shape(inputs)) if training else inputs


INNOCENT = {
    "dropout": lambda: L.Dropout(0.5),
    "spatial dropout": lambda: tf.keras.Sequential(
        [L.Reshape((3, 1)), L.SpatialDropout1D(0.5), L.Flatten()]
    ),
    "own draws": _Drawing,
    "softmax": lambda: L.Softmax(),
    "logarithm": lambda: L.Lambda(tf.math.log),
    "large": lambda: L.Lambda(lambda x: 1e6 * x),
    "layer normalization": lambda: L.LayerNormalization(),
    "attention within": lambda: tf.keras.Sequential(
        [L.Reshape((3, 1)), L.Lambda(lambda x: L.Attention()([x, x])), L.Flatten()]
    ),
}


@pytest.mark.parametrize("name", INNOCENT)
def test_layers_of_single_examples_are_taken(name):
    from_keras(_model(INNOCENT[name]()), loss=LOSS)


@pytest.mark.quick_cases("mixed_bfloat16")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_rounding_is_not_taken_for_mixing(policy):
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        inputs = tf.keras.Input((64,))
        x = inputs
        for _ in range(8):
            x = L.Dense(512, "relu")(x)
        model = tf.keras.Model(inputs, L.Dense(3)(x))
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    scale = 2.0**10 if policy == "mixed_float16" else None
    from_keras(model, loss=LOSS, loss_scale=scale)


LOSSES = sorted(
    name
    for name, loss in vars(tf.keras.losses).items()
    if isinstance(loss, type) and issubclass(loss, tf.keras.losses.Loss) and name != "Loss"
)


@pytest.mark.parametrize("name", LOSSES)
def test_keras_s_losses_are_taken(name):
    sparse = name.startswith("Sparse")
    examples = np.random.default_rng(0).normal(size=(9, 3)), np.eye(5)[np.arange(9) % 3]
    if sparse:
        examples = examples[0], np.arange(9) % 3
    from_keras(_model(L.Softmax()), loss=getattr(tf.keras.losses, name)(), examples=examples)
