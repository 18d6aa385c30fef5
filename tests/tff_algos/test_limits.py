"""Degenerate cases in which a method must equal another, and laws that its paper states."""

import itertools
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from simulation.rounds import cohorts
from tasks.task import ArrayFederatedData
from tests.oracles import (
    client_adam,
    client_optimizers,
    fedcm,
    fedda,
    feddyn,
    fedopt,
    fedprox,
    fedsps,
    rounds,
)
from tests.oracles import problem as problem_lib
from tests.tff_algos import shared, toy
from tff_algos import client_data
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

EVERYONE = [tuple(range(5))] * 3


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


def states_of(problem, name, cohorts=toy.COHORTS, plan=None, **settings):
    """Runs a method; `plan` overrides what it asks of the clients."""
    settings = {"client_learning_rate": 0.2} | settings
    every = plan and (lambda round_num, total: plan)
    model = toy.eager_model(problem)
    return list(toy.run_eagerly(name, problem, model, cohorts, every, **settings))


def assert_same(states, want, atol=1e-5):
    for state, weights in zip(states, want, strict=True):
        for got, expected in zip(state.weights, weights, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=atol)


def fedavg(problem, cohorts=toy.COHORTS, orders=None, **settings):
    """FedAvg by its oracle."""
    settings = {"client_lr": 0.2, "server_lr": 1.0} | settings
    return fedopt.run(
        problem,
        "fedavg",
        "released",
        orders or toy.batch_orders(problem, cohorts),
        rounds=len(cohorts),
        cohorts=cohorts,
        **settings,
    ).weights


def steps_plan(steps=None, full=False):
    return tff_algos.RoundPlan(batches="full_batch" if full else "minibatch", local_steps=steps)


def orders_of(problem, cohorts, plan):
    return toy.batch_orders(problem, cohorts, lambda r, total: plan)


def full_gradient(problem, x, cohort=range(5)):
    """The gradient of the mean loss over all examples of a cohort."""
    chosen = [problem.clients[k] for k in cohort]
    features, labels = (np.concatenate(a) for a in zip(*chosen, strict=True))
    return problem_lib.gradient(x, features, labels)


@pytest.mark.parametrize(
    ("name", "settings", "weighting"),
    [
        ("fedprox", {"mu": 0.0}, "examples"),
        ("mfl", {"client_optimizer": "sgd"}, "examples"),
        ("mfl", {"client_optimizer": "sgdm", "client_momentum": 0.0}, "examples"),
        ("mimelite", {"client_optimizer": "sgd"}, "examples"),
        ("lookahead", {"client_optimizer": "sgd", "server_learning_rate": 1.0}, "examples"),
        ("fedacg", {"lambda_": 0.0, "beta": 0.0}, "uniform"),
        ("fedcm", {"alpha": 1.0}, "uniform"),
        ("fedfv", {"alpha": 1.0, "tau": 0}, "uniform"),
        ("fedsam", {"rho": 0.0}, "uniform"),
        ("mofedsam", {"rho": 0.0, "beta": 1.0}, "uniform"),
        # One minibatch a round has no first step to differ in.
        ("stem", {"a": 1.0}, "uniform"),
    ],
)
def test_is_fedavg(problem, name, settings, weighting):
    plan = steps_plan(1, full=name == "stem")
    if name == "stem":
        cohorts = [(2,)]
        orders = orders_of(problem, cohorts, plan)
        states = states_of(problem, name, cohorts, plan, **settings)
    else:
        plan = steps_plan()
        cohorts, orders = toy.COHORTS, None
        states = states_of(problem, name, plan=plan, **settings)
    assert_same(states, fedavg(problem, cohorts, orders, weighting=weighting))


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgdm", 0.6), ("nesterov", 0.6)])
def test_fednova_with_equal_steps_is_fedavg(problem, name, momentum):
    plan = steps_plan(4)
    settings = {"client_optimizer": name, "client_momentum": momentum} if momentum else {}
    states = states_of(problem, "fednova", plan=plan, **settings)
    optimizer = client_optimizers.build("sgdm" if name == "sgd" else name, momentum=momentum)
    orders = orders_of(problem, toy.COHORTS, plan)
    assert_same(states, fedavg(problem, orders=orders, client_optimizer=optimizer))


def test_fedcada_without_adjustment_is_adam_without_bias_correction(problem):
    """One client, several rounds: the moments continue where they were."""
    cohorts = [(4,), (4,)]
    settings = dict(beta1=0.6, beta2=0.8, epsilon=0.01, option="none")
    states = states_of(problem, "fedcada", cohorts, **settings)
    x, m, v, want = problem.initial_weights, 0.0, 0.0, []
    features, labels = problem.clients[4]
    for order in toy.batch_orders(problem, cohorts):
        for b in order[4]:
            g = problem_lib.gradient(x, features[b], labels[b])
            g = np.concatenate([g[0].ravel(), g[1]])
            m, v = 0.6 * m + 0.4 * g, 0.8 * v + 0.2 * g**2
            step = 0.2 * m / (np.sqrt(v) + 0.01)
            x = (x[0] - step[:9].reshape(3, 3), x[1] - step[9:])
        want.append(x)
    assert_same(states, want)


