"""What the fairness methods' papers prove of them, and their limits, as properties."""

import collections

import numpy as np
import pytest
import scipy.optimize
import tensorflow as tf

import tff_algos
from tests.oracles import adafed as adafed_oracle
from tests.oracles import afl as afl_oracle
from tests.oracles import cohort as cohort_lib
from tests.oracles import fedfv as fedfv_oracle
from tests.oracles import fedmgda_plus as fedmgda_oracle
from tests.oracles import fedopt
from tests.oracles import problem as problem_lib
from tests.tff_algos import eager, shared, toy
from tff_algos import averaging, registry
from tff_algos.client import LocalTraining
from tff_algos.methods import adafed, fedfv
from tff_algos.parts import common_descent, vectors
from tff_suite import hparams as hparams_lib
from tff_suite.hparams import HparamError

EVERYONE = (0, 1, 2, 3, 4)
# As in a round's program; operation by operation it takes ten times as long.
box_minimum = tf.function(vectors.box_minimum, autograph=False)


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


def _rows(matrix):
    """A cohort's vectors [K, 12] as the server has them: stacked weights of the toy model."""
    matrix = np.asarray(matrix, np.float32)
    return tf.constant(matrix[:, :9].reshape(-1, 3, 3)), tf.constant(matrix[:, 9:])


def _server_step(problem, name, report, **settings):
    """Returns x - x' [12] and the metrics of a round in which all clients sent `report`."""
    spec = registry.get(name)
    rate = {"client_learning_rate": 0.1}
    own = hparams_lib.resolve(name, spec.hparams, settings)
    local = LocalTraining(registry.resolve_training(spec, rate))
    method = spec.build_fn()(toy.plain_model(problem), local, **own)
    ones = tf.ones([len(tf.nest.flatten(report)[0])])
    metrics = collections.OrderedDict(
        training={}, num_examples=ones, num_clients=ones, clients_dropped=0 * ones
    )
    state = method.initialize()
    answered = eager.Answered(averaging.ClientUpdate(report, ones, metrics, ()))
    after, metrics = method.next_round(answered, state, None)
    back = [x - y for x, y in zip(state.weights, after.weights, strict=True)]
    return cohort_lib.flat([b.numpy() for b in back]), metrics


def _adafed_step(problem, gradients, losses, **settings):
    report = adafed.Report(_rows(gradients), tf.constant(losses, tf.float32))
    return _server_step(problem, "adafed", report, step_rule="constant", **settings)[0]


def _direction(gradients, targets, printed=False):
    rows = _rows(gradients)
    gram, targets = vectors.gram(rows), tf.constant(targets, tf.float64)
    if printed:
        a = common_descent.gram_schmidt(gram, targets, 1e-5)
    else:
        a = common_descent.solve(gram, targets, tf.linalg.diag_part(gram) > 0, 1e-5)
    u = cohort_lib.flat([w.numpy() for w in vectors.combine(a, rows)])
    return u / np.dot(u, u)


@pytest.mark.parametrize("seed", range(6))
def test_adafed_descends_for_all_in_proportion_to_their_losses(seed):
    """<g_k, d> / F_k is one positive number; no order and neither form changes d."""
    rng = np.random.default_rng(seed)
    k = rng.integers(2, 9)
    g = (rng.normal(size=(k, 12)) * rng.uniform(0.1, 10, size=(k, 1))).astype(np.float32)
    g = g.astype(np.float64)
    targets = rng.uniform(0.1, 3, size=k) ** rng.choice([0.0, 0.5, 1.0, 5.0])
    d = _direction(g, targets)
    ratios = g @ d / targets
    condition = np.linalg.cond(g @ g.T)
    assert ratios.min() > 0
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-9 * condition)
    for order in (np.arange(k)[::-1], rng.permutation(k)):
        again = _direction(g[order], targets[order])
        assert np.linalg.norm(again - d) <= 1e-6 * condition * np.linalg.norm(d)
    tolerance = 1e-9 * condition * np.linalg.norm(d)
    assert np.linalg.norm(_direction(g, targets, printed=True) - d) <= tolerance
    assert np.linalg.norm(adafed_oracle.printed(g, targets) - d) <= tolerance
    shortest = np.min(np.linalg.norm(g, axis=1) / targets)
    assert np.linalg.norm(d) <= shortest * (1 + 1e-6)


