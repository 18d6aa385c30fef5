"""AdaFedAdam: FedAdam on normalised client updates, whose certainty sets its decays and its step.

Ju, Zhang, Toor, Hellander: "Accelerating Fair Federated Learning: Adaptive Federated Adam", IEEE
TMLCN 2024, arXiv 2301.09357, Algorithm 1 (server) and Algorithm 2 (pseudo-gradient).

  symbol   argument              default                           from
  η_k      client_learning_rate  -                                 App. C
  η        server_learning_rate  1e-3                              Adam
  β_1      beta1                 0.9                               Adam
  β_2      beta2                 0.999                             Adam
  ε        epsilon               1e-8                              Adam
  α        alpha                 1                                 section 6; 1 to 4 suggested
  p_k      client_weighting      examples                          section 3
  -        profile               paper                             Algorithms 1 and 2
  -        loss_reference        initial (paper), none (released)  Algorithm 2; released code
  -        lr_scale_warmup       0 (paper), 6 (released)           Algorithm 1; released code
  -        grad_sample           0 (paper), 512 (released)         Algorithm 2: all; released code
  -        certainty_floor       0.01                              choice

    client:  G = ∇F_k(x), L = F_k(x), L⁰ = F_k(x⁰), before local training ;  Δ = x_k - x
             s = ‖Δ‖ / ‖G‖ ;  U = -Δ / s ;  C_k = ln(s / η_k) + 1 ;  w_k = n_k (L / L⁰)^α
    server:  g = Σ w_k U_k / Σ w_k ;  C = Σ w_k C_k / Σ w_k
             b_1 = β_1^C ;  b_2 = β_2^C ;  c_m ← c_m b_1 ;  c_v ← c_v b_2
             m ← b_1 m + (1 - b_1) g ;  v ← b_2 v + (1 - b_2) g²
             x ← x - C η m / (1 - c_m) / (√(v / (1 - c_v)) + ε)

If powers w_k would approach the limits of float32, every L / L⁰ is divided by the largest one of
the cohort, which cancels. The server sends that number to the clients before they are averaged, a
small exchange of scalars.

Deviations from the paper:
  * Two corrections to Algorithm 1 follow the released code. v is corrected by c_v, where Algorithm
    1 prints c_m. The last line uses η_t = C η, which Algorithm 1 computes but does not use.
  * Algorithm 2 prints Δ_k ← x_k - x_k; it is x_k - x.
  * `profile=released` follows the released code: weights n_k L^α without division by L⁰
    (`loss_reference=none`), and the step is η instead of C η in the first six server steps
    (`lr_scale_warmup=6`). The decays follow C from the first step on in both.
  * G and L are those of the whole local training set with dropout off. With `grad_sample`, as in
    the released code, they are those of the first minibatches that together exceed `grad_sample`
    examples (all examples, for a client with fewer), with dropout on. L⁰ uses the same examples,
    with dropout off.
  * x⁰ is broadcast with x, so that L⁰ needs no memory on the client. Weights that a user sets
    before the first round also replace x⁰.
  * C is at least `certainty_floor`, because at C ≤ 0 a decay would be 1 or more. A client with ‖G‖
    = 0, ‖Δ‖ = 0 or L⁰ = 0 is left out. If none is left, only the round number changes.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec, RoundCost, decay
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import By, Hparam


def _decay(name, default, symbol):
    return decay(
        name,
        default,
        f"Decay {symbol} of the server's moving average at certainty C = 1; it is {symbol}^C.",
        "Adam",
    )


SPEC = MethodSpec(
    name="adafedadam",
    display_name="AdaFedAdam",
    look=("vermilion", "dashed"),
    summary="AdaFedAdam: FedAdam on normalised updates, steered by their certainty.",
    paper=(
        "Ju, Zhang, Toor, Hellander, Accelerating Fair Federated Learning: Adaptive "
        "Federated Adam, arXiv 2301.09357"
    ),
    hparams=(
        Hparam(
            "profile",
            "paper",
            "Form that the defaults of other settings follow: paper, Algorithms 1 and 2; released, "
            "the authors' code.",
            source="AdaFedAdam, Algorithms 1 and 2",
            choices=("paper", "released"),
        ),
        Hparam(
            "alpha",
            1.0,
            "Fairness alpha: a client's weight grows with (F_k(x) / F_k(x0))^alpha.",
            source="AdaFedAdam, section 6",
            minimum=0.0,
        ),
        _decay("beta1", 0.9, "beta_1"),
        _decay("beta2", 0.999, "beta_2"),
        Hparam(
            "epsilon",
            1e-8,
            "Epsilon, added outside the root.",
            source="Adam",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "loss_reference",
            By("profile", {"paper": "initial", "released": "none"}),
            "What F_k(x) is divided by in the weight: initial, F_k at the initial model x0; none, "
            "nothing.",
            source="AdaFedAdam, Algorithm 2 (initial); released code (none)",
            choices=("initial", "none"),
        ),
        Hparam(
            "lr_scale_warmup",
            By("profile", {"paper": 0, "released": 6}),
            "Server steps at the start whose learning rate is not scaled by the certainty C.",
            source="AdaFedAdam, Algorithm 1 (0); released code (6)",
            minimum=0,
        ),
        Hparam(
            "grad_sample",
            By("profile", {"paper": 0, "released": 512}),
            "Gradient G and loss L are those of the first minibatches with more examples than "
            "this, dropout on; 0: of all examples, dropout off.",
            source="AdaFedAdam, Algorithm 2 (0: all); released code (512)",
            minimum=0,
        ),
        Hparam(
            "certainty_floor",
            0.01,
            "Least certainty C of a round; the formula needs C > 0.",
            source="choice",
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1e-3,
    keeps_client_optimizer=True,
    aggregated=Aggregated("the mean of the normalised updates", own_weights="unbounded"),
    measures=("certainty", "certainty_clamped"),
    cost=RoundCost(down=2),
    known_problems=(
        "In `vectorized`, a run of one chunk can differ from a run without chunks in the last "
        "bits.",
    ),
)

# Above 1 / it and below it a power times a number of examples, and a sum of such, are float32's.
_LARGE = 1e15


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      initial: x⁰, like the weights; empty without `loss_reference=initial`.
      m, v: Moments, like the weights.
      c_m, c_v: Products of the decays so far, float64 scalars.
      steps: Server steps taken, int32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    initial: Vector | tuple[()]
    m: Vector
    v: Vector
    c_m: tf.Tensor
    c_v: tf.Tensor
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, x⁰ (if used) and the client learning rate η_k."""

    weights: Vector
    initial: Vector | tuple[()]
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What the server averages: U_k, like the weights; C_k and L / L⁰ (or L), float32 scalars."""

    update: Vector
    certainty: tf.Tensor
    ratio: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    profile: str,
    alpha: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    loss_reference: str,
    lr_scale_warmup: int,
    grad_sample: int,
    certainty_floor: float,
) -> Method:
    """Builds AdaFedAdam; see the module's docstring for the symbols."""
    del profile  # The defaults of three others follow it.
    relative = loss_reference == "initial"
    warmup, sample = lr_scale_warmup, grad_sample

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        one, none = tf.constant(1.0, tf.float64), tf.constant(0)
        return ServerState(x, x if relative else (), zeros(x), zeros(x), one, one, none, none)

    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.initial, local.learning_rate(state.round_num))

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        x, initial, eta_k = broadcast
        gradient, loss, ratio = _before_training(model, x, initial, data, sample)
        trained = client.train(model, optimizer, eta_k, x, data)
        delta = trained.weights - x
        length, slope = delta.norm(), gradient.norm()
        s = tf.math.divide_no_nan(length, slope)
        update = (-delta).over(s)
        certainty = tf.math.log(s / eta_k) + 1.0
        # Every positive number has all powers; the others have those that their signs have.
        power = tf.sign(ratio) ** alpha
        finite = client.is_finite((delta, loss, length, slope, ratio, power))
        report = Report(update, certainty, ratio)
        # A client that did not move has no certainty, but its optimizer went on.
        keeps = tf.constant(True)
        return ClientResult(trained, report, finite=finite, counts=s > 0, keeps=keeps)

    def weigh(largest: tf.Tensor, ratio: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        power = largest**alpha
        scale = tf.where((power > 1 / _LARGE) & (power < _LARGE), 1.0, largest)
        return count * tf.math.divide_no_nan(ratio, scale) ** alpha

    def server_update(
        state: ServerState, mean: tuple[Vector, tf.Tensor], total_weight: tf.Tensor
    ) -> averaging.Outcome:
        g, mean_certainty = mean
        certainty = tf.maximum(mean_certainty, certainty_floor)
        scale = tf.where(state.steps + 1 > warmup, certainty, 1.0)
        eta_t = local.server_learning_rate * scale
        after = _take_step(state, g, certainty, eta_t, beta1, beta2, epsilon)
        clamped = tf.cast(mean_certainty < certainty_floor, tf.float32)
        own = collections.OrderedDict(certainty=certainty, certainty_clamped=clamped)
        return averaging.Outcome(
            averaging.next_state(state, after, total_weight),
            client.zero_unless(total_weight > 0, own),
        )

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, *client_states)
        report = update.report
        magnitudes = federation.map_clients(tf.abs, report.ratio)
        largest = federation.broadcast(federation.max(magnitudes))
        weight = federation.map_clients(weigh, largest, report.ratio, update.weight)
        update_mean = mean_of_updates(federation, report.update, weight)
        mean = update_mean, federation.mean(report.certainty, weight)
        total_weight = federation.sum(weight)
        outcome = federation.map_server(server_update, state, mean, total_weight)
        total = federation.sum(update.metrics)
        metrics = federation.map_server(averaging.summarize_with, total, outcome.metrics)
        return outcome.state, metrics, *([update.client_state] if client_states else [])

    return averaging.write_out(
        model,
        local,
        initialize,
        next_round,
        adopt_weights=_adopt_weights if relative else None,
    )


