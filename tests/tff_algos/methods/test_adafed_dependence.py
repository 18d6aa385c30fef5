"""AdaFed where updates depend on each other up to rounding, against float64 NumPy."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation import runtimes
from tests.oracles import adafed as oracle
from tests.oracles import cohort as cohort_lib
from tests.oracles import problem as problem_lib
from tests.tff_algos import eager, toy
from tff_algos import averaging, registry
from tff_algos.client import LocalTraining
from tff_algos.methods import adafed
from tff_algos.parts import common_descent
from tff_algos.vector import Vector, zeros

FORMS = ["closed_form", "gram_schmidt"]
TOLERANCE = 1e-5
# By what part of its length float32 may miss a gradient, with room.
ROUNDING = [1e-7, 1e-6]


def _gradients(kind, rng):
    """Returns exact g_k, float64 [K, d], whose rank is sure, and F."""
    dimensions = int(rng.integers(3, 8))
    if kind == "more clients":
        g = rng.normal(size=(5 * dimensions, dimensions))
    elif kind == "as many":
        g = rng.normal(size=(dimensions, dimensions)) + 2 * np.eye(dimensions)
    elif kind == "fewer":
        g = rng.normal(size=(2, dimensions))
    elif kind == "duplicated":
        g = rng.normal(size=(3, 9))[[0, 1, 1, 2, 0, 1]]
    elif kind == "opposite":
        g = rng.normal(size=(2, 9))
        g = np.concatenate([g, -g[:1], -2 * g[1:]])
    elif kind == "low rank":
        # As a softmax layer has it: the gradient by one class is minus the sum of the others'.
        g = rng.normal(size=(30, 3)) + 0.5
        g = np.concatenate([g, -g], axis=1)
    elif kind == "unequal":
        g = rng.normal(size=(4, 9)) * np.array([[1.0], [1e-2], [30.0], [1.0]])
        g = np.concatenate([g, g[:2] - g[3:]])
    targets = rng.uniform(0.5, 2, len(g)) ** rng.choice([1.0, 5.0])
    return g, targets


KINDS = ["more clients", "as many", "fewer", "duplicated", "opposite", "low rank", "unequal"]


@pytest.fixture(scope="module")
def combination():
    """Returns `(form, g, F) -> u`, as the server finds it, of one graph a form."""
    spec = [tf.TensorSpec([None, None], tf.float64), tf.TensorSpec([None], tf.float64)]

    def of(form):
        @tf.function(input_signature=spec, autograph=False)
        def find(gram, targets):
            if form == "closed_form":
                counts = tf.linalg.diag_part(gram) > 0
                return common_descent.solve(gram, targets, counts, TOLERANCE)
            return common_descent.gram_schmidt(gram, targets, TOLERANCE)

        return find

    finders = {form: of(form) for form in FORMS}
    return lambda form, g, targets: finders[form](g @ g.T, targets).numpy() @ g


def _want(form, g, targets):
    return getattr(oracle, form)(g, targets)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 1e-18])
def test_direction_is_that_of_exact_gradients(combination, form, kind, scale):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        g, targets = _gradients(kind, rng)
        g *= scale
        want = _want(form, g, targets)
        _, singular, axes = np.linalg.svd(g)
        axes = axes[: np.sum(singular > 1e-9 * singular[0])]
        for rounding in ROUNDING:
            noise = rng.normal(size=g.shape)
            noise *= rounding / np.linalg.norm(noise, axis=1, keepdims=True)
            given = g + noise * np.linalg.norm(g, axis=1, keepdims=True)
            got = combination(form, given, targets)
            outside = np.linalg.norm(got - axes.T @ (axes @ got))
            assert outside <= 1e-3 * np.linalg.norm(got), (seed, "a step along rounding")
            assert np.linalg.norm(got - want) <= 5e-3 * np.linalg.norm(want), seed


@pytest.mark.quick_cases("closed_form")
@pytest.mark.parametrize("form", FORMS)
def test_clients_that_grow_alike_change_the_direction_without_a_jump(combination, form):
    """From a small angle down to equal clients, in steps of 0.3 %; in the end they are equal."""
    a, b = np.eye(9)[:2]
    targets = np.array([1.0, 2.0])
    angles = np.geomspace(5e-6, 5e-4, 1500)
    u = [combination(form, np.stack([a, a + t * b]), targets) for t in angles]
    d = np.stack([v / np.dot(v, v) for v in u])
    jumps = np.linalg.norm(np.diff(d, axis=0), axis=1)
    assert jumps.max() < 0.2 < 0.6 < np.linalg.norm(d[-1] - d[0])
    equal = combination(form, np.stack([a, a]), targets)
    np.testing.assert_allclose(d[0], equal / np.dot(equal, equal), atol=1e-5)
    np.testing.assert_allclose(u[0], (1.5 if form == "closed_form" else 1.0) * a, atol=1e-5)
    exact = oracle.closed_form(np.stack([a, a + angles[-1] * b]), targets)
    np.testing.assert_allclose(u[-1], exact, rtol=1e-6, atol=1e-8)


@pytest.mark.quick_cases("gram_schmidt")
@pytest.mark.parametrize("form", FORMS)
def test_a_client_that_stops_moving_leaves_without_a_jump(combination, form):
    g = np.random.default_rng(1).normal(size=(3, 9))
    targets = np.array([1.0, 2.0, 1.5])
    lengths = np.geomspace(1e-7, 1e-4, 1500)
    u = [combination(form, g * np.array([[1.0], [1.0], [s]]), targets) for s in lengths]
    d = np.stack([v / np.dot(v, v) for v in u])
    jumps = np.linalg.norm(np.diff(d, axis=0), axis=1)
    assert jumps.max() < 0.2 < 0.6 < np.linalg.norm(d[-1] - d[0])
    np.testing.assert_allclose(u[0], combination(form, g[:2], targets[:2]), atol=1e-5)


def _server(settings):
    """Returns `(g, f) -> x - x'` of a server of AdaFed, by one graph."""
    weights = (np.zeros(9, np.float32),)
    model = tff_algos.Model(weights, None, None, None, metric_names=("loss",))
    given, own = toy.resolve("adafed", dict(client_learning_rate=0.1, **settings))
    method = registry.get("adafed").build_fn()(model, LocalTraining(given), **own)

    @tf.function(autograph=False, reduce_retracing=True)
    def step(gradients, losses):
        ones = tf.ones_like(losses)
        metrics = collections.OrderedDict(
            training={}, num_examples=ones, num_clients=ones, clients_dropped=0 * ones
        )
        report = adafed.Report((gradients,), losses)
        answered = eager.Answered(averaging.ClientUpdate(report, ones, metrics, ()))
        after, _ = method.next_round(answered, method.initialize(), None)
        return -after.weights[0]

    return lambda g, f: step(tf.constant(g, tf.float32), tf.constant(f, tf.float32)).numpy()


@pytest.mark.parametrize("rule", ["min", "mean"])
def test_no_step_is_longer_than_the_longest_update(rule):
    """Opposite clients of nearly equal losses, and a cohort near the optimum of its mean."""
    step = _server(dict(step_rule=rule))
    rng = np.random.default_rng(3)
    g = rng.normal(size=9)
    before = None
    for gap in np.linspace(-0.02, 0.02, 81):
        now = step(np.stack([g, -g]), [1.0, 1.0 + gap])
        assert np.linalg.norm(now) <= np.linalg.norm(g) * (1 + 1e-5)
        if before is not None:
            assert np.linalg.norm(now - before) < 0.01 * np.linalg.norm(g)
        before = now
    np.testing.assert_allclose(step(np.stack([g, -g]), [1.0, 1.0]), 0, atol=1e-6)
    many = rng.normal(size=(40, 9))
    for mean in (1.0, 1e-2, 1e-4, 0.0):
        cohort = many - many.mean(axis=0) + mean
        moved = np.linalg.norm(step(cohort, np.ones(40)))
        assert moved <= np.linalg.norm(cohort, axis=1).max() * (1 + 1e-5)
        assert moved <= 150 * mean + 1e-5, "at the optimum nothing is left to do"


def test_updates_whose_sum_is_zero_make_no_step_of_the_length_of_their_mean():
    """Their inner products add up to zero but for rounding, of either sign."""
    step, rng = _server(dict(step_rule="unit")), np.random.default_rng(0)
    for _ in range(8):
        g = np.round(rng.normal(size=(7, 9)) * 2**18) * 2.0 ** rng.integers(-20, 20, size=9)
        g = np.vstack([g, -g.sum(0)])
        np.testing.assert_array_equal(g, g.astype(np.float32))
        moved = step(g, rng.uniform(0.5, 2.0, size=8))
        assert np.linalg.norm(moved) <= 1e-6 * np.linalg.norm(g)


def _many(seed, shift):
    problem = problem_lib.make_problem(seed, [3 + k % 6 for k in range(30)])
    # The same shift for every class leaves probabilities, and so gradients, as they are.
    weights = tuple(w + shift for w in problem.initial_weights)
    return problem._replace(initial_weights=weights)


@pytest.mark.quick_cases("vectorized-closed_form")
@pytest.mark.parametrize("form", ["closed_form", "gram_schmidt"])
@pytest.mark.parametrize("runtime", ["tff", "vectorized", "native"])
def test_thirty_clients_of_eight_dimensions_step_as_in_float64(runtime, form):
    """A softmax layer has 12 parameters here, and gradients only 8 dimensions."""
    settings = dict(client_learning_rate=0.02, step_rule="mean", orthogonalization=form)
    cohorts = [tuple(range(30))]
    with runtimes.installed(runtime):
        process = tff_algos.build("adafed", toy.plain_model(_many(0, 0.0)), **settings)
        for seed, shift in ((0, 0.0), (1, 64.0)):
            problem = _many(seed, shift)
            bound, data = (
                runtimes.bind(process),
                list(toy.client_rounds(problem, cohorts, process.plan)),
            )
            state = bound.initialize()
            state = state._replace(
                weights=tuple(w.astype(np.float32) for w in problem.initial_weights)
            )
            after = bound.next(state, data[0]).state
            want = oracle.run(
                problem,
                toy.batch_orders(problem, cohorts),
                cohorts=cohorts,
                client_lr=0.02,
                step_rule="mean",
                orthogonalization=form,
            )[0]
            got = cohort_lib.flat([np.asarray(w) for w in after.weights])
            x, want = map(cohort_lib.flat, (problem.initial_weights, want))
            # x itself is only known to 64 * 1e-7.
            assert np.linalg.norm(got - want) < 1e-3 * np.linalg.norm(want - x) + 1e-7 * shift * 12
            assert np.linalg.norm(want - x) > 2e-3


@pytest.mark.parametrize("name", sorted(registry.CLIENT_OPTIMIZERS))
def test_every_optimizer_steps_on_the_displacement_as_on_the_weights(name):
    given, _ = toy.resolve("adafed", dict(client_learning_rate=0.3, client_optimizer=name))
    optimizer = LocalTraining(given).optimizer()
    x = Vector((tf.constant([[3.0, -2.0]]), tf.constant([0.5])))
    rng = np.random.default_rng(0)
    plain = apart = optimizer.start(x, tf.constant(0.3))
    weights, moved = x, zeros(x)
    for _ in range(4):
        gradient = x.map(lambda w: tf.constant(rng.normal(size=w.shape), tf.float32))
        plain, weights = optimizer.step(plain, weights, gradient)
        apart, moved = optimizer.displace(apart, x, moved, gradient)
    for w, start, m in zip(weights, x, moved, strict=True):
        np.testing.assert_allclose(start + m, w, rtol=1e-5)
        assert np.abs(m).min() > 1e-2


class _OfWeights(tff.learning.optimizers.Optimizer):
    """Own optimizers whose steps depend on the weights; `weight_decay` need not be AdamW's."""

    def __init__(self, step):
        self._step = step

    def initialize(self, specs):
        return collections.OrderedDict(learning_rate=0.1, weight_decay=0.05)

    def next(self, state, weights, gradients):
        step = tf.function(self._step, autograph=False)
        return state, tf.nest.map_structure(lambda w, g: step(w, g, state), weights, gradients)


