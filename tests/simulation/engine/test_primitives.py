"""Rounds that say what no method of the suite's own says, by every runtime as NumPy has them."""

import collections
import contextlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tff_algos import process as process_lib
from tff_algos.method import ClientState, Method

# One of no examples, a single client, more and other ones.
SIZES = ((5, 3, 0), (2,), (4, 1, 4, 2))


class State(NamedTuple):
    weights: Any
    round_num: Any
    extra: Any


class Pair(NamedTuple):
    a: Any
    b: Any


def initialize():
    """What a user may write: arrays and numbers in the place of tensors."""
    return State((np.arange(2, dtype=np.float32),), 0, {"z": np.int64(4), "a": 1.5})


def number_of(data):
    return tf.cast(data.num_examples, tf.float32)


def after(state, weights):
    return state._replace(weights=(weights,), round_num=state.round_num + 1)


def take_apart(federation, state, clients):
    def work(x, data):
        return {"z": (x[0] + number_of(data), number_of(data), tf.ones([])), "a": tf.fill([2], 2.0)}

    found = federation.map_clients(work, federation.broadcast(state.weights), clients)
    values, twos = found
    moved, number = values[:2]
    (ones,) = federation.sum(values[2:])
    means = federation.mean((moved, twos), number)

    def step(state, ones, moved, twos):
        return after(state, moved), {"ones": ones, "two": twos[0]}

    state, metrics = federation.map_server(step, state, ones, *means)
    return state, metrics


def constants(federation, state, clients):
    message = federation.broadcast(federation.map_server(lambda s: (s.weights, 0.5, 2), state))

    def work(message, data):
        x, half, two = message
        return x[0] * half + tf.cast(two, tf.float32), 1.0

    total, ones = federation.sum(federation.map_clients(work, message, clients))
    return federation.map_server(
        lambda s, total, ones: (after(s, total), {"ones": ones, "seven": 7.0}), state, total, ones
    )


def nothing(federation, state, clients):
    of_server = federation.map_server(lambda s: (), state)
    shared = federation.broadcast(of_server), federation.broadcast(state.weights)
    found = federation.map_clients(
        lambda empty, x, data: Pair(x[0] + number_of(data), empty), *shared, clients
    )
    total, none = federation.sum(found)
    # A phase that tells the server nothing.
    federation.map_clients(lambda found, total: found.a - total, found, federation.broadcast(total))
    return federation.map_server(
        lambda s, total, none, rows: (after(s, total / 8), {"rows": tf.reduce_sum(rows.a)}),
        state,
        total,
        none,
        federation.stack(found),
    )


def alone(federation, state, clients):
    weights = federation.map_server(lambda s: s.weights[0] + 1, state)
    number = federation.map_server(lambda number: number + 1, state.round_num)
    one = federation.map_server(lambda s: 1.0, state)
    return State((weights,), number, state.extra), collections.OrderedDict(one=one)


def extremes(federation, state, clients):
    def work(data):
        lowest = tf.fill([2], np.float32(-np.inf))
        large = tf.fill([], np.int32(2**30))
        return Pair(lowest, large), tf.where(data.num_examples > 4, np.nan, number_of(data))

    found = federation.map_clients(work, clients)
    largest = federation.max(found)

    def step(state, largest, large, mean):
        metrics = {"large": large, "largest": largest[1], "index": largest[0].b, "mean": mean}
        return after(state, largest[0].a), metrics

    weightless = federation.map_clients(lambda data: 0.0 * number_of(data), clients)
    mean = federation.mean(federation.map_clients(number_of, clients), weightless)
    return federation.map_server(step, state, largest, federation.sum(found[0].b), mean)


def put_together(federation, state, clients, kept):
    found = federation.map_clients(
        lambda x, data, kept: x[0] + number_of(data) + kept.kept,
        federation.broadcast(state.weights),
        clients,
        kept,
    )
    visits = federation.map_clients(lambda visits: visits + 1, kept.visits)
    total = federation.sum((found, visits))
    weights = federation.map_server(lambda total: total[0] / 16, total)
    number = federation.map_server(lambda number: number + 1, state.round_num)
    metrics = collections.OrderedDict(
        visits=total[1], examples=federation.sum(clients.num_examples)
    )
    return State((weights,), number, state.extra), metrics, ClientState(visits, found)


