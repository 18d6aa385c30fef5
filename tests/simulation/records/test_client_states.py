import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.errors import RunError
from simulation.records import client_states
from tests.tasks import tffs_files
from tff_algos.process import StackedStates


class State(NamedTuple):
    visits: np.ndarray
    kept: tuple


INITIAL = State(np.int32(0), (np.zeros([2, 3], np.float32), np.zeros([], np.float64)))
SIZE = 4 + 24 + 8


def state(number):
    return State(
        np.int32(number), (np.full([2, 3], number / 7, np.float32), np.float64(number) / 3)
    )


def opened(path, capacity=100, round_num=0):
    states = client_states.ClientStates(str(path), INITIAL, capacity * SIZE)
    states.go_on_from(round_num)
    return states


def numbers(states, clients):
    found = states.read(clients)
    for s in found:
        want = state(int(s.visits))
        for a, b in zip(tf.nest.flatten(s), tf.nest.flatten(want), strict=True):
            assert np.asarray(a).dtype == np.asarray(b).dtype and np.array_equal(a, b)
    return [int(s.visits) for s in found]


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_reads_what_was_written_and_the_initial_state_otherwise(tmp_path, capacity):
    states = opened(tmp_path / "s", capacity)
    states.write({"a": state(1), "b": state(2), "c": state(3)}, 1)
    states.write({"b": state(4)}, 2)
    assert numbers(states, ["a", "b", "c", "d"]) == [1, 4, 3, 0]


def test_goes_back_to_the_states_of_a_checkpoint(tmp_path):
    states = opened(tmp_path / "s", capacity=1)
    states.write({"a": state(1), "b": state(2)}, 1)
    states.commit(1)
    states.write({"a": state(3)}, 2)
    states.commit(2)
    states.write({"b": state(4), "c": state(5)}, 3)
    states.commit(3)
    states.close()
    assert numbers(opened(tmp_path / "s", round_num=2), "abc") == [3, 2, 0]
    assert numbers(opened(tmp_path / "s", round_num=1), "abc") == [1, 2, 0]
    assert numbers(opened(tmp_path / "s", round_num=0), "abc") == [0, 0, 0]


def test_what_no_checkpoint_needs_is_removed(tmp_path):
    states = opened(tmp_path / "s")
    for r in range(1, 30):
        states.write({"a": state(r)}, r)
        if r == 5:
            states.write({"b": state(r)}, r)
        states.commit(r)
        states.forget_before(r - 1)
    rows = sqlite3.connect(tmp_path / "s").execute("SELECT client, round FROM states").fetchall()
    assert sorted(rows) == [("a", 28), ("a", 29), ("b", 5)]


def test_states_lag_behind_the_checkpoint(tmp_path):
    states = opened(tmp_path / "s")
    states.write({"a": state(1)}, 3)
    states.commit(3)
    states.close()
    with pytest.raises(RunError, match="up to round 3 only, but the checkpoint is of round 4"):
        opened(tmp_path / "s", round_num=4)


def test_another_form_and_damage_are_refused(tmp_path):
    opened(tmp_path / "s").close()
    with pytest.raises(RunError, match="structure differs"):
        client_states.ClientStates(str(tmp_path / "s"), (np.zeros(3),), 100)
    (tmp_path / "t").write_bytes(b"no database" * 1000)
    with pytest.raises(RunError, match="damaged"):
        opened(tmp_path / "t")
    with pytest.raises(OSError, match="unable to open"):
        opened(tmp_path / "missing" / "s")


@pytest.mark.parametrize("name", ["rate 0.1", "a#b", "a?b=c", "50%25", "ü", "-a"])
def test_states_are_read_whatever_their_folder_is_called(tmp_path, monkeypatch, name):
    path = tmp_path / name / "states.sqlite"
    path.parent.mkdir()
    states = opened(path)
    states.write({"c": state(1)}, 1)
    states.commit(1)
    states.close()
    monkeypatch.chdir(tmp_path)
    for asked in (str(path), f"{name}/states.sqlite"):
        assert list(client_states.read_all(asked)) == ["c"]


@pytest.mark.long
def test_somebody_who_reads_for_long_ends_no_run(tmp_path):
    """As `read_all` and a copy of a large file do; SQLite itself would wait for five seconds."""
    states = opened(tmp_path / "s")
    states.write({"c": state(1)}, 1)
    reader = sqlite3.connect(tmp_path / "s", isolation_level=None, check_same_thread=False)
    with contextlib.closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM states").fetchall()
        ends = threading.Timer(5.5, reader.execute, ["COMMIT"])
        ends.start()
        states.commit(1)
        ends.join()
    states.close()
    assert list(client_states.read_all(str(tmp_path / "s"))) == ["c"]


def of_run(path, run_id, initial=INITIAL):
    return client_states.ClientStates(str(path), initial, 100 * SIZE, run_id)


def test_a_file_of_nothing_is_taken_over_and_one_with_states_is_not(tmp_path):
    """A first start may be killed before the folder has the id of its run."""
    path = tmp_path / "s"
    of_run(path, "first", np.zeros(3)).close()
    states = of_run(path, "second")
    states.go_on_from(0)
    states.write({"a": state(1)}, 1)
    states.close()
    assert numbers(of_run(path, "third"), ["a"]) == [0], "nothing was committed"
    states = of_run(path, "third")
    states.write({"a": state(1)}, 1)
    states.commit(1)
    states.close()
    with pytest.raises(RunError, match="belongs to another run"):
        of_run(path, "fourth")
    assert numbers(of_run(path, "third"), ["a"]) == [1]


