"""Client Adam: each client runs Adam with its own moments; the "vanilla" method of FedCAda.

Zhou et al.: "FedCAda: Adaptive Client-Side Optimization for Accelerated and Stable Federated
Learning", arXiv 2405.11811, Algorithm 1.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  β_1      beta1                 0.9       section 4.1 (0.1 or 0.9)
  β_2      beta2                 0.99      section 4.1
  ε        epsilon               1e-8      choice: not given
  -        state                 keep      Algorithm 1, which starts m and v once; Fig. 2
  t        t_unit                step      choice: not given
  η_g      server_learning_rate  1         choice: not given
  1/|S|    client_weighting      uniform   Algorithm 1

    client k keeps m_k, v_k, both 0 at first
    client:  x_k ← x ; each batch, with g = ∇f(x_k; b):
             m_k ← β_1 m_k + (1 - β_1) g ; v_k ← β_2 v_k + (1 - β_2) g²
             x_k ← x_k - η_l [m_k / (1 - β_1^t)] / (√(v_k / (1 - β_2^t)) + ε)
    server:  x ← x + η_g mean(x_k - x)

Deviations from the paper, which has no released code:
  * The paper does not define t. Here it is the number of the client's own steps, including earlier
    rounds, as Adam's moments require; `t_unit=round` counts the client's rounds.
  * `state=reset` starts moments and t from zero in every round; Algorithm 1 starts them once.
  * The gradient is taken at the previous iterate; the printed indices are off by one.
  * A client whose update is not finite keeps its old moments.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method
from tff_algos.model import Model
from tff_algos.parts.moments import CLIENT_ADAM, bias_left, moving_average
from tff_algos.registry import Aggregated, MethodSpec
from tff_algos.vector import Vector, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="client_adam",
    display_name="Client Adam",
    look=("blue", "dash_dot_dot"),
    summary="Adam on the clients, each with its own moments.",
    paper="Zhou et al., FedCAda: Adaptive Client-Side Optimization, arXiv 2405.11811",
    hparams=(
        *CLIENT_ADAM,
        Hparam(
            "state",
            "keep",
            "Whether each client continues from the moments of its last round (keep) or starts "
            "from zero in every round (reset).",
            source="FedCAda, Algorithm 1",
            choices=("keep", "reset"),
        ),
        Hparam(
            "t_unit",
            "step",
            "What t counts in beta^t: the client's own steps or rounds, from 1, since its moments "
            "were 0.",
            source="choice: not given",
            choices=("step", "round"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(),
    measures=(),
)


class Moments(NamedTuple):
    """A client's state: m_k and v_k, like the weights, and its steps so far, int32 scalar."""

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
    state: str,
    t_unit: str,
) -> Method:
    """Builds Adam on the clients; see the module's docstring for the symbols."""

    def no_moments() -> Moments:
        start = zeros(model.initial_weights)
        return Moments(start, start, tf.constant(0))

    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, client_state: ClientState | None = None
    ) -> ClientResult:
        x, eta_l = broadcast
        start, rounds_before = no_moments(), tf.constant(0)
        if client_state is not None:
            start, rounds_before = client.recall(client_state, start), client_state.visits

        def step(at, carry):
            m, v = carry
            t = 1 + (start.steps + at.number if t_unit == "step" else rounds_before)
            m = moving_average(beta1, m, at.gradient)
            v = moving_average(beta2, v, at.gradient**2)
            left1, left2 = (bias_left(tf.constant(b, tf.float64), t) for b in (beta1, beta2))
            m_hat, v_hat = m / left1, v / left2
            return at.weights - eta_l * m_hat / (v_hat.sqrt() + epsilon), (m, v)

        trained, (m, v) = client.take_steps(model, step, x, (start.m, start.v), data)
        moments = Moments(m, v, start.steps + client.num_steps(data))
        delta = trained.weights - x
        finite = client.is_finite((delta, moments))
        kept = None if client_state is None else moments
        return ClientResult(trained, delta, finite=finite, kept=kept)

    client_state = no_moments if state == "keep" else None
    return averaging.build(model, local, client_update, client_state=client_state)
