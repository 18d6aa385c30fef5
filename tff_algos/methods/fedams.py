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
  1/|S|    client_weighting      uniform   Algorithm 1

    server:  Δ = mean Δ_k ; m ← β_1 m + (1 - β_1) Δ ; v ← β_2 v + (1 - β_2) Δ²
             v̂ ← max(v̂, v), v̂_0 = ε
             x ← x + η [m / (1 - β_1^t)] / (√v̂ / √(1 - β_2^t) + epsilon)

Deviations from the paper:
  * Bias correction is that of the released code; the paper has none: `bias_correction=false`.
    The maximum is taken before the correction.
  * The paper writes v̂ = max(v̂, v, ε), which v̂_0 = ε gives too since v̂ never decreases.
  * Rounds in which every client was dropped leave everything, t included, as it was.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from hparams import Hparam
from tff_algos import client
from tff_algos.method import Method
from tff_algos.methods import fedopt
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.weights import Weights

SPEC = MethodSpec(
    name="fedams",
    summary="AMSGrad on the server.",
    paper=("Wang et al., Communication-Efficient Adaptive Federated Learning, arXiv 2205.02719"),
    hparams=(
        Hparam(
            "beta1",
            0.9,
            "Decay beta_1 of the first moment.",
            source="FedAMS, README of the released code",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
        Hparam(
            "beta2",
            0.99,
            "Decay beta_2 of the second moment.",
            source="FedAMS, README of the released code",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
        Hparam(
            "epsilon_max",
            0.001,
            "Where the largest second moment v-hat starts, below which it never is (epsilon).",
            source="FedAMS, README of the released code",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "epsilon",
            0.0,
            "What is added to the root of v-hat.",
            source="FedAMS, README of the released code",
            minimum=0.0,
        ),
        Hparam(
            "bias_correction",
            True,
            "Whether moments are corrected for their bias, as in the released code; the "
            "paper does not.",
            source="FedAMS, the released code",
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
)


class Slots(NamedTuple):
    """What the server keeps beside the model.

    Attributes:
      m: First moment, like the weights.
      v: Second moment, like the weights.
      v_max: v̂, the largest v so far, like the weights.
      t: Number of steps, int32 scalar.
    """

    m: Weights
    v: Weights
    v_max: Weights
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

    def initialize(weights: Weights) -> Slots:
        zeros = tuple(tf.zeros_like(w) for w in weights)
        return Slots(zeros, zeros, tuple(z + epsilon_max for z in zeros), tf.constant(0))

    def step(slots: Slots, x: Weights, g: Weights) -> tuple[Slots, Weights]:
        t = slots.t + 1
        delta = tuple(-g for g in g)
        m = tuple(beta1 * m + (1.0 - beta1) * d for m, d in zip(slots.m, delta, strict=True))
        v = tuple(beta2 * v + (1.0 - beta2) * d**2 for v, d in zip(slots.v, delta, strict=True))
        v_max = tuple(tf.maximum(h, v) for h, v in zip(slots.v_max, v, strict=True))
        correct1, correct2 = 1.0, 1.0
        if bias_correction:
            # In float32, 1 - 0.99 alone is off by 6e-6.
            left = [1.0 - tf.cast(b, tf.float64) ** tf.cast(t, tf.float64) for b in (beta1, beta2)]
            correct1, correct2 = tf.cast(left[0], tf.float32), tf.cast(tf.sqrt(left[1]), tf.float32)
        x = tuple(
            x + eta * (m / correct1) / (tf.sqrt(h) / correct2 + epsilon)
            for x, m, h in zip(x, m, v_max, strict=True)
        )
        return Slots(m, v, v_max, t), x

    return fedopt.build_fedopt(model, local, fedopt.ServerOptimizer(initialize, step))
