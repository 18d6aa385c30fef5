"""The words of a round carried out at once, client by client: no graph is traced, no TFF involved.

The third spelling of `tff_algos.method.Federation`, beside TFF's and the vectorised one, and the
plainest. It is for tests that build a method many times and run each build for a moment.
"""

import contextlib
import functools

import tensorflow as tf

from tff_algos import process


class Each:
    """A value of each client, in cohort order; fields are selected as TFF's values allow."""

    def __init__(self, values):
        self.values = list(values)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Each(v[name] if isinstance(v, dict) else getattr(v, name) for v in self.values)

    def __getitem__(self, key):
        def select(value):
            named = isinstance(key, str) or not isinstance(value, dict)
            return value[key] if named else list(value.values())[key]

        return Each(map(select, self.values))


class EagerFederation:
    """The words of `tff_algos.method.Federation` over lists of clients."""

    def __init__(self, num_clients: int):
        self._num_clients = num_clients

    def broadcast(self, value):
        return Each([value] * self._num_clients)

    def map_clients(self, fn, *values):
        return Each(fn(*arguments) for arguments in self._rows(values))

    def map_server(self, fn, *values):
        return fn(*values)

    def mean(self, value, weight):
        weights = weight.values
        total = sum(weights)
        rows = [
            tf.nest.map_structure(lambda v, w=w: w * v, row)
            for row, w in zip(self._rows(value), weights, strict=True)
        ]
        return tf.nest.map_structure(lambda v: tf.math.divide_no_nan(v, total), self._fold(rows))

    def sum(self, value):
        return self._fold(self._rows(value))

    def max(self, value):
        return self._fold(self._rows(value), tf.maximum)

    def stack(self, value):
        return tf.nest.map_structure(lambda *v: tf.stack(v), *self._rows(value))

    def _fold(self, rows, operation=tf.add):
        both = functools.partial(tf.nest.map_structure, operation)
        return functools.reduce(both, rows)

    def _rows(self, value):
        """Returns for each client what it has of a structure of client values."""
        return [
            tf.nest.map_structure(lambda v, k=k: v.values[k], value)
            for k in range(self._num_clients)
        ]


@contextlib.contextmanager
def _eagerly():
    """Runs `tf.function`s as Python."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def rounds(method, cohorts, kept):
    """Yields the state after each round.

    Args:
      method: A `tff_algos.method.Method`.
      cohorts: For each round, the `ClientData` of its clients.
      kept: By client, its `ClientState`; holds those of after the round.
    """
    state = method.initialize()
    for clients in cohorts:
        names = [int(c.index) for c in clients]
        with _eagerly():
            given = [Each(tf.nest.map_structure(tf.constant, c) for c in clients)]
            if method.client_state is not None:
                first = process.initial_client_state(method)
                given.append(
                    Each(
                        tf.nest.map_structure(tf.convert_to_tensor, kept.get(k, first))
                        for k in names
                    )
                )
            federation = EagerFederation(len(clients))
            state, _, *after = method.next_round(federation, state, *given)
            if after:
                kept.update(zip(names, after[0].values, strict=True))
        yield state


class Answered:
    """The words of a round whose clients have answered already when it begins."""

    def __init__(self, update):
        self._update = update

    def broadcast(self, value):
        return value

    def map_server(self, fn, *values):
        return fn(*values)

    def map_clients(self, fn, *values):
        return self._update

    def stack(self, value):
        return value

    def sum(self, value):
        return tf.nest.map_structure(lambda v: tf.reduce_sum(v, 0), value)
