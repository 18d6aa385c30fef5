"""FedProx: federated averaging whose clients are held near the broadcast model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: "Federated Optimization in Heterogeneous Networks",
MLSys 2020, arXiv 1812.06127, Algorithm 2 (h_k = F_k + μ/2 ‖x_k - x‖², solved by local SGD).

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  μ        mu                    0.01       choice, within AdaFedAdam's grid 0.001 to 1
  η        server_learning_rate  1          the released code: the mean of the clients' models
  p_k      client_weighting      examples   the released code

    client:  x_k ← x ; each batch: x_k ← x_k - η_l (∇f(x_k; b) + μ (x_k - x))
    server:  x ← x + η Σ p_k (x_k - x)

Deviations from the paper:
  * Clients are weighted by their examples after uniform sampling, as in the released code; the
    paper samples with probability p_k and takes a plain mean (`client_weighting=uniform`).
  * All clients do the same number of epochs; the paper's γ-inexact solutions are not modelled.
  * Any client optimizer may take the step on the corrected gradient.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.method import Method, next_state
from tff_algos.model import Model

Weights = tuple[tf.Tensor, ...]


class ServerState(NamedTuple):
    """The model x, one tensor per model weight, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
      client_state: What it keeps, if clients keep their optimizer; else empty.
    """

    delta: Weights
    weight: tf.Tensor
    metrics: Any
    client_state: Any


def build_fedprox(model: Model, local: client.LocalTraining, *, mu: float) -> Method:
    """Builds FedProx; see the module's docstring for the symbols."""
    eta = local.server_learning_rate

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state=None) -> ClientUpdate:
        x, eta_l = broadcast

        def add_proximal_term(gradient, x_k):
            return tuple(g + mu * (w - c) for g, w, c in zip(gradient, x_k, x, strict=True))

        trained = client.train(
            model, local.optimizer(), eta_l, x, data, add_proximal_term, client_state
        )
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite(delta)
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
            client_state=client.keep_slots(client_state, data, finite, trained),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, total_weight) -> ServerState:
        x = tuple(x + eta * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, state._replace(weights=x), total_weight)

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, *client_states)
        delta = federation.mean(update.delta, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, delta, total_weight)
        return state, metrics, *([update.client_state] if client_states else [])

    return Method(initialize, next_round, local.client_state(model))
