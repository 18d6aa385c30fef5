"""Every registered method, stopped and taken up again by a process built anew."""

import numpy as np
import pytest

import tff_algos
from simulation import checkpoints, loop, runtimes
from tasks.task import ArrayFederatedData
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, toy
from tff_algos import registry

SETTINGS = {
    "client_datasets_random_seed": 1,
    "seed": 0,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_epochs_per_round": 2,
    "max_elements_per_client": None,
}
ROUNDS = 6


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with runtimes.installed("tff"):
        yield


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


def build(name, problem):
    settings = {"client_learning_rate": 0.3, "server_learning_rate": 0.1}
    if cases.CASES.get(name):
        settings = cases.CASES[name][0].settings
    model = toy.toy_model(problem, dropout=0.4)
    return tff_algos.build(name, model, num_clients=len(problem.clients), **settings)


def train_data(problem):
    x = np.concatenate([x for x, _ in problem.clients]).astype(np.float32)
    y = np.concatenate([y for _, y in problem.clients]).astype(np.int32)
    ends = np.cumsum([len(y) for _, y in problem.clients])
    return ArrayFederatedData(x, y, np.split(np.arange(len(y)), ends[:-1]))


def run(process, state, rounds, train):
    metrics = []
    for r in rounds:
        asked = process.plan(r, ROUNDS)
        output = process.next(state, loop.cohort_data(train, asked, SETTINGS, r))
        state = output.state
        metrics.append([float(v) for v in output.metrics.values()])
    return state, metrics


@pytest.mark.parametrize("name", registry.names())
def test_resumed_is_uninterrupted(name, problem, tmp_path):
    train = train_data(problem)
    process = build(name, problem)
    initial = process.initialize()
    whole, metrics = run(process, initial, range(ROUNDS), train)

    state, first = run(process, initial, range(3), train)
    checkpoints.save(str(tmp_path), 3, loop.flatten_state(state), {})
    del process, state
    process = build(name, problem)
    leaves = checkpoints.load_newest(str(tmp_path))[0].leaves
    state = loop.restore_state(process.initialize(), leaves)
    resumed, second = run(process, state, range(3, ROUNDS), train)

    assert first + second == metrics
    for got, want in zip(loop.flatten_state(resumed), loop.flatten_state(whole), strict=True):
        assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
    moved = zip(loop.flatten_state(whole), leaves, strict=True)
    assert any(a.tobytes() != b.tobytes() for a, b in moved), (
        "a run that stands still proves nothing"
    )
