"""Both runtimes agree, `tff` interprets what TFF compiles, and no worker stays behind."""

import asyncio
import collections
import concurrent.futures
import contextlib
import gc
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from typing import Any, NamedTuple

import attrs
import numpy as np
import psutil
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow_federated.python.core.impl.computation import computation_impl

from simulation import runtimes
from simulation.device import streams
from simulation.tff import context as tff_context
from simulation.tff import graphs as tff_graphs
from simulation.tff import native_worker
from simulation.tff import streams as tff_streams
from tests.simulation import namespaces

_REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def native():
    with native_worker.native_context() as context:
        yield context


@pytest.fixture(scope="module")
def in_process():
    with contextlib.closing(tff_context.InProcessContext(2)) as context:
        yield context


@pytest.fixture(params=["tff", "native"])
def either(request):
    """Runs the test once in each runtime."""
    fixture = {"tff": "in_process", "native": "native"}[request.param]
    with using(request.getfixturevalue(fixture)):
        yield request.param


def using(context):
    return tff.framework.get_context_stack().install(context)


def run_in(context, computation, *args):
    with using(context):
        return computation(*args)


def assert_same(actual, expected, where="result"):
    """Same containers, dtypes and, to 1e-5, values."""
    assert type(actual) is type(expected), where
    if isinstance(expected, collections.abc.Mapping):
        assert list(actual) == list(expected), where
        for name in expected:
            assert_same(actual[name], expected[name], f"{where}.{name}")
    elif attrs.has(type(expected)):
        for name in [field.name for field in attrs.fields(type(expected))]:
            assert_same(getattr(actual, name), getattr(expected, name), f"{where}.{name}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), where
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_same(a, e, f"{where}[{i}]")
    elif isinstance(expected, bytes):
        assert actual == expected, where
    else:
        assert actual.dtype == expected.dtype, where
        assert actual.shape == expected.shape, where
        if np.issubdtype(expected.dtype, np.number):
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=where)
        else:
            np.testing.assert_array_equal(actual, expected, err_msg=where)


# A process of several intrinsics: NamedTuple state at the server, an attrs class as state of each
# client, arrays of unknown first dimensions as data.


class Data(NamedTuple):
    x: Any
    y: Any
    mask: Any


class State(NamedTuple):
    weights: Any
    round_num: Any


@attrs.define
class ClientState:
    momentum: Any
    visits: Any


STATE = tff.types.to_type(State((np.float32, (3,)), np.int32))
CLIENT_STATE = tff.types.to_type(ClientState((np.float32, (3,)), np.int32))
DATA = tff.types.to_type(
    Data((np.float32, (None, None, 3)), (np.float32, (None, None)), (np.float32, (None, None)))
)


@tf.function
def train(weights, state, data):
    initial, momentum = weights, state.momentum
    for step in tf.range(tf.shape(data.x)[0]):
        x, mask = data.x[step], data.mask[step]
        error = mask * (tf.linalg.matvec(x, weights) - data.y[step])
        gradient = tf.linalg.matvec(x, error, transpose_a=True)
        momentum = 0.5 * momentum + gradient / tf.maximum(tf.reduce_sum(mask), 1.0)
        weights -= 0.1 * momentum
    return weights - initial, ClientState(momentum, state.visits + 1), tf.reduce_sum(data.mask)


