"""FedOpt: federated averaging whose server applies an optimizer to the mean client update.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: "Adaptive Federated Optimization",
ICLR 2021, arXiv 2003.00295, Algorithm 1 (FedOpt), Algorithm 2 (FedAdagrad, FedAdam, FedYogi) and
Algorithm 5 (weights of unequal clients). FedAvg and FedAvgM are the cases of a server that takes a
plain step or one with momentum.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned, Tables 8 and 9
  η        server_learning_rate  1 (fedavg, fedavgm), else must be given
  β_1      beta1                 0.9        section 5.2
  β_2      beta2                 0.99       section 5.2
  τ        tau                   1e-3       section 5.3, recommended single value
  β        momentum (fedavgm)    0.9        section 5.2
  p_k      client_weighting      examples   Algorithm 5

Deviations from the paper:
  * `variant=released` (default) is the code that produced the published numbers: accumulators start
    at 0, Adam and Yogi correct bias as Keras does (τ is not scaled by the correction), and v is fed
    with the raw pseudo-gradient. `variant=algorithm2` is Algorithm 2 as printed, with v_{-1} = τ².
  * In `algorithm2`, FedAdagrad has no moving average (β_1 = 0), as section 5.2 uses it.
  * A client whose update is not finite counts nothing. If no client is left, the round changes
    neither weights nor optimizer; only the round number moves on.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.method import Method
from tff_algos.model import Model

Weights = tuple[tf.Tensor, ...]


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      optimizer: Slots of the server optimizer; structures of tensors like `weights`.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    optimizer: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: Δ_k = x_k - x, like the weights; zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
      client_state: What it keeps, if clients keep their optimizer; else empty.
    """

    delta: Weights
    weight: tf.Tensor
    metrics: Any
    client_state: Any


class ServerOptimizer(NamedTuple):
    """A server optimizer as two pure functions.

    Attributes:
      initialize: `weights -> slots`.
      step: `(slots, weights, g) -> (slots, weights)` for the pseudo-gradient g = -Δ.
    """

    initialize: Callable[[Weights], Any]
    step: Callable[[Any, Weights, Weights], tuple[Any, Weights]]


def build_fedopt(
    model: Model, local: client.LocalTraining, server_optimizer: ServerOptimizer
) -> Method:
    """Builds FedOpt (Algorithms 1 and 5) around a server optimizer.

    Args:
      model: The model to train.
      local: How clients train and how much each counts.
      server_optimizer: What the server does with the mean update.

    Returns:
      The method.
    """

    def initialize() -> ServerState:
        weights = tuple(tf.constant(w) for w in model.initial_weights)
        return ServerState(weights, server_optimizer.initialize(weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state=None) -> ClientUpdate:
        x, eta_l = broadcast
        trained = client.train(model, local.optimizer(), eta_l, x, data, client_state=client_state)
        delta = tuple(w - x for w, x in zip(trained.weights, x, strict=True))
        finite = client.is_finite(delta)
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
            client_state=client.keep_slots(client_state, data, finite, trained),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, delta: Weights, total_weight) -> ServerState:
        g = tuple(-d for d in delta)
        slots, weights = server_optimizer.step(state.optimizer, state.weights, g)
        after = ServerState(tuple(weights), slots, state.round_num)
        after = tf.nest.map_structure(
            lambda new, old: tf.where(total_weight > 0, new, old), after, state
        )
        return after._replace(round_num=state.round_num + 1)

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, *client_states)
        delta = federation.mean(update.delta, update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, delta, total_weight)
        return state, metrics, *([update.client_state] if client_states else [])

    return Method(initialize, next_round, local.client_state(model))


class Moments(NamedTuple):
    """Slots of Adam and Yogi: m and v, like the weights, and the number of steps t, int32."""

    m: Weights
    v: Weights
    t: tf.Tensor


