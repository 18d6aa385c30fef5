"""FedCM: every local step goes partly along the direction in which the server went last.

Xu, Wang, Wang, Yao: "FedCM: Federated Learning with Client-level Momentum", arXiv 2106.10874,
Algorithm 2.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  α        alpha                 0.1       choice: later papers' comparisons (see 1)
  K        momentum_steps        unset     Algorithm 2: the steps of a client, alike for all
  -        first_round           mixed     Algorithm 2
  η        server_learning_rate  1         the mean of the clients' models
  1/|S|    client_weighting      uniform   Algorithm 2

    server → x, d ; d = 0 at first
    client:  x_k ← x ; each batch: x_k ← x_k - η_l (α ∇f(x_k; b) + (1 - α) d)
    server:  Δ = mean(x_k - x) ; x ← x + η Δ ; d ← -Δ / (K η_l)

d is a mean of gradient-like directions: -Δ is what the clients went in K steps of length η_l.

Deviations from the paper:
  1. The paper's text and its authors' code could not be read when this was written. The rule is as
     later papers and their common code (FL-Simulator) have it, and so is α.
  2. The paper's η_g multiplies d, so it is K η_l η here.
  3. In the paper all clients take K steps. Unset, `momentum_steps` is the mean of the steps that
     the round's clients took, with the weights of Δ. Released codes divide by one fixed number
     (epochs times the batches of a client of mean size, or of the first client); set it for that.
  4. d is 0 at first, so the first round's steps are α as long as those of SGD.
     `first_round=plain` takes whole gradients until there is a d.
  5. η_l is that of the round that made Δ.
  6. `client_weighting=examples` weighs the mean by n_k.
  7. Clipping, weight decay and the decay of rates in released codes are left out.
  8. A client without examples, or whose update is not finite, counts nothing. If no client is
     left, d stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.weights import Weights, constants, each, move, subtract, zeros
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
    "Local steps K by which a round's mean update is divided to give the direction. Unset: the "
    "mean of the steps that its clients took.",
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

SPEC = MethodSpec(
    name="fedcm",
    display_name="FedCM",
    look=("blue", "short_dashed"),
    summary="Local steps go partly along the direction in which the server went last.",
    paper="Xu et al., FedCM: Federated Learning with Client-level Momentum, arXiv 2106.10874",
    hparams=(
        mixing_setting("alpha", "choice: comparisons of later papers"),
        MOMENTUM_STEPS,
        FIRST_ROUND,
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(),
    measures=(),
    cost=RoundCost(down=2),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      direction: d, like the weights.
      updates: Rounds whose mean update made a d, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    direction: Weights
    updates: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x and d; the gradient's share and η_l, float32 scalars."""

    weights: Weights
    direction: Weights
    share: tf.Tensor
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What a client sends: x_k - x, like the weights, and the steps it took, float32 scalar."""

    delta: Weights
    steps: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    alpha: float,
    momentum_steps: float | None,
    first_round: str,
) -> Method:
    """Builds FedCM (Algorithm 2); see the module's docstring for the symbols."""
    return build_with(lambda at: at.gradient, model, local, alpha, momentum_steps, first_round)


def build_with(
    gradient: Callable,
    model: Model,
    local: client.LocalTraining,
    alpha: float,
    momentum_steps: float | None,
    first_round: str,
) -> Method:
    """Builds FedCM around another gradient of a local step.

    Args:
      gradient: `client.LocalStep -> gradient`, like the weights.
      model: The model to train.
      local: How clients train and how much each counts.
      alpha: See the module's docstring, as for the others.
      momentum_steps: See there.
      first_round: See there.
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

    def client_update(broadcast: Broadcast, data):
        x, d, share, eta_l = broadcast

        def step(at, carry):
            x_k = each(
                lambda x_k, g, d: x_k - eta_l * (share * g + (1.0 - share) * d),
                at.weights,
                gradient(at),
                d,
            )
            return x_k, carry

        trained, _ = client.take_steps(model, step, x, (), data)
        steps = tf.cast(client.num_steps(data), tf.float32)
        report = Report(subtract(trained.weights, x), steps)
        return averaging.give(report, local.client_weight(data), trained, data)

    def aggregate(federation, update):
        delta = mean_of_updates(federation, update.report.delta, update.weight)
        return delta, federation.mean(update.report.steps, update.weight)

    def server_update(state: ServerState, delta: Weights, steps) -> ServerState:
        length = (momentum_steps or steps) * local.learning_rate(state.round_num)
        d = each(lambda delta: tf.math.divide_no_nan(-delta, length), delta)
        x = move(state.weights, local.server_learning_rate, delta)
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