_CENTRAL = {
    "sgd": ({}, {}),
    "sgdm": ({"client_momentum": 0.6}, {"momentum": 0.6}),
    "adam": ({"client_beta1": 0.6}, {"beta1": 0.6}),
    "adagrad": ({}, {}),
    "yogi": ({"client_beta2": 0.8}, {"beta2": 0.8}),
}


@pytest.mark.quick_cases("None-adam", "3-sgdm")
@pytest.mark.parametrize("name", _CENTRAL)
@pytest.mark.parametrize("steps", [None, 3])
def test_centralized_is_one_optimizer_on_the_pooled_examples(problem, name, steps):
    """Batches as the loop draws them, a rate that falls tenfold; the optimizer never restarts."""
    ours, theirs = _CENTRAL[name]
    train, num_rounds = pooled_train(problem), 4
    process = tff_algos.build(
        "centralized",
        toy.plain_model(problem),
        client_optimizer=name,
        client_learning_rate=0.2,
        client_lr_schedule="exp_decay",
        client_lr_decay_steps=2,
        steps_per_round=steps,
        **ours,
    )
    settings = {
        "seed": 0,
        "client_batch_size": 4,
        "client_epochs_per_round": 1,
        "client_epochs_distribution": "fixed",
    }
    optimizer = client_optimizers.build(name, **theirs)
    rate = fedopt.exponential_decay(0.2, 2, 0.1)
    x, slots, want = problem.initial_weights, optimizer.init(problem.initial_weights), []
    states = []
    for r in range(num_rounds):
        (data,) = cohorts.cohort_data(train, process.plan(r, num_rounds), settings, r)
        data = client_data.arrays(data)
        assert len(data.mask) == (steps or 7)
        with shared.installed("tff"):
            state = process.next(states[-1] if states else process.initialize(), [data]).state
        states.append(state)
        for features, labels, mask in zip(*data[:3], strict=True):
            real = mask > 0
            g = problem_lib.gradient(x, features[real].astype(np.float64), labels[real])
            slots, x = optimizer.step(slots, x, g, rate(r))
        want.append(x)
    assert_same(states, want)


def pooled_train(problem):
    x, y = (np.concatenate(parts) for parts in zip(*problem.clients, strict=True))
    ends = np.cumsum([len(y) for _, y in problem.clients])
    rows = np.split(np.arange(len(y)), ends[:-1])
    return ArrayFederatedData(x.astype(np.float32), y.astype(np.int32), rows)


def test_fedams_largest_second_moment_never_falls(problem):
    states = states_of(problem, "fedams", beta2=0.1, server_learning_rate=0.1, epsilon_max=1e-6)
    fell = False
    for before, after in itertools.pairwise(states):
        old, new = before.optimizer, after.optimizer
        for a, b in zip(old.v_max, new.v_max, strict=True):
            assert np.all(np.asarray(b) >= np.asarray(a))
        for v, top in zip(new.v, new.v_max, strict=True):
            assert np.all(np.asarray(top) >= np.asarray(v))
        fell |= any(np.any(np.asarray(b) < a) for a, b in zip(old.v, new.v, strict=True))
    assert fell, "a second moment that only grows proves nothing"


def test_fedsps_on_a_quadratic_is_the_exact_line_step():
    """f = ½ a (w - y)², ℓ* = 0, c = ½: (½ a e²) / (½ a² e²) = 1 / a leads to the minimum."""
    layer = tf.keras.layers.Dense(1, use_bias=False)
    keras_model = tf.keras.Sequential([tf.keras.layers.InputLayer((1,)), layer])
    keras_model.set_weights([np.array([[3.0]], np.float32)])
    model = tff_algos.from_keras(
        keras_model,
        loss=lambda y, out: 0.5 * 1.7 * tf.square(out[:, 0] - y),
        y_spec=tf.TensorSpec([None], tf.float32),
    )
    process = tff_algos.build("fedsps", model, client_learning_rate=100.0, c=0.5)
    data = tff_algos.batch_client(
        np.ones((1, 1), np.float32), np.array([-2.0], np.float32), batch_size=1
    )
    with shared.installed("tff"):
        state = process.next(process.initialize(), [data]).state
    np.testing.assert_allclose(state.weights[0], [[-2.0]], atol=1e-5)


def test_fedsps_with_a_small_bound_is_fedavg(problem):
    """The oracle says that every step is at the bound."""
    orders = toy.batch_orders(problem, toy.COHORTS)
    run = fedsps.run(problem, orders, toy.COHORTS, client_lr=0.02, c=0.1)
    assert all(g == 0.02 for gammas in run.states for client in gammas for g in client)
    states = states_of(problem, "fedsps", client_learning_rate=0.02, c=0.1)
    assert_same(states, fedavg(problem, client_lr=0.02, weighting="uniform"))


def test_fedda_of_one_full_batch_is_centralised_momentum(problem):
    states = states_of(
        problem, "fedda_sgdm", EVERYONE, beta1=0.7, server_learning_rate=0.9, stabilization=0.99
    )
    # The plan's last 0.99 of three rounds is all of them.
    x, m, want = problem.initial_weights, rounds.zeros(problem.initial_weights), []
    for _ in EVERYONE:
        m = rounds.each(lambda m, g: 0.7 * m + 0.3 * g, m, full_gradient(problem, x))
        x = rounds.each(lambda x, m: x - 0.9 * 0.2 * m, x, m)
        want.append(x)
    assert_same(states, want)