def build_process():
    @tff.tensorflow.computation
    def zero_state():
        return State(tf.zeros([3]), tf.constant(0))

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(zero_state, tff.SERVER)

    @tff.tensorflow.computation(STATE)
    def weights_of(state):
        return state.weights

    @tff.tensorflow.computation(STATE.weights, CLIENT_STATE, DATA)
    def client_work(weights, state, data):
        delta, state, examples = train(weights, state, data)
        return collections.OrderedDict(delta=delta, state=state, examples=examples)

    @tff.tensorflow.computation
    def lowest():
        return tf.constant(-1e9)

    @tff.tensorflow.computation(np.float32, np.float32)
    def larger(x, y):
        return tf.maximum(x, y)

    @tff.tensorflow.computation(np.float32)
    def negative(x):
        return -x

    @tff.tensorflow.computation(STATE, STATE.weights, np.float32)
    def server_work(state, delta, rate):
        # No clients, or clients of no examples, make the mean not finite.
        finite = tf.where(tf.math.is_finite(delta), delta, 0.0)
        return State(state.weights + rate * finite, state.round_num + 1)

    @tff.federated_computation(
        tff.FederatedType(STATE, tff.SERVER),
        tff.FederatedType(CLIENT_STATE, tff.CLIENTS),
        tff.FederatedType(DATA, tff.CLIENTS),
    )
    def next_fn(state, client_states, data):
        weights = tff.federated_broadcast(tff.federated_map(weights_of, state))
        result = tff.federated_map(client_work, (weights, client_states, data))
        delta = tff.federated_mean(result.delta, result.examples)
        rate = tff.federated_value(np.float32(0.5), tff.SERVER)
        metrics = tff.federated_zip(
            collections.OrderedDict(
                examples=tff.federated_sum(result.examples),
                # The identity of max is lowest(), of which "report" shows the negative.
                largest=tff.federated_aggregate(
                    result.examples, lowest(), larger, larger, negative
                ),
            )
        )
        return tff.federated_map(server_work, (state, delta, rate)), result.state, metrics

    return tff.templates.IterativeProcess(initialize, next_fn)


def client_arrays(seed, steps):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(steps, 2, 3)).astype(np.float32)
    y = rng.normal(size=(steps, 2)).astype(np.float32)
    mask = np.ones((steps, 2), np.float32)
    mask[-1:, 1] = 0.0
    return Data(x, y, mask)


PROCESS = build_process()


def run_process(context, steps_per_client, rounds=3):
    data = [client_arrays(seed, steps) for seed, steps in enumerate(steps_per_client)]
    client_states = [ClientState(np.zeros(3, np.float32), 0) for _ in data]
    with using(context):
        state = PROCESS.initialize()
        for _ in range(rounds):
            state, client_states, metrics = PROCESS.next(state, client_states, data)
    return state, client_states, metrics


@pytest.mark.parametrize("steps", [(3, 1, 0, 5, 2), (2,)], ids=["five", "one"])
def test_runtimes_agree_on_a_process_with_client_state(in_process, native, steps):
    actual = run_process(in_process, steps)
    assert_same(actual, run_process(native, steps))
    state, client_states, metrics = actual
    assert isinstance(state, State) and state.round_num == 3
    assert [type(s) for s in client_states] == [ClientState] * len(steps)
    assert all(s.visits == 3 for s in client_states)
    assert metrics["examples"] == sum(max(2 * n - 1, 0) for n in steps)
    assert metrics["largest"] == -max(max(2 * n - 1, 0) for n in steps)
    assert np.all(state.weights)


def test_no_clients_leave_aggregates_at_zero(in_process):
    # TFF's worker runs this as well, but fails to return the empty list of client states.
    state, client_states, metrics = run_process(in_process, (), rounds=2)
    np.testing.assert_array_equal(state.weights, [0, 0, 0])
    assert state.round_num == 2
    assert client_states == []
    assert metrics == {"examples": 0.0, "largest": np.float32(1e9)}


def stock_process():
    def model_fn():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer((4,)),
                tf.keras.layers.Dense(3, kernel_initializer="zeros"),
            ]
        )
        return tff.learning.models.from_keras_model(
            model,
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)),
            metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
        )

    return tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_adam(0.1),
    )


def test_runtimes_agree_on_stock_fed_avg_over_tf_data(in_process, native):
    process = stock_process()
    rng = np.random.default_rng(0)
    datasets = [
        tf.data.Dataset.from_tensor_slices(
            (rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 3, n).astype(np.int32))
        ).batch(4)
        for n in (9, 1, 4)
    ]

    def run(context):
        with using(context):
            state = process.initialize()
            for _ in range(2):
                output = process.next(state, datasets)
                state = output.state
            return output, process.get_model_weights(state)

    (actual, weights), (expected, expected_weights) = run(in_process), run(native)
    assert isinstance(actual, tff.learning.templates.LearningProcessOutput)
    assert_same(actual.metrics, expected.metrics)
    assert_same(weights, expected_weights)
    # Equal inputs give equal steps; Adam's first ones are the size of its rate.
    assert np.max(np.abs(weights.trainable[0])) > 0.05
    assert_same(actual.state, expected.state)


# Threads.


