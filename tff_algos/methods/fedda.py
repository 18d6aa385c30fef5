"""FedDA: clients take plain steps and send sums of moments; the server applies the momentum.

Jin, Ren, Zhou, Lyu, Liu, Dou: "Accelerated Federated Learning with Decoupled Adaptive
Optimization", ICML 2022 (arXiv 2207.07223), Algorithm 1 (FedDA+SGDM), Algorithm 2
(FedDA+Adam, FedDA+AdaGrad).

  symbol   argument              default    from
  η        client_learning_rate  -          Table 12: 0.03 to 100 by data set
  α        server_learning_rate  -          Table 12: 0.1 to 10 by data set
  β_1      beta1                 0.9        Table 12
  β_2      beta2 (adam)          0.99       Table 12
  ε        epsilon               0.1        Table 12 for CIFAR-100 and EMNIST; 1e-5 for Stack
           (adam, adagrad)                  Overflow
  T        local_steps           10         Table 12 for EMNIST; 5 for CIFAR-100
  μ        mu                    0          no proximal term; section on the FedProx combination
  -        stabilization         0.05       choice: the length is not given
  -        average_p             false      Algorithm 1
  -        bias_steps (adam)     false      Algorithm 2: s counts rounds
  p_k      client_weighting      examples   appendix A.5

    server → x, m
    client:  x_k, m_k, P_k ← x, m, 0 ; T times: g = ∇f(x_k; b) + μ (x_k - x)
             x_k ← x_k - η g ; m_k ← β_1 m_k + (1 - β_1) g ; P_k ← P_k + m_k
    server:  P = Σ p_k P_k ; m' = Σ p_k m_k ; G = (P - β_1 m) / (1 - β_1)
    SGDM     x ← x - α η P
    Adam     V ← β_2 V + (1 - β_2) G² ; x ← x - α η [P / (1 - β_1^s)] / (√(V / (1 - β_2^s)) + ε)
    AdaGrad  V ← V + G² ;               x ← x - α η G / (√V + ε)
    then     m ← m'

Deviations from the paper, which has no released code:
  * s is the round from 1 (the printed exponent starts at 0 and divides by zero); V in it is the new
    one (eq. 35 has the old). Rounds in which every client was dropped change neither. `bias_steps`
    makes s the number of moment updates, T per round.
  * G grows with T (its coefficients sum to (T - β_1) / (1 - β_1)). ε is calibrated to this, so it
    is the default; `average_p` divides P_k by the client's steps. m is not rescaled then.
  * AdaGrad follows Algorithm 2; eq. 39 has V̂ and lacks α. The extra η of eq. 25 is left out.
  * The proximal term is added to the gradient everywhere; the printed parenthesis puts η on it.
  * A client with fewer than T minibatches repeats its data, in a new order each time.
  * In the last share `stabilization` of the rounds, T is 1 and the gradient is that of the whole
    local set, with the same rates. Whether the published curves use it is unclear; 0 turns it off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts.moments import bias_left, moving_average
from tff_algos.registry import Aggregated, MethodSpec, RoundCost, RoundPlan
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import Hparam


def _plan(settings, round_num, total_rounds):
    stable = round(settings["stabilization"] * total_rounds)
    if round_num >= total_rounds - stable:
        return RoundPlan(batches="full_batch", local_steps=1)
    return RoundPlan(local_steps=settings["local_steps"])


def _hparam(name, default, help_text, source, **limits):
    return Hparam(name, default, help_text, source=source, flag=f"fedda_{name}", **limits)


_FRACTION = {"minimum": 0.0, "maximum": 1.0, "exclusive_maximum": True}

_BETA1 = _hparam(
    "beta1", 0.9, "Decay beta_1 of the momentum m.", source="FedDA, Table 12", **_FRACTION
)
_BETA2 = _hparam(
    "beta2", 0.99, "Decay beta_2 of the second moment.", source="FedDA, Table 12", **_FRACTION
)
_EPSILON = _hparam(
    "epsilon",
    0.1,
    "Fuzz factor epsilon, added outside the root.",
    source="FedDA, Table 12 (CIFAR-100, EMNIST; Stack Overflow: 1e-5)",
    minimum=0.0,
    exclusive_minimum=True,
)
_BIAS_STEPS = _hparam(
    "bias_steps",
    False,
    "Whether bias correction counts moment updates (local_steps a round), not rounds.",
    source="FedDA, Algorithm 2: rounds",
)
_COMMON = (
    _hparam(
        "mu",
        0.0,
        "Strength mu of the proximal term: mu (x_k - x) is added to every minibatch gradient.",
        source="FedDA: none",
        minimum=0.0,
    ),
    _hparam(
        "average_p",
        False,
        "Whether the sum P_k of a client's moments is divided by its local steps.",
        source="FedDA, Algorithm 1: not",
    ),
    _hparam(
        "local_steps",
        10,
        "Minibatch steps T of a client in a round, regardless of the epochs.",
        source="FedDA, Table 12 (EMNIST; CIFAR-100: 5)",
        minimum=1,
    ),
    _hparam(
        "stabilization",
        0.05,
        "Share of the rounds, at the end of the run, in which clients take one step with their "
        "full local gradient.",
        source="choice: the paper gives no length",
        **_FRACTION,
    ),
)


def _spec(display_name, look, summary, *hparams):
    name = display_name.replace("+", "_").lower()
    return MethodSpec(
        name=name,
        display_name=display_name,
        look=look,
        summary=summary,
        paper=(
            "Jin et al., Accelerated Federated Learning with Decoupled Adaptive Optimization, "
            "arXiv 2207.07223"
        ),
        builder=f"build_{name}",
        hparams=(*hparams, *_COMMON),
        client_optimizers=("sgd",),
        plan=_plan,
        aggregated=Aggregated(
            "P, the mean of the sums of moments P_k", in_clear="their moments m_k"
        ),
        measures=(),
        cost=RoundCost(down=2, up=2),
        known_problems=(
            "`stabilization` sets which rounds come last by the number of all rounds. Once these "
            "have begun, a run cannot be given more rounds.",
        ),
    )


SPECS = (
    _spec(
        "FedDA+SGDM",
        ("vermilion", "solid"),
        "Clients send sums of moments; the server applies the momentum.",
        _BETA1,
    ),
    _spec(
        "FedDA+Adam",
        ("sky", "dashed"),
        "FedDA with Adam on the server.",
        _BETA1,
        _BETA2,
        _EPSILON,
        _BIAS_STEPS,
    ),
    _spec(
        "FedDA+AdaGrad", ("wine", "dotted"), "FedDA with AdaGrad on the server.", _BETA1, _EPSILON
    ),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      m: Momentum m, like the weights.
      v: Second moment V, like the weights; empty for SGDM.
      steps: Server steps taken, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    m: Vector
    v: Vector | tuple[()]
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x, m, and the client rate η."""

    weights: Vector
    m: Vector
    learning_rate: tf.Tensor


