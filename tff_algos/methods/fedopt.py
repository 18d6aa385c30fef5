"""FedOpt: federated averaging whose server applies an optimizer to the mean client update.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization",
ICLR 2021, arXiv 2003.00295, Algorithm 1 (FedOpt), Algorithm 2 (FedAdagrad, FedAdam, FedYogi) and
Algorithm 5 (weights of unequal clients). In FedAvg the server takes a plain step, in FedAvgM one
with momentum.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned, Tables 8 and 9
  η        server_learning_rate  1 (fedavg, the mean of the clients' models; else tuned, Tables 8
                                 fedavgm),  and 9
                                 -
  β_1      beta1                 0.9        section 4
  β_2      beta2                 0.99       section 4
  τ        tau                   1e-3       section 5.2, recommended single value
  -        variant               released   Tables 1, 8 and 9; see below
  β        momentum (fedavgm)    0.9        section 4
  p_k      client_weighting      examples   Algorithm 5

    client:  x_k ← x ; each batch b: x_k ← x_k - η_l ∇f(x_k; b)
    server:  g = -Σ p_k (x_k - x), the pseudo-gradient

    fedavg      x ← x - η g
    fedavgm     u ← β u + g ; x ← x - η u
    fedadagrad  v ← v + g² ; x ← x - η g / (√v + τ)
    fedadam     m ← β_1 m + (1 - β_1) g ; v ← β_2 v + (1 - β_2) g² ; x ← x - η c m / (√v + τ)
    fedyogi     as fedadam, but v ← v + (1 - β_2) sign(g² - v) g²

These are the forms of `variant=released`; c = √(1 - β_2^t) / (1 - β_1^t) corrects bias after t
server steps. Any client optimizer may take the local step.

Deviations from the paper:
  * `variant=released` (default) is the code that produced the published numbers: accumulators start
    at 0, Adam and Yogi correct bias as Keras does (τ is not scaled by the correction), and v is fed
    with the raw pseudo-gradient. `variant=algorithm2` is Algorithm 2 as printed, with v_{-1} = τ².
  * In `algorithm2`, FedAdagrad has no moving average (β_1 = 0), as App. B.1 uses it.
  * A client whose update is not finite is left out. If no client is left, the round changes neither
    weights nor optimizer, only the round number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import client
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.moments import bias_left, moving_average
from tff_algos.parts.server_optimizer import ServerOptimizer, build_around
from tff_algos.registry import Aggregated, MethodSpec, decay
from tff_algos.vector import Vector, filled, zeros
from tff_suite.hparams import Hparam

_TAU = Hparam(
    "tau",
    1e-3,
    "Degree of adaptivity tau, added outside the root: smaller is more adaptive.",
    source="Adaptive Federated Optimization, section 5.2 (recommended single value)",
    minimum=0.0,
    exclusive_minimum=True,
)
_VARIANT = Hparam(
    "variant",
    "released",
    "Form of the adaptive server optimizers: released, the code that produced the published "
    "numbers, with bias correction; algorithm2, as printed, from v = tau^2 and without it.",
    source="released code of the paper: its Tables 1, 8, 9",
    choices=("released", "algorithm2"),
    flag="fedopt_variant",
)

_SECTION = "Adaptive Federated Optimization, section 4"
_MOMENTS = (
    decay("beta1", 0.9, "Decay beta_1 of the server's moving average.", f"{_SECTION} (0.9, 0.99)"),
    decay("beta2", 0.99, "Decay beta_2 of the server's moving average.", f"{_SECTION} (0.9, 0.99)"),
)
_MOMENTUM = decay(
    "momentum", 0.9, "Server momentum: u <- momentum * u + g, no dampening, no Nesterov.", _SECTION
)


_SHIPPED = "Flower ships it as the strategy {}."
_FLAMBY = "FLamby benchmarks it on medical data (arXiv 2210.04620)."


def _spec(display_name, look, summary, hparams=(), server_learning_rate=None, used_for=(_FLAMBY,)):
    name = display_name.lower()
    return MethodSpec(
        name=name,
        display_name=display_name,
        look=look,
        summary=summary,
        paper="Reddi, Charles, et al., Adaptive Federated Optimization, arXiv 2003.00295",
        builder=f"build_{name}",
        hparams=hparams,
        server_learning_rate=server_learning_rate,
        keeps_client_optimizer=True,
        aggregated=Aggregated(),
        measures=(),
        used_for=(*used_for, _SHIPPED.format(display_name)),
    )


SPECS = (
    dataclasses.replace(
        _spec(
            "FedAvg",
            ("black", "solid"),
            "Federated averaging: the server takes the mean client update.",
            (),
            1.0,
            ("Google's Gboard trains next-word prediction with it (arXiv 1811.03604).", _FLAMBY),
        ),
        takes_server_optimizer=True,
        known_problems=(
            "If clients take unequal numbers of steps, it ends at the optimum of another objective "
            "than the clients' common loss (FedNova, arXiv 2007.07481).",
        ),
    ),
    _spec(
        "FedAvgM",
        ("purple", "solid"),
        "Federated averaging with server momentum.",
        (_MOMENTUM,),
        1.0,
        (),
    ),
    _spec("FedAdagrad", ("green", "dashed"), "Adagrad on the server.", (_TAU, _VARIANT)),
    _spec("FedAdam", ("blue", "solid"), "Adam on the server.", (*_MOMENTS, _TAU, _VARIANT)),
    _spec(
        "FedYogi",
        ("orange", "dashed"),
        "Yogi on the server.",
        (*_MOMENTS, _TAU, _VARIANT),
        used_for=(_FLAMBY, "FedScale has it as the aggregator fed-yogi."),
    ),
)


class Moments(NamedTuple):
    """Slots of Adam and Yogi: m and v, like the weights, and the number of steps t, int32."""

    m: Vector
    v: Vector
    t: tf.Tensor


class Momentum(NamedTuple):
    """Slot of momentum: the buffer u, like the weights."""

    u: Vector


class Accumulator(NamedTuple):
    """Slot of Adagrad: v, like the weights."""

    v: Vector


def build_fedavg(
    model: Model, local: client.LocalTraining, *, server_optimizer: Any = None
) -> Method:
    """FedAvg: x ← x - η g, or the step of one of TFF's optimizers on g."""
    if server_optimizer is not None:
        return build_around(_of_tff(server_optimizer), model, local)
    eta = local.server_learning_rate

    def step(slots, x, g):
        return slots, x - eta * g

    return build_around(ServerOptimizer(lambda weights: (), step), model, local)


