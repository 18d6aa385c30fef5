"""FedCAda: clients run Adam from the server's moments, with an adjusted correction of their bias.

Zhou et al.: "FedCAda: Adaptive Client-Side Optimization for Accelerated and Stable Federated
Learning", arXiv 2405.11811, Algorithm 2 and the adjustment functions of section 3.2.2.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  β_1      beta1                 0.9       section 4.1 (0.1 or 0.9)
  β_2      beta2                 0.99      section 4.1
  ε        epsilon               1e-8      choice: not given
  φ        option                1         main tables: 1 is z, 2 is z², 3 sin z, 4 √z
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
    of this round, plus for each earlier round those of its longest client.
  * The gradient is taken at the previous iterate; the printed indices are off by one.
  * The options replace the correction (lines 12, 13), not the moments, as their formulas say.
  * `option=none` leaves the moments uncorrected (φ = 0), the ablation "w/o functions".
  * Option 2 is best in Table 3, but the main tables use option 1, which is the default.
  * The paper says that φ always shrinks steps, and that its effect fades. The factor √(1 + β_2^t) /
    (1 + β_1^t) exceeds 1 from round 10 on (β_1 = 0.9), and always for β_1 = 0.1.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.parts.moments import CLIENT_ADAM, moving_average
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="fedcada",
    display_name="FedCAda",
    look=("vermilion", "dash_dot"),
    summary="Clients run Adam from the server's moments, with an adjusted bias correction.",
    paper="Zhou et al., FedCAda: Adaptive Client-Side Optimization, arXiv 2405.11811",
    hparams=(
        *CLIENT_ADAM,
        Hparam(
            "option",
            "1",
            "Adjustment function phi of z = beta^t: option 1 is z, 2 is z^2, 3 is sin z, 4 is the "
            "root of z; none leaves the moments uncorrected.",
            source="FedCAda, main tables (its Table 3 has option 2 in front)",
            choices=("1", "2", "3", "4", "none"),
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
    aggregated=Aggregated(in_clear="their moments m_k and v_k"),
    measures=(),
    cost=RoundCost(down=3, up=3),
    known_problems=(
        "Once the rate is tuned, the adjustment changes little: 0.1 to 0.3 points over none "
        "on Fashion-MNIST. The paper has 5 to 6 on its own data.",
    ),
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
      steps: Local steps so far, taking each round's longest client; int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    m: Vector
    v: Vector
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x, m, v, the rate η_l, the round, and the steps before it."""

    weights: Vector
    m: Vector
    v: Vector
    learning_rate: tf.Tensor
    round_num: tf.Tensor
    steps: tf.Tensor


class Report(NamedTuple):
    """What a client sends: x_k - x, m_k and v_k, like the weights, and its steps τ_k, int32."""

    delta: Vector
    m: Vector
    v: Vector
    steps: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    option: str,
    t_unit: str,
) -> Method:
    """Builds FedCAda; see the module's docstring for the symbols."""
    phi = ADJUSTMENTS[option]

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), zeros(x), tf.constant(0), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        eta_l = local.learning_rate(state.round_num)
        return Broadcast(state.weights, state.m, state.v, eta_l, state.round_num, state.steps)

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, m, v, eta_l, round_num, steps_before = broadcast

        def step(at, carry):
            m, v = carry
            t = 1 + (steps_before + at.number if t_unit == "step" else round_num)
            m = moving_average(beta1, m, at.gradient)
            v = moving_average(beta2, v, at.gradient**2)
            correct1 = 1.0 + phi(tf.pow(beta1, tf.cast(t, tf.float32)))
            correct2 = 1.0 + phi(tf.pow(beta2, tf.cast(t, tf.float32)))
            m_hat, v_hat = m / correct1, v / correct2
            return at.weights - eta_l * m_hat / (v_hat.sqrt() + epsilon), (m, v)

        trained, (m, v) = client.take_steps(model, step, x, (m, v), data)
        report = Report(trained.weights - x, m, v, client.num_steps(data))
        return ClientResult(trained, report)

    def aggregate(federation, update):
        report = update.report
        delta = mean_of_updates(federation, report.delta, update.weight)
        m, v = (federation.mean(moment, update.weight) for moment in (report.m, report.v))
        return (delta, m, v), federation.max(report.steps)

    def server_update(
        state: ServerState, mean: tuple[Vector, Vector, Vector], longest: tf.Tensor
    ) -> ServerState:
        delta, m, v = mean
        x = state.weights + local.server_learning_rate * delta
        return ServerState(x, m, v, state.steps + longest, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
    )
