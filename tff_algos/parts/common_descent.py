"""AdaFed's common descent direction u = Σ a_k g_k, ⟨g_k, u⟩ = F_k, on the Gram matrix of the g_k.

Mohajer Hamidi, Yang: "AdaFed", arXiv 2401.04993. `tff_algos/methods/adafed.py` explains what
happens if the g_k are linearly dependent, and why. Everything is float64. Everything but the
argument of `direction` is of the cohort's size K.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_algos import client
from tff_algos.parts import vectors
from tff_algos.vector import Vector

# From how many times the tolerance on a combination of updates is taken at its full length.
_SURE = 10.0
# The least length of the terms that an update is a sum of, relative to the longest update.
_TERMS = 0.05


class Powers(NamedTuple):
    """The F_k = f_k^γ of a cohort in units of the largest, float64.

    In these units no power of a loss is out of range.

    Attributes:
      of_each: F_k, `[K]`, zero for clients that are left out.
      number: Number of included clients, scalar.
      smallest: The least F_k of these, scalar; 0 without any.
      mean: Their mean F_k, scalar.
      unit: The largest F_k itself, scalar, limited to float64's range.
    """

    of_each: tf.Tensor
    number: tf.Tensor
    smallest: tf.Tensor
    mean: tf.Tensor
    unit: tf.Tensor


def powers(losses: tf.Tensor, counts: tf.Tensor, *, gamma: float, loss_floor: float) -> Powers:
    """Returns the F_k = max(f_k, floor)^γ.

    Args:
      losses: f_k, float32 `[K]`.
      counts: Which clients are included, bool `[K]`.
      gamma: γ.
      loss_floor: Lower bound of a client's loss.
    """
    number = tf.reduce_sum(tf.cast(counts, tf.float64))
    losses = tf.maximum(tf.cast(losses, tf.float64), loss_floor)
    largest = tf.reduce_max(client.zero_unless(counts, losses))
    of_each = client.zero_unless(counts, tf.math.divide_no_nan(losses, largest) ** gamma)
    smallest = tf.reduce_min(tf.where(counts, of_each, of_each.dtype.max))
    return Powers(
        of_each,
        number,
        client.zero_unless(number > 0, smallest),
        tf.math.divide_no_nan(tf.reduce_sum(of_each), number),
        tf.clip_by_value(largest**gamma, np.finfo(np.float64).tiny, tf.float64.max),
    )


def direction(u: Vector, gram: tf.Tensor, cohort: Powers) -> tuple[Vector, tf.Tensor, tf.Tensor]:
    """Returns d = u / max(‖u‖, mean F_k / max ‖g_k‖)² and two lengths on which a step depends.

    For independent g_k the maximum is always ‖u‖.

    Args:
      u: Σ a_k g_k, in float64.
      gram: A, float64 `[K, K]`.
      cohort: The F_k.

    Returns:
      d in float64, ‖d‖ and the length of the mean g_k, float64 scalars.
    """
    square = u.squared_norm()
    longest = tf.reduce_max(tf.linalg.diag_part(gram))
    divisor = tf.maximum(square, tf.math.divide_no_nan(cohort.mean**2, longest))
    length = tf.math.divide_no_nan(tf.sqrt(square), divisor)
    # Of updates whose sum is zero, rounding may leave less than nothing.
    square_of_sum = tf.maximum(tf.reduce_sum(gram), 0.0)
    mean_gradient = tf.math.divide_no_nan(tf.sqrt(square_of_sum), cohort.number)
    return u.over(divisor), length, mean_gradient


def coefficients(
    gram: tf.Tensor,
    targets: tf.Tensor,
    counts: tf.Tensor,
    tolerance: float,
    orthogonalization: str,
) -> tf.Tensor:
    """Returns a, float64 `[K]`, by the rule `closed_form` or `gram_schmidt`."""
    if orthogonalization == "closed_form":
        return solve(gram, targets, counts, tolerance)
    return gram_schmidt(gram, targets, tolerance)


def solve(gram: tf.Tensor, targets: tf.Tensor, counts: tf.Tensor, tolerance: float) -> tf.Tensor:
    """Returns the a of u = Σ a_k g_k: A a = F, by least squares if the g_k are dependent.

    Args:
      gram: A, float64 `[K, K]`; rows and columns of clients that are left out are zero.
      targets: F, float64 `[K]`; zero for clients that are left out.
      counts: Which clients are included, bool `[K]`.
      tolerance: See `share_of_real`.

    Returns:
      float64 `[K]`, zero for clients that are left out.
    """
    inverse = client.zero_unless(counts, tf.math.rsqrt(squared_lengths(gram)))
    alone = tf.linalg.diag(tf.cast(~counts, gram.dtype))
    lengths, axes = tf.linalg.eigh(inverse[:, None] * gram * inverse + alone)
    real = share_of_real(lengths, tolerance)
    # u = Σ w_i q_i, with q_i the direction of length 1 of axis i, meets F up to r where
    # w = axesᵀ D (F - r), D = diag(1 / l_k). Of all r it takes the one that makes
    # |r|² + Σ (1 - s_i) / s_i w_i² least, with s the share of what is real. In the orthogonal
    # factor of [D axes √(1-s); √s] nothing is divided by s, nor is the condition squared.
    noise = inverse[:, None] * axes * tf.sqrt(1.0 - real)
    typical = tf.sqrt(
        tf.math.divide_no_nan(tf.constant(1.0, gram.dtype), tf.reduce_mean(inverse**2))
    )
    factor, _ = tf.linalg.qr(tf.concat([typical * noise, tf.linalg.diag(tf.sqrt(real))], 0))
    factor = factor[: tf.shape(gram)[0]]
    met = targets - tf.linalg.matvec(factor, tf.linalg.matvec(factor, targets, transpose_a=True))
    w = tf.linalg.matvec(axes, inverse * met, transpose_a=True)
    return inverse * tf.linalg.matvec(axes, tf.where(real > 0, w / lengths, tf.zeros_like(w)))


def squared_lengths(gram: tf.Tensor) -> tf.Tensor:
    """Returns l_k², float64 `[K]`; the rounding error of g_k is proportional to l_k.

    A gradient is at most as accurate as the terms that it sums. The longest g_k of the cohort
    indicates the length of these terms.
    """
    squares = tf.linalg.diag_part(gram)
    return squares + _TERMS**2 * tf.reduce_max(squares)


def share_of_real(square: tf.Tensor, tolerance: float) -> tf.Tensor:
    """Returns the share, 0 to 1, with which a combination Σ c_k g_k is used as a direction.

    Each g_k has a rounding error of unknown direction and of a length proportional to l_k, see
    `squared_lengths`. A combination carries information only if it is longer than its rounding
    error.

    Args:
      square: ‖Σ c_k g_k‖² / Σ c_k² l_k².
      tolerance: Relative length up to which the share is 0. From `_SURE` times that length on it is
        1; in between it rises smoothly in the logarithm.
    """
    floor = tf.constant(np.finfo(np.float64).tiny, square.dtype)
    over = tf.math.log(tf.maximum(square, floor) / tolerance**2) / np.log(_SURE**2)
    # The length of u goes with 1 / |Σ c_k g_k|: what is faded in must start from far below.
    return tf.exp(1.0 - 1.0 / tf.clip_by_value(over, 0.0, 1.0))


def gram_schmidt(gram: tf.Tensor, targets: tf.Tensor, tolerance: float) -> tf.Tensor:
    """Returns the a of u = Σ a_k g_k by equations 5 and 6, client after client.

    Row k of the basis holds the coefficients of a direction q_k = Σ_j B_kj g_j. Its length is 1, or
    less if it may be noise. Adding a multiple of q_k to u achieves ⟨g_k, u⟩ = F_k and preserves the
    earlier equations.

    Args:
      gram: A, float64 `[K, K]`.
      targets: F, float64 `[K]`.
      tolerance: See `share_of_real`.

    Returns:
      float64 `[K]`.
    """
    number = tf.shape(gram)[0]
    unit_vectors = tf.linalg.diag(tf.ones_like(targets))
    lengths = squared_lengths(gram)

    def add(k, basis, a):
        rest = unit_vectors[k]
        for _ in range(2):  # Once is not enough in floating point.
            rest -= tf.linalg.matvec(
                basis,
                tf.linalg.matvec(basis, tf.linalg.matvec(gram, rest)),
                transpose_a=True,
            )
        square = vectors.dot(rest, tf.linalg.matvec(gram, rest))
        open_square = vectors.dot(rest**2, lengths)
        real = share_of_real(tf.math.divide_no_nan(square, open_square), tolerance)
        norm = tf.sqrt(tf.where(real > 0, square, tf.ones_like(square)))
        q = tf.where(real > 0, rest / norm, tf.zeros_like(rest))
        missing = targets[k] - vectors.dot(gram[k], a)
        basis = tf.tensor_scatter_nd_add(basis, [[k]], (tf.sqrt(real) * q)[None])
        return k + 1, basis, a + real * missing / norm * q

    start = (tf.constant(0), tf.zeros_like(gram), tf.zeros_like(targets))
    return tf.while_loop(lambda k, *_: k < number, add, start, parallel_iterations=1)[2]
