"""Centralised training: one optimizer on all clients' examples together, in shuffled epochs.

The yardstick of Reddi, Charles, et al.: "Adaptive Federated Optimization", ICLR 2021, arXiv
2003.00295, Table 11 (top row), with SGD, SGD with momentum, Adam, Adagrad and Yogi.

  symbol   argument              default   from
  η        client_learning_rate  -         tuned
  -        client_optimizer      sgd       Table 11 has sgd, sgdm, adam, adagrad, yogi
  -        steps_per_round       an epoch  choice: the paper trains for 100 epochs

    once:    x, s ← initial weights, fresh optimizer state
    round:   each batch of the pooled, shuffled examples: s, x ← optimizer(s, x, ∇f(x; batch))

The examples come as those of one client (`RoundPlan.cohort` is `pooled`), which starts from the
server's weights and optimizer state and sends both back. A round is an epoch (as many as
`client_epochs_per_round`), in an order of its own, or `steps_per_round` minibatches: rounds then go
through the shuffled epochs one after the other, so that where a round ends means nothing to the
training. Schedules of the learning rate count rounds, as everywhere.

Deviations from the paper:
  * TFF's optimizers: Adagrad has ε inside the root and its accumulator starts at 0.1, Yogi's at
    1e-6. The paper does not say which it took.
  * Given several clients, as a user's own loop may, the server takes the mean of what they send
    back, each counting the same. A client that is not finite at the end, or has no examples, counts
    nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from hparams import Hparam
from tff_algos import averaging, client
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec, RoundPlan
from tff_algos.weights import Weights, constants


def _plan(settings, round_num, total_rounds):
    steps = settings["steps_per_round"]
    return RoundPlan("pooled", local_steps=steps, first_step=steps and round_num * steps)


SPEC = MethodSpec(
    name="centralized",
    summary="One optimizer on the pooled, shuffled examples of all clients: the yardstick.",
    paper="Reddi, Charles, et al., Adaptive Federated Optimization, arXiv 2003.00295",
    hparams=(
        Hparam(
            "steps_per_round",
            None,
            "Minibatches of a round, which continues in the shuffled epoch where the last one "
            "stopped. Unset: a round is client_epochs_per_round whole epochs.",
            source="Adaptive Federated Optimization, App. E.6, counts epochs",
            type=int,
            minimum=1,
        ),
    ),
    server_learning_rate=1.0,
    has_server_step=False,
    client_weighting=None,
    draws_clients=False,
    plan=_plan,
)


class ServerState(NamedTuple):
    """What is kept between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      slots: s, the optimizer's state, TFF's, with every number as float32.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    slots: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What the client receives: the model x, and s with this round's η in it."""

    weights: Weights
    slots: Any


class Report(NamedTuple):
    """What the client sends back: x and s after the round's last step."""

    weights: Weights
    slots: Any


def build(model: Model, local: client.LocalTraining, *, steps_per_round: int | None) -> Method:
    """Builds centralised training; see the module's docstring for the symbols.

    Args:
      model: The model to train.
      local: The optimizer and its learning rate.
      steps_per_round: Already in the plan of every round; the mathematics does not need it.
    """
    del steps_per_round
    optimizer = local.optimizer()

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        slots = client.initial_slots(optimizer, x, local.learning_rate(tf.constant(0)))
        floats = tf.nest.map_structure(lambda s: tf.cast(s, tf.float32), slots)
        return ServerState(x, floats, tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        slots = state.slots.copy()
        slots["learning_rate"] = local.learning_rate(state.round_num)
        return Broadcast(state.weights, slots)

    def client_update(broadcast: Broadcast, data):
        x, slots = broadcast

        def step(at, slots):
            slots, x = optimizer.next(slots, at.weights, at.gradient)
            return tuple(x), slots

        trained, slots = client.take_steps(model, step, x, slots, data)
        weight = tf.cast(client.has_examples(data), tf.float32)
        return averaging.give(Report(trained.weights, slots), weight, trained, data)

    def server_update(state: ServerState, mean: Report) -> ServerState:
        return ServerState(mean.weights, mean.slots, state.round_num)

    return averaging.build(
        model, local, client_update, server_update, initialize=initialize, broadcast=broadcast
    )
