"""The round that most methods share: broadcast, local training, mean of updates, server step.

A method with more than one exchange, or another order, writes its round out with the primitives of
`tff_algos.method.Federation` instead (`write_out`), from the same pieces. In either, the functions
of a method work on `Vector`s, and what a client found (`ClientResult`) is dropped, counted and kept
here.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.vector import Vector, constants, on_vectors


class ServerState(NamedTuple):
    """The model x, one tensor per model weight, and the rounds done, int32 scalar."""

    weights: Vector
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client of the cohort receives: the model x and the client learning rate η_l."""

    weights: Vector
    learning_rate: tf.Tensor


class ClientResult(NamedTuple):
    """What a method's client found; `None` stands for the common rule.

    Attributes:
      trained: The result of its training.
      report: What the server is to learn of it, a structure of tensors.
      weight: Its weight in averages, float32 scalar; by `client_weighting` unless given.
      finite: Whether its update is finite, bool scalar; by default whether the report is. A client
        whose update is not finite is dropped, and its metrics say so.
      counts: Whether its report counts if it is finite, bool scalar; by default it does.
      kept: What it is to keep from now on, if clients keep something: a structure of tensors.
      keeps: Whether it keeps that if it is finite, bool scalar; by default if its report counts.
        A client without examples keeps what it had.
    """

    trained: client.LocalResult
    report: Any
    weight: tf.Tensor | None = None
    finite: tf.Tensor | None = None
    counts: tf.Tensor | None = None
    kept: Any = None
    keeps: tf.Tensor | None = None


class ClientUpdate(NamedTuple):
    """What a round goes on with of a `ClientResult`.

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
    return ServerState(constants(model.initial_weights), tf.constant(0))


def keep_optimizer(local: client.LocalTraining) -> Callable:
    """Returns a decorator for the client's function of a method whose clients may keep theirs.

    The function takes the client's optimizer as a last argument. With
    `client_optimizer_state=keep` that continues from what the client kept, and its state after
    training is kept.

    Args:
      local: How clients train.
    """

    def decorate(client_update):
        def update(*values):
            *others, last = values
            if not isinstance(last, ClientState):
                return client_update(*values, local.optimizer())
            result = client_update(*others, local.optimizer(last))
            return result._replace(kept=result.trained.slots)

        return update

    return decorate


def _finished(local: client.LocalTraining, result: ClientResult, values: tuple) -> ClientUpdate:
    """Drops, counts and keeps; `values` is what the client's function took."""
    (data,) = (v for v in values if isinstance(v, ClientData))
    client_state = next((v for v in values if isinstance(v, ClientState)), None)
    finite = client.is_finite(result.report) if result.finite is None else result.finite
    counts = finite if result.counts is None else finite & result.counts
    weight = local.client_weight(data) if result.weight is None else result.weight
    kept = () if result.kept is None else result.kept
    if client_state is not None:
        keeps = counts if result.keeps is None else finite & result.keeps
        kept = client.keep(client_state, data, keeps, kept)
    return ClientUpdate(
        report=client.zero_unless(counts, result.report),
        weight=client.zero_unless(counts, weight),
        metrics=client.round_metrics(result.trained, data, finite),
        client_state=kept,
    )


class _Skeleton:
    """The primitives of a round for a method's functions: on vectors, with results finished."""

    def __init__(self, federation, local):
        self._federation, self._local = federation, local

    def __getattr__(self, primitive):
        return getattr(self._federation, primitive)

    def map_server(self, fn, *values):
        return self._federation.map_server(on_vectors(fn), *values)

    def map_clients(self, fn, *values):
        @on_vectors
        def finished(*values):
            result = fn(*values)
            if isinstance(result, ClientResult):
                return _finished(self._local, result, values)
            return result

        return self._federation.map_clients(finished, *values)


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
      client_update: `(broadcast, data) -> ClientResult`, with client state
        `(broadcast, data, client_state)`.
      server_update: `(state, *aggregates) -> state`, or an `Outcome`; by default the step
        x ← x + η Δ with the mean report Δ. If no client counts, the state stays as it was, and so
        does it for a method's own weights of zero; `round_num` moves on by itself.
      initialize: `() -> state`, a `NamedTuple` with `weights` and `round_num`; by default the
        model alone.
      broadcast: `state -> what clients receive`; by default a `Broadcast`.
      aggregate: `(federation, update) -> aggregates`, a tuple of server values.
      **of_method: Further attributes of `Method`, as for `write_out`.
    """

    def default_step(state, delta):
        return state._replace(weights=state.weights + local.server_learning_rate * delta)

    step = server_update or default_step
    prepare = broadcast or send_model(local)

    def end_round(state, aggregates, total_weight, metrics) -> Outcome:
        after = step(state, *aggregates)
        after, own = after if isinstance(after, Outcome) else (after, {})
        return Outcome(next_state(state, after, total_weight), summarize_with(metrics, own))

    def next_round(federation, state, clients, *client_states):
        message = federation.broadcast(federation.map_server(prepare, state))
        update = federation.map_clients(client_update, message, clients, *client_states)
        aggregates = aggregate(federation, update)
        total_weight = federation.sum(update.weight)
        metrics = federation.sum(update.metrics)
        after = federation.map_server(end_round, state, aggregates, total_weight, metrics)
        return after.state, after.metrics, *([update.client_state] if client_states else [])

    return write_out(
        model, local, initialize or (lambda: initial_state(model)), next_round, **of_method
    )


def write_out(
    model: Model,
    local: client.LocalTraining,
    initialize: Callable,
    next_round: Callable,
    **of_method: Any,
) -> Method:
    """Builds a method that writes its round out.

    Args:
      model: The model to train.
      local: How clients train and how much each counts.
      initialize: `() -> state`, a `NamedTuple` with `weights` and `round_num`.
      next_round: As `Method.next_round`. The functions that it maps take and give `Vector`s, and a
        function of clients may give a `ClientResult`, whose `ClientUpdate` the round then has.
      **of_method: Further attributes of `Method`; by default clients keep their optimizer's state
        if the settings say so.
    """
    of_method.setdefault("client_state", local.client_state(model))
    of_method |= {name: fn and on_vectors(fn) for name, fn in of_method.items()}

    def on_tuples(federation, *values):
        return next_round(_Skeleton(federation, local), *values)

    return Method(on_vectors(initialize), on_tuples, **of_method)


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

    gradient: Vector
    weight: tf.Tensor


def give_gradient(
    model: Model, local: client.LocalTraining, x: Vector, data: ClientData
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
