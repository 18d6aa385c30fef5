"""The named aggregators: TFF's own, with all random draws derived from a seed.

`robust` and `secure` are `tff.learning.robust_aggregator` and `secure_aggregator`. `dp` and
`compressed` have the same constants as `dp_aggregator` and `compression_aggregator`. TFF draws
their noise and rounding without a seed, so no run could be repeated; here both are pure functions
of a seed. Without noise `dp` is bit-identical to TFF's, and so is `compressed` for tensors that are
not quantised.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp
from tensorflow_model_optimization.python.core.internal import tensor_encoding as te
from tensorflow_model_optimization.python.core.internal.tensor_encoding import stages

from tff_algos import random
from tff_suite.compat import differential_privacy
from tff_suite.hparams import HparamError


def build(settings: Mapping[str, Any], seed: int, clients_per_round: int | None) -> Any:
    """Returns the factory that `aggregator` names.

    Args:
      settings: The training settings, with `aggregator` other than `mean`.
      seed: Seed of the aggregator's random draws, at least 0.
      clients_per_round: Number of clients per round, if known.

    Returns:
      A `tff.aggregators` factory.

    Raises:
      HparamError: If `dp` does not know how many clients to expect, or the noise is too large for
        adaptive clipping with so few clients.
    """
    word = settings["aggregator"]
    zeroing, clipping = settings["aggregator_zeroing"], settings["aggregator_clipping"]
    if word == "robust":
        return tff.learning.robust_aggregator(zeroing=zeroing, clipping=clipping)
    if word == "secure":
        return tff.learning.secure_aggregator(zeroing=zeroing, clipping=clipping)
    words = random.seed_words([[seed, 0xA66]], 2)[0].astype("int32")
    if word == "compressed":
        return compressed(
            bits=settings["aggregator_bits"],
            threshold=settings["aggregator_threshold"],
            seed=words,
            zeroing=zeroing,
            clipping=clipping,
        )
    expected = settings["aggregator_clients_per_round"] or clients_per_round
    if expected is None:
        raise HparamError("aggregator=dp needs aggregator_clients_per_round.")
    multiplier = settings["aggregator_noise_multiplier"]
    if settings["aggregator_clip"] is not None:
        return dp_fixed(
            multiplier,
            float(expected),
            seed=words,
            zeroing=zeroing,
            clip=settings["aggregator_clip"],
        )
    count_stddev = settings["aggregator_clipped_count_stddev"]
    largest = 2 * (0.05 * expected if count_stddev is None else count_stddev)
    if multiplier and multiplier >= largest:
        raise HparamError(
            f"aggregator_noise_multiplier={multiplier:g} must be below {largest:g} for "
            f"{expected:g} clients per round (twice aggregator_clipped_count_stddev). Lower it, "
            f"set aggregator_clipped_count_stddev above {multiplier / 2:g}, or fix aggregator_clip."
        )
    return dp(
        multiplier,
        float(expected),
        seed=words,
        zeroing=zeroing,
        initial_clip=settings["aggregator_initial_clip"],
        quantile=settings["aggregator_target_quantile"],
        learning_rate=settings["aggregator_clip_learning_rate"],
        count_stddev=count_stddev,
    )


def compressed(*, bits: int, threshold: int, seed: Any, zeroing: bool, clipping: bool) -> Any:
    """Returns `tff.learning.compression_aggregator`, weighted, with rounding from a seed.

    Args:
      bits: Bits of a quantised number, 1 to 16.
      threshold: Tensors with more elements than this are quantised.
      seed: int32 `[2]`.
      zeroing: Whether updates far larger than earlier ones are set to zero.
      clipping: Whether updates are clipped.
    """

    def encoder(spec):
        if spec.shape.num_elements() > threshold:
            return te.encoders.as_gather_encoder(_quantization(bits, seed), spec)
        return te.encoders.as_gather_encoder(te.encoders.identity(), spec)

    def mean(inner):
        del inner  # TFF's mean of sums that are not compressed.
        return tff.aggregators.MeanFactory(tff.aggregators.EncodedSumFactory(encoder))

    # TFF lets the innermost factory be replaced, so that all around it is its own.
    return tff.learning.robust_aggregator(
        zeroing=zeroing, clipping=clipping, debug_measurements_fn=mean
    )


def _quantization(bits, seed):
    packing = stages.BitpackingEncodingStage(bits)
    rounding, flatten = _SeededQuantization(bits, seed), stages.FlattenEncodingStage()
    composed = te.core.EncoderComposer(packing).add_parent(rounding, rounding.ENCODED_VALUES_KEY)
    return composed.add_parent(flatten, flatten.ENCODED_VALUES_KEY).make()


@te.core.tf_style_encoding_stage
class _SeededQuantization(te.core.EncodingStageInterface):
    """TFF's uniform quantisation, with stochastic rounding from a seed.

    The values to round are part of the seed, so that clients and rounds draw different numbers.
    """

    ENCODED_VALUES_KEY = "quantized_values"
    _RANGE_KEY = "min_max"

    def __init__(self, bits, seed):
        self._levels, self._seed = 2**bits - 1, seed

    name = property(lambda self: "seeded_quantization")
    compressible_tensors_keys = property(lambda self: [self.ENCODED_VALUES_KEY])
    commutes_with_sum = property(lambda self: False)
    decode_needs_input_shape = property(lambda self: False)

    def get_params(self):
        return {}, {}

    def encode(self, x, encode_params):
        del encode_params
        low, high = tf.reduce_min(x), tf.reduce_max(x)
        scaled = tf.math.divide_no_nan(x - low, high - low) * self._levels
        below = tf.floor(scaled)
        draws = random.uniform(tf.shape(x), _hash(x) + self._seed)
        quantized = below + tf.cast(draws < scaled - below, x.dtype)
        return {self.ENCODED_VALUES_KEY: quantized, self._RANGE_KEY: tf.stack([low, high])}

    def decode(self, encoded_tensors, decode_params, num_summands=None, shape=None):
        del decode_params, num_summands, shape
        low, high = tf.unstack(encoded_tensors[self._RANGE_KEY])
        return encoded_tensors[self.ENCODED_VALUES_KEY] / self._levels * (high - low) + low


def _hash(x: tf.Tensor) -> tf.Tensor:
    """Returns int32 `[2]` that depends on all bits of a float32 vector and on their order."""
    bits = tf.bitcast(x, tf.int32)
    odd = 2 * tf.range(tf.size(bits)) + 1
    mixed = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, 15))
    return tf.stack([tf.reduce_sum(bits * odd), tf.reduce_sum(mixed * odd)])


def dp(
    noise_multiplier: float,
    clients_per_round: float,
    *,
    seed: Any,
    zeroing: bool,
    initial_clip: float = 0.1,
    quantile: float = 0.5,
    learning_rate: float = 0.2,
    count_stddev: float | None = None,
) -> Any:
    """Returns `tff.learning.dp_aggregator` with noise from a seed.

    The clipping norm adapts to a quantile of the updates' norms (Andrew et al. 2021, arXiv
    1905.03871), as in `tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive`.

    Args:
      noise_multiplier: Total standard deviation of the noise divided by the clipping norm. Adapting
        the clipping norm uses a part of it. 0 switches the noise off.
      clients_per_round: The noised sum is divided by this number.
      seed: int32 `[2]`.
      zeroing: Whether updates far larger than earlier ones are set to zero before clipping.
      initial_clip: The clipping norm of the first round.
      quantile: The target share of updates that are not clipped.
      learning_rate: How fast the clipping norm adapts.
      count_stddev: Standard deviation of the noise on the number of unclipped updates; by default
        0.05 `clients_per_round`. Must exceed half of `noise_multiplier`.

    Raises:
      ValueError: If the noise is too large for so few clients.
    """
    multiplier, count_stddev = differential_privacy.adaptive_clip_noise_params(
        noise_multiplier, clients_per_round, count_stddev
    )
    draws = _Draws()
    query = tfp.QuantileAdaptiveClipSumQuery(
        initial_l2_norm_clip=initial_clip,
        noise_multiplier=multiplier,
        target_unclipped_quantile=quantile,
        learning_rate=learning_rate,
        clipped_count_stddev=count_stddev,
        expected_num_records=clients_per_round,
        geometric_update=True,
    )
    # TFP has no way to say where its two sums draw from.
    query._sum_query = _GaussianSum(initial_clip, multiplier * initial_clip, draws)
    query._quantile_estimator_query._below_estimate_query = tfp.NormalizedQuery(
        _GaussianSum(0.5, count_stddev, draws), denominator=clients_per_round
    )
    return _private(_SeededQuery(query, seed, draws), clients_per_round, zeroing)


def dp_fixed(
    noise_multiplier: float, clients_per_round: float, *, seed: Any, zeroing: bool, clip: float
) -> Any:
    """Returns the aggregator of `dp` with a constant clipping norm.

    Without zeroing it is `tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed`.

    Args:
      noise_multiplier: Standard deviation of the noise divided by the clipping norm. 0 switches the
        noise off.
      clients_per_round: The noised sum is divided by this number.
      seed: int32 `[2]`.
      zeroing: Whether updates far larger than earlier ones are set to zero before clipping.
      clip: The clipping norm.
    """
    draws = _Draws()
    query = _GaussianSum(clip, noise_multiplier * clip, draws)
    return _private(_SeededQuery(query, seed, draws), clients_per_round, zeroing)


def _private(query, clients_per_round, zeroing):
    factory = tff.aggregators.DifferentiallyPrivateFactory(
        tfp.NormalizedQuery(query, denominator=clients_per_round)
    )
    if not zeroing:
        return factory
    # As `tff.learning.dp_aggregator`, where this has no name of its own.
    norm = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(
        initial_estimate=10.0,
        target_quantile=0.98,
        learning_rate=math.log(10.0),
        multiplier=2.0,
        increment=1.0,
    )
    return tff.aggregators.zeroing_factory(norm, factory)


class _Draws:
    """The source of a query's noise. Its seed is set only while noise is generated."""

    def __init__(self):
        self._seed, self._drawn = None, 0

    @contextlib.contextmanager
    def seeded(self, seed):
        self._seed, self._drawn = seed, 0
        try:
            yield
        finally:
            self._seed = None

    def normal(self, like, stddev):
        self._drawn += 1
        seed = random.fold_in(self._seed, layer=self._drawn)
        return stddev * random.normal(tf.shape(like), seed)


