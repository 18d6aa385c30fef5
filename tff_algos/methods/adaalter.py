"""Local AdaAlter: clients run Adagrad whose accumulator only moves when the server averages it.

Xie, Koyejo, Gupta, Lin: "Local AdaAlter: Communication-Efficient Stochastic Gradient Descent with
Adaptive Learning Rates", arXiv 1911.09030, Algorithm 4; a special case of FedOpt in Reddi et al.,
arXiv 2003.00295, App. B.3.

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  ε        epsilon               1          the paper's experiments (not checked)
  b_0      b0                    1          the paper's experiments (not checked)
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   choice; the paper's workers are alike

    server → x, A ; A_0 = b_0²
    client:  A_k ← A ; step j = 1, 2, ...: g = ∇f(x_k; b)
             x_k ← x_k - η g / √(A + j ε²) ; A_k ← A_k + g²
    server:  x ← x + η_s Σ p_k (x_k - x) ; A ← Σ p_k A_k

The root takes the synchronised A, not A_k; j starts again every round.

Deviations from the paper:
  * Not checked against its text: update and constants are as described in the survey of the five
    papers this suite is about.
  * Clients are sampled and do as many steps as their data gives; the paper's workers all do H.
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
    name="adaalter",
    summary="Clients run Adagrad with the server's accumulator, which is averaged.",
    paper="Xie et al., Local AdaAlter, arXiv 1911.09030",
    hparams=(
        Hparam(
            "epsilon",
            1.0,
            "Epsilon: step j adds j epsilon^2 in the root.",
            source="AdaAlter",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "b0",
            1.0,
            "Root b_0 of the accumulator's first value.",
            source="AdaAlter",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_optimizers=("sgd",),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      accumulator: A, like the weights.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    accumulator: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: x, A and the client learning rate η."""

    weights: Weights
    accumulator: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      accumulator: A_k, like the weights; zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    accumulator: Weights
    weight: tf.Tensor
    metrics: Any


def build(model: Model, local: client.LocalTraining, *, epsilon: float, b0: float) -> Method:
    """Builds Local AdaAlter; see the module's docstring for the symbols."""
    eta_server = local.server_learning_rate

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        return ServerState(x, tuple(tf.zeros_like(w) + b0**2 for w in x), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.accumulator, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, synchronised, eta = broadcast

        def step(at, carry):
            own, j = carry
            x_k = tuple(
                w - eta * g / tf.sqrt(a + j * epsilon**2)
                for w, g, a in zip(at.weights, at.gradient, synchronised, strict=True)
            )
            own = tuple(a + g**2 for a, g in zip(own, at.gradient, strict=True))
            return x_k, (own, j + 1.0)

        carry = (tuple(synchronised), tf.ones([]))
        trained, (accumulator, _) = client.take_steps(model, step, x, carry, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, accumulator))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            accumulator=client.zero_unless(finite, accumulator),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state, delta: Weights, accumulator: Weights, total_weight) -> ServerState:
        x = tuple(x + eta_server * d for x, d in zip(state.weights, delta, strict=True))
        after = ServerState(x, tuple(accumulator), state.round_num)
        return next_state(state, after, total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        delta = federation.mean(update.delta, update.weight)
        accumulator = federation.mean(update.accumulator, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        after = federation.map_server(server_update, state, delta, accumulator, total_weight)
        return after, metrics

    return Method(initialize, next_round)
