"""Moving averages of gradients and of their squares, as Adam has them."""

from __future__ import annotations

import tensorflow as tf

from tff_algos.registry import decay
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam

# The settings of the clients' Adam in FedCAda's paper.
CLIENT_ADAM = (
    decay("beta1", 0.9, "Decay beta_1 of the first moment.", "FedCAda, section 4.1"),
    decay("beta2", 0.99, "Decay beta_2 of the second moment.", "FedCAda, section 4.1"),
    Hparam(
        "epsilon",
        1e-8,
        "Epsilon, added outside the root.",
        source="choice: not given",
        minimum=0.0,
        exclusive_minimum=True,
    ),
)


def moving_average(beta: float | tf.Tensor, average: Vector, new: Vector) -> Vector:
    """Returns β a + (1 - β) n."""
    return beta * average + (1.0 - beta) * new


def bias_left(beta: float | tf.Tensor, t: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Returns 1 - β^t, the factor by which a moving average from 0 is too small after t steps.

    It is computed in float64: in float32, 1 - 0.99 alone is off by 6e-6.

    Args:
      beta: β. A Python number is rounded to float32 first, so that FedOpt's recorded numbers stay
        valid; a float64 scalar is not rounded.
      t: Number of steps, integer scalar.
      dtype: dtype of the scalar returned; by default float32.
    """
    left = 1.0 - tf.cast(beta, tf.float64) ** tf.cast(t, tf.float64)
    return tf.cast(left, dtype or tf.float32)
