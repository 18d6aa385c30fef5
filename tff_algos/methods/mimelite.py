"""MimeLite: clients step with the server's optimizer state, which only full gradients move.

Karimireddy et al.: "Breaking the Centralized Barrier for Cross-Device Federated Learning" (Mime),
NeurIPS 2021, arXiv 2008.03606, Algorithm 1 (MimeLite: without control variates); a baseline of
FedDA. The same as `tff.learning.algorithms.build_weighted_mime_lite`.

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  B        client_optimizer      sgdm       choice: momentum 0.9 as in FedDA's baselines
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   TFF (build_weighted_mime_lite)

    server → x, s (state of the base optimizer B)
    client:  each batch: x_k ← B's step from x_k with state s and ∇f(x_k; b) ; s stays
             c_k = ∇F_k(x)
    server:  x ← x + η_s Σ p_k (x_k - x) ; s ← B's state after a step on Σ p_k c_k

Deviations from the paper:
  * As in TFF, a client's step puts its gradient through one update of the frozen state: with
    momentum β it is β u + g.
  * TFF's optimizers: Adagrad has ε inside the root and its accumulator starts at 0.1.
  * The learning rate is that of the round, also in the state's own update.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.averaging import next_state
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.weights import Weights

SPEC = MethodSpec(
    name="mimelite",
    summary=("Clients step with the server's optimizer state; full gradients move it."),
    paper="Karimireddy et al., Mime, arXiv 2008.03606",
    server_learning_rate=1.0,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      slots: s, the state of the base optimizer, TFF's.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    slots: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, and s with this round's η in it."""

    weights: Weights
    slots: Any


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      gradient: c_k = ∇F_k(x), like the weights; zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    gradient: Weights
    weight: tf.Tensor
    metrics: Any


def build(model: Model, local: client.LocalTraining) -> Method:
    """Builds MimeLite; see the module's docstring for the symbols."""
    eta_server = local.server_learning_rate
    optimizer = local.optimizer()

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        slots = client.initial_slots(optimizer, x, local.learning_rate(tf.constant(0)))
        return ServerState(x, slots, tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        slots = state.slots.copy()
        slots["learning_rate"] = local.learning_rate(state.round_num)
        return Broadcast(state.weights, slots)

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, frozen = broadcast

        def step(at, carry):
            _, x_k = optimizer.next(frozen, at.weights, at.gradient)
            return tuple(x_k), carry

        trained, _ = client.take_steps(model, step, x, (), data)
        gradient = client.full_loss(model, x, data).gradient
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, gradient))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            gradient=client.zero_unless(finite, gradient),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state, delta: Weights, gradient: Weights, total_weight) -> ServerState:
        x = tuple(x + eta_server * d for x, d in zip(state.weights, delta, strict=True))
        slots, _ = optimizer.next(state.slots, tuple(state.weights), tuple(gradient))
        return next_state(state, ServerState(x, slots, state.round_num), total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        delta = federation.mean(update.delta, update.weight)
        gradient = federation.mean(update.gradient, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta, gradient, total_weight), metrics

    return Method(initialize, next_round)
