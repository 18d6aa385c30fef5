"""FedExP: the more the clients' updates disagree, the larger the server's step.

Jhunjhunwala, Wang, Joshi: "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
arXiv 2301.09604, Algorithm 1.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  ε        epsilon               0.001     the released code, for CIFAR and CINIC
  -        epsilon_times         one       Algorithm 1: ε once
  -        first_reported        mean      the paper: the mean of the last two iterates
  1/M      client_weighting      uniform   Algorithm 1

    client:  x_k ← x ; each batch: x_k ← x_k - η_l ∇f(x_k; b) ; send Δ_k = x_k - x and ‖Δ_k‖²
    server:  Δ̄ = mean Δ_k ; η_g = max(1, mean ‖Δ_k‖² / (2 (‖Δ̄‖² + ε)))
             x' ← x ; x ← x + η_g Δ̄ ; reported: (x + x') / 2

If the updates agree, η_g is 1, which is federated averaging. Iterates oscillate, so the mean of the
last two is evaluated; clients receive x.

Deviations from the paper:
  1. The released code has M ε in place of ε, with M clients: `epsilon_times=clients`. It took
     ε = 0.1 for EMNIST.
  2. After the first round the released code reports x itself: `first_reported=iterate`.
  3. In every round the released code multiplies η_l by 0.998 and ε by 0.998². Here ε is constant,
     and η_l follows `client_lr_schedule`.
  4. The released code weighs all means by n_k: `client_weighting=examples`.
  5. The code's clipping of gradients and its weight decay are left out.
  6. Any client optimizer may take the local step.
  7. If all clients of a round are left out, both models stay the same.
  8. The paper's text could not be read when this was written. The rule was compared with the
     authors' code only.
"""

from __future__ import annotations

import collections
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
    name="fedexp",
    display_name="FedExP",
    look=("orange", "short_dashed"),
    summary="The more the clients' updates disagree, the larger the server's step.",
    paper="Jhunjhunwala, Wang, Joshi, FedExP: Speeding Up Federated Averaging via Extrapolation, "
    "arXiv 2301.09604",
    hparams=(
        Hparam(
            "epsilon",
            0.001,
            "Added to the squared norm of the mean update, so that the server's step stays finite.",
            source="FedExP, the released code for CIFAR and CINIC; 0.1 for EMNIST",
            minimum=0.0,
        ),
        Hparam(
            "epsilon_times",
            "one",
            "How often epsilon is added: one, once; clients, as many times as clients count, as in "
            "the released code.",
            source="FedExP, Algorithm 1",
            choices=("one", "clients"),
        ),
        Hparam(
            "first_reported",
            "mean",
            "Model that is evaluated after the first round: mean, of the initial and the new one; "
            "iterate, the new one, as in the released code.",
            source="FedExP, section 3",
            choices=("mean", "iterate"),
        ),
    ),
    server_learning_rate=1.0,
    has_server_step=False,
    client_weighting="uniform",
    keeps_client_optimizer=True,
    aggregated=Aggregated(in_clear="the squared norms of their updates"),
    measures=("server_rate",),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The reported model, one tensor per model weight.
      iterate: The model x that clients receive, like the weights.
      updates: Steps taken, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    iterate: Vector
    updates: tf.Tensor
    round_num: tf.Tensor


class Report(NamedTuple):
    """What a client sends: Δ_k, like the weights, ‖Δ_k‖², and 1, whose sum is M; 0 if dropped."""

    delta: Vector
    square: tf.Tensor
    number: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    epsilon: float,
    epsilon_times: str,
    first_reported: str,
) -> Method:
    """Builds FedExP (Algorithm 1); see the module's docstring for the symbols."""

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, constants(model.initial_weights), tf.constant(0), tf.constant(0))

    def broadcast(state: ServerState) -> averaging.Broadcast:
        return averaging.Broadcast(state.iterate, local.learning_rate(state.round_num))

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        x, eta_l = broadcast
        trained = client.train(model, optimizer, eta_l, x, data)
        delta = trained.weights - x
        report = Report(delta, delta.squared_norm(), tf.ones([]))
        return ClientResult(trained, report, counts=client.has_examples(data))

    def aggregate(federation, update):
        delta = mean_of_updates(federation, update.report.delta, update.weight)
        square = federation.mean(update.report.square, update.weight)
        return delta, square, federation.sum(update.report.number)

    def server_update(
        state: ServerState, delta: Vector, square: tf.Tensor, number: tf.Tensor
    ) -> averaging.Outcome:
        added = epsilon * number if epsilon_times == "clients" else epsilon
        longer = 2.0 * (delta.squared_norm() + added)
        eta_g = tf.maximum(1.0, tf.math.divide_no_nan(square, longer))
        x = state.iterate + eta_g * delta
        reported = (state.iterate + x) / 2.0
        if first_reported == "iterate":
            reported = client.choose(tf.equal(state.updates, 0), x, reported)
        after = ServerState(reported, x, state.updates + 1, state.round_num)
        return averaging.Outcome(after, collections.OrderedDict(server_rate=eta_g))

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
        adopt_weights=lambda state: state._replace(iterate=state.weights),
    )
