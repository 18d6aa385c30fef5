"""FAFED: clients take variance-reduced adaptive steps whose scale the server fixes for the round.

Wu, Huang, Hu, Huang: "Faster Adaptive Federated Learning", AAAI 2023, arXiv 2212.00974, Algorithm
1; a baseline of FedCAda.

  symbol   argument              default   from
  η        client_learning_rate  -         tuned
  α        alpha                 0.1       FedCAda, section 4.1 (0.1 or 0.9, as β_1)
  β        beta                  0.99      FedCAda, section 4.1 (as β_2)
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
  * Clients keep nothing, so a round's first step uses the broadcast m unchanged. The third-party
    code instead pairs that step with the client's iterate from before the last average.
  * This file was not checked against the paper's text: the update is that of third-party code.
  * m and v start from full local gradients. Every round has a separate exchange for them, which is
    empty after the first round.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.moments import moving_average
from tff_algos.registry import Aggregated, MethodSpec, RoundCost, decay
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="fafed",
    display_name="FAFED",
    look=("green", "dash_dot"),
    summary="Clients take variance-reduced adaptive steps; the server sets their scale.",
    paper="Wu et al., Faster Adaptive Federated Learning, arXiv 2212.00974",
    hparams=(
        Hparam(
            "alpha",
            0.1,
            "How much of the gradient estimate a step forgets (alpha).",
            source="FedCAda, section 4.1 (0.1 or 0.9, as beta_1)",
            minimum=0.0,
            maximum=1.0,
        ),
        decay("beta", 0.99, "Decay beta of the second moment.", "FedCAda, section 4.1"),
        Hparam(
            "rho",
            0.01,
            "Added to the root (rho).",
            source="third-party code",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(in_clear="their moments m_k and v_k"),
    measures=(),
    cost=RoundCost(gradients=2, down=3, up=3),
    known_problems=(
        "It diverges easily: on Fashion-MNIST, in FedCAda's set-ups, a client rate of 0.01 "
        "diverged or stayed at chance.",
    ),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      m: Gradient estimate, like the weights; not used while `updates` is 0.
      v: Second moment, likewise.
      updates: Rounds that changed the model, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    m: Vector
    v: Vector
    updates: tf.Tensor
    round_num: tf.Tensor


class Start(NamedTuple):
    """The first broadcast of a round: the model x, and whether m and v are still unknown."""

    weights: Vector
    is_first: tf.Tensor


class StartUpdate(NamedTuple):
    """The first answer: ∇F_k(x), its square (zeros unless needed), the weight; 0 if dropped."""

    gradient: Vector
    square: Vector
    weight: tf.Tensor


class Broadcast(NamedTuple):
    """The second broadcast: m, v and the client learning rate η."""

    m: Vector
    v: Vector
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """The second answer, averaged over clients: x_k - x, m_k and v_k, like the weights."""

    delta: Vector
    m: Vector
    v: Vector


def build(
    model: Model, local: client.LocalTraining, *, alpha: float, beta: float, rho: float
) -> Method:
    """Builds FAFED; see the module's docstring for the symbols."""

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), zeros(x), tf.constant(0), tf.constant(0))

    def prepare_start(state: ServerState) -> Start:
        return Start(state.weights, tf.equal(state.updates, 0))

    def client_start(start: Start, data: ClientData) -> StartUpdate:
        asked = client.none_unless(start.is_first, data)
        gradient, weight = averaging.give_gradient(model, local, start.weights, asked)
        return StartUpdate(gradient, gradient**2, weight)

    def prepare_broadcast(state: ServerState, gradient: Vector, square: Vector) -> Broadcast:
        is_first = tf.equal(state.updates, 0)
        m = client.choose(is_first, gradient, state.m)
        v = client.choose(is_first, square, state.v)
        return Broadcast(m, v, local.learning_rate(state.round_num))

    def client_update(start: Start, broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, (m, v, eta) = start.weights, broadcast
        scale = v.sqrt() + rho

        def step(at, carry):
            m, v, previous = carry
            corrected = at.gradient + (1.0 - alpha) * (m - at.gradient_at(previous))
            m = client.choose(tf.equal(at.number, 0), m, corrected)
            v = moving_average(beta, v, at.gradient**2)
            return at.weights - eta * m / scale, (m, v, at.weights)

        trained, (m, v, _) = client.take_steps(model, step, x, (m, v, x), data)
        return ClientResult(trained, Report(trained.weights - x, m, v))

    def server_update(state: ServerState, mean: Report, total_weight: tf.Tensor) -> ServerState:
        x = state.weights + local.server_learning_rate * mean.delta
        after = ServerState(x, mean.m, mean.v, state.updates + 1, state.round_num)
        return averaging.next_state(state, after, total_weight)

    mean_reports = averaging.mean_each(Report._make, *Report._fields)

    def next_round(federation, state, clients):
        start = federation.broadcast(federation.map_server(prepare_start, state))
        first = federation.map_clients(client_start, start, clients)
        gradient = federation.mean(first.gradient, first.weight)
        square = federation.mean(first.square, first.weight)
        broadcast = federation.broadcast(
            federation.map_server(prepare_broadcast, state, gradient, square)
        )
        update = federation.map_clients(client_update, start, broadcast, clients)
        (mean,) = mean_reports(federation, update)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(averaging.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, mean, total_weight), metrics

    return averaging.write_out(model, local, initialize, next_round)
