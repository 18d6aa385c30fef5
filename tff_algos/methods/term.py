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
  * The authors' code divides by a running estimate Z of the mean instead of the round's sum:
    `normalizer=running`. Then w_k = exp(t (L_k - max L)) / (K Z), with Z ← Z/2 + mean_j exp(t (L_j
    - max L))/2 from Z = 0. It also averages the weighted updates over K once more, which looks like
    a mistake; `server_learning_rate` = 1/K reproduces its steps.
  * Only the tilt weights the clients, not n_k, so `client_weighting` is not used.
  * max L is the largest loss of the clients whose update is finite. It cancels in `softmax`.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec
from tff_algos.vector import Vector, constants
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="term",
    display_name="TERM",
    look=("blue", "dotted"),
    summary="TERM: clients are weighted by exp(t F_k).",
    paper="Li, Beirami, Sanjabi, Smith, Tilted Empirical Risk Minimization, arXiv 2007.01162",
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
            "softmax: weights sum to one in every round; running: divided by a running estimate of "
            "the mean exponential, as in the authors' code.",
            source="TERM, objective",
            choices=("softmax", "running"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    aggregated=Aggregated(own_weights="relative"),
    measures=(),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      estimate: Z, float32 scalar; stays 0 with `normalizer=softmax`.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    estimate: tf.Tensor
    round_num: tf.Tensor


class Report(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: Δ_k, like the weights; zero if it is left out.
      loss: L_k, float32 scalar; zero if it is left out.
    """

    delta: Vector
    loss: tf.Tensor


def build(model: Model, local: client.LocalTraining, *, t: float, normalizer: str) -> Method:
    """Builds TERM; see the module's docstring for the symbols."""

    def initialize() -> ServerState:
        return ServerState(constants(model.initial_weights), tf.constant(0.0), tf.constant(0))

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, eta_l = broadcast
        loss = client.evaluate(model, x, data)["loss"]
        trained = client.train(model, local.optimizer(), eta_l, x, data)
        report = Report(trained.weights - x, loss)
        counts = client.has_examples(data)
        return ClientResult(trained, report, weight=tf.ones([]), counts=counts)

    def loss_that_counts(loss: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return tf.where(number > 0, loss, loss.dtype.min)

    def tilted_weight(largest: tf.Tensor, loss: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
        return client.zero_unless(number > 0, tf.exp(t * (loss - largest)))

    def server_update(
        state: ServerState, delta: Vector, total: tuple[tf.Tensor, tf.Tensor]
    ) -> ServerState:
        weight, number = total
        estimate, scale = state.estimate, tf.constant(1.0)
        if normalizer == "running":
            mean = tf.math.divide_no_nan(weight, number)
            estimate = 0.5 * estimate + 0.5 * mean
            scale = tf.math.divide_no_nan(mean, estimate)
        x = state.weights + local.server_learning_rate * scale * delta
        after = ServerState(x, estimate, state.round_num)
        return averaging.next_state(state, after, number)

    def next_round(federation, state, clients):
        message = federation.broadcast(federation.map_server(averaging.send_model(local), state))
        update = federation.map_clients(client_update, message, clients)
        loss, number = update.report.loss, update.weight
        counted = federation.map_clients(loss_that_counts, loss, number)
        largest = federation.broadcast(federation.max(counted))
        weight = federation.map_clients(tilted_weight, largest, loss, number)
        delta = mean_of_updates(federation, update.report.delta, weight)
        total = federation.sum((weight, number))
        metrics = federation.map_server(averaging.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta, total), metrics

    return averaging.write_out(model, local, initialize, next_round)
