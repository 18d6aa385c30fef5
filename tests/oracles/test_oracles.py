"""The oracles against numbers worked out by hand, against each other and against the library."""

import inspect
import math
from typing import NamedTuple

import numpy as np
import pytest

from tests.oracles import (
    client_optimizers,
    cohort,
    delta_sgd,
    fedacg,
    fedadamw,
    fedcm,
    feddyn,
    fedexp,
    fedfv,
    fedopt,
    fedsam,
    problem,
    propfair,
    rounds,
)

# Parameters, betas and taus are sums of few powers of two, so that ties in Yogi are exact.
_X0 = (np.array([1.0, -1.0]),)
_HYPER = {"lr": 0.5, "beta1": 0.5, "beta2": 0.75, "momentum": 0.5}


def _server_steps(algorithm, variant, gradients, tau):
    """Models [3, 2] and slots after three server steps on the rows of `gradients` [3, 2]."""
    x, slots = _X0, fedopt.server_init(algorithm, variant, _X0, tau=tau)
    models, history = [], []
    for g in np.array(gradients, dtype=np.float64):
        slots, x = fedopt.server_step(algorithm, variant, slots, x, (g,), tau=tau, **_HYPER)
        models.append(x[0])
        history.append(slots)
    return np.array(models), history


def _check_steps(algorithm, variant, tau, gradients, v, models):
    actual, slots = _server_steps(algorithm, variant, gradients, tau)
    np.testing.assert_allclose(actual, models, rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose([s.v[0] for s in slots], v, rtol=1e-14, atol=1e-14)
    assert [s.t for s in slots] == [1, 2, 3]


@pytest.mark.parametrize("variant", fedopt.VARIANTS)
def test_fedavg_by_hand(variant):
    """x <- x - g / 2 from (1, -1).

    g = (3, 0): (-1/2, -1) ; g = (4, 8): (-5/2, -5) ; g = (12, -6): (-17/2, -2).
    """
    _check_steps(
        "fedavg",
        variant,
        1.0,
        [[3, 0], [4, 8], [12, -6]],
        np.zeros((3, 2)),
        [[-0.5, -1], [-2.5, -5], [-8.5, -2]],
    )


@pytest.mark.parametrize("variant", fedopt.VARIANTS)
def test_fedavgm_by_hand(variant):
    """u <- u / 2 + g ; x <- x - u / 2 from (1, -1).

    g = (3, 0):   u = (3, 0)       x = (-1/2, -1)
    g = (4, 8):   u = (5.5, 8)     x = (-3.25, -5)
    g = (12, -6): u = (14.75, -2)  x = (-10.625, -4)
    """
    _check_steps(
        "fedavgm",
        variant,
        1.0,
        [[3, 0], [4, 8], [12, -6]],
        np.zeros((3, 2)),
        [[-0.5, -1], [-3.25, -5], [-10.625, -4]],
    )


def test_fedadagrad_released_by_hand():
    """tau = 1, v_0 = 0, v <- v + g^2, x <- x - g / (2 (sqrt(v) + 1)) from (1, -1).

    g = (3, 0):   v = (9, 0)      x = (1 - 3/8,  -1)          = (5/8, -1)
    g = (4, 8):   v = (25, 64)    x = (5/8 - 4/12, -1 - 8/18) = (7/24, -13/9)
    g = (12, -6): v = (169, 100)  x = (7/24 - 12/28, -13/9 + 6/22) = (-23/168, -116/99)
    """
    _check_steps(
        "fedadagrad",
        "released",
        1.0,
        [[3, 0], [4, 8], [12, -6]],
        [[9, 0], [25, 64], [169, 100]],
        [[5 / 8, -1], [7 / 24, -13 / 9], [-23 / 168, -116 / 99]],
    )


def test_fedadagrad_algorithm2_by_hand():
    """tau = 4, v_-1 = 16, v <- v + g^2, x <- x - g / (2 (sqrt(v) + 4)) from (1, -1).

    g = (3, -3):   v = (25, 25)     x = (1 - 3/18, -1 + 3/18)          = (5/6, -5/6)
    g = (12, 0):   v = (169, 25)    x = (5/6 - 12/34, -5/6)            = (49/102, -5/6)
    g = (-84, 12): v = (7225, 169)  x = (49/102 + 84/178, -5/6 - 12/34) = (8645/9078, -121/102)
    """
    _check_steps(
        "fedadagrad",
        "algorithm2",
        4.0,
        [[3, -3], [12, 0], [-84, 12]],
        [[25, 25], [169, 25], [7225, 169]],
        [[5 / 6, -5 / 6], [49 / 102, -5 / 6], [8645 / 9078, -121 / 102]],
    )


def test_fedadam_released_by_hand():
    """tau = 1, m_0 = v_0 = 0, m <- m/2 + g/2, v <- 3v/4 + g^2/4, step a_t m / (2 (sqrt(v) + 1)).

    a_t = sqrt(1 - (3/4)^t) / (1 - (1/2)^t):
    a_1 = (1/2) / (1/2) = 1, a_2 = sqrt(7/16) / (3/4) = sqrt(7)/3, a_3 = sqrt(37/64) / (7/8) =
    sqrt(37)/7.

    g = (4, 0):       m = (2, 0)         v = (2^2, 0)          x = (1 - 2/6, -1)
    g = (5.5, 4):     m = (3.75, 2)      v = (3.25^2, 2^2)     x -= a_2 (3.75/8.5, 2/6)
    g = (-8.9375, 2): m = (-2.59375, 2)  v = (5.28125^2, 2^2)  x -= a_3 (-2.59375/12.5625, 2/6)
    """
    _check_steps(
        "fedadam",
        "released",
        1.0,
        [[4, 0], [5.5, 4], [-8.9375, 2]],
        [[4, 0], [10.5625, 4], [27.8916015625, 4]],
        [
            [0.666666666666666666, -1],
            [0.277585591510109226, -1.29397236789606562],
            [0.456998985260909594, -1.58362772648169513],
        ],
    )


def test_fedadam_algorithm2_by_hand():
    """tau = 2, v_-1 = 4, m <- m/2 + g/2, v <- 3v/4 + m^2/4, x <- x - m / (2 (sqrt(v) + 2)).

    g = (4, 11):          m = (2, 5.5)            v = (2^2, 3.25^2)
                          x = (1 - 2/8, -1 - 5.5/10.5) = (3/4, -32/21)
    g = (9, 1):           m = (5.5, 3.25)         v = (3.25^2, 3.25^2)
                          x = (3/4 - 5.5/10.5, -32/21 - 3.25/10.5) = (19/84, -11/6)
    g = (-23.375, -21.125): m = (-8.9375, -8.9375)  v = (5.28125^2, 5.28125^2)
                          x = (19/84, -11/6) + 8.9375/14.5625 = (16439/19572, -1705/1398)
    """
    _check_steps(
        "fedadam",
        "algorithm2",
        2.0,
        [[4, 11], [9, 1], [-23.375, -21.125]],
        [[4, 10.5625], [10.5625, 10.5625], [27.8916015625, 27.8916015625]],
        [[3 / 4, -32 / 21], [19 / 84, -11 / 6], [16439 / 19572, -1705 / 1398]],
    )


def test_fedyogi_released_by_hand():
    """tau = 1, m_0 = v_0 = 0, m <- m/2 + g/2, v <- v + sign(g^2 - v) g^2/4, step as for fedadam.

    The second parameter meets g^2 = v twice (0 = 0, then 4 = 4), where v stays.

    g = (4, 0):    m = (2, 0)     v = (0 + 4, 0)         = (2^2, 0)      x = (1 - 2/6, -1)
    g = (3, 4):    m = (2.5, 2)   v = (4 + 2.25, 0 + 4)  = (2.5^2, 2^2)  x -= a_2 (2.5/7, 2/6)
    g = (-1.4, 2): m = (0.55, 2)  v = (6.25 - 0.49, 4)   = (2.4^2, 2^2)  x -= a_3 (0.55/6.8, 2/6)
    """
    _check_steps(
        "fedyogi",
        "released",
        1.0,
        [[4, 0], [3, 4], [-1.4, 2]],
        [[4, 0], [6.25, 4], [5.76, 4]],
        [
            [0.666666666666666666, -1],
            [0.351696272492310643, -1.29397236789606562],
            [0.281412251659032895, -1.58362772648169513],
        ],
    )


def test_fedyogi_algorithm2_by_hand():
    """tau = 2, v_-1 = 4, v <- v + sign(m^2 - v) m^2/4, x <- x - m / (2 (sqrt(v) + 2)).

    The first parameter starts with m^2 = v.

    g = (4, 6):       m = (2, 3)       v = (4, 4 + 2.25)           = (2^2, 2.5^2)
                      x = (1 - 2/8, -1 - 3/9)             = (3/4, -4/3)
    g = (4, -0.2):    m = (3, 1.4)     v = (4 + 2.25, 6.25 - 0.49) = (2.5^2, 2.4^2)
                      x = (3/4 - 3/9, -4/3 - 1.4/8.8)     = (5/12, -197/132)
    g = (-5.8, -1.4): m = (-1.4, 0)    v = (6.25 - 0.49, 5.76)     = (2.4^2, 2.4^2)
                      x = (5/12 + 1.4/8.8, -197/132)      = (19/33, -197/132)
    """
    _check_steps(
        "fedyogi",
        "algorithm2",
        2.0,
        [[4, 6], [4, -0.2], [-5.8, -1.4]],
        [[4, 6.25], [6.25, 5.76], [5.76, 5.76]],
        [[3 / 4, -4 / 3], [5 / 12, -197 / 132], [19 / 33, -197 / 132]],
    )


def test_yogi_is_the_papers_form():
    """The paper writes v <- v - (1 - beta2) Delta^2 sign(v - Delta^2), with Delta = -g."""
    gradients = np.random.default_rng(1).normal(size=(20, 2))
    gradients[3] = 0.0
    slots, x = fedopt.server_init("fedyogi", "released", _X0, tau=1.0), _X0
    v = np.zeros(2)
    for g in gradients:
        slots, x = fedopt.server_step("fedyogi", "released", slots, x, (g,), lr=0.1, beta2=0.6)
        v = v - (1 - 0.6) * g**2 * np.sign(v - g**2)
        np.testing.assert_allclose(slots.v[0], v, rtol=1e-13)


@pytest.mark.parametrize("seed", [0, 1])
def test_problem_is_deterministic_and_exact_in_float32(seed):
    data = problem.make_problem(seed)
    again = problem.make_problem(seed)
    assert [len(y) for _, y in data.clients] == [1, 3, 4, 7, 10]
    assert {int(c) for _, y in data.clients for c in y} == {0, 1, 2}
    for (x, y), (x2, y2) in zip(data.clients, again.clients, strict=True):
        np.testing.assert_array_equal(x, x2)
        np.testing.assert_array_equal(y, y2)
        assert x.shape == (len(y), 3)
    for array in [*data.initial_weights, *(x for x, _ in data.clients)]:
        assert array.dtype == np.float64
        np.testing.assert_array_equal(array, array.astype(np.float32))
    assert np.any(problem.make_problem(seed + 2).clients[0][0] != data.clients[0][0])


def test_loss_and_accuracy_by_hand():
    """Logits of x = (1, 0, 0) are the kernel's first row (0, ln 2, ln 5): P = (1, 2, 5) / 8."""
    weights = (np.array([[0, math.log(2), math.log(5)], [0, 0, 0], [0, 0, 0]]), np.zeros(3))
    x, y = np.array([[1.0, 0, 0], [1.0, 0, 0]]), np.array([1, 2])
    assert problem.mean_loss(weights, x, y) == pytest.approx(math.log(8) - math.log(10) / 2)
    assert problem.accuracy(weights, x, y) == 0.5
    kernel, bias = problem.gradient(weights, x, y)
    np.testing.assert_allclose(bias, [1 / 8, -1 / 4, 1 / 8], atol=1e-15)
    np.testing.assert_allclose(kernel, [[1 / 8, -1 / 4, 1 / 8], [0] * 3, [0] * 3], atol=1e-15)


def test_gradient_by_central_differences():
    data = problem.make_problem()
    h = 1e-6
    for x, y in data.clients:
        analytic = problem.gradient(data.initial_weights, x, y)
        for i, array in enumerate(data.initial_weights):
            for index in np.ndindex(array.shape):
                losses = []
                for sign in (1, -1):
                    moved = [w.copy() for w in data.initial_weights]
                    moved[i][index] += sign * h
                    losses.append(problem.mean_loss(tuple(moved), x, y))
                numeric = (losses[0] - losses[1]) / (2 * h)
                assert analytic[i][index] == pytest.approx(numeric, abs=1e-8)


def test_batches_keep_the_last_partial_one():
    assert [b.tolist() for b in problem.batches(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [b.tolist() for b in problem.batches(6, 3)] == [[0, 1, 2], [3, 4, 5]]
    assert problem.batches(0, 3) == []
    orders = problem.in_order(problem.make_problem(), [[1], [2, 0]], batch_size=2, epochs=2)
    assert [{k: [b.tolist() for b in v] for k, v in o.items()} for o in orders] == [
        {1: [[0, 1], [2], [0, 1], [2]]},
        {2: [[0, 1], [2, 3], [0, 1], [2, 3]], 0: [[0], [0]]},
    ]


def test_schedules_by_hand():
    decay = fedopt.exponential_decay(2.0)
    assert [decay(r) for r in (0, 499, 500, 999, 1000)] == pytest.approx([2, 2, 0.2, 0.2, 0.02])
    decay = fedopt.exponential_decay(3.0, decay_rounds=2, rate=0.5)
    assert [decay(r) for r in range(5)] == [3, 3, 1.5, 1.5, 0.75]
    root = fedopt.inverse_sqrt(6.0, decay_rounds=2)
    assert [root(r) for r in (0, 2, 6, 16)] == pytest.approx([6, 6 / math.sqrt(2), 3, 2])
    warm = fedopt.linear_warmup(8.0, warmup_rounds=4)
    assert [warm(r) for r in range(6)] == [2, 4, 6, 8, 8, 8]
    warm = fedopt.linear_warmup(fedopt.exponential_decay(8.0, 2, 0.5), warmup_rounds=4)
    assert [warm(r) for r in range(6)] == [2, 4, 3, 4, 2, 2]
    assert fedopt.linear_warmup(8.0, warmup_rounds=0)(0) == 8
    assert fedopt.constant(8.0)(1000) == 8


@pytest.mark.parametrize("name", [n for n in client_optimizers.NAMES if n != "nesterov"])
def test_client_optimizers_are_the_librarys(name):
    """Five steps, one of them with a gradient of 0, beside TFF's own; and the defaults."""
    import tensorflow as tf
    import tensorflow_federated as tff

    builder = getattr(tff.learning.optimizers, "build_sgdm" if name == "sgd" else f"build_{name}")
    theirs = {p.name: p.default for p in inspect.signature(builder).parameters.values()}
    ours = inspect.signature(getattr(client_optimizers, name)).parameters.values()
    for parameter in ours:
        their_default = theirs[parameter.name.replace("beta", "beta_")]
        assert parameter.default == (0.9 if parameter.name == "momentum" else their_default)

    # Exact in float32, in which the library computes its bias correction.
    options = {"beta1": 0.5, "beta2": 0.75, "decay": 0.75, "momentum": 0.5, "epsilon": 0.25}
    options = {p.name: options[p.name] for p in ours if p.name in options}
    reference = builder(
        learning_rate=0.1, **{k.replace("beta", "beta_"): v for k, v in options.items()}
    )
    optimizer = client_optimizers.build(name, **options)

    rng = np.random.default_rng(0)
    weights = (rng.normal(size=(3, 2)), rng.normal(size=2))
    slots = optimizer.init(weights)
    their_weights = [tf.constant(w) for w in weights]
    state = reference.initialize([tf.TensorSpec(w.shape, tf.float64) for w in weights])
    for scale in (1.0, 2.0, 0.0, 0.3, 1.0):
        grads = (scale * rng.normal(size=(3, 2)), scale * rng.normal(size=2))
        slots, weights = optimizer.step(slots, weights, grads, 0.1)
        state, their_weights = reference.next(state, their_weights, [tf.constant(g) for g in grads])
        for w, expected in zip(weights, their_weights, strict=True):
            np.testing.assert_allclose(w, expected.numpy(), rtol=1e-6, atol=1e-7)
    assert slots.t == 5


def test_nesterovs_momentum_is_keras():
    """Five steps beside Keras, whose momentum has the learning rate inside."""
    import tensorflow as tf

    optimizer = client_optimizers.build("nesterov", momentum=0.5)
    variable = tf.Variable(np.array([1.0, -2.0]))
    reference = tf.keras.optimizers.SGD(0.125, momentum=0.5, nesterov=True)
    weights = (variable.numpy(),)
    slots = optimizer.init(weights)
    for gradient in np.random.default_rng(1).normal(size=(5, 2)):
        slots, weights = optimizer.step(slots, weights, (gradient,), 0.125)
        reference.apply_gradients([(tf.constant(gradient), variable)])
        np.testing.assert_allclose(weights[0], variable.numpy(), rtol=1e-12)


_DATA = problem.make_problem()
_COHORTS = [[0, 1, 4], [2, 3], [4, 0, 2]]
_ORDERS = problem.in_order(_DATA, _COHORTS, batch_size=3, epochs=2)


def _run(algorithm="fedavg", variant="released", **options):
    options = {
        "batch_orders": _ORDERS,
        "rounds": 3,
        "cohorts": _COHORTS,
        "client_lr": 0.1,
        "server_lr": 0.5,
        "tau": 0.01,
    } | options
    return fedopt.run(_DATA, algorithm, variant, **options)


def _assert_same(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_one_client_and_one_epoch_is_plain_sgd():
    orders = problem.in_order(_DATA, [[3], [3]], batch_size=2)
    result = _run(batch_orders=orders, cohorts=[[3], [3]], rounds=2, client_lr=0.3, server_lr=1.0)
    x, y = _DATA.clients[3]
    kernel, bias = _DATA.initial_weights
    for r in range(2):
        for i in ([0, 1], [2, 3], [4, 5], [6]):
            d_kernel, d_bias = problem.gradient((kernel, bias), x[i], y[i])
            kernel, bias = kernel - 0.3 * d_kernel, bias - 0.3 * d_bias
        _assert_same(result.weights[r], (kernel, bias))


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_one_full_batch_step_is_gradient_descent(weighting):
    """Weighted by examples, on the loss of all data; weighted equally, on the mean client loss."""
    everyone = [0, 1, 2, 3, 4]
    orders = problem.in_order(_DATA, [everyone], batch_size=10)
    result = _run(
        batch_orders=orders,
        cohorts=[everyone],
        rounds=1,
        client_lr=0.2,
        server_lr=0.5,
        weighting=weighting,
    )
    if weighting == "examples":
        x, y = (np.concatenate(arrays) for arrays in zip(*_DATA.clients, strict=True))
        grads = problem.gradient(_DATA.initial_weights, x, y)
    else:
        grads = [problem.gradient(_DATA.initial_weights, x, y) for x, y in _DATA.clients]
        grads = [sum(arrays) / 5 for arrays in zip(*grads, strict=True)]
    expected = [w - 0.5 * 0.2 * g for w, g in zip(_DATA.initial_weights, grads, strict=True)]
    _assert_same(result.weights[0], expected)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_dropped_client_is_as_good_as_absent(weighting):
    dropped = _run("fedadam", dropped={(0, 4), (2, 0)}, weighting=weighting)
    absent = _run("fedadam", cohorts=[[0, 1], [2, 3], [4, 2]], weighting=weighting)
    present = _run("fedadam", weighting=weighting)
    for r in range(3):
        _assert_same(dropped.weights[r], absent.weights[r])
        assert np.abs(dropped.weights[r][0] - present.weights[r][0]).max() > 1e-6


def test_an_update_that_overflows_is_dropped():
    clients = list(_DATA.clients)
    clients[4] = (np.full((10, 3), np.inf), clients[4][1])
    data = problem.Problem(clients, _DATA.initial_weights)
    options = {"rounds": 3, "cohorts": _COHORTS, "client_lr": 0.1, "server_lr": 0.5}
    with np.errstate(invalid="ignore"):
        result = fedopt.run(data, "fedavgm", "released", _ORDERS, **options)
    expected = _run("fedavgm", dropped={(0, 4), (2, 4)})
    _assert_same(result.weights[-1], expected.weights[-1])


@pytest.mark.parametrize("variant", fedopt.VARIANTS)
@pytest.mark.parametrize("algorithm", fedopt.ALGORITHMS)
def test_a_round_without_weight_leaves_all_state(algorithm, variant):
    """An empty cohort and a cohort of dropped clients; the count of server steps stays too."""
    cohorts = [_COHORTS[0], [], [2, 3], _COHORTS[2]]
    orders = [_ORDERS[0], {}, _ORDERS[1], _ORDERS[2]]
    result = _run(
        algorithm,
        variant,
        rounds=4,
        cohorts=cohorts,
        batch_orders=orders,
        dropped={(2, 2), (2, 3)},
    )
    for r in (1, 2):
        _assert_same(result.weights[r], result.weights[0])
        assert result.slots[r] is result.slots[0]
    shorter = _run(
        algorithm,
        variant,
        rounds=2,
        cohorts=[cohorts[0], cohorts[3]],
        batch_orders=[orders[0], orders[3]],
    )
    _assert_same(result.weights[3], shorter.weights[1])
    assert result.slots[3].t == 2


def test_a_client_without_examples_has_no_part_under_either_weighting():
    data = problem.make_problem(num_examples=(4, 0))
    orders = problem.in_order(data, [[0, 1]], batch_size=2)
    moves = {}
    for weighting in ("examples", "uniform"):
        result = fedopt.run(
            data,
            "fedavg",
            "released",
            orders,
            rounds=1,
            cohorts=[[0, 1]],
            client_lr=0.1,
            server_lr=1.0,
            weighting=weighting,
        )
        moves[weighting] = result.weights[0][0] - data.initial_weights[0]
    np.testing.assert_allclose(moves["examples"], moves["uniform"], rtol=1e-12)
    assert np.abs(moves["uniform"]).max() > 1e-3


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_cohort_without_examples(weighting):
    """No weight is left, so that nothing moves, not even by momentum."""
    data = problem.make_problem(num_examples=(4, 0))
    cohorts = [[0], [1]]
    result = fedopt.run(
        data,
        "fedavgm",
        "released",
        problem.in_order(data, cohorts, batch_size=2),
        rounds=2,
        cohorts=cohorts,
        client_lr=0.1,
        server_lr=1.0,
        momentum=0.5,
        weighting=weighting,
    )
    first, second = (w[0] for w in result.weights)
    assert np.abs(first - data.initial_weights[0]).max() > 1e-3
    np.testing.assert_array_equal(second, first)
    assert result.slots[1].t == 1


def test_rates_follow_the_round_number():
    """The second round's rates take effect in the second round, client and server alike."""
    scheduled = _run(client_lr=lambda r: [0.1, 0.3, 0.2][r], server_lr=lambda r: [1.0, 0.5, 2.0][r])
    x = _DATA.initial_weights
    for r, (client_lr, server_lr) in enumerate([(0.1, 1.0), (0.3, 0.5), (0.2, 2.0)]):
        result = fedopt.run(
            problem.Problem(_DATA.clients, x),
            "fedavg",
            "released",
            _ORDERS[r:],
            rounds=1,
            cohorts=_COHORTS[r:],
            client_lr=client_lr,
            server_lr=server_lr,
        )
        x = result.weights[0]
        _assert_same(scheduled.weights[r], x)


@pytest.mark.parametrize("name", client_optimizers.NAMES)
def test_client_slots_start_afresh_every_round(name):
    result = _run(
        client_optimizer=name, rounds=2, cohorts=[[2], [2]], batch_orders=[_ORDERS[1]] * 2
    )
    again = fedopt.run(
        problem.Problem(_DATA.clients, result.weights[0]),
        "fedavg",
        "released",
        [_ORDERS[1]],
        rounds=1,
        cohorts=[[2]],
        client_lr=0.1,
        server_lr=0.5,
        client_optimizer=client_optimizers.build(name),
    )
    _assert_same(result.weights[1], again.weights[0])


def test_variants_and_algorithms_differ():
    """Ten runs, of which only the two non-adaptive methods agree between the variants."""
    finals = {(a, v): _run(a, v).weights[-1][0] for a in fedopt.ALGORITHMS for v in fedopt.VARIANTS}
    for left, right in [(p, q) for p in finals for q in finals if p < q]:
        same = left[0] == right[0] and left[0] in ("fedavg", "fedavgm")
        assert np.allclose(finals[left], finals[right], rtol=0, atol=1e-6) == same, (left, right)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="fedsgd"):
        _run("fedsgd")
    with pytest.raises(ValueError, match="printed"):
        _run("fedadam", "printed")
    with pytest.raises(ValueError, match="loss"):
        _run(weighting="loss")


def test_feddyns_server_by_hand():
    """N = 4 clients, alpha = 1/2, two of them at (3, 0) and (5, 2) from x = (1, -1).

    The mean is (4, 1), so h = 0 - (1/2) (2/4) (3, 2) = (-3/4, -1/2) and
    x = (4, 1) - 2 h = (11/2, 2); then one at (11/2, 4): h = (-3/4, -1/2) - (1/8) (0, 2)
    = (-3/4, -3/4) and x = (11/2, 4) + (3/2, 3/2) = (7, 11/2).
    """
    x, h = (np.array([1.0, -1.0]),), (np.zeros(2),)
    models = [(np.array([3.0, 0.0]),), (np.array([5.0, 2.0]),)]
    h, mean, x = feddyn.server_step(h, models, np.array([0.5, 0.5]), x, 0.5, 4)
    np.testing.assert_allclose(mean[0], [4, 1])
    np.testing.assert_allclose(h[0], [-3 / 4, -1 / 2])
    np.testing.assert_allclose(x[0], [11 / 2, 2])
    h, _, x = feddyn.server_step(h, [(np.array([11 / 2, 4.0]),)], np.array([1.0]), x, 0.5, 4)
    np.testing.assert_allclose(h[0], [-3 / 4, -3 / 4])
    np.testing.assert_allclose(x[0], [7, 11 / 2])


def test_feddyns_state_is_the_mean_of_its_clients():
    """With equal alpha the server's h is (1/N) sum_k h_k: the paper's reason for both updates."""
    run = feddyn.run(_DATA, _ORDERS, _COHORTS, client_lr=0.1, alpha=0.3)
    for h, kept in run.states:
        mean = rounds.mean(np.full(len(kept), 1 / 5), list(kept.values()))
        _assert_same(h, mean)


class _Line(NamedTuple):
    """A client whose gradient is (3, -1) at 0, and 2 w more at w, whatever the minibatch."""

    batches: tuple = (0, 1)
    lr: float = 0.5

    def gradient(self, weights, indices):
        return (np.array([3.0, -1.0]) + 2 * weights[0],)


def test_fedcms_client_by_hand():
    """x = (0, 0), d = (4, 8), a = 1/4, lr = 1/2.

    x_k = 0 - (1/2) [(3, -1) / 4 + (3, 6)] = (-15/8, -23/8), where g = (-3/4, -27/4) ; then
    x_k - (1/2) [(-3/16, -27/16) + (3, 6)] = (-105/32, -161/32).
    """
    zero, d = (np.zeros(2),), (np.array([4.0, 8.0]),)
    delta = fedcm.client_update(zero, _Line(), d, 0.25, lambda c, x, b: c.gradient(x, b))
    np.testing.assert_allclose(delta[0], [-105 / 32, -161 / 32])


def test_fedcms_direction_is_the_mean_gradient_of_equal_steps():
    """One step of every client: d is the mean of the directions that they went."""
    orders = problem.in_order(_DATA, [[2, 3]], batch_size=10)
    run = fedcm.run(_DATA, orders, [[2, 3]], client_lr=0.3, alpha=0.25)
    gradients = [problem.gradient(_DATA.initial_weights, *_DATA.clients[k]) for k in (2, 3)]
    _assert_same(run.states[0][0], rounds.mean(np.array([1 / 8, 1 / 8]), gradients))
    plain = fedcm.run(_DATA, orders, [[2, 3]], client_lr=0.3, alpha=0.25, first_round="plain")
    _assert_same(plain.states[0][0], rounds.mean(np.array([1 / 2, 1 / 2]), gradients))


def test_fedsams_gradient_by_hand():
    """At 0, g = (3, -1): s = g + 2 rho g / |g|. With rho = sqrt(10) that is 3 g.

    epsilon = sqrt(10) doubles the divisor: s = 2 g.
    """
    zero, root = (np.zeros(2),), math.sqrt(10)
    (sharp,) = fedsam.sharp_gradient(root, 0.0)(_Line(), zero, 0)
    np.testing.assert_allclose(sharp, [9, -3])
    (less,) = fedsam.sharp_gradient(root, root)(_Line(), zero, 0)
    np.testing.assert_allclose(less, [6, -2])
    flat = (np.array([-1.5, 0.5]),)
    np.testing.assert_array_equal(fedsam.sharp_gradient(1.0, 0.0)(_Line(), flat, 0)[0], [0, 0])


def test_fedacgs_server_by_hand():
    """lambda = 1/2: m = (2, 4) / 2 + (1, -1) = (2, 1) and x = (1, 1) + m = (3, 2).

    The clients started at x + m / 2 = (2, 3) and ended, on average, at (3, 2): x is their mean.
    """
    x, m = fedacg.server_step(
        (np.array([1.0, 1.0]),), (np.array([2.0, 4.0]),), (np.array([1.0, -1.0]),), 0.5
    )
    np.testing.assert_allclose(m[0], [2, 1])
    np.testing.assert_allclose(x[0], [3, 2])


def test_fedadamws_client_by_hand():
    """beta1 = beta2 = 1/2, epsilon = 0, alpha = 1/2, lambda = 1/2, lr = 1/2, d = (4, 8), x = 0.

    g = (3, -1): m_hat / sqrt(v_hat) = (1, -1), x_k = -(1/2) [(1, -1) + (2, 4)] = (-3/2, -3/2) ;
    g = (0, -4): m = (3/4, -9/4), m_hat = (1, -3), v = (9/4, 33/4), v_hat = (3, 11),
    x_k <- x_k - (1/2) [(1/sqrt(3), -3/sqrt(11)) + (2, 4) -+ (3/4, 3/4)], + as printed.
    From v_bar = (1, 1) after one step, v_hat of the first is (5, 1) / (3/4); "common" has
    m_hat = (2/3) g of it.
    """
    zero, d = (np.zeros(2),), (np.array([4.0, 8.0]),)
    settings = {"alpha": 0.5, "beta1": 0.5, "beta2": 0.5, "epsilon": 0.0, "weight_decay": 0.5}
    settings |= {"bias_steps": "separate", "decay_sign": "adamw"}

    def after(batches, v=(0.0, 0.0), steps=0, **other):
        client = _Line(batches=batches)
        taken = settings | other
        (delta,), (v,) = fedadamw.client_update(zero, client, d, (np.array(v),), steps, **taken)
        return delta, v

    delta, v = after((0,))
    np.testing.assert_allclose(delta, [-3 / 2, -3 / 2])
    np.testing.assert_allclose(v, [9 / 2, 1 / 2])
    adam = np.array([1 / math.sqrt(3) + 2, -3 / math.sqrt(11) + 4])
    delta, v = after((0, 1))
    np.testing.assert_allclose(delta, -3 / 2 - (adam - 3 / 4) / 2)
    np.testing.assert_allclose(v, [9 / 4, 33 / 4])
    delta, _ = after((0, 1), decay_sign="printed")
    np.testing.assert_allclose(delta, -3 / 2 - (adam + 3 / 4) / 2)
    second = np.array([3 / math.sqrt(20 / 3), -1 / math.sqrt(4 / 3)])
    delta, v = after((0,), (1.0, 1.0), 1)
    np.testing.assert_allclose(delta, -(second + [2, 4]) / 2)
    np.testing.assert_allclose(v, [5, 1])
    delta, _ = after((0,), (1.0, 1.0), 1, bias_steps="common")
    np.testing.assert_allclose(delta, -(second * 2 / 3 + [2, 4]) / 2)


def test_fedexps_rate_by_hand():
    """(3, 0) and (-1, 2): mean (1, 1), |mean|^2 = 2, mean square (9 + 5) / 2 = 7.

    epsilon = 1/2: eta = 7 / (2 (2 + 1/2)) = 7/5. Equal updates give 1/2, so that eta is 1.
    With weights 3/4 and 1/4: mean (2, 1/2), 8 / (2 (17/4 + 1/2)) = 16/19, so that eta is 1.
    """
    deltas = [(np.array([3.0, 0.0]),), (np.array([-1.0, 2.0]),)]
    assert fedexp.server_rate(deltas, [0.5, 0.5], 0.5) == pytest.approx(7 / 5)
    assert fedexp.server_rate(deltas[:1] * 2, [0.5, 0.5], 0.0) == 1
    assert fedexp.server_rate(deltas, [0.75, 0.25], 0.5) == 1
    assert fedexp.server_rate(deltas, [0.25, 0.75], 0.0) == pytest.approx(6 / (2 * 9 / 4))


@pytest.mark.parametrize("difference", ["minibatch", "consecutive"])
def test_delta_sgds_steps_by_hand(difference):
    """The gradient is (3, -1) + 2 w, so that |x_t - x_(t-1)| / |g_t - g_(t-1)| is 1/2.

    eta_0 = 1/4, gamma = 2, delta = 3, theta_0 = 1: the steps are 1/4, then the lesser of 1/2 and
    sqrt(4) / 4 = 1/2, which is the minimum, w = (-3/2, 1/2). With gamma = 1: 1/4 again, theta = 1.
    """

    def steps(**settings):
        given = {"gamma": 2.0, "delta": 3.0, "theta0": 1.0, "first_step": "plain"} | settings
        client = _Line(batches=(0, 1), lr=0.25)
        return delta_sgd.client_update((np.zeros(2),), client, difference=difference, **given)

    moved, etas = steps()
    assert etas == pytest.approx([1 / 4, 1 / 2])
    np.testing.assert_allclose(moved[0], [-3 / 2, 1 / 2])
    assert steps(gamma=1.0)[1] == pytest.approx([1 / 4, 1 / 4])
    assert steps(gamma=9.0)[1] == pytest.approx([1 / 4, 1 / 2])
    assert steps(gamma=9.0, first_step="grown")[1] == pytest.approx([1 / 2, math.sqrt(7) / 2])
    assert steps(gamma=9.0, theta0=5.0)[1] == pytest.approx([1 / 4, 1])


def test_delta_sgd_grows_where_nothing_moves():
    """At a gradient of zero neither norm can be divided by."""
    client = _Line(batches=(0, 1, 2), lr=0.25)
    at_rest = (np.array([-1.5, 0.5]),)
    moved, etas = delta_sgd.client_update(at_rest, client, 2.0, 3.0, 1.0, "minibatch", "plain")
    np.testing.assert_array_equal(moved[0], [0, 0])
    assert etas == pytest.approx([1 / 4, 1 / 2, math.sqrt(7) / 2])


@pytest.mark.parametrize("guard", ["epsilon", "base"])
def test_propfairs_slope_is_that_of_its_loss(guard):
    """-log(M - f) by central differences; beyond M - f = epsilon a straight line."""
    h = 1e-6
    for f in (0.0, 0.5, 1.7):
        numeric = (math.log(2 - f + h) - math.log(2 - f - h)) / (2 * h)
        assert propfair.slope(f, 2.0, 0.2, guard) == pytest.approx(numeric)
    beyond = {"epsilon": 5.0, "base": 0.5}[guard]
    assert [propfair.slope(f, 2.0, 0.2, guard) for f in (1.81, 2.0, 9.0)] == [beyond] * 3


def test_fedfvs_projections_by_hand():
    """g_1 = (2, 0) of loss 1, g_2 = (-1, 1) of loss 2 and g_3 = (-1, 0) of loss 3.

    None kept: g_1 - (-2 / 2) (-1, 1) = (1, 1), then (1, 1) + (-1, 0) = (0, 1);
    g_2 + (2 / 4) (2, 0) = (0, 1), which g_3 does not turn; g_3 + (2 / 4) (2, 0) = (0, 0).
    Kept is the last third, from place ceil(2 (1 - 1/3)) = 2 on: g_3.
    """
    sent = np.array([[2.0, 0.0], [-1.0, 1.0], [-1.0, 0.0]])
    np.testing.assert_allclose(fedfv.project(sent, [1, 2, 3], 0.0), [[0, 1], [0, 1], [0, 0]])
    np.testing.assert_allclose(fedfv.project(sent, [1, 2, 3], 1 / 3), [[0, 1], [0, 1], [-1, 0]])
    np.testing.assert_array_equal(fedfv.project(sent, [1, 2, 3], 1.0), sent)


def test_fedfv_moves_as_far_as_the_mean_of_the_updates():
    """Whatever is projected; with one client a round and nothing before it is FedAvg."""
    orders = problem.in_order(_DATA, _COHORTS, batch_size=3, epochs=2)
    plain = _run(server_lr=1.0, weighting="uniform").weights[0]
    start = _DATA.initial_weights
    for alpha in (0.0, 0.5):
        x = fedfv.run(_DATA, orders, cohorts=_COHORTS, client_lr=0.1, alpha=alpha).weights[0]
        lengths = [
            np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(weights, start, strict=True)))
            for weights in (x, plain)
        ]
        assert lengths[0] == pytest.approx(lengths[1])
    alone = fedfv.run(_DATA, orders[1:], cohorts=[[3]], client_lr=0.1)
    _assert_same(
        alone.weights[0],
        _run(cohorts=[[3]], batch_orders=orders[1:], rounds=1, server_lr=1).weights[0],
    )


def test_fedfv_heeds_ages_by_hand():
    """g = (1, 0) in round 5. Two rounds old: (-1, 1) and, not in conflict, (1, 1): g = (1/2, 1/2).

    One old: (-1, 0) and (0, -2), together (-1, -2): g = (1/2, 1/2) - (3/10) (1, 2) = (1/5, -1/10).
    """
    known = {0: (3, [-1, 1]), 1: (3, [1, 1]), 2: (4, [-1, 0]), 3: (4, [0, -2]), 4: (2, [-9, 0])}
    known = {k: (when, np.array(h, float)) for k, (when, h) in known.items()}
    g = np.array([1.0, 0.0])
    np.testing.assert_allclose(fedfv.heed(g, known, 5, (2,)), [1 / 2, 1 / 2])
    np.testing.assert_allclose(fedfv.heed(g, known, 5, (2, 1)), [1 / 5, -1 / 10])


def test_fedfv_heeds_the_last_updates_of_absent_clients():
    """One client a round: the second's step loses what conflicts with the first's update."""
    found = 0
    for first, second in [(a, b) for a in range(5) for b in range(5) if a != b]:
        cohorts = [[first], [second]]
        orders = problem.in_order(_DATA, cohorts, batch_size=3, epochs=2)
        settings = {"cohorts": cohorts, "client_lr": 0.4}

        def models(orders=orders, settings=settings, **other):
            run = fedfv.run(_DATA, orders, **settings, **other)
            return [cohort.flat(x) for x in run.weights]

        plain, older, heeding = models(ages="released"), models(tau=2), models()
        one, two = plain[0] - cohort.flat(_DATA.initial_weights), plain[1] - plain[0]
        want = two
        if one @ two < 0:
            found += 1
            turned = two - (one @ two) / (one @ one) * one
            want = turned * np.linalg.norm(two) / np.linalg.norm(turned)
        np.testing.assert_allclose(heeding[1] - heeding[0], want, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(older, plain, rtol=1e-12)
    assert 0 < found < 20
