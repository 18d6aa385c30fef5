"""SGD with Nesterov momentum as a TFF optimizer, since TFF has none.

Sutskever, Martens, Dahl, Hinton: "On the importance of initialization and momentum in deep
learning", ICML 2013, in the form that takes the gradient at the weights themselves:

    u ← ρ u + g ;  w ← w - η (g + ρ u),   u = 0 at first
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

_ACCUMULATOR = "accumulator"


def build_nesterov(
    learning_rate: float, momentum: float = 0.9
) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer.

    Its state is `learning_rate` and `accumulator`: u, like the weights and zero at first.

    Args:
      learning_rate: η, non-negative.
      momentum: ρ, in [0, 1).
    """

    class Nesterov(tff.learning.optimizers.Optimizer):
        def initialize(self, specs: Any) -> collections.OrderedDict:
            zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
            return collections.OrderedDict(
                [(tff.learning.optimizers.LEARNING_RATE_KEY, learning_rate), (_ACCUMULATOR, zeros)]
            )

        def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
            rate, rho = state[tff.learning.optimizers.LEARNING_RATE_KEY], momentum
            u = tf.nest.map_structure(lambda u, g: rho * u + g, state[_ACCUMULATOR], gradients)
            weights = tf.nest.map_structure(
                lambda w, g, u: w - tf.cast(rate, w.dtype) * (g + rho * u), weights, gradients, u
            )
            return collections.OrderedDict(state, **{_ACCUMULATOR: u}), weights

    return Nesterov()