def test_fedda_without_momentum_is_fedavg(problem):
    settings = dict(beta1=0.0, server_learning_rate=0.6, local_steps=4, stabilization=0.0)
    states = states_of(problem, "fedda_sgdm", **settings)
    orders = orders_of(problem, toy.COHORTS, steps_plan(4))
    assert_same(states, fedavg(problem, orders=orders, server_lr=0.6))


def test_feddas_gradient_and_momentum_make_its_sum(problem):
    """β₁ m + (1 - β₁) G = P: G of AdaGrad's V against P of the weights of SGDM."""
    common = dict(beta1=0.7, local_steps=4, stabilization=0.0, server_learning_rate=1.0)
    cohorts = toy.COHORTS[:1]
    (sgdm,) = states_of(problem, "fedda_sgdm", cohorts, **common)
    (adagrad,) = states_of(problem, "fedda_adagrad", cohorts, epsilon=1e-3, **common)
    for x, w, v in zip(problem.initial_weights, sgdm.weights, adagrad.v, strict=True):
        p = (x - np.asarray(w)) / 0.2
        np.testing.assert_allclose((0.3 * np.sqrt(v)), np.abs(p), rtol=1e-4, atol=1e-6)
    orders = orders_of(problem, toy.COHORTS, steps_plan(4))
    run = fedda.run(
        problem, "adam", orders, toy.COHORTS, client_lr=0.2, server_lr=1.0, beta1=0.7
    )  # fmt: skip
    m = rounds.zeros(problem.initial_weights)
    for new_m, _, _, p, g in run.states:
        for left, right in zip(rounds.each(lambda m, g: 0.7 * m + 0.3 * g, m, g), p, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-12)
        m = new_m


def test_fedlocal_of_sgd_goes_the_way_of_fedavg(problem):
    """Joint correction cancels when all clients take as many steps; local divides by them."""
    plan = steps_plan(4)
    orders = orders_of(problem, toy.COHORTS, plan)
    states = states_of(problem, "fedlocal", plan=plan, client_optimizer="sgd")
    assert_same(states, fedavg(problem, orders=orders))
    states = states_of(
        problem, "fedlocal", plan=plan, client_optimizer="sgd", correction="local",
        server_learning_rate=4.0,
    )  # fmt: skip
    assert_same(states, fedavg(problem, orders=orders))


