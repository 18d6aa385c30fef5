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
mean of the clients' slots and they start from it.

Deviations from the paper:
  * Several clients; Lookahead's one has its optimizer for the whole run. To keep it on every client
    (`keep`) would need client state, which this method has not.
  * A client with fewer than k batches repeats its data, in a new order each time; one with more
    counts in the means by the examples of its k batches.
  * Averaged slots include Adam's step count.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.method import Method, next_state
from tff_algos.model import Model

Weights = tuple[tf.Tensor, ...]


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      slots: State of the client optimizer, TFF's, with every number as float32; empty if it is
        reset every round.
      round_num: Rounds done, int32 scalar.
    """

    weights: Weights
    slots: Any
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, and the slots with this round's rate in them."""

    weights: Weights
    slots: Any


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      delta: x_k - x, like the weights; zero if dropped.
      slots: The client's slots after its last step (empty for `reset`); zero if dropped.
      weight: n_k or 1, float32 scalar; zero if dropped.
      metrics: See `client.round_metrics`.
    """

    delta: Weights
    slots: Any
    weight: tf.Tensor
    metrics: Any


def build_lookahead(
    model: Model, local: client.LocalTraining, *, local_steps: int, state: str
) -> Method:
    """Builds Lookahead; see the module's docstring for the symbols."""
    del local_steps  # It is the round's plan.
    alpha = local.server_learning_rate
    average = state == "average"
    optimizer = local.optimizer()

    def fresh_slots(x: Weights):
        slots = client.initial_slots(optimizer, x, local.learning_rate(tf.constant(0)))
        return tf.nest.map_structure(lambda s: tf.cast(s, tf.float32), slots)

    def initialize() -> ServerState:
        x = tuple(tf.constant(w) for w in model.initial_weights)
        return ServerState(x, fresh_slots(x) if average else (), tf.constant(0))

    @tf.function(autograph=False)
    def prepare_broadcast(state: ServerState) -> Broadcast:
        slots = state.slots.copy() if average else fresh_slots(state.weights)
        slots["learning_rate"] = local.learning_rate(state.round_num)
        return Broadcast(state.weights, slots)

    @tf.function(autograph=False)
    def client_update(broadcast: Broadcast, data) -> ClientUpdate:
        x, slots = broadcast

        def step(at, slots):
            slots, x_k = optimizer.next(slots, at.weights, at.gradient)
            return tuple(x_k), slots

        trained, slots = client.take_steps(model, step, x, slots, data)
        slots = slots if average else ()
        delta = tuple(w - c for w, c in zip(trained.weights, x, strict=True))
        finite = client.is_finite((delta, slots))
        return ClientUpdate(
            delta=client.zero_unless(finite, delta),
            slots=client.zero_unless(finite, slots),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state: ServerState, mean, total_weight) -> ServerState:
        delta, slots = mean
        x = tuple(x + alpha * d for x, d in zip(state.weights, delta, strict=True))
        return next_state(state, ServerState(x, slots, state.round_num), total_weight)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        mean = federation.mean((update.delta, update.slots), update.weight)
        total_weight = federation.sum(update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, mean, total_weight), metrics

    return Method(initialize, next_round)
