"""FAFED: clients take variance-reduced adaptive steps whose scale the server fixes for the round.

Wu, Huang, Hu, Huang: "Faster Adaptive Federated Learning", AAAI 2023, arXiv 2212.00974, Algorithm
1; a baseline of FedCAda.

  symbol   argument              default   from
  η        client_learning_rate  -         tuned
  α        alpha                 0.1       FedCAda's grid 0.1, 0.5, 0.9
  β        beta                  0.99      FedCAda
  ρ        rho                   0.01      the third-party code that was read
  -        server_learning_rate  1         the mean of the clients' models
  1/K      client_weighting      uniform   Algorithm 1

    first round: m = mean ∇F_k(x), v = mean (∇F_k(x))² over its cohort
    server → x, m, v ; H = √v + ρ, fixed inside the round
    client:  x_k, m_k, v_k ← x, m, v ; each batch, with g = ∇f(x_k; b):
             from the second on: m_k ← g + (1 - α) (m_k - ∇f(x_k^prev; b))
             v_k ← β v_k + (1 - β) g² ; x_k^prev ← x_k ; x_k ← x_k - η m_k / H
    server:  x ← x + η_s mean(x_k - x) ; m, v ← means of m_k, v_k

Deviations from the paper:
  * Clients keep nothing, so a round's first step takes the broadcast m as it is; the code that was
    read pairs that step with the client's own iterate from before the last average.
  * Not checked against the paper's text: the update is that of third-party code.
  * m and v start from full local gradients, in an exchange of its own in every round; after the
    first round it asks nothing of the clients.
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
    name="fafed",
    summary=("Variance-reduced adaptive client steps on a scale that the server fixes."),
    paper="Wu et al., Faster Adaptive Federated Learning, arXiv 2212.00974",
    hparams=(
        Hparam(
            "alpha",
            0.1,
            "How much of the gradient estimate a step forgets (alpha).",
            source="FedCAda's grid 0.1, 0.5, 0.9",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "beta",
            0.99,
            "Decay beta of the second moment.",
            source="FedCAda",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
        Hparam(
            "rho",
            0.01,
            "What is added to the root (rho).",
            source="third-party code",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      m: Gradient estimate, like the weights; has no meaning while `updates` is 0.
      v: Second moment, likewise.
      updates: Rounds that changed the model, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    m: Weights
    v: Weights
    updates: tf.Tensor
    round_num: tf.Tensor


class Start(NamedTuple):
    """The first broadcast of a round: the model x and whether m and v are still to be found."""

    weights: Weights
    is_first: tf.Tensor


class StartUpdate(NamedTuple):
    """The first answer: ∇F_k(x), its square (zeros if not asked for), the weight; 0 if dropped."""

    gradient: Weights
    square: Weights
    weight: tf.Tensor


class Broadcast(NamedTuple):
    """The second broadcast: m, v and the client learning rate η."""

    m: Weights
    v: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """The second answer.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      m: m_k, likewise.
      v: v_k, likewise.
      weight: 1 or n_k, float32 scalar, likewise.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    m: Weights
    v: Weights
    weight: tf.Tensor
    metrics: Any


def build(
    model: Model, local: client.LocalTraining, *, alpha: float, beta: float, rho: float
) -> Method:
    """Builds FAFED; see the module's docstring for the symbols."""
    eta_server = local.server_learning_rate

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        zeros = tuple(tf.zeros_like(w) for w in x)
        return ServerState(x, zeros, zeros, tf.constant(0), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_start(state: ServerState) -> Start:
        return Start(state.weights, tf.equal(state.updates, 0))

    @tf.function(autograph=False)
    def client_start(start: Start, data) -> StartUpdate:
        asked = data._replace(mask=data.mask * tf.cast(start.is_first, tf.float32))
        gradient = client.full_loss(model, start.weights, asked).gradient
        finite = client.is_finite(gradient)
        gradient = client.zero_unless(finite, gradient)
        weight = client.zero_unless(finite, local.client_weight(data))
        return StartUpdate(gradient, tuple(g**2 for g in gradient), weight)

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState, gradient: Weights, square: Weights) -> Broadcast:
        is_first = tf.equal(state.updates, 0)
        m = tuple(tf.where(is_first, g, m) for g, m in zip(gradient, state.m, strict=True))
        v = tuple(tf.where(is_first, s, v) for s, v in zip(square, state.v, strict=True))
        return Broadcast(m, v, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(start: Start, broadcast: Broadcast, data) -> ClientUpdate:
        x, (m, v, eta) = start.weights, broadcast
        scale = tuple(tf.sqrt(v) + rho for v in v)

        def step(at, carry):
            m, v, previous, is_first = carry
            corrected = tuple(
                g + (1.0 - alpha) * (m - old)
                for g, m, old in zip(at.gradient, m, at.gradient_at(previous), strict=True)
            )
            m = tuple(tf.where(is_first, m, c) for m, c in zip(m, corrected, strict=True))
            v = tuple(beta * v + (1.0 - beta) * g**2 for v, g in zip(v, at.gradient, strict=True))
            x_k = tuple(w - eta * m / h for w, m, h in zip(at.weights, m, scale, strict=True))
            return x_k, (m, v, at.weights, tf.constant(False))

        carry = (tuple(m), tuple(v), tuple(x), tf.constant(True))
        trained, (m, v, _, _) = client.take_steps(model, step, x, carry, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, m, v))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            m=client.zero_unless(finite, m),
            v=client.zero_unless(finite, v),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, mean, total_weight) -> ServerState:
        delta, m, v = mean
        x = tuple(x + eta_server * d for x, d in zip(state.weights, delta, strict=True))
        after = ServerState(x, tuple(m), tuple(v), state.updates + 1, state.round_num)
        return next_state(state, after, total_weight)

    def next_round(federation, state, clients):
        start = federation.broadcast(federation.map_server(prepare_start, state))
        first = federation.map_clients(client_start, start, clients)
        gradient = federation.mean(first.gradient, first.weight)
        square = federation.mean(first.square, first.weight)
        broadcast = federation.broadcast(
            federation.map_server(prepare_broadcast, state, gradient, square)
        )
        update = federation.map_clients(client_update, start, broadcast, clients)
        mean = federation.mean((update.delta, update.m, update.v), update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, mean, total_weight), metrics

    return Method(initialize, next_round)
