"""CLIMB: federated averaging under the constraint that no client's loss is far above the mean.

Shen, Cervino, Hassani, Ribeiro: "An Agnostic Approach to Federated Learning with Class Imbalance",
ICLR 2022, Algorithm 1, as in its released code; a baseline of FedDA.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned (released code: 0.1)
  η_g      server_learning_rate  1         released code
  η_λ      lr_lambda             1         released code
  ε        epsilon               1         released code
  -        lambda_max            100       released code (its other form: 5)
  -        primal_rounds         5         released code
  -        losses                all       released code
  N        num_clients           -         all training clients

    server keeps λ, one for each of the N clients, at first 0
    a block of that number of primal rounds:
      L_k = F_k(x) of all clients at its start ;  w_k = 1 + λ_k - mean(λ)
      every round:  x ← x + (η_g / K) Σ_{k in S} w_k (x_k - x) ;  K clients in S
      at its end:   λ_k ← clip(λ_k + (η_λ / N) (L_k - mean(L) - ε), 0, lambda_max)

The weights w_k of a cohort are not scaled to sum to one. One model travels each way. In the first
round of a block the model also goes to all N clients, and N losses come back.

Deviations from the paper:
  * Taken from the released code; the paper's own text was not available.
  * With `losses=seen` only drawn clients report a loss, while Algorithm 1 knows all of them. L_k is
    then the loss of the model that client k receives first in the block. mean(L) is over the
    clients that have an L_k; the λ_k of the others do not change.
  * Set the code's weight decay (1e-3) and 5 local epochs yourself if you want them.
  * A client without examples, or whose update or loss is not finite, takes no part in the round and
    gets no L_k from it.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.registry import MethodSpec, RoundPlan
from tff_algos.vector import Vector, constants
from tff_suite.hparams import Hparam


def _plan(settings, round_num, total_rounds):
    del total_rounds
    first = round_num % settings["primal_rounds"] == 0
    return RoundPlan(losses="all" if first and settings["losses"] == "all" else "cohort")


SPEC = MethodSpec(
    name="climb",
    display_name="CLIMB",
    look=("wine", "dash_dot_dot"),
    summary="CLIMB: no client's loss may exceed the mean by more than epsilon.",
    paper=(
        "Shen, Cervino, Hassani, Ribeiro, An Agnostic Approach to Federated Learning with Class "
        "Imbalance, ICLR 2022"
    ),
    hparams=(
        Hparam(
            "epsilon",
            1.0,
            "Tolerance epsilon: by how much a client's loss may exceed the mean of losses.",
            source="released code's default",
            minimum=0.0,
        ),
        Hparam(
            "lr_lambda",
            1.0,
            "Step size of the multipliers lambda: 0 is uniform FedAvg.",
            source="released code's default",
            minimum=0.0,
        ),
        Hparam(
            "lambda_max",
            100.0,
            "Largest multiplier.",
            source="released code (100 in its resilient form, 5 in the other)",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "primal_rounds",
            5,
            "Rounds between two updates of the multipliers.",
            source="released code's default",
            minimum=1,
        ),
        Hparam(
            "losses",
            "all",
            "Whose losses move the multipliers: all, every client's at the start of a block; "
            "seen, those of the clients that were drawn in the block.",
            source="released code (all)",
            choices=("all", "seen"),
        ),
    ),
    server_learning_rate=1.0,
    client_weighting=None,
    needs_num_clients=True,
    needs_index=True,
    plan=_plan,
    aggregated="weights updates by multipliers that depend on each client's loss",
    measures=("largest_lambda",),
    known_problems=(
        "With `losses=all`, the default, each block begins with a pass over the data of all "
        "clients.",
    ),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      multipliers: λ, float64 `[N]`.
      losses: L_k of the current block, float64 `[N]`; only valid where `seen`.
      seen: Whether the client has an L_k, bool `[N]`.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    multipliers: tf.Tensor
    losses: tf.Tensor
    seen: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: the model x, the weights w float32 `[N]`, and the rate η_l."""

    weights: Vector
    w: tf.Tensor
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What the server learns of each client: its index, int32, F_k(x), and 1 if that is used."""

    index: tf.Tensor
    loss: tf.Tensor
    counted: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client sends back.

    Attributes:
      weighted_delta: w_k (x_k - x), like the weights; zero if dropped or not drawn.
      number: 1 if it is one of the K, else 0; float32 scalar.
      report: Its `Report`.
      metrics: See `client.round_metrics`; zero if not drawn.
    """

    weighted_delta: Vector
    number: tf.Tensor
    report: Report
    metrics: Any


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    epsilon: float,
    lr_lambda: float,
    lambda_max: float,
    primal_rounds: int,
    losses: str,
    num_clients: int,
) -> Method:
    """Builds CLIMB; see the module's docstring for the symbols."""
    del losses  # It is the round's plan.

    def initialize() -> ServerState:
        x, none = constants(model.initial_weights), tf.zeros([num_clients], tf.float64)
        return ServerState(x, none, none, tf.fill([num_clients], False), tf.constant(0))

    def prepare_broadcast(state: ServerState) -> Broadcast:
        w = 1.0 + state.multipliers - tf.reduce_mean(state.multipliers)
        eta_l = local.learning_rate(state.round_num)
        return Broadcast(state.weights, tf.cast(w, tf.float32), eta_l)

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientUpdate:
        x, w, eta_l = broadcast
        loss = client.evaluate(model, x, data)["loss"]
        # Who only reports a loss has no batch to train on.
        batches = data._replace(mask=data.mask * data.participates)
        trained = client.train(model, local.optimizer(), eta_l, x, batches)
        w_k = tf.gather(w, data.index)
        delta = w_k * (trained.weights - x)
        finite = client.is_finite((delta, loss))
        drawn = data.participates > 0
        counted = tf.cast(finite & client.has_examples(data), tf.float32)
        return ClientUpdate(
            weighted_delta=client.zero_unless(finite & drawn, delta),
            number=counted * data.participates,
            report=Report(data.index, client.zero_unless(finite, loss), counted),
            metrics=client.zero_unless(drawn, client.round_metrics(trained, data, finite)),
        )

    def server_update(
        state: ServerState, total: Vector, number: tf.Tensor, reports: Report
    ) -> averaging.Outcome:
        x = state.weights + local.server_learning_rate * total.over(number)
        losses, seen = _known_losses(state, reports)
        round_num = state.round_num + 1
        ends = tf.equal(round_num % primal_rounds, 0)
        step = lr_lambda / num_clients
        ascended = _ascend(state.multipliers, losses, seen, step, epsilon, lambda_max)
        multipliers = tf.where(ends & seen, ascended, state.multipliers)
        largest = tf.cast(tf.reduce_max(multipliers), tf.float32)
        return averaging.Outcome(
            ServerState(x, multipliers, losses, seen & ~ends, round_num),
            collections.OrderedDict(largest_lambda=largest),
        )

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        total = federation.sum(update.weighted_delta)
        number = federation.sum(update.number)
        reports = federation.stack(update.report)
        outcome = federation.map_server(server_update, state, total, number, reports)
        metrics = federation.sum(update.metrics)
        metrics = federation.map_server(averaging.summarize_with, metrics, outcome.metrics)
        return outcome.state, metrics

    return averaging.write_out(model, local, initialize, next_round)


def _known_losses(state: ServerState, reports: Report) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the block's L_k and whether each exists; the first report in a block is kept."""
    is_new = (reports.counted > 0) & ~tf.gather(state.seen, reports.index)
    places = tf.boolean_mask(reports.index, is_new)[:, None]
    found = tf.boolean_mask(tf.cast(reports.loss, tf.float64), is_new)
    losses = tf.tensor_scatter_nd_update(state.losses, places, found)
    # An update of booleans has no kernel for a GPU.
    new = tf.scatter_nd(places, tf.ones_like(found), tf.shape(state.losses))
    return losses, state.seen | (new > 0)


def _ascend(
    multipliers: tf.Tensor,
    losses: tf.Tensor,
    seen: tf.Tensor,
    step: float,
    epsilon: float,
    lambda_max: float,
) -> tf.Tensor:
    """Returns λ after an ascent step of length η_λ / N for the clients that have an L_k."""
    counts = tf.cast(seen, tf.float64)
    mean = tf.math.divide_no_nan(tf.reduce_sum(counts * losses), tf.reduce_sum(counts))
    slope = losses - mean - epsilon
    return tf.clip_by_value(multipliers + step * slope, 0.0, lambda_max)
