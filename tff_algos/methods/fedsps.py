"""FedSPS: clients choose each step's length by a stochastic Polyak rule.

Mukherjee, Loizou, Stich: "Locally Adaptive Federated Learning", arXiv 2307.06306, Algorithm 1 and
equation 4; a baseline of FedCAda.

  symbol   argument              default   from
  γ_b      client_learning_rate  -         tuned; FedCAda's grid 0.1, 0.5, 1, 5
  c        c                     0.5       choice within FedCAda's grid 0.1, 0.2, 0.5, 1
  ℓ*       lower_bound           0         the paper's choice for non-negative losses
  -        smoothing             false     the paper uses it for non-convex models
  η        server_learning_rate  1         Algorithm 1: the mean of the clients' models
  1/|S|    client_weighting      uniform   Algorithm 1

    client:  each batch: γ = min{(f(x_k; b) - ℓ*) / (c ‖∇f(x_k; b)‖²), γ_b}
             x_k ← x_k - γ ∇f(x_k; b)
    server:  x ← x + η mean(x_k - x)

With smoothing, γ_b is the bound of a round's first step, and then 2^(|b| / n_k) times the γ before.

Deviations from the paper:
  * Not checked against its text: the rule is as later papers describe it, and c, ℓ*, the smoothing
    and where it starts are to be taken as provisional.
  * ‖∇f‖² is at least 1e-12. f is the training objective, regularisers included.
  * γ_b is the client learning rate, so it may follow a schedule over rounds.
  * A client is dropped if a loss is not finite, whatever the gradient: the rule has no step then.
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
    name="fedsps",
    summary="Clients choose each step's length by a stochastic Polyak rule.",
    paper=("Mukherjee et al., Locally Adaptive Federated Learning, arXiv 2307.06306"),
    hparams=(
        Hparam(
            "c",
            0.5,
            "Divisor c of the Polyak step; the client learning rate is its bound gamma_b.",
            source="choice within FedCAda's grid 0.1, 0.2, 0.5, 1",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "lower_bound",
            0.0,
            "Lower bound of the minibatch loss (l*).",
            source="FedSPS: 0 for losses that are never negative",
        ),
        Hparam(
            "smoothing",
            False,
            "Whether, after the first step of a round, gamma_b is 2^(|b|/n_k) times the "
            "step before.",
            source="choice: the paper uses it for models that are not convex",
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
    """What every client of the cohort receives: the model x and the largest step γ_b."""

    weights: Weights
    largest_step: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      weight: 1 or n_k, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    weight: tf.Tensor
    metrics: Any


def build(
    model: Model, local: client.LocalTraining, *, c: float, lower_bound: float, smoothing: bool
) -> Method:
    """Builds FedSPS; see the module's docstring for the symbols."""
    eta = local.server_learning_rate

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, gamma_b = broadcast
        n_k = client.num_examples(data)

        def step(at, carry):
            gamma, is_first, known = carry
            bound = gamma_b
            if smoothing:
                grown = tf.pow(2.0, at.num_examples / n_k) * gamma
                bound = tf.where(is_first, gamma_b, grown)
            square = tf.add_n([tf.reduce_sum(g**2) for g in at.gradient])
            polyak = (at.loss - lower_bound) / (c * tf.maximum(square, 1e-12))
            gamma = tf.minimum(polyak, bound)
            x_k = tuple(w - gamma * g for w, g in zip(at.weights, at.gradient, strict=True))
            return x_k, (gamma, tf.constant(False), known & tf.math.is_finite(at.loss))

        carry = (gamma_b, tf.constant(True), tf.constant(True))
        trained, (_, _, known) = client.take_steps(model, step, x, carry, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite(delta) & known
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, total_weight) -> ServerState:
        x = tuple(x + eta * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, state._replace(weights=x), total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        delta = federation.mean(update.delta, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta, total_weight), metrics

    return Method(initialize, next_round)
