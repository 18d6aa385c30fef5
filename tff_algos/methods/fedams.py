"""FedAMS: the server runs AMSGrad on the mean client update.

Wang, Lin, Chen: "Communication-Efficient Adaptive Federated Learning", ICML 2022, arXiv 2205.02719,
Algorithm 1 (FedAMS, uncompressed); a baseline of FedCAda.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned; the released code's README: 0.01
  η        server_learning_rate  1         the released code's README
  β_1      beta1                 0.9       the same
  β_2      beta2                 0.99      the same
  ε        epsilon_max           1e-3      the same (`max_v`, the floor of v̂)
  -        epsilon               0         the same (`eps`, added to the root)
  -        bias_correction       true      the released code
  1/|S|    client_weighting      uniform   Algorithm 1

    server:  Δ = mean Δ_k ; m ← β_1 m + (1 - β_1) Δ ; v ← β_2 v + (1 - β_2) Δ²
             v̂ ← max(v̂, v), v̂_0 = ε
             x ← x + η [m / (1 - β_1^t)] / (√v̂ / √(1 - β_2^t) + epsilon)

Deviations from the paper:
  * Bias correction follows the released code, with the maximum taken before the correction. The
    paper has none: `bias_correction=false`.
  * The paper writes v̂ = max(v̂, v, ε). Starting from v̂_0 = ε gives the same, since v̂ never
    decreases.
  * Rounds in which every client was dropped change nothing, not even t.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.moments import bias_left, moving_average
from tff_algos.parts.server_optimizer import ServerOptimizer, build_around
from tff_algos.registry import Aggregated, MethodSpec, decay
from tff_algos.vector import Vector, zeros
from tff_suite.hparams import Hparam

_README = "FedAMS, README of the released code"

SPEC = MethodSpec(
    name="fedams",
    display_name="FedAMS",
    look=("orange", "dash_dot_dot"),
    summary="AMSGrad on the server.",
    paper="Wang et al., Communication-Efficient Adaptive Federated Learning, arXiv 2205.02719",
    hparams=(
        decay("beta1", 0.9, "Decay beta_1 of the first moment.", _README),
        decay("beta2", 0.99, "Decay beta_2 of the second moment.", _README),
        Hparam(
            "epsilon_max",
            1e-3,
            "Initial value and lower bound of the largest second moment v-hat (epsilon).",
            source=_README,
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "epsilon",
            0.0,
            "Added to the root of v-hat.",
            source=_README,
            minimum=0.0,
        ),
        Hparam(
            "bias_correction",
            True,
            "Whether moments are corrected for their bias, as in the released code; the paper "
            "does not correct them.",
            source="FedAMS, the released code",
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    aggregated=Aggregated(),
    measures=(),
)


class Slots(NamedTuple):
    """What the server keeps beside the model.

    Attributes:
      m: First moment, like the weights.
      v: Second moment, like the weights.
      v_max: v̂, the largest v so far, like the weights.
      t: Number of steps, int32 scalar.
    """

    m: Vector
    v: Vector
    v_max: Vector
    t: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    epsilon_max: float,
    epsilon: float,
    bias_correction: bool,
) -> Method:
    """Builds FedAMS: FedOpt's clients, and the server step of the module's docstring."""
    eta = local.server_learning_rate

    def initialize(x: Vector) -> Slots:
        return Slots(zeros(x), zeros(x), zeros(x) + epsilon_max, tf.constant(0))

    def step(slots: Slots, x: Vector, g: Vector) -> tuple[Slots, Vector]:
        t = slots.t + 1
        delta = -g
        m = moving_average(beta1, slots.m, delta)
        v = moving_average(beta2, slots.v, delta**2)
        v_max = slots.v_max.maximum(v)
        correct1, correct2 = 1.0, 1.0
        if bias_correction:
            correct1 = bias_left(beta1, t)
            correct2 = tf.cast(tf.sqrt(bias_left(beta2, t, tf.float64)), tf.float32)
        x += eta * (m / correct1) / (v_max.sqrt() / correct2 + epsilon)
        return Slots(m, v, v_max, t), x

    return build_around(ServerOptimizer(initialize, step), model, local)
