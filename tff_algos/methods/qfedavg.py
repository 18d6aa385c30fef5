"""q-FedAvg: clients of larger loss count more, by the power q of their loss.

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", ICLR 2020, arXiv
1905.10497, Algorithm 2 (q-FedAvg).

  symbol   argument              default     from
  η_l      client_learning_rate  -           tuned
  η        server_learning_rate  1           the paper has no such factor
  q        q                     1           AdaFedAdam, Table 5
  -        form                  lipschitz   the authors' code

    client:  L = F_k(x) + 1e-10 ;  Δ_k = x_k - x ;  w = -Δ_k / η_l
             D_k = L^q w ;  h_k = q L^(q-1) ‖w‖² + L^q / η_l
    server:  x ← x - η Σ D_k / Σ h_k

Every D_k and h_k is divided by M^q, M the largest L of the cohort, which cancels: powers of a loss
alone would leave float32. So M goes out to the clients before D_k and h_k come back, a small
exchange of scalars. Both are multiplied by η_l, too.

Deviations from the paper:
  * The paper draws clients in proportion to n_k; here the cohort is the run's, which is uniform,
    and n_k enters nowhere. So `client_weighting` has no meaning.
  * 1e-10 is added to the loss, as in the authors' code: L^(q-1) must exist.
  * `form=reweight` is x ← x + η Σ L^q Δ_k / Σ L^q, without the estimate of the Lipschitz constant:
    the q-FedAvg rows of AdaFedAdam's tables fit it and not the form above.
  * A client is dropped if its update or its loss is not finite, or if its loss is negative and has
    no power q.
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
    name="qfedavg",
    summary="q-FedAvg: clients count by the power q of their loss.",
    paper=(
        "Li, Sanjabi, Beirami, Smith, Fair Resource Allocation in Federated Learning,"
        " arXiv 1905.10497"
    ),
    hparams=(
        Hparam(
            "q",
            1.0,
            "Power q of the loss: 0 is uniform averaging, larger is fairer.",
            source="AdaFedAdam, Table 5",
            minimum=0.0,
        ),
        Hparam(
            "form",
            "lipschitz",
            "lipschitz: the step is divided by estimates of Lipschitz constants, as in "
            "the paper; reweight: a mean with weights F_k^q, which AdaFedAdam's q-FedAvg "
            "rows fit.",
            source="q-FedAvg, Algorithm 2",
            choices=("lipschitz", "reweight"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    keeps_client_optimizer=True,
)


class ServerState(NamedTuple):
    """What the server keeps: the model x, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class Trained(NamedTuple):
    """What local training leaves on a client.

    Attributes:
      back: -Δ_k, like the weights; zero if dropped.
      loss: L, float32 scalar; zero if dropped.
      kept: 1, or 0 if dropped, float32 scalar.
      metrics: See `client.round_metrics`.
      client_state: What it keeps, if clients keep their optimizer; else empty.
    """

    back: Weights
    loss: tf.Tensor
    kept: tf.Tensor
    metrics: Any
    client_state: Any


class Update(NamedTuple):
    """What a client sends back, or the sums over the cohort.

    Attributes:
      numerator: η_l D_k / M^q, like the weights; zero if dropped.
      denominator: η_l h_k / M^q (`reweight`: (L/M)^q), float64 scalar; zero if dropped.
      kept: 1, or 0 if dropped, float32 scalar.
    """

    numerator: Weights
    denominator: tf.Tensor
    kept: tf.Tensor


def build(model: Model, local: client.LocalTraining, *, q: float, form: str) -> Method:
    """Builds q-FedAvg (Algorithm 2); see the table above for the arguments."""

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state=None) -> Trained:
        x, eta_l = broadcast.weights, broadcast.learning_rate
        loss = client.evaluate(model, x, data)["loss"] + 1e-10
        trained = client.train(model, local.optimizer(), eta_l, x, data, client_state=client_state)
        back = tuple(a - b for a, b in zip(x, trained.weights, strict=True))
        # Every positive number has all powers; the others have those that their signs have.
        finite = client.is_finite((back, loss, tf.sign(loss) ** (q - 1.0)))
        counts = finite & client.has_examples(data)
        return Trained(
            back=client.zero_unless(counts, back),
            loss=client.zero_unless(counts, loss),
            kept=tf.cast(counts, tf.float32),
            metrics=client.round_metrics(trained, data, finite),
            client_state=client.keep_slots(client_state, data, finite, trained),
        )

    @tf.function(autograph=False)
    def magnitude(loss) -> tf.Tensor:
        return tf.abs(loss)

    @tf.function(autograph=False)
    def weigh(broadcast: Broadcast, largest, back: Weights, loss, kept) -> Update:
        # In float64, as L^(q-1) of a small loss is large where q < 1.
        loss, largest = tf.cast(loss, tf.float64), tf.cast(largest, tf.float64)
        ratio = loss / largest
        power = ratio**q
        denominator = power
        if form == "lipschitz":
            square = tf.add_n([tf.reduce_sum(tf.cast(b, tf.float64) ** 2) for b in back])
            eta_l = tf.cast(broadcast.learning_rate, tf.float64)
            steepness = tf.math.divide_no_nan(square, eta_l * largest)
            denominator = q * ratio ** (q - 1.0) * steepness + power
        numerator = tuple(tf.cast(power, b.dtype) * b for b in back)
        return client.zero_unless(kept > 0, Update(numerator, denominator, kept))

    @tf.function(autograph=False)
    def server_update(state: ServerState, total: Update) -> ServerState:
        rate = tf.math.divide_no_nan(
            tf.constant(local.server_learning_rate, tf.float64), total.denominator
        )
        weights = tuple(
            x - tf.cast(rate, x.dtype) * n
            for x, n in zip(state.weights, total.numerator, strict=True)
        )
        return next_state(state, state._replace(weights=weights), total.kept)

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        trained = federation.map_clients(client_update, broadcast, clients, *client_states)
        magnitudes = federation.map_clients(magnitude, trained.loss)
        largest = federation.broadcast(federation.max(magnitudes))
        update = federation.map_clients(
            weigh, broadcast, largest, trained.back, trained.loss, trained.kept
        )
        metrics = federation.map_server(client.summarize, federation.sum(trained.metrics))
        state = federation.map_server(server_update, state, federation.sum(update))
        return state, metrics, *([trained.client_state] if client_states else [])

    return Method(initialize, next_round, local.client_state(model))
