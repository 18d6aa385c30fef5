import numpy as np
import pytest
import tensorflow as tf

from tasks.layers import vectorizable
from tasks.models import losses


def _batch(scale=1.0):
    rng = np.random.default_rng(0)
    return rng.integers(0, 10, 40), (rng.normal(size=(40, 10)) * scale).astype(np.float32)


@pytest.mark.parametrize("label_dtype", [np.int32, np.int64])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_cross_entropy_is_numpys(label_dtype, scale):
    labels, logits = _batch(scale)
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    expected = top + np.log(np.exp(wide - top[:, None]).sum(axis=1)) - wide[range(40), labels]
    loss = losses.sparse_softmax_cross_entropy(labels.astype(label_dtype), logits)
    assert loss.shape == (40,) and loss.dtype == tf.float32
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(6,), (3, 4)])
def test_cross_entropy_of_many_classes_is_numpys_and_so_is_its_gradient(shape):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(*shape, 1200)).astype(np.float32)
    y = rng.integers(0, 1200, shape).astype(np.int32)
    # The probability of a class that is as far off as that is rounded to zero.
    y.flat[0] = 7
    logits[(0,) * len(shape)][7] = -300
    factors = rng.normal(size=shape).astype(np.float32)

    @tf.function(autograph=False)
    def run(y, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            values = losses.sparse_softmax_cross_entropy(y, logits)
            total = tf.reduce_sum(values * factors)
        return values, tape.gradient(total, logits)

    values, gradient = run(y, tf.constant(logits))
    exact = logits.astype(np.float64)
    log_sum = np.log(np.exp(exact).sum(-1))
    np.testing.assert_allclose(
        values, log_sum - np.take_along_axis(exact, y[..., None], -1)[..., 0], rtol=1e-6
    )
    wanted = np.exp(exact - log_sum[..., None]) - np.eye(1200)[y]
    np.testing.assert_allclose(gradient, factors[..., None] * wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("size", [1e5, 1e30])
def test_cross_entropy_of_many_classes_keeps_its_digits_next_to_large_logits(size):
    logits = np.full([2, 1200], size, np.float32)
    logits[1, :600] *= -1
    values = losses.sparse_softmax_cross_entropy(np.array([7, 700]), logits)
    np.testing.assert_allclose(values, np.log([1200, 600]), rtol=1e-6)
    values = losses.sparse_softmax_cross_entropy(np.array([7, 7]), 10 * logits)
    np.testing.assert_allclose(values, [np.log(1200), 20 * size + np.log(600)], rtol=1e-6)


def test_cross_entropy_of_many_classes_is_not_finite_where_tensorflows_is_not():
    logits = np.random.default_rng(0).normal(size=(5, 1200)).astype(np.float32)
    logits[0, 3], logits[1, 3], logits[2, 3], logits[3] = np.nan, np.inf, -np.inf, -np.inf
    for label in (3, 7):
        y = np.full(5, label)
        got = losses.sparse_softmax_cross_entropy(y, logits)
        wanted = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
        assert np.isfinite(wanted).sum() == (1 if label == 3 else 2)


def test_cross_entropy_of_many_classes_is_tensorflows_over_several_clients():
    def run(y, logits):
        return losses.sparse_softmax_cross_entropy(y, logits)

    specs = tf.TensorSpec([4], tf.int32), tf.TensorSpec([4, 1000])

    def operations(function):
        graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
        return {op.type for op in graph.get_operations()}

    assert "SparseSoftmaxCrossEntropyWithLogits" not in operations(run)
    with vectorizable.only():
        assert "SparseSoftmaxCrossEntropyWithLogits" in operations(run)


@pytest.mark.parametrize("label_dtype", [np.int32, np.int64])
def test_accuracy_is_numpys(label_dtype):
    labels, logits = _batch()
    hits = losses.sparse_accuracy(labels.astype(label_dtype), logits)
    assert hits.shape == (40,) and hits.dtype == tf.float32
    np.testing.assert_array_equal(hits, logits.argmax(axis=1) == labels)
    assert 0 < hits.numpy().sum() < 40


def test_accuracy_of_a_class_is_that_of_its_examples():
    labels, logits = _batch()
    for label in range(10):
        hits, weights = (v.numpy() for v in losses.accuracy_of_class(label)(labels, logits))
        own = labels == label
        assert hits.shape == weights.shape == (40,) and hits.dtype == np.float32
        np.testing.assert_array_equal(weights, own)
        np.testing.assert_array_equal(hits[weights > 0], logits[own].argmax(axis=1) == labels[own])


def test_of_equal_logits_the_first_counts():
    np.testing.assert_array_equal(
        losses.sparse_accuracy(np.array([0, 1]), np.zeros((2, 3), np.float32)), [1, 0]
    )


def test_losses_and_their_gradients_vectorise():
    labels, logits = _batch()

    def one_client(data):
        y, z = data
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = tf.reduce_sum(losses.sparse_softmax_cross_entropy(y, z))
        return loss, tape.gradient(loss, z), losses.sparse_accuracy(y, z)

    stacked = (
        tf.constant(labels.reshape(4, 10), tf.int32),
        tf.constant(logits.reshape(4, 10, 10)),
    )
    together = tf.vectorized_map(one_client, stacked, fallback_to_while_loop=False)
    for k in range(4):
        for a, b in zip(together, one_client([s[k] for s in stacked]), strict=True):
            np.testing.assert_allclose(a[k], b, rtol=1e-5, atol=1e-6)


def test_masked_accuracies_are_numpys():
    """Padding 0, out of vocabulary 4, end of sentence 5, as the word tasks leave them out."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 7, (30, 6))
    # Half of the places are hit, padding always, so that what is left out matters.
    logits = rng.normal(size=(30, 6, 7)).astype(np.float32)
    sure = (rng.random((30, 6)) < 0.4) | (tokens == 0)
    logits[sure] += 9 * np.eye(7, dtype=np.float32)[tokens][sure]
    for left_out in ((0,), (0, 4), (0, 4, 5)):
        hits, counts = losses.masked_accuracy(*left_out)(tokens, logits)
        counted = [
            logits[i, j].argmax() == tokens[i, j]
            for i in range(30)
            for j in range(6)
            if tokens[i, j] not in left_out
        ]
        assert np.sum(counts) == len(counted)
        assert np.sum(hits * counts) / np.sum(counts) == pytest.approx(np.mean(counted))


def test_recall_and_squared_error_are_numpys():
    rng = np.random.default_rng(2)
    tags = (rng.random((25, 12)) < 0.3).astype(np.float32)
    scores = rng.normal(size=(25, 12)).astype(np.float32)
    hits, counts = losses.recall_at(5)(tf.constant(tags), tf.constant(scores))
    top = np.argsort(-scores, axis=1)[:, :5]
    found = sum(tags[i, j] for i in range(25) for j in top[i])
    assert np.sum(hits * counts) / np.sum(counts) == pytest.approx(found / tags.sum())
    mse = [np.mean((t.astype(np.float64) - s) ** 2) for t, s in zip(tags, scores, strict=True)]
    np.testing.assert_allclose(losses.squared_error(tags, scores), mse, rtol=1e-5)


def test_recall_counts_no_label_twice():
    scores = tf.constant([[1.0, -np.inf, -np.inf, -np.inf]])
    assert np.max(losses.recall_at(3)(tf.ones([1, 4]), scores)[0]) == 1


@pytest.mark.parametrize("error", [losses.squared_error, losses.absolute_error])
def test_errors_refuse_targets_of_another_shape(error):
    with pytest.raises(ValueError, match="incompatible"):
        error(np.zeros(3, np.float32), np.zeros((3, 1), np.float32))