@tf.function
def spin(turns):
    """Returns 0 after a while, so that clients can end in another order than they start."""
    x = tf.constant(0.0)
    for _ in tf.range(turns):
        x = tf.sin(x)
    return x


@tff.tensorflow.computation(np.float32, np.int32)
def slow_identity(x, turns):
    return x + spin(turns)


@tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS)
)
def slow_sum(values, turns):
    return tff.federated_sum(tff.federated_map(slow_identity, (values, turns)))


@tff.tensorflow.computation(np.float32, np.int32)
def slow_pair(x, turns):
    x += spin(turns)
    return x, 2 * x


@tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS)
)
def sum_and_kept(values, turns):
    pairs = tff.federated_map(slow_pair, (values, turns))
    return tff.federated_sum(pairs[0]), pairs[1]


@tff.tensorflow.computation(np.float64, np.float32)
def append_digit(number, digit):
    return 10 * number + tf.cast(digit, tf.float64)


@tff.tensorflow.computation(np.float64, np.float64)
def no_merge(x, y):
    return x + y + 0.5


@tff.federated_computation(
    tff.FederatedType(np.float32, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS)
)
def digits(values, turns):
    values = tff.federated_map(slow_identity, (values, turns))
    identity = tff.tensorflow.computation(lambda x: x, np.float64)
    zero = tff.tensorflow.computation(lambda: tf.constant(0.0, tf.float64))
    return tff.federated_aggregate(values, zero(), append_digit, no_merge, identity)


def test_sum_over_no_clients(either):
    assert slow_sum([], []) == 0.0
    assert digits([], []) == 0.0


@pytest.mark.parametrize("number", [0, 1, 7])
def test_what_clients_keep_comes_in_cohort_order_beside_a_sum(in_process, number):
    values = [np.float32(k) for k in range(number)]
    turns = [3000 - 400 * k for k in range(number)]
    with using(in_process):
        total, kept = sum_and_kept(values, turns)
    assert total == sum(values)
    assert kept == [2 * v for v in values]


def test_folds_in_cohort_order_whatever_the_threads():
    rng = np.random.default_rng(0)
    values = [np.float32(v) for v in rng.normal(size=12) * 10.0 ** rng.integers(-4, 4, 12)]
    turns = [3000 - 250 * i for i in range(12)]
    expected = np.float32(0)
    for value in values:
        expected = np.float32(expected + value)
    assert sum(sorted(values), np.float32(0)) != expected, "the sum must depend on the order"
    for threads in (1, 2, 5):
        with runtimes.installed("tff", threads):
            assert slow_sum(values, turns).tobytes() == expected.tobytes()
            assert digits([1.0, 2.0, 3.0, 4.0], [3000, 2000, 1000, 0]) == 1234.0


def test_clients_run_at_once():
    meeting = threading.Barrier(2)

    def meet(x):
        meeting.wait(timeout=20)
        return x

    @tff.tensorflow.computation(np.int32)
    def client(x):
        return tf.ensure_shape(tf.py_function(meet, [x], tf.int32), [])

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def everyone(x):
        return tff.federated_map(client, x)

    with runtimes.installed("tff", 2):
        assert everyone([1, 2]) == [1, 2]


def test_bits_of_a_process_do_not_depend_on_threads():
    results = []
    for threads in (1, 2):
        with contextlib.closing(tff_context.InProcessContext(threads)) as context:
            results.append(run_process(context, (3, 1, 4, 1, 5, 9, 2, 6)))
    (one, one_clients, _), (two, two_clients, _) = results
    assert one.weights.tobytes() == two.weights.tobytes()
    assert [c.momentum.tobytes() for c in one_clients] == [
        c.momentum.tobytes() for c in two_clients
    ]


def test_error_of_the_first_client_that_fails_is_raised_and_the_context_lives_on():
    @tff.tensorflow.computation(np.int32)
    def check(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 3, "too large")]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def everyone(x):
        return tff.federated_map(check, x)

    with runtimes.installed("tff", 2):
        for _ in range(20):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"too large.*\[77\]"):
                everyone([2, 2, 77, 88, 1, 99])
        assert everyone([2]) == [2]


# A graph is a pure function.


