"""Δ-SGD: every client adapts the length of its steps to the local smoothness.

Kim, Toghani, Uribe, Kyrillidis: "Adaptive Federated Learning with Auto-Tuned Clients", ICLR 2024,
arXiv 2306.11201, Algorithm 1.

  symbol   argument              default     from
  η_0      client_learning_rate  0.2         the released code
  θ_0      theta0                1           the released code
  γ        gamma                 2           the released code (its damping of 1)
  δ        delta                 0.1         the released code's run on CIFAR-100
  -        difference            minibatch   the released code
  -        first_step            plain       Algorithm 1 (see 1)
  η        server_learning_rate  1           the mean of the clients' models
  1/|S|    client_weighting      uniform     Algorithm 1 (see 1)

    client, afresh in every round:
      step 0:  x_1 = x_0 - η_0 g_0 with x_0 = x
      step t:  η_t = min{γ ‖x_t - x_{t-1}‖ / (2 ‖g_t - g'‖), √(1 + δ θ_{t-1}) η_{t-1}}
               θ_t = η_t / η_{t-1} ; x_{t+1} = x_t - η_t g_t
      g_t = ∇f(x_t; b_t) ; g' = ∇f(x_{t-1}; b_t)
    server:  x ← x + η mean(x_k - x)

The learning rate needs no tuning: that of the first step is soon forgotten.

Deviations from the paper:
  1. The paper's text could not be read when this was written. The rule was compared with the
     released code, and the numbers are that code's. The paper's forms of `first_step` and
     `client_weighting` are taken from later papers.
  2. `difference=minibatch` takes both gradients on the step's minibatch, as the released code does:
     two gradients per step. `consecutive` takes g' = ∇f(x_{t-1}; b_{t-1}), which costs nothing, but
     it also contains the difference of two minibatches.
  3. In the released code the first step has length √(1 + δ θ_0) η_0, and θ grows with it:
     `first_step=grown`.
  4. If x_t = x_{t-1} or g_t = g', only the second bound applies, as in the released code.
  5. The released code adds 1e-8 to the smaller of the bounds. Here nothing is added.
  6. The default of δ in the released code is 0.02.
  7. `client_weighting=examples` weighs the mean by n_k. η_0 may follow `client_lr_schedule`.
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
from tff_algos.vector import Vector, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="delta_sgd",
    display_name="Δ-SGD",
    look=("sky", "short_dashed"),
    summary="Clients adapt the length of their steps to the local smoothness.",
    paper="Kim et al., Adaptive Federated Learning with Auto-Tuned Clients, arXiv 2306.11201",
    hparams=(
        Hparam(
            "gamma",
            2.0,
            "Factor gamma on the bound that the local smoothness sets for a step.",
            source="Delta-SGD, the released code (damping 1)",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "delta",
            0.1,
            "A step is at most sqrt(1 + delta theta) times the one before, which was theta times "
            "its own predecessor.",
            source="Delta-SGD, the released code's run on CIFAR-100; 0.02 is its default",
            minimum=0.0,
        ),
        Hparam(
            "theta0",
            1.0,
            "Initial value theta_0 of theta, for the first step that may grow.",
            source="Delta-SGD, the released code",
            minimum=0.0,
        ),
        Hparam(
            "difference",
            "minibatch",
            "Gradients whose difference measures smoothness: minibatch, both on the step's "
            "minibatch (a second gradient a step); consecutive, those of two steps.",
            source="Delta-SGD, the released code",
            choices=("minibatch", "consecutive"),
        ),
        Hparam(
            "first_step",
            "plain",
            "Length of a round's first step: plain, eta_0; grown, eta_0 sqrt(1 + delta theta_0), "
            "as in the released code.",
            source="Delta-SGD, Algorithm 1",
            choices=("plain", "grown"),
        ),
    ),
    client_learning_rate=0.2,
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(),
    measures=(),
    cost=RoundCost(gradients=2),
)


class Last(NamedTuple):
    """What a client carries from step to step.

    Attributes:
      weights: x_{t-1}, one tensor per model weight.
      gradient: ∇f(x_{t-1}; b_{t-1}), like the weights; empty if not needed.
      rate: η_{t-1}, float32 scalar.
      growth: θ_{t-1}, float32 scalar.
    """

    weights: Vector
    gradient: Vector | tuple[()]
    rate: tf.Tensor
    growth: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    gamma: float,
    delta: float,
    theta0: float,
    difference: str,
    first_step: str,
) -> Method:
    """Builds Δ-SGD (Algorithm 1); see the module's docstring for the symbols."""
    consecutive = difference == "consecutive"

    def client_update(broadcast: averaging.Broadcast, data: ClientData) -> ClientResult:
        x, eta_0 = broadcast

        def step(at, last):
            before = last.gradient if consecutive else at.gradient_at(last.weights)
            moved = (at.weights - last.weights).norm()
            turned = (at.gradient - before).norm()
            grown = tf.sqrt(1.0 + delta * last.growth) * last.rate
            smooth = tf.math.divide_no_nan(gamma * moved, 2.0 * turned)
            bounded = (moved > 0) & (turned > 0)
            rate = tf.where(bounded, tf.minimum(smooth, grown), grown)
            is_first = tf.equal(at.number, 0)
            rate = tf.where(is_first, grown if first_step == "grown" else eta_0, rate)
            growth = tf.math.divide_no_nan(rate, last.rate)
            if first_step == "plain":
                growth = tf.where(is_first, theta0, growth)
            x_k = at.weights - rate * at.gradient
            return x_k, Last(at.weights, at.gradient if consecutive else (), rate, growth)

        start = Last(x, zeros(x) if consecutive else (), eta_0, tf.constant(theta0))
        trained, _ = client.take_steps(model, step, x, start, data)
        return ClientResult(trained, trained.weights - x)

    return averaging.build(model, local, client_update)
