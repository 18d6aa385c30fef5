"""What a user's code is told while a run works, and what it may do to it."""

import dataclasses
import json
import pathlib
import types
import warnings

import numpy as np
import pytest

import run_experiment
import simulation
import tasks
from simulation.errors import RunError
from simulation.rounds.callbacks import Callbacks, Round
from tests.simulation import toy_extension  # noqa: F401  (registers the task)
from tests.test_run_experiment import assert_same_run, bytes_of
from tff_suite.hparams import HparamError

pytestmark = pytest.mark.slow

TOY = {
    "task": "toy",
    "algorithm": "fedavg",
    "total_rounds": 4,
    "clients_per_round": 3,
    "client_batch_size": 3,
    "client_learning_rate": 0.3,
    "rounds_per_eval": 2,
    "rounds_per_checkpoint": 2,
    "experiment_name": "run",
    "runtime": "vectorized",
    "progress": False,
}


def run(root, **changes):
    return simulation.run(**{**TOY, "root_output_dir": root, **changes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without callbacks."""
    return run(tmp_path_factory.mktemp("plain"))


class Journal(simulation.Callback):
    def __init__(self):
        self.told, self.weights = [], []

    def begin(self, past):
        self.told.append(("begin", [number for number, _ in past]))

    def after_round(self, done):
        self.told.append(("round", done.number))
        assert "train/loss" in done.metrics and "eval/loss" not in done.metrics

    def at_evaluation(self, done):
        self.told.append(("evaluation", done.number))
        assert "eval/accuracy" in done.metrics

    def at_checkpoint(self, done):
        self.told.append(("checkpoint", done.number))

    def at_end(self, done):
        self.told.append(("end", done.number))
        self.weights = done.weights


def test_callbacks_see_and_change_nothing(plain, tmp_path):
    journal, rounds = Journal(), []
    norm = {"norm": lambda weights: sum(float(np.sum(w**2)) for w in weights)}
    result = run(tmp_path, callbacks=[journal, rounds.append], evaluators=norm)
    assert journal.told == [
        ("begin", []),
        ("evaluation", 0),
        ("checkpoint", 0),
        ("round", 1),
        ("round", 2),
        ("evaluation", 2),
        ("checkpoint", 2),
        ("round", 3),
        ("round", 4),
        ("evaluation", 4),
        ("checkpoint", 4),
        ("end", 4),
    ]
    assert [r.number for r in rounds] == [1, 2, 3, 4]
    assert all(map(np.array_equal, journal.weights, result.weights))
    same = [c for c in plain.rounds if not c.startswith("time/")]
    assert result.rounds[same].equals(plain.rounds[same])
    given = result.rounds["eval/norm"]
    assert given.notna().tolist() == [True, False, True, False, True]
    assert given.iloc[-1] == norm["norm"](result.weights)
    assert result.summary["final"]["eval/norm"] == given.iloc[-1]


@pytest.mark.parametrize("where", ["after_round", "at_evaluation", "at_checkpoint"])
def test_what_one_raises_ends_the_run_with_a_checkpoint(plain, tmp_path, where):
    class Breaks(simulation.Callback):
        pass

    def fails(self, done):
        if done.number == 2:
            raise ZeroDivisionError("mine")

    setattr(Breaks, where, fails)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run(tmp_path, callbacks=[Breaks()], rounds_per_checkpoint=2 if "check" in where else 50)
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) >= 2
    again = run(tmp_path)
    assert_same_run(pathlib.Path(again.folder), pathlib.Path(plain.folder))


@pytest.mark.parametrize(
    "value",
    [None, "0.5", np.array([0.5]), {"a": 1}, 1j, np.complex64(1)],
    ids=lambda v: type(v).__name__,
)
def test_an_evaluator_must_return_a_number(tmp_path, value):
    kind = type(value).__name__
    with pytest.raises(RunError, match=f"^The evaluator 'mine' must return a number, .* {kind}"):
        run(tmp_path, evaluators={"mine": lambda weights: value})


@pytest.mark.parametrize("fails_at", [0, 2, 4], ids=["first", "middle", "last"])
def test_rounds_that_an_evaluator_fails_to_measure_are_done_again(plain, tmp_path, fails_at):
    rounds, broken = [0], [True]

    def norm(weights):
        if broken[0] and rounds[-1] == fails_at:
            raise ZeroDivisionError("mine")
        return float(sum(np.sum(w**2) for w in weights))

    def follow(done):
        rounds.append(done.number)

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(tmp_path, callbacks=[follow], evaluators={"norm": norm})
    broken[0] = False
    again = run(tmp_path, callbacks=[follow], evaluators={"norm": norm})
    assert again.rounds["eval/norm"].notna().tolist() == [True, False, True, False, True]
    same = [c for c in plain.rounds if not c.startswith("time/")]
    assert again.rounds[same].equals(plain.rounds[same])


def test_what_callbacks_change_in_metrics_is_not_recorded(plain, tmp_path):
    class Changes(simulation.Callback):
        def at_evaluation(self, done):
            done.metrics.update({"eval/accuracy": 2.0, "mine": 1.0})

        at_end = at_evaluation

    changed = run(tmp_path, callbacks=[Changes(), lambda done: done.metrics.clear()])
    assert_same_run(pathlib.Path(changed.folder), pathlib.Path(plain.folder))


def test_a_finished_run_says_which_evaluators_it_did_not_have(tmp_path):
    mine = {"mine": lambda weights: 1.0}
    run(tmp_path, evaluators=mine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, evaluators=mine)
    with pytest.warns(RuntimeWarning, match="was finished without the evaluator other, which"):
        run(tmp_path, evaluators={**mine, "other": lambda weights: 2.0})


SHRINKS = """
class Shrinks(simulation.Callback):
    def after_round(self, done):
        return [w / {divisor} for w in done.weights] if done.number == 2 else None
"""


def test_another_evaluator_or_callback_of_the_same_name_is_told(tmp_path):
    filled = []

    def power(exponent):
        def norm(weights):
            filled.append(len(filled))
            return float(sum(np.sum(np.abs(w) ** exponent) for w in weights))

        return {"norm": norm}

    def of_a_notebook(divisor):
        names = {"__name__": "__main__", "simulation": simulation}
        exec(compile(SHRINKS.format(divisor=divisor), "<cell>", "exec"), names)
        return names["Shrinks"]()

    def watches(done):
        filled.append(done.number)

    given = {"callbacks": [of_a_notebook(2), watches]}
    first = run(tmp_path, evaluators=power(2), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, evaluators=power(2), **given)

    other = "Rounds up to 4 of .* were done with other code of the evaluator norm; choose another"
    with pytest.warns(RuntimeWarning, match=other):
        again = run(tmp_path, evaluators=power(1), **given)
    assert again.rounds["eval/norm"].equals(first.rounds["eval/norm"])
    with pytest.warns(RuntimeWarning, match=other):
        run(tmp_path, evaluators=power(1), total_rounds=6, **given)

    given = {"callbacks": [of_a_notebook(3), watches]}
    with pytest.warns(RuntimeWarning, match="up to 6 of .* of the callback Shrinks; choose"):
        run(tmp_path, evaluators=power(1), total_rounds=6, **given)


def test_a_callback_that_watches_may_change_and_a_new_one_is_told(tmp_path):
    run(tmp_path, callbacks=[lambda done: None])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, callbacks=[lambda done: done.metrics.get("train/loss") and None])

    def average(done):
        return done.weights

    with pytest.warns(RuntimeWarning, match="was finished without the callback average, which"):
        run(tmp_path, callbacks=[average])


def test_functions_of_earlier_rounds_are_remembered(tmp_path):
    """A run that goes on without an evaluator has its numbers still."""
    run(tmp_path, evaluators={"mine": lambda weights: 1.0}, total_rounds=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, total_rounds=3)
    other = "Rounds up to 3 of .* were done with other code of the evaluator mine; choose"
    with pytest.warns(RuntimeWarning, match=other):
        run(tmp_path, evaluators={"mine": lambda weights: 2.0})


def test_early_stopping_goes_on_where_it_was(tmp_path):
    settings = {"total_rounds": 9, "rounds_per_eval": 1, "client_learning_rate": 0.0}

    def stops():
        return simulation.EarlyStopping("eval/loss", patience=4)

    whole = run(tmp_path / "whole", callbacks=[stops()], **settings)
    assert whole.summary["rounds"] == 4 and whole.summary["finished"]
    assert whole.summary["stopped"] == "eval/loss has not improved for 4 evaluations"

    def interrupts(done):
        if done.number == 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "parts", callbacks=[stops(), interrupts], **settings)
    parts = run(tmp_path / "parts", callbacks=[stops()], **settings)
    assert_same_run(pathlib.Path(parts.folder), pathlib.Path(whole.folder))
    before = bytes_of(tmp_path / "parts")
    again = run(tmp_path / "parts", callbacks=[stops(), Journal()], **settings)
    assert bytes_of(tmp_path / "parts") == before, "a run that stopped is finished"
    assert again.summary == parts.summary and again.rounds.equals(parts.rounds)
    assert all(map(np.array_equal, again.weights, parts.weights))
    # Without the callback, or with more patience, the rounds that are left are done.
    patient = simulation.EarlyStopping("eval/loss", patience=6)
    longer = run(tmp_path / "parts", callbacks=[patient], **settings)
    assert longer.summary["rounds"] == 6 and longer.summary["finished"]
    assert run(tmp_path / "parts", **settings).summary["rounds"] == 9


def test_weights_that_are_returned_are_the_servers_and_this_is_recorded(plain, tmp_path):
    """Halved after round 2, of which the row tells; a resumed run goes on from them."""
    seen = []

    def halves(done):
        if done.number == 2:
            seen[:] = [w / 2 for w in done.weights]
            return seen
        return None

    result = run(tmp_path, callbacks=[halves])
    assert result.rounds["train/weights_replaced"].tolist()[2] == 1.0
    assert result.rounds["train/weights_replaced"].notna().sum() == 1
    assert not all(map(np.array_equal, result.weights, plain.weights))
    assert result.rounds["train/loss"].tolist()[:3][1:] == plain.rounds["train/loss"].tolist()[1:3]
    # It resumes from the replaced weights.
    run(tmp_path, callbacks=[halves], total_rounds=2, experiment_name="parts")
    told = "Rounds up to 2 of .*parts were done with the callback halves, missing now; choose"
    with pytest.warns(RuntimeWarning, match=told):
        parts = run(tmp_path, experiment_name="parts")
    assert all(map(np.array_equal, parts.weights, result.weights))
    # To read the results of a finished run needs no callback.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(tmp_path, experiment_name="parts")


def test_a_target_that_a_finished_run_passed_is_one_line(tmp_path):
    found = run(tmp_path)
    first = found.rounds["eval/loss"].iloc[2]
    with pytest.raises(
        RunError, match=r"has 4 rounds, but stop_at would end it earlier: eval/loss"
    ):
        run(tmp_path, stop_at=f"eval/loss<={first + 1e-3}")
    # The last round is where it would stop.
    last = found.rounds["eval/loss"].iloc[4]
    assert run(tmp_path, stop_at=f"eval/loss<={last + 1e-6}").summary["rounds"] == 4


def test_a_run_that_its_task_let_stop_is_found_again(tmp_path):
    """Of a metric whose name says nothing, only the task knows which values are better."""
    task = dataclasses.replace(
        tasks.load("synthetic", use_synthetic_data=True, num_clients=10),
        name="mine",
        metrics={"hits": "sparse_categorical_accuracy"},
        primary_metric="hits",
        higher_is_better=True,
    )
    settings = {"task": task, "validation_fraction": 0.3, "total_rounds": 9, "rounds_per_eval": 1}

    def stopping():
        return [simulation.EarlyStopping("validation/hits", patience=1, min_delta=1.0)]

    first = run(tmp_path, **settings, callbacks=stopping())
    assert first.summary["rounds"] < 9
    again = run(tmp_path, **settings, callbacks=stopping())
    assert again.summary == first.summary


def test_a_target_by_the_command(tmp_path, capsys):
    settings = {k: v for k, v in TOY.items() if k != "progress"}
    settings |= {"stop_at": "eval/loss<1e9", "root_output_dir": tmp_path, "total_rounds": 3}
    arguments = [f"--{k}={v}" for k, v in settings.items()]
    assert run_experiment.main(arguments) == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["rounds"] == 0 and summary["stopped"] == "eval/loss<1e+09 after round 0"
    assert "Stopped early: eval/loss<1e+09 after round 0." in capsys.readouterr().out
    before = bytes_of(tmp_path)
    assert run_experiment.main(arguments) == 0
    said = "is finished (stopped early, eval/loss<1e+09 after round 0): nothing to do."
    assert said in capsys.readouterr().out
    assert bytes_of(tmp_path) == before
    # Another target is a target still to be met.
    assert run_experiment.main([*arguments, "--stop_at=eval/loss<-1"]) == 0
    assert json.loads((tmp_path / "run/summary.json").read_text())["rounds"] == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stop_at": "eval/accuracy"}, "--stop_at=eval/accuracy must be a column"),
        ({"stop_at": "eval/accuracy>=high"}, "must be a column"),
        ({"stop_at": "eval/accuracy>=nan"}, "must be a column"),
        ({"stop_at": "eval/acuracy>=0.9"}, "there is no column eval/acuracy; there are eval/loss"),
        ({"evaluators": {"loss": len}}, "evaluators: the name 'loss' must"),
        ({"evaluators": {"mine": 3}}, "mine must be a function of the weights"),
        ({"callbacks": [lambda done: 3]}, "after_round must return None or weights"),
        ({"evaluators": [len]}, "evaluators must be a dictionary by name, found a list"),
        ({"callbacks": Journal()}, r"callbacks must be a list; pass \[callback\]"),
        ({"callbacks": len}, "callbacks must be a list"),
        ({"callbacks": [Journal]}, r"Journal is a class; pass one of it, Journal\(...\)"),
        ({"callbacks": [lambda done: done.stop("")]}, "Round.stop: the reason must be text, found"),
        ({"callbacks": [3]}, "callbacks: 3 must be a simulation.Callback or a function"),
        (
            {"callbacks": [lambda done: done.weights], "algorithm": "fedcorr", "runtime": "tff",
             "fedcorr_iterations": 1, "fedcorr_stage1_clients": 2},
            "the weights of a method in several stages cannot be replaced",
        ),
    ],
    ids=lambda v: "" if isinstance(v, str) else "-".join(v),
)  # fmt: skip
def test_what_is_wrong_is_one_line(tmp_path, changes, says):
    with pytest.raises(HparamError, match=says):
        run(tmp_path, **changes)


ROWS = [(0, 5.0), (1, 4.0), (2, 4.5), (3, 4.2), (4, 3.0), (5, 3.1)]


@pytest.mark.parametrize("resumed_after", range(7))
@pytest.mark.parametrize(
    ("make", "stops_after"),
    [
        (lambda: simulation.EarlyStopping("eval/loss", patience=2), 3),
        (lambda: simulation.EarlyStopping("eval/loss", patience=3), None),
        (lambda: simulation.EarlyStopping("eval/loss", patience=2, min_delta=1.5), 2),
        (lambda: simulation.EarlyStopping("eval/loss", patience=5, higher_is_better=True), 5),
        (lambda: simulation.StopAt("eval/loss <= 4.0"), 1),
        (lambda: simulation.StopAt("eval/loss<4"), 4),
        (lambda: simulation.StopAt("eval/loss>9"), None),
    ],
)
def test_those_that_ship_know_the_same_wherever_a_run_resumes(make, stops_after, resumed_after):
    told = Callbacks([make()])
    told.begin([{"round_num": str(n), "eval/loss": str(v)} for n, v in ROWS[:resumed_after]])
    stopped = None
    for number, value in ROWS[resumed_after:]:
        if told.is_stopping:
            break
        told.at("evaluation", number, {"eval/loss": value}, [])
        stopped = number if told.is_stopping else None
    if told.is_stopping and stopped is None:
        stopped = stops_after
        assert stops_after < resumed_after
    assert stopped == stops_after


@pytest.mark.parametrize("resumed_after", [0, 2])
def test_the_first_of_two_reasons_counts_wherever_a_run_resumes(resumed_after):
    """Round 1 meets both, as if the run were killed between its checkpoint and its results."""
    told = Callbacks([simulation.StopAt("eval/loss<=4"), simulation.StopAt("eval/loss<5")])
    told.begin([{"round_num": str(n), "eval/loss": str(v)} for n, v in ROWS[:resumed_after]])
    for number, value in ROWS[resumed_after:2]:
        told.at("evaluation", number, {"eval/loss": value}, [])
    assert told.reason == "eval/loss<=4 after round 1"


def test_weights_are_made_when_they_are_asked_for():
    made = []
    done = Round(1, {}, lambda: made.append(1) or [np.ones(1)])
    assert not made and done.weights is done.weights and made == [1]


def stopped_on(column, values, task=None, **how):
    told = Callbacks([simulation.EarlyStopping(column, patience=2, **how)], task=task)
    told.begin([])
    for number, value in enumerate(values):
        told.at("evaluation", number, {column: value}, [])
        if told.is_stopping:
            return number
    return None


def of_primary(metric, higher):
    return types.SimpleNamespace(primary_metric=metric, higher_is_better=higher)


UP = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("column", "task", "how", "rising_stops"),
    [
        ("eval/accuracy", None, {}, False),
        ("validation/top", of_primary("top", True), {}, False),
        ("validation/top", of_primary("top", False), {}, True),
        ("validation/loss", of_primary("top", True), {}, True),
        ("eval/mine", of_primary("top", False), {"higher_is_better": True}, False),
        ("eval/accuracy", of_primary("accuracy", True), {"higher_is_better": False}, True),
    ],
)
def test_early_stopping_knows_from_the_task_which_values_are_better(
    column, task, how, rising_stops
):
    assert (stopped_on(column, UP, task, **how) is not None) == rising_stops
    assert (stopped_on(column, UP[::-1], task, **how) is not None) != rising_stops


def test_early_stopping_refuses_a_column_that_does_not_say_which(tmp_path):
    with pytest.raises(HparamError, match="pass higher_is_better; eval/mine does not say"):
        stopped_on("eval/mine", UP, of_primary("top", True))
    with pytest.raises(HparamError, match="pass higher_is_better; train/num_examples"):
        run(tmp_path, callbacks=[simulation.EarlyStopping("train/num_examples")])


def test_early_stopping_may_be_called_by_another_callback():
    inner = simulation.EarlyStopping("eval/loss", patience=2)
    assert inner.begin([(0, {"eval/loss": 1.0})]) is None


def test_the_second_callback_sees_the_weights_of_the_first():
    seen = []
    given = [
        lambda done: [w / 2 for w in done.weights],
        lambda done: seen.append(done.weights),
        lambda done: [w + 1 for w in done.weights],
    ]
    told = Callbacks(given)
    (replaced,) = told.after_round(1, {}, [np.full(2, 4.0, np.float32)])
    assert replaced.tolist() == [3.0, 3.0] and seen[0][0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda r: 0.1 - 0.04 * r, "returns -0.02 in round 3; a learning rate is finite"),
        (lambda r: 0.1 / (2.0 - r), "returns inf in round 2"),
    ],
)
def test_a_rate_that_becomes_negative_is_refused_before_the_first_round(tmp_path, schedule, says):
    with pytest.raises(HparamError, match=says):
        run(tmp_path, client_learning_rate=None, client_lr_schedule=schedule)
    assert not any(tmp_path.iterdir())