def test_mimelite_is_tffs_mimelite(problem):
    """An independent implementation, with momentum, on the same batches."""
    spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int32))

    def tff_model():
        return tff.learning.models.from_keras_model(
            toy.keras_model(problem),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            input_spec=spec,
        )

    theirs = tff.learning.algorithms.build_weighted_mime_lite(
        tff_model, base_optimizer=tff.learning.optimizers.build_sgdm(0.2, 0.6)
    )
    datasets = [
        tf.data.Dataset.from_tensor_slices((x.astype(np.float32), y.astype(np.int32))).batch(3)
        for x, y in problem.clients
    ]
    ours = tff_algos.build(
        "mimelite", toy.plain_model(problem), client_learning_rate=0.2, client_momentum=0.6
    )
    with shared.installed("tff"):
        state, their_state = ours.initialize(), theirs.initialize()
        their_state = theirs.set_model_weights(
            their_state,
            tff.learning.models.ModelWeights(ours.get_model_weights(state).trainable, []),
        )
        for _ in range(3):
            state = ours.next(state, [tff_algos.from_dataset(d) for d in datasets]).state
            their_state = theirs.next(their_state, datasets).state
        want = theirs.get_model_weights(their_state).trainable
    for g, w in zip(state.weights, want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


def test_mfl_of_one_client_is_heavy_ball(problem):
    """Full batches: the buffer is kept from round to round."""
    cohorts = [(4,)] * 3
    states = states_of(problem, "mfl", cohorts, steps_plan(2, full=True), client_momentum=0.6)
    x, d, want = problem.initial_weights, rounds.zeros(problem.initial_weights), []
    for _ in cohorts:
        for _ in range(2):
            d = rounds.each(lambda d, g: 0.6 * d + g, d, full_gradient(problem, x, [4]))
            x = rounds.each(lambda x, d: x - 0.2 * d, x, d)
        want.append(x)
    assert_same(states, want)


@pytest.mark.parametrize("name", ["stem", "fafed"])
def test_forgetting_all_leaves_plain_gradients(problem, name):
    """STEM, a = 1, and FAFED, α = 1: d and m are the last gradient; STEM then does local SGD."""
    cohorts, key = [(4,)], {"stem": "a", "fafed": "alpha"}[name]
    plan = steps_plan(4)
    (state,) = states_of(problem, name, cohorts, plan, client_learning_rate=0.1, **{key: 1.0})
    ((order,),) = [list(o.values()) for o in orders_of(problem, cohorts, plan)]
    features, labels = problem.clients[4]

    def gradient(x, i):
        return problem_lib.gradient(x, features[order[i]], labels[order[i]])

    x, d = problem.initial_weights, full_gradient(problem, problem.initial_weights, [4])
    if name == "stem":
        for i in range(4):
            x = rounds.each(lambda x, d: x - 0.1 * d, x, d)
            d = gradient(x, i)
        got = state.d
    else:
        h = rounds.each(lambda g: np.abs(g) + 0.01, d)
        for i in range(4):
            d = gradient(x, i) if i else d
            x = rounds.each(lambda x, d, h: x - 0.1 * d / h, x, d, h)
        got = state.m
    assert_same([state], [x])
    for g, w in zip(got, d, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)


def test_fedlin_of_one_full_step_is_gradient_descent(problem):
    states = states_of(problem, "fedlin", EVERYONE, steps_plan(1, full=True))
    x, want = problem.initial_weights, []
    for _ in EVERYONE:
        x = rounds.each(lambda x, g: x - 0.2 * g, x, full_gradient(problem, x))
        want.append(x)
    assert_same(states, want)


def test_lookahead_at_its_ends(problem):
    plan = steps_plan(5)
    orders = orders_of(problem, toy.COHORTS, plan)
    common = dict(client_optimizer="adam", client_learning_rate=0.05)
    states = states_of(problem, "lookahead", server_learning_rate=1.0, **common)
    want = fedavg(problem, orders=orders, client_lr=0.05, client_optimizer="adam")
    assert_same(states, want)
    still = states_of(problem, "lookahead", server_learning_rate=0.0, state="average", **common)
    assert_same(still, [problem.initial_weights] * 4, atol=0)


def test_adaalters_first_round_and_one_step(problem):
    cohorts = [(4,)] * 3
    (state,) = states_of(problem, "adaalter", cohorts[:1])
    features, labels = problem.clients[4]
    x = problem.initial_weights
    for j, b in enumerate(toy.batch_orders(problem, cohorts[:1])[0][4], 1):
        g = problem_lib.gradient(x, features[b], labels[b])
        rate = 0.2 / np.sqrt(1 + j)
        x = rounds.each(lambda x, g, rate=rate: x - rate * g, x, g)
    assert_same([state], [x])
    # One step a round: Adagrad whose accumulator lags by a step.
    states = states_of(problem, "adaalter", cohorts, steps_plan(1, full=True), epsilon=0.5)
    x, a, want = problem.initial_weights, rounds.each(np.ones_like, problem.initial_weights), []
    for _ in cohorts:
        g = full_gradient(problem, x, [4])
        x = rounds.each(lambda x, g, a: x - 0.2 * g / np.sqrt(a + 0.25), x, g, a)
        a = rounds.each(lambda a, g: a + g**2, a, g)
        want.append(x)
    assert_same(states, want)


@pytest.mark.parametrize(
    "name",
    [
        "fedcada",
        "fedsps",
        "stem",
        "fedlin",
        "fafed",
        "adaalter",
        "fedcm",
        "fedsam",
        "mofedsam",
        "delta_sgd",
        "fedadamw",
    ],
)
def test_a_local_step_of_its_own_takes_no_other_optimizer(problem, name):
    with pytest.raises(HparamError, match="client_optimizer=adam is not supported"):
        tff_algos.build(
            name, toy.plain_model(problem), client_learning_rate=0.1, client_optimizer="adam"
        )


def test_lookahead_that_keeps_its_optimizer_is_one_long_run_of_it(problem):
    """One client, α = 1: the rounds are invisible."""
    cohorts = [(4,)] * 3
    adam = {"beta1": 0.6, "beta2": 0.8, "epsilon": 0.01}
    states = states_of(
        problem, "lookahead", cohorts, state="keep", local_steps=3, server_learning_rate=1.0,
        client_optimizer="adam", **{f"client_{k}": v for k, v in adam.items()},
    )  # fmt: skip
    optimizer = client_optimizers.build("adam", **adam)
    x, slots, want = problem.initial_weights, optimizer.init(problem.initial_weights), []
    features, labels = problem.clients[4]
    for order in orders_of(problem, cohorts, steps_plan(3)):
        for b in order[4]:
            g = problem_lib.gradient(x, features[b], labels[b])
            slots, x = optimizer.step(slots, x, g, 0.2)
        want.append(x)
    assert_same(states, want)


@pytest.mark.quick_cases("adam-lookahead", "yogi-mfl", "sgdm-mfl")
@pytest.mark.parametrize("name", ["lookahead", "mfl"])
@pytest.mark.parametrize("optimizer", ["sgdm", "adagrad", "adam", "adamw", "rmsprop", "yogi"])
def test_an_optimizers_settings_are_not_averaged(problem, name, optimizer):
    """Weights 1, 3, 4 and 7 leave no mean of 0.9 exactly 0.9; settings must not wander."""
    settings = {"client_optimizer": optimizer, "client_learning_rate": 0.01}
    if name == "lookahead":
        settings["state"] = "average"
    states = states_of(problem, name, **settings)
    made = client_optimizer(**settings)
    for state in states:
        for key, value in made.get_hparams(state.slots).items():
            if key != "learning_rate":
                np.testing.assert_array_equal(value, np.float32(made.initialize(())[key]), key)


def client_optimizer(client_optimizer, **settings):
    """One of TFF's with its own defaults."""
    if client_optimizer == "sgdm":
        return tff.learning.optimizers.build_sgdm(0.01, 0.9)
    return getattr(tff.learning.optimizers, f"build_{client_optimizer}")(0.01)


def test_client_adams_first_step_is_adams(problem):
    """m̂ = g and v̂ = g², whatever β: x - η_l g / (|g| + ε), in every round if reset."""
    cohorts, plan = [(4,)] * 2, steps_plan(1, full=True)
    states = states_of(problem, "client_adam", cohorts, plan, state="reset", epsilon=0.01)
    x, want = problem.initial_weights, []
    for _ in cohorts:
        g = full_gradient(problem, x, [4])
        x = rounds.each(lambda x, g: x - 0.2 * g / (np.abs(g) + 0.01), x, g)
        want.append(x)
    assert_same(states, want)


def test_equal_clients_have_equal_moments():
    data = problem_lib.make_problem(num_examples=(6,))
    twins = problem_lib.Problem([data.clients[0]] * 3, data.initial_weights)
    kept = {}
    plan = steps_plan(1, full=True)
    states_of(twins, "client_adam", [(0, 1, 2)] * 3, plan, kept=kept)
    assert np.abs(np.asarray(kept[0].kept.m[0])).max() > 1e-3
    for k in (1, 2):
        for a, b in zip(tf.nest.flatten(kept[0]), tf.nest.flatten(kept[k]), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("loss", ["batch", "round"])
@pytest.mark.parametrize(
    ("settings", "slope"),
    [
        # Far below M all losses count alike.
        ({"base": 1e6}, 1e-6),
        # All losses are beyond the guard.
        ({"base": 1e-3, "epsilon": 0.5}, 2.0),
        ({"base": 0.5, "epsilon": 1.0, "guard": "base"}, 2.0),
    ],
)
def test_propfair_of_equal_slopes_is_fedavg(problem, loss, settings, slope):
    rate = 0.2 / slope
    states = states_of(problem, "propfair", client_learning_rate=rate, loss=loss, **settings)
    assert_same(states, fedavg(problem), atol=5e-5)


def test_propfair_of_one_full_step_descends_the_mean_of_its_losses(problem):
    """Σ p_k of -∇log(M - F_k(x)), both of whose slopes are those of the whole data."""
    plan = steps_plan(1, full=True)
    states = states_of(problem, "propfair", EVERYONE[:1], plan, base=9.0)
    x, n = problem.initial_weights, np.array([len(y) for _, y in problem.clients])
    slopes = [1 / (9.0 - problem_lib.mean_loss(x, *c)) for c in problem.clients]
    gradients = [problem_lib.gradient(x, *c) for c in problem.clients]
    mean = rounds.mean(n / n.sum() * slopes, gradients)
    assert_same(states, [rounds.each(lambda x, g: x - 0.2 * g, x, mean)])


def test_delta_sgd_that_may_not_grow_nor_is_bounded_is_fedavg(problem):
    states = states_of(problem, "delta_sgd", gamma=1e6, delta=0.0)
    assert_same(states, fedavg(problem, weighting="uniform"))


def test_delta_sgd_on_a_quadratic_finds_its_curvature():
    """f = ½ a (w - y)²: the bound is γ / (2 a), and with γ = 2 the second step is Newton's."""
    layer = tf.keras.layers.Dense(1, use_bias=False)
    keras_model = tf.keras.Sequential([tf.keras.layers.InputLayer((1,)), layer])
    keras_model.set_weights([np.array([[3.0]], np.float32)])
    model = tff_algos.from_keras(
        keras_model,
        loss=lambda y, out: 0.5 * 1.7 * tf.square(out[:, 0] - y),
        y_spec=tf.TensorSpec([None], tf.float32),
    )
    process = tff_algos.build("delta_sgd", model, delta=100.0)
    data = tff_algos.batch_client(
        np.ones((1, 1), np.float32), np.array([-2.0], np.float32), batch_size=1, epochs=2
    )
    with shared.installed("tff"):
        state = process.next(process.initialize(), [data]).state
    np.testing.assert_allclose(state.weights[0], [[-2.0]], atol=1e-5)


@pytest.mark.parametrize("difference", ["minibatch", "consecutive"])
def test_delta_sgd_starts_anew_in_every_round(problem, difference):
    """A first step takes η_0, whatever was met in the round before."""
    settings = {"difference": difference, "gamma": 0.1}
    states = states_of(problem, "delta_sgd", [(4,)] * 3, steps_plan(1, full=True), **settings)
    x, want = problem.initial_weights, []
    for _ in range(3):
        x = rounds.each(lambda x, g: x - 0.2 * g, x, full_gradient(problem, x, [4]))
        want.append(x)
    assert_same(states, want)


@pytest.mark.parametrize("first_reported", ["mean", "iterate"])
def test_fedexp_of_equal_clients_is_fedavg(first_reported):
    """Their updates are their mean: 1 / 2 is below 1. What is reported lies half a round back."""
    data = problem_lib.make_problem(num_examples=(6,))
    twins = problem_lib.Problem([data.clients[0]] * 3, data.initial_weights)
    cohorts, plan = [(0, 1, 2)] * 3, steps_plan(2, full=True)
    states = states_of(twins, "fedexp", cohorts, plan, epsilon=0.0, first_reported=first_reported)
    iterates = fedavg(twins, cohorts, orders_of(twins, cohorts, plan), weighting="uniform")
    assert_same([toy_weights(s.iterate) for s in states], iterates)
    before = [iterates[0] if first_reported == "iterate" else twins.initial_weights, *iterates]
    half = [rounds.each(lambda a, b: (a + b) / 2, *pair) for pair in zip(before, iterates)]  # noqa: B905
    assert_same(states, half)


def test_fedexp_of_a_large_epsilon_is_fedavg(problem):
    states = states_of(problem, "fedexp", epsilon=1e6)
    iterates = [toy_weights(s.iterate) for s in states]
    assert_same(iterates, fedavg(problem, weighting="uniform"))


@pytest.mark.parametrize(
    ("name", "settings", "field"),
    [("fedexp", {}, "iterate"), ("feddyn", {"reported": "mean"}, "sent")],
)
def test_a_reported_model_that_a_user_sets_is_also_the_one_that_is_sent(
    problem, name, settings, field
):
    settings = {"client_learning_rate": 0.2, **settings}
    process = tff_algos.build(name, toy.plain_model(problem), num_clients=5, **settings)
    with shared.installed("tff"):
        states, _ = toy.run(process, problem, toy.COHORTS[:2])
        first = process.get_model_weights(process.initialize())
        given = process.set_model_weights(states[-1], first)
    for reported, sent in zip(given.weights, getattr(given, field), strict=True):
        np.testing.assert_array_equal(reported, sent)
    sent = zip(states[-1].weights, getattr(states[-1], field), strict=True)
    assert max(np.abs(np.subtract(*pair)).max() for pair in sent) > 1e-3


@pytest.mark.parametrize(("proximal", "mu"), [("half", 0.4), ("whole", 0.8)])
def test_fedacg_without_momentum_is_fedprox(problem, proximal, mu):
    states = states_of(problem, "fedacg", lambda_=0.0, beta=0.4, proximal=proximal)
    orders = toy.batch_orders(problem, toy.COHORTS)
    run = fedprox.run(problem, orders, toy.COHORTS, client_lr=0.2, mu=mu, weighting="uniform")
    assert_same(states, run.weights)


def test_fedacg_of_one_full_step_is_nesterovs_momentum(problem):
    """m ← λ m - η ∇F(x + λ m) ; x ← x + m, Nesterov's own form; the local term has no step yet."""
    cohorts, plan = [(4,)] * 3, steps_plan(1, full=True)
    states = states_of(problem, "fedacg", cohorts, plan, lambda_=0.6, beta=5.0)
    x, m, want = problem.initial_weights, rounds.zeros(problem.initial_weights), []
    for _ in cohorts:
        ahead = rounds.each(lambda x, m: x + 0.6 * m, x, m)
        g = full_gradient(problem, ahead, [4])
        m = rounds.each(lambda m, g: 0.6 * m - 0.2 * g, m, g)
        x = rounds.each(np.add, x, m)
        want.append(x)
    assert_same(states, want)


@pytest.mark.parametrize(("first_round", "share"), [("mixed", 0.3), ("plain", 1.0)])
def test_fedcms_first_round_is_fedavg_with_shorter_steps(problem, first_round, share):
    cohorts = toy.COHORTS[:1]
    states = states_of(problem, "fedcm", cohorts, alpha=0.3, first_round=first_round)
    assert_same(states, fedavg(problem, cohorts, client_lr=0.2 * share, weighting="uniform"))


def test_fedcm_of_one_full_step_is_momentum(problem):
    """d ← α ∇F + (1 - α) d and x ← x - η_l d: an exponential mean of gradients from 0."""
    cohorts, plan = [(4,)] * 3, steps_plan(1, full=True)
    states = states_of(problem, "fedcm", cohorts, plan, alpha=0.3)
    x, d, want = problem.initial_weights, rounds.zeros(problem.initial_weights), []
    for _ in cohorts:
        d = rounds.each(lambda d, g: 0.7 * d + 0.3 * g, d, full_gradient(problem, x, [4]))
        x = rounds.each(lambda x, d: x - 0.2 * d, x, d)
        want.append(x)
    assert_same(states, want)


@pytest.mark.parametrize("first_round", ["mixed", "plain"])
def test_mofedsam_without_the_way_uphill_is_fedcm(problem, first_round):
    settings = {"momentum_steps": 3.0, "first_round": first_round}
    states = states_of(problem, "mofedsam", rho=0.0, beta=0.3, **settings)
    orders = toy.batch_orders(problem, toy.COHORTS)
    run = fedcm.run(problem, orders, toy.COHORTS, client_lr=0.2, alpha=0.3, **settings)
    assert_same(states, run.weights)


def test_mofedsam_without_momentum_is_fedsam(problem):
    states = states_of(problem, "mofedsam", rho=0.4, beta=1.0)
    assert_same(states, [s.weights for s in states_of(problem, "fedsam", rho=0.4)])


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedsam", {"rho": 0.5}),
        ("fedsam", {"rho": 0.5, "epsilon": 0.5}),
        ("mofedsam", {"rho": 0.5}),
        ("delta_sgd", {}),
        ("delta_sgd", {"difference": "consecutive"}),
    ],
)
def test_a_gradient_of_zero_moves_nothing(problem, name, settings):
    """One class has all the probability, in float32: 0 / 0 would drop every client."""
    sure = (problem.initial_weights[0], np.array([1000.0, 0.0, 0.0]))
    clients = [(x, np.zeros_like(y)) for x, y in problem.clients]
    still = problem_lib.Problem(clients, sure)
    states = states_of(still, name, **settings)
    assert_same(states, [sure] * 4, atol=0)