def build_fedda_sgdm(model: Model, local: client.LocalTraining, **settings: Any) -> Method:
    """FedDA+SGDM (Algorithm 1): x ← x - α η P. For the settings see `_build`."""

    def step(x, p, g, v, s, rate):
        return x - rate * p, v

    return _build(model, local, step, has_v=False, **settings)


def build_fedda_adam(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    bias_steps: bool,
    local_steps: int,
    **settings: Any,
) -> Method:
    """FedDA+Adam (Algorithm 2)."""

    def step(x, p, g, v, s, rate):
        s = s * local_steps if bias_steps else s
        v = moving_average(beta2, v, g**2)
        p_hat, v_hat = p / bias_left(beta1, s), v / bias_left(beta2, s)
        return x - rate * p_hat / (v_hat.sqrt() + epsilon), v

    return _build(model, local, step, beta1=beta1, local_steps=local_steps, **settings)


def build_fedda_adagrad(
    model: Model, local: client.LocalTraining, *, epsilon: float, **settings: Any
) -> Method:
    """FedDA+AdaGrad (Algorithm 2)."""

    def step(x, p, g, v, s, rate):
        v += g**2
        return x - rate * g / (v.sqrt() + epsilon), v

    return _build(model, local, step, **settings)


def _build(
    model: Model,
    local: client.LocalTraining,
    server_step: Callable,
    *,
    beta1: float,
    mu: float,
    average_p: bool,
    local_steps: int,
    stabilization: float,
    has_v: bool = True,
) -> Method:
    """Builds FedDA around the server's step `(x, P, G, V, s, α η) -> (x, V)`."""
    del local_steps, stabilization  # They are the round's plan.
    alpha = local.server_learning_rate

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        v = zeros(x) if has_v else ()
        return ServerState(x, zeros(x), v, tf.constant(0), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.m, local.learning_rate(state.round_num))

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, m, eta = broadcast

        def step(at, carry):
            m, p = carry
            g = at.gradient + mu * (at.weights - x)
            m = moving_average(beta1, m, g)
            return at.weights - eta * g, (m, p + m)

        trained, (m, p) = client.take_steps(model, step, x, (m, zeros(x)), data)
        if average_p:
            p = p.over(tf.cast(client.num_steps(data), tf.float32))
        return ClientResult(trained, (p, m))

    def server_update(state: ServerState, mean: tuple[Vector, Vector]) -> ServerState:
        p, m = mean
        g = (p - beta1 * state.m) / (1.0 - beta1)
        steps = state.steps + 1
        rate = alpha * local.learning_rate(state.round_num)
        x, v = server_step(state.weights, p, g, state.v, steps, rate)
        return ServerState(x, m, v, steps, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=averaging.mean_each(tuple, 0, 1),
    )
