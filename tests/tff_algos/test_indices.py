"""Methods that tell clients apart by `ClientData.index` say so, and refuse what they can't use."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, eager, toy
from tests.tff_algos.test_methods import METHODS
from tff_algos import registry
from tff_algos.client import LocalTraining

INDEXED = [name for name in METHODS if registry.get(name).needs_index]


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


@pytest.fixture(scope="module")
def model(problem):
    return toy.plain_model(problem)


class _Untouchable:
    """What no operation can use."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_uses_the_index_exactly_if_it_says_so(problem, model, name):
    spec = registry.get(name)
    training, own = toy.resolve(name, cases.CASES[name][0].settings)
    if spec.needs_num_clients:
        own["num_clients"] = toy.NUM_CLIENTS
    method = spec.build_fn()(model, LocalTraining(training), **own)
    data = [
        tf.nest.map_structure(tf.constant, toy.client_data(problem, 0, k))._replace(
            index=_Untouchable()
        )
        for k in (1, 2)
    ]
    given = [eager.Each(data)]
    if method.client_state is not None:
        first = tf.nest.map_structure(tf.convert_to_tensor, tff_algos.initial_client_state(method))
        given.append(eager.Each([first] * 2))

    def a_round():
        with eager._eagerly():
            method.next_round(eager.EagerFederation(2), method.initialize(), *given)

    if not spec.needs_index:
        a_round()
    else:
        assert spec.needs_num_clients, "else there is no bound to check indices against"
        with pytest.raises((TypeError, ValueError), match="_Untouchable"):
            a_round()


@pytest.fixture(scope="module", params=runtimes.RUNTIMES)
def runtime(request):
    with runtimes.installed(request.param):
        yield request.param


@pytest.fixture(scope="module")
def processes(model):
    return {
        name: tff_algos.build(
            name, model, num_clients=toy.NUM_CLIENTS, **cases.CASES[name][0].settings
        )
        for name in INDEXED
    }


BAD = [
    ((None, None), "Client 0 of the cohort has no index, not one of 0 to 4"),
    ((2, None), "Client 1 of the cohort has no index, not one of 0 to 4"),
    ((2, 5), "Client 1 of the cohort has index 5, not one of 0 to 4"),
    ((-2, 1), "Client 0 of the cohort has index -2, not one of 0 to 4"),
    ((0, 3, 3), "Clients 1 and 2 of the cohort both have index 3"),
]


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize(("indices", "says"), BAD)
def test_equal_missing_and_too_large_indices_are_refused(
    runtime, processes, problem, name, indices, says
):
    process = processes[name]
    state = tf.nest.map_structure(np.asarray, process.method.initialize())
    x, y = (a.astype(t) for a, t in zip(problem.clients[4], (np.float32, np.int32), strict=True))
    clients = [
        tff_algos.batch_client(x, y, batch_size=4, **({} if i is None else {"index": i}))
        for i in indices
    ]
    bound = runtimes.bind(process)
    cure = f"; {name} distinguishes clients by it: give batch_client or from_dataset"
    for call in (
        lambda: bound.next(state, clients),
        lambda: bound.next(state, clients),
        lambda: process.next(state, clients),
        lambda: process.next(state=state, clients=clients),
    ):
        with pytest.raises(ValueError, match=re.escape(cure)) as error:
            call()
        assert str(error.value).startswith(says + cure) and "\n" not in str(error.value)


def test_every_method_that_must_is_indexed():
    assert set(INDEXED) >= {"afl", "climb", "fedfa"}
