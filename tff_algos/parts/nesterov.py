"""SGD with Nesterov momentum as one of TFF's optimizers, which have none.

Sutskever, Martens, Dahl, Hinton: "On the importance of initialization and momentum in deep
learning", ICML 2013, in the form that takes the gradient at the weights themselves:

    u ← ρ u + g ;  w ← w - η (g + ρ u),   u = 0 at first
"""

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

_ACCUMULATOR = "accumulator"


class _Nesterov(tff.learning.optimizers.Optimizer):
    """See `build_nesterov`."""

    def __init__(self, learning_rate, momentum):
        self._learning_rate = learning_rate
        self._momentum = momentum

    def initialize(self, specs: Any) -> collections.OrderedDict:
        """Returns the state: `learning_rate` and `accumulator`, zeros like the weights."""
        zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
        return collections.OrderedDict(
            [
                (tff.learning.optimizers.LEARNING_RATE_KEY, self._learning_rate),
                (_ACCUMULATOR, zeros),
            ]
        )

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        """Returns the state and the weights after a step."""
        rate, rho = state[tff.learning.optimizers.LEARNING_RATE_KEY], self._momentum
        u = tf.nest.map_structure(lambda u, g: rho * u + g, state[_ACCUMULATOR], gradients)
        weights = tf.nest.map_structure(
            lambda w, g, u: w - tf.cast(rate, w.dtype) * (g + rho * u), weights, gradients, u
        )
        return collections.OrderedDict(state, **{_ACCUMULATOR: u}), weights


def build_nesterov(
    learning_rate: float, momentum: float = 0.9
) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer.

    Args:
      learning_rate: η, non-negative.
      momentum: ρ, in [0, 1).
    """
    return _Nesterov(learning_rate, momentum)
