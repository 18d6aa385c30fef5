"""FedLocal: adaptive optimizers on the clients, whose updates are divided by what they scaled them.

Wang, Xu, Garrett, Charles, Liu, Joshi: "Local Adaptivity in Federated Learning: Convergence and
Consistency", arXiv 2106.02305 (local and joint correction); a baseline of FedDA.

  symbol   argument              default    from
  η_l      client_learning_rate  -          tuned
  -        client_optimizer      adam       choice
  -        correction            joint      the released code
  η        server_learning_rate  1          the released code's SGD
  p_k      client_weighting      examples   the released code

    client:  the optimizer starts afresh ; A = Q = 0 ; each batch: a step of it, then with its
             preconditioner ψ after the step and its momentum β:  A ← β A + (1 - β) ψ ; Q ← Q + A
             send δ_k = (x_k - x) / Q and q_k = 1 / Q
    server:  D = Σ p_k δ_k ; joint: D ← D / Σ p_k q_k ; x ← x + η D

    optimizer   sgd   sgdm       adagrad, rmsprop   adam, yogi
    ψ           1     1          1/(√v + ε)         1/(√v + ε)
    β           0     momentum   0                  β_1

Deviations from the paper:
  * As in the released code ψ has no bias correction though Adam's and Yogi's own steps have, and
    SGDM's step is u ← β u + g though A takes (1 - β) of each ψ. Joint correction cancels that.
  * The optimizers are TFF's but for Adagrad, which is w ← w - η_l g / (√v + ε) with v = 0 at first
    (`client_initial_accumulator`); TFF's has ε inside the root and starts at 0.1. The released code
    takes Keras's.
  * With `correction=local` an update has the scale of one step, so the server's rate matters.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from hparams import Hparam
from tff_algos import client
from tff_algos.averaging import next_state
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec
from tff_algos.weights import Weights

SPEC = MethodSpec(
    name="fedlocal",
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
)


class ServerState(NamedTuple):
    """The model x, one tensor per model weight, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: δ_k = (x_k - x) / Q, like the weights; zero if dropped.
      correction: q_k = 1 / Q, like the weights, or empty for `correction=local`; zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    correction: Weights
    weight: tf.Tensor
    metrics: Any


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


def _preconditioner(slots, weights: Weights) -> Weights:
    """Returns ψ, like the weights, of a state of an optimizer."""
    if "preconditioner" not in slots:
        return tuple(tf.ones_like(w) for w in weights)
    return tuple(1.0 / (tf.sqrt(v) + slots["epsilon"]) for v in slots["preconditioner"])


def build(model: Model, local: client.LocalTraining, *, correction: str) -> Method:
    """Builds FedLocal; see the module's docstring for the symbols."""
    eta = local.server_learning_rate
    joint = correction == "joint"
    optimizer = local.optimizer({"adagrad": _adagrad})

    def initialize() -> ServerState:
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, eta_l = broadcast

        def step(at, carry):
            slots, a, q = carry
            slots, x_k = optimizer.next(slots, at.weights, at.gradient)
            beta = slots.get("beta_1", local.momentum)
            psi = _preconditioner(slots, at.weights)
            a = tuple(beta * a + (1.0 - beta) * p for a, p in zip(a, psi, strict=True))
            q = tuple(q + a for q, a in zip(q, a, strict=True))
            return tuple(x_k), (slots, a, q)

        zeros = tuple(tf.zeros_like(w) for w in x)
        carry = (client.initial_slots(optimizer, x, eta_l), zeros, zeros)
        trained, (_, _, q) = client.take_steps(model, step, x, carry, data)
        delta = tuple(
            tf.math.divide_no_nan(w - c, q) for w, c, q in zip(trained.weights, x, q, strict=True)
        )
        inverse = tuple(tf.math.reciprocal_no_nan(q) for q in q) if joint else ()
        finite = client.is_finite((delta, inverse))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            correction=client.zero_unless(finite, inverse),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, mean, total_weight) -> ServerState:
        d, q = mean
        if joint:
            d = tuple(tf.math.divide_no_nan(d, q) for d, q in zip(d, q, strict=True))
        x = tuple(x + eta * d for x, d in zip(state.weights, d, strict=True))
        return next_state(state, state._replace(weights=x), total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        mean = federation.mean((update.delta, update.correction), update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, mean, total_weight), metrics

    return Method(initialize, next_round)
