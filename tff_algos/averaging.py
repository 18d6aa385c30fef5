"""The round that most methods share: broadcast, local training, mean of updates, server step.

A method with several exchanges, or another order, instead writes its round with the primitives of
`tff_algos.method.Federation` (`write_out`), from the same pieces. In both cases the method's
functions work on `Vector`s. This module handles each `ClientResult`: it drops updates that are not
finite, computes weights and metrics, and stores client state.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algos import client
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method, mean_of_updates
from tff_algos.method_spec import COUNTS
from tff_algos.model import Model
from tff_algos.purity import MethodError, explained, name_of
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
    """What a method's client function returns. `None` in a field selects the default rule.

    Attributes:
      trained: The result of local training.
      report: What the client sends to the server, a structure of tensors.
      weight: The client's weight in averages, a number of at least 0; by default from
        `client_weighting`. It becomes float32, and 0 for a client without examples.
      finite: Whether the update is finite, bool scalar; by default whether the report is. A client
        whose update is not finite is dropped, and its metrics say so. So is one whose `weight` is
        negative or not finite.
      counts: Whether to include a finite report, bool scalar; by default it is included.
      kept: The client's new state for later rounds, a structure of tensors; only for methods with
        client state.
      keeps: Whether to store `kept` if the update is finite, bool scalar; by default if the report
        is included. A client without examples keeps its old state.
    """

    trained: client.LocalResult
    report: Any
    weight: tf.Tensor | None = None
    finite: tf.Tensor | None = None
    counts: tf.Tensor | None = None
    kept: Any = None
    keeps: tf.Tensor | None = None


class ClientUpdate(NamedTuple):
    """What the round uses of a `ClientResult`.

    Attributes:
      report: What the client sends to the server, a structure of tensors; zeros if it is left out.
      weight: The client's weight in averages, float32 scalar; zero if it is left out.
      metrics: See `client.round_metrics`.
      client_state: The client's state for later rounds; empty for methods without client state.
    """

    report: Any
    weight: tf.Tensor
    metrics: Any
    client_state: Any


class Outcome(NamedTuple):
    """The state after the server's step, and the method's own metrics by name, float32 scalars."""

    state: Any
    metrics: Any


def initial_state(model: Model) -> ServerState:
    """Returns the state before the first round of a method whose state is the model alone."""
    return ServerState(constants(model.initial_weights), tf.constant(0))


def keep_optimizer(local: client.LocalTraining) -> Callable:
    """Returns a decorator that lets a client function keep the client optimizer's state.

    The decorated function takes the client's optimizer as its last argument. With
    `client_optimizer_state=keep` the optimizer continues from the client's stored state, and its
    state after training is stored.

    Args:
      local: How clients train.
    """

    def decorate(client_update):
        def update(*values):
            *others, last = values
            with explained(client_update):
                if not isinstance(last, ClientState):
                    return client_update(*values, local.optimizer())
                result = client_update(*others, local.optimizer(last))
                return result._replace(kept=result.trained.slots)

        update.__name__ = name_of(client_update)
        return update

    return decorate


def plain_client(model: Model, local: client.LocalTraining) -> Callable:
    """Returns FedAvg's client function: it trains, and reports x_k - x.

    Args:
      model: The model to train.
      local: How clients train.
    """

    @keep_optimizer(local)
    def client_update(
        broadcast: Broadcast, data: ClientData, optimizer: client.Optimizer
    ) -> ClientResult:
        x, eta_l = broadcast
        trained = client.train(model, optimizer, eta_l, x, data)
        return ClientResult(trained, trained.weights - x)

    return client_update


def _finished(
    local: client.LocalTraining, name: str, result: ClientResult, values: tuple
) -> ClientUpdate:
    """Returns the `ClientUpdate` of a result.

    Args:
      local: How clients train.
      name: Name of the client function.
      result: What it returned.
      values: Its arguments.
    """
    (data,) = (v for v in values if isinstance(v, ClientData))
    client_state = next((v for v in values if isinstance(v, ClientState)), None)
    if not hasattr(result.trained, "metrics"):
        raise MethodError(
            f"ClientResult.trained is {_kind(result.trained)}; give what `client.train` returned."
        )
    finite, counts, keeps = (
        None if value is None else _truth(f"ClientResult.{field}", value)
        for field, value in (
            ("finite", result.finite),
            ("counts", result.counts),
            ("keeps", result.keeps),
        )
    )
    if finite is None:
        finite = client.is_finite(result.report)
    if result.weight is None:
        weight = local.client_weight(data)
    else:
        weight = client.zero_unless(
            client.has_examples(data), _number("ClientResult.weight", result.weight)
        )
        finite &= tf.math.is_finite(weight) & (weight >= 0)
    counts = finite if counts is None else finite & counts
    kept = () if result.kept is None else result.kept
    if client_state is not None:
        keeps = counts if keeps is None else finite & keeps
        # Shapes that differ would be broadcast, silently.
        kept = _of_form(
            name, "ClientResult.kept", "`client_state` declares", client_state.kept, result.kept
        )
        kept = client.keep(client_state, data, keeps, kept)
    return ClientUpdate(
        report=client.zero_unless(counts, result.report),
        weight=client.zero_unless(counts, weight),
        metrics=client.round_metrics(result.trained, data, finite),
        client_state=kept,
    )


def _number(name: str, value: Any) -> tf.Tensor:
    """Returns one number that a method's function gave as a float32 scalar."""
    tensor = _converted(name, value, "number")
    dtype = tensor.dtype
    if tensor.shape.rank != 0 or not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
        raise MethodError(f"{name} is a tensor {_shown([tensor])}; give one number.")
    return tf.cast(tensor, tf.float32)


