"""Every registered method against its oracle, in every runtime, and against its mutations."""

import functools
import importlib
import zlib

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tests import metrics_page
from tests.tff_algos import cases, mutants, shared, toy
from tff_algos import registry

METHODS = [n for n in cases.OWN if not registry.get(n).staged]


CASES = [(name, i, case) for name in METHODS for i, case in enumerate(cases.CASES.get(name, []))]
ALL_CASES = [
    pytest.param(name, case, id=f"{name}-{i}", marks=pytest.mark.xdist_group(name))
    for name, i, case in CASES
]
CASES_IN_RUNTIMES = [
    pytest.param(
        runtime,
        name,
        case,
        id=f"{runtime}-{name}-{i}",
        marks=pytest.mark.xdist_group(name),
    )
    for runtime in runtimes.RUNTIMES
    for name, i, case in CASES
]
METHODS_IN_RUNTIMES = [
    param for runtime in runtimes.RUNTIMES for param in shared.methods(METHODS, runtime)
]


@pytest.fixture(scope="module")
def problem():
    return shared.problem()


@pytest.fixture(scope="module")
def model(problem):
    return toy.eager_model(problem)


@pytest.fixture(scope="module")
def runtime(request):
    with shared.installed(request.param):
        yield request.param


def assert_follows(states, want, atol=1e-5):
    for state, weights in zip(states, want, strict=True):
        for got, expected in zip(state.weights, weights, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=atol)


def assert_moves(want):
    moved = max(np.abs(a - b).max() for a, b in zip(want[-1], want[0], strict=True))
    assert moved > 1e-3, "a run that stands still proves nothing"


def oracle(case, problem, cohorts=toy.COHORTS, dropped=frozenset()):
    return case.oracle(problem, toy.batch_orders(problem, cohorts), cohorts, dropped)


