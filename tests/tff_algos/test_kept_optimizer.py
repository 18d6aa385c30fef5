"""`client_optimizer_state=keep`: the mathematics once, and that every method passes it on."""

import numpy as np
import pytest

import tff_algos
from tests.oracles import problem as problem_lib
from tests.oracles import slots
from tests.tff_algos import shared, toy
from tff_algos import registry

SETTINGS = {"client_learning_rate": 0.2, "client_optimizer": "sgdm", "client_momentum": 0.6}
KEEPING = [n for n in registry.names() if registry.get(n).keeps_client_optimizer]


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with shared.installed("vectorized"):
        yield


def states_of(problem, name, cohorts, state="keep", eagerly=False, **settings):
    settings = {**SETTINGS, "client_optimizer_state": state, **settings}
    if registry.get(name).server_learning_rate is None:
        settings["server_learning_rate"] = 0.1
    if eagerly:
        model = toy.eager_model(problem)
        return list(toy.run_eagerly(name, problem, model, cohorts, **settings))
    process = tff_algos.build(name, toy.plain_model(problem), **settings)
    return toy.run(process, problem, cohorts)[0]


def differ(a, b):
    return max(np.abs(x - y).max() for x, y in zip(a.weights, b.weights, strict=True))


# As plain Python, and as a program.
@pytest.mark.quick_cases(
    "eagerly-fedavg", "eagerly-adafedadam", "eagerly-fednova", "eagerly-qfedavg"
)
@pytest.mark.parametrize(
    ("how", "name"),
    [
        *shared.methods(KEEPING, "eagerly"),
        *shared.methods(KEEPING, "vectorized"),
    ],
)
def test_first_visits_are_those_of_a_fresh_optimizer_and_later_ones_are_not(problem, how, name):
    cohorts, eagerly = ((0, 1), (2, 3), (4, 1)), how == "eagerly"
    keep, reset = (states_of(problem, name, cohorts, state, eagerly) for state in ("keep", "reset"))
    for r in range(2):
        assert differ(keep[r], reset[r]) < 1e-6
    assert differ(keep[2], reset[2]) > 1e-4


@pytest.mark.quick_cases("fednova-settings1")
@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedprox", {"mu": 0.0}), ("fednova", {}), ("qfedavg", {"q": 0.0, "form": "reweight"})],
)
def test_methods_that_are_fedavg_for_one_client(problem, name, settings):
    cohorts = ((3,), (4,), (3,), (3,), (4,))
    orders = toy.batch_orders(problem, cohorts)
    sgdm = {"optimizer": "sgdm", "optimizer_options": {"momentum": 0.6}}
    want = slots.run_kept(problem, orders, cohorts, client_lr=0.2, **sgdm).weights
    for state, weights in zip(states_of(problem, name, cohorts, **settings), want, strict=True):
        for got, expected in zip(state.weights, weights, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_the_client_learning_rate_is_still_the_round_s(problem):
    """With rate 0 after round 1 nothing may move, whatever rate the kept slots were made with."""
    cohorts = ((3, 4), (3, 4), (3, 4))
    schedule = {
        "client_lr_schedule": "exp_decay",
        "client_lr_decay_rate": 1e-12,
        "client_lr_decay_steps": 1,
    }
    states = states_of(problem, "fedavg", cohorts, **schedule)
    assert differ(states[0], states[1]) < 1e-9 and differ(states[1], states[2]) < 1e-9
