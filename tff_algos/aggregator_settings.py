"""The settings of aggregators, and which methods support them."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from tff_algos.method_spec import MethodSpec, common_setting
from tff_suite import hparams as hparams_lib


class AggregatorTraits(NamedTuple):
    """Properties of an aggregator for which a method may refuse it.

    Attributes:
      weighted: Whether it takes clients' weights.
      is_private: Whether it hides each client's update from the server.
      has_secure_sums: Whether it sums integers, as secure aggregation does.
    """

    weighted: bool
    is_private: bool = False
    has_secure_sums: bool = False


AGGREGATORS = {
    "mean": None,
    "robust": AggregatorTraits(weighted=True),
    "dp": AggregatorTraits(weighted=False, is_private=True),
    "compressed": AggregatorTraits(weighted=True),
    "secure": AggregatorTraits(weighted=True, is_private=True, has_secure_sums=True),
}

# Settings of `aggregator=dp` that only a clipping norm which adapts reads.
ADAPTIVE_CLIPPING = (
    "aggregator_initial_clip",
    "aggregator_target_quantile",
    "aggregator_clip_learning_rate",
    "aggregator_clipped_count_stddev",
)

# What secure sums are here, as callers, the command line and the folder of a run are told.
SIMULATED = "secure aggregation: sums are taken in clear, of the integers that it would sum"


# The last ones of `TRAINING_HPARAMS`.
AGGREGATOR_HPARAMS = (
    common_setting(
        "aggregator",
        "mean",
        "How clients' updates are combined: mean, robust (zeroes and clips large ones), dp (clips, "
        "adds Gaussian noise), compressed (quantises), or secure (a simulation: sums in clear).",
        source="the papers: the mean",
        choices=tuple(AGGREGATORS),
    ),
    common_setting(
        "aggregator_zeroing",
        hparams_lib.By("aggregator", {"mean": hparams_lib.NOT_USED}, otherwise=True),
        "Whether updates far larger than those before are zeroed.",
        source="TFF",
    ),
    common_setting(
        "aggregator_clipping",
        hparams_lib.By("aggregator", {"robust": True, "compressed": True, "secure": True}),
        "Whether updates are clipped to a norm that adapts to their 80 % quantile.",
        source="TFF",
    ),
    common_setting(
        "aggregator_noise_multiplier",
        hparams_lib.By("aggregator", {"dp": None}),
        "Standard deviation of the noise over the clipping norm. Must be set with dp; 0 is none.",
        source="none",
        type=float,
        minimum=0.0,
    ),
    common_setting(
        "aggregator_clients_per_round",
        hparams_lib.By("aggregator", {"dp": None}),
        "Fixed denominator of dp, regardless of dropped clients. Default: the clients that a round "
        "draws.",
        source="TFF",
        type=float,
        minimum=0.0,
        exclusive_minimum=True,
    ),
    common_setting(
        "aggregator_clip",
        hparams_lib.By("aggregator", {"dp": None}),
        "Fixed norm to which dp clips updates. By default the norm adapts to a quantile of them.",
        source="TFF, gaussian_fixed",
        type=float,
        minimum=0.0,
        exclusive_minimum=True,
    ),
    common_setting(
        "aggregator_initial_clip",
        hparams_lib.By("aggregator", {"dp": 0.1}),
        "Norm at which dp's adaptive clipping starts.",
        source="TFF",
        minimum=0.0,
        exclusive_minimum=True,
    ),
    common_setting(
        "aggregator_target_quantile",
        hparams_lib.By("aggregator", {"dp": 0.5}),
        "Share of updates that dp's adaptive clipping leaves unclipped.",
        source="TFF",
        minimum=0.0,
        maximum=1.0,
    ),
    common_setting(
        "aggregator_clip_learning_rate",
        hparams_lib.By("aggregator", {"dp": 0.2}),
        "Learning rate of dp's adaptive clipping norm.",
        source="TFF",
        minimum=0.0,
    ),
    common_setting(
        "aggregator_clipped_count_stddev",
        hparams_lib.By("aggregator", {"dp": None}),
        "Standard deviation of the noise on dp's count of unclipped updates. It must exceed half "
        "of the noise multiplier. Default: 0.05 times the clients of a round.",
        source="TFF",
        type=float,
        minimum=0.0,
        exclusive_minimum=True,
    ),
    common_setting(
        "aggregator_bits",
        hparams_lib.By("aggregator", {"compressed": 8}),
        "Bits of a quantised number.",
        source="TFF",
        minimum=1,
        maximum=16,
    ),
    common_setting(
        "aggregator_threshold",
        hparams_lib.By("aggregator", {"compressed": 20000}),
        "Tensors of more numbers than this are quantised.",
        source="TFF",
        minimum=0,
    ),
)


def check_aggregator(
    spec: MethodSpec,
    training: Mapping[str, Any],
    own: Mapping[str, Any],
    aggregator: str | None = None,
    traits: AggregatorTraits | None = None,
) -> None:
    """Refuses an aggregator that a method does not support.

    Args:
      spec: The method.
      training: The training settings, resolved.
      own: The method's own settings, resolved.
      aggregator: Name of the aggregator in an error; by default that of the setting `aggregator`.
      traits: Traits of an aggregator that you pass as an object; by default those of the setting.

    Raises:
      HparamError: If the method has no mean that an aggregator could replace. Also if the
        aggregator ignores weights that the method needs, cannot sum the method's weights, or would
        lose its privacy because clients send more in clear.
    """
    if traits is None:
        aggregator = f"aggregator={training['aggregator']}"
        traits = AGGREGATORS[training["aggregator"]]
    if traits is None:
        return
    if isinstance(spec.aggregated, str):
        raise hparams_lib.HparamError(
            f"{aggregator} is not supported by {spec.name}, which {spec.aggregated}."
        )
    own_weights, in_clear, where = spec.aggregated.own_weights, spec.aggregated.in_clear, ""
    if own_weights and not traits.weighted:
        raise hparams_lib.HparamError(
            f"{aggregator} is not supported by {spec.name}: it ignores clients' weights, and "
            "the method needs its own."
        )
    if not traits.weighted and training["client_weighting"] != "uniform":
        raise hparams_lib.HparamError(
            f"{aggregator} ignores clients' weights; set client_weighting=uniform with it."
        )
    if isinstance(in_clear, hparams_lib.By):
        where = f" with {in_clear.setting}={own[in_clear.setting]}"
        in_clear = in_clear.of(own[in_clear.setting])
    if traits.is_private and in_clear:
        raise hparams_lib.HparamError(
            f"{aggregator} is not supported by {spec.name}{where}, whose clients also send "
            f"{in_clear} in clear."
        )
    if traits.has_secure_sums and own_weights not in ("", "relative"):
        raise hparams_lib.HparamError(
            f"{aggregator} is not supported by {spec.name}: secure sums take weights in steps of "
            "2^-12 up to 2^20, and the method's may be of any size."
        )
