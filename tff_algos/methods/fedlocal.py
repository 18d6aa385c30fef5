"""FedLocal: clients use adaptive optimizers; their total scaling is divided out of the updates.

Wang, Xu, Garrett, Charles, Liu, Joshi: "Local Adaptivity in Federated Learning: Convergence and
Consistency", arXiv 2106.02305 (local and joint correction); a baseline of FedDA.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  -        client_optimizer      adam       choice
  -        correction            joint      the released code
  η        server_learning_rate  1          the released code's SGD
  p_k      client_weighting      examples   the released code

    client:  the optimizer starts from zero; A = Q = 0 ; each batch: a step of it, then with its
             preconditioner ψ after the step and its momentum β:  A ← β A + (1 - β) ψ ; Q ← Q + A
             send δ_k = (x_k - x) / Q and q_k = 1 / Q
    server:  D = Σ p_k δ_k ; joint: D ← D / Σ p_k q_k ; x ← x + η D

    optimizer   sgd   sgdm       adagrad, rmsprop   adam, yogi
    ψ           1     1          1/(√v + ε)         1/(√v + ε)
    β           0     momentum   0                  β_1

Deviations from the paper:
  * As in the released code, ψ has no bias correction, although Adam's and Yogi's steps do. Likewise
    SGDM's step is u ← β u + g, although A takes (1 - β) of each ψ. Joint correction cancels both.
  * The optimizers are TFF's except Adagrad, which is w ← w - η_l g / (√v + ε) with v = 0 at first
    (`client_initial_accumulator`); TFF's has ε inside the root and starts at 0.1. The released code
    uses Keras's.
  * With `correction=local` an update has the scale of one step, so tune the server's rate.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.moments import moving_average
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector, zeros
from tff_suite.hparams import By, Hparam

SPEC = MethodSpec(
    name="fedlocal",
    display_name="FedLocal",
    look=("black", "dotted"),
    summary="Adaptive optimizers on the clients, with local or joint correction.",
    paper="Wang et al., Local Adaptivity in Federated Learning, arXiv 2106.02305",
    hparams=(
        Hparam(
            "correction",
            "joint",
            "Whether the server divides by the mean of 1/Q_k (joint) or not (local).",
            source="Local Adaptivity, the released code",
            choices=("joint", "local"),
        ),
    ),
    server_learning_rate=1.0,
    client_optimizers=("adam", "sgd", "sgdm", "adagrad", "rmsprop", "yogi"),
    aggregated=Aggregated(
        "the mean of the corrected updates δ_k",
        in_clear=By("correction", {"joint": "their scales 1/Q"}, otherwise=""),
    ),
    measures=(),
    cost=RoundCost(up=2),
    known_problems=(
        "In `tff`, weights differ by up to 4e-7 between TensorFlow 2.14 and 2.21 after three "
        "rounds. Other methods give the same bits.",
    ),
)


class Report(NamedTuple):
    """What is averaged over clients.

    Attributes:
      delta: δ_k = (x_k - x) / Q, like the weights.
      inverse: q_k = 1 / Q, like the weights; empty for `correction=local`.
    """

    delta: Vector
    inverse: Vector | tuple[()]


def build(model: Model, local: client.LocalTraining, *, correction: str) -> Method:
    """Builds FedLocal; see the module's docstring for the symbols."""
    joint = correction == "joint"
    optimizer = local.optimizer(builders={"adagrad": _adagrad})

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, eta_l = broadcast

        def step(at, carry):
            slots, a, q = carry
            slots, x_k = optimizer.step(slots, at.weights, at.gradient)
            beta = slots.get("beta_1", local.momentum)
            a = moving_average(beta, a, _preconditioner(slots, at.weights))
            return x_k, (slots, a, q + a)

        carry = (optimizer.start(x, eta_l), zeros(x), zeros(x))
        trained, (_, _, q) = client.take_steps(model, step, x, carry, data)
        delta = (trained.weights - x).over(q)
        inverse = q.map(tf.math.reciprocal_no_nan) if joint else ()
        return ClientResult(trained, Report(delta, inverse))

    def server_update(state: averaging.ServerState, mean: Report) -> averaging.ServerState:
        d = mean.delta.over(mean.inverse) if joint else mean.delta
        return state._replace(weights=state.weights + local.server_learning_rate * d)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        aggregate=averaging.mean_each(Report._make, *Report._fields),
    )


def _adagrad(learning_rate, initial_preconditioner_value=0.0, epsilon=1e-7):
    """Builds Adagrad with ε outside the root; its state has the names of TFF's Adagrad."""

    class Adagrad(tff.learning.optimizers.Optimizer):
        def initialize(self, specs: Any) -> collections.OrderedDict:
            v = tf.nest.map_structure(
                lambda s: tf.fill(s.shape, tf.cast(initial_preconditioner_value, s.dtype)), specs
            )
            return collections.OrderedDict(
                learning_rate=learning_rate, epsilon=epsilon, preconditioner=v
            )

        def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
            eta, epsilon, v = state.values()
            v = tf.nest.map_structure(lambda v, g: v + g**2, v, gradients)
            weights = tf.nest.map_structure(
                lambda w, g, v: w - eta * g / (tf.sqrt(v) + epsilon), weights, gradients, v
            )
            return collections.OrderedDict(state, preconditioner=v), weights

    return Adagrad()


def _preconditioner(slots: Mapping[str, Any], weights: Vector) -> Vector:
    """Returns ψ of an optimizer's state, like the weights."""
    if "preconditioner" not in slots:
        return weights.map(tf.ones_like)
    return 1.0 / (Vector(slots["preconditioner"]).sqrt() + slots["epsilon"])
