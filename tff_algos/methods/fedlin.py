"""FedLin: clients correct every gradient by the cohort's, computed earlier in the same round.

Mitra, Jaafar, Pappas, Hassani: "Linear Convergence in Federated Learning: Tackling Client
Heterogeneity and Sparse Gradients", NeurIPS 2021, arXiv 2102.07053, Algorithm 1 without
compression; a baseline of FedDA.

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  η_k      divide_rate           true       the paper: η_k = η / τ_k
  -        full_batch            false      choice: the same minibatch for both local gradients
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   choice; the paper's clients count alike

    clients → ∇F_k(x) ; server → g = Σ p_k ∇F_k(x)
    client:  x_k ← x ; each batch b: x_k ← x_k - η_k (∇f(x_k; b) - ∇f(x; b) + g)
    server:  x ← x + η_s Σ p_k (x_k - x)

Deviations from the paper:
  * This file was not checked against the paper's text: the update is as later papers describe it.
  * Steps use minibatches by default. With `full_batch` a step uses all of a client's examples, and
    a round takes one step per epoch.
  * Clients are sampled, and g is the cohort's; in the paper all clients take part.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec, RoundCost, RoundPlan
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam


def _plan(settings, round_num, total_rounds):
    return RoundPlan(batches="full_batch" if settings["full_batch"] else "minibatch")


SPEC = MethodSpec(
    name="fedlin",
    display_name="FedLin",
    look=("green", "dash_dot_dot"),
    summary="Clients correct every gradient by the cohort's, computed earlier in the round.",
    paper="Mitra et al., Linear Convergence in Federated Learning, arXiv 2102.07053",
    hparams=(
        Hparam(
            "divide_rate",
            True,
            "Whether a client's rate is divided by its local steps (eta_k = eta / tau_k).",
            source="FedLin",
        ),
        Hparam(
            "full_batch",
            False,
            "Whether a local step takes all examples of the client, an epoch being one step.",
            source="choice: the same minibatch for both local gradients",
        ),
    ),
    server_learning_rate=1.0,
    client_optimizers=("sgd",),
    plan=_plan,
    aggregated=Aggregated(in_clear="their full gradients"),
    measures=(),
    cost=RoundCost(gradients=2, down=2, up=2),
)


class Broadcast(NamedTuple):
    """The second broadcast: the cohort's gradient g and the client learning rate η."""

    gradient: Vector
    learning_rate: tf.Tensor


def build(
    model: Model, local: client.LocalTraining, *, divide_rate: bool, full_batch: bool
) -> Method:
    """Builds FedLin; see the module's docstring for the symbols."""
    del full_batch  # It is the round's plan.

    def model_of(state: averaging.ServerState) -> Vector:
        return state.weights

    def local_gradient(x: Vector, data: ClientData) -> averaging.Gradient:
        return averaging.give_gradient(model, local, x, data)

    def prepare_broadcast(state: averaging.ServerState, gradient: Vector) -> Broadcast:
        return Broadcast(gradient, local.learning_rate(state.round_num))

    def client_update(x: Vector, broadcast: Broadcast, data: ClientData) -> ClientResult:
        g, eta = broadcast
        steps = tf.cast(tf.maximum(client.num_steps(data), 1), tf.float32)
        eta_k = eta / steps if divide_rate else eta

        def step(at, carry):
            return at.weights - eta_k * (at.gradient - at.gradient_at(x) + g), carry

        trained, _ = client.take_steps(model, step, x, (), data)
        return ClientResult(trained, trained.weights - x)

    def server_update(
        state: averaging.ServerState, delta: Vector, total_weight: tf.Tensor
    ) -> averaging.ServerState:
        x = state.weights + local.server_learning_rate * delta
        return averaging.next_state(state, state._replace(weights=x), total_weight)

    def next_round(federation, state, clients):
        x = federation.broadcast(federation.map_server(model_of, state))
        first = federation.map_clients(local_gradient, x, clients)
        g = federation.mean(first.gradient, first.weight)
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state, g))
        update = federation.map_clients(client_update, x, broadcast, clients)
        delta = mean_of_updates(federation, update.report, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(averaging.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta, total_weight), metrics

    initialize = functools.partial(averaging.initial_state, model)
    return averaging.write_out(model, local, initialize, next_round)