@pytest.mark.parametrize(
    "step",
    [
        lambda w, g, s: w - 0.1 * s["weight_decay"] * w - s["learning_rate"] * g,
        lambda w, g, s: w - s["learning_rate"] * tf.norm(w) * g,
    ],
    ids=["decay by its own rule", "step of the weights' length"],
)
def test_an_own_optimizer_steps_on_the_displacement_as_on_the_weights(step):
    given, _ = toy.resolve("adafed", dict(client_learning_rate=0.3))
    optimizer = LocalTraining(given, _OfWeights(step)).optimizer()
    x = Vector((tf.constant([[3.0, -2.0]]), tf.constant([0.5])))
    slots, moved = optimizer.start(x, tf.constant(0.3)), zeros(x)
    weights = [np.asarray(w, np.float64) for w in x]
    rng = np.random.default_rng(0)
    for _ in range(4):
        gradient = [rng.normal(size=w.shape) for w in weights]
        state = {"learning_rate": 0.3, "weight_decay": 0.05}
        weights = [np.asarray(step(w, g, state)) for w, g in zip(weights, gradient, strict=True)]
        given = Vector(tf.constant(g, tf.float32) for g in gradient)
        slots, moved = optimizer.displace(slots, x, moved, given)
    for start, m, w in zip(x, moved, weights, strict=True):
        np.testing.assert_allclose(start + m, w, rtol=1e-5)
