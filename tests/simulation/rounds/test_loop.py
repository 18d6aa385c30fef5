import collections
import os
import signal
from typing import NamedTuple

import numpy as np
import pytest

from simulation.errors import DivergedError, NoWorkersError, RunError
from simulation.protocol import Cohort, RoundOutput
from simulation.rounds import loop
from tff_suite import command_line


def cohort(round_index, ids):
    return Cohort(round_index, ids, len(ids), work=[np.float32(1)] * len(ids))


def test_client_states_go_to_the_process_and_back():
    class Stateful(FakeProcess):
        def next(self, state, cohort, client_states):
            output = super().next(state, cohort)
            return output._replace(client_states=[s + 1 for s in client_states])

    class Store(dict):
        def slices(self, clients):
            return [self.get(c, 0) for c in clients]

        def take(self, clients, states, round_num):
            self.update(zip(clients, states, strict=True))
            self.rounds = [*getattr(self, "rounds", []), round_num]

    store = Store()
    cohorts = [["a", "b"], ["b"], ["c", "b"]]
    run(
        Stateful(),
        total=3,
        cohort_of_round=lambda r, state: cohort(r, cohorts[r]),
        client_states=store,
    )
    assert store == {"a": 1, "b": 3, "c": 1} and store.rounds == [1, 2, 3]


class State(NamedTuple):
    weights: list
    round_num: np.int32


class FakeProcess:
    """Adds 1 to its weight in a round; metrics and weights of a round can be spoiled."""

    def __init__(self, metrics=None, weights=None):
        self.metrics, self.weights = metrics or {}, weights or {}

    def next(self, state, cohort, client_states=None):
        r = int(state.round_num) + 1
        weights = [np.asarray(self.weights.get(r, state.weights[0] + cohort.work[0]), np.float32)]
        metrics = collections.OrderedDict(loss=float(r), num_clients=2.0, clients_dropped=0.0)
        metrics.update(self.metrics.get(r, {}))
        return RoundOutput(State(weights, np.int32(r)), metrics)

    def model_weights(self, state):
        return state.weights


class Log:
    def __init__(self):
        self.rows, self.checkpoints, self.warnings, self.updates = {}, [], [], []

    def record(self, round_num, values):
        self.rows[round_num] = dict(values)

    def checkpoint(self, round_num, leaves):
        self.checkpoints.append((round_num, float(leaves[0])))

    def show(self, round_num, values):
        self.updates.append((round_num, dict(values)))

    def warn(self, text):
        self.warnings.append(text)


def run(process=None, log=None, start=0, total=7, lost=0, bounds=None, **changes):
    log = log or Log()
    arguments = dict(
        cohort_of_round=lambda r, state: cohort(r, ["a"]),
        evaluate=lambda w, state: collections.OrderedDict({"eval/acc": float(w[0])}),
        should_stop=lambda: False,
    )
    state, done = loop.run(
        process or FakeProcess(),
        loop.Standing(State([np.float32(start)], np.int32(start)), start, lost, bounds or {}),
        loop.Pace(total, rounds_per_eval=2, rounds_per_checkpoint=3),
        log,
        **{**arguments, **changes},
    )
    return log, state, done


def test_rows_evaluations_and_checkpoints_come_when_due():
    log, state, done = run()
    assert done == 7 and state.weights == [7.0]
    assert list(log.rows) == list(range(8))
    assert {r: row["eval/acc"] for r, row in log.rows.items() if "eval/acc" in row} == {
        0: 0.0,
        2: 2.0,
        4: 4.0,
        6: 6.0,
    }
    assert "train/loss" not in log.rows[0] and log.rows[3]["train/loss"] == 3.0
    assert log.checkpoints == [(0, 0.0), (3, 3.0), (6, 6.0), (7, 7.0)]
    assert set(log.rows[4]) >= {"time/round_seconds", "time/data_seconds", "time/eval_seconds"}
    assert log.updates == [(r, row) for r, row in log.rows.items() if r]


@pytest.mark.parametrize("start", [0, 4])
def test_weights_before_and_after_every_round_are_compared(start):
    seen = []

    def compare(round_index, before, after):
        seen.append((round_index, float(before[0]), float(after[0])))
        return {"fairness/improved_fraction": 0.5}

    log, _, _ = run(start=start, compare=compare)
    assert seen == [(r, r, r + 1) for r in range(start, 7)]
    assert all(log.rows[r]["fairness/improved_fraction"] == 0.5 for r in range(start + 1, 8))


