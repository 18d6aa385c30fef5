"""AFL: agnostic federated learning, the model for the worst mixture of the clients.

Mohri, Sivek, Suresh: "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146, Algorithm 1
(Stochastic-AFL), with clients as domains and several local steps as AdaFed (arXiv 2401.04993)
compares it.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  η        server_learning_rate  1         η_l is the paper's γ_w; this is a factor beside it
  γ_λ      gamma_lambda          0.1       AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)
  -        reported_model        average   Algorithm 1

    client:  L_k = F_k(x) ;  Δ_k = x_k - x
    server:  x ← x + η Σ_{k in S} λ_k Δ_k ;  λ ← Π(λ + γ_λ Σ_{k in S} L_k e_k)
             λ_0 = 1/N ;  Π projects onto the simplex ;  the reported model is the mean of all x

Deviations from the paper:
  * g_k = -Δ_k / η_l stands for the gradient, so that several local steps can be taken; the step on
    x uses the λ from before the round.
  * The paper's clients all take part (a cohort of all N). In a smaller one only the coordinates
    of λ of its clients grow before the projection, and λ is not scaled up to the cohort.
  * Π is the exact projection; the code of arXiv 1905.10497, which compares with AFL, leaves the
    current element out of its cumulative sum.
  * λ are the weights: `client_weighting` has no meaning.
  * The mean is over the models after each server step, without x_0. `weights` of the state, which
    is what evaluation and `get_model_weights` read, is the reported model; training goes on from
    `iterate`. Weights that a user sets become both, and the mean starts anew.
  * A client without examples has no part in the round.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from hparams import Hparam
from tff_algos import client
from tff_algos.averaging import next_state
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import vectors
from tff_algos.registry import MethodSpec
from tff_algos.weights import Weights

SPEC = MethodSpec(
    name="afl",
    summary="AFL: the model for the worst mixture of the clients.",
    paper="Mohri, Sivek, Suresh, Agnostic Federated Learning, arXiv 1902.00146",
    hparams=(
        Hparam(
            "gamma_lambda",
            0.1,
            "Step size gamma_lambda of the mixture weights: 0 keeps them uniform.",
            source="AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)",
            minimum=0.0,
        ),
        Hparam(
            "reported_model",
            "average",
            "Which model is evaluated: average, the mean over rounds; last, that of the round.",
            source="AFL, Algorithm 1",
            choices=("average", "last"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    needs_num_clients=True,
    needs_index=True,
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The reported model, one tensor per model weight.
      iterate: The model x that is trained, like the weights.
      mixture: λ, float64 `[N]`.
      steps: Server steps that the mean is over, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    iterate: Weights
    mixture: tf.Tensor
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, λ and the client learning rate η_l."""

    weights: Weights
    mixture: tf.Tensor
    learning_rate: tf.Tensor


class Loss(NamedTuple):
    """What the server learns of each client: its index (int32), L_k, and whether it is kept."""

    index: tf.Tensor
    loss: tf.Tensor
    kept: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back: λ_k Δ_k like the weights (zero if dropped), its loss, metrics."""

    weighted_delta: Weights
    loss: Loss
    metrics: Any


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    gamma_lambda: float,
    reported_model: str,
    num_clients: int,
) -> Method:
    """Builds AFL; see the table above for the arguments, `num_clients` is N."""

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        mixture = tf.fill([num_clients], tf.constant(1.0 / num_clients, tf.float64))
        return ServerState(x, x, mixture, tf.constant(0), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        mixture = tf.cast(state.mixture, tf.float32)
        return Broadcast(state.iterate, mixture, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x = broadcast.weights
        loss = client.evaluate(model, x, data)["loss"]
        trained = client.train(model, local.optimizer(), broadcast.learning_rate, x, data)
        delta = tuple(a - b for a, b in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, loss))
        counts = finite & client.has_examples(data)
        share = tf.gather(broadcast.mixture, data.index)
        return ClientUpdate(
            weighted_delta=client.zero_unless(finite, tuple(share * d for d in delta)),
            loss=Loss(data.index, client.zero_unless(counts, loss), tf.cast(counts, tf.float32)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, step: Weights, losses: Loss) -> ServerState:
        eta = local.server_learning_rate
        iterate = tuple(x + eta * s for x, s in zip(state.iterate, step, strict=True))
        reported, steps = iterate, state.steps + 1
        if reported_model == "average":
            share = 1.0 / tf.cast(steps, tf.float32)
            reported = tuple(
                a + share * (x - a) for a, x in zip(state.weights, iterate, strict=True)
            )
        ascent = gamma_lambda * tf.cast(losses.loss, tf.float64)
        moved = tf.tensor_scatter_nd_add(state.mixture, losses.index[:, None], ascent)
        mixture = vectors.project_to_simplex(moved)
        after = ServerState(reported, iterate, mixture, steps, state.round_num)
        return next_state(state, after, tf.reduce_sum(losses.kept))

    def adopt_weights(state: ServerState) -> ServerState:
        return state._replace(iterate=state.weights, steps=tf.zeros_like(state.steps))

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        step = federation.sum(update.weighted_delta)
        losses = federation.stack(update.loss)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, step, losses), metrics

    return Method(initialize, next_round, adopt_weights=adopt_weights)
