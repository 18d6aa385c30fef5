"""The interpreter of TFF computations: building blocks and federated intrinsics over graphs.

Values have these forms inside the interpreter:

- tensor: an eager tensor; at clients possibly an array of the caller's, so that only clients in
  progress hold a copy of their data,
- data set: a variant tensor,
- structure: a `tuple`, by position,
- client-placed value: a `list` with an entry for each client of the cohort, or a
  `tff_values.AllEqual` if it is the same at all clients,
- function: a callable with one argument,
- server-placed value: the value itself.
"""

import collections
import concurrent.futures
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from simulation.device import eager_tensors
from simulation.device.streams import Stream
from simulation.tff import graphs as tff_graphs
from simulation.tff import streams as tff_streams
from simulation.tff.values import AllEqual, egester, per_client
from tff_suite.compat import tensorflow_utils

# TFF cannot use this as the name of a reference.
NUM_CLIENTS = "<number of clients>"


class Interpreter:
    """Turns building blocks into functions, which run clients on threads.

    Attributes:
      intrinsic_calls: A `collections.Counter` of the intrinsics interpreted so far, by URI.
    """

    def __init__(self, pool: concurrent.futures.Executor | None, num_threads: int):
        """Initialises for a pool of threads."""
        self._pool: Any = pool  # Not asked where graphs are built.
        self._num_threads = num_threads
        self.intrinsic_calls = collections.Counter()

    def resolve(self, block: Any) -> Callable[[dict], Any]:
        """Turns a building block into a function from values of references to the block's value."""
        blocks = tff.framework
        if isinstance(block, blocks.Reference):
            name = block.name
            return lambda env: env[name]
        if isinstance(block, blocks.CompiledComputation):
            return self._resolve_compiled(block)
        if isinstance(block, blocks.Intrinsic):
            return self._resolve_intrinsic(block)
        if isinstance(block, blocks.Call):
            function = self.resolve(block.function)
            if block.argument is None:
                return lambda env: function(env)(None)
            argument = self.resolve(block.argument)
            return lambda env: function(env)(argument(env))
        if isinstance(block, blocks.Selection):
            source, index = self.resolve(block.source), block.as_index()
            return lambda env: source(env)[index]
        if isinstance(block, blocks.Lambda):
            graph = _only_called(block)
            if graph is not None:
                return self._resolve_compiled(graph)
            name, result = block.parameter_name, self.resolve(block.result)
            return lambda env: lambda argument: result({**env, name: argument})
        if isinstance(block, blocks.Block):
            return self._resolve_block(block)
        if isinstance(block, blocks.Struct):
            elements = [self.resolve(element) for element in block]
            return lambda env: tuple([element(env) for element in elements])
        if isinstance(block, blocks.Literal):
            value = tf.constant(block.value, tf.as_dtype(block.type_signature.dtype.type))
            return lambda env: value
        raise NotImplementedError(
            f"The in-process runtime cannot interpret a {type(block).__name__} ({block!s:.200})."
        )

    def _resolve_compiled(self, block):
        kind = block.proto.WhichOneof("computation")
        if kind != "tensorflow":
            raise NotImplementedError(
                f'The in-process runtime runs TensorFlow computations only, not one of "{kind}".'
            )
        graph = tff_graphs.load(block.proto.tensorflow)
        return lambda env: graph

    def _resolve_block(self, block):
        streamed = tff_streams.streamed(block)
        within = set().union(*(of_map.names for of_map in streamed.values()))
        gathered = set().union(*(of_map.gathered for of_map in streamed.values()))
        variables: list[tuple[str, Any, Callable]] = []
        for name, value in block.locals:
            if name in streamed:
                variables.append((name, streamed[name].taken, self.resolve(value.argument)))
            elif name not in within:
                variables.append((name, None, self.resolve(value)))
        result = self.resolve(block.result)

        def run(env):
            env = dict(env)
            with contextlib.ExitStack() as streams:
                for name, taken, value in variables:
                    if taken is None:
                        env[name] = value(env)
                        continue
                    self.intrinsic_calls["federated_map"] += 1
                    function, arguments = value(env)
                    stream = Stream(function, per_client(arguments, env[NUM_CLIENTS]), taken)
                    env.update((name, stream.values(name)) for name in taken)
                    streams.callback(stream.end)
                    stream.start(self._pool, self._num_threads)
                env.update((name, list(env[name])) for name in gathered)
                return result(env)

        return run

    def _resolve_intrinsic(self, block):
        uri = block.uri
        handlers = {
            "federated_aggregate": self._aggregate,
            "federated_apply": self._apply,
            "federated_broadcast": self._value_at_clients,
            "federated_eval_at_clients": self._eval_at_clients,
            "federated_eval_at_server": self._eval_at_server,
            "federated_map": self._map,
            "federated_map_all_equal": self._map_all_equal,
            "federated_select": functools.partial(self._select, block.type_signature.result),
            "federated_value_at_clients": self._value_at_clients,
            "federated_value_at_server": self._identity,
            "federated_zip_at_clients": self._zip_at_clients,
            "federated_zip_at_server": self._identity,
        }
        if uri not in handlers:
            raise NotImplementedError(
                f'The in-process runtime does not know the intrinsic "{uri}". It interprets: '
                f"{', '.join(handlers)}."
            )
        handler: Any = handlers[uri]

        def bind(env):
            self.intrinsic_calls[uri] += 1
            return functools.partial(handler, env[NUM_CLIENTS])

        return bind

    def _identity(self, num_clients, value):
        del num_clients
        return value

    def _apply(self, num_clients, argument):
        del num_clients
        function, value = argument
        return function(value)

    def _value_at_clients(self, num_clients, value):
        del num_clients
        return AllEqual(value)

    def _eval_at_server(self, num_clients, function):
        del num_clients
        return function(None)

    def _eval_at_clients(self, num_clients, function):
        return self._run_clients(function, [None] * num_clients)

    def _map(self, num_clients, argument):
        function, values = argument
        return self._run_clients(function, per_client(values, num_clients))

    def _map_all_equal(self, num_clients, argument):
        del num_clients
        function, value = argument
        return AllEqual(function(value.value))

    def _zip_at_clients(self, num_clients, value):
        if type(value) is not tuple:
            return value
        elements = [self._zip_at_clients(num_clients, element) for element in value]
        if all(type(element) is AllEqual for element in elements):
            return AllEqual(tuple([element.value for element in elements]))
        return list(zip(*[per_client(e, num_clients) for e in elements], strict=True))

    def _aggregate(self, num_clients, argument):
        # The merge function is not used, since there are no partial sums here.
        values, total, accumulate, _, report = argument
        values = per_client(values, num_clients)
        # Stacked at once: client by client, every step would copy all earlier rows.
        if num_clients and getattr(accumulate, "appends_rows", False):
            return report(_stack(list(values)))
        for value in values:
            total = accumulate((total, value))
            # Freed before the next one is made, since it is as large as the model.
            del value
        return report(total)

    def _select(self, result_type, num_clients, argument):
        keys, _, server_value, function = argument
        element_type = result_type.member.element

        def select(client_keys):
            slices = [function((server_value, key)) for key in tf.unstack(client_keys)]
            return _dataset_of(slices, element_type)

        return self._run_clients(select, per_client(keys, num_clients))

    def _run_clients(self, function: Callable, arguments: list) -> list:
        """Returns `function` of each client's argument, in cohort order.

        Raises:
          Exception: The exception of the first client, in cohort order, for which `function` fails.
        """
        results = [None] * len(arguments)
        failures = []
        # An idle thread takes the next client; `next` on a range's iterator is atomic.
        clients = iter(range(len(arguments)))

        def work():
            for i in clients:
                try:
                    results[i] = function(arguments[i])
                except BaseException as error:
                    failures.append((i, error))
                    collections.deque(clients, maxlen=0)

        helpers = min(self._num_threads, len(arguments)) - 1
        futures = [self._pool.submit(work) for _ in range(helpers)]
        try:
            work()
            concurrent.futures.wait(futures)
        finally:
            collections.deque(clients, maxlen=0)
        if failures:
            raise min(failures, key=lambda failure: failure[0])[1]
        return results


def _only_called(function):
    """Returns f for the form `x -> let y = f(x) in y` that the compiler gives a computation f."""
    blocks = tff.framework
    body = function.result
    if not isinstance(body, blocks.Block) or len(body.locals) != 1:
        return None
    name, call = body.locals[0]
    called = (
        isinstance(call, blocks.Call)
        and isinstance(call.function, blocks.CompiledComputation)
        and isinstance(call.argument, blocks.Reference)
        and call.argument.name == function.parameter_name
        and isinstance(body.result, blocks.Reference)
        and body.result.name == name
    )
    return call.function if called else None


def _stack(values: Sequence[Any]) -> Any:
    """Returns clients' values of one type as a value of tensors with a row for each client."""
    if type(values[0]) is tuple:
        return tuple([_stack(elements) for elements in zip(*values, strict=True)])
    return eager_tensors.lean(tf.stack(values))


def _dataset_of(elements: list, element_type: tff.Type) -> tf.Tensor:
    """Returns the variant tensor of a data set of values of `element_type`."""
    egest = egester(element_type)
    dataset = tensorflow_utils.make_data_set_from_elements(
        None, [egest(element) for element in elements], element_type
    )
    return tf.data.experimental.to_variant(dataset)
