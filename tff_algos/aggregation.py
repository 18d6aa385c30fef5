"""Replaces a method's mean of the clients' updates by one of TFF's aggregators.

Any `tff.aggregators` factory of one value works, weighted or unweighted. Its process is created for
updates with the shapes of the model's weights. The method's round runs it through the primitive
`tff_algos.method.Federation.aggregate`. The aggregator's state is the last field of the method's
server state, `aggregator`, in TFF's own structure. Its measurements become metrics of the round,
`aggregator/<path>`.

If no client of a round is left, the weights of the mean sum to zero. The aggregator's state then
stays as it was, like the rest of the server's state except `round_num`.

In every other round, a client that is left out (dropped, or without examples) sends zeros with
weight zero, as in TFF's own federated averaging. A weighted mean ignores it. But its norm of zero
enters the quantiles that clipping and zeroing adapt to, and an unweighted aggregator includes it in
the denominator. The denominator of differential privacy is always the expected number of clients.

None of the runtimes here has TFF's intrinsics for secure sums. They are replaced by sums in clear
of the same integers: this simulates secure aggregation and protects no data. A warning says so when
a process is built.
"""

from __future__ import annotations

import collections.abc
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import purity, registry
from tff_algos.method import Federation, Method
from tff_algos.model import Model
from tff_suite import graph_defs, user_warnings

# TFF's own forms of what it has no public name for: the state of differential privacy, secure sums
# in clear, and all the TensorFlow of a computation at the server as one graph.
from tff_suite.compat import (
    computation_impl,
    context_stack_impl,
    differential_privacy,
    form_utils,
    test_compiler,
    transformation_utils,
    transformations,
    type_analysis,
    type_conversions,
)
from tff_suite.hparams import HparamError

_WEIGHTED = tff.aggregators.WeightedAggregationFactory
_UNWEIGHTED = tff.aggregators.UnweightedAggregationFactory


class Aggregator:
    """A TFF aggregation process for updates of one model.

    Attributes:
      next: `(state, value[, weight]) -> (state, result, measurements)`, a TFF computation without
        secure intrinsics.
      initial_state: Arrays in the structure of the process's state.
      weighted: Whether it takes clients' weights, float32 scalars.
      update: Types of an update's tensors, in the model's order.
      traits: The properties for which a method may refuse it.
    """

    def __init__(self, factory: Any, model: Model):
        """Creates the process of a factory.

        Args:
          factory: A `tff.aggregators` factory, weighted or unweighted.
          model: The model. Updates have the shapes and dtypes of its weights.

        Raises:
          HparamError: If `factory` is not a factory of this kind, or cannot create a process for
            such updates.
        """
        self.weighted = isinstance(factory, _WEIGHTED)
        if not self.weighted and not isinstance(factory, _UNWEIGHTED):
            raise HparamError(
                "model_aggregator must be a weighted or unweighted factory of tff.aggregators, "
                f"found a {type(factory).__name__}."
            )
        update = tff.to_type(
            tuple(tff.TensorType(w.dtype.type, w.shape) for w in model.initial_weights)
        )
        weight = [tff.TensorType(np.float32)] if self.weighted else []
        try:
            with quietly():
                process = factory.create(update, *weight)
        except (TypeError, ValueError) as e:
            raise HparamError(
                f"model_aggregator={type(factory).__name__} cannot aggregate this model's updates: "
                f"{' '.join(str(e).split())}"
            ) from e
        if process.next.type_signature.result.result.member.compact_representation() != (
            update.compact_representation()
        ):
            raise HparamError(
                f"model_aggregator={type(factory).__name__} must return one value with the shapes "
                "of the model's weights, for the server's step."
            )
        with quietly():
            self.next, has_secure_sums = _in_clear(process.next)
        self.initial_state = _initial_state(process.initialize)
        self.update = [tf.TensorSpec(w.shape, w.dtype) for w in model.initial_weights]
        self.traits = registry.AggregatorTraits(
            weighted=self.weighted,
            is_private=has_secure_sums or _has_dp(process.initialize.type_signature.result.member),
            has_secure_sums=has_secure_sums,
        )

    def stateful_draw(self) -> str | None:
        """Returns the name of an operation that draws without a seed, or `None` if it has none."""
        found = []

        def look(block):
            if isinstance(block, tff.framework.CompiledComputation):
                graph = tf.compat.v1.GraphDef.FromString(block.proto.tensorflow.graph_def.value)
                found.extend(n.op for n in graph_defs.nodes(graph) if purity.is_unseeded(n.op))
            return block, False

        transformation_utils.transform_postorder(self.next.to_building_block(), look)
        return found[0] if found else None


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silences TensorFlow's warning about unused assertions of TFF's secure sums.

    TensorFlow warns whenever a factory, or the process of one, builds such a sum.
    """
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _in_clear(computation: tff.Computation) -> tuple[tff.Computation, bool]:
    """Returns a computation with sums in clear instead of secure ones, and whether it had any."""
    block, changed = test_compiler._replace_secure_intrinsics_with_insecure_bodies(
        computation.to_building_block()
    )
    if not changed:
        return computation, False
    # One within another, as TFF nests them for distributed DP, is deeper than protobuf goes.
    block = transformations.to_call_dominant(block)
    return (
        computation_impl.ConcreteComputation(
            computation_proto=block.proto,
            context_stack=context_stack_impl.context_stack,
            # The proto does not know Python's containers.
            annotated_type=computation.type_signature,
        ),
        True,
    )


def _has_dp(state_type: tff.Type) -> bool:
    """Returns whether a state includes one of `tff.aggregators.DifferentiallyPrivateFactory`."""
    return type_analysis.contains(
        state_type,
        lambda t: getattr(t, "python_container", None) is differential_privacy.DPAggregatorState,
    )


def _initial_state(initialize: tff.Computation) -> Any:
    """Returns a process's initial state, arrays in the Python containers of its type.

    A TensorFlow session computes it, because a process may be built where no runtime is installed.
    """
    local = form_utils.get_state_initialization_computation(initialize)
    proto = computation_impl.ConcreteComputation.get_proto(local).tensorflow
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(
            tf.compat.v1.GraphDef.FromString(proto.graph_def.value), name=""
        )
        with tf.compat.v1.Session(graph=graph) as session:
            if proto.initialize_op:
                session.run(proto.initialize_op)
            feeds = {}
            if proto.session_token_tensor_name:
                feeds[proto.session_token_tensor_name] = b""
            values = iter(session.run(_tensor_names(proto.result), feeds))
    return pack(initialize.type_signature.result.member, values)


def _tensor_names(binding: Any) -> list[str]:
    if binding.WhichOneof("binding") == "tensor":
        return [binding.tensor.tensor_name]
    return [name for element in binding.struct.element for name in _tensor_names(element)]


def pack(type_spec: tff.Type, values: Any) -> Any:
    """Returns values in the Python containers of a TFF type.

    Args:
      type_spec: Type of a structure of tensors.
      values: Iterator with one value per tensor, in TFF's order.
    """
    if not isinstance(type_spec, tff.StructType):
        return next(values)
    elements = [
        (name, pack(element, values)) for name, element in tff.structure.iter_elements(type_spec)
    ]
    return type_conversions.type_to_py_container(tff.structure.Struct(elements), type_spec)


def unpack(type_spec: tff.Type, value: Any) -> Any:
    """Returns a structure of a TFF type as nested tuples, in TFF's order: the reverse of `pack`."""
    if not isinstance(type_spec, tff.StructType):
        return value
    elements = enumerate(tff.structure.iter_elements(type_spec))
    return tuple(
        unpack(element, value[name if isinstance(value, collections.abc.Mapping) else i])
        for i, (name, element) in elements
    )


