"""The engine: one chunk is the round that TFF computes, more are a cut that belongs to the run."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from simulation.engine import executors, scheduler
from simulation.engine import process as engine
from simulation.engine.pool import InProcess, Sent
from simulation.protocol import Cohort
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, toy
from tff_algos import process as process_lib

RUNTIMES = runtimes.ENGINE
PROBLEM = problem_lib.make_problem()


@functools.cache
def built(name, index=0):
    settings = cases.CASES[name][index].settings
    return tff_algos.build(name, toy.plain_model(PROBLEM), num_clients=toy.NUM_CLIENTS, **settings)


@functools.cache
def program_of(name, index=0):
    return engine.program_of(built(name, index))


@functools.cache
def executor_of(name, index, runtime, threads):
    program = program_of(name, index)
    if runtime == "per_client":
        return executors.PerClient(program, threads)
    return executors.Stacked(program)


def run_whole(name, index, cohorts=toy.COHORTS):
    """Returns leaves of states and metrics of every round, and of what clients kept, as of TFF."""
    kept = {}
    with runtimes.installed("tff", 2):
        states, metrics = toy.run(built(name, index), PROBLEM, cohorts, kept=kept)
    return leaves([states, [dict(m) for m in metrics], sorted(kept.items())])


def run_in_chunks(
    name, index, runtime, size, cohorts=toy.COHORTS, threads=2, at_once=1, disturb=None
):
    """The same by the engine, in chunks."""
    process, program = built(name, index), program_of(name, index)
    rounds = list(toy.client_rounds(PROBLEM, cohorts, process.plan))
    executor = executor_of(name, index, runtime, threads)
    work = scheduler.Scheduler(program, executor, lambda r, chunk, given: given, at_once)
    pool = (disturb or InProcess)({"": work})
    chunked = engine.EngineProcess(process, program, pool, size, states_bytes=100)
    state = chunked.initialize()
    states, metrics, kept = [], [], {}
    stateful = process.method.client_state is not None
    first = stateful and process_lib.initial_client_state(process.method)
    for r, data in enumerate(rounds):
        clients = [int(d.index) for d in data]
        given = [kept.get(k, first) for k in clients] if stateful else None
        output = chunked.next(state, Cohort(r, clients, len(data), work=data), given)
        if stateful:
            kept.update(zip(clients, output.client_states, strict=True))
        state = output.state
        states.append(state)
        metrics.append(dict(output.metrics))
    return leaves([states, metrics, sorted(kept.items())])


def leaves(structure):
    return [np.asarray(leaf) for leaf in tf.nest.flatten(structure)]


def assert_same_bits(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.tobytes() == b.tobytes(), (a, b)


def test_of_the_next_round_only_so_much_data_is_made_as_is_worked_on_at_once():
    process, program, made = built("fedadam"), program_of("fedadam"), []
    data = next(iter(toy.client_rounds(PROBLEM, [tuple(range(5))], process.plan)))

    def data_of(round_index, chunk, given):
        made.append((round_index, chunk.start))
        return data[chunk.start : chunk.stop]

    work = scheduler.Scheduler(program, executor_of("fedadam", 0, "per_client", 1), data_of)
    all_chunks, server = scheduler.cut(5, 1), program.server(process.method.initialize())
    sent = {n: server.sent(n) for n in program.phases[0].received}
    assert len(list(work.work(0, 0, all_chunks, sent, lambda _: None, all_chunks))) == 5
    work._executor._reader.shutdown()
    assert sorted(made) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]


@pytest.mark.quick_cases("per_client")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_data_are_made_once_a_round_whichever_phases_read_them(runtime):
    process, program, made = built("term"), program_of("term"), []
    assert [phase.reads_data for phase in program.phases] == [True, False]
    data = next(iter(toy.client_rounds(PROBLEM, [tuple(range(5))], process.plan)))

    def data_of(round_index, chunk, given):
        made.append(chunk.start)
        return data[chunk.start : chunk.stop]

    work = scheduler.Scheduler(program, executor_of("term", 0, runtime, 1), data_of)
    chunked = engine.EngineProcess(process, program, InProcess({"": work}), 2)
    chunked.next(chunked.initialize(), Cohort(0, (), 5))
    assert sorted(made) == [0, 2, 4]


METHODS = [n for n in cases.CASES if not tff_algos.get(n).staged]
# Where TensorFlow rewrites the program of a whole round across its primitives; by last bits.
REWRITTEN = [("feddyn", 0)]


_each_case = pytest.mark.parametrize(
    ("name", "index", "runtime"),
    [
        (name, index, runtime)
        for runtime in RUNTIMES
        for name in METHODS
        for index in range(len(cases.CASES[name]))
    ],
)


@pytest.mark.quick_cases("scaffold-0-vectorized", "fedfa-0-per_client")
@_each_case
def test_one_chunk_is_the_round_of_tff_bit_by_bit(name, index, runtime):
    """Client by client; stacked sums come in another order."""
    whole = run_whole(name, index)
    found = run_in_chunks(name, index, runtime, None)
    if runtime == "vectorized" or (name, index) in REWRITTEN:
        for a, b in zip(found, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    else:
        assert_same_bits(found, whole)


@pytest.mark.quick_cases("fedfa-0-per_client")
@_each_case
def test_a_cut_is_all_that_is_seen_of_chunks(name, index, runtime):
    """Threads, chunks at once and their order leave no trace; the cut does in last bits only."""
    cohorts = (*toy.COHORTS[:2], tuple(range(toy.NUM_CLIENTS)))
    one = run_in_chunks(name, index, runtime, 1, cohorts, threads=1)
    assert_same_bits(run_in_chunks(name, index, runtime, 1, cohorts, threads=2, at_once=3), one)
    whole = run_whole(name, index, cohorts)
    for a, b in zip(one, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:aggregator=secure simulates")
@pytest.mark.parametrize(
    "settings",
    [
        {"aggregator": "robust"},
        {"aggregator": "dp", "aggregator_noise_multiplier": 0.3},
        {"aggregator": "compressed", "aggregator_threshold": 4},
        {"aggregator": "secure"},
    ],
    ids=lambda settings: settings["aggregator"],
)
def test_an_aggregator_takes_the_rows_of_all_clients_however_they_are_cut(settings):
    """Weights and its own state have the bits of one chunk: no sum of updates is cut."""
    process = tff_algos.build(
        "fedavgm",
        toy.plain_model(PROBLEM),
        client_learning_rate=0.1,
        client_weighting="uniform",
        clients_per_round=len(toy.COHORTS[0]),
        **settings,
    )
    program = engine.program_of(process)
    rounds = list(toy.client_rounds(PROBLEM, toy.COHORTS, process.plan))

    def state_after(size):
        executor = executors.PerClient(program, 2)
        work = scheduler.Scheduler(program, executor, lambda r, chunk, given: given)
        chunked = engine.EngineProcess(process, program, InProcess({"": work}), size)
        state = chunked.initialize()
        for r, data in enumerate(rounds):
            clients = [int(d.index) for d in data]
            state = chunked.next(state, Cohort(r, clients, len(data), work=data)).state
        # Differential privacy names its events in texts.
        return [leaf for leaf in leaves(state) if leaf.dtype != object]

    whole = state_after(None)
    for size in (1, 2):
        assert_same_bits(state_after(size), whole)


# Several exchanges, stacked vectors; one exchange, client state.
@pytest.mark.quick_cases("fedfa-0-per_client", "adafed-0-per_client", "scaffold-0-vectorized")
@_each_case
def test_who_takes_a_chunk_over_replays_what_was_done_for_it(name, index, runtime):
    """Chunks forget what they kept, are done in another order, and come in as subtrees."""
    cohorts = (*toy.COHORTS[:2], tuple(range(toy.NUM_CLIENTS)))

    class Forgetful(InProcess):
        def work(self, cohort, phase, sent, states_of):
            received = Sent(sent)
            for of_phase in program.phases[: phase + 1]:
                for number in of_phase.received:
                    received[number] = sent(number)
            order = list(reversed(cohort.chunks))
            given = {chunk.number: cohort.given(chunk) for chunk in cohort.chunks}
            for group in (order[:2], order[2:]):
                work = self._schedulers[""]
                work._kept.clear()
                nodes, states = {}, {}
                arguments = group, received, states_of, (), given
                for done in work.work(cohort.round_index, phase, *arguments):
                    nodes[0, done.chunk.number] = done.partials
                    if done.states is not None:
                        states[done.chunk] = done.states
                yield scheduler.combine(nodes, program, phase, len(cohort.chunks)), states

    program = program_of(name, index)
    one = run_in_chunks(name, index, runtime, 1, cohorts)
    assert_same_bits(run_in_chunks(name, index, runtime, 1, cohorts, disturb=Forgetful), one)


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("runtime", ["per_client", "vectorized"])
def test_states_may_be_given_stacked_or_one_by_one(runtime, size):
    """A stacked round gives stacked ones back, which no one takes apart on their way to a store."""
    process, program = built("scaffold", 0), program_of("scaffold", 0)
    (data,) = toy.client_rounds(PROBLEM, toy.COHORTS[:1], process.plan)
    first = process_lib.initial_client_state(process.method)
    rng = np.random.default_rng(0)
    states = [
        tf.nest.map_structure(lambda a: rng.normal(size=a.shape).astype(a.dtype), first)
        for _ in data
    ]
    stacked = process_lib.StackedStates(tf.nest.map_structure(lambda *a: np.stack(a), *states))
    work = scheduler.Scheduler(
        program, executor_of("scaffold", 0, runtime, 2), lambda r, chunk, given: given, 1
    )
    chunked = engine.EngineProcess(process, program, InProcess({"": work}), size)
    found = []
    for given in (states, stacked):
        cohort = Cohort(len(found), (), len(data), work=data)
        output = chunked.next(chunked.initialize(), cohort, given)
        is_stacked = isinstance(output.client_states, process_lib.StackedStates)
        assert is_stacked == (runtime == "vectorized" and size is None)
        found.append(leaves([output.state, list(output.client_states)]))
    np.testing.assert_equal(*found)