@pytest.mark.parametrize("printed", [False, True])
def test_adafed_direction_scales_with_vectors_and_against_losses(printed):
    rng = np.random.default_rng(11)
    g, targets = rng.normal(size=(4, 12)), rng.uniform(0.5, 2, size=4)
    d = _direction(g, targets, printed)
    np.testing.assert_allclose(_direction(3.0 * g, targets, printed), 3.0 * d, rtol=1e-5)
    np.testing.assert_allclose(_direction(g, 5.0 * targets, printed), d / 5.0, rtol=1e-5)


@pytest.mark.parametrize("printed", [False, True])
def test_adafed_without_gamma_is_the_shortest_affine_combination(printed):
    """F = 1: MGDA without its constraint on signs, which these vectors make active."""
    g = np.random.default_rng(2).normal(size=(3, 12)) * np.array([[1.0], [1.0], [6.0]])
    g[2] += 4.0 * g[0]
    g = g.astype(np.float32).astype(np.float64)
    system = np.block([[g @ g.T, np.ones((3, 1))], [np.ones((1, 3)), np.zeros((1, 1))]])
    mixture = np.linalg.solve(system, [0, 0, 0, 1])[:3]
    assert mixture.min() < 0
    np.testing.assert_allclose(_direction(g, np.ones(3), printed), mixture @ g, rtol=1e-6)


@pytest.mark.parametrize("printed", [False, True])
def test_adafed_meets_more_clients_than_dimensions_where_they_agree(printed):
    """K > rank: if some u has <g_k, u> = F_k for all k, it is found, and all descend."""
    rng = np.random.default_rng(6)
    g = rng.uniform(0.1, 1, size=(20, 12)).astype(np.float32).astype(np.float64)
    u = rng.uniform(0.5, 2, size=12)
    d = _direction(g, g @ u, printed)
    np.testing.assert_allclose(d, u / np.dot(u, u), rtol=1e-4)


@pytest.mark.quick_cases("gram_schmidt")
@pytest.mark.parametrize("form", ["closed_form", "gram_schmidt"])
def test_adafed_where_clients_are_not_independent(problem, form):
    rng = np.random.default_rng(7)
    g = rng.normal(size=(3, 12)).astype(np.float32)
    losses = np.array([0.5, 1.0, 2.0])

    def step(g, losses, gamma=1.0):
        d = _adafed_step(problem, g, losses, gamma=gamma, orthogonalization=form)
        assert np.isfinite(d).all()
        return d

    d = step(g, losses)
    np.testing.assert_allclose(step(g[1:2], losses[1:2]), g[1], atol=1e-5)
    np.testing.assert_allclose(step(g[2:], losses[2:]), g[2] / 2, atol=1e-5)
    # The same client twice asks for the same thing twice.
    np.testing.assert_allclose(step(g[[0, 1, 1, 2]], losses[[0, 1, 1, 2]]), d, atol=1e-5)
    # A client that did not move is left out, as is a whole cohort of them.
    still = np.concatenate([g, np.zeros((1, 12), np.float32)])
    np.testing.assert_allclose(step(still, np.append(losses, 3.0)), d, atol=1e-5)
    assert not np.any(step(np.zeros((2, 12), np.float32), losses[:2]))
    # A client without loss asks for no descent: its product with d is next to nothing.
    d = step(g, np.array([0.0, 1.0, 2.0]))
    assert abs(g[0] @ d) < 1e-5 and g[1] @ d > 0 and g[2] @ d > 0
    # More clients than dimensions, and clients that contradict each other.
    step(rng.normal(size=(20, 12)), rng.uniform(0.5, 2, size=20))
    step(np.stack([g[0], g[0], -g[0]]), losses)
    step(1e-12 * g, losses, gamma=5.0)


