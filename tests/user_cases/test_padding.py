"""Padding reaches no number: models and losses that zeros would break, on odd batches."""

import contextlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from simulation.engine import batching as vectorized
from simulation.measures import evaluation
from tasks import layers
from tasks.task import ArrayFederatedData
from tests.tff_algos import shared
from tff_algos.keras_bridge import from_keras

pytestmark = pytest.mark.slow

L = tf.keras.layers
# With minibatches of 4, the last ones have 3, 2 and 1 examples; one client has none.
SIZES = (7, 2, 0, 5)
RATE = 0.05
_RNG = np.random.default_rng(0)
COUNTS = _RNG.integers(1, 9, (14, 4))
TOKENS = _RNG.integers(1, 9, (14, 5)) * (np.arange(5) < _RNG.integers(1, 6, (14, 1)))
CLASSES = _RNG.integers(0, 3, 14).astype(np.int32)
POSITIVE = _RNG.uniform(0.5, 2.0, (14, 3)).astype(np.float32)
SHARES = POSITIVE / POSITIVE.sum(-1, keepdims=True)
OF_CLASSES = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Case(NamedTuple):
    """A model, and what it learns."""

    make: Any
    x: np.ndarray
    y: np.ndarray = CLASSES
    loss: Any = OF_CLASSES


def _of_numbers(function, dtype):
    """Returns a case whose model computes something of whole or other numbers first."""

    def make():
        inputs = tf.keras.Input((4,), dtype=dtype)
        return inputs, L.Dense(3)(L.Lambda(lambda x: function(tf.cast(x, tf.float32)))(inputs))

    return Case(make, COUNTS.astype(dtype))


def _of_tokens(*made):
    """Returns a case whose model embeds tokens, of which 0 is masked."""

    def make():
        inputs = tf.keras.Input((5,), dtype=tf.int32)
        x = L.Embedding(9, 4, mask_zero=True)(inputs)
        for layer in made:
            x = layer()(x)
        return inputs, L.Dense(3)(x)

    return Case(make, TOKENS.astype(np.int32))


class _MeanOfTokens(L.Layer):
    supports_masking = True

    def call(self, inputs, mask=None):
        mask = tf.cast(mask, inputs.dtype)[..., tf.newaxis]
        return tf.reduce_sum(mask * inputs, 1) / tf.reduce_sum(mask, 1)


def _of_targets(loss, y, activation="softplus"):
    def make():
        inputs = tf.keras.Input((4,))
        return inputs, L.Dense(y.shape[-1] if y.ndim > 1 else 1, activation)(inputs)

    return Case(make, COUNTS.astype(np.float32), y, loss)


def _logarithm(y, outputs):
    return tf.reduce_mean(tf.square(tf.math.log(tf.cast(y, tf.float32)) - outputs), -1)


def _inverse(y, outputs):
    return tf.reduce_mean(tf.square(1.0 / tf.cast(y, tf.float32) - outputs), -1)


def _of_shares(y, outputs):
    return tf.reduce_sum(tf.square(y / tf.reduce_sum(y, -1, keepdims=True) - outputs), -1)


def _root(y, outputs):
    """Its slope is infinite where outputs and targets are alike."""
    return tf.sqrt(tf.reduce_sum(tf.square(y - outputs), -1))


K = tf.keras.losses
NUMBERS = {"log": tf.math.log, "shares": lambda x: x / tf.reduce_sum(x, -1, keepdims=True)}
CASES = {
    **{
        f"{name} of {dtype}": _of_numbers(function, dtype)
        for name, function in NUMBERS.items()
        for dtype in ("int32", "int64", "int8", "uint8", "float32")
    },
    "inverse of int32": _of_numbers(lambda x: 1.0 / x, "int32"),
    "norm of int32": _of_numbers(lambda x: x / tf.norm(x, axis=-1, keepdims=True), "int32"),
    "mean of tokens": _of_tokens(_MeanOfTokens),
    "pooled tokens": _of_tokens(L.GlobalAveragePooling1D),
    "LSTM": _of_tokens(lambda: L.LSTM(3)),
    "GRU pooled": _of_tokens(lambda: L.GRU(3, return_sequences=True), L.GlobalAveragePooling1D),
    "our LSTM": _of_tokens(lambda: layers.lstm.LSTM(3)),
    "our LSTM pooled": _of_tokens(
        lambda: layers.lstm.LSTM(3, return_sequences=True), L.GlobalAveragePooling1D
    ),
    "log of targets": _of_targets(_logarithm, POSITIVE),
    "log of whole targets": _of_targets(_logarithm, COUNTS[:, :3].astype(np.int32)),
    "inverse of targets": _of_targets(_inverse, COUNTS[:, :3].astype(np.int64)),
    "shares of targets": _of_targets(_of_shares, POSITIVE, "softmax"),
    "root": _of_targets(_root, POSITIVE),
    "KLDivergence": _of_targets(K.KLDivergence(), SHARES, "softmax"),
    "Poisson": _of_targets(K.Poisson(), POSITIVE),
    "CosineSimilarity": _of_targets(K.CosineSimilarity(), POSITIVE),
    "MeanAbsolutePercentageError": _of_targets(K.MeanAbsolutePercentageError(), POSITIVE),
    "MeanSquaredLogarithmicError": _of_targets(K.MeanSquaredLogarithmicError(), POSITIVE),
    "LogCosh": _of_targets(K.LogCosh(), POSITIVE),
}
WAYS = (*runtimes.RUNTIMES, "per_client-1", "per_client-2", "vectorized-2")


