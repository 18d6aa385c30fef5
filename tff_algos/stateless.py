"""Randomness inside client functions: a pure function of an explicit seed.

All draws go through `tf.raw_ops.StatelessRandomUniform` and `StatelessRandomUniformFullInt`: unlike
`tf.random.stateless_uniform` they vectorise under `tf.vectorized_map`, and TFF's worker, this
process's CPU and a GPU draw the same numbers from them.
"""

import numpy as np
import tensorflow as tf

# Odd constants (golden ratio and a companion) spread small counters over the 32-bit seed words.
_STEP_STRIDE = np.int32(np.uint32(0x9E3779B1).astype(np.int32))
_LAYER_STRIDE = np.int32(np.uint32(0x85EBCA77).astype(np.int32))


def fold_in(seed: tf.Tensor, *, step=0, layer=0) -> tf.Tensor:
    """Derives the seed of a local step or of a layer.

    The step moves the first word and the layer the second, so that no (step, layer) pair shares a
    seed with another of the same client and round.

    Args:
      seed: int32 `[2]`.
      step: Local step, int32 scalar.
      layer: Place of the layer in the model, int32 scalar.

    Returns:
      int32 `[2]`.
    """
    offset = tf.stack(
        [tf.cast(step, tf.int32) * _STEP_STRIDE, tf.cast(layer, tf.int32) * _LAYER_STRIDE]
    )
    return seed + offset


def uniform(shape, seed: tf.Tensor, dtype=tf.float32) -> tf.Tensor:
    """Draws uniformly from [0, 1).

    Args:
      shape: Shape of the result.
      seed: int32 `[2]`.
      dtype: Floating-point type of the result.

    Returns:
      A tensor of `shape` and `dtype`; the same for the same seed in every runtime.
    """
    return tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed, dtype=dtype)


def _bytes(shape, seed: tf.Tensor) -> tf.Tensor:
    """Draws uniformly from the int8 numbers, four from each random number of 32 bits."""
    size = tf.reduce_prod(shape)
    words = tf.raw_ops.StatelessRandomUniformFullInt(
        shape=[(size + 3) // 4], seed=seed, dtype=tf.int32
    )
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.int8), [-1])[:size], shape)


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor, noise_shape=None) -> tf.Tensor:
    """Zeroes entries of `x` with probability `rate` and scales the others by 1 / (1 - rate).

    An entry that is not finite becomes NaN where it would be zeroed. A rate that is a whole number
    of 256ths, as 1/4 and 1/2 are, takes a byte of random bits an entry, any other rate 32 bits.

    Args:
      x: Floating-point tensor.
      rate: Probability in [0, 1), a Python float.
      seed: int32 `[2]`.
      noise_shape: Shape of the mask, broadcast to that of `x`; by default the same.

    Returns:
      A tensor like `x`.
    """
    shape = tf.shape(x) if noise_shape is None else noise_shape
    if (rate * 256).is_integer():
        keep = _bytes(shape, seed) >= int(rate * 256) - 128
    else:
        keep = uniform(shape, seed) >= rate
    # A product, since TensorFlow is slow to choose: half the time, forward and backward.
    return x * (tf.cast(keep, x.dtype) * (1.0 / (1.0 - rate)))
