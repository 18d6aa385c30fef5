"""How the speed benchmark runs its peers; none of them is needed here."""

import os
import pathlib
import sys
import textwrap

import numpy as np
import psutil
import pytest

from benchmarks import report, speed
from benchmarks.peers import protocol

_PEERS = os.path.dirname(protocol.__file__)


def test_a_peer_without_environment_is_left_out_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "_PEER_VENVS", str(tmp_path))
    (record,) = speed.measure("w4", ["pfl"], 1, 2, None)
    assert record["note"] == "pfl has no environment; run make venv-peers PEERS=pfl"


def test_a_side_runs_on_the_interpreter_or_in_the_checkout_that_it_names(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\npwd >&2; echo 3; read line\n")
    python.chmod(0o755)
    other = speed._command(f"tff@{python}", "w1", None, str(tmp_path))
    here = speed._command(f"tff@{tmp_path}", "w1", None, str(tmp_path))
    assert other == [str(python), "-m", "benchmarks.side", "tff", "w1"]
    assert here == [sys.executable, *other[1:]]
    for side, folder in ((f"tff@{python}", pathlib.Path.cwd()), (f"tff@{tmp_path}", tmp_path)):
        running = speed._Side(side, [str(python)])
        running._log.seek(0)
        assert running._log.read().decode().strip() == str(folder)
        running.close()


def test_a_workload_is_read_as_it_was_written(tmp_path):
    rng = np.random.default_rng(0)
    clients = [(rng.random((n, 3), np.float32), rng.integers(0, 9, n, np.int32)) for n in (4, 0, 7)]
    work = protocol.Work("w5", clients, 10, 0.01, 20)
    path = str(tmp_path / "work.npz")
    protocol.write(path, work)
    read = protocol.read(path)
    assert read._replace(clients=None) == work._replace(clients=None)
    assert len(read.clients) == 3
    for got, wanted in zip(read.clients, clients, strict=True):
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """Makes the side file of a peer whose rounds are the given lines."""
    python = tmp_path / "venvs" / "fedjax" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={_PEERS} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "peers").mkdir()
    monkeypatch.setattr(speed, "_PEER_VENVS", str(tmp_path / "venvs"))
    monkeypatch.setattr(speed, "_HERE", str(tmp_path))
    monkeypatch.setattr(speed, "_GRACE_SECONDS", 0.1)

    def write(lines):
        body = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
        (tmp_path / "peers" / "fedjax_side.py").write_text(
            "import subprocess, sys\n"
            "import numpy as np\n"
            "import protocol\n"
            "answers = protocol.take_over_output()\n"
            "work = protocol.read(sys.argv[1])\n"
            f"def rounds(numbers):\n{body}\n"
            "protocol.serve(rounds, work.rounds_a_turn, answers)\n"
        )

    return write


def test_processes_of_a_peer_are_counted_and_ended(peer, tmp_path):
    child = "import numpy, time; held = numpy.ones(2**25); print(flush=True); time.sleep(600)"
    peer(f"""
        print("noise")
        assert len(work.clients) == 100 and work.clients[0][0].shape == (100, 60)
        if numbers.start == 0:
            command = [sys.executable, "-c", {child!r}]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            process.stdout.readline()
            open({str(tmp_path / "child")!r}, "w").write(str(process.pid))
    """)
    (record,) = speed.measure("w4", ["fedjax"], 2, 2, None)
    assert "note" not in record
    assert record["memory_mib"] > 256  # The child's 2**25 numbers.
    pid = int((tmp_path / "child").read_text())
    # One that has ended may wait for its parent to notice.
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_peer_that_fails_in_a_turn_has_its_reason_as_note(peer):
    peer("""
        if numbers.start:
            raise ValueError("no more")
    """)
    (record,) = speed.measure("w4", ["fedjax"], 2, 2, None)
    assert record["note"] == "fedjax ended: ValueError: no more"


def test_a_side_with_a_note_is_a_row_of_the_report():
    measured = {"machine": "a machine", "date": "2026-01-01"}
    records = [
        {"workload": "w4", "side": "tff", "seconds": "0.1", "memory_mib": "9", **measured},
        {"workload": "w4", "side": "pfl", "note": "pfl has no environment", **measured},
    ]
    rows = report._speed(records).splitlines()[-2:]
    assert [cell.strip() for cell in rows[0].split("|")] == ["", "tff", "0.1", *[""] * 5, "9", ""]
    assert [cell.strip() for cell in rows[1].split("|")][-2] == "pfl has no environment"
    assert "| pfl |" in rows[1]