@pytest.mark.quick_cases("unit")
@pytest.mark.parametrize("rule", ["min", "mean", "unit"])
def test_adafed_steps_do_not_depend_on_the_scale_of_the_loss(problem, rule):
    rng = np.random.default_rng(8)
    rows = _rows(rng.normal(size=(4, 12)))
    losses = tf.constant([1.0, 1.2, 0.8, 2.0])
    settings = dict(step_rule=rule, gamma=2.0)
    a, metrics = _server_step(problem, "adafed", adafed.Report(rows, losses), **settings)
    b, _ = _server_step(problem, "adafed", adafed.Report(rows, 7.0 * losses), **settings)
    np.testing.assert_allclose(a, b, atol=1e-5)
    assert float(metrics["step_starved"]) == 0
    losses = tf.constant([1.0, 1.2, 0.8, 1e-3])
    _, metrics = _server_step(problem, "adafed", adafed.Report(rows, losses), **settings)
    assert float(metrics["step_starved"]) == (1 if rule == "min" else 0)


def test_vectors_of_many_columns_are_combined_block_by_block():
    rng = np.random.default_rng(9)
    leaf = rng.normal(size=(3, 2, 70001)).astype(np.float32)
    small = rng.normal(size=(3, 5)).astype(np.float32)
    stacked = (tf.constant(leaf), tf.constant(small))
    matrix = np.concatenate([leaf.reshape(3, -1), small], axis=1).astype(np.float64)
    np.testing.assert_allclose(vectors.gram(stacked), matrix @ matrix.T, rtol=1e-12)
    c = rng.normal(size=3)
    combined = vectors.combine(tf.constant(c), stacked)
    assert [tuple(v.shape) for v in combined] == [(2, 70001), (5,)]
    np.testing.assert_allclose(cohort_lib.flat([v.numpy() for v in combined]), c @ matrix)


