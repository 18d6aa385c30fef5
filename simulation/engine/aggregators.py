"""Executes TFF's aggregation factories on stacked clients, as part of a graph.

Values have the form of `simulation.tff.interpreter`, except that a value at clients is a `Clients`:
tensors with a first dimension for the clients. A map over clients is vectorised over all clients,
like a method's own functions. A part that cannot be vectorised raises an error. Only TFF's
aggregate, a fold over clients, processes them one after the other, as it is defined.
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from simulation.engine import batching
from simulation.engine.batched_ops import NotVectorizable
from simulation.tff import context as tff_context
from simulation.tff import graphs as tff_graphs
from simulation.tff import interpreter as tff_interpreter
from tff_algos import aggregation


class Clients:
    """A value at clients: nested tuples of tensors; `stacked` marks those with a row per client."""

    __slots__ = ("stacked", "value")

    def __init__(self, value: Any, stacked: Any):
        self.value, self.stacked = value, stacked


def same(value: Any) -> Clients:
    """Returns a value that is the same at all clients."""
    return Clients(value, tf.nest.map_structure(lambda _: False, value))


def of_each(value: Any) -> Clients:
    """Returns the value at clients for tensors `[K, ...]`."""
    return Clients(value, tf.nest.map_structure(lambda _: True, value))


class Aggregate(NamedTuple):
    """The result of an aggregator, as `tff.templates.MeasuredProcessOutput`."""

    state: Any
    result: Any
    measurements: Any


class OnRows:
    """An aggregator as a function of its state and the rows of all clients."""

    def __init__(self, process: aggregation.Aggregator):
        """Initialises the function.

        Args:
          process: The aggregator.
        """
        self._next = process.next

    def __call__(self, state: Any, rows: Any) -> Aggregate:
        """Aggregates, while a graph is built.

        Args:
          state: The aggregator's state.
          rows: The clients' values and weights, tensors `[K, ...]`.

        Raises:
          NotVectorizable: If a part of the aggregator cannot be vectorised over clients.
        """
        types = self._next.type_signature
        state = aggregation.unpack(types.parameter[0].member, state)
        number = tf.shape(tf.nest.flatten(rows)[0])[0]
        argument = state, *map(of_each, rows)
        outputs = StackedInterpreter().run(self._next, argument, number)
        return Aggregate(
            *(
                aggregation.pack(of.member, iter(tf.nest.flatten(output)))
                for of, output in zip(types.result, outputs, strict=True)
            )
        )


class StackedInterpreter(tff_interpreter.Interpreter):
    """Turns building blocks into functions that add to the graph that is being built."""

    def __init__(self):
        """Initialises the interpreter, which needs no threads."""
        super().__init__(None, 1)

    def run(self, computation: tff.Computation, argument: Any, num_clients: tf.Tensor) -> Any:
        """Executes a computation.

        Args:
          computation: The computation.
          argument: Its argument, as a value of this interpreter.
          num_clients: K, int32 scalar.

        Returns:
          Its result, as a value of this interpreter.

        Raises:
          NotVectorizable: If a part of it cannot be vectorised over clients.
        """
        block = tff_context._to_native_form(computation)
        try:
            return self.resolve(block)({tff_interpreter.NUM_CLIENTS: num_clients})(argument)
        except NotImplementedError as e:
            raise NotVectorizable(f"{e} Use --runtime=tff.") from e

    def _resolve_compiled(self, block):
        if block.proto.WhichOneof("computation") != "tensorflow":
            return super()._resolve_compiled(block)
        graph = _Graph(block.proto.tensorflow)
        return lambda env: graph

    def _resolve_block(self, block):
        variables = [(name, self.resolve(value)) for name, value in block.locals]
        result = self.resolve(block.result)

        def run(env):
            env = dict(env)
            for name, value in variables:
                env[name] = value(env)
            return result(env)

        return run

    def _value_at_clients(self, num_clients, value):
        return same(value)

    def _eval_at_clients(self, num_clients, function):
        return of_each(batching.over_clients(lambda: function(None), (), [], num_clients))

    def _map(self, num_clients, argument):
        function, values = argument
        stacked = tf.nest.flatten(values.stacked)
        return of_each(batching.over_clients(function, (values.value,), stacked, num_clients))

    def _map_all_equal(self, num_clients, argument):
        function, values = argument
        return same(function(values.value))

    def _zip_at_clients(self, num_clients, value):
        if isinstance(value, Clients):
            return value
        elements = [self._zip_at_clients(num_clients, element) for element in value]
        return Clients(*(tuple(getattr(e, of) for e in elements) for of in ("value", "stacked")))

    def _aggregate(self, num_clients, argument):
        values, total, accumulate, _, report = argument

        def of_client(k):
            return tf.nest.map_structure(
                lambda v, stacked: v[k] if stacked else v, values.value, values.stacked
            )

        total = tf.nest.map_structure(tf.convert_to_tensor, total)
        _, total = tf.while_loop(
            lambda k, total: k < num_clients,
            lambda k, total: (k + 1, accumulate((total, of_client(k)))),
            (tf.constant(0), total),
        )
        return report(total)

    def _select(self, result_type, num_clients, argument):
        raise NotImplementedError("A federated_select cannot be vectorised over clients.")


class _Graph:
    """A TensorFlow graph of a TFF computation, called within the graph that is being built."""

    def __init__(self, tensorflow_pb):
        self._graph = tff_graphs.load(tensorflow_pb)

    def __call__(self, argument):
        return self._graph.call_in_graph([] if argument is None else tf.nest.flatten(argument))
