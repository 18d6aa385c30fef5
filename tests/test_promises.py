"""docs/reliability.md: each promise names tests that there are, and its counts are not typed."""

import ast
import functools
import json
import os
import re

import pytest

from tests import shards
from tests.reliability import report


@pytest.fixture(scope="module")
def page():
    return report.PAGE.read_text()


@functools.cache
def functions_of(path):
    return {n.name for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)}


def test_each_promise_names_tests_that_there_are(page):
    promises = report.promises(page)
    assert [p.number for p in promises] == list(range(1, len(promises) + 1))
    assert len(promises) >= 20
    # No row that the pattern passes over.
    assert len(promises) == len(re.findall(r"^\| \d", page, re.M))
    for promise in promises:
        assert promise.tests, promise
        for test in promise.tests:
            file, name = test.split("::")
            assert name in functions_of(shards.REPO / file), test


def test_every_test_of_the_folder_holds_a_promise(page):
    named = {test for promise in report.promises(page) for test in promise.tests}
    folder = shards.REPO / "tests" / "reliability"
    for path in folder.glob("test_*.py"):
        for name in functions_of(path):
            if name.startswith("test_"):
                test = f"{path.relative_to(shards.REPO).as_posix()}::{name}"
                assert test in named, f"{test} is in no row of {report.PAGE.name}"


RUN = {
    "test": "tests/a.py::test_x[1]",
    "outcome": "passed",
    "seconds": 2.0,
    "counts": {"kills": 50, "mib": 0.5},
    "commit": "0123456789abcdef",
}


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([RUN], "1 of 3 passed, 2 not run yet, 50 kills (01234567)"),
        (
            [
                RUN,
                {**RUN, "test": "tests/a.py::test_x[2]", "commit": "f" * 40 + "+1"},
                {**RUN, "test": "tests/a.py::test_x[3]", "outcome": "failed"},
                {**RUN, "test": "tests/a.py::test_xy"},
            ],
            "2 of 3 passed, 1 failed, 100 kills (01234567, ffffffff+)",
        ),
    ],
)
def test_counts_come_from_results(results, said):
    there_are = {f"tests/a.py::test_x[{i}]": True for i in (1, 2, 3)}
    there_are["tests/a.py::test_xy"] = True
    last = {result["test"]: result for result in results}
    assert report.counts(["tests/a.py::test_x"], there_are, last) == said
    page = "\n| 1 | Kept. | `tests/a.py::test_x` | old |\n"
    assert said in (new := report.updated(page, there_are, last))
    assert "old" not in new and report.updated(new, there_are, last) == new


def test_the_last_result_counts_and_is_measured(tmp_path):
    for i, (commit, outcome, seconds) in enumerate([("b", "failed", 4.0), ("a", "passed", 6.0)]):
        path = tmp_path / f"{commit}.jsonl"
        path.write_text("\n" + json.dumps({**RUN, "outcome": outcome, "seconds": seconds}))
        os.utime(path, (i, i))
    last = shards.results(tmp_path)
    assert [(r["outcome"], r["commit"]) for r in last.values()] == [("passed", "a")]
    assert shards.durations(tmp_path) == {"tests/a.py::test_x": 6.0}


def test_a_row_whose_tests_have_not_run_here_stays():
    page = "\n| 1 | Kept. | `tests/a.py::test_x` | old |\n"
    assert report.updated(page, {"tests/a.py::test_x[1]": True}, {}) == page
