"""Losses and metrics, element by element: `(y_true [B], y_pred [B, ...]) -> values [B]`.

A function may also return `(values, weights)`, both `[B, ...]`: for sequences, whose padding has
weight 0, and for metrics that are ratios. Models return logits. Every function is plain TensorFlow,
so it traces in a `tf.function` and vectorises over a cohort with `tf.vectorized_map`.

A metric may treat NaN logits as any class. `from_keras` makes every metric of an example NaN if its
loss is NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tasks import layers
from tasks.layers import vectorizable

# Classes from which on the loss has operations of its own, 2.5 times faster; with 100 they are not.
_MANY = 1000


def sparse_softmax_cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns -log of the probability that the model gives to the true class.

    Args:
      y_true: Classes, whole numbers `[B, ...]`.
      y_pred: Logits, float `[B, ..., number of classes]`.

    Returns:
      Losses in nats, `[B, ...]`, of the logits' dtype; 0 where logits that carry rows
      (`tasks.layers.sequences`) have none.

    Raises:
      ValueError: If there is one logit only.
    """
    _require_classes(y_pred)
    if layers.sequences.rows_of(y_pred) is not None:
        return _of_rows(sparse_softmax_cross_entropy, y_true, y_pred)
    many = (y_pred.shape[-1] or 0) >= _MANY
    if not many or vectorizable.required() or tf.config.list_physical_devices("GPU"):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_true, logits=y_pred)
    flat = _of_many_classes(tf.reshape(y_true, [-1]), tf.reshape(y_pred, [-1, y_pred.shape[-1]]))
    return tf.reshape(flat, tf.shape(y_true))


def _require_classes(y_pred: tf.Tensor) -> None:
    if y_pred.shape[-1] == 1:
        raise ValueError(
            "the model has one output, and classes need one each: give it two outputs, or use a "
            "loss and metrics for two classes in one output, such as Keras's binary_crossentropy"
        )