def test_variables_are_not_shared_between_clients():
    @tff.tensorflow.computation(np.int32)
    def count(x):
        total = tf.Variable(x, name="total")

        @tf.function
        def add():
            for _ in tf.range(300):
                total.assign_add(x)
            return total.read_value()

        return add()

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def everyone(x):
        return tff.federated_map(count, x)

    clients = list(range(40))
    with runtimes.installed("tff", 4):
        for _ in range(3):
            assert everyone(clients) == [301 * x for x in clients]


def test_lookup_tables_are_not_shared_between_clients():
    @tff.tensorflow.computation(np.int32)
    def look_up(x):
        keys, values = tf.constant(["a", "b"]), tf.stack([x, 2 * x])
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(keys, values), default_value=-1
        )
        return table.lookup(tf.constant(["b", "c"]))

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def everyone(x):
        return tff.federated_map(look_up, x)

    with runtimes.installed("tff", 2):
        for clients in ([1, 2, 3, 4], [5, 6]):
            np.testing.assert_array_equal(everyone(clients), [[2 * x, -1] for x in clients])


def test_a_resource_that_clients_would_share_is_refused(in_process):
    @tff.tensorflow.computation(np.int32)
    def queued(x):
        queue = tf.queue.FIFOQueue(1, [tf.int32], shapes=[()])
        with tf.control_dependencies([queue.enqueue(x)]):
            return queue.dequeue()

    with pytest.raises(NotImplementedError, match="FIFOQueueV2"):
        run_in(in_process, queued, 1)


def test_functions_of_one_name_in_two_computations_are_kept_apart(in_process):
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def total(dataset):
        # Compilation inlines other functions, but not those of data sets.
        return dataset.reduce(0.0, lambda x, y: x + y + 7.0)

    def replaced(proto):
        graph_def = tf.compat.v1.GraphDef.FromString(proto.tensorflow.graph_def.value)
        changed = 0
        for function in graph_def.library.function:
            for node in function.node_def:
                if node.op == "Const" and list(node.attr["value"].tensor.float_val) == [7.0]:
                    node.attr["value"].tensor.float_val[0] = 100.0
                    changed += 1
        assert changed == 1
        copy = type(proto)()
        copy.CopyFrom(proto)
        copy.tensorflow.graph_def.value = graph_def.SerializeToString()
        return copy

    other = computation_impl.ConcreteComputation(
        computation_proto=replaced(computation_impl.ConcreteComputation.get_proto(total)),
        context_stack=tff.framework.get_context_stack(),
        annotated_type=total.type_signature,
    )
    with using(in_process):
        for _ in range(2):
            assert total([1.0, 2.0]) == 17.0
            assert other([1.0, 2.0]) == 203.0


# Values.


def test_result_kinds_are_those_of_tff(in_process, native):
    @tff.tensorflow.computation(np.int32, (np.float32, (None,)))
    def kinds(x, vector):
        return collections.OrderedDict(
            scalar=x,
            vector=vector,
            same=x,
            flag=x > 0,
            text=tf.constant("ab"),
            texts=tf.constant(["a", "b"]),
            wide=tf.cast(x, tf.int64),
            empty=(),
            pair=[x, (x, State(x, x))],
        )

    args = (3, [1.0, 2.0])
    actual = run_in(in_process, kinds, *args)
    assert_same(actual, run_in(native, kinds, *args))
    assert type(actual["scalar"]) is np.int32 and type(actual["text"]) is bytes


def test_arguments_are_accepted_in_many_forms(either):
    @tff.tensorflow.computation(STATE)
    def total(state):
        return tf.reduce_sum(state.weights) + tf.cast(state.round_num, tf.float32)

    weights = np.array([1, 2, 3], np.float32)
    for state in (
        State(weights, np.int32(4)),
        State(tf.constant(weights), tf.constant(4)),
        State(tf.Variable(weights), 4),
        State([1.0, 2.0, 3.0], 4),
        collections.OrderedDict(weights=weights, round_num=4),
    ):
        assert total(state) == 10.0
    assert total(weights=weights, round_num=4) == 10.0


def test_names_not_positions_decide_where_a_mapping_goes(in_process):
    @tff.tensorflow.computation(collections.OrderedDict(a=np.int32, b=np.int32))
    def difference(arg):
        return arg["a"] - arg["b"]

    assert run_in(in_process, difference, {"b": 1, "a": 5}) == 4


