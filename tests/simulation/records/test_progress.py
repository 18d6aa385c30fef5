import io
import sys

import pytest

from simulation.records import progress as progress_lib


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture()
def clock(monkeypatch):
    """Seconds that pass only when a test says so."""
    now = [100.0]
    monkeypatch.setattr(progress_lib.time, "monotonic", lambda: now[0])
    return now


def test_lines_elsewhere_are_few_and_the_last_round_has_one(clock, capsys):
    progress = progress_lib.Progress(done=10, total=40)
    for r in range(11, 41):
        clock[0] += 1.0
        progress.update(r, {"loss": r / 10, "accuracy": 0.5})
    progress.close()
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1].split("/")[0]) for line in lines] == [15, 20, 25, 30, 35, 40]
    assert lines[1] == "round 20/40  loss 2  accuracy 0.5  1 s/round  00:20 left"


def test_bar_on_a_terminal_shows_numbers_seconds_a_round_and_time_left(monkeypatch, capsys):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    progress = progress_lib.Progress(done=0, total=2)
    progress.update(1, {"loss": 0.12345})
    progress.update(2, {"loss": 0.5, "accuracy": 0.25})
    progress.close()
    assert not capsys.readouterr().out
    last = terminal.getvalue().split("\r")[-1]
    assert "2/2" in last and "loss=0.5, accuracy=0.25" in last and "s/round" in last


def test_warning_is_a_line_of_its_own(capsys):
    progress_lib.Progress(done=0, total=2).warn("something")
    assert capsys.readouterr().err == "warning: something\n"