class _Aggregating:
    """A federation in which an aggregator replaces the mean of the updates.

    It refuses what the method does and its `MethodSpec.aggregated` does not declare.
    """

    def __init__(
        self, federation: Federation, aggregator: Aggregator, own_weights: str, state: Any
    ):
        self._federation, self._aggregator, self._state = federation, aggregator, state
        self._own_weights = own_weights
        self.output: Any = None
        self.total_weight: Any = None

    def __getattr__(self, word):
        return getattr(self._federation, word)

    def mean(self, value, weight):
        return self._federation.mean(self._in_clear(value), weight)

    def sum(self, value):
        return self._federation.sum(self._in_clear(value))

    def max(self, value):
        return self._federation.max(self._in_clear(value))

    def stack(self, value):
        return self._federation.stack(self._in_clear(value))

    def mean_of_updates(self, value, weight):
        if self.output is not None:
            raise purity.MethodError(
                "The method has two means of updates in a round, and an aggregator replaces one: "
                "call Federation.mean for the other, and declare it in Aggregated.in_clear."
            )
        value = self._federation.map_clients(self._like_the_model, value)
        self.output = self._federation.aggregate(self._aggregator, self._state, value, weight)
        self.total_weight = self._federation.sum(weight)
        return self.output.result

    def check_own_weight(self, name: str) -> None:
        """Refuses the weights of a method's clients if the aggregator would lose them.

        Args:
          name: Name of the client function that gives them.
        """
        traits = self._aggregator.traits
        if self._own_weights or (traits.weighted and not traits.has_secure_sums):
            return
        lost = "rounds to steps of 2^-12" if traits.weighted else "ignores"
        raise purity.MethodError(
            f"{name} returns its own ClientResult.weight, which the aggregator {lost}. Use another "
            "one, and declare the weights in Aggregated.own_weights."
        )

    def _like_the_model(self, value):
        wanted = [t.shape for t in self._aggregator.update]
        leaves = [tf.convert_to_tensor(t) for t in tf.nest.flatten(value)]
        if (
            not isinstance(value, (tuple, list))
            or any(t.dtype != tf.float32 for t in leaves)
            or [t.shape for t in leaves] != wanted
        ):
            found = ", ".join(f"{t.dtype.name} {t.shape}" for t in leaves)
            raise purity.MethodError(
                f"The method's mean of updates has {found}, the model {', '.join(map(str, wanted))}"
                ": an aggregator needs one float32 tensor like each weight, in their order."
            )
        return value

    def _in_clear(self, value):
        return (
            self._federation.map_clients(_numbers, value)
            if self._aggregator.traits.is_private
            else value
        )


