"""TERM: tilted empirical risk minimisation over clients, whose weights grow with exp(t F_k).

Li, Beirami, Sanjabi, Smith: "Tilted Empirical Risk Minimization", ICLR 2021, arXiv 2007.01162,
with clients as groups (its section on fair federated learning).

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  η        server_learning_rate  1         the paper has no such factor
  t        t                     1         AdaFed, App. (grid 0.1, 0.5, 1, 2, 5)
  -        normalizer            softmax   the objective's own gradient

    client:  L_k = F_k(x) ;  Δ_k = x_k - x
    server:  w_k = exp(t (L_k - max L)) / Σ_j exp(t (L_j - max L)) ;  x ← x + η Σ w_k Δ_k

Deviations from the paper:
  * The authors' code divides not by the round's own sum but by a running estimate of the mean,
    Z ← Z/2 + mean_j exp(t (L_j - max L))/2 from Z = 0: `normalizer=running`, with
    w_k = exp(t (L_k - max L)) / (K Z). It also averages the weighted updates over K once more,
    which looks like a slip; `server_learning_rate` = 1/K gives its steps.
  * Clients count alike but for the tilt, whatever n_k: `client_weighting` has no meaning.
  * max L is the largest loss of the clients whose update is finite. It cancels in `softmax`.
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
    name="term",
    summary="TERM: clients count by exp(t F_k).",
    paper=("Li, Beirami, Sanjabi, Smith, Tilted Empirical Risk Minimization, arXiv 2007.01162"),
    hparams=(
        Hparam(
            "t",
            1.0,
            "Tilt t: 0 is uniform averaging, a large one leaves the worst client only.",
            source="AdaFed, App. (grid 0.1, 0.5, 1, 2, 5)",
            minimum=0.0,
        ),
        Hparam(
            "normalizer",
            "softmax",
            "softmax: weights sum to one in every round; running: divided by a running "
            "estimate of the mean exponential, as in the authors' code.",
            source="TERM, objective",
            choices=("softmax", "running"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      estimate: Z, float32 scalar; stays 0 with `normalizer=softmax`.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    estimate: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: Δ_k, like the weights; zero if dropped.
      loss: L_k, float32 scalar; the least of all numbers if dropped or without examples.
      kept: 1, or 0 if dropped or without examples, float32 scalar.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    loss: tf.Tensor
    kept: tf.Tensor
    metrics: Any


def build(model: Model, local: client.LocalTraining, *, t: float, normalizer: str) -> Method:
    """Builds TERM; see the table above for the arguments."""

    def initialize() -> ServerState:
        weights = tuple(tf.constant(w) for w in model.initial_weights)
        return ServerState(weights, tf.constant(0.0), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x = broadcast.weights
        loss = client.evaluate(model, x, data)["loss"]
        trained = client.train(model, local.optimizer(), broadcast.learning_rate, x, data)
        delta = tuple(a - b for a, b in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, loss))
        counts = finite & client.has_examples(data)
        return ClientUpdate(
            delta=client.zero_unless(counts, delta),
            loss=tf.where(counts, loss, loss.dtype.min),
            kept=tf.cast(counts, tf.float32),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def tilted_weight(largest, loss, kept) -> tf.Tensor:
        return client.zero_unless(kept > 0, tf.exp(t * (loss - largest)))

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, total) -> ServerState:
        weight, kept = total
        estimate, scale = state.estimate, tf.constant(1.0)
        if normalizer == "running":
            mean = tf.math.divide_no_nan(weight, kept)
            estimate = 0.5 * estimate + 0.5 * mean
            scale = tf.math.divide_no_nan(mean, estimate)
        eta = local.server_learning_rate * scale
        weights = tuple(x + eta * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, ServerState(weights, estimate, state.round_num), kept)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        largest = federation.broadcast(federation.max(update.loss))
        weight = federation.map_clients(tilted_weight, largest, update.loss, update.kept)
        delta = federation.mean(update.delta, weight)
        total = federation.sum((weight, update.kept))
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta, total), metrics

    return Method(initialize, next_round)
