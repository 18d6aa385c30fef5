"""FedMGDA+: a common descent direction near the average, from updates of unit length.

Hu, Shaloudegi, Zhang, Yu: "Federated Learning Meets Multi-objective Optimization", IEEE TNSE 2022,
arXiv 2006.11489, Algorithm 1.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  η        server_learning_rate  1          choice (grid 0.1, 0.5, 1, 2)
  ε        epsilon               0.1        AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)
  λ⁰       client_weighting      uniform    code of Ditto's authors
  -        server_lr_decay       1          choice; the paper's decay is not given in AdaFed
  -        iterations            60         choice

    client:  Δ_k = x_k - x
    server:  h_k = -Δ_k / ‖Δ_k‖
             λ = argmin ‖Σ λ_k h_k‖²  with Σ λ = 1, λ ≥ 0, |λ_k - λ⁰_k| ≤ ε
             x ← x - η Σ λ_k h_k

ε = 0 averages the unit updates, ε = 1 is MGDA. Because the updates have unit length, η alone scales
the server's step.

Deviations from the paper:
  * Public codes differ in λ⁰: 1/K (`client_weighting=uniform`, default) or n_k / n (`examples`).
  * η is multiplied by `server_lr_decay` after every server step. The paper gives no value, so by
    default it is constant.
  * A client with Δ_k = 0 is left out before λ⁰ is formed, like one whose update is not finite.
  * The quadratic programme is solved on the K x K Gram matrix in float64 by an interior-point
    method, in at most `iterations` steps. If the Gram matrix is singular, λ is not unique, but Σ
    λ_k h_k is.
"""

from __future__ import annotations

import collections
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
    name="fedmgda_plus",
    display_name="FedMGDA+",
    look=("orange", "solid"),
    summary="FedMGDA+: a common descent direction near the average of unit updates.",
    paper=(
        "Hu, Shaloudegi, Zhang, Yu, Federated Learning Meets Multi-objective Optimization, "
        "arXiv 2006.11489"
    ),
    hparams=(
        Hparam(
            "epsilon",
            0.1,
            "How far (epsilon) a client's weight may be from its weight in the average, lambda0. 0 "
            "averages, 1 is MGDA.",
            source="AdaFed, App. (grid 0.01, 0.05, 0.1, 0.5, 1)",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "server_lr_decay",
            1.0,
            "Factor by which the server learning rate falls in every server step.",
            source="choice: none",
            minimum=0.0,
            maximum=1.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "iterations",
            60,
            "Most Newton steps of the quadratic programme's solver.",
            source="choice",
            minimum=1,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    aggregated="needs each client's own update at the server",
    measures=("direction_norm", "largest_weight"),
    known_problems=(
        "The server holds one vector of the model's size per client of the cohort, also with "
        "`--clients_per_chunk`.",
    ),
)


class ServerState(NamedTuple):
    """What the server keeps.

    Attributes:
      weights: The model x, one tensor per model weight.
      learning_rate: η of the next server step, float32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    learning_rate: tf.Tensor
    round_num: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    epsilon: float,
    server_lr_decay: float,
    iterations: int,
) -> Method:
    """Builds FedMGDA+ (Algorithm 1); see the module's docstring for the symbols."""

    def initialize() -> ServerState:
        rate = tf.constant(local.server_learning_rate)
        return ServerState(constants(model.initial_weights), rate, tf.constant(0))

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, eta_l = broadcast
        trained = client.train(model, local.optimizer(), eta_l, x, data)
        return ClientResult(trained, trained.weights - x)

    def server_update(state: ServerState, stacked: tuple[Vector, tf.Tensor]) -> averaging.Outcome:
        deltas, weights = stacked
        gram = vectors.gram(deltas)
        norms = tf.sqrt(tf.linalg.diag_part(gram))
        counts = (weights > 0) & (norms > 0)
        inverse = client.zero_unless(counts, 1.0 / norms)
        center = client.zero_unless(counts, tf.cast(weights, tf.float64))
        total = tf.reduce_sum(center)
        center = tf.math.divide_no_nan(center, total)
        cosines = inverse[:, None] * gram * inverse
        mixture = vectors.box_minimum(cosines, center, epsilon, counts, iterations)
        direction = vectors.combine(-mixture * inverse, deltas)
        eta = state.learning_rate
        x = state.weights - eta * direction.cast(state.weights)
        # A cohort of which nobody moved takes no step: its direction is zero.
        decayed = tf.where(total > 0, eta * server_lr_decay, eta)
        length = direction.norm()
        metrics = collections.OrderedDict(
            direction_norm=tf.cast(client.zero_unless(total > 0, length), tf.float32),
            largest_weight=tf.cast(tf.reduce_max(mixture), tf.float32),
        )
        return averaging.Outcome(ServerState(x, decayed, state.round_num), metrics)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        aggregate=averaging.stack_reports,
    )
