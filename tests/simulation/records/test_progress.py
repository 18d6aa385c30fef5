"""How long a run still takes is told by its recent rounds."""

import io

import pytest

from simulation.records import progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_first_round_is_the_estimate_only_while_there_is_no_other(clock):
    recent = progress.Recent()
    assert recent.seconds() is None
    for seconds, mean in ((60.0, 60.0), (2.0, 2.0), (4.0, 3.0)):
        clock[0] += seconds
        recent.ended()
        assert recent.seconds() == pytest.approx(mean)


def test_rounds_long_ago_do_not_count(clock):
    recent = progress.Recent()
    for seconds in [5.0] * 30 + [1.0] * progress._RECENT_ROUNDS:
        clock[0] += seconds
        recent.ended()
    assert recent.seconds() == pytest.approx(1.0)


def test_lines_tell_the_time_left(clock, capsys):
    """A first round of a minute, then three of 10 s: 96 rounds are left, which is 16 minutes."""
    shown = progress.Progress(0, 100)
    for round_num, seconds in enumerate((60.0, 10.0, 10.0, 10.0), 1):
        clock[0] += seconds
        shown.update(round_num, {"train_loss": 0.5})
    assert capsys.readouterr().out.splitlines()[-1].endswith("10 s/round  16:00 left")


def test_the_bar_tells_the_same(clock, monkeypatch):
    monkeypatch.setattr(progress.sys, "stderr", io.StringIO())
    bar = progress._Bar(0, 100)
    for seconds in (60.0, 10.0, 10.0, 10.0):
        clock[0] += seconds
        bar.update()
    assert "<16:00, 10.00s/round" in str(bar)
    bar.close()
