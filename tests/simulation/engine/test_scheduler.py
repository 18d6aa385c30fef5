"""Rounds in chunks: one chunk is the round as it is, more are a cut that belongs to the run."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from simulation.engine import program as plans
from simulation.engine import scheduler as chunks
from simulation.rounds import in_chunks
from tests.oracles import problem as problem_lib
from tests.tff_algos import cases, toy
from tff_algos import process as process_lib

RUNTIMES = ("tff", "vectorized")
PROBLEM = problem_lib.make_problem()


@functools.cache
def built(name, index=0):
    settings = cases.CASES[name][index].settings
    return tff_algos.build(name, toy.plain_model(PROBLEM), num_clients=toy.NUM_CLIENTS, **settings)


@functools.cache
def plan_of(name, index=0):
    process = built(name, index)
    return plans.Plan(process.method, process.model)


@functools.cache
def hands_of(name, index, runtime, threads):
    plan, process = plan_of(name, index), built(name, index)
    if runtime == "tff":
        return chunks.ClientByClient(plan, threads)
    return chunks.AtOnce(plan, process.model)


def run_whole(name, index, runtime, cohorts=toy.COHORTS):
    """Returns leaves of states and metrics of every round, and of what clients kept, as today."""
    kept = {}
    with runtimes.installed(runtime, 2):
        states, metrics = toy.run(built(name, index), PROBLEM, cohorts, kept=kept)
    return leaves([states, [dict(m) for m in metrics], sorted(kept.items())])


def run_in_chunks(
    name, index, runtime, size, cohorts=toy.COHORTS, threads=2, at_once=1, disturb=None
):
    """The same in chunks."""
    process, plan = built(name, index), plan_of(name, index)
    rounds = list(toy.client_rounds(PROBLEM, cohorts, process.plan))
    hands = hands_of(name, index, runtime, threads)
    desk = chunks.Desk(
        plan, hands, lambda r, chunk, _: rounds[r][chunk.start : chunk.stop], at_once
    )
    crew = in_chunks.Alone({"": desk})
    if disturb is not None:
        crew = disturb({"": desk})
    with runtimes.installed(runtime, threads):
        chunked = in_chunks.ChunkedProcess(runtimes.bind(process), plan, crew, states_bytes=100)
        state = chunked.initialize()
        states, metrics, kept = [], [], {}
        stateful = process.method.client_state is not None
        first = stateful and process_lib.initial_client_state(process.method)
        for r, data in enumerate(rounds):
            cohort = in_chunks.RoundCohort(r, chunks.cut(len(data), size))
            clients = [int(d.index) for d in data]
            given = [[kept.get(k, first) for k in clients]] if stateful else []
            output = chunked.next(state, cohort, *given)
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
    process, plan, made = built("fedadam"), plan_of("fedadam"), []
    data = next(iter(toy.client_rounds(PROBLEM, [tuple(range(5))], process.plan)))

    def data_of(round_index, chunk, given):
        made.append((round_index, chunk.start))
        return data[chunk.start : chunk.stop]

    desk = chunks.Desk(plan, hands_of("fedadam", 0, "tff", 1), data_of)
    all_chunks, server = chunks.cut(5, 1), plan.server(process.method.initialize())
    sent = {n: server.sent(n) for n in plan.phases[0].received}
    assert len(list(desk.work(0, 0, all_chunks, sent, lambda _: None, all_chunks))) == 5
    desk._reader.shutdown()
    assert sorted(made) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0)]


@pytest.mark.quick_cases("tff")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_data_are_made_once_a_round_whichever_phases_read_them(runtime):
    process, plan, made = built("term"), plan_of("term"), []
    assert [phase.reads_data for phase in plan.phases] == [True, False]
    data = next(iter(toy.client_rounds(PROBLEM, [tuple(range(5))], process.plan)))

    def data_of(round_index, chunk, given):
        made.append(chunk.start)
        return data[chunk.start : chunk.stop]

    crew = in_chunks.Alone({"": chunks.Desk(plan, hands_of("term", 0, runtime, 1), data_of)})
    with runtimes.installed(runtime):
        chunked = in_chunks.ChunkedProcess(runtimes.bind(process), plan, crew)
        chunked.next(chunked.initialize(), in_chunks.RoundCohort(0, chunks.cut(5, 2)))
    assert sorted(made) == [0, 2, 4]


METHODS = [n for n in cases.CASES if not tff_algos.get(n).staged]
# Where TensorFlow rewrites the program of a whole round across its words; by last bits.
REWRITTEN = [("adafedadam", index, "vectorized") for index in (2, 4, 5)]
REWRITTEN += [("feddyn", 0, runtime) for runtime in ("tff", "vectorized")]


_each_case = pytest.mark.parametrize(
    ("name", "index", "runtime"),
    [
        (name, index, runtime)
        for runtime in RUNTIMES
        for name in METHODS
        for index in range(len(cases.CASES[name]))
    ],
)


@pytest.mark.quick_cases("scaffold-0-vectorized")
@_each_case
def test_one_chunk_is_the_whole_round_bit_by_bit(name, index, runtime):
    whole = run_whole(name, index, runtime)
    found = run_in_chunks(name, index, runtime, None)
    if (name, index, runtime) in REWRITTEN:
        for a, b in zip(found, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    else:
        assert_same_bits(found, whole)


@pytest.mark.quick_cases("fedfa-0-tff")
@_each_case
def test_a_cut_is_all_that_is_seen_of_chunks(name, index, runtime):
    """Threads, chunks at once and their order leave no trace; the cut does in last bits only."""
    cohorts = (*toy.COHORTS[:2], tuple(range(toy.NUM_CLIENTS)))
    one = run_in_chunks(name, index, runtime, 1, cohorts, threads=1)
    assert_same_bits(run_in_chunks(name, index, runtime, 1, cohorts, threads=2, at_once=3), one)
    whole = run_whole(name, index, runtime, cohorts)
    for a, b in zip(one, whole, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


# Several exchanges, stacked vectors; one exchange, client state.
@pytest.mark.quick_cases("fedfa-0-tff", "adafed-0-tff", "scaffold-0-vectorized")
@_each_case
def test_who_takes_a_chunk_over_replays_what_was_done_for_it(name, index, runtime):
    """Chunks forget what they kept, are done in another order, and come in as subtrees."""
    cohorts = (*toy.COHORTS[:2], tuple(range(toy.NUM_CLIENTS)))

    class Forgetful(in_chunks.Alone):
        def work(self, cohort, phase, sent, states_of):
            received = in_chunks._Sent(sent)
            for of_phase in plan.phases[: phase + 1]:
                for number in of_phase.received:
                    received[number] = sent(number)
            order = list(reversed(cohort.chunks))
            for group in (order[:2], order[2:]):
                self._desks[""]._kept.clear()
                nodes, states = {}, {}
                work = self._desks[""].work(cohort.round_index, phase, group, received, states_of)
                for done in work:
                    nodes[0, done.chunk.index] = done.partials
                    if done.states is not None:
                        states[done.chunk] = done.states
                yield chunks.combine(nodes, plan, phase, len(cohort.chunks)), states

    plan = plan_of(name, index)
    one = run_in_chunks(name, index, runtime, 1, cohorts)
    assert_same_bits(run_in_chunks(name, index, runtime, 1, cohorts, disturb=Forgetful), one)