class _GaussianSum(tfp.GaussianSumQuery):
    """TFP's Gaussian sum, with noise from `_Draws`."""

    def __init__(self, l2_norm_clip, stddev, draws):
        super().__init__(l2_norm_clip, stddev)
        self._draws = draws

    def get_noised_result(self, sample_state, global_state):
        stddev = global_state.stddev
        _, global_state, event = super().get_noised_result((), global_state)
        noised = tf.nest.map_structure(
            lambda v: v + tf.cast(self._draws.normal(v, stddev), v.dtype), sample_state
        )
        return noised, global_state, event


class _SeededState(NamedTuple):
    """The state of TFP's query, and the number of noise draws so far, int32 scalar."""

    query: Any
    drawn: Any


class _SeededQuery(tfp.SumAggregationDPQuery):
    """One of TFP's queries, with noise from a seed and the number of draws so far."""

    def __init__(self, query, seed, draws):
        self._query, self._seed, self._draws = query, seed, draws

    def initial_global_state(self):
        return _SeededState(self._query.initial_global_state(), tf.constant(0))

    def derive_sample_params(self, global_state):
        return self._query.derive_sample_params(global_state.query)

    def initial_sample_state(self, template):
        return self._query.initial_sample_state(template)

    def preprocess_record(self, params, record):
        return self._query.preprocess_record(params, record)

    def get_noised_result(self, sample_state, global_state):
        seed = random.fold_in(tf.constant(self._seed), step=global_state.drawn)
        with self._draws.seeded(seed):
            result, query, event = self._query.get_noised_result(sample_state, global_state.query)
        return result, _SeededState(query, global_state.drawn + 1), event

    def derive_metrics(self, global_state):
        return self._query.derive_metrics(global_state.query)
