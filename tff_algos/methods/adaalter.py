"""Local AdaAlter: clients run Adagrad whose accumulator only moves when the server averages it.

Xie, Koyejo, Gupta, Lin: "Local AdaAlter: Communication-Efficient Stochastic Gradient Descent with
Adaptive Learning Rates", arXiv 1911.09030, Algorithm 4. It is a special case of FedOpt (Reddi et
al., arXiv 2003.00295, App. B.3).

  symbol   argument              default    from
  η        client_learning_rate  -          tuned
  ε        epsilon               1          the paper's experiments (not checked)
  b_0      b0                    1          the paper's experiments (not checked)
  -        server_learning_rate  1          the mean of the clients' models
  p_k      client_weighting      examples   choice; the paper's workers are alike

    server → x, A ; A_0 = b_0²
    client:  A_k ← A ; step j = 1, 2, ...: g = ∇f(x_k; b)
             x_k ← x_k - η g / √(A + j ε²) ; A_k ← A_k + g²
    server:  x ← x + η_s Σ p_k (x_k - x) ; A ← Σ p_k A_k

The root uses the synchronised A, not A_k; j restarts in every round.

Deviations from the paper:
  * This file was not checked against the paper's text: update and constants are as described in a
    survey of the five papers that this suite reproduces.
  * Clients are sampled and take as many steps as they have batches; the paper's workers all take H.
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
    name="adaalter",
    display_name="Local AdaAlter",
    look=("wine", "solid"),
    summary="Clients run Adagrad from a common accumulator, which the server averages.",
    paper="Xie et al., Local AdaAlter, arXiv 1911.09030",
    hparams=(
        Hparam(
            "epsilon",
            1.0,
            "Epsilon: step j adds j epsilon^2 in the root.",
            source="AdaAlter",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "b0",
            1.0,
            "Root b_0 of the accumulator's first value.",
            source="AdaAlter",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_optimizers=("sgd",),
    aggregated=Aggregated(in_clear="their accumulators A_k"),
    measures=(),
    cost=RoundCost(down=2, up=2),
)


class ServerState(NamedTuple):
    """The server's state: the model x and the accumulator A, like it; rounds done, int32."""

    weights: Vector
    accumulator: Vector
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: x, A and the client learning rate η."""

    weights: Vector
    accumulator: Vector
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What is averaged over clients: x_k - x and A_k, like the weights."""

    delta: Vector
    accumulator: Vector


def build(model: Model, local: client.LocalTraining, *, epsilon: float, b0: float) -> Method:
    """Builds Local AdaAlter; see the module's docstring for the symbols."""

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x) + b0**2, tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.accumulator, local.learning_rate(state.round_num))

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, synchronised, eta = broadcast

        def step(at, own):
            j = tf.cast(at.number + 1, tf.float32)
            g = at.gradient
            x_k = at.weights - eta * g / (synchronised + j * epsilon**2).sqrt()
            return x_k, own + g**2

        trained, own = client.take_steps(model, step, x, synchronised, data)
        return ClientResult(trained, Report(trained.weights - x, own))

    def server_update(state: ServerState, mean: Report) -> ServerState:
        x = state.weights + local.server_learning_rate * mean.delta
        return ServerState(x, mean.accumulator, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=averaging.mean_each(Report._make, *Report._fields),
    )
