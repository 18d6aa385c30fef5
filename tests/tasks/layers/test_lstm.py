import functools

import numpy as np
import pytest
import tensorflow as tf

from tasks.layers import lstm, sequences, vectorizable
from tasks.layers.lstm import LSTM
from tff_algos import keras_bridge
from tff_algos.client_data import Batch

_BATCH, _TIME, _INPUTS, _UNITS = 3, 7, 5, 4
_LENGTHS = (7, 3, 1)
_MASK = np.arange(_TIME) < np.array(_LENGTHS)[:, np.newaxis]


def _x(seed=0, dtype=np.float32, time=_TIME):
    return np.random.default_rng(seed).normal(size=(_BATCH, time, _INPUTS)).astype(dtype)


def _weights(seed=1, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = [(_INPUTS, 4 * _UNITS), (_UNITS, 4 * _UNITS), (4 * _UNITS,)]
    return [rng.normal(0, 0.7, shape).astype(dtype) for shape in shapes]


def _layer(cls, weights=None, **kwargs):
    layer = cls(_UNITS, **kwargs)
    layer.build((None, None, _INPUTS))
    if weights is not None:
        layer.set_weights(weights)
    return layer


def _value_and_gradients(layer, x, mask):
    """Returns the real outputs, others zero, and gradients of a scalar that each one enters."""
    x = tf.convert_to_tensor(x)
    mask = None if mask is None else tf.convert_to_tensor(mask)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, mask=mask)
        if mask is not None and layer.return_sequences:
            outputs = tf.where(mask[..., tf.newaxis], outputs, 0.0)
        directions = tf.reshape(tf.range(tf.size(outputs), dtype=tf.float32), tf.shape(outputs))
        scalar = tf.reduce_sum(tf.sin(directions) * outputs + outputs**2)
    return outputs, *tape.gradient(scalar, [x, *layer.trainable_variables])


@pytest.mark.quick_cases("eager-*", "graph-last-padded")
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("return_sequences", [False, True], ids=["last", "sequences"])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "graph"])
def test_values_and_gradients_are_kerass(masked, return_sequences, traced):
    mask = _MASK if masked else None
    run = functools.partial(_value_and_gradients, x=_x(), mask=mask)
    layers = [
        _layer(c, _weights(), return_sequences=return_sequences)
        for c in (LSTM, tf.keras.layers.LSTM)
    ]
    ours, keras = (tf.function(run)(layer) if traced else run(layer) for layer in layers)
    assert len(ours) == 5
    for a, b in zip(ours, keras, strict=True):
        assert a.shape == b.shape and np.abs(b).max() > 0.01
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_gradients_are_finite_differences():
    x, weights = _x(dtype=np.float64), _weights(dtype=np.float64)
    layer = _layer(LSTM, weights, return_sequences=True, dtype="float64")
    directions = np.random.default_rng(2).normal(size=(_BATCH, _TIME, _UNITS))

    def scalar(x):
        return tf.reduce_sum(directions * layer(x))

    variables = layer.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch(inputs := tf.constant(x))
        value = scalar(inputs)
    gradients = tape.gradient(value, [inputs, *variables])
    assert gradients[0].dtype == tf.float64
    rng = np.random.default_rng(3)
    for i, (gradient, point) in enumerate(zip(gradients, [x, *weights], strict=True)):
        for _ in range(3):
            step = rng.normal(size=point.shape) * 1e-5
            values = []
            for sign in (1, -1):
                moved = point + sign * step
                if i:
                    variables[i - 1].assign(moved)
                values.append(scalar(tf.constant(x if i else moved)).numpy())
            if i:
                variables[i - 1].assign(point)
            expected = (values[0] - values[1]) / 2
            np.testing.assert_allclose(np.sum(gradient * step), expected, rtol=1e-7, atol=1e-12)


