"""Batched forms against TensorFlow's own operation, client by client."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from simulation.engine import batched_ops
from simulation.engine.batched_ops import NotVectorizable
from tff_algos import random
from tff_suite import graph_defs

CLIENTS = 3


def at_once(fn, *stacked, ragged=()):
    """What `fn` gives for all clients, as one graph; and the graph.

    The size of the first dimension of the arguments `ragged` is unknown to the graph.
    """
    specs = [
        tf.TensorSpec([None, *v.shape[1:]] if i in ragged else v.shape, v.dtype)
        for i, v in enumerate(v[0] for v in stacked)
    ]

    @tf.function(autograph=False)
    def program(*values):
        traced = tf.function(fn, autograph=False).get_concrete_function(*specs)
        inputs = [*values, *traced.captured_inputs]
        has_clients = [True] * len(values) + [False] * len(traced.captured_inputs)
        outputs = batched_ops.over_clients(
            traced.graph, inputs, has_clients, tf.shape(values[0])[0]
        )
        return tf.nest.pack_sequence_as(traced.structured_outputs, outputs)

    given = [tf.TensorSpec([None, *spec.shape], spec.dtype) for spec in specs]
    concrete = program.get_concrete_function(*given)
    return concrete(*map(tf.constant, stacked)), concrete.graph


def one_by_one(fn, *stacked):
    results = [fn(*map(tf.constant, values)) for values in zip(*stacked, strict=True)]
    return tf.nest.map_structure(lambda *leaves: np.stack(leaves), *results)


def operations(graph):
    """Types of all operations of a graph and the functions it calls."""
    return [node.op for node in graph_defs.nodes(graph.as_graph_def())]


def assert_same(fn, *stacked, rtol=2e-5, loops=0, **options):
    """`fn` gives for all clients at once what it gives for each, without a loop over them."""
    got, graph = at_once(fn, *stacked, **options)
    want = one_by_one(fn, *stacked)
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(np.abs(b).max(), 1))
    kinds = operations(graph)
    assert sum(kind in ("While", "StatelessWhile") for kind in kinds) == loops
    return got


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=(CLIENTS, *shape)).astype(np.float32)


def with_gradients(fn):
    def run(*values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            result = fn(*values)
            # Not linear, so that the gradient depends on the result.
            loss = tf.reduce_sum(tf.sin(result))
        return result, *tape.gradient(loss, values)

    return run


@pytest.mark.quick_cases("1-1-*", "3-*", "5-2-*")
@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    list(itertools.product((1, 3, 5, 7), (1, 2), ("VALID", "SAME"))),
)
def test_convolution_and_its_gradients(size, stride, padding):
    def convolution(x, filters):
        return tf.nn.conv2d(x, filters, stride, padding)

    x, filters = normal(4, 9, 8, 2), normal(size, size, 2, 5)
    assert_same(with_gradients(convolution), x, filters, ragged=[0])


def test_convolution_with_unequal_sides():
    def convolution(x, filters):
        return tf.nn.conv2d(x, filters, (2, 1), "SAME")

    assert_same(with_gradients(convolution), normal(2, 7, 10, 3), normal(2, 3, 3, 4))


def test_convolution_whose_filter_or_images_are_shared():
    x, filters = normal(2, 6, 6, 1), normal(3, 3, 1, 2)
    shared_x, shared_filters = tf.constant(x[0]), tf.constant(filters[0])
    assert_same(with_gradients(lambda x: tf.nn.conv2d(x, shared_filters, 1, "SAME")), x)
    assert_same(with_gradients(lambda f: tf.nn.conv2d(shared_x, f, 1, "VALID")), filters)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (tf.keras.layers.MaxPool2D(), (2, 6, 6, 3)),
        (tf.keras.layers.AveragePooling2D(), (2, 6, 6, 3)),
        (tf.keras.layers.GlobalAveragePooling2D(), (2, 6, 6, 3)),
        (tf.keras.layers.GroupNormalization(2), (2, 4, 4, 6)),
        (tf.keras.layers.LayerNormalization(), (4, 6)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_layers_and_their_gradients(layer, shape):
    layer.build((None, *shape[1:]))
    assert_same(with_gradients(layer), normal(*shape))


def test_bias_and_loss():
    def loss(x, weights, bias, labels):
        logits = tf.nn.bias_add(x @ weights, bias)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)

    def run(x, weights, bias, labels):
        return with_gradients(lambda *v: loss(*v, labels))(x, weights, bias)

    labels = np.random.default_rng(0).integers(0, 4, (CLIENTS, 5)).astype(np.int32)
    assert_same(run, normal(5, 3), normal(3, 4), normal(4), labels, ragged=[0, 3])


def test_weight_penalty_and_its_gradient():
    assert_same(with_gradients(lambda w: tf.nn.l2_loss(w)), normal(3, 4, 5))
    assert_same(with_gradients(lambda b: 2 * tf.nn.l2_loss(b)), normal(3, 4))


def test_embedding():
    def run(table, rows):
        with tf.GradientTape() as tape:
            tape.watch(table)
            loss = tf.reduce_sum(tf.sin(tf.gather(table, rows)))
        return loss, tf.convert_to_tensor(tape.gradient(loss, table))

    rows = np.random.default_rng(0).integers(0, 7, (CLIENTS, 4, 3)).astype(np.int32)
    assert_same(run, normal(7, 2), rows)


@pytest.mark.quick_cases("*-shape[034]-int32", "*-shape4-int64")
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5, 2), (0,), (1000, 3)])
@pytest.mark.parametrize(
    ("draw", "result"),
    [
        (tf.raw_ops.StatelessRandomUniform, tf.float32),
        (tf.raw_ops.StatelessRandomUniformFullInt, tf.int32),
    ],
)
def test_random_numbers_are_the_same_bits(draw, result, shape, dtype):
    limits = np.iinfo(dtype)
    seeds = np.random.default_rng(0).integers(limits.min, limits.max, (20, 2), dtype, endpoint=True)
    seeds[0], seeds[1] = 0, -1

    def run(seed):
        return draw(shape=shape, seed=seed, dtype=result)

    got, graph = at_once(run, seeds)
    np.testing.assert_array_equal(got, one_by_one(run, seeds))
    assert "While" not in operations(graph) and "StatelessWhile" not in operations(graph)


@pytest.mark.parametrize("rate", [0.25, 0.3])
def test_dropout(rate):
    seeds = np.array([[0, 0], [1, -2], [7, 1 << 30]], np.int32)

    def run(x, seed):
        return with_gradients(lambda x: random.dropout(x, rate, seed))(x)

    assert_same(run, normal(5, 7), seeds, ragged=[0])


def test_loop_left_by_all_at_once_stays_one_loop():
    """Its counter is shared; what starts out shared and then differs is stacked."""

    def run(x):
        def body(i, total, last):
            return i + 1, total + x[i], x[i] * 2.0

        return tf.while_loop(lambda i, *_: i < 4, body, (0, tf.zeros([2]), tf.zeros([2])))

    got = assert_same(run, normal(5, 2), loops=1)
    assert got[1].shape == (CLIENTS, 2)


def test_loop_that_fills_and_reads_lists_stays_one_loop():
    """Without a list of a client's own anywhere, which TensorFlow could only keep on the host."""

    def run(x):
        given = tf.TensorArray(tf.float32, 4, element_shape=[2]).unstack(x)
        array = tf.TensorArray(tf.float32, 4, element_shape=[2])
        shared = tf.TensorArray(tf.float32, 4, element_shape=[])

        def body(i, total, array, shared):
            total += given.read(i)
            shared = shared.write(i, tf.cast(i, tf.float32))
            return i + 1, total, array.write(3 - i, total), shared

        after = tf.while_loop(lambda i, *_: i < 4, body, (0, tf.zeros([2]), array, shared))
        return after[1], after[2].stack(), after[3].stack()

    assert_same(run, normal(4, 2), loops=1)
    _, graph = at_once(run, normal(4, 2))
    nodes = graph_defs.nodes(graph.as_graph_def())
    lists = [n for n in nodes if n.op.startswith("TensorList")]
    assert len(lists) > 3
    assert all(n.attr["element_dtype"].type != tf.variant.as_datatype_enum for n in lists)