def _of_rows(fn: Callable, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Applies `fn` to classes `[B, T]` and logits that carry rows; 0 where there is no row."""
    logits, places = layers.sequences.rows_of(y_pred)
    values = fn(layers.sequences.take(y_true, places), logits)
    return layers.sequences.spread(layers.sequences.Rows(values, places), y_true)


def _of_many_classes(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of classes `[n]` and logits `[n, number of classes]`.

    It exists because TensorFlow computes exponentials one by one on a CPU, in the loss and in its
    gradient.
    """
    at_label = tf.stack([tf.range(tf.shape(y)[0]), tf.cast(y, tf.int32)], axis=1)

    @tf.custom_gradient
    def values(logits: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        probabilities = tf.nn.softmax(logits)
        # The largest probability has all its digits, that of the label may be rounded to zero.
        # Logits are taken from each other first: next to a large one the logarithm loses its own.
        behind = tf.reduce_max(logits, 1) - tf.gather_nd(logits, at_label)

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return tf.tensor_scatter_nd_sub(probabilities * dy[:, tf.newaxis], at_label, dy)

        return behind - tf.math.log(tf.reduce_max(probabilities, 1)), gradient

    return values(logits)


def sparse_accuracy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns 1 where the largest logit is that of the true class, else 0.

    Of equal logits the first is treated as the largest.

    Args:
      y_true: Classes, whole numbers `[B, ...]`.
      y_pred: Logits, float `[B, ..., number of classes]`.

    Returns:
      Zeros and ones, `[B, ...]`, of the logits' dtype; 0 where logits that carry rows have none.

    Raises:
      ValueError: If there is one logit only, which is always the largest.
    """
    _require_classes(y_pred)
    if layers.sequences.rows_of(y_pred) is not None:
        return _of_rows(sparse_accuracy, y_true, y_pred)
    hits = tf.equal(tf.argmax(y_pred, axis=-1, output_type=tf.int32), tf.cast(y_true, tf.int32))
    return tf.cast(hits, y_pred.dtype)


def accuracy_of_class(label: int) -> Callable:
    """Makes the accuracy over the examples of one class.

    Args:
      label: The class.

    Returns:
      A function of classes `[B]` and logits `[B, number of classes]` that returns hits and weights,
      each 0 or 1, `[B]`, of the logits' dtype. It raises a `ValueError` for one logit.
    """

    def accuracy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return sparse_accuracy(y_true, y_pred), tf.cast(tf.equal(y_true, label), y_pred.dtype)

    return accuracy


def _difference(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    y_true, y_pred = tf.convert_to_tensor(y_true), tf.convert_to_tensor(y_pred)
    # Targets [B] would be compared with the predictions [B, 1] of all examples.
    y_true.shape.assert_is_compatible_with(y_pred.shape)
    return y_pred - tf.cast(y_true, y_pred.dtype)


def squared_error(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns the mean over an example's numbers of the squared difference.

    Args:
      y_true: Numbers `[B, n]`.
      y_pred: Their predictions, float `[B, n]`.

    Returns:
      Errors `[B]`, of the predictions' dtype.

    Raises:
      ValueError: If the shapes differ.
    """
    return tf.reduce_mean(tf.square(_difference(y_true, y_pred)), axis=-1)


def absolute_error(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns the mean over an example's numbers of the absolute difference.

    Args:
      y_true: Numbers `[B, n]`.
      y_pred: Their predictions, float `[B, n]`.

    Returns:
      Errors `[B]`, of the predictions' dtype.

    Raises:
      ValueError: If the shapes differ.
    """
    return tf.reduce_mean(tf.abs(_difference(y_true, y_pred)), axis=-1)


def sequence_cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the cross-entropy at each position of sequences padded with 0 at the end.

    A position has weight 1 if the model's *input* there is a token, as in TFF, whose loss uses the
    mask of the inputs. These are the first position, and each one whose predecessor has a target.
    So the first padding after a sequence is also a target, which `masked_accuracy` leaves out.

    Args:
      y_true: Tokens, whole numbers `[B, T]`; 0 is padding.
      y_pred: Logits, float `[B, T, number of tokens]`.

    Returns:
      Losses in nats and weights of 0 or 1, each `[B, T]`, of the logits' dtype.
    """
    values = sparse_softmax_cross_entropy(y_true, y_pred)
    is_token = tf.concat([tf.ones_like(y_true[:, :1]), y_true[:, :-1]], axis=1) > 0
    return values, tf.cast(is_token, values.dtype)


def masked_accuracy(*left_out: int) -> Callable:
    """Makes the accuracy over those positions of sequences whose target is included.

    Args:
      *left_out: Tokens that are not targets, e.g. 0 for padding.

    Returns:
      A function of tokens `[B, T]` and logits `[B, T, number of tokens]` that returns hits and
      weights, each 0 or 1, `[B, T]`, of the logits' dtype. Of equal logits the first is the
      largest.
    """

    def accuracy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        counts = tf.reduce_all([tf.not_equal(y_true, token) for token in left_out], axis=0)
        return sparse_accuracy(y_true, y_pred), tf.cast(counts, y_pred.dtype)

    return accuracy


def binary_cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns the mean over labels of the cross-entropy of independent yes/no predictions.

    Args:
      y_true: Zeros and ones, float `[B, number of labels]`.
      y_pred: Logits, float `[B, number of labels]`.

    Returns:
      Losses in nats, `[B]`, of the logits' dtype.
    """
    y_true = tf.cast(y_true, y_pred.dtype)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=y_true, logits=y_pred)
    return tf.reduce_mean(losses, axis=-1)


def precision(y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns which of the labels predicted with a probability above 1/2 are true.

    If nothing is predicted, precision is undefined; Keras's metric reports 0 there.

    Args:
      y_true: Zeros and ones, float `[B, number of labels]`.
      y_pred: Logits, float `[B, number of labels]`.

    Returns:
      Values and weights, each 0 or 1, `[B, number of labels]`, of the logits' dtype.
    """
    # What is no number counts as predicted, so that it is not passed over.
    return tf.cast(y_true, y_pred.dtype), tf.cast(tf.logical_not(y_pred <= 0), y_pred.dtype)


def recall_at(k: int) -> Callable:
    """Makes the share of true labels that are among the k with the largest logits.

    Args:
      k: Number of labels predicted per example.

    Returns:
      A function of zeros and ones `[B, number of labels]` and logits of the same shape that returns
      values and weights, each 0 or 1, of the same shape and the logits' dtype. Of equal logits the
      first is the largest.
    """

    def recall(y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        num_labels = y_pred.shape[-1]
        predicted = tf.zeros_like(y_pred)
        # One by one, since top_k does not vectorise.
        for _ in range(min(k, num_labels)):
            left = tf.where(predicted > 0, y_pred.dtype.min, y_pred)
            largest = tf.one_hot(tf.argmax(left, axis=-1), num_labels, dtype=y_pred.dtype)
            # Where only infinitely small logits are left, the largest may be one found before.
            predicted = tf.maximum(predicted, largest)
        return predicted, tf.cast(y_true, y_pred.dtype)

    return recall