def expected(name):
    """Returns weights and metrics of every round, and what each client has at the end."""
    x, rounds, kept = np.arange(2.0), [], {}
    for sizes in SIZES:
        n = np.array(sizes)
        number = len(n)
        if name == "take_apart":
            x = x + np.sum(n * n) / np.sum(n)
            metrics = {"ones": number, "two": 2}
        elif name == "constants":
            x = number * (x * 0.5 + 2)
            metrics = {"ones": number, "seven": 7}
        elif name == "nothing":
            total = number * x + np.sum(n)
            x, metrics = total / 8, {"rows": np.sum(total)}
        elif name == "alone":
            x, metrics = x + 1, {"one": 1}
        elif name == "extremes":
            large = np.full(number, 2**30, np.int32)
            x = np.full(2, -np.inf)
            metrics = {
                "large": large.sum(dtype=np.int32),
                "largest": np.max(np.where(n > 4, np.nan, n)),
                "index": 2**30,
                "mean": 0,
            }
        else:
            for k, of_client in enumerate(sizes):
                visits, value = kept.get(k, (0, np.zeros(2)))
                kept[k] = visits + 1, x + of_client + value
            here = [kept[k] for k in range(number)]
            x = np.sum([value for _, value in here], 0) / 16
            metrics = {"visits": sum(visits for visits, _ in here), "examples": np.sum(n)}
        rounds.append((x, metrics))
    return rounds, kept


METHODS = {
    "take_apart": Method(initialize, take_apart),
    "constants": Method(initialize, constants),
    "nothing": Method(initialize, nothing),
    "alone": Method(initialize, alone),
    "extremes": Method(initialize, extremes),
    "put_together": Method(initialize, put_together, client_state=lambda: tf.zeros([2])),
}
MODEL = tff_algos.Model(
    initialize().weights, tf.TensorSpec([None, 1]), tf.TensorSpec([None], tf.int32), None
)
COHORTS = [
    [
        tff_algos.batch_client(np.ones((n, 1), np.float32), np.zeros(n, np.int32), batch_size=2)
        for n in sizes
    ]
    for sizes in SIZES
]


@contextlib.contextmanager
def bound(process, way):
    """Yields a process as a runtime runs it, in chunks of so many clients where a number is."""
    runtime, _, size = way.partition("-")
    with runtimes.installed(runtime, 2):
        yield runtimes.bind(process, int(size) if size else None)


@pytest.mark.quick_cases("put_together-tff", "nothing-vectorized-2", "take_apart-per_client-1")
@pytest.mark.parametrize(
    "way", [*runtimes.RUNTIMES, "per_client-1", "per_client-2", "vectorized-2"]
)
@pytest.mark.parametrize("name", METHODS)
def test_is_what_numpy_computes(name, way):
    process = process_lib.to_process(METHODS[name], MODEL)
    rounds, kept_after = expected(name)
    stateful = process.method.client_state is not None
    kept, found = {}, []
    with bound(process, way) as running:
        state = running.initialize()
        for sizes, cohort in zip(SIZES, COHORTS, strict=True):
            states = (
                [kept.get(k, process.initial_client_state()) for k in range(len(sizes))]
                if (stateful)
                else None
            )
            output = running.next(state, cohort, *([states] if stateful else []))
            if stateful:
                kept.update(enumerate(output.client_states))
            state = output.state
            found.append(output)
    # Looked at only now, so that what later rounds would write into is seen.
    for r, (output, (weights, metrics)) in enumerate(zip(found, rounds, strict=True)):
        np.testing.assert_allclose(output.state.weights[0], weights, rtol=1e-6)
        assert output.state.round_num == r + 1
        assert output.state.extra["z"] == 4 and output.state.extra["a"] == 1.5
        assert sorted(output.metrics) == sorted(metrics)
        for key, value in metrics.items():
            np.testing.assert_allclose(output.metrics[key], value, rtol=1e-6)
    assert kept.keys() == kept_after.keys()
    for k, (visits, value) in kept_after.items():
        assert kept[k].visits == visits
        np.testing.assert_allclose(kept[k].kept, value, rtol=1e-6)
