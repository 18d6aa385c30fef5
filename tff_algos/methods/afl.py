"""AFL: agnostic federated learning, the model for the worst mixture of the clients.

Mohri, Sivek, Suresh: "Agnostic Federated Learning", ICML 2019, arXiv 1902.00146, Algorithm 1
(Stochastic-AFL), with clients as domains and several local steps, as in AdaFed's comparison (arXiv
2401.04993).

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  η        server_learning_rate  1         η_l is the paper's γ_w; this is a factor beside it
  γ_λ      gamma_lambda          0.1       AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)
  -        reported_model        average   Algorithm 1

    client:  L_k = F_k(x) ;  Δ_k = x_k - x
    server:  x ← x + η Σ_{k in S} λ_k Δ_k ;  λ ← Π(λ + γ_λ Σ_{k in S} L_k e_k)
             λ_0 = 1/N ;  Π projects onto the simplex ;  the reported model is the mean of all x

Deviations from the paper:
  * g_k = -Δ_k / η_l replaces the gradient, so that clients can take several local steps. The step
    on x uses the λ from before the round.
  * In the paper all N clients take part. In a smaller cohort only the coordinates of λ of its
    clients grow before the projection, and λ is not scaled up to the cohort.
  * Π is the exact projection; the code of arXiv 1905.10497, which compares with AFL, leaves the
    current element out of its cumulative sum.
  * λ are the weights, so `client_weighting` is not used.
  * The mean is over the models after each server step, without x_0. `weights` of the state, which
    is what evaluation and `get_model_weights` read, is the reported model; training continues from
    `iterate`. Weights that a user sets replace both, and the mean restarts.
  * A client without examples takes no part in the round.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import vectors
from tff_algos.registry import MethodSpec
from tff_algos.vector import Vector, constants
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="afl",
    display_name="AFL",
    look=("sky", "solid"),
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
    aggregated="sums updates with the weights of a mixture instead of averaging them",
    measures=(),
    used_for=("FedJAX ships a variant, agnostic federated averaging.",),
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

    weights: Vector
    iterate: Vector
    mixture: tf.Tensor
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, λ and the client learning rate η_l."""

    weights: Vector
    mixture: tf.Tensor
    learning_rate: tf.Tensor


class Loss(NamedTuple):
    """What the server learns of each client: its index, int32, and L_k; 0 if it is left out."""

    index: tf.Tensor
    loss: tf.Tensor


class Report(NamedTuple):
    """What a client sends: λ_k Δ_k, like the weights, and its `Loss`."""

    weighted_delta: Vector
    loss: Loss


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    gamma_lambda: float,
    reported_model: str,
    num_clients: int,
) -> Method:
    """Builds AFL; see the module's docstring for the symbols, `num_clients` is N."""

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        mixture = tf.fill([num_clients], tf.constant(1.0 / num_clients, tf.float64))
        return ServerState(x, x, mixture, tf.constant(0), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        mixture = tf.cast(state.mixture, tf.float32)
        return Broadcast(state.iterate, mixture, local.learning_rate(state.round_num))

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, mixture, eta_l = broadcast
        loss = client.evaluate(model, x, data)["loss"]
        trained = client.train(model, local.optimizer(), eta_l, x, data)
        delta = trained.weights - x
        finite = client.is_finite((delta, loss))
        share = tf.gather(mixture, data.index)
        return ClientResult(
            trained,
            Report(share * delta, Loss(data.index, loss)),
            weight=tf.ones([]),  # λ_k is in the report, so that clients count alike.
            finite=finite,
            counts=client.has_examples(data),
        )

    def aggregate(federation, update):
        return federation.sum(update.report.weighted_delta), federation.stack(update.report.loss)

    def server_update(state: ServerState, step: Vector, losses: Loss) -> ServerState:
        iterate = state.iterate + local.server_learning_rate * step
        reported, steps = iterate, state.steps + 1
        if reported_model == "average":
            share = 1.0 / tf.cast(steps, tf.float32)
            reported = state.weights + share * (iterate - state.weights)
        ascent = gamma_lambda * tf.cast(losses.loss, tf.float64)
        moved = tf.tensor_scatter_nd_add(state.mixture, losses.index[:, None], ascent)
        mixture = vectors.project_to_simplex(moved)
        return ServerState(reported, iterate, mixture, steps, state.round_num)

    def adopt_weights(state: ServerState) -> ServerState:
        return state._replace(iterate=state.weights, steps=tf.zeros_like(state.steps))

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
        adopt_weights=adopt_weights,
    )
