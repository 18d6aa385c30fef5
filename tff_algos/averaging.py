"""The round that most methods share: broadcast, local training, mean of updates, server step.

A method with more than one exchange, or another order, writes its round out in the words of
`tff_algos.method.Federation` instead, from the same pieces.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos import weights as weights_lib
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.weights import Weights


class ServerState(NamedTuple):
    """The model x, one tensor per model weight, and the rounds done, int32 scalar."""

    weights: Weights
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Weights
    learning_rate: tf.Tensor


class ClientUpdate(NamedTuple):
    """What a client gives.

    Attributes:
      report: What the server is to learn of it, a structure of tensors; zeros if it is left out.
      weight: Its weight in averages, float32 scalar; zero if it is left out.
      metrics: See `client.round_metrics`.
      client_state: What it keeps, if clients keep something; else empty.
    """

    report: Any
    weight: tf.Tensor
    metrics: Any
    client_state: Any


class Outcome(NamedTuple):
    """The state after the server's step, and the method's own metrics, float32 scalars by name."""

    state: Any
    metrics: Any


def initial_state(model: Model) -> ServerState:
    """Returns the state before the first round of a method that keeps no more than the model."""
    return ServerState(weights_lib.constants(model.initial_weights), tf.constant(0))


def give(
    report: Any,
    weight: tf.Tensor,
    trained: client.LocalResult,
    data: ClientData,
    finite: tf.Tensor | None = None,
    counts: tf.Tensor | bool = True,
    client_state: Any = (),
) -> ClientUpdate:
    """Returns what a client gives, with zeros in place of what must not count.

    Args:
      report: See `ClientUpdate`.
      weight: Its weight if it counts, float32 scalar.
      trained: The result of its training.
      data: Its data.
      finite: Whether its update is finite, by default whether the report is. A client whose update
        is not finite is dropped, and its metrics say so.
      counts: Whether it counts, if it is finite.
      client_state: See `ClientUpdate`.
    """
    finite = client.is_finite(report) if finite is None else finite
    counts = finite if counts is True else finite & counts
    return ClientUpdate(
        report=client.zero_unless(counts, report),
        weight=client.zero_unless(counts, weight),
        metrics=client.round_metrics(trained, data, finite),
        client_state=client_state,
    )


def give_delta(
    local: client.LocalTraining,
    x: Weights,
    trained: client.LocalResult,
    data: ClientData,
    client_state: ClientState | None = None,
) -> ClientUpdate:
    """Returns what a client gives in federated averaging: x_k - x, weighted by n_k or alike.

    Args:
      local: How clients train and how much each counts.
      x: The broadcast model.
      trained: The result of its training, with the slots of its optimizer where it keeps them.
      data: Its data.
      client_state: What it kept, if clients keep their optimizer.
    """
    delta = weights_lib.subtract(trained.weights, x)
    finite = client.is_finite(delta)
    kept = client.keep_slots(client_state, data, finite, trained)
    return give(delta, local.client_weight(data), trained, data, finite, client_state=kept)


def mean_report(federation: Any, update: Any) -> Any:
    """Averages the clients' reports at the server: the one aggregate of federated averaging."""
    return (mean_of_updates(federation, update.report, update.weight),)


def mean_each(make: Callable, *parts: int | str) -> Callable:
    """Returns an aggregate for `build` that averages the parts of a report one by one.

    Args:
      make: Puts a list of means together, as the server takes them.
      *parts: Fields or places in the report; the first is the update, whose mean is the one that an
        aggregator may take the place of.
    """

    def aggregate(federation, update):
        report = update.report
        first, *rest = (getattr(report, p) if isinstance(p, str) else report[p] for p in parts)
        means = [mean_of_updates(federation, first, update.weight)]
        means += [federation.mean(part, update.weight) for part in rest]
        return (make(means),)

    return aggregate


