"""Ditto: beside the common model each client trains one of its own that is held near it.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, arXiv 2012.04221, Algorithms 1 and 2 with FedAvg for the common model; a baseline of AdaFed.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  λ        strength              0.1       AdaFed, App. (best on most; the flag is --ditto_lambda)
  η        server_learning_rate  1         Algorithm 2: the mean of the clients' models
  1/|S|    client_weighting      uniform   Algorithm 2

    client k keeps v_k, first visit: v_k = x
    client:  w_k ← x ; each batch b: v_k ← v_k - η_l [∇f(v_k; b) + λ (v_k - x)]
                                     w_k ← w_k - η_l ∇f(w_k; b)
    server:  x ← x + η mean(w_k - x)

x is the broadcast model in both lines. Where clients are evaluated, a client is with its v_k, and
with x before its first visit.

Deviations from the paper:
  * Both models take the same batches at the same rate, as in the authors' released code; Algorithm
    2 leaves number and rate of the personal steps open.
  * That code draws clients with probabilities in proportion to n_k; here all are alike, as the
    cohorts of this suite are.
  * A v_k that is not finite is forgotten and v_k stays as it was, which `train/personal_diverged`
    counts; whether the client is dropped is a matter of w_k alone, so that the common model is
    that of FedAvg for every λ.
"""

from __future__ import annotations

import collections
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
    name="ditto",
    summary="Each client has a model of its own, held near the common one.",
    paper=(
        "Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through "
        "Personalization, arXiv 2012.04221"
    ),
    hparams=(
        Hparam(
            "strength",
            0.1,
            "Pull lambda of a client's own model towards the common one: 0 is local "
            "training. The step diverges where client_learning_rate * lambda > 2.",
            source="AdaFed, App. (best on FEMNIST, Shakespeare, CINIC-10; grid 0.01 to 5)",
            minimum=0.0,
            flag="ditto_lambda",
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


class ClientUpdate(NamedTuple):
    """What a client gives.

    Attributes:
      delta: w_k - x, like the weights; zero if dropped.
      weight: 1 or n_k, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
      diverged: 1 if v_k is not finite though w_k is, else 0; float32 scalar.
      client_state: v_k, like the weights.
    """

    delta: Weights
    weight: tf.Tensor
    metrics: Any
    diverged: tf.Tensor
    client_state: Any


def build(model: Model, local: client.LocalTraining, *, strength: float) -> Method:
    """Builds Ditto; `strength` is λ, see the module's docstring for the symbols."""
    eta = local.server_learning_rate

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state) -> ClientUpdate:
        x, eta_l = broadcast

        def step(at, v):
            v = tuple(
                v - eta_l * (g + strength * (v - c))
                for v, g, c in zip(v, at.gradient_at(v), x, strict=True)
            )
            w = tuple(w - eta_l * g for w, g in zip(at.weights, at.gradient, strict=True))
            return w, v

        own = client.recall(client_state, tuple(x))
        trained, own = client.take_steps(model, step, x, own, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite, own_finite = client.is_finite(delta), client.is_finite(own)
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
            diverged=tf.cast(finite & ~own_finite, tf.float32),
            client_state=client.keep(client_state, data, finite & own_finite, own),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, total_weight) -> ServerState:
        x = tuple(x + eta * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, state._replace(weights=x), total_weight)

    @tf.function(autograph=False)
    def summarize(metrics, diverged):
        own = collections.OrderedDict(personal_diverged=diverged)
        return client.summarize_with(metrics, own)

    def next_round(federation, state, clients, client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, client_states)
        delta = federation.mean(update.delta, update.weight)
        total_weight = federation.sum(update.weight)
        total, diverged = federation.sum(update.metrics), federation.sum(update.diverged)
        metrics = federation.map_server(summarize, total, diverged)
        state = federation.map_server(server_update, state, delta, total_weight)
        return state, metrics, update.client_state

    return Method(
        initialize,
        next_round,
        client_state=lambda: tuple(tf.zeros(w.shape, w.dtype) for w in model.initial_weights),
        personal_weights=lambda own: own,
    )