def test_fedadamws_first_round_is_adam_on_the_clients(problem):
    """v̄ = d = 0; without weight decay."""
    cohorts, adam = toy.COHORTS[:1], {"beta1": 0.6, "beta2": 0.8, "epsilon": 0.01}
    states = states_of(problem, "fedadamw", cohorts, weight_decay=0.0, alpha=9.0, **adam)
    orders = toy.batch_orders(problem, cohorts)
    run = client_adam.run(problem, orders, cohorts, client_lr=0.2, state="reset", **adam)
    assert_same(states, run.weights)


def test_fedadamw_that_keeps_all_of_v_is_adam_over_one_step_a_round(problem):
    """One client, β_1 = 0: the moments' bias and v go on from round to round."""
    cohorts, plan, rate = [(4,)] * 3, steps_plan(1, full=True), 0.05
    settings = {"beta1": 0.0, "beta2": 0.8, "epsilon": 0.01, "weight_decay": 0.0, "alpha": 0.0}
    states = states_of(
        problem, "fedadamw", cohorts, plan, client_learning_rate=rate, second_moment="full",
        **settings,
    )  # fmt: skip
    x, v, want = problem.initial_weights, rounds.zeros(problem.initial_weights), []
    for t in range(1, 4):
        g = full_gradient(problem, x, [4])
        v = rounds.each(lambda v, g: 0.8 * v + 0.2 * g**2, v, g)
        scale = rounds.each(lambda v, t=t: np.sqrt(v / (1 - 0.8**t)) + 0.01, v)
        x = rounds.each(lambda x, g, s: x - rate * g / s, x, g, scale)
        want.append(x)
    assert_same(states, want)


