"""Runs leave no graphs behind."""

import gc

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from simulation.device import layer_gradients
from tasks.layers import normalization
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.simulation.one_round import one_round


def of_ours():
    layer = normalization.GroupNormalization(1)
    traced = tf.function(lambda x: layer(x), autograph=False)
    return traced.get_concrete_function(tf.TensorSpec([None, 2, 3]))


def of_a_users():
    @tf.custom_gradient
    def twice(x):
        return 2 * x, lambda g: 2 * g

    return tf.function(twice, autograph=False).get_concrete_function(tf.TensorSpec([3]))


def registered():
    return set(ops.gradient_registry._registry)


def test_what_was_there_before_and_what_is_not_ours_is_kept():
    earlier = of_ours(), of_a_users()
    before = registered()
    with layer_gradients.forgotten():
        of_ours()
        during = registered()
        of_a_users()
        users = registered() - during
    assert during - before and users and registered() == before | users
    with tf.GradientTape() as tape:
        x = tf.constant([1.0, 2.0, 3.0])
        tape.watch(x)
        y = earlier[1](x)
    np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 2.0, 2.0])


def test_no_run_takes_what_another_still_needs():
    before = registered()
    first, second = layer_gradients.forgotten(), layer_gradients.forgotten()
    first.__enter__()
    second.__enter__()
    of_ours()
    during = registered()
    first.__exit__(None, None, None)
    assert registered() == during > before
    second.__exit__(None, None, None)
    assert registered() == before


def test_a_run_leaves_no_graph(tmp_path):
    def graphs():
        gc.collect()
        return sum(isinstance(o, func_graph.FuncGraph) for o in gc.get_objects())

    def keras_model(seed):
        layers = tf.keras.layers
        pictures = layers.Reshape((1, 3), input_shape=(3,))
        group = normalization.GroupNormalization(1)
        return tf.keras.Sequential([pictures, group, layers.Flatten(), layers.Dense(3)])

    def run(name):
        one_round("toy", tmp_path, model=keras_model, experiment_name=name, runtime="tff")

    # Keras keeps a graph of its own, which the first run may have made.
    run("first")
    before = graphs()
    run("second")
    assert graphs() == before