def assert_kept(kept, case, problem, cohorts=toy.COHORTS, dropped=frozenset()):
    """What clients keep is the oracle's, if the case knows it."""
    if case.kept is None:
        return
    want = case.kept(problem, toy.batch_orders(problem, cohorts), cohorts, dropped)
    assert set(want) == {k for k, state in kept.items() if state.visits > 0}
    for k, values in want.items():
        got = tf.nest.flatten(kept[k].kept)
        for a, b in zip(got, tf.nest.flatten(values), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_oracles_and_mutations(name):
    assert cases.CASES.get(name), f"{name} has no oracle in tests/tff_algos/cases.py"
    assert len(cases.MUTATIONS.get(name, [])) >= 3, f"{name} needs mutations in cases.py"


def test_fedavgs_cases_are_of_every_client_optimizer():
    """In a runtime, CI runs them in no other test."""
    used = {c.settings.get("client_optimizer", "sgd") for c in cases.CASES["fedavg"]}
    assert used == set(registry.CLIENT_OPTIMIZERS)


@pytest.mark.parametrize("name", [n for n in cases.OWN if registry.get(n).staged])
def test_every_staged_method_has_a_test_file_with_oracle_and_mutations(name):
    """What happens between its rounds is its own, so that its runs cannot be those below."""
    tests = importlib.import_module(f"tests.tff_algos.methods.test_{name}")
    assert callable(tests.test_oracle) and callable(tests.test_mutations_are_caught)
    assert callable(tests.test_a_stopped_run_goes_on_from_the_arrays_of_its_state)
    assert len(tests.MUTATIONS) >= 3


@functools.cache
def run_of_first_case(name):
    """Returns the states after its rounds, and what the clients then keep."""
    problem, kept = shared.problem(), {}
    settings = cases.CASES[name][0].settings
    states = toy.run_eagerly(name, problem, toy.eager_model(problem), kept=kept, **settings)
    return list(states), kept


# Of every method, `test_a_non_finite_update_is_dropped_and_counted` runs the first case, in `tff`.
@pytest.mark.quick_cases(*(f"{name}-0" for name in shared.KINDS))
@pytest.mark.parametrize(("name", "case"), ALL_CASES)
def test_oracle(problem, model, name, case):
    want, kept = oracle(case, problem), {}
    if case is cases.CASES[name][0]:
        states, kept = run_of_first_case(name)
    else:
        states = toy.run_eagerly(name, problem, model, kept=kept, **case.settings)
    assert_follows(states, want)
    assert_kept(kept, case, problem)
    assert_moves(want)


# Two options of clients in each runtime.
@pytest.mark.quick_cases(
    "tff-fedavg-2", "tff-fedavg-6", "vectorized-fedavg-1", "vectorized-fedavg-5"
)
@pytest.mark.parametrize(("runtime", "name", "case"), CASES_IN_RUNTIMES, indirect=["runtime"])
def test_oracle_in_runtimes(runtime, problem, name, case):
    # The last cohort, of one client, would need another program.
    cohorts = toy.COHORTS[:3] if runtime == "vectorized" else toy.COHORTS
    process = tff_algos.build(name, toy.plain_model(problem), num_clients=5, **case.settings)
    kept = {}
    states, _ = toy.run(process, problem, cohorts, kept=kept)
    assert_follows(states, oracle(case, problem, cohorts))
    assert_kept(kept, case, problem, cohorts)


@pytest.mark.quick_cases("tff-*", "vectorized-scaffold")
@pytest.mark.parametrize(("runtime", "name"), METHODS_IN_RUNTIMES, indirect=["runtime"])
def test_a_non_finite_update_is_dropped_and_counted(runtime, problem, name):
    case, process = cases.CASES[name][0], shared.process(name)
    cohorts = [*toy.COHORTS[:3], (1, 2)]
    spoiled = {(0, 1), (1, 4), (3, 1), (3, 2)}
    kept = {}
    states, metrics = toy.run(process, problem, cohorts, spoiled, kept)
    want = oracle(case, problem, cohorts, spoiled)
    assert_follows(states, want)
    assert_moves(want)
    assert_kept(kept, case, problem, cohorts, spoiled)
    assert [float(m["clients_dropped"]) for m in metrics] == [1, 1, 0, 2]
    assert [float(m["num_clients"]) for m in metrics] == [4, 3, 3, 2]
    sizes = [len(y) for _, y in problem.clients]
    assert float(metrics[0]["num_examples"]) == sum(sizes[k] for k in (0, 2, 3))
    assert all(np.isfinite(float(v)) for m in metrics[:3] for v in m.values())
    assert metrics_page.undefined(f"train/{column}" for column in metrics[0]) == []
    common = {"loss", "accuracy", "num_examples", "num_clients", "clients_dropped"}
    assert metrics[0].keys() - common == set(registry.get(name).measures)
    assert np.isnan(float(metrics[3]["loss"])), "no client is left, so there is no training loss"


def one_mutation_and_the_others():
    """Yields parameters of a test: of every method one mutation, of whatever kind, and the rest."""
    for name in METHODS:
        mutations = cases.MUTATIONS.get(name, [None])
        # The same one whatever other methods there are.
        place = zlib.crc32(name.encode()) % len(mutations)
        one = [mutations[place]]
        others = mutations[:place] + mutations[place + 1 :]
        group = pytest.mark.xdist_group(name)
        yield pytest.param(name, one, id=name, marks=group)
        yield pytest.param(name, others, id=f"{name}-others", marks=group)


def test_every_mutation_has_its_place():
    for name in METHODS:
        for old, new in cases.MUTATIONS.get(name, ()):
            mutants.of_method(name, old, new)


@pytest.mark.quick_cases(*shared.KINDS)
@pytest.mark.parametrize(("name", "mutations"), one_mutation_and_the_others())
def test_mutations_are_caught(problem, model, name, mutations):
    """One sign, weight or write-back flipped: some case's oracle must disagree."""
    wanted = [(case, oracle(case, problem)) for case in cases.CASES[name]]
    for old, new in mutations:
        module = mutants.of_method(name, old, new)
        for case, want in wanted:
            kept = {}
            try:
                states = toy.run_eagerly(
                    name, problem, model, module=module, kept=kept, **case.settings
                )
                assert_follows(states, want)
                assert_kept(kept, case, problem)
            except AssertionError:
                break
        else:
            pytest.fail(f"{name}: no oracle notices {old!r} -> {new!r}")


@pytest.mark.quick_cases(*shared.KINDS)
@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_order_of_clients_does_not_matter(problem, model, name):
    settings = cases.CASES[name][0].settings
    backwards = [c[::-1] for c in toy.COHORTS]
    backward = toy.run_eagerly(name, problem, model, backwards, **settings)
    forward, _ = run_of_first_case(name)
    assert_follows(forward, [s.weights for s in backward], atol=1e-6)


def assert_same_in_every_runtime(process, problem):
    last = []
    for runtime in runtimes.RUNTIMES:
        with shared.installed(runtime):
            states, metrics = toy.run(process, problem, toy.COHORTS[:2])
            last.append((states, [float(m["loss"]) for m in metrics]))
    for states, losses in last[1:]:
        assert_follows(states, [s.weights for s in last[0][0]])
        np.testing.assert_allclose(losses, last[0][1], rtol=1e-5)


@pytest.mark.quick_cases("scaffold")
@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_dropout_is_the_same_in_every_runtime(problem, name):
    assert_same_in_every_runtime(shared.process(name), toy.with_dropout(problem))


@pytest.mark.quick_cases("fedavg")
@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_dropout_of_keras_is_the_same_in_every_runtime(problem, name):
    model = toy.toy_model(problem, dropout=0.5)
    process = tff_algos.build(name, model, num_clients=5, **cases.CASES[name][0].settings)
    assert_same_in_every_runtime(process, problem)
