"""The server's last direction as a momentum of the clients' steps, as FedCM has it.

Xu, Wang, Wang, Yao: "FedCM: Federated Learning with Client-level Momentum", arXiv 2106.10874. The
mathematics and its symbols are in `tff_algos/methods/fedcm.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam


def mixing_setting(name: str, source: str) -> Hparam:
    """Returns the setting of the share of the gradient in a local step."""
    return Hparam(
        name,
        0.1,
        f"Share {name} of the gradient in a local step; the rest is the server's last direction. "
        "1 is federated averaging.",
        source=source,
        minimum=0.0,
        maximum=1.0,
        exclusive_minimum=True,
    )


MOMENTUM_STEPS = Hparam(
    "momentum_steps",
    None,
    "Local steps K by which a round's mean update is divided to give the direction. Default: "
    "the mean of the steps that its clients took.",
    source="FedCM, Algorithm 2 (all clients take K)",
    type=float,
    minimum=0.0,
    exclusive_minimum=True,
)
FIRST_ROUND = Hparam(
    "first_round",
    "mixed",
    "Steps while there is no direction yet: mixed, the gradient's share of them; plain, the whole "
    "gradient.",
    source="FedCM, Algorithm 2",
    choices=("mixed", "plain"),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      direction: d, like the weights.
      updates: Rounds whose mean update was used for d, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    direction: Vector
    updates: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x and d; the gradient's share and η_l, float32 scalars."""

    weights: Vector
    direction: Vector
    share: tf.Tensor
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What a client sends: x_k - x, like the weights, and the steps it took, float32 scalar."""

    delta: Vector
    steps: tf.Tensor


def build(
    gradient: Callable[[client.LocalStep], Vector],
    model: Model,
    local: client.LocalTraining,
    alpha: float,
    momentum_steps: float | None,
    first_round: str,
) -> Method:
    """Builds FedCM around a gradient of a local step.

    Args:
      gradient: `client.LocalStep -> gradient`, like the weights.
      model: The model to train.
      local: How clients train, and how they are weighted.
      alpha: The gradient's share of a step.
      momentum_steps: K; `None` for the mean number of steps of the round's clients.
      first_round: `mixed`, or `plain`, which uses the whole gradient until a direction exists.
    """

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), tf.constant(0), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        share = tf.constant(alpha)
        if first_round == "plain":
            share = tf.where(state.updates > 0, share, 1.0)
        eta_l = local.learning_rate(state.round_num)
        return Broadcast(state.weights, state.direction, share, eta_l)

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, d, share, eta_l = broadcast

        def step(at, carry):
            return at.weights - eta_l * (share * gradient(at) + (1.0 - share) * d), carry

        trained, _ = client.take_steps(model, step, x, (), data)
        steps = tf.cast(client.num_steps(data), tf.float32)
        return ClientResult(trained, Report(trained.weights - x, steps))

    def aggregate(federation, update):
        delta = mean_of_updates(federation, update.report.delta, update.weight)
        return delta, federation.mean(update.report.steps, update.weight)

    def server_update(state: ServerState, delta: Vector, steps: tf.Tensor) -> ServerState:
        length = (momentum_steps or steps) * local.learning_rate(state.round_num)
        d = (-delta).over(length)
        x = state.weights + local.server_learning_rate * delta
        return ServerState(x, d, state.updates + 1, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
    )
