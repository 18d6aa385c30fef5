import numpy as np
import tensorflow as tf

from tasks.layers import sequences, vectorizable
from tasks.models import losses, models
from tff_algos import keras_bridge
from tff_algos.client_data import Batch

_SPEC = tf.TensorSpec([None, 10], tf.int32)


def _rows(values, places):
    return sequences.Rows(tf.constant(values), tf.constant(places, tf.int32))


def test_rows_go_to_their_places_and_are_carried():
    rows = _rows(np.arange(6, dtype=np.float32).reshape(3, 2), [4, 0, 1])
    spread = sequences.spread(rows, tf.zeros([2, 3, 7]))
    expected = [[[2, 3], [4, 5], [0, 0]], [[0, 0], [0, 1], [0, 0]]]
    np.testing.assert_array_equal(spread, expected)
    assert sequences.rows_of(spread) is rows
    np.testing.assert_array_equal(sequences.take(spread, rows.places), rows.values)
    assert sequences.rows_of(spread + 1) is None


def test_a_dense_layer_computes_rows_alone():
    rng = np.random.default_rng(0)
    layer, keras = (c(4, activation="tanh") for c in (sequences.Dense, tf.keras.layers.Dense))
    inputs = sequences.spread(
        _rows(rng.normal(size=(3, 5)).astype(np.float32), [0, 3, 1]), tf.zeros([2, 3])
    )
    for one in (layer, keras):
        one.build((None, None, 5))
        one.set_weights([rng.normal(size=s).astype(np.float32) for s in ((5, 4), (4,))])
    keras.set_weights(layer.get_weights())
    outputs, wanted = layer(inputs), keras(inputs)
    np.testing.assert_array_equal(sequences.rows_of(outputs).places, [0, 3, 1])
    mask = np.array([[1, 1, 0], [1, 0, 0]], bool)
    np.testing.assert_allclose(outputs[mask], wanted[mask], rtol=1e-6)
    assert not outputs.numpy()[~mask].any() and wanted.numpy()[~mask].any()
    np.testing.assert_array_equal(layer(inputs + 0), keras(inputs + 0))


def test_losses_and_accuracies_of_rows_are_those_of_all_positions():
    rng = np.random.default_rng(0)
    for classes in (12, 1200):
        logits = rng.normal(size=(5, classes)).astype(np.float32)
        places = [0, 4, 5, 1, 2]
        carrying = sequences.spread(_rows(logits, places), tf.zeros([2, 4]))
        y = rng.integers(0, classes, (2, 4)).astype(np.int32)
        y.flat[places[1]] = logits[1].argmax()
        for fn in (losses.sparse_softmax_cross_entropy, losses.sparse_accuracy):
            wanted = fn(y, tf.identity(carrying)).numpy()
            wanted.flat[[3, 6, 7]] = 0
            assert wanted.any()
            np.testing.assert_allclose(fn(y, carrying), wanted, rtol=1e-6)


def test_a_model_of_words_trains_without_padding_as_with_it(monkeypatch):
    """Forward pass, metrics and gradients, of sentences of which one has no word."""
    rng = np.random.default_rng(0)
    keras_model = models.word_lstm(0, vocab_size=30, length=10, embedding_size=6, units=7)
    model = keras_bridge.from_keras(
        keras_model,
        loss=losses.sequence_cross_entropy,
        metrics={"accuracy": losses.masked_accuracy(0)},
        y_spec=_SPEC,
    )
    tokens = rng.integers(1, 30, (5, 11)) * (np.arange(11) < np.array([[11], [4], [0], [7], [1]]))
    batch = Batch(
        tf.constant(tokens[:, :-1], tf.int32),
        tf.constant(tokens[:, 1:], tf.int32),
        tf.constant([1.0, 1, 1, 1, 0]),
    )
    weights = tuple(tf.constant(w * 5) for w in model.initial_weights)
    taken = []
    of_rows = losses._of_rows
    monkeypatch.setattr(
        losses, "_of_rows", lambda fn, *args: (taken.append(fn), of_rows(fn, *args))[1]
    )

    def step(weights, batch):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            forward = model.forward(weights, batch, True, tf.zeros([2], tf.int32))
        gradient = tape.gradient(forward.objective, weights)
        return forward, tuple(map(tf.convert_to_tensor, gradient))

    found = tf.function(step, autograph=False)(weights, batch)
    # The loss once more, with its gradient guarded where nothing counts.
    loss = losses.sparse_softmax_cross_entropy
    assert taken == [loss, loss, losses.sparse_accuracy]
    with vectorizable.only():
        wanted = tf.function(step, autograph=False)(weights, batch)
    assert len(taken) == 3
    pairs = zip(tf.nest.flatten(found), tf.nest.flatten(wanted), strict=True)
    for a, b in pairs:
        assert a.shape == b.shape and np.abs(b).max() > 1e-3
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
