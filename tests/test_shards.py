"""The long tier in parts: each test is in one, and what has passed is not run again."""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys

import pytest

from tests import shards

REPO = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("number", [1, 2, 3, 7, 40])
def test_every_test_is_in_exactly_one_part(number):
    durations = [0.3, 0.3, 60.0, 0.3, 5.0] * 100
    parts = [shards.part(range(500), durations, i + 1, number) for i in range(number)]
    assert list(itertools.chain(*parts)) == list(range(500))
    times = [sum(durations[i] for i in part) for part in parts]
    assert max(times) <= sum(durations) / number + 60


_TESTS = """
import os, pathlib, pytest
def note(name):
    with open("ran", "a") as file:
        file.write(name + " ")
@pytest.mark.parametrize("case", ["a", "b[c]"])
def test_good(case, record_property):
    note(case)
    record_property("kills", 3)
def test_bad():
    note("bad")
    assert os.path.exists("repaired")
@pytest.mark.xfail(strict=True)
def test_known():
    note("known")
    assert False
def test_interrupted():
    note("interrupted")
    if not os.path.exists("repaired"):
        os._exit(1)
def test_last():
    note("last")
"""


def ran(folder, *arguments):
    (folder / "ran").write_text("")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.shards", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", f"--results={folder}/results", *arguments, "test_it.py"],
        cwd=folder,
        env={"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, (folder / "ran").read_text().split(), done.stdout + done.stderr


@pytest.mark.slow
def test_an_interrupted_part_goes_on_where_it_was(tmp_path):
    (tmp_path / "test_it.py").write_text(_TESTS)
    (tmp_path / ".gitignore").write_text("ran\nrepaired\nresults/\n__pycache__/\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    code, names, _ = ran(tmp_path)
    assert code == 1 and names == ["a", "b[c]", "bad", "known", "interrupted"]
    (results,) = (tmp_path / "results").iterdir()
    assert results.stem == shards.commit(tmp_path)
    with open(results, "a") as file:
        file.write('\n{"test": "torn')
    kept = shards.read(results)
    assert [r["outcome"] for r in kept.values()] == ["passed", "passed", "failed", "xfailed"]
    assert kept["test_it.py::test_good[b[c]]"]["counts"] == {"kills": 3}

    (tmp_path / "repaired").write_text("")
    code, names, out = ran(tmp_path, "--shard=1/2")
    code2, names2, _ = ran(tmp_path, "--shard=2/2")
    assert (code, code2) == (0, 0), out
    assert names + names2 == ["bad", "interrupted", "last"]
    code, names, out = ran(tmp_path)
    assert (code, names) == (0, []), out
    # Another commit: all runs again, also where the change is not committed yet.
    (tmp_path / "test_it.py").write_text(_TESTS + "\n")
    assert ran(tmp_path)[1] == ["a", "b[c]", "bad", "known", "interrupted", "last"]


def test_whatever_lies_in_a_working_tree_names_it(tmp_path):
    def named():
        names.add(shards.commit(tmp_path))
        return len(names)

    names = set()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *arguments], check=True)
    assert named() == 1
    (tmp_path / "file").write_text("x")
    assert named() == 2
    (tmp_path / "link").symlink_to("/usr")
    assert named() == 3
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("/nowhere")
    assert named() == 4
    subprocess.run(["git", "init", "-q", tmp_path / "inner"], check=True)
    assert named() == 5 == named()


def test_a_part_that_there_is_not_is_told(tmp_path):
    (tmp_path / "test_it.py").write_text("")
    for wrong in ("0/2", "3/2", "2", "a/b"):
        with pytest.raises(argparse.ArgumentTypeError):
            shards._shard(wrong)
    code, _, out = ran(tmp_path, "--shard=3/2")
    assert code == 4 and "3/2 must be I/N, part I of N" in out


def test_parts_stay_while_a_commit_measures(tmp_path):
    line = {"test": "tests/a.py::test_x", "outcome": "passed", "counts": {}}
    (tmp_path / "before.jsonl").write_text(json.dumps({**line, "seconds": 3.0}))
    (tmp_path / "now.jsonl").write_text(json.dumps({**line, "seconds": 9.0}))
    known = shards.durations(tmp_path, without=tmp_path / "now.jsonl")
    assert shards.duration("tests/a.py::test_x[case]", True, known) == 3.0
    assert shards.duration("tests/a.py::test_y", True, known) == 30.0