class Momentum(NamedTuple):
    """Slot of momentum: the buffer u, like the weights."""

    u: Weights


class Accumulator(NamedTuple):
    """Slot of Adagrad: v, like the weights."""

    v: Weights


def _each(fn: Callable, *weights: Weights) -> Weights:
    return tuple(fn(*w) for w in zip(*weights, strict=True))


def _filled(weights: Weights, value: float) -> Weights:
    return tuple(tf.fill(w.shape, tf.constant(value, w.dtype)) for w in weights)


def build_fedavg(model: Model, local: client.LocalTraining) -> Method:
    """FedAvg: x ← x - η g."""
    eta = local.server_learning_rate

    def step(slots, x, g):
        return slots, _each(lambda x, g: x - eta * g, x, g)

    return build_fedopt(model, local, ServerOptimizer(lambda weights: (), step))


def build_fedavgm(model: Model, local: client.LocalTraining, *, momentum: float) -> Method:
    """FedAvgM: u ← β u + g; x ← x - η u."""
    eta = local.server_learning_rate

    def step(slots, x, g):
        u = _each(lambda u, g: momentum * u + g, slots.u, g)
        return Momentum(u), _each(lambda x, u: x - eta * u, x, u)

    optimizer = ServerOptimizer(lambda weights: Momentum(_filled(weights, 0.0)), step)
    return build_fedopt(model, local, optimizer)


def build_fedadagrad(
    model: Model, local: client.LocalTraining, *, tau: float, variant: str
) -> Method:
    """FedAdagrad: v ← v + g²; x ← x - η g / (√v + τ); v starts at 0, in `algorithm2` at τ²."""
    eta = local.server_learning_rate
    v_initial = tau**2 if variant == "algorithm2" else 0.0

    def step(slots, x, g):
        v = _each(lambda v, g: v + g**2, slots.v, g)
        return Accumulator(v), _each(lambda x, g, v: x - eta * g / (tf.sqrt(v) + tau), x, g, v)

    optimizer = ServerOptimizer(lambda weights: Accumulator(_filled(weights, v_initial)), step)
    return build_fedopt(model, local, optimizer)


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
        return beta2 * v + (1.0 - beta2) * square

    optimizer = _adaptive(local.server_learning_rate, beta1, beta2, tau, variant, second_moment)
    return build_fedopt(model, local, optimizer)


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
        return v + (1.0 - beta2) * tf.sign(square - v) * square

    optimizer = _adaptive(local.server_learning_rate, beta1, beta2, tau, variant, second_moment)
    return build_fedopt(model, local, optimizer)


def _adaptive(eta, beta1, beta2, tau, variant, second_moment) -> ServerOptimizer:
    """Adam and Yogi: m ← β₁ m + (1 - β₁) g; v by `second_moment`; x ← x - η c m / (√v + τ).

    c is Keras's bias correction √(1 - β₂ᵗ) / (1 - β₁ᵗ) in `released`, 1 in `algorithm2`.
    """
    released = variant == "released"

    def initialize(weights):
        v_initial = 0.0 if released else tau**2
        return Moments(_filled(weights, 0.0), _filled(weights, v_initial), tf.constant(0))

    def step(slots, x, g):
        t = slots.t + 1
        m = _each(lambda m, g: beta1 * m + (1.0 - beta1) * g, slots.m, g)
        v = _each(lambda v, s: second_moment(v, s**2), slots.v, g if released else m)
        rate = eta
        if released:
            # In float32, 1 - 0.99 alone is off by 6e-6.
            left = [1.0 - tf.cast(b, tf.float64) ** tf.cast(t, tf.float64) for b in (beta1, beta2)]
            rate = tf.cast(eta * tf.sqrt(left[1]) / left[0], tf.float32)
        x = _each(lambda x, m, v: x - rate * m / (tf.sqrt(v) + tau), x, m, v)
        return Moments(m, v, t), x

    return ServerOptimizer(initialize, step)