def _truth(name: str, value: Any) -> tf.Tensor:
    """Returns what a method's function gave as a bool scalar; other numbers are refused."""
    tensor = _converted(name, value, "bool")
    if tensor.shape.rank != 0 or not tensor.dtype.is_bool:
        raise MethodError(f"{name} is a tensor {tensor.dtype.name} {tensor.shape}; give one bool.")
    return tensor


def _converted(name: str, value: Any, wanted: str) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(value)
    except (TypeError, ValueError):
        raise MethodError(f"{name} is {_kind(value)}; give one {wanted}.") from None


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
        @functools.wraps(fn)
        def finished(*values):
            result = fn(*values)
            if isinstance(result, ClientResult):
                check = getattr(self._federation, "check_own_weight", None)
                if check is not None and result.weight is not None:
                    check(name_of(fn))
                return _finished(self._local, name_of(fn), result, values)
            return result

        return self._federation.map_clients(finished, *values)


def mean_report(federation: Any, update: Any) -> Any:
    """Averages the clients' reports at the server: the one aggregate of federated averaging."""
    return (mean_of_updates(federation, update.report, update.weight),)


def mean_each(make: Callable, *parts: int | str) -> Callable:
    """Returns an aggregate for `build` that averages the parts of a report separately.

    Args:
      make: Combines a list of means into what the server takes.
      *parts: Field names or positions in the report. The first is the update, whose mean an
        aggregator may replace.
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
    """Builds a method with one exchange per round.

    Args:
      model: The model to train.
      local: How clients train, and how they are weighted.
      client_update: `(broadcast, data) -> ClientResult`; with client state `(broadcast, data,
        client_state)`.
      server_update: `(state, *aggregates) -> state`, or an `Outcome`; by default the step x ← x + η
        Δ with the mean report Δ. If all weights are zero, whether from dropped clients or from the
        method's own weights, the state stays as it was. `round_num` is advanced here.
      initialize: `() -> state`, a `NamedTuple` with `weights` and `round_num`; by default the model
        alone.
      broadcast: `state -> what clients receive`; by default a `Broadcast`.
      aggregate: `(federation, update) -> aggregates`, a tuple of server values.
      **of_method: Further attributes of `Method`, as for `write_out`.
    """

    def default_step(state, delta):
        return state._replace(weights=state.weights + local.server_learning_rate * delta)

    step = server_update or default_step
    prepare = broadcast or send_model(local)
    if server_update is None and aggregate is mean_report:
        client_update = _reporting_like(model, client_update)

    def end_round(state: Any, aggregates: tuple, total_weight: tf.Tensor, metrics: Any) -> Outcome:
        with explained(step):
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


def _reporting_like(model: Model, client_update: Callable) -> Callable:
    """Returns a client function whose report is refused if it cannot be added to the weights."""
    wanted = [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights]

    @functools.wraps(client_update)
    def checked(*values):
        result = client_update(*values)
        report, name = getattr(result, "report", None), name_of(client_update)
        if not isinstance(report, (tuple, list)) or any(t is None for t in report):
            raise MethodError(
                f"{name} returned {_kind(result)} whose report is {_kind(report)}; return an "
                "averaging.ClientResult whose report is a Vector like the model's weights."
            )
        found = [tf.TensorSpec(t.shape, t.dtype) for t in map(tf.convert_to_tensor, report)]
        # Shapes that differ would be broadcast, silently.
        if len(found) != len(wanted) or not all(
            f.dtype == w.dtype and f.shape.is_compatible_with(w.shape)
            for f, w in zip(found, wanted, strict=True)
        ):
            raise MethodError(
                f"{name} returned shapes {_shown(found)}, the model has {_shown(wanted)}: report "
                "one tensor like each weight, or pass your own server_update."
            )
        return result

    return checked


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _shown(specs: Sequence[tf.TensorSpec | tf.Tensor]) -> str:
    if any(spec.dtype != tf.float32 for spec in specs):
        return ", ".join(f"{spec.dtype.name} {spec.shape}" for spec in specs)
    return ", ".join(str(spec.shape) for spec in specs)


def write_out(
    model: Model,
    local: client.LocalTraining,
    initialize: Callable,
    next_round: Callable,
    **of_method: Any,
) -> Method:
    """Builds a method that writes out its round.

    Args:
      model: The model to train.
      local: How clients train, and how they are weighted.
      initialize: `() -> state`, a `NamedTuple` with `weights` and `round_num`.
      next_round: As `Method.next_round`. The functions that it maps take and return `Vector`s. If a
        client function returns a `ClientResult`, the round receives its `ClientUpdate`.
      **of_method: Further attributes of `Method`; by default clients keep their optimizer's state
        if the settings say so.
    """
    of_method.setdefault("client_state", local.client_state(model))
    of_method |= {name: fn and on_vectors(fn) for name, fn in of_method.items()}

    def on_tuples(federation, *values):
        return next_round(_Skeleton(federation, local), *values)

    return Method(on_vectors(initialize), on_tuples, **of_method)


def next_state(before: Any, after: Any, total_weight: tf.Tensor) -> Any:
    """Ends a round: returns the new state, or the old one if no client was left.

    `round_num` increases by one in both cases.

    Args:
      before: The server's state at the start of the round.
      after: The state that the round computed, of the same structure.
      total_weight: Sum of the weights of the clients that were not dropped.

    Raises:
      MethodError: If `after` has another structure, or its tensors have other types or shapes.
    """
    after = _like(before, after)
    state = tf.nest.map_structure(lambda a, b: tf.where(total_weight > 0, a, b), after, before)
    return state._replace(round_num=before.round_num + 1)


def _like(before: Any, after: Any) -> Any:
    """Returns the state after a server's step in the structure of the one before.

    Raises:
      MethodError: If a field has another structure, or a tensor another type or shape, which would
        be broadcast.
    """
    if getattr(after, "_fields", None) != before._fields:
        raise MethodError(
            f"The server's function returned {_kind(after)}; return the {type(before).__name__} "
            "that it got, changed by `_replace`."
        )
    return type(before)(
        *(
            _of_form(
                "The server's function", f"{name} of the state", "`initialize` made", wanted, found
            )
            for name, wanted, found in zip(before._fields, before, after, strict=True)
        )
    )


def _of_form(by: str, what: str, source: str, wanted: Any, found: Any) -> Any:
    """Returns a value in the structure of another, whose tensors have the same types and shapes.

    Args:
      by: The function that returned it.
      what: What it is.
      source: Where its structure is from.
      wanted: The value before.
      found: The value.

    Raises:
      MethodError: If it has another structure, or a tensor another type or shape.
    """
    try:
        tf.nest.assert_same_structure(wanted, found, check_types=False)
    except (TypeError, ValueError):
        raise MethodError(
            f"{by} returned {_kind(found)} of another structure for {what}: keep the structure "
            f"that {source}."
        ) from None
    leaves = []
    for old, new in zip(tf.nest.flatten(wanted), tf.nest.flatten(found), strict=True):
        tensor = new if tf.is_tensor(new) else tf.convert_to_tensor(new, dtype_hint=old.dtype)
        if tensor.dtype != old.dtype or not (
            tensor.shape.rank == old.shape.rank and tensor.shape.is_compatible_with(old.shape)
        ):
            raise MethodError(
                f"{by} returned a tensor {_shown([tensor])} for one of {what} that is "
                f"{_shown([old])}: keep its type and shape."
            )
        leaves.append(tensor)
    return tf.nest.pack_sequence_as(wanted, leaves)


class Gradient(NamedTuple):
    """A client's ∇F_k(x), like the weights, and its weight in averages, float32 scalar."""

    gradient: Vector
    weight: tf.Tensor


