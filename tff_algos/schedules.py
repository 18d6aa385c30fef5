"""A client learning rate that is a function of the round."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_suite.hparams import HparamError


def first_rate(schedule: Callable[[Any], Any]) -> float:
    """Returns the learning rate of round 0, after checking that the function works in a graph.

    Args:
      schedule: Function from the round (float32 scalar, from 0) to the learning rate (scalar).

    Raises:
      HparamError: If it fails on a tensor, or does not return a finite rate of at least 0.
    """
    traced = tf.function(
        lambda round_num: tf.cast(schedule(round_num), tf.float32), autograph=False
    )
    try:
        rate = traced.get_concrete_function(tf.TensorSpec([], tf.float32))(tf.constant(0.0))
    except Exception as e:  # It is the user's, and may raise anything.
        told = " ".join(str(e).split())[:200]
        raise HparamError(
            f"client_lr_schedule: the function fails on the round as a float32 tensor ({told}). "
            "Write it with TensorFlow's operations, such as tf.where in place of if."
        ) from e
    if rate.shape.rank != 0:
        raise HparamError(
            f"client_lr_schedule: the function returns {rate.shape.as_list()} numbers in place of "
            "one learning rate."
        )
    # The shortest digits that stand for the float32: 0.1 stays 0.1.
    rate = float(str(rate.numpy()))
    if not math.isfinite(rate) or rate < 0:
        raise HparamError(
            f"client_lr_schedule: the function returns {rate} in round 0; a learning rate is "
            "finite and at least 0."
        )
    return rate
