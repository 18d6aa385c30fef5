"""q-FedAvg: clients are weighted by the power q of their loss.

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

Every D_k and h_k is divided by M^q, where M is the largest L of the cohort. This cancels, and keeps
powers of a loss within float32. So M is sent to the clients before D_k and h_k come back, a small
exchange of scalars. Both are also multiplied by η_l.

Deviations from the paper:
  * The paper draws clients in proportion to n_k. Here the run draws them uniformly, and n_k is not
    used anywhere; nor is `client_weighting`.
  * 1e-10 is added to the loss, as in the authors' code, so that L^(q-1) exists.
  * If training minimises the sum of a minibatch's losses, L has the scale of that sum, as w does.
  * `form=reweight` is x ← x + η Σ L^q Δ_k / Σ L^q, without the estimate of the Lipschitz constant:
    the q-FedAvg rows of AdaFedAdam's tables fit it and not the form above.
  * A client is dropped if its update or its loss is not finite, or if its loss is negative, which
    has no power q.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="qfedavg",
    display_name="q-FedAvg",
    look=("green", "solid"),
    summary="q-FedAvg: clients are weighted by the power q of their loss.",
    paper=(
        "Li, Sanjabi, Beirami, Smith, Fair Resource Allocation in Federated Learning, "
        "arXiv 1905.10497"
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
            "lipschitz: the step is divided by estimates of Lipschitz constants, as in the paper; "
            "reweight: a mean with weights F_k^q, which AdaFedAdam's q-FedAvg rows fit.",
            source="q-FedAvg, Algorithm 2",
            choices=("lipschitz", "reweight"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    keeps_client_optimizer=True,
    aggregated="divides a sum of weighted updates by a sum of their weights",
    measures=(),
    known_problems=(
        "The default form is its authors'. The rows of AdaFedAdam's tables fit "
        "`form=reweight`, and not the default.",
    ),
    used_for=("Flower ships it as the strategy QFedAvg.",),
)


class Report(NamedTuple):
    """The result of local training: -Δ_k, like the weights, and L, float32; zero if left out."""

    back: Vector
    loss: tf.Tensor


class Weighed(NamedTuple):
    """What a client sends back, or the sums over the cohort; all zero if it is left out.

    Attributes:
      numerator: η_l D_k / M^q, like the weights.
      denominator: η_l h_k / M^q (`reweight`: (L/M)^q), float64 scalar.
      number: 1, float32 scalar.
    """

    numerator: Vector
    denominator: tf.Tensor
    number: tf.Tensor


def build(model: Model, local: client.LocalTraining, *, q: float, form: str) -> Method:
    """Builds q-FedAvg (Algorithm 2); see the module's docstring for the symbols."""

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        x, eta_l = broadcast
        loss = client.objective(model, client.evaluate(model, x, data)["loss"], data) + 1e-10
        trained = client.train(model, optimizer, eta_l, x, data)
        report = Report(x - trained.weights, loss)
        # Every positive number has all powers; the others have those that their signs have.
        finite = client.is_finite((report, tf.sign(loss) ** (q - 1.0)))
        counts = client.has_examples(data)
        return ClientResult(trained, report, weight=tf.ones([]), finite=finite, counts=counts)

    def weigh(
        broadcast: averaging.Broadcast, largest: tf.Tensor, report: Report, number: tf.Tensor
    ) -> Weighed:
        # In float64, as L^(q-1) of a small loss is large where q < 1.
        loss, largest = tf.cast(report.loss, tf.float64), tf.cast(largest, tf.float64)
        ratio = loss / largest
        power = ratio**q
        denominator = power
        if form == "lipschitz":
            square = report.back.map(lambda b: tf.cast(b, tf.float64)).squared_norm()
            eta_l = tf.cast(broadcast.learning_rate, tf.float64)
            steepness = tf.math.divide_no_nan(square, eta_l * largest)
            denominator = q * ratio ** (q - 1.0) * steepness + power
        numerator = tf.cast(power, tf.float32) * report.back
        return client.zero_unless(number > 0, Weighed(numerator, denominator, number))

    def server_update(state: averaging.ServerState, total: Weighed) -> averaging.ServerState:
        eta = tf.constant(local.server_learning_rate, tf.float64)
        rate = tf.math.divide_no_nan(eta, total.denominator)
        x = state.weights - tf.cast(rate, tf.float32) * total.numerator
        return averaging.next_state(state, state._replace(weights=x), total.number)

    def next_round(federation, state, clients, *client_states):
        message = federation.broadcast(federation.map_server(averaging.send_model(local), state))
        update = federation.map_clients(client_update, message, clients, *client_states)
        magnitudes = federation.map_clients(tf.abs, update.report.loss)
        largest = federation.broadcast(federation.max(magnitudes))
        weighed = federation.map_clients(weigh, message, largest, update.report, update.weight)
        metrics = federation.map_server(averaging.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, federation.sum(weighed))
        return state, metrics, *([update.client_state] if client_states else [])

    initialize = functools.partial(averaging.initial_state, model)
    return averaging.write_out(model, local, initialize, next_round)