def _before_training(
    model: Model, x: Vector, initial: Vector | tuple[()], data: ClientData, sample: int
) -> tuple[Vector, tf.Tensor, tf.Tensor]:
    """Returns G, L and L / L⁰; L again in place of L / L⁰ if there is no x⁰."""
    sampled = client.first_batches(data, sample) if sample else data
    loss, gradient = client.full_loss(model, x, sampled, training=bool(sample))
    ratio = loss
    if initial:
        reference = client.evaluate(model, initial, sampled)["loss"]
        ratio = tf.math.divide_no_nan(ratio, reference)
    return gradient, loss, ratio


def _take_step(
    state: ServerState,
    g: Vector,
    certainty: tf.Tensor,
    eta_t: tf.Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> ServerState:
    """Returns the state after a step of Algorithm 1: Adam with decays raised to the power C."""
    b1, b2 = (tf.constant(b, tf.float64) ** tf.cast(certainty, tf.float64) for b in (beta1, beta2))
    c_m, c_v = state.c_m * b1, state.c_v * b2
    m = _mix(b1, state.m, g)
    v = _mix(b2, state.v, g**2)
    steps = state.steps + 1
    m_scale, v_scale = (tf.cast(1.0 / (1.0 - c), tf.float32) for c in (c_m, c_v))
    x = state.weights - eta_t * (m_scale * m) / ((v_scale * v).sqrt() + epsilon)
    return ServerState(x, state.initial, m, v, c_m, c_v, steps, state.round_num)


def _adopt_weights(state: ServerState) -> ServerState:
    """Also uses weights that are set before the first round as x⁰."""
    first = tf.equal(state.round_num, 0)
    initial = client.choose(first, state.weights, state.initial)
    return state._replace(initial=initial)


def _mix(b: tf.Tensor, old: Vector, new: Vector) -> Vector:
    """Returns b old + (1 - b) new; 1 - b is exact, which it is not in float32."""
    return tf.cast(b, tf.float32) * old + tf.cast(1.0 - b, tf.float32) * new