def give_gradient(
    model: Model, local: client.LocalTraining, x: Vector, data: ClientData
) -> Gradient:
    """Returns a client's `Gradient` on its whole training set; zeros if that is not finite."""
    gradient = client.full_loss(model, x, data).gradient
    given = Gradient(gradient, local.client_weight(data))
    return client.zero_unless(client.is_finite(gradient), given)


def send_model(local: client.LocalTraining) -> Callable:
    """Returns `state -> Broadcast`, with the model and the round's client learning rate."""
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
      `OrderedDict` of float32 scalars: the weighted mean of every training metric, then `COUNTS`.
      Means are NaN if every client was dropped, because a loss of 0 would look like the best one.
    """
    means = collections.OrderedDict(
        (name, value / weight) for name, (value, weight) in total["training"].items()
    )
    means.update((name, total[name]) for name in COUNTS)
    return means


def summarize_with(total: Any, own: Any) -> collections.OrderedDict:
    """As `summarize`, followed by the method's own metrics.

    Args:
      total: The sum over clients.
      own: Name → number.

    Returns:
      `OrderedDict` of float32 scalars.

    Raises:
      MethodError: If a metric of the method is not one number, or has the name of another.
    """
    metrics = summarize(total)
    for name, value in own.items():
        if name in metrics:
            raise MethodError(
                f"The method's metric {name!r} has the name of a metric that every round has: give "
                "it another name."
            )
        metrics[name] = _number(f"The method's metric {name!r}", value)
    return metrics