def keras_model(case):
    tf.keras.utils.set_random_seed(1)
    return tf.keras.Model(*case.make())


def model_of(case, model):
    y = case.y
    spec = tf.TensorSpec([None, *y.shape[1:]], y.dtype)
    return from_keras(model, loss=case.loss, y_spec=spec)


def parts(values):
    return np.split(values, np.cumsum(SIZES)[:-1])


def clients_of(case):
    return [
        tff_algos.batch_client(x, y, batch_size=4, shuffle=False)
        for x, y in zip(parts(case.x), parts(case.y), strict=True)
    ]


def of_keras(case, model):
    """Returns the mean over clients of what Keras trains on their batches."""
    model.compile(tf.keras.optimizers.SGD(RATE), case.loss)
    before, total = model.get_weights(), 0
    for x, y in zip(parts(case.x), parts(case.y), strict=True):
        if len(y):
            model.set_weights(before)
            model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
            total += len(y) * np.array([w.astype(np.float64) for w in model.get_weights()], object)
    model.set_weights(before)
    return total / sum(SIZES)


def assert_close(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@contextlib.contextmanager
def bound(process, way):
    """Yields a process as a runtime runs it, in chunks of so many clients where a number is."""
    runtime, _, size = way.partition("-")
    with shared.installed(runtime):
        yield runtimes.bind(process, int(size) if size else None)


@pytest.mark.quick_cases(
    "log of int32-*",
    "mean of tokens-tff",
    "our LSTM pooled-tff",
    "pooled tokens-vectorized",
    "log of whole targets-tff",
    "KLDivergence-tff",
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_keras_on_the_same_batches(name, way):
    case = CASES[name]
    model = keras_model(case)
    process = tff_algos.build("fedavg", model_of(case, model), client_learning_rate=RATE)
    try:
        with bound(process, way) as whole:
            output = whole.next(whole.initialize(), clients_of(case))
    except vectorized.NotVectorizable:
        # Keras's recurrent layers, which make lists of tensors.
        assert name in ("LSTM", "GRU pooled")
        return
    assert float(output.metrics["clients_dropped"]) == 0
    assert_close(output.state.weights, of_keras(case, model))


@pytest.mark.quick_cases("log of int32", "shares of targets")
@pytest.mark.parametrize("name", CASES)
def test_data_sets_train_as_in_keras(name):
    """Given to `next` as they are, and in a process that is typed to take them."""
    case = CASES[name]
    model = keras_model(case)
    process = tff_algos.build("fedavg", model_of(case, model), client_learning_rate=RATE)
    datasets = [
        tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
        for x, y in zip(parts(case.x), parts(case.y), strict=True)
        if len(y)
    ]
    nobody = datasets[0].take(0)
    want = of_keras(case, model)
    with shared.installed("tff"):
        for taken, given in (
            (process, datasets),
            (tff_algos.from_datasets(process, 4), [*datasets, nobody]),
        ):
            output = taken.next(taken.initialize(), given)
            assert float(output.metrics["clients_dropped"]) == 0
            assert_close(output.state.weights, want)


@pytest.mark.quick_cases("log of int32", "our LSTM pooled", "KLDivergence")
@pytest.mark.parametrize("name", CASES)
def test_losses_of_clients_are_those_of_keras(name):
    """Together in chunks that the examples do not fill, and client by client."""
    case = CASES[name]
    model = keras_model(case)
    model.compile(loss=case.loss)
    ours = model_of(case, model)
    want = [
        model.evaluate(x, y, verbose=0) if len(y) else np.nan
        for x, y in zip(parts(case.x), parts(case.y), strict=True)
    ]
    data = ArrayFederatedData(case.x, case.y, parts(np.arange(len(case.y))))
    evaluator = evaluation.Evaluator(ours, chunk=8)
    together = evaluator(ours.initial_weights, evaluator.prepare(data))
    alone = evaluation.PersonalEvaluator(ours)(ours.initial_weights, lambda k: None, data)
    for found in (together, alone):
        np.testing.assert_allclose(found.by_client()["loss"], want, rtol=1e-5)


@pytest.mark.parametrize("name", ["log of int32", "log of float32", "log of whole targets"])
def test_all_places_of_stacked_clients_hold_examples(name):
    case = CASES[name]
    clients = clients_of(case)
    # A full batch of one client beside small ones of others, and one without any step.
    clients.append(tff_algos.batch_client(case.x, case.y, batch_size=9, epochs=2))
    (cohort,) = [vectorized._stack(clients)]
    assert cohort.mask.shape == (5, 4, 9)
    np.testing.assert_array_equal(np.sum(cohort.mask, (1, 2)), [*SIZES, 28])
    for values, examples in ((cohort.x, case.x), (cohort.y, case.y)):
        known = {row.tobytes() for row in examples}
        assert {row.tobytes() for row in values.numpy().reshape(-1, *examples.shape[1:])} <= known


def _weighted(y, outputs):
    """What is not known of a target is no number, and has no weight."""
    known = tf.math.is_finite(y)
    return tf.square(tf.math.log(y) - outputs), tf.cast(known, tf.float32)


def _weighted_by_example(y, outputs):
    values, weights = _weighted(y, outputs)
    return tf.reduce_mean(values, -1), tf.reduce_min(weights, -1)


def _spelt_out(y, outputs):
    """Its values are finite where nothing counts; their slopes are not."""
    known = tf.math.is_finite(y)
    away = tf.where(known, tf.math.log(y) - outputs, 0.0 * outputs)
    return tf.sqrt(tf.abs(away)), tf.cast(known, tf.float32)


WEIGHTED = {
    "by position": (_weighted, lambda y: np.isfinite(y)),
    "by example": (_weighted_by_example, lambda y: np.isfinite(y).all(-1, keepdims=True)),
    "spelt out": (_spelt_out, lambda y: np.isfinite(y)),
}


@pytest.mark.quick_cases("by example-tff", "by position-vectorized", "spelt out-tff")
@pytest.mark.parametrize("way", ["tff", "vectorized"])
@pytest.mark.parametrize("name", WEIGHTED)
def test_values_and_slopes_without_weight_reach_no_sum(name, way):
    loss, weights_of = WEIGHTED[name]
    y = POSITIVE.copy()
    y[[0, 3, 8]], y[5, 1], y[12, 2] = np.nan, np.nan, np.nan
    case = Case(_of_targets(None, y).make, COUNTS.astype(np.float32), y, loss)
    model = keras_model(case)
    ours = model_of(case, model)
    process = tff_algos.build("fedavg", ours, client_learning_rate=RATE)
    with bound(process, way) as whole:
        output = whole.next(whole.initialize(), clients_of(case))
    assert float(output.metrics["clients_dropped"]) == 0

    before, total = model.get_weights(), 0
    for x, targets in zip(parts(case.x), parts(y), strict=True):
        weights = [tf.Variable(w) for w in before]
        for start in range(0, len(x), 4):
            rows = slice(start, start + 4)
            count = np.broadcast_to(weights_of(targets[rows]), targets[rows].shape)
            filled = np.where(count, targets[rows], 1.0).astype(np.float32)
            with tf.GradientTape() as tape:
                outputs = tf.nn.softplus(x[rows] @ weights[0] + weights[1])
                away = tf.math.log(filled) - outputs
                values = tf.sqrt(tf.abs(away)) if loss is _spelt_out else tf.square(away)
                mean = tf.reduce_sum(tf.where(count, values, 0.0)) / max(count.sum(), 1)
            for w, g in zip(weights, tape.gradient(mean, weights), strict=True):
                w.assign_sub(RATE * g)
        total += len(x) * np.array([w.numpy().astype(np.float64) for w in weights], object)
    assert_close(output.state.weights, total / sum(SIZES))


def test_batches_of_unlike_shapes_are_refused():
    def generate():
        yield np.ones((2, 3), np.float32), np.zeros(2, np.int32)
        yield np.ones((2, 1), np.float32), np.zeros(2, np.int32)

    specs = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=specs)
    with pytest.raises(ValueError, match=r"x of different shapes: \[1\] and \[3\]; pad"):
        tff_algos.from_dataset(dataset)
