"""MFL: clients run momentum whose buffer the server averages along with the model.

Liu, Chen, Chen, Zhang: "Accelerating Federated Learning via Momentum Gradient Descent", IEEE TPDS
2020, arXiv 1910.03197, equations 9 to 12; a baseline of FedDA.

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  γ        client_momentum       0.9        the survey of FedDA's baselines (not checked)
  -        client_optimizer      sgdm       the paper: momentum
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   the paper

    server → x, d ; d_0 = 0
    client:  x_k, d_k ← x, d ; each batch: d_k ← γ d_k + ∇f(x_k; b) ; x_k ← x_k - η d_k
    server:  x ← x + η_s Σ p_k (x_k - x) ; d ← Σ p_k d_k

Deviations from the paper:
  * Any client optimizer: FedDA reports MFL with SGDM, Adam and AdaGrad. All its slots are averaged,
    Adam's step count too, which so need not stay whole when clients do unequal steps.
  * Minibatches and a sampled cohort; the paper's clients all take part with full gradients.
  * Not checked against its text: the update is as later papers describe it.
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
    name="mfl",
    summary="Clients run momentum whose buffer is averaged along with the model.",
    paper=("Liu et al., Accelerating Federated Learning via Momentum, arXiv 1910.03197"),
    server_learning_rate=1.0,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      slots: State of the client optimizer, TFF's, with every number as float32.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    slots: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, and the slots with this round's η in them."""

    weights: Weights
    slots: Any


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      slots: The client's slots after its last step; zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    slots: Any
    weight: tf.Tensor
    metrics: Any


def build(model: Model, local: client.LocalTraining) -> Method:
    """Builds MFL; see the module's docstring for the symbols."""
    eta_server = local.server_learning_rate
    optimizer = local.optimizer()

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        slots = client.initial_slots(optimizer, x, local.learning_rate(tf.constant(0)))
        floats = tf.nest.map_structure(lambda s: tf.cast(s, tf.float32), slots)
        return ServerState(x, floats, tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        slots = state.slots.copy()
        slots["learning_rate"] = local.learning_rate(state.round_num)
        return Broadcast(state.weights, slots)

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, slots = broadcast

        def step(at, slots):
            slots, x_k = optimizer.next(slots, at.weights, at.gradient)
            return tuple(x_k), slots

        trained, slots = client.take_steps(model, step, x, slots, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, slots))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            slots=client.zero_unless(finite, slots),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, slots, total_weight) -> ServerState:
        x = tuple(x + eta_server * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, ServerState(x, slots, state.round_num), total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        delta = federation.mean(update.delta, update.weight)
        slots = federation.mean(update.slots, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta, slots, total_weight), metrics

    return Method(initialize, next_round)
