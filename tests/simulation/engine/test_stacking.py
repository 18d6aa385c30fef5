"""`Federation.stack` as TFF runs it: this process stacks once what the worker appends."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from simulation import runtimes
from simulation.tff import interpreter as tff_interpreter
from tff_algos.method import TffFederation

_OF_A_CLIENT = tff.to_type(
    collections.OrderedDict(
        vector=[tff.TensorType(np.float32, [2, 3]), tff.TensorType(np.float32, [4])],
        loss=np.float32,
        number=np.int32,
    )
)


@tff.federated_computation(tff.FederatedType(_OF_A_CLIENT, tff.CLIENTS))
def stacked(values):
    return TffFederation().stack(values)


@tff.federated_computation(tff.FederatedType(_OF_A_CLIENT, tff.CLIENTS))
def stacked_part(values):
    """As the methods use it: a part of what clients give, after a function of theirs."""

    def doubled(v):
        return collections.OrderedDict(vector=[2 * x for x in v["vector"]], number=v["number"])

    return TffFederation().stack(TffFederation().map_clients(doubled, values).vector)


def _clients(number):
    rng = np.random.default_rng(0)
    return [
        collections.OrderedDict(
            vector=[rng.random((2, 3), np.float32), rng.random(4, np.float32)],
            loss=np.float32(k),
            number=np.int32(10 - k),
        )
        for k in range(number)
    ]


@pytest.mark.quick_cases("*-tff")
@pytest.mark.parametrize("runtime", ["tff", "native"])
@pytest.mark.parametrize("number", [0, 1, 20])
def test_rows_are_the_clients_in_cohort_order(runtime, number):
    clients = _clients(number)
    with runtimes.installed(runtime):
        got, part = stacked(clients), stacked_part(clients)
    assert got["vector"][0].shape == (number, 2, 3) and got["loss"].shape == (number,)
    for k, client in enumerate(clients):
        for i in (0, 1):
            np.testing.assert_array_equal(got["vector"][i][k], client["vector"][i])
            np.testing.assert_array_equal(part[i][k], 2 * client["vector"][i])
        assert got["loss"][k] == client["loss"] and got["number"][k] == client["number"]


def test_the_in_process_runtime_stacks_once(monkeypatch):
    calls = []
    stack = tff_interpreter._stack
    monkeypatch.setattr(tff_interpreter, "_stack", lambda v: calls.append(len(v)) or stack(v))
    with runtimes.installed("tff"):
        stacked(_clients(5)), stacked_part(_clients(5))
    # Once for each struct and each of its four tensors, not once a client.
    assert set(calls) == {5} and len(calls) == 1 + 4 + 1 + 1 + 2


def test_any_other_aggregate_runs_as_it_is_written():
    """Rows put before the others, and a name that says less than the operation does."""

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None]), np.float32)
    def prepend(rows, value):
        return tf.concat([value[None], rows], 0)

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None]), np.float32)
    def doubled(rows, value):
        return tf.concat([rows, 2 * value[None]], 0, name="append") + 0.0

    @tff.tensorflow.computation(
        tff.TensorType(np.float32, [None]), tff.TensorType(np.float32, [None])
    )
    def merge(a, b):
        return tf.concat([a, b], 0)

    same = tff.tensorflow.computation(lambda rows: rows, tff.TensorType(np.float32, [None]))
    empty = tff.tensorflow.computation(lambda: tf.zeros([0]))

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def both(values):
        return (
            tff.federated_aggregate(values, empty(), prepend, merge, same),
            tff.federated_aggregate(values, empty(), doubled, merge, same),
        )

    with runtimes.installed("tff"):
        reversed_rows, doubled_rows = both([np.float32(v) for v in (1, 2, 3)])
    np.testing.assert_array_equal(reversed_rows, [3, 2, 1])
    np.testing.assert_array_equal(doubled_rows, [2, 4, 6])