def test_results_share_no_memory_with_arguments(in_process):
    identity = tff.tensorflow.computation(lambda x: x, (np.float32, (4,)))
    for argument in (np.zeros(4, np.float32), tf.zeros(4)):
        result = run_in(in_process, identity, argument)
        result[0] = 1.0
        assert argument[0] == 0.0
    argument = np.zeros(4, np.float32)
    result = run_in(in_process, identity, argument)
    argument[1] = 1.0
    assert result[1] == 0.0


def test_sequences_in_and_out(either):
    element = collections.OrderedDict(b=np.int32, a=np.int32)

    @tff.tensorflow.computation(tff.SequenceType(element))
    def doubled(dataset):
        return dataset.map(lambda e: collections.OrderedDict(b=2 * e["b"], a=e["a"]))

    dataset = tf.data.Dataset.range(3).map(
        lambda i: collections.OrderedDict(b=tf.cast(i, tf.int32), a=10 + tf.cast(i, tf.int32))
    )
    for argument in (dataset, [collections.OrderedDict(b=i, a=10 + i) for i in range(3)]):
        result = list(doubled(argument))
        assert [list(e) for e in result] == [["b", "a"]] * 3
        assert [(e["b"].numpy(), e["a"].numpy()) for e in result] == [(0, 10), (2, 11), (4, 12)]


def test_a_variable_read_after_a_data_set_loop_sees_its_result(either):
    @tff.tensorflow.computation(tff.SequenceType(np.int32))
    def total(dataset):
        result = tf.Variable(100)

        @tf.function
        def add():
            for x in iter(dataset):
                result.assign_add(x)
            return result.read_value()

        return add()

    assert total([1, 2, 3]) == 106


@tff.tensorflow.computation((np.float32, (3, 2)), np.int32)
def row(matrix, i):
    # In the order of the names, since TFF's worker confuses the two if that of the type differs.
    return collections.OrderedDict(index=i, row=matrix[i])


@tff.federated_computation(
    tff.FederatedType((np.int32, (2,)), tff.CLIENTS),
    tff.FederatedType((np.float32, (3, 2)), tff.SERVER),
)
def rows(keys, matrix):
    return tff.federated_select(keys, tff.federated_value(3, tff.SERVER), matrix, row)


def test_federated_select(either):
    matrix = np.arange(6, dtype=np.float32).reshape(3, 2)
    result = rows([[2, 0], [1, 1], [0, 1]], matrix)
    assert [[int(e["index"]) for e in client] for client in result] == [[2, 0], [1, 1], [0, 1]]
    np.testing.assert_array_equal(next(iter(result[0]))["row"], [4.0, 5.0])


@tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS),
    tff.FederatedType(np.int32, tff.CLIENTS, all_equal=True),
)
def mixed(x, same):
    one = tff.federated_value(1, tff.CLIENTS)
    three = tff.federated_eval(tff.tensorflow.computation(lambda: tf.constant(3)), tff.CLIENTS)
    add = tff.tensorflow.computation(lambda a, b: a + b, [np.int32, np.int32])
    return (
        tff.federated_zip((x, one)),
        tff.federated_map(add, (same, one)),
        tff.federated_map(add, (x, same)),
        three,
        same,
        tff.federated_sum(same),
        tff.federated_min(x),
    )


def test_values_that_are_equal_at_all_clients(in_process, native):
    actual = run_in(in_process, mixed, [5, 6], 10)
    assert_same(actual, run_in(native, mixed, [5, 6], 10))
    zipped, _, sums, three, same, total, least = actual
    assert (zipped, sums, three) == ([(5, 1), (6, 1)], [15, 16], [3, 3])
    assert (same, total, least) == (10, 20, 5)


# Errors.


@pytest.mark.parametrize(
    ("state", "client_states", "message"),
    [
        (State(np.zeros(3), 0), [], r"state\.weights.*float64"),
        (State(np.zeros(4, np.float32), 0), [], r"state\.weights.*shape \[4\]"),
        (State(tf.zeros([3], tf.float64), 0), [], r"weights.*float64"),
        (State("no", 0), [], r"weights.*str"),
        (State(None, 0), [], r"weights.*NoneType"),
        (np.zeros(3, np.float32), [], "structure"),
        ({"weights": np.zeros(3, np.float32)}, [], "structure"),
        ({"weights": np.zeros(3, np.float32), "other": 0}, [], "structure"),
        (ClientState(np.zeros(3, np.float32), 0), [], "structure"),
        (State(np.zeros(3, np.float32), 0.5), [], r"round_num.*float"),
        (
            State(np.zeros(3, np.float32), 0),
            ClientState(0, 0),
            "client_states must be a list",
        ),
        (State(np.zeros(3, np.float32), 0), [State(0, 0)], "structure"),
    ],
)
def test_wrong_arguments_are_named(in_process, state, client_states, message):
    with pytest.raises(TypeError, match=message):
        run_in(in_process, PROCESS.next, state, client_states, [])