def test_going_on_does_not_repeat_round_zero():
    log, _, done = run(start=3)
    assert done == 7 and list(log.rows) == [4, 5, 6, 7]
    assert [r for r, _ in log.checkpoints] == [6, 7]


def test_stop_leaves_a_checkpoint_of_the_last_round():
    # It is asked for once only, as a signal may come between any two questions.
    asked = iter([False] * 4 + [True] + [False] * 9)
    log, _state, done = run(should_stop=lambda: next(asked))
    assert done == 5
    assert log.checkpoints[-1] == (5, 5.0)
    assert max(log.rows) == 5


def test_every_process_does_a_round():
    log, _, done = run(start=3, should_stop=lambda: True)
    assert done == 4 and log.checkpoints == [(4, 4.0)]


def test_round_of_no_finite_weights_is_recorded_then_ends_the_run():
    log = Log()
    with pytest.raises(RunError, match="not finite after round 4"):
        run(FakeProcess(weights={4: np.nan}), log)
    assert max(log.rows) == 4 and "eval/acc" not in log.rows[4]
    assert log.checkpoints[-1] == (3, 3.0)


def test_trouble_that_can_be_survived_is_told_once():
    log, _, done = run(
        FakeProcess(
            {
                2: {"clients_dropped": 1.0},
                3: {"clients_dropped": 2.0, "loss": np.nan},
                4: {"loss": np.inf},
            }
        )
    )
    assert done == 7
    assert len(log.warnings) == 2
    assert "round 2: 1 of 2 clients were dropped" in log.warnings[0]
    assert "round 3: train/loss is nan" in log.warnings[1]


NOBODY_LEFT = {"clients_dropped": 2.0}
NOBODY_ASKED = {"num_clients": 0.0}


@pytest.mark.parametrize("total", [1, 2, 3, 7, 10, 11, 12, 30])
def test_a_run_without_clients_from_round_two_on_has_diverged(total):
    log = Log()
    first = min(2, total)
    process = FakeProcess(dict.fromkeys(range(first, total + 1), NOBODY_LEFT))
    with pytest.raises(DivergedError, match=f"last being round {min(total, 11)}:"):
        run(process, log, total=total)
    assert max(log.rows) == min(total, 11), "the last row must be there"
    assert max(r for r, _ in log.checkpoints) < min(total, 11)


def test_lost_rounds_must_follow_one_another():
    lost = {r: NOBODY_LEFT for r in range(2, 31) if r % loop.MOST_LOST_ROUNDS}
    assert run(FakeProcess(lost), total=30)[2] == 30
    # One client of two left is enough.
    some = {r: {"clients_dropped": 1.0} for r in range(1, 31)}
    assert run(FakeProcess(some), total=30)[2] == 30


def test_rounds_in_which_nobody_is_to_train_count_neither_way():
    asked = dict.fromkeys(range(1, 31), NOBODY_ASKED)
    assert run(FakeProcess(asked), total=30)[2] == 30
    between = {r: NOBODY_LEFT if r % 3 == 0 else NOBODY_ASKED for r in range(1, 61)}
    with pytest.raises(DivergedError, match="10 rounds in a row, the last being round 30:"):
        run(FakeProcess(between), total=60)


@pytest.mark.parametrize("start", range(1, 15))
def test_a_run_that_goes_on_diverges_in_the_same_round(start):
    """Whenever it is stopped: the rows that are kept tell how many rounds were lost."""
    process = FakeProcess(dict.fromkeys(range(6, 40), NOBODY_LEFT))
    whole = Log()
    with pytest.raises(DivergedError, match="round 15:"):
        run(process, whole, total=40)
    rows = [{k: repr(v) for k, v in row.items()} for r, row in whole.rows.items() if r <= start]
    with pytest.raises(DivergedError, match="round 15:"):
        run(process, start=start, total=40, lost=loop.lost_rounds(rows))


HUGE = {"loss": 3e20}


@pytest.mark.parametrize("total", [1, 2, 3, 11, 12, 30])
def test_a_run_whose_loss_stays_huge_has_diverged(total):
    log = Log()
    process = FakeProcess(dict.fromkeys(range(min(2, total), total + 1), HUGE))
    first = {"evaluate": lambda w, state: collections.OrderedDict({"eval/loss": 2.0})}
    with pytest.raises(DivergedError, match="training loss was above 2e"):
        run(process, log, total=total, **first)
    assert max(log.rows) == min(total, 11)