def _of_tff(optimizer: tff.learning.optimizers.Optimizer) -> ServerOptimizer:
    """Returns a server optimizer that applies one of TFF's, with its own learning rate."""

    def initialize(weights):
        return optimizer.initialize(tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights))

    def step(slots, x, g):
        return client.Optimizer(optimizer).step(slots, x, g)

    return ServerOptimizer(initialize, step)


def build_fedavgm(model: Model, local: client.LocalTraining, *, momentum: float) -> Method:
    """FedAvgM: u ← β u + g; x ← x - η u."""
    eta = local.server_learning_rate

    def step(slots, x, g):
        u = momentum * slots.u + g
        return Momentum(u), x - eta * u

    optimizer = ServerOptimizer(lambda weights: Momentum(zeros(weights)), step)
    return build_around(optimizer, model, local)


def build_fedadagrad(
    model: Model, local: client.LocalTraining, *, tau: float, variant: str
) -> Method:
    """FedAdagrad: v ← v + g²; x ← x - η g / (√v + τ); v starts at 0, in `algorithm2` at τ²."""
    eta = local.server_learning_rate
    v_initial = tau**2 if variant == "algorithm2" else 0.0

    def step(slots, x, g):
        v = slots.v + g**2
        return Accumulator(v), x - eta * g / (v.sqrt() + tau)

    optimizer = ServerOptimizer(lambda weights: Accumulator(filled(weights, v_initial)), step)
    return build_around(optimizer, model, local)


def build_fedadam(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    tau: float,
    variant: str,
) -> Method:
    """FedAdam: v ← β₂ v + (1 - β₂) s² with s = g, in `algorithm2` s = m."""

    def second_moment(v, square):
        return moving_average(beta2, v, square)

    optimizer = _adaptive(local.server_learning_rate, beta1, beta2, tau, variant, second_moment)
    return build_around(optimizer, model, local)


def build_fedyogi(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    tau: float,
    variant: str,
) -> Method:
    """FedYogi: v ← v + (1 - β₂) sign(s² - v) s² with s = g, in `algorithm2` s = m."""

    def second_moment(v, square):
        return v + (1.0 - beta2) * (square - v).sign() * square

    optimizer = _adaptive(local.server_learning_rate, beta1, beta2, tau, variant, second_moment)
    return build_around(optimizer, model, local)


def _adaptive(
    eta: float,
    beta1: float,
    beta2: float,
    tau: float,
    variant: str,
    second_moment: Callable[[Vector, Vector], Vector],
) -> ServerOptimizer:
    """Adam and Yogi: m ← β₁ m + (1 - β₁) g; v by `second_moment`; x ← x - η c m / (√v + τ).

    c is Keras's bias correction √(1 - β₂ᵗ) / (1 - β₁ᵗ) in `released`, 1 in `algorithm2`.
    """
    released = variant == "released"

    def initialize(weights):
        v_initial = 0.0 if released else tau**2
        return Moments(zeros(weights), filled(weights, v_initial), tf.constant(0))

    def step(slots, x, g):
        t = slots.t + 1
        m = moving_average(beta1, slots.m, g)
        v = second_moment(slots.v, (g if released else m) ** 2)
        rate = eta
        if released:
            left1, left2 = (bias_left(beta, t, tf.float64) for beta in (beta1, beta2))
            rate = tf.cast(eta * tf.sqrt(left2) / left1, tf.float32)
        return Moments(m, v, t), x - rate * m / (v.sqrt() + tau)

    return ServerOptimizer(initialize, step)
