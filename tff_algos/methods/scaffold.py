"""SCAFFOLD: control variates take the drift of the clients out of their local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, arXiv 1910.06378, Algorithm 1 with Option II, in the batched form of
Reddi et al., "Adaptive Federated Optimization", arXiv 2003.00295, Algorithm 6.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  η        server_learning_rate  1          SCAFFOLD, section 7
  p_k      client_weighting      examples   Adaptive Federated Optimization, Algorithm 6
  N        num_clients           -          all training clients

    client k keeps c_k, first visit: c_k = c
    client:  x_k ← x ; every minibatch b: x_k ← x_k - η_l (∇f(x_k; b) - c_k + c)
             c_k⁺ = c_k - c + (x - x_k) / (τ_k η_l) ; Δ_k = x_k - x ; δ_k = c_k⁺ - c_k ; c_k ← c_k⁺
    server:  x ← x + η Σ p_k Δ_k ; c ← c + (K / N) Σ p_k δ_k

τ_k counts the steps taken. K is the number of clients that were not dropped. c = 0 before the first
round. Model and control variate travel both ways: 2 M up, 2 M down; a client keeps 1 M.

Deviations from the paper:
  * Algorithm 6 of Adaptive Federated Optimization prints the update of c_k with the difference the
    other way round and mixes η with η_l. The form above has the only sign with which the local step
    removes drift; it is SCAFFOLD's own.
  * SCAFFOLD starts every c_k at 0; a client's first is c here, as Algorithm 6 has it, so that a
    first visit is a visit of FedAvg. `first_visit=zero` is SCAFFOLD's.
  * SCAFFOLD averages Δ_k and δ_k uniformly; `client_weighting=uniform` does.
  * A client without a step, or whose update is not finite, sends nothing and keeps its c_k.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.method import Method, next_state
from tff_algos.model import Model

Weights = tuple[tf.Tensor, ...]


class ServerState(NamedTuple):
    """What the server keeps: the model x and the control variate c, like it; int32 rounds done."""

    weights: Weights
    control: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x, c and the client learning rate η_l."""

    weights: Weights
    control: Weights
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What is averaged over clients: Δ_k and δ_k, like the weights; zero if dropped."""

    delta: Weights
    control_delta: Weights


class ClientUpdate(NamedTuple):
    """What a client gives.

    Attributes:
      report: Its `Report`.
      weight: n_k or 1, float32 scalar; zero if dropped.
      kept: 1, or 0 if dropped, float32 scalar.
      metrics: See `client.round_metrics`.
      client_state: c_k, like the weights.
    """

    report: Report
    weight: tf.Tensor
    kept: tf.Tensor
    metrics: Any
    client_state: Any


def build_scaffold(
    model: Model, local: client.LocalTraining, *, first_visit: str, num_clients: int
) -> Method:
    """Builds SCAFFOLD; see the module's docstring for the symbols."""
    eta = local.server_learning_rate

    def zeros() -> Weights:
        return tuple(tf.zeros(w.shape, w.dtype) for w in model.initial_weights)

    def initialize() -> ServerState:
        weights = tuple(tf.constant(w) for w in model.initial_weights)
        return ServerState(weights, zeros(), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.control, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state) -> ClientUpdate:
        x, c, eta_l = broadcast
        c_k = client.recall(client_state, zeros() if first_visit == "zero" else c)

        def add_control(gradient, x_k):
            del x_k
            return tuple(g - k + s for g, k, s in zip(gradient, c_k, c, strict=True))

        trained = client.train(model, local.optimizer(), eta_l, x, data, add_control)
        delta = tuple(w - a for w, a in zip(trained.weights, x, strict=True))
        steps = tf.cast(client.num_steps(data), tf.float32)
        after = tuple(k - s - d / (steps * eta_l) for k, s, d in zip(c_k, c, delta, strict=True))
        control_delta = tuple(a - k for a, k in zip(after, c_k, strict=True))
        report = Report(delta, control_delta)
        finite = client.is_finite(delta)
        counts = finite & client.is_finite(report) & (steps > 0)
        return ClientUpdate(
            report=client.zero_unless(counts, report),
            weight=client.zero_unless(counts, local.client_weight(data)),
            kept=tf.cast(counts, tf.float32),
            metrics=client.round_metrics(trained, data, finite),
            client_state=client.keep(client_state, data, counts, after),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, mean: Report, number, total_weight) -> ServerState:
        share = number / num_clients
        weights = tuple(x + eta * d for x, d in zip(state.weights, mean.delta, strict=True))
        control = tuple(
            c + share * d for c, d in zip(state.control, mean.control_delta, strict=True)
        )
        after = ServerState(weights, control, state.round_num)
        return next_state(state, after, total_weight)

    def next_round(federation, state, clients, client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, client_states)
        mean = federation.mean(update.report, update.weight)
        number = federation.sum(update.kept)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, mean, number, total_weight)
        return state, metrics, update.client_state

    return Method(initialize, next_round, client_state=zeros)
