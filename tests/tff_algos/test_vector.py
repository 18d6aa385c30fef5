import operator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import vector
from tff_algos.vector import Vector

# Two tensors of one shape as well: as a plain tuple they would become one tensor.
SHAPES = {"unequal": [(2, 3), (3,), ()], "equal": [(2,), (2,)], "one": [(4,)]}
OPERATORS = (operator.add, operator.sub, operator.mul, operator.truediv)


def arrays(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(0.5, 2.0, size=shape).astype(np.float32) for shape in SHAPES[shapes]]


def assert_equal(got, want):
    assert isinstance(got, Vector) and len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        # A graph multiplies by 1 / c where c is a constant.
        np.testing.assert_allclose(a, np.float32(b), rtol=3e-7)


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("operation", OPERATORS, ids=lambda o: o.__name__)
def test_operators_work_tensor_by_tensor(operation, shapes, in_graph):
    a, b, number = arrays(shapes), arrays(shapes, seed=1), np.float32(0.75)
    others = (0.75, number, tf.constant(number))

    def compute():
        u, v = vector.constants(a), vector.constants(b)
        with_numbers = [(operation(u, o), operation(o, u)) for o in others]
        return operation(u, v), with_numbers

    found = (tf.function(compute, autograph=False) if in_graph else compute)()
    between, with_numbers = tf.nest.map_structure(lambda t: t.numpy(), found)
    assert_equal(Vector(between), [operation(x, y) for x, y in zip(a, b, strict=True)])
    for after, before in with_numbers:
        assert_equal(Vector(after), [operation(x, number) for x in a])
        assert_equal(Vector(before), [operation(number, x) for x in a])


def test_a_formula_reads_as_printed():
    x, m, v = (arrays("unequal", seed) for seed in range(3))
    got = Vector(x) - 0.5 * Vector(m) / (vector.constants(v).sqrt() + 0.25)
    for found, *of in zip(got, x, m, v, strict=True):
        np.testing.assert_allclose(found, of[0] - 0.5 * of[1] / (np.sqrt(of[2]) + 0.25), rtol=1e-6)


def test_functions_of_a_vector():
    a, b = arrays("unequal"), arrays("unequal", seed=1)
    u, v = vector.constants(a), vector.constants(b)
    assert_equal(-u, [-x for x in a])
    assert_equal((u - v).sign(), [np.sign(x - y) for x, y in zip(a, b, strict=True)])
    assert_equal(u.maximum(v), [np.maximum(x, y) for x, y in zip(a, b, strict=True)])
    assert_equal(u.over(0.0), [np.zeros_like(x) for x in a])
    assert_equal(u.over(v), [x / y for x, y in zip(a, b, strict=True)])
    assert u.cast(Vector(tf.cast(t, tf.float64) for t in v))[0].dtype == tf.float64
    flat = np.concatenate([np.ravel(x) for x in a])
    np.testing.assert_allclose(u.norm(), np.linalg.norm(flat), rtol=1e-6)
    np.testing.assert_allclose(u.squared_norm(), flat @ flat, rtol=1e-6)
    assert_equal(vector.zeros(a), [np.zeros_like(x) for x in a])
    assert_equal(vector.filled(u, 3.0), [np.full_like(x, 3.0) for x in a])


def test_vectors_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="argument 2 is"):
        vector.constants(arrays("equal")) + vector.constants(arrays("equal")[:1])


@pytest.mark.parametrize("shapes", SHAPES)
def test_a_vector_is_not_a_tensor(shapes):
    """As a tuple of equal shapes it would be stacked in silence."""
    with pytest.raises((TypeError, ValueError), match="Vector is not a tensor"):
        tf.convert_to_tensor(vector.constants(arrays(shapes)))


class Kept(NamedTuple):
    weights: Any
    slots: Any
    count: Any


def test_within_a_function_vectors_and_around_it_tuples():
    one, two = tf.ones([2]), tf.ones([3])
    slots = {"momentum": (one, two)}
    seen = []

    @vector.on_vectors
    def function(kept, pair, empty):
        seen.append((type(kept.weights), type(kept.slots["momentum"]), type(pair[0]), empty))
        return kept._replace(weights=2.0 * kept.weights), {"sum": kept.weights + pair[0]}

    given = Kept((one, two), slots, tf.constant(1)), ((one, two), one), ()
    kept, sums = function(*given)
    assert seen == [(Vector, tuple, Vector, ())], "an optimizer of TFF's takes its own structure"
    assert type(kept.weights) is tuple and type(sums["sum"]) is tuple
    tf.nest.assert_same_structure(kept, given[0])


@pytest.mark.parametrize(
    "other", [[1.0, 2.0], np.ones(2), tf.ones([2])], ids=["list", "array", "tensor"]
)
def test_one_number_per_tensor_must_be_a_vector(other):
    """Such as rates per layer: with a last dimension of their number they would be broadcast."""
    u = Vector([tf.ones([3, 2]), tf.ones([2])])
    for compute in (lambda: u * other, lambda: u - other, lambda: u.maximum(other)):
        with pytest.raises(TypeError, match="one number per tensor, use Vector"):
            compute()
    scaled = u * Vector([tf.constant(1.0), tf.constant(2.0)])
    np.testing.assert_array_equal(scaled[0], np.ones([3, 2]))
    np.testing.assert_array_equal(scaled[1], [2.0, 2.0])