def test_text_that_is_none_is_refused_or_repaired(tmp_path):
    states = opened(tmp_path / "s")
    states.write({f"client {k}": state(k) for k in range(1, 4)}, 1)
    states.commit(1)
    states.close()
    whole = (tmp_path / "s").read_bytes()
    rng, refused = random.Random(0), 0
    for i in range(100):
        path = tmp_path / f"{i}"
        path.write_bytes(tffs_files.with_text_that_is_none(whole, rng))
        for read in (client_states.read_all, lambda path: opened(path, round_num=1).close()):
            try:
                read(str(path))
            except RunError as e:
                assert str(path) in str(e) and "\n" not in str(e)
                refused += 1
    assert refused


@pytest.mark.parametrize("pages", [8, 9, 12])
def test_a_disk_that_is_full_is_told_and_loses_nothing(tmp_path, pages):
    """States that do not fit into memory spill into a file that may not grow."""
    states = opened(tmp_path / "s", capacity=4)
    states.write({"first": state(1)}, 1)
    states.commit(1)
    states._db.execute("PRAGMA synchronous = OFF")  # Else most of the time is the disk's.
    states._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match="database or disk is full"):
        for round_num in range(2, 2000):
            states.write({f"{round_num}": state(round_num)}, round_num)
    states.close()
    again = opened(tmp_path / "s", round_num=1)
    assert numbers(again, ["first"]) == [1]


@pytest.mark.parametrize(("numbers_of_a_state", "page"), [(16_383, 4096), (16_384, 65536)])
def test_large_states_are_written_in_large_pages(tmp_path, numbers_of_a_state, page):
    path, initial = str(tmp_path / "s"), np.zeros(numbers_of_a_state, np.float32)
    states = client_states.ClientStates(path, initial, 1)
    states.go_on_from(0)
    for r in (1, 2):
        states.write(dict.fromkeys("ab", initial + r), r)
        states.commit(r)
        states.forget_before(r)
    states.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA page_size").fetchone() == (page,)
    assert all(np.all(kept[""] == 2) for kept in client_states.read_all(path).values())


def test_a_file_of_other_pages_is_continued(tmp_path, monkeypatch):
    path, initial = str(tmp_path / "s"), np.zeros(20_000, np.float32)
    with monkeypatch.context() as changed:
        changed.setattr(client_states, "_LARGE_PAGE", 1 << 30)
        states = client_states.ClientStates(path, initial, 1 << 20)
    states.write({"a": initial + 1}, 1)
    states.commit(1)
    states.close()
    again = client_states.ClientStates(path, initial, 1 << 20)
    again.go_on_from(1)
    assert np.all(again.read(["a"])[0] == 1)


def test_a_state_does_not_share_memory_with_what_was_written(tmp_path):
    states = opened(tmp_path / "s")
    buffer = np.ones([2, 3], np.float32)
    states.write({"a": State(np.int32(7), (buffer, np.float64(1)))}, 1)
    buffer[:] = 5
    assert np.all(states.read(["a"])[0].kept[0] == 1)


def stacked(states):
    return StackedStates(tf.nest.map_structure(lambda *values: np.stack(values), *states))


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([list, stacked]),
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True), max_size=12),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 12),
)
def test_any_history_is_kept_as_of_the_last_two_checkpoints(
    tmp_path_factory, form, cohorts, capacity, every, seed
):
    """Against a plain dictionary per round, for any visits, capacity and checkpoints."""
    path = tmp_path_factory.mktemp("history") / f"s{seed}"
    states, now, history = opened(path, capacity), {}, {0: {}}
    kept = [0]
    for r, cohort in enumerate(cohorts, 1):
        assert numbers(states, map(str, cohort)) == [now.get(k, 0) for k in cohort]
        after = {k: 100 * r + k for k in cohort}
        states.take(list(map(str, after)), form(list(map(state, after.values()))), r)
        now.update(after)
        history[r] = dict(now)
        if r % every == 0:
            states.commit(r)
            kept = [*kept, r][-2:]
            states.forget_before(kept[0])
    states.close()
    for r in reversed(kept):
        states = opened(path, capacity, r)
        assert numbers(states, map(str, range(7))) == [history[r].get(k, 0) for k in range(7)]
        states.close()


_WRITER = """
import sys, numpy as np
from tests.simulation.records.test_client_states import opened, state
states = opened(sys.argv[1], capacity=2, round_num=int(sys.argv[2]))
print("open", flush=True)
for r in range(int(sys.argv[2]) + 1, 10**6):
    states.write({str(k): state(100 * r + k) for k in range(r % 3, 5)}, r)
    states.commit(r)
    with open(sys.argv[1] + ".checkpoint", "a") as f:
        f.write(f"{r}\\n")
    states.forget_before(r - 1)
"""


@pytest.mark.long
def test_killed_at_any_moment_the_states_of_the_checkpoint_are_there(tmp_path):
    path, done = str(tmp_path / "s"), 0
    for attempt in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, path, str(done)], stdout=subprocess.PIPE
        )
        writer.stdout.readline()
        time.sleep(0.3 + 0.17 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        with open(path + ".checkpoint") as f:
            rounds = [int(line) for line in f if line.endswith("\n")]
        assert rounds[-1] > done
        done = rounds[-1]
        states = opened(path, round_num=done)
        want = [max(100 * r + k for r in range(done - 3, done + 1) if k >= r % 3) for k in range(5)]
        assert numbers(states, map(str, range(5))) == want
        states.close()