def test_loop_that_clients_leave_one_after_the_other():
    def run(x, steps):
        return tf.while_loop(lambda i, _: i < steps, lambda i, t: (i + 1, t + x[i]), (0, 0.0))[1]

    x, steps = normal(5), np.array([0, 5, 2], np.int32)
    got, _ = at_once(run, x, steps)
    np.testing.assert_allclose(got, one_by_one(run, x, steps), rtol=1e-6)


def test_squeeze_of_a_single_client_keeps_it():
    x = np.arange(3.0, dtype=np.float32).reshape(1, 3, 1)
    assert_same(tf.squeeze, x)
    assert_same(lambda x: tf.squeeze(tf.reduce_sum(x, keepdims=True)), x)
    # A minibatch, whose size is not known before the graph runs.
    for clients in (1, 2):
        assert_same(tf.squeeze, np.repeat(x, clients, 0), ragged={0})


def test_branches_of_an_imported_graph():
    """Both are computed, as of a function that is known by its definition only."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2], "x")
        guard = tf.debugging.assert_less(tf.reduce_min(x), 5.0)
        with tf.control_dependencies([guard]):
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: tf.zeros([2]))
        y = tf.identity(y, "y")
    graph_def = graph.as_graph_def()

    @tf.function(autograph=False)
    def imported(x):
        return tf.graph_util.import_graph_def(
            graph_def, input_map={"x:0": x}, return_elements=["y:0"]
        )[0]

    assert_same(imported, np.array([[1, 2], [-3, 1], [0, 7]], np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError):
        at_once(imported, np.array([[1, 2], [6, 7], [0, 1]], np.float32))


def test_choice_by_client():
    def run(x, y):
        whole = tf.where(x[0] > 0, x, y)
        part = tf.where(x > 0, x, 0.0)
        return whole, part, tf.where(x[0] > 0, x[0], y[0]), tf.where(x[:1] > 0, x, y[0])

    assert_same(run, normal(4), normal(4, seed=1))


def test_squares_are_products():
    x = normal(4)
    np.testing.assert_array_equal(assert_same(lambda x: x**2, x), x * x)
    assert_same(lambda x: tf.constant(2.0) ** x, x)
    assert_same(lambda x: tf.abs(x) ** tf.constant([1.0, 2.0, 2.0, 3.0]), x)


def test_choice_for_all_clients():
    def run(x, y):
        number = tf.shape(x)[0]
        choose = tf.raw_ops.Select
        chosen = [choose(condition=number == n, x=x, y=y) for n in (4, 5)]
        return *chosen, tf.where(number == 4, x, y), tf.where(number == 5, x, y[0])

    assert_same(run, normal(4), normal(4, seed=1))


def _items(x):
    return tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(x)


OTHERWISE = {
    "axis from the end": lambda x: tf.roll(x, 1, -1),
    "padding": lambda x: tf.pad(x, [[1, 0], [0, 1]], constant_values=3.0),
    "ids of no segment": lambda x: tf.math.unsorted_segment_sum(x, [-1, 2, 0], 3),
    "segments without a member": with_gradients(
        lambda x: tf.sparse.segment_sum(x, [0, 2], [0, 1], num_segments=3)
    ),
    "items of a list": lambda x: _items(x).gather([2, 0]),
    "reading a list": with_gradients(lambda x: _items(x).gather([2, 0]) * _items(x).read(1)),
    "complex matrices": lambda x: tf.abs(
        tf.matmul(tf.complex(x, x + 1), tf.complex(x, x), transpose_a=True)
    ),
    "limits for each": lambda x: tf.raw_ops.ClipByValue(
        t=x, clip_value_min=x - 0.5, clip_value_max=tf.fill([3, 2], 0.5)
    ),
    "limits for all": lambda x: tf.raw_ops.ClipByValue(
        t=x, clip_value_min=tf.fill([3, 2], -0.5), clip_value_max=tf.fill([3, 2], 0.5)
    ),
}


@pytest.mark.parametrize("fn", OTHERWISE.values(), ids=OTHERWISE)
def test_what_tensorflows_form_for_several_computes_otherwise(fn):
    assert_same(fn, normal(3, 2))


def test_an_id_beyond_the_segments_is_no_other_clients():
    def run(ids):
        return tf.math.unsorted_segment_sum(tf.ones([2]), ids, 3)

    with pytest.raises(tf.errors.InvalidArgumentError):
        at_once(run, np.array([[0, 1], [0, 3], [0, 1]], np.int32))


def seed_of(x):
    return tf.cast(x[0, 0, 0, :2], tf.int32)


@pytest.mark.parametrize(
    ("operation", "fn"),
    [
        ("Conv2D", lambda x: tf.nn.conv2d(x, x[:3, :3], 1, "SAME", dilations=2)),
        ("Conv2D", lambda x: tf.nn.conv2d(x, x[:3, :3, :2], 1, "SAME")),
        ("Conv2D", lambda x: tf.nn.conv2d(x, x[:3, :3], 1, [[0, 0], [1, 0], [0, 0], [0, 0]])),
        ("StatelessRandomGetKeyCounter", lambda x: tf.random.stateless_uniform([2], seed_of(x))),
        (
            "StatelessRandomNormal",
            lambda x: tf.raw_ops.StatelessRandomNormal(shape=[2], seed=seed_of(x)),
        ),
        (
            "StatelessRandomUniformFullInt",
            lambda x: tf.raw_ops.StatelessRandomUniformFullInt(
                shape=[2], seed=seed_of(x), dtype=tf.int64
            ),
        ),
        ("Diag", lambda x: tf.raw_ops.Diag(diagonal=x[0, 0])),
        ("Unique", lambda x: tf.unique(x[0, 0, 0])[1]),
    ],
)
def test_what_has_no_batched_form_is_refused_by_name(operation, fn):
    with pytest.raises(NotVectorizable, match=f"^Operation {operation}.*--runtime=tff") as e:
        at_once(fn, normal(4, 4, 4, 4))
    assert len(str(e.value)) < 300 and "\n" not in str(e.value)


def test_other_users_of_vectorized_map_see_tensorflows_converters():
    before = batched_ops.pfor_lib._pfor_converter_registry
    at_once(lambda x: tf.ones_like(x) * x, normal(2))
    assert batched_ops.pfor_lib._pfor_converter_registry is before
    assert before.get("OnesLike") is not batched_ops._CONVERTERS["OnesLike"]
    assert tf.vectorized_map(tf.exp, tf.zeros([2])).numpy().tolist() == [1.0, 1.0]