def test_cohorts_of_different_sizes_are_refused(in_process):
    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        run_in(in_process, slow_sum, [1.0], [1, 2])


def test_a_data_set_of_other_elements_is_refused(in_process):
    total = tff.tensorflow.computation(
        lambda data: data.reduce(0, lambda a, b: a + b), tff.SequenceType(np.int32)
    )
    with using(in_process):
        assert total(tf.data.Dataset.from_tensor_slices([1, 2])) == 3
        with pytest.raises(TypeError, match="float32"):
            total(tf.data.Dataset.from_tensor_slices([1.0, 2.0]))
        with pytest.raises(TypeError, match="Dataset"):
            total(3)


def test_an_unknown_intrinsic_is_named(in_process):
    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def secure(x):
        return tff.federated_secure_sum_bitwidth(x, 3)

    with pytest.raises(NotImplementedError, match='"federated_secure_sum_bitwidth"'):
        run_in(in_process, secure, [1])


def test_unknown_runtime_and_bad_thread_counts_are_refused():
    with pytest.raises(ValueError, match=r'"jax".*tff, native'), runtimes.installed("jax"):
        pass
    with pytest.raises(ValueError, match="num_threads"), runtimes.installed("tff", 0):
        pass


# What runs where.


def workers():
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.name() == "worker_binary"
    ]


def test_tff_interprets_the_computation_and_starts_no_worker():
    before = {process.pid for process in workers()}
    with runtimes.installed("tff") as context:
        assert tff.framework.get_context_stack().current is context
        slow_sum([1.0, 2.0], [0, 0])
        assert context.intrinsic_calls == {
            "federated_zip_at_clients": 1,
            "federated_map": 1,
            "federated_aggregate": 1,
        }
        assert {process.pid for process in workers()} == before


@pytest.mark.parametrize("runtime", ["tff", "vectorized"])
def test_federated_programs_of_tff_run_in_this_process(runtime):
    """What `tff.learning.programs` ask of a context, and do with what computations give."""

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(values)

    released = tff.program.MemoryReleaseManager()

    async def program():
        tff.program.check_in_federated_context()
        value = await tff.program.materialize_value(total([1, 2]))
        await released.release(total([value, 4]), "total")

    with runtimes.installed(runtime):
        asyncio.run(program())
    assert released.values() == {"total": 7}


def test_installing_a_runtime_is_undone():
    current = tff.framework.get_context_stack().current
    with contextlib.suppress(KeyError), runtimes.installed("tff"):
        raise KeyError
    assert tff.framework.get_context_stack().current is current


def test_runtimes_and_supervisor_import_no_tensorflow():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from simulation import runtimes\nfrom simulation.tff import native_worker\n"
        "assert not {'tensorflow', 'tensorflow_federated', 'numpy', 'grpc'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(_REPOSITORY)], check=True)


def test_device_description_names_the_device():
    gpus = len(tf.config.list_physical_devices("GPU"))
    expected = f"x{gpus}" if gpus else f"CPU ({len(os.sched_getaffinity(0))} cores)"
    assert runtimes.device_description().endswith(expected)


# Memory.


def test_results_are_let_go_of_as_they_are_taken():
    class Result:
        pass

    alive = weakref.WeakSet()
    made = []

    def function(k):
        assert not alive
        result = Result()
        result.k = k
        alive.add(result)
        made.append(k)
        return result

    stream = streams.Stream(
        function, list(range(6)), {"whole": lambda r: r, "number": lambda r: r.k}
    )
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        stream.start(pool, 1)
        taken = []
        for result in stream.values("whole"):
            taken.append(result.k)
            assert made == taken, "one thread makes what is taken next"
            del result
        stream.end()
    assert taken == list(range(6))
    assert list(stream.values("number")) == list(range(6))


