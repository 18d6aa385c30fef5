"""Local intrinsic dimensionality: the number of dimensions that points occupy locally.

It is the maximum-likelihood estimate from nearest neighbours of Amsaleg et al. ("Estimating Local
Intrinsic Dimensionality", KDD 2015), as in FedCorr (arXiv 2204.04677).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

_EPSILON = 1e-6
_LARGEST = 1000.0


def estimate(points: tf.Tensor, neighbors: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the mean of the points' estimates -k / (Σ_j ln(r_j / (r_k + ε)) + ε), ε = 1e-6.

    r_1 ≤ … ≤ r_k are the distances from a point to its nearest neighbours.

    Args:
      points: float32 `[n, dimensions]`.
      neighbors: k; reduced to n - 1 if that is less.

    Returns:
      The mean over the points whose estimate is from 0 up to 1000, float32 scalar, and their
      number, int32; both 0 if there are none.
    """
    points = tf.cast(points, tf.float64)
    number = tf.shape(points)[0]
    squares = tf.reduce_sum(points**2, 1)
    inner = tf.matmul(points, points, transpose_b=True)
    distances = tf.sqrt(tf.maximum(squares[:, None] + squares - 2.0 * inner, 0.0))
    infinite = tf.fill([number], tf.constant(np.inf, tf.float64))
    distances = tf.linalg.set_diag(distances, infinite)
    k = tf.minimum(tf.minimum(neighbors, tf.maximum(number - 1, 1)), number)
    nearest = -tf.math.top_k(-distances, k).values
    total = tf.reduce_sum(tf.math.log(nearest / (nearest[:, -1:] + _EPSILON)), 1) + _EPSILON
    estimates = -tf.cast(k, tf.float64) / total
    usable = (estimates >= 0.0) & (estimates < _LARGEST)
    count = tf.reduce_sum(tf.cast(usable, tf.int32))
    mean = tf.math.divide_no_nan(
        tf.reduce_sum(tf.where(usable, estimates, tf.zeros_like(estimates))),
        tf.cast(count, tf.float64),
    )
    return tf.cast(mean, tf.float32), count
