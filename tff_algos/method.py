"""A method's round in a few primitives that several runtimes can execute.

A method writes its round once, as `next_round(federation, state, clients)`, with the primitives of
`Federation`: broadcast, map clients, mean, sum, map server. `TffFederation` implements them as TFF
intrinsics, which makes the method a TFF computation. Another `Federation` may run the same
functions over a whole cohort at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import purity
from tff_algos.model import ModelError

# Name of the operations by which `TffFederation.stack` appends a client's rows. A runtime that
# holds all clients' values may know the aggregate by it and stack them at once.
APPEND_ROWS = "append_rows_of_client"


class Federation(Protocol):
    """The primitives of a round.

    Server and client values are opaque, but their fields can be selected.
    """

    def broadcast(self, value: Any) -> Any:
        """Sends a server value to every client of the cohort."""

    def map_clients(self, fn: Callable, *values: Any) -> Any:
        """Applies a pure function of tensors on each client; returns a client value."""

    def map_server(self, fn: Callable, *values: Any) -> Any:
        """Applies a pure function of tensors at the server; returns a server value."""

    def mean(self, value: Any, weight: Any) -> Any:
        """Averages a client value (float32) to the server, with float32 scalar weights.

        Sums fold in cohort order. The mean is zero if the weights sum to zero.
        """

    def sum(self, value: Any) -> Any:
        """Sums a client value in cohort order; returns a server value."""

    def max(self, value: Any) -> Any:
        """Returns the elementwise maximum of a client value, as a server value."""

    def stack(self, value: Any) -> Any:
        """Returns every client's value as a server value: tensors `[K, ...]`, in cohort order."""

    def aggregate(self, process: Any, state: Any, value: Any, weight: Any) -> Any:
        """Averages a client value by a `tff_algos.aggregation.Aggregator`, one of TFF's.

        The computation `process.next` is TFF's own, and a runtime executes it as a whole. Its parts
        placed at clients run once per client, on the machine that holds the client's value; those
        at the server run once. The state stays at the server.

        Args:
          process: The `Aggregator`.
          state: Its state, a server value.
          value: Client value of the type it was made for.
          weight: Client value, float32 scalars; not used by an unweighted aggregator.

        Returns:
          A server value with fields `state`, `result`, `measurements`.
        """


def mean_of_updates(federation: Federation, value: Any, weight: Any) -> Any:
    """Returns the mean that an aggregator replaces, if the user chose one.

    A method calls it once per round, for the mean that its `MethodSpec.aggregated` describes.

    Args:
      federation: The primitives of the round.
      value: Client value like the model's weights.
      weight: As for `Federation.mean`.
    """
    return getattr(federation, "mean_of_updates", federation.mean)(value, weight)


def check_mean(specs: Any) -> None:
    """Refuses to average anything but float32 numbers.

    Args:
      specs: The client value's `tf.TensorSpec`s, a structure.

    Raises:
      MethodError: If a tensor has another type.
    """
    for spec in tf.nest.flatten(specs):
        if spec.dtype != tf.float32:
            raise purity.MethodError(
                f"The method averages a tensor of type {spec.dtype.name} over clients: convert it "
                "with tf.cast to float32, or add it up with Federation.sum."
            )


class ClientState(NamedTuple):
    """What one client keeps until the next round in which it takes part.

    Attributes:
      visits: Rounds in which it took part without being dropped, int32 scalar.
      kept: The state that the method stores, a structure of tensors. It is not used before the
        first visit, for which the method defines the start (`client.recall`).
    """

    visits: Any
    kept: Any


class Method(NamedTuple):
    """A method for one model, as pure functions.

    Attributes:
      initialize: `() -> state`, a `NamedTuple` of tensors with a field `weights` (a tuple, in the
        model's order).
      next_round: `(federation, state, clients) -> (state, metrics)`: one round; `clients` is a
        client value of `ClientData`, `metrics` a server value. With client state `(federation,
        state, clients, client_states) -> (state, metrics, client_states)`, where `client_states` is
        a client value of `ClientState`.
      client_state: `() -> kept`, a structure of tensors with the shapes and dtypes of each client's
        stored state; `None` for a method without client state.
      personal_weights: `kept -> weights`: the client's own model, on which the client is then
        evaluated instead of the server's; `None` if there is none.
      adopt_weights: `state -> state`: adapts the rest of the state after a user has set `weights`,
        so that the next round starts from them; `None` if nothing else changes.
    """

    initialize: Callable[[], Any]
    next_round: Callable[..., tuple]
    client_state: Callable[[], Any] | None = None
    personal_weights: Callable[[Any], Any] | None = None
    adopt_weights: Callable[[Any], Any] | None = None


@contextlib.contextmanager
def _as_from_eager_code():
    """Traces functions as if eager code had called them, which TFF's graphs hide.

    TFF builds graphs as TensorFlow 1 did, in which `==` and `!=` between tensors test identity. A
    user's metric `y == prediction` would silently be `False`. This context adds the stack entry by
    which TensorFlow recognises eager callers. Tensors are then compared by element, both in a
    method's functions and in the model, loss and metrics that they call.
    """
    if tf.compat.v1.executing_eagerly_outside_functions():
        yield
        return
    from tff_suite.compat import context  # The only place that says who asked for a graph.

    switches = context.context().context_switches
    switches.push(False, context.eager_mode, None)
    try:
        yield
    finally:
        switches.pop()