def test_who_takes_results_is_one_of_the_threads():
    both = threading.Barrier(2)
    threads = set()

    def function(k):
        both.wait(timeout=30)
        threads.add(threading.get_ident())
        return k

    stream = streams.Stream(function, list(range(6)), {"whole": lambda r: r})
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        stream.start(pool, 2)
        assert list(stream.values("whole")) == list(range(6))
        stream.end()
    assert len(threads) == 2 and threading.get_ident() in threads


def test_a_failure_comes_when_it_is_its_clients_turn():
    def function(k):
        if k == 3:
            raise ValueError("client 3")
        return k

    for num_threads in (1, 2):
        stream = streams.Stream(function, list(range(6)), {"whole": lambda r: r})
        taken = []
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            stream.start(pool, num_threads)
            with pytest.raises(ValueError, match="client 3"):
                taken.extend(stream.values("whole"))
            stream.end()
        assert taken == [0, 1, 2]


def test_only_what_goes_into_aggregates_alone_is_folded_as_it_comes():
    def streamed(computation):
        native = tff.backends.native.desugar_and_transform_to_native(computation)
        return tff_streams.streamed(native.to_building_block().result)

    assert streamed(slow_sum), "a sum of what clients computed"
    (of_map,) = streamed(sum_and_kept).values()
    assert len(of_map.taken) == 2 and len(of_map.gathered) == 1, "what clients keep is a result"
    assert not streamed(PROCESS.next), "its clients' states come of a second map"


@pytest.mark.long
def test_repeated_calls_keep_nothing():
    data = [client_arrays(seed, 2) for seed in range(4)]
    with contextlib.closing(tff_context.InProcessContext(2)) as context, using(context):
        state = PROCESS.initialize()
        client_states = [ClientState(np.zeros(3, np.float32), 0) for _ in data]

        def rounds(n):
            for _ in range(n):
                PROCESS.next(state, client_states, data)
            gc.collect()
            return (
                len(context._compiled),
                len(tff_graphs._graphs),
                len(atomic_function.RUNTIME_FUNCTION_REFS),
                sum(type(o).__name__ == "EagerTensor" for o in gc.get_objects()),
            )

        before = rounds(20)
        memory = psutil.Process().memory_info().rss
        blocks = sys.getallocatedblocks()
        assert rounds(400) == before
        # Each tensor of each client call would be one more.
        assert sys.getallocatedblocks() - blocks < 400
        # One client's results held for each of the 1600 client calls would be more.
        assert psutil.Process().memory_info().rss - memory < 8e6


def test_caches_go_with_their_computations_and_never_take_one_for_another():
    sizes = []

    def adding(i):
        return tff.tensorflow.computation(lambda x: x + i, np.int32)

    with contextlib.closing(tff_context.InProcessContext(1)) as context, using(context):
        for i in range(12):
            computation = adding(i)
            assert computation(100) == 100 + i
            assert context._compiled.keys() >= {id(computation)}
            # The next computation may well get this one's id.
            del computation
            gc.collect()
            assert all(id(held()) == key for key, (held, _) in context._compiled.items())
            sizes.append(
                (
                    len(context._compiled),
                    len(tff_graphs._graphs),
                    len(atomic_function.RUNTIME_FUNCTION_REFS),
                )
            )
    assert sizes[1:] == sizes[:-1]
    assert sizes[-1][0] == 0


# TFF's worker.


def fake_worker(path, script):
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


def test_a_missing_worker_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tff, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(RuntimeError, match=r"missing.*worker_binary"):
        with native_worker.native_context():
            pass


def test_a_worker_that_does_not_start_is_retried_and_its_output_shown(monkeypatch, tmp_path):
    starts = tmp_path / "starts"
    binary = fake_worker(tmp_path / "binary", f"echo $1 >> {starts}\necho out of luck\nexit 1\n")
    monkeypatch.setattr(native_worker, "_worker_binary", lambda: binary)
    with pytest.raises(RuntimeError, match="out of luck"), native_worker.native_context():
        pass
    ports = starts.read_text().split()
    assert len(ports) == 3
    assert all(port.startswith("--port=") for port in ports)