def _numbers(value):
    """Returns a client's value, if it is single numbers: vectors may reveal its update."""
    for tensor in map(tf.convert_to_tensor, tf.nest.flatten(value)):
        if tensor.shape.rank != 0:
            raise purity.MethodError(
                f"The method's clients also send a tensor of shape {tensor.shape} in clear, which "
                "this aggregator does not protect. Use another aggregator, and declare the tensor "
                "in Aggregated.in_clear."
            )
    return value


def with_aggregator(method: Method, aggregator: Aggregator, own_weights: str) -> Method:
    """Returns a method in which an aggregator replaces the mean of the updates.

    Args:
      method: A method that has such a mean (`method.mean_of_updates`).
      aggregator: The aggregator.
      own_weights: As in `tff_algos.method_spec.Aggregated`.

    Returns:
      The method. Its state has the additional field `aggregator`. A round raises a `MethodError`
      if the method has no such mean, or would lose privacy or weights by the aggregator.
    """
    traced = tf.function(method.initialize, autograph=False).get_concrete_function()
    own_type = type(traced.structured_outputs)
    fields = [*own_type._fields, "aggregator"]
    make: Any = collections.namedtuple  # Not a class that type checkers know.
    state_type = make(own_type.__name__, fields)

    def initialize():
        state = tf.nest.map_structure(tf.constant, aggregator.initial_state)
        return state_type(*method.initialize(), state)

    def own_part(state):
        return own_type(*state[:-1])

    def end_round(own, before, after, total_weight):
        # The structures are equal, but one may be of other containers than the other.
        chosen = [
            tf.where(total_weight > 0, a, b)
            for a, b in zip(tf.nest.flatten(after), tf.nest.flatten(before), strict=True)
        ]
        return state_type(*own, tf.nest.pack_sequence_as(before, chosen))

    def add_measurements(metrics, measurements):
        return collections.OrderedDict([*metrics.items(), *_scalars("aggregator", measurements)])

    def next_round(federation, state, clients, *client_states):
        aggregating = _Aggregating(federation, aggregator, own_weights, state.aggregator)
        own = federation.map_server(own_part, state)
        own, metrics, *states_after = method.next_round(aggregating, own, clients, *client_states)
        output = aggregating.output
        if output is None:
            raise purity.MethodError(
                "The method has no mean of updates for an aggregator to replace: call "
                "mean_of_updates in its round, or leave out MethodSpec.aggregated."
            )
        after = federation.map_server(
            end_round, own, state.aggregator, output.state, aggregating.total_weight
        )
        metrics = federation.map_server(add_measurements, metrics, output.measurements)
        return after, metrics, *states_after

    def adopt_weights(state):
        adopted = method.adopt_weights(own_part(state))  # type: ignore[misc]
        return state_type(*adopted, state.aggregator)

    return method._replace(
        initialize=initialize,
        next_round=next_round,
        adopt_weights=adopt_weights if method.adopt_weights else None,
    )


def _scalars(name: str, value: Any) -> list[tuple[str, tf.Tensor]]:
    """Returns the numeric scalars of a structure of tensors by path, as float32."""
    if tf.is_tensor(value):
        is_number = value.shape.rank == 0 and (value.dtype.is_floating or value.dtype.is_integer)
        return [(name, tf.cast(value, tf.float32))] if is_number else []
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, tff.structure.Struct):
        value = tff.structure.to_odict_or_tuple(value)
    items = value.items() if hasattr(value, "items") else enumerate(value)
    return [pair for key, v in items for pair in _scalars(f"{name}/{key}", v)]


def wrap(
    spec: registry.MethodSpec, settings: Any, own: Any, model: Model, factory: Any
) -> Callable[[Method], Method]:
    """Returns a function that puts a user's factory into a method.

    Args:
      spec: The method's specification.
      settings: The training settings.
      own: The method's own settings.
      model: The model.
      factory: A `tff.aggregators` factory.

    Raises:
      HparamError: If `factory` is not a factory of this kind, or the method does not support it.

    Warns:
      RuntimeWarning: If its secure sums are simulated, or it draws without a seed.
    """
    aggregator, word = Aggregator(factory, model), settings["aggregator"]
    name = f"aggregator={word}"
    if word == "mean":
        name = f"model_aggregator={type(factory).__name__}"
    registry.check_aggregator(spec, settings, own, name, aggregator.traits)
    if aggregator.traits.has_secure_sums:
        user_warnings.warn(f"{name} simulates {registry.SIMULATED}.")
    drawn = aggregator.stateful_draw()
    if drawn:
        user_warnings.warn(
            f"{name} draws from a generator without a seed ({drawn}), so runs cannot be "
            "repeated or resumed exactly. aggregator=dp and compressed draw from the run's seed."
        )
    declared = spec.aggregated
    assert not isinstance(declared, str)  # `check_aggregator` has refused it.
    return lambda method: with_aggregator(method, aggregator, declared.own_weights)
