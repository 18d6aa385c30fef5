"""Lookahead: k fast steps of any optimizer on the clients, then a part of the way on the server.

Zhang, Lucas, Ba, Hinton: "Lookahead Optimizer: k steps forward, 1 step back", NeurIPS 2019, arXiv
1907.08610, Algorithm 1; as a special case of FedOpt in Reddi et al., arXiv 2003.00295, App. B.3.

  symbol   argument              default    from
  -        client_learning_rate  -          tuned
  A        client_optimizer      sgdm       choice: momentum 0.9 (Lookahead wraps any optimizer)
  k        local_steps           5          Lookahead (not checked)
  α        server_learning_rate  0.5        Lookahead (not checked)
  -        state                 reset      FedOpt: clients keep nothing
  p_k      client_weighting      examples   FedOpt, Algorithm 5

    client:  x_k ← x ; k steps of A on its batches
    server:  x ← x + α Σ p_k (x_k - x)

`state=reset` starts A afresh on every client in every round; with `average` the server takes the
mean of the clients' slots and they start from it; with `keep` each client goes on from its own.

Deviations from the paper:
  * Several clients; Lookahead's one has its optimizer for the whole run, which `keep` is for one
    client.
  * A client with fewer than k batches repeats its data, in a new order each time.
  * Averaged slots include Adam's step count.
  * A client whose update is not finite keeps the slots that it had.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from hparams import Hparam
from tff_algos import client
from tff_algos.averaging import next_state
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec, RoundPlan
from tff_algos.weights import Weights


def _plan(settings, round_num, total_rounds):
    return RoundPlan(local_steps=settings["local_steps"])


SPEC = MethodSpec(
    name="lookahead",
    summary="A few fast steps on the clients, a part of the way on the server.",
    paper="Zhang et al., Lookahead Optimizer, arXiv 1907.08610",
    hparams=(
        Hparam(
            "local_steps",
            5,
            "Minibatch steps k of a client in a round, whatever the epochs.",
            source="Lookahead",
            minimum=1,
        ),
        Hparam(
            "state",
            "reset",
            "What becomes of the client optimizer's state after a round: reset, average "
            "over the cohort, or keep for the client's next one.",
            source="Adaptive Federated Optimization, Algorithm 1: clients keep nothing",
            choices=("reset", "average", "keep"),
        ),
    ),
    server_learning_rate=0.5,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    plan=_plan,
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      slots: With `state=average` the state of the client optimizer, TFF's, with every number as
        float32; else empty.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    slots: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, the server's slots, and the client rate."""

    weights: Weights
    slots: Any
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client gives.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      slots: With `state=average` its slots after the last step, zero if dropped; else empty.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
      client_state: With `state=keep` its slots after the last step; else empty.
    """

    delta: Weights
    slots: Any
    weight: tf.Tensor
    metrics: Any
    client_state: Any


def build(model: Model, local: client.LocalTraining, *, local_steps: int, state: str) -> Method:
    """Builds Lookahead; see the module's docstring for the symbols."""
    del local_steps  # It is the round's plan.
    alpha = local.server_learning_rate
    average = state == "average"
    optimizer = local.optimizer()

    def fresh_slots(x: Weights, learning_rate):
        return client.initial_slots(optimizer, x, learning_rate)

    def no_slots():
        return fresh_slots(model.initial_weights, tf.constant(0.0))

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        slots = tf.nest.map_structure(lambda s: tf.cast(s, tf.float32), no_slots())
        return ServerState(x, slots if average else (), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.weights, state.slots, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data, client_state=None) -> ClientUpdate:
        x, slots, learning_rate = broadcast
        slots = slots.copy() if average else fresh_slots(x, learning_rate)
        if client_state is not None:
            slots = client.recall(client_state, slots)
        slots["learning_rate"] = learning_rate

        def step(at, slots):
            slots, x_k = optimizer.next(slots, at.weights, at.gradient)
            return tuple(x_k), slots

        trained, slots = client.take_steps(model, step, x, slots, data)
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, () if state == "reset" else slots))
        kept = () if client_state is None else client.keep(client_state, data, finite, slots)
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            slots=client.zero_unless(finite, slots if average else ()),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
            client_state=kept,
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, mean, total_weight) -> ServerState:
        delta, slots = mean
        x = tuple(x + alpha * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, ServerState(x, slots, state.round_num), total_weight)

    def next_round(federation, state, clients, *client_states):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients, *client_states)
        mean = federation.mean((update.delta, update.slots), update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        state = federation.map_server(server_update, state, mean, total_weight)
        return state, metrics, *([update.client_state] if client_states else [])

    return Method(initialize, next_round, no_slots if state == "keep" else None)