@pytest.mark.parametrize("seed", range(4))
def test_projection_is_the_nearest_point_of_the_simplex(seed):
    rng = np.random.default_rng(seed)
    point = rng.normal(size=rng.integers(1, 8)) * 10.0**seed
    got = vectors.project_to_simplex(tf.constant(point)).numpy()
    assert got.min() >= 0 and abs(got.sum() - 1) < 1e-9
    np.testing.assert_allclose(got, afl_oracle.project(point), atol=1e-9)
    solved = scipy.optimize.minimize(
        lambda p: 0.5 * np.sum((p - point) ** 2),
        np.full(len(point), 1 / len(point)),
        jac=lambda p: p - point,
        bounds=[(0, 1)] * len(point),
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 500},
    )
    np.testing.assert_allclose(got, solved.x, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_box_minimum_is_scipys(seed, epsilon):
    """Compared by the point reached, as λ itself is not unique; the last has K > rank."""
    rng = np.random.default_rng(seed)
    k, d = [(3, 12), (10, 30), (9, 4)][seed]
    h = rng.normal(size=(k, d)) + 0.3
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    center = rng.uniform(0.5, 1, size=k)
    center /= center.sum()
    got = box_minimum(
        tf.constant(h @ h.T), tf.constant(center), epsilon, tf.ones([k], tf.bool)
    ).numpy()
    assert got.min() > -1e-12 and abs(got.sum() - 1) < 1e-9
    assert np.abs(got - center).max() <= epsilon + 1e-9
    want = fedmgda_oracle.minimum(h @ h.T, center, epsilon)
    np.testing.assert_allclose(got @ h, want @ h, atol=2e-6)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("kind", ["equal", "one", "upper", "left out", "many"])
def test_box_minimum_where_there_is_little_to_choose(kind, epsilon):
    rng = np.random.default_rng(5)
    h = {
        "equal": np.ones((4, 3)),
        "one": np.ones((1, 3)),
        "upper": np.array([[1.0, 0, 0], [0.99, 0.1, 0], [-0.1, 1, 0]]),
        "left out": np.array([[1.0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]),
        "many": np.repeat(rng.normal(size=(5, 3)), 8, axis=0),
    }[kind]
    norms = np.linalg.norm(h, axis=1, keepdims=True)
    kept = norms[:, 0] > 0
    h = h / np.where(norms > 0, norms, 1)
    center = np.where(kept, 1.0, 0.0) / kept.sum()
    got = box_minimum(
        tf.constant(h @ h.T), tf.constant(center), epsilon, tf.constant(kept), 200
    ).numpy()
    assert np.isfinite(got).all() and abs(got.sum() - 1) < 1e-9 and not got[~kept].any()
    assert got.min() > -1e-12 and np.abs(got - center).max() <= epsilon + 1e-9
    want = fedmgda_oracle.minimum(h[kept] @ h[kept].T, center[kept], epsilon)
    np.testing.assert_allclose(got @ h, want @ h[kept], atol=2e-6)


def test_box_minimum_ends_where_further_steps_would_change_nothing():
    h = np.random.default_rng(3).normal(size=(10, 30))
    h /= np.linalg.norm(h, axis=1, keepdims=True)
    given = tf.constant(h @ h.T), tf.fill([10], tf.constant(0.1, tf.float64)), 0.1
    few, many = (box_minimum(*given, tf.ones([10], tf.bool), n) for n in (60, 10**9))
    np.testing.assert_array_equal(few, many)
    assert np.any(few != box_minimum(*given, tf.ones([10], tf.bool), 5))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_fedfv_on_inner_products_is_fedfv_on_vectors(seed, alpha):
    """As the oracle projects whole vectors, whatever the order of the clients."""
    rng = np.random.default_rng(seed)
    sent, losses = rng.normal(size=(8, 12)), rng.uniform(size=8)
    ages = np.array([0, 0, 2, 0, 1, 0, 2, -1])
    present = ages == 0
    want = fedfv_oracle.project(sent[present], losses[present], alpha)
    known = {k: (9 - age, h) for k, (age, h) in enumerate(zip(ages, sent, strict=True)) if age >= 0}
    heeded = fedfv_oracle.heed(want.mean(axis=0), known, 9, (2, 1))
    assert np.abs(heeded - want.mean(axis=0)).max() > 1e-3
    for order in (np.arange(8), rng.permutation(8)):
        gram = vectors.gram(_rows(sent[order]))
        rows = fedfv.project(
            gram, tf.constant(losses[order], tf.float32), tf.constant(present[order]), alpha
        )
        projected = np.empty_like(sent)
        projected[order] = rows @ sent[order]
        np.testing.assert_allclose(projected[present], want, atol=1e-5)
        g = tf.linalg.matvec(rows, present[order] / 4, transpose_a=True)
        g = fedfv.heed(gram, g, tf.constant(ages[order], tf.int32), 2, 1)
        np.testing.assert_allclose(g.numpy() @ sent[order], heeded, atol=1e-5)


def _fedfv_step(problem, updates):
    """Returns x' - x after a round of two clients."""
    report = fedfv.Report(_rows(updates), tf.constant([0, 0]), tf.constant([1.0, 2.0]))
    return -_server_step(problem, "fedfv", report, alpha=0.0, tau=0)[0]


@pytest.mark.parametrize("seed", range(6))
def test_fedfv_of_two_clients_turns_against_neither(problem, seed):
    """And goes as far as their mean."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(2, 12))
    updates[1] -= 2 * updates[0]
    assert updates[0] @ updates[1] < 0
    step = _fedfv_step(problem, updates)
    assert np.min(updates @ step) > 0
    length = np.linalg.norm(updates.mean(axis=0))
    np.testing.assert_allclose(np.linalg.norm(step), length, rtol=1e-5)


def test_fedfv_stays_where_nothing_is_left_of_the_updates(problem):
    """a and -2a lose each other, though their mean is not zero."""
    a = np.random.default_rng(0).normal(size=12)
    step = _fedfv_step(problem, [a, -2 * a])
    np.testing.assert_array_equal(step, 0)


def _fedmgda_step(problem, deltas, epsilon):
    return _server_step(problem, "fedmgda_plus", _rows(deltas), epsilon=epsilon)[0]


@pytest.mark.slow
def test_fedmgda_plus_limits(problem):
    rng = np.random.default_rng(3)
    deltas = rng.normal(size=(4, 12)) * np.array([[1.0], [10.0], [0.1], [0.0]])
    units = -deltas[:3] / np.linalg.norm(deltas[:3], axis=1, keepdims=True)
    np.testing.assert_allclose(_fedmgda_step(problem, deltas, 0.0), units.mean(axis=0), atol=1e-6)
    nearly = _fedmgda_step(problem, deltas, 1e-4)
    np.testing.assert_allclose(nearly, units.mean(axis=0), atol=3e-4)
    assert np.linalg.norm(nearly) < np.linalg.norm(units.mean(axis=0))
    np.testing.assert_allclose(_fedmgda_step(problem, deltas[:1], 0.3), units[0], atol=1e-6)
    opposite = np.stack([deltas[0], -3 * deltas[0]])
    np.testing.assert_allclose(_fedmgda_step(problem, opposite, 1.0), 0, atol=1e-6)
    assert not np.any(_fedmgda_step(problem, np.zeros((2, 12)), 0.5))
    d = _fedmgda_step(problem, deltas, 1.0)
    assert (units @ d).min() > 0, "MGDA's direction descends for all"


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        # A rate by which the step of losses that all count nothing would be infinite.
        ("adafed", {"step_rule": "constant", "server_learning_rate": 100.0}),
        ("fedmgda_plus", {"server_lr_decay": 0.5}),
        ("fedfv", {}),
    ],
)
def test_a_round_in_which_nobody_moves_changes_nothing(problem, name, settings):
    model, cohorts = toy.plain_model(problem), [(0, 1)] * 2
    rounds = toy.run_eagerly(name, problem, model, cohorts, client_learning_rate=0.0, **settings)
    before, after = (tf.nest.flatten(state._replace(round_num=0)) for state in rounds)
    initial = [w.astype(np.float32) for w in problem.initial_weights]
    for got, want in zip(before, initial, strict=False):
        np.testing.assert_array_equal(got, want)
    for got, want in zip(after, before, strict=True):
        np.testing.assert_array_equal(got, want)


def _run(problem, name, rounds=2, cohort=EVERYONE, **settings):
    process = tff_algos.build(
        name, toy.plain_model(problem), num_clients=5, client_learning_rate=0.3, **settings
    )
    with shared.installed("tff"):
        return toy.run(process, problem, cohorts=[cohort] * rounds)


def _assert_close(weights, want, atol=1e-6):
    for got, expected in zip(weights, want, strict=True):
        np.testing.assert_allclose(got, expected, atol=atol)


@pytest.mark.quick_cases("qfedavg-2-settings0")
@pytest.mark.parametrize(
    ("name", "rounds", "settings"),
    [
        ("qfedavg", 2, {"q": 0.0}),
        ("qfedavg", 2, {"q": 0.0, "form": "reweight"}),
        ("term", 2, {"t": 0.0}),
        ("afl", 2, {"gamma_lambda": 0.0, "reported_model": "last"}),
        ("fedfa", 1, {"alpha": 0.0, "beta": 1.0, "client_optimizer": "sgd"}),
    ],
)
def test_the_unfair_limit_is_uniform_averaging(problem, name, rounds, settings):
    states, _ = _run(problem, name, rounds, **settings)
    cohorts = [EVERYONE] * rounds
    want = fedopt.run(
        problem,
        "fedavg",
        "released",
        toy.batch_orders(problem, cohorts),
        rounds=rounds,
        cohorts=cohorts,
        client_lr=0.3,
        server_lr=1.0,
        weighting="uniform",
    )
    _assert_close(states[-1].weights, want.weights[-1])


@pytest.mark.slow
def test_term_with_a_large_tilt_follows_the_worst_client(problem):
    states, _ = _run(problem, "term", 1, t=1e5)
    losses = [problem_lib.mean_loss(problem.initial_weights, *c) for c in problem.clients]
    alone, _ = _run(problem, "term", 1, cohort=(int(np.argmax(losses)),))
    _assert_close(states[0].weights, alone[0].weights)


@pytest.mark.slow
def test_afl_keeps_a_mixture(problem):
    states, _ = _run(problem, "afl", gamma_lambda=1.0)
    assert states[-1].mixture.min() >= 0 and abs(states[-1].mixture.sum() - 1) < 1e-12
    assert states[-1].mixture.std() > 0.01
    mean = [(a + b) / 2 for a, b in zip(states[0].iterate, states[1].iterate, strict=True)]
    _assert_close(states[1].weights, mean)


@pytest.mark.quick_cases("1.0")
@pytest.mark.parametrize("alpha", [1.0, 0.0])
def test_adafedadam_with_one_full_batch_step_is_adam(problem, alpha):
    """C = 1, U = G: the server steps as Adam does on the weighted mean gradient."""
    model = toy.plain_model(problem)
    process = tff_algos.build(
        "adafedadam",
        model,
        client_learning_rate=0.3,
        server_learning_rate=0.05,
        beta1=0.8,
        beta2=0.9,
        loss_reference="none",
        alpha=alpha,
    )
    data = [
        tff_algos.batch_client(
            x.astype(np.float32), y.astype(np.int32), batch_size=1, full_batch=True
        )
        for x, y in problem.clients
    ]
    x, m, v = cohort_lib.flat(problem.initial_weights), 0.0, 0.0
    with shared.installed("tff"):
        state = process.initialize()
        for t in (1, 2, 3):
            output = process.next(state, data)
            state = output.state
            np.testing.assert_allclose(output.metrics["certainty"], 1.0, atol=1e-5)
            weights = cohort_lib.like(problem.initial_weights, x)
            w = np.array(
                [len(y) * problem_lib.mean_loss(weights, x, y) ** alpha for x, y in problem.clients]
            )
            gradients = [
                cohort_lib.flat(problem_lib.gradient(weights, *c)) for c in problem.clients
            ]
            g = w @ np.stack(gradients) / w.sum()
            m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
            x = x - 0.05 * m / (1 - 0.8**t) / (np.sqrt(v / (1 - 0.9**t)) + 1e-8)
            np.testing.assert_allclose(cohort_lib.flat(state.weights), x, atol=1e-5)


@pytest.mark.slow
def test_adafedadam_counts_its_certainties(problem):
    states, metrics = _run(problem, "adafedadam", 3, beta1=0.9)
    certainties = [float(m["certainty"]) for m in metrics]
    assert min(certainties) > 1, "several local steps are more certain than one"
    np.testing.assert_allclose(states[-1].c_m, 0.9 ** sum(certainties), rtol=1e-6)
    np.testing.assert_allclose(states[-1].c_v, 0.999 ** sum(certainties), rtol=1e-6)
    assert not any(float(m["certainty_clamped"]) for m in metrics)


@pytest.mark.parametrize("name", ["qfedavg", "term", "afl", "adafed", "fedfa"])
def test_weights_that_the_method_fixes_cannot_be_chosen(name):
    settings = dict(client_learning_rate=0.1, client_weighting="examples")
    with pytest.raises(HparamError, match=f"client_weighting is not supported by {name}"):
        tff_algos.build(name, lambda: pytest.fail("built"), num_clients=5, **settings)


def test_fedfa_names_the_metrics_that_there_are(problem):
    with pytest.raises(HparamError, match=r"accuracy_metric=recall .*loss, accuracy"):
        tff_algos.build(
            "fedfa",
            toy.plain_model(problem),
            num_clients=5,
            client_learning_rate=0.1,
            accuracy_metric="recall",
        )
