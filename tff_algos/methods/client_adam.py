"""Adam on the clients, each with moments of its own: the "vanilla" method that FedCAda improves.

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
  * The paper does not say what t is. It is the number of the client's own steps, those of its
    earlier rounds included, as Adam's moments need it; `t_unit=round` counts the client's rounds.
  * `state=reset` starts moments and t afresh in every round; Algorithm 1 starts them once.
  * The gradient is taken at the previous iterate; the printed indices are off by one.
  * A client whose update is not finite keeps the moments that it had.
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
    name="client_adam",
    summary="Adam on the clients, each with moments of its own.",
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
            "state",
            "keep",
            "Whether each client goes on from the moments of its last round (keep) or "
            "starts afresh in every round (reset).",
            source="FedCAda, Algorithm 1",
            choices=("keep", "reset"),
        ),
        Hparam(
            "t_unit",
            "step",
            "What t counts in beta^t: the client's own steps or rounds, from 1, since its"
            " moments were 0.",
            source="choice: not given",
            choices=("step", "round"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
)


class ServerState(NamedTuple):
    """The model x, one tensor per model weight, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class Moments(NamedTuple):
    """What a client keeps: m_k and v_k, like the weights, and its steps so far, int32 scalar."""

    m: Weights
    v: Weights
    steps: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client gives.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      weight: 1 or n_k, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
      client_state: Its `Moments`; empty for `state=reset`.
    """

    delta: Weights
    weight: tf.Tensor
    metrics: Any
    client_state: Any


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
    eta_g = local.server_learning_rate

    def no_moments() -> Moments:
        zeros = tuple(tf.zeros(w.shape, w.dtype) for w in model.initial_weights)
        return Moments(zeros, zeros, tf.constant(0))

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state=None) -> ClientUpdate:
        x, eta_l = broadcast
        start, rounds_before = no_moments(), tf.constant(0)
        if client_state is not None:
            start, rounds_before = client.recall(client_state, start), client_state.visits

        def step(at, carry):
            m, v, steps = carry
            steps += 1
            t = steps if t_unit == "step" else rounds_before + 1
            m = tuple(beta1 * m + (1.0 - beta1) * g for m, g in zip(m, at.gradient, strict=True))
            v = tuple(beta2 * v + (1.0 - beta2) * g**2 for v, g in zip(v, at.gradient, strict=True))
            correct1, correct2 = _correction(beta1, t), _correction(beta2, t)
            x_k = tuple(
                w - eta_l * (m / correct1) / (tf.sqrt(v / correct2) + epsilon)
                for w, m, v in zip(at.weights, m, v, strict=True)
            )
            return x_k, Moments(m, v, steps)

        trained, moments = client.take_steps(model, step, x, start, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, moments.m, moments.v))
        kept = () if client_state is None else client.keep(client_state, data, finite, moments)
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
            client_state=kept,
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, total_weight) -> ServerState:
        x = tuple(x + eta_g * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, state._replace(weights=x), total_weight)

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, *client_states)
        delta = federation.mean(update.delta, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, delta, total_weight)
        return state, metrics, *([update.client_state] if client_states else [])

    return Method(initialize, next_round, no_moments if state == "keep" else None)


def _correction(beta: float, t: tf.Tensor) -> tf.Tensor:
    """Returns 1 - β^t, float32; in float32, 1 - 0.99 alone would be off by 6e-6."""
    power = tf.pow(tf.constant(beta, tf.float64), tf.cast(t, tf.float64))
    return tf.cast(1.0 - power, tf.float32)
