"""The clients' optimizer state, kept by the server between rounds and sent with the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.model import Model
from tff_algos.vector import Vector, constants


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      slots: State of the client optimizer, TFF's, as `initial_state` made it.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    slots: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, the server's slots, and the client rate η."""

    weights: Vector
    slots: Any
    learning_rate: tf.Tensor


def initial_state(model: Model, local: client.LocalTraining, averaged: bool) -> ServerState:
    """Returns the state before the first round.

    Args:
      model: The model to train.
      local: How clients train.
      averaged: Whether slots will be means over clients, so that all must be float32, even counts.
    """
    rate = local.learning_rate(tf.constant(0))
    slots = local.optimizer().start(model.initial_weights, rate)
    if averaged:
        slots = tf.nest.map_structure(lambda s: tf.cast(s, tf.float32), slots)
    return ServerState(constants(model.initial_weights), slots, tf.constant(0))


def with_settings_of(optimizer: Any, slots: Any, before: Any) -> Any:
    """Returns slots that are means over clients, with the optimizer's settings restored.

    The slots also hold settings (β₁, ε), which are equal on all clients. But a mean of equal
    numbers is rounded, and after some thousand rounds 1 - β₂ would be off by a percent.

    Args:
      optimizer: The clients' optimizer, one of TFF's.
      slots: The means.
      before: The slots that the clients received.
    """
    return optimizer.set_hparams(slots, optimizer.get_hparams(before))


def send(local: client.LocalTraining) -> Callable:
    """Returns `state -> Broadcast`, with the round's client learning rate."""
    return lambda state: Broadcast(state.weights, state.slots, local.learning_rate(state.round_num))