def test_fedadamws_block_means_are_the_means_of_all_of_v(problem):
    states = {
        kind: states_of(problem, "fedadamw", toy.COHORTS[:1], second_moment=kind)[0]
        for kind in ("block_means", "full")
    }
    assert_same([states["block_means"]], [states["full"].weights], atol=0)
    pairs = zip(states["block_means"].second_moment, states["full"].second_moment, strict=True)
    for mean, v in pairs:
        assert np.shape(mean) == () and np.std(v) > 0
        np.testing.assert_allclose(mean, np.mean(v), rtol=1e-5)


def test_fedadamw_of_a_large_epsilon_is_fedcm(problem):
    """m̂ = g, and √v̂ is lost next to ε: x_k ← x_k - η (g / ε + α d), of which α = 0.7 is FedCM's
    1 - α."""
    states = states_of(
        problem, "fedadamw", client_learning_rate=0.06e5, epsilon=1e5, beta1=0.0, alpha=0.7,
        weight_decay=0.0,
    )  # fmt: skip
    orders = toy.batch_orders(problem, toy.COHORTS)
    run = fedcm.run(problem, orders, toy.COHORTS, client_lr=0.2, alpha=0.3)
    assert_same(states, run.weights, atol=5e-5)


@pytest.mark.parametrize(("sign", "factor"), [("adamw", 0.9), ("printed", 1.1)])
def test_fedadamws_decay_alone_scales_the_weights(problem, sign, factor):
    """No gradient: by 1 - η λ in a step, or by 1 + η λ as printed."""
    sure = (problem.initial_weights[0], np.array([1000.0, 0.0, 0.0]))
    clients = [(x, np.zeros_like(y)) for x, y in problem.clients]
    still = problem_lib.Problem(clients, sure)
    settings = {"weight_decay": 0.5, "alpha": 0.0, "decay_sign": sign}
    states = states_of(still, "fedadamw", [(2, 3)], steps_plan(3), **settings)
    assert_same(states, [rounds.each(lambda w: w * factor**3, sure)], atol=1e-4)


