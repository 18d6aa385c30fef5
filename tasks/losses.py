"""Losses and metrics, element by element: `(y_true [B], y_pred [B, ...]) -> values [B]`.

Models give logits. Every function is plain TensorFlow, so that it traces in a `tf.function` and
vectorises over a cohort with `tf.vectorized_map`.
"""

import tensorflow as tf


def sparse_softmax_cross_entropy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns -log of the probability that the model gives to the true class.

    Args:
      y_true: Classes, whole numbers `[B]`.
      y_pred: Logits, float `[B, number of classes]`.

    Returns:
      Losses in nats, `[B]`, of the logits' dtype.
    """
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y_true, logits=y_pred)


def sparse_accuracy(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Returns 1 where the largest logit is that of the true class, else 0.

    Of equal logits the first counts as the largest.

    Args:
      y_true: Classes, whole numbers `[B]`.
      y_pred: Logits, float `[B, number of classes]`.

    Returns:
      Zeros and ones, `[B]`, of the logits' dtype.
    """
    hits = tf.equal(tf.argmax(y_pred, axis=-1, output_type=tf.int32), tf.cast(y_true, tf.int32))
    return tf.cast(hits, y_pred.dtype)