def test_a_worker_that_starts_at_the_second_attempt_is_used(monkeypatch, tmp_path):
    starts, real = tmp_path / "starts", native_worker._worker_binary()
    script = f'test -e {starts} && exec {real} "$@"\ntouch {starts}\nexit 1\n'
    binary = fake_worker(tmp_path / "binary", script)
    monkeypatch.setattr(native_worker, "_worker_binary", lambda: binary)
    with native_worker.native_context(num_threads=1) as context:
        assert run_in(context, slow_sum, [1.0, 2.0], [0, 0]) == 3.0


@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_a_call_after_the_worker_has_died_fails_soon(victim):
    before = {process.pid for process in workers()}
    with runtimes.installed("native"):
        assert slow_sum([1.0, 2.0], [0, 0]) == 3.0
        (worker,) = [process for process in workers() if process.pid not in before]
        (worker if victim == "worker" else worker.parent()).kill()
        start = time.monotonic()
        with pytest.raises(RuntimeError, match="worker has ended"):
            slow_sum([1.0, 2.0], [0, 0])
        assert time.monotonic() - start < 20
        with contextlib.suppress(psutil.NoSuchProcess):
            # Nobody reaps an orphan in a container without an init process.
            while worker.status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() - start < 20
                time.sleep(0.05)


_MARK = "FEDOPT_TEST_WORKER"
# What each child is sent when it is ready.
_ENDINGS = {
    "succeed": None,
    "raise": None,
    "interrupt": signal.SIGINT,
    "terminate": signal.SIGTERM,
    "hang up": signal.SIGHUP,
    "kill": signal.SIGKILL,
    "fork": signal.SIGKILL,
    "no namespace": None,
}


class Child:
    """A process that uses TFF's worker, and what it starts, found by a mark in its environment."""

    def __init__(self, mode, folder):
        self.mark = uuid.uuid4().hex
        self.ready = folder / f"{mode}.ready"
        self.output = folder / f"{mode}.out"
        as_on_another_kernel = [sys.executable, namespaces.__file__]
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [
                    *(as_on_another_kernel if mode == "no namespace" else []),
                    sys.executable,
                    str(pathlib.Path(__file__).parent / "native_worker_child.py"),
                    str(_REPOSITORY),
                    str(self.ready),
                    mode,
                ],
                env={**os.environ, _MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def descendants(self):
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != self.process.pid and process.environ().get(_MARK) == self.mark:
                    found.append(process)
        return found

    def worker_and_supervisor(self):
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                if process.name() == "worker_binary" or any(
                    part.endswith("supervisor.py") for part in process.cmdline()
                ):
                    found.append(process)
        return found


@pytest.fixture(scope="module")
def children(request, tmp_path_factory):
    """The children of all chosen tests, started together: most of their time is TFF's import."""
    folder = tmp_path_factory.mktemp("children")
    chosen = [item for item in request.session.items if "children" in item.fixturenames]
    started = {mode: Child(mode, folder) for mode in (i.callspec.params["mode"] for i in chosen)}
    yield started
    for child in started.values():
        for process in [child.process, *child.descendants()]:
            with contextlib.suppress(psutil.Error):
                process.kill()
        child.process.wait()


@pytest.mark.long
@pytest.mark.parametrize("mode", _ENDINGS)
def test_no_worker_outlives_its_parent(children, mode):
    child = children[mode]
    if mode == "no namespace" and not namespaces.are_allowed():
        pytest.skip("so it is here for every test")
    deadline = time.monotonic() + 120
    while not child.ready.exists() and child.process.poll() is None:
        assert time.monotonic() < deadline, child.output.read_text()
        time.sleep(0.05)
    assert child.ready.exists(), child.output.read_text()
    ending = _ENDINGS[mode]
    if ending is not None:
        assert len(child.worker_and_supervisor()) == 2
        child.process.send_signal(ending)
    child.process.wait(30)
    if mode in ("kill", "fork", "terminate", "hang up"):
        assert child.process.returncode == -ending
    else:
        succeeds = mode in ("succeed", "no namespace")
        assert (child.process.returncode == 0) == succeeds, child.output.read_text()
    told = [line for line in child.output.read_text().splitlines() if "warning: TFF" in line]
    # Whoever can reach the worker is told of once, and only where it is not this user alone.
    reachable = mode == "no namespace" or not namespaces.are_allowed()
    assert len(told) == reachable, told
    deadline = time.monotonic() + 10
    while left := child.worker_and_supervisor():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
