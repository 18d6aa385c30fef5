"""FedCAda: clients run Adam from the server's moments, with an adjusted correction of their bias.

Zhou et al.: "FedCAda: Adaptive Client-Side Optimization for Accelerated and Stable Federated
Learning", arXiv 2405.11811, Algorithm 2 and the adjustment functions of section 3.2.2.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  β_1      beta1                 0.9       section 4.1 (0.1 or 0.9)
  β_2      beta2                 0.99      section 4.1
  ε        epsilon               1e-8      choice: not given
  φ        adjustment            1         main tables: option 1 (z); 2 is z², 3 sin z, 4 √z
  t        t_unit                round     Fig. 3, which plots φ over rounds
  η_g      server_learning_rate  1         choice: not given
  1/|S|    client_weighting      uniform   Algorithm 2

    server → x, m, v
    client:  x_k, m_k, v_k ← x, m, v ; each batch, with g = ∇f(x_k; b):
             m_k ← β_1 m_k + (1 - β_1) g ; v_k ← β_2 v_k + (1 - β_2) g²
             x_k ← x_k - η_l [m_k / (1 + φ(β_1^t))] / (√(v_k / (1 + φ(β_2^t))) + ε)
    server:  x ← x + η_g mean(x_k - x) ; m, v ← means of m_k, v_k

Deviations from the paper, which has no released code:
  * t is the round, counted from 1 and constant within it. `t_unit=step` counts local steps: those
    of all earlier rounds, each counted by its longest client, and those of this round.
  * The gradient is taken at the previous iterate; the printed indices are off by one.
  * The options replace the correction (lines 12, 13), not the moments, as their formulas say.
  * `adjustment=none` leaves the moments uncorrected (φ = 0), the ablation "w/o functions".
  * Table 3 has option 2 in front although the main tables use option 1; the default is the latter.
  * The paper says that φ always shrinks steps and fades. The factor √(1 + β_2^t) / (1 + β_1^t)
    exceeds 1 from round 10 on (β_1 = 0.9), and always for β_1 = 0.1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from hparams import Hparam
from tff_algos import client
from tff_algos.averaging import next_state
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.weights import Weights

SPEC = MethodSpec(
    name="fedcada",
    summary=("Clients run Adam from the server's moments, with an adjusted bias correction."),
    paper=("Zhou et al., FedCAda: Adaptive Client-Side Optimization, arXiv 2405.11811"),
    hparams=(
        Hparam(
            "beta1",
            0.9,
            "Decay beta_1 of the first moment.",
            source="FedCAda, section 4.1",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
        Hparam(
            "beta2",
            0.99,
            "Decay beta_2 of the second moment.",
            source="FedCAda, section 4.1",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
        Hparam(
            "epsilon",
            1e-08,
            "Epsilon, added outside the root.",
            source="choice: not given",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "adjustment",
            "1",
            "Adjustment function phi of z = beta^t: option 1 is z, 2 is z^2, 3 is sin z, "
            "4 is the root of z; none leaves the moments uncorrected.",
            source="FedCAda, main tables (its Table 3 has option 2 in front)",
            choices=("1", "2", "3", "4", "none"),
            flag="fedcada_option",
        ),
        Hparam(
            "t_unit",
            "round",
            "What t counts in beta^t: rounds from 1, or local steps.",
            source="FedCAda, Fig. 3",
            choices=("round", "step"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
)


ADJUSTMENTS = {
    "1": lambda z: z,
    "2": lambda z: tf.square(z),
    "3": lambda z: tf.sin(z),
    "4": lambda z: tf.sqrt(z),
    "none": lambda z: tf.zeros_like(z),
}


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      m: First moment, like the weights.
      v: Second moment, like the weights.
      steps: Local steps so far, each round counted by its longest client; int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    m: Weights
    v: Weights
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x, m, v, the rate η_l, the round and the steps before it."""

    weights: Weights
    m: Weights
    v: Weights
    learning_rate: tf.Tensor
    round_num: tf.Tensor
    steps: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      m: Its raw first moment m_k, likewise.
      v: Its raw second moment v_k, likewise.
      steps: Its local steps τ_k, int32 scalar, likewise.
      weight: 1 or n_k, float32 scalar, likewise.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    m: Weights
    v: Weights
    steps: tf.Tensor
    weight: tf.Tensor
    metrics: Any


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    adjustment: str,
    t_unit: str,
) -> Method:
    """Builds FedCAda; see the module's docstring for the symbols."""
    eta_g = local.server_learning_rate
    phi = ADJUSTMENTS[adjustment]

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        zeros = tuple(tf.zeros_like(w) for w in x)
        return ServerState(x, zeros, zeros, tf.constant(0), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        eta_l = local.learning_rate(state.round_num)
        return Broadcast(state.weights, state.m, state.v, eta_l, state.round_num, state.steps)

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, m, v, eta_l, round_num, steps_before = broadcast

        def step(at, carry):
            m, v, t = carry
            m = tuple(beta1 * m + (1.0 - beta1) * g for m, g in zip(m, at.gradient, strict=True))
            v = tuple(beta2 * v + (1.0 - beta2) * g**2 for v, g in zip(v, at.gradient, strict=True))
            correct1 = 1.0 + phi(tf.pow(beta1, tf.cast(t, tf.float32)))
            correct2 = 1.0 + phi(tf.pow(beta2, tf.cast(t, tf.float32)))
            x_k = tuple(
                w - eta_l * (m / correct1) / (tf.sqrt(v / correct2) + epsilon)
                for w, m, v in zip(at.weights, m, v, strict=True)
            )
            return x_k, (m, v, t + 1 if t_unit == "step" else t)

        t = 1 + (steps_before if t_unit == "step" else round_num)
        trained, (m, v, _) = client.take_steps(model, step, x, (tuple(m), tuple(v), t), data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, m, v))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            m=client.zero_unless(finite, m),
            v=client.zero_unless(finite, v),
            steps=client.zero_unless(finite, client.num_steps(data)),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, mean, longest, total_weight) -> ServerState:
        delta, m, v = mean
        x = tuple(x + eta_g * d for x, d in zip(state.weights, delta, strict=True))
        after = ServerState(x, tuple(m), tuple(v), state.steps + longest, state.round_num)
        return next_state(state, after, total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        mean = federation.mean((update.delta, update.m, update.v), update.weight)
        longest = federation.max(update.steps)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, mean, longest, total_weight), metrics

    return Method(initialize, next_round)
