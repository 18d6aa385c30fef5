"""Randomness as a pure function of explicit seeds: draws in graphs, and NumPy's seeds.

In graphs all draws go through `tf.raw_ops.StatelessRandomUniform` and
`StatelessRandomUniformFullInt`: unlike `tf.random.stateless_uniform` they vectorise under
`tf.vectorized_map`, and TFF's worker, this process's CPU and a GPU draw the same numbers from them.

Outside graphs, seeds are computed for many clients at once. `numpy.random.SeedSequence` takes some
ten microseconds per seed, which is pure overhead, and a cohort needs hundreds per round. NumPy
promises that the sequence never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# Odd constants (golden ratio and a companion) spread small counters over the 32-bit seed words.
_STEP_STRIDE = np.int32(np.uint32(0x9E3779B1).astype(np.int32))
_LAYER_STRIDE = np.int32(np.uint32(0x85EBCA77).astype(np.int32))


def fold_in(seed: tf.Tensor, *, step: int | tf.Tensor = 0, layer: int | tf.Tensor = 0) -> tf.Tensor:
    """Derives the seed of a local step or of a layer.

    The step changes the first number and the layer the second. Within a client and round, no two
    (step, layer) pairs share a seed.

    Args:
      seed: int32 `[2]`.
      step: Local step, int32 scalar.
      layer: Position of the layer in the model, int32 scalar.

    Returns:
      int32 `[2]`.
    """
    offset = tf.stack(
        [tf.cast(step, tf.int32) * _STEP_STRIDE, tf.cast(layer, tf.int32) * _LAYER_STRIDE]
    )
    return seed + offset


def uniform(shape: Sequence[int] | tf.Tensor, seed: tf.Tensor, dtype: str = "float32") -> tf.Tensor:
    """Draws uniformly from [0, 1).

    Args:
      shape: Shape of the result.
      seed: int32 `[2]`.
      dtype: Floating-point type of the result.

    Returns:
      A tensor of `shape` and `dtype`; the same for the same seed in every runtime.
    """
    return tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed, dtype=dtype)


def normal(shape: Sequence[int] | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Draws from the standard normal distribution, float32 of `shape`; for use at the server.

    Args:
      shape: Shape of the result.
      seed: int32 `[2]`.
    """
    return tf.raw_ops.StatelessRandomNormal(shape=shape, seed=seed, dtype=tf.float32)


def _bytes(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Draws uniformly from the int8 numbers, four from each random number of 32 bits."""
    size = tf.reduce_prod(shape)
    words = tf.raw_ops.StatelessRandomUniformFullInt(
        shape=[(size + 3) // 4], seed=seed, dtype=tf.int32
    )
    return tf.reshape(tf.reshape(tf.bitcast(words, tf.int8), [-1])[:size], shape)


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor, noise_shape: Any = None) -> tf.Tensor:
    """Zeroes entries of `x` with probability `rate` and scales the others by 1 / (1 - rate).

    A zeroed entry that is not finite becomes NaN. Rates that are multiples of 1/256, such as 1/4
    and 1/2, use 8 random bits per entry; all other rates use 32.

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


# The constants are those of `numpy.random.SeedSequence`, by O'Neill's seed_seq_fe128.
_POOL = 4
_MASK = 0xFFFFFFFF
_SHIFT = np.uint32(16)
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)


def _constants(first: int, factor: int, number: int) -> np.ndarray:
    """Returns the constants of the hashes and the one after them, uint32 `[number + 1, 1]`."""
    values = [first]
    for _ in range(number):
        values.append(values[-1] * factor & _MASK)
    return np.array(values, np.uint32)[:, None]


# As many as a pool and sixty further words of entropy take.
_IN = _constants(0x43B0D7E5, 0x931E8875, _POOL * (_POOL + 60))
_OUT = _constants(0x8B51F9DD, 0x58F38DED, 64)


def _hashed(values: np.ndarray, constants: np.ndarray, first: int, number: int) -> np.ndarray:
    hashed = values ^ constants[first : first + number]
    hashed *= constants[first + 1 : first + 1 + number]
    hashed ^= hashed >> _SHIFT
    return hashed


def seed_words(seeds: Sequence[Sequence[int]], number: int) -> np.ndarray:
    """Returns `numpy.random.SeedSequence(seed).generate_state(number, numpy.uint32)` of each seed.

    Args:
      seeds: `[K, n]` non-negative integers, n at least 1.
      number: Number of uint32 per seed.

    Returns:
      uint32 `[K, number]`.

    Raises:
      ValueError: If an integer is negative.
    """
    entropy = np.array(seeds)
    known = entropy.ndim == 2 and entropy.shape[1] < 60 and number < len(_OUT)
    # A larger integer takes up two words.
    if not known or entropy.dtype.kind != "i" or entropy.min() < 0 or entropy.max() > _MASK:
        return np.array(
            [np.random.SeedSequence(list(seed)).generate_state(number) for seed in seeds], np.uint32
        ).reshape(len(seeds), number)
    words = np.ascontiguousarray(entropy.T, dtype=np.uint32)
    pool = np.zeros((_POOL, len(seeds)), np.uint32)
    pool[: len(words)] = words[:_POOL]
    pool = _hashed(pool, _IN, 0, _POOL)
    used = _POOL

    def mix(places, value, count):
        nonlocal used
        mixed = _MIX_LEFT * pool[places] - _MIX_RIGHT * _hashed(value, _IN, used, count)
        pool[places] = mixed ^ (mixed >> _SHIFT)
        used += count

    for source in range(_POOL):
        others = [place for place in range(_POOL) if place != source]
        mix(others, pool[source], _POOL - 1)
    for word in words[_POOL:]:
        mix(slice(None), word, _POOL)
    return _hashed(pool[np.arange(number) % _POOL], _OUT, 0, number).T


class _Known(np.random.bit_generator.ISeedSequence):
    """A seed sequence with a precomputed state."""

    def __init__(self, state: np.ndarray):
        self._state = state

    def generate_state(self, n_words, dtype=np.uint32):
        del n_words, dtype
        return self._state


def generators(seeds: Sequence[Sequence[int]]) -> list[np.random.Generator]:
    """Returns `numpy.random.default_rng(seed)` of each seed, `[K, n]` non-negative integers.

    Raises:
      ValueError: If an integer is negative.
    """
    # Four words of 64 bits; the lower half of each comes first.
    words = seed_words(seeds, 8).astype(np.uint64)
    states = np.ascontiguousarray(words[:, ::2] | words[:, 1::2] << np.uint64(32))
    known = [_Known(state) for state in states]
    return [np.random.Generator(np.random.PCG64(seed)) for seed in known]  # type: ignore[arg-type]