@pytest.mark.parametrize("reported", ["server", "mean"])
def test_feddyns_first_round_is_fedprox_on_a_longer_step(problem, reported):
    """h = h_k = 0: the server goes on by |P| / m = 4 / 5 of the mean update, whatever α is."""
    cohorts = toy.COHORTS[:1]
    states = states_of(problem, "feddyn", cohorts, alpha=0.7, reported=reported)
    orders = toy.batch_orders(problem, cohorts)
    rate = 1.8 if reported == "server" else 1.0
    settings = {"client_lr": 0.2, "server_lr": rate, "mu": 0.7, "weighting": "uniform"}
    assert_same(states, fedprox.run(problem, orders, cohorts, **settings).weights)


def test_feddyn_of_a_small_alpha_is_fedavg_on_a_longer_step(problem):
    """Without the regulariser h / α still holds the clients' updates: x ← x̄ + Σ Δ / m."""
    states = states_of(problem, "feddyn", EVERYONE[:1], alpha=1e-6)
    assert_same(states, fedavg(problem, EVERYONE[:1], server_lr=2.0, weighting="uniform"))


def test_feddyn_rests_where_the_global_gradient_is_zero(problem):
    """Full batches of all clients: x tends to the minimum of the mean loss, as FedAvg's does not.

    At rest x_k = x for all k, so that h_k is the local gradient, and their mean h is 0.
    """
    plan, cohorts = steps_plan(5, full=True), [EVERYONE[0]] * 400
    orders = orders_of(problem, cohorts, plan)
    settings = {"client_lr": 0.3, "alpha": 0.5}
    x = feddyn.run(problem, orders, cohorts, **settings).weights[-1]
    averaged = fedavg(problem, cohorts, orders, client_lr=0.3, weighting="uniform")[-1]

    def length(x):
        gradients = [problem_lib.gradient(x, *c) for c in problem.clients]
        mean = rounds.mean(np.full(5, 0.2), gradients)
        return np.sqrt(sum(np.sum(g**2) for g in mean))

    assert length(x) < 0.1 * length(averaged)