def build(
    model: Model,
    local: client.LocalTraining,
    client_update: Callable,
    server_update: Callable | None = None,
    *,
    initialize: Callable | None = None,
    broadcast: Callable | None = None,
    aggregate: Callable = mean_report,
    **of_method: Any,
) -> Method:
    """Builds a method of one exchange a round.

    Args:
      model: The model to train.
      local: How clients train and how much each counts.
      client_update: `(broadcast, data) -> ClientUpdate`, with client state
        `(broadcast, data, client_state)`.
      server_update: `(state, *aggregates) -> state`, or an `Outcome`; by default the step
        x ← x + η Δ with the mean report Δ. If no client counts, the state stays as it was, and so
        does it for a method's own weights of zero; `round_num` moves on by itself.
      initialize: `() -> state`, a `NamedTuple` with `weights` and `round_num`; by default the
        model alone.
      broadcast: `state -> what clients receive`; by default a `Broadcast`.
      aggregate: `(federation, update) -> aggregates`, a tuple of server values.
      **of_method: Further attributes of `Method`.

    Returns:
      The method; its functions are `tf.function`s.
    """

    def default_step(state, delta):
        x = weights_lib.move(state.weights, local.server_learning_rate, delta)
        return state._replace(weights=x)

    step = server_update or default_step

    @tf.function(autograph=False)
    def end_round(state, aggregates, total_weight, metrics) -> Outcome:
        after = step(state, *aggregates)
        after, own = after if isinstance(after, Outcome) else (after, {})
        return Outcome(next_state(state, after, total_weight), summarize_with(metrics, own))

    prepare = tf.function(broadcast or send_model(local), autograph=False)
    update_of_client = tf.function(client_update, autograph=False)

    def next_round(federation, state, clients, *client_states):
        message = federation.broadcast(federation.map_server(prepare, state))
        update = federation.map_clients(update_of_client, message, clients, *client_states)
        aggregates = aggregate(federation, update)
        total_weight = federation.sum(update.weight)
        metrics = federation.sum(update.metrics)
        after = federation.map_server(end_round, state, aggregates, total_weight, metrics)
        return after.state, after.metrics, *([update.client_state] if client_states else [])

    return Method(initialize or (lambda: initial_state(model)), next_round, **of_method)


def next_state(before: Any, after: Any, total_weight: tf.Tensor) -> Any:
    """Ends a round: the new state, or the old one if no client was left; `round_num` moves on.

    Args:
      before: The server's state at the start of the round.
      after: What the round made of it, of the same structure.
      total_weight: Sum of the weights of the clients that were not dropped.
    """
    state = tf.nest.map_structure(lambda a, b: tf.where(total_weight > 0, a, b), after, before)
    return state._replace(round_num=before.round_num + 1)


class Gradient(NamedTuple):
    """A client's ∇F_k(x), like the weights, and its weight in averages, float32 scalar."""

    gradient: Weights
    weight: tf.Tensor


def give_gradient(
    model: Model, local: client.LocalTraining, x: Weights, data: ClientData
) -> Gradient:
    """Returns what a client gives of its whole training set, zeros if that is not finite."""
    gradient = client.full_loss(model, x, data).gradient
    given = Gradient(gradient, local.client_weight(data))
    return client.zero_unless(client.is_finite(gradient), given)


def send_model(local: client.LocalTraining) -> Callable:
    """Returns `state -> Broadcast`, of the model and the round's client learning rate."""
    return lambda state: Broadcast(state.weights, local.learning_rate(state.round_num))


def stack_reports(federation: Any, update: Any) -> Any:
    """Brings every client's report and weight to the server: an aggregate for `build`.

    Returns:
      `((reports, weights),)`, stacked as `Federation.stack` does it.
    """
    return (federation.stack((update.report, update.weight)),)


def summarize(total: Any) -> collections.OrderedDict:
    """Turns the sum of the cohort's `client.round_metrics` into the metrics of the round.

    Args:
      total: The sum over clients.

    Returns:
      `OrderedDict` of float32 scalars: the weighted mean of every training metric, then
      `num_examples`, `num_clients`, `clients_dropped`. Means are NaN if every client was dropped:
      0 would pass for the best of losses.
    """
    means = collections.OrderedDict(
        (name, value / weight) for name, (value, weight) in total["training"].items()
    )
    counts = ("num_examples", "num_clients", "clients_dropped")
    means.update((name, total[name]) for name in counts)
    return means


def summarize_with(total: Any, own: Any) -> collections.OrderedDict:
    """As `summarize`, with the method's own metrics after the common ones.

    Args:
      total: The sum over clients.
      own: `OrderedDict` of float32 scalars.
    """
    return collections.OrderedDict([*summarize(total).items(), *own.items()])
