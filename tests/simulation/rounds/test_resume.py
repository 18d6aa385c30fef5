"""Every registered method, stopped and taken up again."""

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation.records import checkpoints
from simulation.records.client_states import ClientStates
from simulation.rounds import cohorts, loop
from tasks.task import ArrayFederatedData
from tests.tff_algos import shared, toy
from tff_algos import registry

SETTINGS = {
    "client_datasets_random_seed": 1,
    "seed": 0,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_epochs_per_round": 2,
    "client_epochs_distribution": "uniform_1_3",
}
ROUNDS = 6


@pytest.fixture(scope="module", autouse=True)
def in_process():
    with shared.installed("tff"):
        yield


@pytest.fixture(scope="module")
def problem():
    return shared.problem()


def build(name):
    model = toy.toy_model(shared.problem(), dropout=0.4)
    return tff_algos.build(name, model, num_clients=toy.NUM_CLIENTS, **shared.settings(name))


def train_data(problem):
    x = np.concatenate([x for x, _ in problem.clients]).astype(np.float32)
    y = np.concatenate([y for _, y in problem.clients]).astype(np.int32)
    ends = np.cumsum([len(y) for _, y in problem.clients])
    return ArrayFederatedData(x, y, np.split(np.arange(len(y)), ends[:-1]))


def client_states(process, path, round_num):
    if process.method.client_state is None:
        return None
    # Two clients fit into memory.
    initial = process.initial_client_state()
    size = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(initial))
    states = ClientStates(str(path), initial, 2 * size)
    states.go_on_from(round_num)
    return states


def run(process, state, rounds, train, states):
    metrics = []
    for r in rounds:
        asked = process.plan(r, ROUNDS)
        data = cohorts.cohort_data(train, asked, SETTINGS, r)
        if states is None:
            output = process.next(state, data)
        else:
            clients = [str(d.index) for d in data]
            output = process.next(state, data, states.read(clients))
            states.write(dict(zip(clients, output.client_states, strict=True)), r + 1)
        state = output.state
        metrics.append([float(v) for v in output.metrics.values()])
    return state, metrics


def assert_equal_states(got, want):
    for a, b in zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# Staged methods are stopped and resumed by test files of their own.
METHODS = [n for n in registry.names() if not registry.get(n).staged]


@pytest.mark.parametrize("name", shared.one_of_each_kind(METHODS))
def test_resumed_by_a_process_built_anew_is_uninterrupted(name, problem, tmp_path):
    assert_resumed_is_uninterrupted(lambda: build(name), problem, tmp_path)


@pytest.mark.parametrize("name", shared.one_of_each_kind(METHODS, kinds=(*shared.KINDS, "fedadam")))
def test_resumed_is_uninterrupted(name, problem, tmp_path):
    problem = toy.with_dropout(problem)
    assert_resumed_is_uninterrupted(lambda: shared.process(name), problem, tmp_path)


def assert_resumed_is_uninterrupted(make_process, problem, tmp_path):
    train = train_data(problem)
    process = make_process()
    initial = process.initialize()
    never_stopped = client_states(process, ":memory:", 0)
    whole, metrics = run(process, initial, range(ROUNDS), train, never_stopped)

    states = client_states(process, tmp_path / "states", 0)
    state, first = run(process, initial, range(3), train, states)
    if states:
        states.commit(3)
    checkpoints.save(str(tmp_path), 3, loop.flatten_state(state), {})
    # A round after the checkpoint is lost, and with it what clients kept from it.
    run(process, state, range(3, 4), train, states)
    if states:
        states.commit(4)
    del process, state, states
    process = make_process()
    leaves = checkpoints.load_newest(str(tmp_path))[0].leaves
    state = loop.restore_state(process.initialize(), leaves)
    states = client_states(process, tmp_path / "states", 3)
    resumed, second = run(process, state, range(3, ROUNDS), train, states)

    assert first + second == metrics
    for got, want in zip(loop.flatten_state(resumed), loop.flatten_state(whole), strict=True):
        assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
    if states:
        everyone = [str(k) for k in range(len(problem.clients))]
        for got, want in zip(states.read(everyone), never_stopped.read(everyone), strict=True):
            assert_equal_states(got, want)
    moved = zip(loop.flatten_state(whole), leaves, strict=True)
    assert any(a.tobytes() != b.tobytes() for a, b in moved), (
        "a run that stands still proves nothing"
    )