@pytest.mark.parametrize("lambda_", [0.0, 0.5, 5.0])
def test_dittos_common_model_is_fedavg(problem, lambda_):
    states = states_of(problem, "ditto", lambda_=lambda_)
    assert_same(states, fedavg(problem, weighting="uniform"))


def test_ditto_without_a_pull_is_local_training(problem):
    kept = {}
    states_of(problem, "ditto", lambda_=0.0, kept=kept)
    orders, x = toy.batch_orders(problem, toy.COHORTS), problem.initial_weights
    # Client 4 is first visited in round 1 and starts from the model of then.
    starts = [x, *fedavg(problem, weighting="uniform")]
    for k in (2, 4):
        visits = [r for r, cohort in enumerate(toy.COHORTS) if k in cohort]
        v, (features, labels) = starts[visits[0]], problem.clients[k]
        for b in (b for r in visits for b in orders[r][k]):
            g = problem_lib.gradient(v, features[b], labels[b])
            v = rounds.each(lambda v, g: v - 0.2 * g, v, g)
        assert_same([toy_weights(kept[k].kept)], [v])


def test_ditto_with_the_inverse_rate_starts_every_step_at_the_common_model(problem):
    """λ = 1 / η_l: v ← x - η_l ∇f(v; b)."""
    kept = {}
    states_of(problem, "ditto", [(4,)], lambda_=5.0, kept=kept)
    x = v = problem.initial_weights
    features, labels = problem.clients[4]
    for b in toy.batch_orders(problem, [(4,)])[0][4]:
        g = problem_lib.gradient(v, features[b], labels[b])
        v = rounds.each(lambda x, g: x - 0.2 * g, x, g)
    assert_same([toy_weights(kept[4].kept)], [v])


def toy_weights(weights):
    """Weights as `assert_same` takes a state."""
    return types.SimpleNamespace(weights=weights)


def test_a_personal_model_that_diverges_is_counted_and_costs_nothing_else(problem):
    """λ η_l = 2e20 leaves float32; the client still counts in the common model."""
    settings = dict(client_learning_rate=0.2, lambda_=1e21)
    process = tff_algos.build("ditto", toy.plain_model(problem), **settings)
    kept = {}
    with shared.installed("tff"):
        states, metrics = toy.run(process, problem, kept=kept)
    assert_same(states, fedavg(problem, weighting="uniform"))
    assert [float(m["clients_dropped"]) for m in metrics] == [0] * 4
    assert float(metrics[1]["personal_diverged"]) > 0
    for state in kept.values():
        assert all(np.all(np.isfinite(v)) for v in tf.nest.flatten(state.kept))


@pytest.mark.parametrize(
    "settings", [{"lr_lambda": 0.0, "epsilon": 0.0}, {"epsilon": 50.0}, {"primal_rounds": 9}]
)
def test_climb_whose_multipliers_rest_is_uniform_fedavg(problem, settings):
    states = states_of(problem, "climb", **{"primal_rounds": 1, **settings})
    assert_same(states, fedavg(problem, weighting="uniform"))
    assert not np.any(states[-1].multipliers)


def test_climbs_multipliers_rise_where_losses_exceed_the_mean(problem):
    """All clients' losses, of the model from before the block, move λ at its end."""
    states = states_of(problem, "climb", epsilon=0.05, lr_lambda=2.0, primal_rounds=2)
    losses = np.array([problem_lib.mean_loss(problem.initial_weights, *c) for c in problem.clients])
    assert not np.any(states[0].multipliers)
    above = losses - losses.mean() - 0.05
    np.testing.assert_allclose(states[1].multipliers, np.maximum(2.0 / 5 * above, 0), atol=1e-6)
    np.testing.assert_array_equal(states[2].multipliers, states[1].multipliers)
    assert 0 < np.count_nonzero(states[1].multipliers) < 5


# Those whose settings are in units of the mean loss.
_BY_LOSS = {"afl", "climb", "term"}


@pytest.mark.quick_cases("adafedadam", "fafed", "fedlin", "mimelite", "qfedavg", "stem")
@pytest.mark.parametrize(
    "name",
    [n for n in tff_algos.names() if n not in _BY_LOSS and not tff_algos.get(n).staged],
)
def test_a_summed_loss_is_a_mean_one_times_the_examples_of_a_minibatch(name):
    """All minibatches are full: what training minimises and full gradients have one scale."""
    problem, cohorts = problem_lib.make_problem(num_examples=(3, 6, 9)), [(0, 1), (1, 2)]
    model, size = toy.eager_model(problem), toy.BATCH_SIZE

    def summed(weights, batch, training, seed):
        plain = model.forward(weights, batch, training, seed)
        return plain._replace(objective=size * plain.objective)

    def multiplied(weights, batch, training, seed):
        plain = summed(weights, batch, training, seed)
        values, counts = plain.metrics["loss"]
        plain.metrics["loss"] = size * values, counts
        return plain

    def states(forward, **attributes):
        changed = model._replace(forward=forward, **attributes)
        settings = {"client_learning_rate": 0.02, "server_learning_rate": 1.0}
        return list(toy.run_eagerly(name, problem, changed, cohorts, **settings))

    got = states(summed, loss_reduction="sum")
    assert_same(got, [state.weights for state in states(multiplied)])