@contextlib.contextmanager
def _tensors_refused():
    """Says what to do about a tensor or variable that a TFF computation cannot hold."""
    try:
        yield
    except RuntimeError as e:
        if "capture an EagerTensor" not in str(e):
            raise
        raise ModelError(
            "The model, its loss or a metric reads a tensor, table or variable other than the "
            "model's weights, and TFF's computations cannot hold it. Make it a NumPy array, or run "
            "with runtime='per_client'."
        ) from e


def least(dtype: Any) -> float:
    """Returns a lower bound of all numbers of a type, from which a maximum can start."""
    dtype = tf.as_dtype(dtype)
    return -math.inf if dtype.is_floating else dtype.min


class TffFederation:
    """The primitives of a round as TFF intrinsics; for use inside a `tff.federated_computation`."""

    def broadcast(self, value: Any) -> Any:
        """As `Federation.broadcast`."""
        return tff.federated_broadcast(value)

    def map_clients(self, fn: Callable, *values: Any) -> Any:
        """As `Federation.map_clients`."""
        return self._map(fn, values)

    def map_server(self, fn: Callable, *values: Any) -> Any:
        """As `Federation.map_server`."""
        return self._map(fn, values)

    def _map(self, fn, values):
        # A value that was put together from several is a struct of placed values; TFF zips it.
        values = [self.zip(v) for v in values]
        members = tuple(v.type_signature.member for v in values)
        # Always a function, since directly in TFF's graph `==` stays what it is; always a new one,
        # since its trace would be kept for eager code, which other runtimes trace as they need it.
        fresh = getattr(fn, "_clone", None)
        fn = tf.function(fn, autograph=False) if fresh is None else fresh(None)

        # One parameter, since TFF refuses functions with default values.
        def computation(arguments):
            with _as_from_eager_code(), purity.required(fn), _tensors_refused():
                return fn(*arguments) if several else fn(arguments)

        several = len(values) > 1
        parameter, argument = (members, tuple(values)) if several else (members[0], values[0])
        return tff.federated_map(tff.tensorflow.computation(computation, parameter), argument)

    def zip(self, value: Any) -> Any:
        """Returns a federated value; one that consists of several is zipped."""
        value = tff.to_value(value, None)
        if isinstance(value.type_signature, tff.FederatedType):
            return value
        return tff.federated_zip(value)

    def mean(self, value: Any, weight: Any) -> Any:
        """As `Federation.mean`."""
        value, weight = self.zip(value), self.zip(weight)
        value_type, weight_type = value.type_signature.member, weight.type_signature.member
        check_mean(tff.types.type_to_tf_tensor_specs(value_type))

        @tff.tensorflow.computation
        def zero():
            return _zeros(value_type), _zeros(weight_type)

        @tff.tensorflow.computation(zero.type_signature.result, (value_type, weight_type))
        def accumulate(total, update):
            value, weight = update
            add = tf.nest.map_structure(lambda t, v: t + weight * v, total[0], value)
            return add, total[1] + weight

        @tff.tensorflow.computation(zero.type_signature.result, zero.type_signature.result)
        def merge(a, b):
            return tf.nest.map_structure(tf.add, a, b)

        @tff.tensorflow.computation(zero.type_signature.result)
        def report(total):
            return tf.nest.map_structure(lambda t: tf.math.divide_no_nan(t, total[1]), total[0])

        return tff.federated_aggregate(
            tff.federated_zip((value, weight)), zero(), accumulate, merge, report
        )

    def sum(self, value: Any) -> Any:
        """As `Federation.sum`."""
        return tff.federated_sum(self.zip(value))

    def max(self, value: Any) -> Any:
        """As `Federation.max`."""
        value = self.zip(value)
        value_type = value.type_signature.member

        @tff.tensorflow.computation
        def smallest():
            return tff.types.structure_from_tensor_type_tree(
                lambda t: tf.fill(t.shape, tf.constant(least(t.dtype), t.dtype)), value_type
            )

        @tff.tensorflow.computation(value_type, value_type)
        def larger(a, b):
            return tf.nest.map_structure(tf.maximum, a, b)

        @tff.tensorflow.computation(value_type)
        def report(value):
            return value

        return tff.federated_aggregate(value, smallest(), larger, larger, report)

    def stack(self, value: Any) -> Any:
        """As `Federation.stack`.

        TFF has no such intrinsic, so the aggregate grows by concatenation. TFF's worker copies the
        aggregate for every client, which is quadratic in the cohort. The in-process runtime
        recognises it by `APPEND_ROWS` and stacks once.
        """
        value = self.zip(value)
        value_type = value.type_signature.member
        grown_type = tff.types.structure_from_tensor_type_tree(
            lambda t: tff.TensorType(t.dtype, [None, *t.shape]), value_type
        )

        @tff.tensorflow.computation
        def empty():
            return tff.types.structure_from_tensor_type_tree(
                lambda t: tf.zeros([0, *t.shape], t.dtype), value_type
            )

        @tff.tensorflow.computation(grown_type, value_type)
        def append(rows, value):
            return tf.nest.map_structure(
                lambda r, v: tf.concat([r, v[None]], 0, name=APPEND_ROWS), rows, value
            )

        @tff.tensorflow.computation(grown_type, grown_type)
        def merge(a, b):
            return tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), a, b)

        @tff.tensorflow.computation(grown_type)
        def report(rows):
            return rows

        return tff.federated_aggregate(value, empty(), append, merge, report)

    def aggregate(self, process: Any, state: Any, value: Any, weight: Any) -> Any:
        """As `Federation.aggregate`."""
        of_clients = (value, weight) if process.weighted else (value,)
        return process.next(state, *map(self.zip, of_clients))


def _zeros(type_spec):
    return tff.types.structure_from_tensor_type_tree(
        lambda t: tf.zeros(t.shape, t.dtype), type_spec
    )
