import collections
import concurrent.futures
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.eager import context

from simulation import runtimes
from simulation.device import graph_calls
from simulation.tff import context as tff_context

# TensorFlow takes a CPU for one with 256 MiB, and saves memory in graphs that need most of that.
_NUMBERS, _TERMS = 5_000_000, 12


def sum_of_many(x):
    return tf.reduce_sum(tf.add_n([x * float(i) for i in range(1, _TERMS + 1)]))


def test_large_sums_run_at_once():
    spec = tff.TensorType(np.float32, [_NUMBERS])
    work = tff.tensorflow.computation(sum_of_many, spec)

    @tff.federated_computation(tff.FederatedType(spec, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(tff.federated_map(work, values))

    clients = [np.full(_NUMBERS, 2.0**-k, np.float32) for k in range(4)]
    with runtimes.installed("tff", 4):
        for _ in range(3):
            expected = _NUMBERS * _TERMS * (_TERMS + 1) / 2 * (2 - 2.0**-3)
            np.testing.assert_allclose(total(clients), expected, rtol=1e-5)


def test_options_hold_in_one_thread_until_the_end():
    ctx = context.context()
    before = ctx.function_call_options
    with graph_calls.calling("SINGLE_THREADED_EXECUTOR"):
        assert ctx.function_call_options.executor_type == "SINGLE_THREADED_EXECUTOR"
        with graph_calls.calling():
            assert ctx.function_call_options.executor_type == ""
        assert ctx.function_call_options.executor_type == "SINGLE_THREADED_EXECUTOR"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            elsewhere = pool.submit(lambda: ctx.function_call_options.executor_type).result()
        assert not elsewhere
    assert ctx.function_call_options is before


def test_making_ready_runs_nothing():
    calls = []

    def noticed(x):
        calls.append(x)
        return x

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.float32)])
    def work(x):
        return tf.numpy_function(noticed, [x], tf.float32)

    shared = graph_calls.Shared(work.get_concrete_function()._inference_function)
    shared.make_ready(tf.constant(1.0))
    assert not calls
    assert shared(tf.constant(2.0))[0].numpy() == 2.0
    assert calls == [2.0]


_FOUR_THREADS = """
import tff_algos
import numpy as np, tensorflow as tf, tensorflow_federated as tff
from simulation import runtimes

def work(x):
    for i in range(300):
        x = tf.sin(x) * float(i + 1)
    return x

work = tff.tensorflow.computation(work, np.float32)

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def total(values):
    return tff.federated_sum(tff.federated_map(work, values))

with runtimes.installed("tff", 4):
    total([np.float32(k) for k in range(4)])
"""


@pytest.mark.long
def test_threads_that_meet_a_graph_at_once_do_not_all_optimise_it():
    told = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "meta_optimizer=1"}
    ended = subprocess.run(
        [sys.executable, "-c", _FOUR_THREADS],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=True,
    )
    started = re.findall(r"Starting optimization for grappler item: (graph_\w+)", ended.stderr)
    assert started and set(collections.Counter(started).values()) == {1}


def test_what_was_traced_before_can_keep_a_function_out_of_the_executor_of_one_thread():
    @tf.function(autograph=False)
    def doubled_until_ten(x):
        return tf.while_loop(lambda x: x < 10.0, lambda x: (2 * x,), (x,))[0]

    spec = tf.TensorSpec([], tf.float32)

    def around(fn):
        with graph_calls.calling("SINGLE_THREADED_EXECUTOR"):
            return tf.function(lambda x: fn(x) + 1.0, autograph=False).get_concrete_function(spec)

    own = around(doubled_until_ten._clone(None))
    assert graph_calls.runs_in_one_thread(own)
    with graph_calls.calling("SINGLE_THREADED_EXECUTOR"):
        assert own(tf.constant(3.0)).numpy() == 13.0
    doubled_until_ten.get_concrete_function(spec)
    assert not graph_calls.runs_in_one_thread(around(doubled_until_ten))


def test_branches_are_kept_out_of_the_executor_of_one_thread():
    with graph_calls.calling("SINGLE_THREADED_EXECUTOR"):
        traced = tf.function(
            lambda x: tf.cond(x > 0.0, lambda: 2 * x, lambda: x), autograph=False
        ).get_concrete_function(tf.TensorSpec([], tf.float32))
    assert not graph_calls.runs_in_one_thread(traced)


def test_a_function_marked_to_stay_apart_does_when_a_computation_is_compiled():
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def apart(x):
        return tf.sin(x) + 1.0

    work = tff.tensorflow.computation(lambda x: apart(x) * 2.0, np.float32)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(tff.federated_map(work, values))

    with runtimes.installed("tff"):
        block = tff_context._to_native_form(total)
        assert b"_noinline" in block.proto.SerializeToString()
        np.testing.assert_allclose(total([0.0, 1.0]), 2 * (2 + np.sin(1.0)), rtol=1e-6)


def _loop(x):
    return tf.while_loop(lambda v: tf.reduce_sum(v) < 8, lambda v: v * 2, [x])[0]


def _branch(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x)


@pytest.mark.parametrize(
    ("fn", "straight"),
    [
        (lambda x: x + 1, True),
        (tf.function(lambda x: x + 1), True),
        (tf.function(lambda x: x + 1, experimental_attributes={"_noinline": True}), False),
        (_loop, False),
        (_branch, False),
        (tf.function(_loop), False),
    ],
    ids=["plain", "call", "call that is not inlined", "loop", "branch", "call of a loop"],
)
def test_straight_functions_are_those_that_one_thread_can_run(fn, straight):
    traced = tf.function(lambda x: fn(x)).get_concrete_function(tf.TensorSpec([2]))
    assert graph_calls.is_straight(traced) == straight
