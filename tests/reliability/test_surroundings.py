"""What happens around a run changes none of its bits: other processes, clocks, signals, cores."""

import functools
import os
import random
import signal

import pytest

from simulation import runtimes
from tests.reliability import disturb, runs
from tests.reliability.test_kills import CASES

_ROUNDS = 12


def new(folder, name):
    (folder / name).mkdir()
    return folder / name


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", list(runs.FAMILIES))
def test_two_writers_of_one_folder(family, tmp_path, record_property):
    """Of several commands in one folder one works; the others say so, and disturb nothing."""
    always = runs.FAMILIES[family].always
    arguments = runs.command(family, "tff", _ROUNDS)
    whole = runs.finish(arguments, new(tmp_path, "whole"), always)
    folder = new(tmp_path, "shared")
    first = runs.stopped_at(5, arguments, folder, always)
    others = 4
    for _ in range(others):
        runs.assert_refused(runs.run(arguments, folder, always), "Another process is running in")
    first.signal(signal.SIGCONT)
    outcome = first.wait()
    assert outcome.code == 0 and not outcome.err, outcome
    runs.assert_same(runs.results(folder), whole)
    record_property("writers", 1 + others)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", list(runs.FAMILIES))
def test_writers_that_start_at_once(family, tmp_path, record_property):
    always = runs.FAMILIES[family].always
    arguments = runs.command(family, "tff", _ROUNDS)
    whole = runs.finish(arguments, new(tmp_path, "whole"), always)
    folder = new(tmp_path, "shared")
    outcomes = [child.wait() for child in [runs.Child(arguments, folder, always) for _ in "1234"]]
    # One that comes when the first has ended finds the run finished.
    done = [outcome for outcome in outcomes if outcome.code == 0]
    assert done and not any(outcome.err for outcome in done)
    for outcome in outcomes:
        if outcome not in done:
            runs.assert_refused(outcome, "Another process is running in")
    runs.assert_same(runs.results(folder), whole)
    record_property("writers", len(outcomes))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("family", "runtime"), CASES)
def test_a_clock_that_jumps(family, runtime, tmp_path):
    """The wall clock jumps by years whenever it is read; so do the times of files, once killed."""
    always = runs.FAMILIES[family].always
    arguments = runs.command(family, runtime, _ROUNDS)
    whole = runs.finish(arguments, new(tmp_path, "whole"), always)
    folder = new(tmp_path, "jumps")
    # A limit of time is not the wall clock's.
    limited = [*arguments, "--max_minutes=10"]
    for i, moment in enumerate((1, 5, 9)):
        jump = functools.partial(disturb.jump_clock, i)
        child = runs.stopped_at(moment, limited, folder, [*always, jump])
        child.signal(signal.SIGKILL)
        assert child.wait().code == runs.KILLED
        draws = random.Random(i)
        for path in runs.results(folder).rglob("*"):
            os.utime(path, (draws.uniform(0, 4e9), draws.uniform(0, 4e9)))
    jump = functools.partial(disturb.jump_clock, 9)
    runs.finish(limited, folder, [*always, jump])
    runs.assert_same(runs.results(folder), whole)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("family", "runtime"), CASES)
def test_a_terminal_that_closes(family, runtime, tmp_path):
    """SIGHUP ends a run, which resumes when started again; under nohup it does nothing."""
    always = runs.FAMILIES[family].always
    arguments = runs.command(family, runtime, _ROUNDS)
    whole = runs.finish(arguments, new(tmp_path, "whole"), always)
    folder = new(tmp_path, "closed")
    for moment in (1, 5, 9):
        child = runs.stopped_at(moment, arguments, folder, always)
        child.signal(signal.SIGHUP)
        child.signal(signal.SIGCONT)
        outcome = child.wait()
        # Killed by it, or stopped after the round.
        assert outcome.code in (-signal.SIGHUP, 128 + signal.SIGHUP), outcome
        assert not outcome.err, outcome
    ignored = functools.partial(disturb.ignore, signal.SIGHUP)
    child = runs.stopped_at(11, arguments, folder, [*always, ignored])
    child.signal(signal.SIGHUP)
    child.signal(signal.SIGCONT)
    outcome = child.wait()
    assert outcome.code == 0 and not outcome.err, outcome
    runs.assert_same(runs.results(folder), whole)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
@pytest.mark.parametrize(("family", "runtime"), CASES)
def test_one_core_against_two(family, runtime, tmp_path):
    """Also where a run that began on one core resumes with two."""
    always = runs.FAMILIES[family].always
    first, second = sorted(os.sched_getaffinity(0))[:2]
    one = functools.partial(disturb.use_cores, [first])
    two = functools.partial(disturb.use_cores, [first, second])
    arguments = runs.command(family, runtime, _ROUNDS)
    whole = runs.finish(arguments, new(tmp_path, "two"), [*always, two])
    runs.finish(arguments, new(tmp_path, "one"), [*always, one])
    runs.assert_same(runs.results(tmp_path / "one"), whole)
    folder = new(tmp_path, "moved")
    child = runs.stopped_at(5, arguments, folder, [*always, one])
    child.signal(signal.SIGKILL)
    assert child.wait().code == runs.KILLED
    runs.finish(arguments, folder, [*always, two])
    runs.assert_same(runs.results(folder), whole)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
@pytest.mark.parametrize("runtime", runtimes.RUNTIMES)
@pytest.mark.parametrize("task", ["mnist_writers", "shakespeare_character"])
def test_one_core_against_two_on_a_papers_model(task, runtime, tmp_path):
    """Convolutions and recurrent layers, whose operations may share their work among threads."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    arguments = [
        f"--task={task}",
        "--use_synthetic_data",
        "--algorithm=fedavg",
        f"--runtime={runtime}",
        "--experiment_name=run",
        "--total_rounds=2",
        "--clients_per_round=3",
        "--client_batch_size=4",
        "--max_elements_per_client=12",
        "--client_learning_rate=0.05",
        "--rounds_per_eval=2",
        "--num_validation_examples=64",
    ]
    for name, cores in (("one", [first]), ("two", [first, second])):
        cores = functools.partial(disturb.use_cores, cores)
        runs.finish(arguments, new(tmp_path, name), [cores])
    runs.assert_same(runs.results(tmp_path / "one"), runs.results(tmp_path / "two"))
