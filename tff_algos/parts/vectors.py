"""Linear algebra at the server on a cohort's vectors, in float64.

It uses only operations that TFF's worker has. Vectors come from `Federation.stack`: a tuple of
tensors `[K, ...]`, one per model weight, in which row k is client k's. Only `gram` and `combine`
read them; everything else is of size K.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_algos.vector import Vector

# Columns of the K x d matrix that are in float64 at once, in each of the _LOOPS loops that may run
# at the same time: an operation has one thread where clients run on a thread a core.
_BLOCK = 1 << 14
_LOOPS = 4


def gram(vectors: Vector) -> tf.Tensor:
    """Returns the inner products A_ij = ⟨v_i, v_j⟩, float64 `[K, K]`."""
    k = tf.shape(vectors[0])[0]

    def add(block, _, total):
        return total + tf.matmul(block, block, transpose_b=True)

    zeros = tf.zeros([k, k], tf.float64)
    return tf.add_n(
        [
            _over_blocks(leaf, add, zeros, start, _LOOPS)
            for leaf in vectors
            for start in range(min(_LOOPS, -(-_columns(leaf) // _BLOCK)))
        ]
    )


def combine(coefficients: tf.Tensor, vectors: Vector) -> Vector:
    """Returns Σ_k c_k v_k, one float64 tensor per model weight, for float64 coefficients `[K]`."""
    combined = []
    for leaf in vectors:

        def add(block, i, parts):
            return parts.write(i, tf.linalg.matvec(block, coefficients, transpose_a=True))

        parts = tf.TensorArray(
            tf.float64, -(-_columns(leaf) // _BLOCK), element_shape=[None], infer_shape=False
        )
        combined.append(tf.reshape(_over_blocks(leaf, add, parts).concat(), leaf.shape[1:]))
    return Vector(combined)


def _columns(leaf: tf.Tensor) -> int:
    return math.prod(leaf.shape[1:])


def _over_blocks(
    leaf: tf.Tensor, add: Callable, total: Any, start: int = 0, stride: int = 1
) -> Any:
    """Folds `(block [K, columns] in float64, number of the block, total) -> total` over a leaf."""
    size = _columns(leaf)
    flat = tf.reshape(leaf, [tf.shape(leaf)[0], size])

    def body(i, total):
        block = tf.cast(flat[:, i * _BLOCK : (i + 1) * _BLOCK], tf.float64)
        return i + stride, add(block, i, total)

    number = -(-size // _BLOCK)
    carry = (tf.constant(start), total)
    return tf.while_loop(lambda i, _: i < number, body, carry, parallel_iterations=1)[1]


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns ⟨a, b⟩ of two vectors `[K]`, bit-identical to `tf.tensordot`.

    `tf.tensordot` first runs a dozen operations on the shapes, which take longer than the product.
    """
    return tf.reshape(tf.matmul(tf.expand_dims(a, 0), tf.expand_dims(b, 1)), [])


def project_to_simplex(point: tf.Tensor) -> tf.Tensor:
    """Returns the nearest point of {λ ≥ 0, Σ λ = 1}: max(p - θ, 0), θ found by sorting, `[N]`."""
    # A shift changes nothing, and next to large numbers the 1 below would be lost.
    point -= tf.reduce_max(point)
    descending = tf.sort(point, direction="DESCENDING")
    places = tf.cast(tf.range(1, tf.size(point) + 1), point.dtype)
    thetas = (tf.cumsum(descending) - 1.0) / places
    last = tf.reduce_sum(tf.cast(descending > thetas, tf.int32)) - 1
    return tf.maximum(point - thetas[last], 0.0)


def box_minimum(
    matrix: tf.Tensor, center: tf.Tensor, radius: float, counts: tf.Tensor, iterations: int = 60
) -> tf.Tensor:
    """Minimises λᵀ M λ over Σ λ = 1, λ ≥ 0, |λ_k - c_k| ≤ radius, by a primal-dual interior point.

    It starts at the center, which is feasible, and takes Newton steps until float64 allows no
    improvement.

    Args:
      matrix: M, float64 `[K, K]`, positive semidefinite with a diagonal of order 1.
      center: c, float64 `[K]`: positive for included clients, sums to 1.
      radius: Half the width of the box; 0 leaves only the center.
      counts: Which clients are included, bool `[K]`; λ_k = 0 for the others.
      iterations: Maximum number of Newton steps.

    Returns:
      λ, float64 `[K]`.
    """
    if radius == 0:
        return tf.where(counts, center, tf.zeros_like(center))
    low = tf.maximum(center - radius, 0.0)
    # In units of the box's width: λ = low + width * s with 0 < s < 1. A client that does not count
    # has a box without width, so that its s enters nothing.
    width = tf.where(counts, center + radius - low, tf.zeros_like(center))
    low = tf.where(counts, low, tf.zeros_like(center))
    hessian = width[:, None] * matrix * width
    linear = width * tf.linalg.matvec(matrix, low)
    total = 1.0 - tf.reduce_sum(low)
    half = tf.fill(tf.shape(center), tf.constant(0.5, tf.float64))
    start = tf.where(counts, tf.math.divide_no_nan(center - low, width), half)
    number = tf.cast(tf.size(center), tf.float64)
    own = tf.linalg.diag_part(hessian)

    def gap_of(s, t, z, w):
        return (dot(z, s) + dot(w, t)) / (2.0 * number)

    def newton(i, _, gap, s, t, z, w, y):
        # t is 1 - s, kept apart as it may be far below what 1 - s can tell from 0; z, w, y are the
        # multipliers of s >= 0, t >= 0 and the sum.
        mu = 0.1 * gap
        # M may be singular. The last term keeps the step defined and leaves its goal alone.
        curvature = tf.linalg.set_diag(hessian, own + (z / s + w / t + 1e-11))
        gradient = tf.linalg.matvec(hessian, s) + linear + width * y - mu / s + mu / t
        solved = tf.linalg.solve(curvature, tf.stack([gradient, width], axis=1))
        missing = total - dot(width, s)
        dy = tf.math.divide_no_nan(-missing - dot(width, solved[:, 0]), dot(width, solved[:, 1]))
        ds = -solved[:, 0] - dy * solved[:, 1]
        dz = mu / s - z - z / s * ds
        dw = mu / t - w + w / t * ds
        positive = tf.concat([s, t, z, w], 0)
        change = tf.concat([ds, -ds, dz, dw], 0)
        limits = tf.where(change < 0, -positive / change, tf.ones_like(change))
        step = tf.minimum(0.995 * tf.reduce_min(limits), 1.0)
        step = tf.where(tf.math.is_finite(step), step, 0.0)
        after = (s + step * ds, t - step * ds, z + step * dz, w + step * dw, y + step * dy)
        before = (s, t, z, w, y)
        chosen = [tf.where(step > 0, a, b) for a, b in zip(after, before, strict=True)]
        return i + 1, step > 0, gap_of(*chosen[:4]), *chosen

    def goes_on(i, moved, gap, *_):
        # Where a step was not taken, the next ones would be the same. At the end of float64's range
        # a further one could only do harm.
        return (i < iterations) & moved & (gap > 1e-18)

    ones = tf.ones_like(center)
    begin = (start, 1.0 - start, ones, ones)
    zero = tf.constant(0.0, tf.float64)
    carry = (tf.constant(0), tf.constant(True), gap_of(*begin), *begin, zero)
    s = tf.while_loop(goes_on, newton, carry, parallel_iterations=1)[3]
    return low + width * s