def test_the_length_may_be_unknown_to_the_graph():
    layers = [_layer(c, _weights(), return_sequences=True) for c in (LSTM, tf.keras.layers.LSTM)]
    spec = tf.TensorSpec([None, None, _INPUTS])
    ours, keras = (
        tf.function(functools.partial(_value_and_gradients, layer, mask=None), [spec])
        for layer in layers
    )
    for time in (1, 4):
        for a, b in zip(ours(_x(time=time)), keras(_x(time=time)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def _client(cls):
    """Returns `weights, batches of x and y -> weights` after an SGD step on each batch."""
    inputs = tf.keras.Input((_TIME,), dtype=tf.int32)
    x = tf.keras.layers.Embedding(6, _INPUTS, mask_zero=True)(inputs)
    x = tf.keras.layers.Dense(6)(cls(_UNITS, return_sequences=True)(x))
    keras_model = tf.keras.Model(inputs, x)

    def loss(y, logits):
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        return values, tf.cast(y > 0, tf.float32)

    model = keras_bridge.from_keras(
        keras_model, loss=loss, y_spec=tf.TensorSpec([None, _TIME], tf.int32)
    )

    def train(weights, tokens):
        def body(i, weights):
            batch = Batch(tokens[i], tokens[i], tf.ones([_BATCH]))
            with tf.GradientTape() as tape:
                tape.watch(weights)
                objective = model.forward(weights, batch, True, tf.zeros([2], tf.int32)).objective
            gradients = tape.gradient(objective, weights)
            return i + 1, tuple(
                w - 0.5 * tf.convert_to_tensor(g) for w, g in zip(weights, gradients, strict=True)
            )

        return tf.while_loop(lambda i, _: i < tf.shape(tokens)[0], body, (0, weights))[1]

    rng = np.random.default_rng(4)
    weights = [rng.normal(0, 0.5, w.shape).astype(np.float32) for w in model.initial_weights]
    return tuple(map(tf.constant, weights)), train


def _tokens(num_clients, steps=3):
    tokens = np.random.default_rng(0).integers(1, 6, (num_clients, steps, _BATCH, _TIME))
    return tf.constant(np.where(_MASK, tokens, 0), tf.int32)


@pytest.mark.long
def test_a_client_trains_as_with_keras():
    initial, ours = _client(LSTM)
    _, keras = _client(tf.keras.layers.LSTM)
    tokens = _tokens(1)[0]
    a, b = (tf.function(train, autograph=False)(initial, tokens) for train in (ours, keras))
    for w, mine, theirs in zip(initial, a, b, strict=True):
        assert np.abs(theirs - w).max() > 1e-3
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_cohort_vectorises_without_a_loop_over_clients():
    initial, train = _client(LSTM)
    rng = np.random.default_rng(1)
    weights = tuple(
        tf.constant(np.stack([w + 0.1 * rng.normal(size=w.shape) for _ in range(4)]), tf.float32)
        for w in initial
    )
    tokens = _tokens(4)

    @tf.function(autograph=False)
    def cohort(weights, tokens):
        with vectorizable.only():
            return tf.vectorized_map(
                lambda one: train(*one), (weights, tokens), fallback_to_while_loop=False
            )

    together = cohort(weights, tokens)
    alone = tf.function(train, autograph=False)
    for k in range(4):
        for a, b in zip(together, alone(tuple(w[k] for w in weights), tokens[k]), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("hole", [0, 3])
def test_padding_that_is_not_at_the_end_shows(hole):
    mask = np.ones((_BATCH, _TIME), bool)
    layer = _layer(LSTM, _weights(), return_sequences=True)
    assert np.isfinite(layer(_x(), mask=tf.constant(mask))).all()
    mask[1, hole] = False
    assert np.isnan(layer(_x(), mask=tf.constant(mask))[:, :-1]).all()


@pytest.mark.quick_cases("(10, 3, 1)-*-five*", "(0, 0, 0)-sequences-a step*")
@pytest.mark.parametrize("large", [1, 512], ids=["a step a turn", "five steps a turn"])
@pytest.mark.parametrize("return_sequences", [False, True], ids=["last", "sequences"])
@pytest.mark.parametrize("lengths", [(10, 3, 1), (2, 0, 6), (0, 0, 0), (10, 10, 10)], ids=str)
def test_padding_is_left_out_and_nothing_else_changes(
    lengths, return_sequences, large, monkeypatch
):
    monkeypatch.setattr(lstm, "_LARGE", large)
    # The first position of a sequence is computed even of one that has none.
    mask = np.arange(10) < np.maximum(lengths, 1)[:, np.newaxis]
    given = tf.constant(np.arange(10) < np.array(lengths)[:, np.newaxis])
    layer = _layer(LSTM, _weights(), return_sequences=return_sequences)

    @tf.function(autograph=False)
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, mask=given)
            real = tf.where(mask[..., tf.newaxis], outputs, 0.0) if return_sequences else outputs
            scalar = tf.reduce_sum(tf.sin(tf.range(_UNITS, dtype=tf.float32)) * real + real**2)
        rows = sequences.rows_of(outputs)
        return outputs, rows, tape.gradient(scalar, [x, *layer.trainable_variables])

    outputs, rows, gradients = run(_x(time=10))
    with vectorizable.only():
        wanted, no_rows, wanted_gradients = tf.function(run.python_function)(_x(time=10))
    assert no_rows is None
    for a, b in zip(gradients, wanted_gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if not return_sequences:
        np.testing.assert_allclose(outputs, wanted, rtol=1e-6)
        return
    np.testing.assert_allclose(outputs[mask], wanted[mask], rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(
        tf.reshape(outputs, [-1, _UNITS]).numpy()[rows.places], rows.values
    )
    computed = np.zeros(mask.size, bool)
    computed[rows.places] = True
    assert len(rows.places) == computed.sum()
    assert computed.reshape(mask.shape)[mask].all()
    if large == 1:
        assert computed.sum() == mask.sum()
    else:
        assert computed.sum() == (5 * -(-mask.sum(1) // 5)).sum()
    assert not outputs.numpy().reshape(-1, _UNITS)[~computed].any()


@pytest.mark.quick_cases("last")
@pytest.mark.parametrize("return_sequences", [False, True], ids=["last", "sequences"])
def test_one_unit_is_kerass(return_sequences):
    ours, keras = (c(1, return_sequences=return_sequences) for c in (LSTM, tf.keras.layers.LSTM))
    for layer in (ours, keras):
        layer.build((None, None, _INPUTS))
        layer.set_weights(ours.get_weights())

    @tf.function(autograph=False)
    def run(x, mask):
        return [_value_and_gradients(layer, x, mask) for layer in (ours, keras)]

    for a, b in zip(*run(_x(), _MASK), strict=True):
        assert a.shape == b.shape and np.any(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_initial_weights_are_kerass():
    for kwargs in ({}, {"unit_forget_bias": False, "bias_initializer": "ones"}):
        made = []
        for cls in (LSTM, tf.keras.layers.LSTM):
            initializers = {
                "kernel_initializer": tf.keras.initializers.HeNormal(seed=1),
                "recurrent_initializer": tf.keras.initializers.Orthogonal(seed=2),
            }
            made.append(_layer(cls, **initializers, **kwargs).get_weights())
        for a, b in zip(*made, strict=True):
            np.testing.assert_array_equal(a, b)
        forget = made[0][2][_UNITS : 2 * _UNITS]
        np.testing.assert_array_equal(forget, 1)
        assert made[0][2].sum() == (4 * _UNITS if kwargs else _UNITS)


def test_a_layer_made_from_its_configuration_is_the_same():
    layer = LSTM(_UNITS, return_sequences=True, kernel_initializer="he_normal", name="first")
    again = LSTM.from_config(layer.get_config())
    assert type(again) is LSTM and again.get_config() == layer.get_config()


@pytest.mark.parametrize(
    "argument",
    [{"dropout": 0.5}, {"activation": "relu"}, {"stateful": True}, {"go_backwards": True}],
    ids=lambda argument: next(iter(argument)),
)
def test_what_it_does_not_do_is_refused(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        LSTM(_UNITS, **argument)


def test_an_initial_state_is_refused():
    state = [tf.zeros([_BATCH, _UNITS])] * 2
    with pytest.raises(ValueError, match="initial_state"):
        _layer(LSTM)(_x(), initial_state=state)


def test_with_a_gpu_kerass_own_code_runs_unless_told_not_to(monkeypatch):
    called = []
    keras_call = tf.keras.layers.LSTM.call

    def spy(self, *args, **kwargs):
        called.append(self)
        return keras_call(self, *args, **kwargs)

    monkeypatch.setattr(tf.keras.layers.LSTM, "call", spy)
    layer = _layer(LSTM, _weights())
    on_cpu = layer(_x())
    assert not called
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    np.testing.assert_allclose(layer(_x()), on_cpu, rtol=1e-5, atol=1e-6)
    assert called == [layer]
    with vectorizable.only():
        layer(_x())
    assert called == [layer]
