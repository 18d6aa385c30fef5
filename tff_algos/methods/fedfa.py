"""FedFA: weights from the clients' accuracies and participation, momentum on both sides.

Huang, Li, Wang, Du, Zhang: "Fairness and Accuracy in Federated Learning", arXiv 2012.10069.

  symbol   argument              default      from
  η_l      client_learning_rate  -            tuned
  γ_c      client_momentum       0.9          AdaFed, App.; client_optimizer is sgdm by default
  η        server_learning_rate  1            the paper has no such factor
  γ_s      momentum              0.5          AdaFed, App.
  α        alpha                 0.5          AdaFed, App.
  β        beta                  0.5          AdaFed, App.
  a_k      accuracy_at           trained      choice
  -        accuracy_metric       accuracy     choice

    client:  Δ_k = x_k - x ;  a_k = accuracy on the local training set ;  f_k = rounds taken part in
    server:  A_k = -log2(a_k / Σ a + 1e-6) ;  R_k = -log2(1 - f_k / Σ f + 1e-6)
             w_k = α A_k / Σ A + β R_k / Σ R ;  m ← γ_s m + Σ w_k Δ_k ;  x ← x + η m

A client needs Σ a and Σ f of the cohort for its A_k and R_k, and Σ A and Σ R for its w_k. So two
small exchanges of scalars precede that of vectors.

Deviations from the paper:
  * Sums are over the cohort, and f_k includes the current round. The server keeps the counts.
  * The momentum is a heavy ball. One of the two public codes damps and subtracts it; the other
    divides the raw accuracy by a wrong sum.
  * a_k is that of the trained model, or of the broadcast model (`accuracy_at=broadcast`). If every
    a_k is 0, all A_k are equal.
  * A cohort of one has weight α + β. R_k gives more weight to clients seen often, as printed.
  * The method defines its own weights, so `client_weighting` is not used.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam, HparamError

SPEC = MethodSpec(
    name="fedfa",
    display_name="FedFA",
    look=("purple", "dashed"),
    summary="FedFA: weights from accuracy and participation, momentum on both sides.",
    paper=(
        "Huang, Li, Wang, Du, Zhang, Fairness and Accuracy in Federated Learning, arXiv 2012.10069"
    ),
    hparams=(
        Hparam(
            "alpha",
            0.5,
            "Share alpha of accuracy in a client's weight.",
            source="AdaFed, App.",
            minimum=0.0,
        ),
        Hparam(
            "beta",
            0.5,
            "Share beta of participation in a client's weight.",
            source="AdaFed, App.",
            minimum=0.0,
        ),
        Hparam(
            "momentum",
            0.5,
            "Server momentum gamma_s: m <- gamma_s * m + mean update.",
            source="AdaFed, App.",
            minimum=0.0,
            maximum=1.0,
            exclusive_maximum=True,
        ),
        Hparam(
            "accuracy_at",
            "trained",
            "Whose accuracy a client reports: the trained model's or the broadcast one's.",
            source="choice",
            choices=("trained", "broadcast"),
        ),
        Hparam(
            "accuracy_metric",
            "accuracy",
            "Name of the model's metric that serves as accuracy.",
            source="choice",
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    needs_num_clients=True,
    needs_index=True,
    aggregated="weights updates by the accuracies of the whole cohort",
    measures=(),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      momentum: m, like the weights.
      counts: Rounds in which each client took part, float32 `[N]`.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    momentum: Vector
    counts: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, the counts, and the client learning rate η_l."""

    weights: Vector
    counts: tf.Tensor
    learning_rate: tf.Tensor


class Standing(NamedTuple):
    """Scalars of a client, or their sums over the cohort, float32.

    All are zero for a client that is dropped or has no examples.

    Attributes:
      accuracy: a_k, then A_k.
      frequency: f_k, then R_k.
      number: 1.
    """

    accuracy: tf.Tensor
    frequency: tf.Tensor
    number: tf.Tensor


class Report(NamedTuple):
    """What a client computes: Δ_k, its standing, and its index; zero if it is left out."""

    delta: Vector
    standing: Standing
    index: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    alpha: float,
    beta: float,
    momentum: float,
    accuracy_at: str,
    accuracy_metric: str,
    num_clients: int,
) -> Method:
    """Builds FedFA; see the module's docstring for the symbols, `num_clients` is N.

    Raises:
      HparamError: If the model has no metric named `accuracy_metric`.
    """
    offered = client.metric_names(model)
    if accuracy_metric not in offered:
        raise HparamError(
            f"fedfa: accuracy_metric={accuracy_metric} is not a metric of the model "
            f"(it has: {', '.join(offered)})."
        )

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), tf.zeros([num_clients]), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.counts, local.learning_rate(state.round_num))

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, rounds, eta_l = broadcast
        trained = client.train(model, local.optimizer(), eta_l, x, data)
        at = trained.weights if accuracy_at == "trained" else x
        accuracy = client.evaluate(model, at, data)[accuracy_metric]
        standing = Standing(accuracy, tf.gather(rounds, data.index) + 1.0, tf.ones([]))
        report = Report(trained.weights - x, standing, data.index)
        counts = client.has_examples(data)
        return ClientResult(trained, report, weight=standing.number, counts=counts)

    def weigh(total: Standing, own: Standing, delta: Vector) -> Vector:
        weight = alpha * tf.math.divide_no_nan(own.accuracy, total.accuracy)
        weight += beta * tf.math.divide_no_nan(own.frequency, total.frequency)
        return weight * delta

    def server_update(
        state: ServerState, delta: Vector, seen: tuple[tf.Tensor, tf.Tensor], total: Standing
    ) -> ServerState:
        index, number = seen
        m = momentum * state.momentum + delta
        x = state.weights + local.server_learning_rate * m
        counts = tf.tensor_scatter_nd_add(state.counts, index[:, None], number)
        after = ServerState(x, m, counts, state.round_num)
        return averaging.next_state(state, after, total.number)

    def next_round(federation, state, clients):
        message = federation.broadcast(federation.map_server(broadcast, state))
        update = federation.map_clients(client_update, message, clients)
        delta, standing = update.report.delta, update.report.standing
        total = federation.broadcast(federation.sum(standing))
        standing = federation.map_clients(_information, total, standing)
        total = federation.sum(standing)
        weighed = federation.map_clients(weigh, federation.broadcast(total), standing, delta)
        seen = federation.stack((update.report.index, update.weight))
        state = federation.map_server(server_update, state, federation.sum(weighed), seen, total)
        return state, federation.map_server(averaging.summarize, federation.sum(update.metrics))

    return averaging.write_out(model, local, initialize, next_round)


def _information(total: Standing, own: Standing) -> Standing:
    """Returns A_k and R_k of a client, given Σ a and Σ f."""
    accuracy = _surprise(tf.math.divide_no_nan(own.accuracy, total.accuracy))
    accuracy = tf.where(total.accuracy > 0, accuracy, 1.0)
    frequency = _surprise(1.0 - tf.math.divide_no_nan(own.frequency, total.frequency))
    alone = total.number <= 1.0
    accuracy, frequency = (tf.where(alone, 1.0, v) for v in (accuracy, frequency))
    return client.zero_unless(own.number > 0, Standing(accuracy, frequency, own.number))


def _surprise(share: tf.Tensor) -> tf.Tensor:
    """Returns -log2(share + 1e-6)."""
    return -tf.math.log(share + 1e-6) / tf.math.log(2.0)
