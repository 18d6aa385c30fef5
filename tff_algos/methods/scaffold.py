"""SCAFFOLD: control variates remove the clients' drift from their local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, arXiv 1910.06378, Algorithm 1 with Option II. The batched form is
that of Reddi et al., "Adaptive Federated Optimization", arXiv 2003.00295, Algorithm 6.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  η        server_learning_rate  1          SCAFFOLD, section 7
  p_k      client_weighting      examples   Adaptive Federated Optimization, Algorithm 6
  -        first_visit           server     Adaptive Federated Optimization, Algorithm 6
  N        num_clients           -          all training clients

    client k keeps c_k, first visit: c_k = c
    client:  x_k ← x ; every minibatch b: x_k ← x_k - η_l (∇f(x_k; b) - c_k + c)
             c_k⁺ = c_k - c + (x - x_k) / (τ_k η_l) ; Δ_k = x_k - x ; δ_k = c_k⁺ - c_k ; c_k ← c_k⁺
    server:  x ← x + η Σ p_k Δ_k ; c ← c + (K / N) Σ p_k δ_k

τ_k is the number of steps taken. K is the number of clients that were not dropped. c = 0 before the
first round. Model and control variate travel both ways: two vectors of the model's size up, two
down. A client keeps one.

Deviations from the paper:
  * Algorithm 6 of Adaptive Federated Optimization prints the update of c_k with the opposite sign
    and confuses η with η_l. The form above is SCAFFOLD's; only its sign removes drift.
  * A client's first c_k is c, as in Algorithm 6, so that its first visit equals one of FedAvg.
    SCAFFOLD itself starts every c_k at 0: `first_visit=zero`.
  * SCAFFOLD averages Δ_k and δ_k uniformly: `client_weighting=uniform`.
  * A client without a step, or whose update is not finite, sends nothing and keeps its c_k.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="scaffold",
    display_name="SCAFFOLD",
    look=("orange", "dotted"),
    summary="Control variates on server and clients remove the clients' drift.",
    paper=("Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging, arXiv 1910.06378"),
    hparams=(
        Hparam(
            "first_visit",
            "server",
            "Control variate of a client on its first visit: the server's, or zero.",
            source="Adaptive Federated Optimization, Algorithm 6 (SCAFFOLD itself: zero)",
            choices=("server", "zero"),
        ),
    ),
    server_learning_rate=1.0,
    client_optimizers=("sgd",),
    needs_num_clients=True,
    aggregated=Aggregated(in_clear="the changes of their control variates"),
    measures=(),
    cost=RoundCost(down=2, up=2),
    known_problems=(
        "A client's first visit equals one of FedAvg. With many clients and few rounds, most "
        "visits are first visits.",
    ),
    used_for=(
        "FLamby benchmarks it on medical data (arXiv 2210.04620).",
        "NVIDIA FLARE and pfl-research ship it.",
    ),
)


class ServerState(NamedTuple):
    """The server's state: the model x and the control variate c, like it; rounds done, int32."""

    weights: Vector
    control: Vector
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x, c and the client learning rate η_l."""

    weights: Vector
    control: Vector
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What a client sends: Δ_k and δ_k, like the weights, and 1, whose sum is K; 0 if dropped."""

    delta: Vector
    control_delta: Vector
    number: tf.Tensor


def build(
    model: Model, local: client.LocalTraining, *, first_visit: str, num_clients: int
) -> Method:
    """Builds SCAFFOLD; see the module's docstring for the symbols."""
    eta = local.server_learning_rate

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.control, local.learning_rate(state.round_num))

    def client_update(
        broadcast: Broadcast, data: ClientData, client_state: ClientState
    ) -> ClientResult:
        x, c, eta_l = broadcast
        c_k = client.recall(client_state, zeros(x) if first_visit == "zero" else c)

        def add_control(gradient, x_k):
            del x_k
            return gradient - c_k + c

        trained = client.train(model, local.optimizer(), eta_l, x, data, add_control)
        delta = trained.weights - x
        steps = tf.cast(client.num_steps(data), tf.float32)
        after = c_k - c - delta / (steps * eta_l)
        report = Report(delta, after - c_k, tf.ones([]))
        return ClientResult(
            trained,
            report,
            finite=client.is_finite(delta),
            counts=client.is_finite(report) & (steps > 0),
            kept=after,
        )

    def aggregate(federation, update):
        report = update.report
        delta = mean_of_updates(federation, report.delta, update.weight)
        control_delta = federation.mean(report.control_delta, update.weight)
        return (delta, control_delta), federation.sum(report.number)

    def server_update(
        state: ServerState, mean: tuple[Vector, Vector], number: tf.Tensor
    ) -> ServerState:
        delta, control_delta = mean
        x = state.weights + eta * delta
        c = state.control + number / num_clients * control_delta
        return ServerState(x, c, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
        client_state=lambda: zeros(model.initial_weights),
    )
