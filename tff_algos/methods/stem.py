"""STEM: clients and server share a momentum direction made of gradient differences.

Khanduri et al.: "STEM: A Stochastic Two-Sided Momentum Algorithm Achieving Near-Optimal Sample and
Communication Complexities for Federated Learning", NeurIPS 2021, arXiv 2106.10435, Algorithm 1; a
baseline of FedDA.

  symbol   argument              default   from
  η        client_learning_rate  -         tuned; κ in `schedule=decay`
  a        a                     0.1       the survey of FedDA's baselines (0.1 or 0.01)
  -        schedule              constant  choice; the paper's analysis has decay
  w        w                     1         choice
  c        c                     1         choice
  -        server_learning_rate  1         the mean of the clients' models
  1/K      client_weighting      uniform   Algorithm 1

    first round: d = mean ∇F_k(x) over its cohort
    server → x, d
    client:  x_k, d_k ← x, d ; each batch b: x⁺ = x_k - η_s d_k
             d_k ← ∇f(x⁺; b) + (1 - a_s) (d_k - ∇f(x_k; b)) ; x_k ← x⁺
    server:  x ← x + η_g mean(x_k - x) ; d ← mean d_k

`schedule=decay`: η_s = κ / (w + s)^(1/3), a_s = min(1, c η_s²), where s is the number of local
steps so far, taking each earlier round's longest client.

Deviations from the paper:
  * This file was not checked against the paper's text: update and schedules are as later papers
    describe them. Take the constants as provisional.
  * The first direction comes from full local gradients. Every round has a separate exchange for
    them, which is empty after the first round.
  * Clients are sampled; in the paper all take part.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="stem",
    display_name="STEM",
    look=("purple", "dash_dot"),
    summary="Clients and server share a momentum direction of gradient differences.",
    paper="Khanduri et al., STEM, arXiv 2106.10435",
    hparams=(
        Hparam(
            "a",
            0.1,
            "How much of the direction a step forgets (a), for schedule=constant.",
            source="choice of 0.1 and 0.01",
            minimum=0.0,
            maximum=1.0,
        ),
        Hparam(
            "schedule",
            "constant",
            "constant: the client learning rate and a; decay: rate / (w + s)^(1/3) and "
            "a = min(1, c rate^2) after s local steps.",
            source="choice; STEM's analysis has decay",
            choices=("constant", "decay"),
        ),
        Hparam(
            "w",
            1.0,
            "Offset w of schedule=decay.",
            source="choice",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "c",
            1.0,
            "Factor c of schedule=decay.",
            source="choice",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(in_clear="their directions d_k"),
    measures=(),
    cost=RoundCost(gradients=2, down=2, up=2),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      d: The direction, like the weights; not used while `steps` is 0.
      steps: Local steps so far, taking each round's longest client; int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    d: Vector
    steps: tf.Tensor
    round_num: tf.Tensor


class Start(NamedTuple):
    """The first broadcast of a round: the model x, and whether d is still unknown."""

    weights: Vector
    is_first: tf.Tensor


class Broadcast(NamedTuple):
    """The second broadcast: d, the client learning rate η (κ), and the steps before the round."""

    d: Vector
    learning_rate: tf.Tensor
    steps: tf.Tensor


class Report(NamedTuple):
    """The second answer: x_k - x and d_k, like the weights, and τ_k, int32; zero if dropped."""

    delta: Vector
    d: Vector
    steps: tf.Tensor


def build(
    model: Model, local: client.LocalTraining, *, a: float, schedule: str, w: float, c: float
) -> Method:
    """Builds STEM; see the module's docstring for the symbols."""

    def rate_and_forgetting(learning_rate, s):
        if schedule == "constant":
            return learning_rate, a
        eta = learning_rate / tf.pow(w + tf.cast(s, tf.float32), 1.0 / 3.0)
        return eta, tf.minimum(1.0, c * eta**2)

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), tf.constant(0), tf.constant(0))

    def prepare_start(state: ServerState) -> Start:
        return Start(state.weights, tf.equal(state.steps, 0))

    def client_start(start: Start, data: ClientData) -> averaging.Gradient:
        asked = client.none_unless(start.is_first, data)
        return averaging.give_gradient(model, local, start.weights, asked)

    def prepare_broadcast(state: ServerState, gradient: Vector) -> Broadcast:
        is_first = tf.equal(state.steps, 0)
        d = client.choose(is_first, gradient, state.d)
        return Broadcast(d, local.learning_rate(state.round_num), state.steps)

    def client_update(start: Start, broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, (d, learning_rate, steps) = start.weights, broadcast

        def step(at, d):
            eta, forget = rate_and_forgetting(learning_rate, steps + at.number)
            ahead = at.weights - eta * d
            return ahead, at.gradient_at(ahead) + (1.0 - forget) * (d - at.gradient)

        trained, d = client.take_steps(model, step, x, d, data)
        return ClientResult(trained, Report(trained.weights - x, d, client.num_steps(data)))

    def server_update(
        state: ServerState, mean: tuple[Vector, Vector], longest: tf.Tensor, total_weight: tf.Tensor
    ) -> ServerState:
        delta, d = mean
        x = state.weights + local.server_learning_rate * delta
        after = ServerState(x, d, state.steps + longest, state.round_num)
        return averaging.next_state(state, after, total_weight)

    mean_reports = averaging.mean_each(tuple, "delta", "d")

    def next_round(federation, state, clients):
        start = federation.broadcast(federation.map_server(prepare_start, state))
        first = federation.map_clients(client_start, start, clients)
        gradient = federation.mean(first.gradient, first.weight)
        message = federation.broadcast(federation.map_server(prepare_broadcast, state, gradient))
        update = federation.map_clients(client_update, start, message, clients)
        (mean,) = mean_reports(federation, update)
        longest = federation.max(update.report.steps)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(averaging.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, mean, longest, total_weight), metrics

    return averaging.write_out(model, local, initialize, next_round)
