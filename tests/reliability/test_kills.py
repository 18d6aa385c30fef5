"""Killed at random moments and at every change of its folder, a run ends with the same bits."""

import functools
import itertools
import random
import signal
import time

import pytest

import tff_algos
from simulation import runtimes as runtimes_lib
from tests.reliability import disturb, runs
from tests.tff_algos import cases

KILLS = runs.number("KILLS", 50)
KILLS_OF_A_METHOD = runs.number("KILLS_OF_A_METHOD", 6)
# Of every so many points one is tried; 1 is all of them.
EVERY = runs.number("EVERY_POINT", 1)
CASES = [
    (family, runtime)
    for family in runs.FAMILIES
    for runtime in runtimes_lib.RUNTIMES
    if (family, runtime) != ("staged", "vectorized")
]
_ROUNDS_OF_A_METHOD = 40
# Moments within a round are drawn from so many rounds' time: also the work between checkpoints.
_ROUNDS_OF_DELAY = 3


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("family", "runtime"), CASES)
def test_killed_at_random_moments(family, runtime, tmp_path, record_property):
    """Each kill hits a round of its own, from the first to the last, after a random delay."""
    draws = random.Random(f"{family} {runtime}")
    always = runs.FAMILIES[family].always
    kill_at_random(runs.command(family, runtime), runs.ROUNDS, KILLS, 8, draws, tmp_path, always)
    record_property("kills", KILLS)


def kill_at_random(arguments, rounds, kills, at_start, draws, folder, always=()):
    """Kills a run so many times; one kill of `at_start` hits the start, before the first round."""
    whole, killed = folder / "whole", folder / "killed"
    whole.mkdir()
    killed.mkdir()
    started = time.monotonic()
    child = runs.Child(arguments, whole, always)
    assert child.wait_for_round(0)
    start_seconds = time.monotonic() - started
    # The first round includes what is traced and compiled for it.
    assert child.wait_for_round(2)
    started = time.monotonic()
    assert child.wait_for_round(rounds)
    round_seconds = (time.monotonic() - started) / (rounds - 2)
    assert child.wait().code == 0

    # In ascending order: whatever a kill costs, the run has not ended before the last.
    moments = sorted(draws.randrange(rounds) for _ in range(kills))
    for i, moment in enumerate(moments):
        # On a busy machine the kill may come late; the run then waits for it.
        latest = min(moment + _ROUNDS_OF_DELAY + 1, rounds)
        wait = functools.partial(disturb.stop_at_round, latest)
        child = runs.Child(arguments, killed, [*always, wait])
        if i % at_start == at_start - 1:
            time.sleep(draws.uniform(0, start_seconds))
        elif child.wait_for_round(moment):
            time.sleep(draws.uniform(0, _ROUNDS_OF_DELAY * round_seconds))
        child.signal(signal.SIGKILL)
        outcome = child.wait()
        assert outcome.code == runs.KILLED and not outcome.err, outcome
    runs.finish(arguments, killed, always)
    runs.assert_same(runs.results(killed), runs.results(whole))


def of_method(name, runtime):
    """Returns the arguments of a run of any method."""
    arguments = [
        *runs.COMMON,
        f"--algorithm={name}",
        f"--runtime={runtime}",
        f"--total_rounds={_ROUNDS_OF_A_METHOD}",
    ]
    if tff_algos.get(name).server_learning_rate is None:
        arguments.append("--server_learning_rate=0.1")
    if name == "centralized":
        arguments.remove("--clients_per_round=3")
    if name == "lookahead" or name.startswith("fedda_"):  # Their clients' steps are settings.
        arguments.remove("--client_epochs_per_round=2")
    if name == "fedcorr":  # All three stages in the rounds there are.
        arguments += ["--fedcorr_stage1_clients=4", "--fedcorr_stage2_rounds=8"]
    return arguments


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        (name, runtime)
        for name in cases.OWN
        for runtime in runtimes_lib.RUNTIMES
        if not (tff_algos.get(name).staged and runtime == "vectorized")
    ],
)
def test_every_method_killed_at_random_moments(name, runtime, tmp_path, record_property):
    """From before its first round to its end."""
    draws = random.Random(f"{name} {runtime}")
    arguments = of_method(name, runtime)
    kill_at_random(arguments, _ROUNDS_OF_A_METHOD, KILLS_OF_A_METHOD, 3, draws, tmp_path)
    record_property("kills", KILLS_OF_A_METHOD)


_PARTS = 6


@functools.cache
def points_of(family, folder):
    """Returns the run that nothing happens to, and the names of the changes that it makes."""
    always = runs.FAMILIES[family].always
    whole = folder / family
    whole.mkdir()
    listed = functools.partial(
        disturb.list_points, str(runs.results(whole)), str(folder / f"{family}.points")
    )
    runs.finish(short(family), whole, [*always, listed])
    return whole, (folder / f"{family}.points").read_text().splitlines()


def short(family):
    """Returns the arguments of a run that makes each kind of change more than once."""
    return runs.command(family, "tff", runs.FAMILIES[family].least_rounds, rounds_per_checkpoint=1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("shared")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("family", ["stateless", "client_state", "staged"])
def test_killed_at_every_change_of_its_folder(
    family, when, part, shared, tmp_path, record_property
):
    """Every rename, fsync, delete, write and SQL statement of a run is a point to be killed at."""
    always = runs.FAMILIES[family].always
    whole, points = points_of(family, shared)
    kinds = {point.split()[0] for point in points}
    assert kinds >= {"fsync", "replace", "remove", "mkdir", "write"}
    assert ("sqlite" in kinds) == (family == "client_state")
    chosen = range(part, len(points), _PARTS)[::EVERY]
    for number in chosen:
        folder = tmp_path / str(number)
        folder.mkdir()
        kill = functools.partial(disturb.kill_at_point, str(runs.results(folder)), number, when)
        outcome = runs.run(short(family), folder, [*always, kill])
        assert outcome.code == runs.KILLED, (points[number], outcome)
        outcome = runs.run(short(family), folder, always)
        assert outcome.code == 0 and not outcome.err, (points[number], outcome)
        try:
            runs.assert_same(runs.results(folder), runs.results(whole))
        except AssertionError as e:
            raise AssertionError(f"killed {when} {points[number]} (change {number})") from e
    record_property("kills", len(chosen))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_changes_of_a_folder_are_the_same_in_every_run(tmp_path):
    """Or the number of a change would not say which one it is."""
    lists = []
    for i, family in itertools.product(range(2), ["client_state"]):
        (tmp_path / str(i)).mkdir()
        _, points = points_of.__wrapped__(family, tmp_path / str(i))
        # The length of a row depends on its times.
        lists.append([p.split()[0::2] if p.startswith("write") else p for p in points])
    assert lists[0] == lists[1]