def test_a_huge_loss_at_the_end_is_enough_and_one_before_is_not():
    assert run(FakeProcess({5: HUGE, 6: HUGE}), total=20)[2] == 20
    with pytest.raises(DivergedError, match=r"train/loss is 3e.20 in the end, above 1e.06"):
        run(FakeProcess({20: HUGE}), total=20)
    losses = iter([1.0, 1.0, 5e6])
    given = {"evaluate": lambda w, state: collections.OrderedDict({"eval/loss": next(losses)})}
    with pytest.raises(DivergedError, match=r"eval/loss is 5e.06 in the end"):
        run(total=4, **given)


@pytest.mark.parametrize("first", [5e15, np.inf, np.nan])
def test_losses_are_judged_by_the_first(first):
    """Where tests have no finite loss, by that of the first round."""
    high = FakeProcess({r: {"loss": 1e16} for r in range(1, 21)})
    given = {"evaluate": lambda w, state: collections.OrderedDict({"eval/loss": first})}
    assert run(high, total=20, **given)[2] == 20


def test_weights_that_are_far_too_large_end_the_run():
    assert run(FakeProcess(weights={4: 9e9}))[2] == 7
    with pytest.raises(DivergedError, match=r"weights are larger than 1e.10 after round 4"):
        run(FakeProcess(weights={4: -2e10}))


@pytest.mark.parametrize("start", range(1, 15))
def test_a_run_with_a_huge_loss_that_goes_on_diverges_in_the_same_round(start):
    process = FakeProcess({r: HUGE if r % 2 else NOBODY_LEFT for r in range(6, 40)})
    whole = Log()
    first = {"evaluate": lambda w, state: collections.OrderedDict({"eval/loss": 2.0})}
    with pytest.raises(DivergedError, match="round 15:"):
        run(process, whole, total=40, **first)
    rows = [{k: repr(v) for k, v in row.items()} for r, row in whole.rows.items() if r <= start]
    known = {"lost": loop.lost_rounds(rows), "bounds": loop.loss_bounds(rows)}
    with pytest.raises(DivergedError, match="round 15:"):
        run(process, start=start, total=40, **known, **first)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_asks_and_second_interrupts(number):
    before = signal.getsignal(number)
    with loop.StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal == number
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            signal.pause()
    assert command_line.received() == number
    assert signal.getsignal(number) == before


def test_a_run_that_is_to_outlive_its_terminal_does():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # As `nohup` does.
    try:
        with loop.StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_state_goes_through_its_leaves():
    state = State([np.arange(3.0), (np.int32(4),)], np.int32(2))
    other = State([np.zeros(3), (np.int32(0),)], np.int32(0))
    restored = loop.restore_state(other, loop.flatten_state(state))
    assert isinstance(restored, State) and isinstance(restored.weights[1], tuple)
    np.testing.assert_array_equal(restored.weights[0], np.arange(3.0))
    assert restored.round_num == 2


@pytest.mark.parametrize(
    "leaves",
    [
        [np.zeros(3)],
        [np.zeros(3, np.float32), np.int32(0)],
        [np.zeros((3, 1)), np.int32(0)],
    ],
)
def test_state_of_another_form_is_refused(leaves):
    with pytest.raises(RunError, match="structure differs"):
        loop.restore_state(State([np.zeros(3)], np.int32(0)), leaves)


def test_weights_of_another_model_are_refused():
    leaves = [np.zeros(4), np.int32(0)]
    with pytest.raises(RunError, match=r"shapes \[\(4,\)\], not \[\(3,\)\]"):
        loop.restore_state(State([np.zeros(3)], np.int32(0)), leaves)


@pytest.mark.parametrize("lost_in", [0, 3, 4])
def test_a_round_without_workers_leaves_a_checkpoint_of_the_one_before(lost_in):
    class Deserted(FakeProcess):
        def next(self, state, cohort, client_states=None):
            if int(state.round_num) == lost_in:
                raise NoWorkersError("nobody")
            return super().next(state, cohort)

    log = Log()
    with pytest.raises(NoWorkersError):
        run(Deserted(), log)
    # Every three rounds there is one anyway, and none is written twice.
    assert log.checkpoints == [
        (r, float(r)) for r in sorted({0, 3, lost_in} & set(range(lost_in + 1)))
    ]
