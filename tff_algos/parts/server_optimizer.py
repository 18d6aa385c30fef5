"""Federated averaging whose server applies an optimizer to the mean client update.

Reddi et al.: "Adaptive Federated Optimization", arXiv 2003.00295, Algorithms 1 and 5, around any
`ServerOptimizer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.vector import Vector, constants


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      optimizer: Slots of the server optimizer; structures of tensors like `weights`.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    optimizer: Any
    round_num: tf.Tensor


class ServerOptimizer(NamedTuple):
    """A server optimizer as two pure functions.

    Attributes:
      initialize: `weights -> slots`.
      step: `(slots, weights, g) -> (slots, weights)` for the pseudo-gradient g = -Δ.
    """

    initialize: Callable[[Vector], Any]
    step: Callable[[Any, Vector, Vector], tuple[Any, Vector]]


def build_around(
    server_optimizer: ServerOptimizer, model: Model, local: client.LocalTraining
) -> Method:
    """Builds federated averaging around a server optimizer.

    Args:
      server_optimizer: How the server applies the mean update.
      model: The model to train.
      local: How clients train, and how they are weighted.
    """

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, server_optimizer.initialize(x), tf.constant(0))

    def server_update(state: ServerState, delta: Vector) -> ServerState:
        slots, x = server_optimizer.step(state.optimizer, state.weights, -delta)
        return ServerState(x, slots, state.round_num)

    client_update = averaging.plain_client(model, local)
    return averaging.build(model, local, client_update, server_update, initialize=initialize)
