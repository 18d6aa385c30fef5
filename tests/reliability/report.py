"""Brings docs/reliability.md up to date with what `make test-long` found: `make reliability`.

    python -m tests.reliability.report

writes the last column of the table of promises, and the table of hours, from .test-results and from
the tests that there are. A row of which no test has run here stays as it is.
"""

import collections
import contextlib
import io
import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest

from tests import shards
from tff_suite import command_line, parser
from tools import page_table

PARSER = parser.Parser(__doc__)

PAGE = shards.REPO / "docs" / "reliability.md"
NOT_RUN = "not run yet"
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) \|$", re.M)
_TEST = re.compile(r"`(tests/[\w/]+\.py::\w+)`")
# What a shard of an hour has room for, since estimates err.
_SHARD_SECONDS = 0.75 * 3600
_PROCESSES = 2


class Promise(NamedTuple):
    """A row of the page: its number, what is promised, the tests, what came out last."""

    number: int
    text: str
    tests: list[str]
    counts: str


def promises(page: str) -> list[Promise]:
    """Returns the rows of the page's table of promises."""
    return [
        Promise(int(number), text, _TEST.findall(tests), counts)
        for number, text, tests, counts in _ROW.findall(page)
    ]


def counts(tests: Iterable[str], there_are: Iterable[str], last: Mapping[str, dict]) -> str:
    """Returns what came of a promise's tests, in words.

    Args:
      tests: The functions, `file::function`.
      there_are: All tests.
      last: From `results`.
    """
    tests = set(tests)
    cases = [test for test in there_are if shards.function_of(test) in tests]
    run = [last[test] for test in cases if test in last]
    if not run:
        return NOT_RUN
    outcomes = collections.Counter(result["outcome"] for result in run)
    words = [f"{outcomes.pop('passed', 0)} of {len(cases)} passed"]
    words += [f"{number} {outcome}" for outcome, number in sorted(outcomes.items())]
    if len(run) < len(cases):
        words.append(f"{len(cases) - len(run)} {NOT_RUN}")
    sums = collections.Counter()
    for result in run:
        if result["outcome"] == "passed":
            sums.update({k: n for k, n in result["counts"].items() if isinstance(n, int)})
    words += [f"{number} {name.replace('_', ' ')}" for name, number in sums.items()]
    commits = sorted({result["commit"][:8] + "+" * ("+" in result["commit"]) for result in run})
    return f"{', '.join(words)} ({', '.join(commits)})"


def updated(page: str, there_are: Mapping[str, bool], last: Mapping[str, dict]) -> str:
    """Returns the page with the counts and the hours of now.

    Args:
      page: The page.
      there_are: Test → whether it is of the long tier only.
      last: From `results`.
    """

    def row(match):
        number, text, tests, before = match.groups()
        said = counts(_TEST.findall(tests), there_are, last)
        said = before if said == NOT_RUN and before else said
        return f"| {number} | {text} | {tests} | {said} |"

    return page_table.replaced(_ROW.sub(row, page), "hours", _hours(there_are))


def _hours(there_are):
    known = shards.durations(shards.RESULTS)
    files = collections.defaultdict(lambda: [0, 0.0])
    for test, long in there_are.items():
        name = test.partition("::")[0] if long else "what CI runs"
        files[name][0] += 1
        files[name][1] += shards.duration(test, long, known)
    total = sum(seconds for _, seconds in files.values())
    lines = ["| | tests | hours of a core |", "| --- | ---: | ---: |"]
    # Less than three minutes each.
    small = {name: files.pop(name) for name in list(files) if files[name][1] < 180}
    ordered = sorted(files.items(), key=lambda item: -item[1][1])
    rest = [sum(values) for values in zip(*small.values(), strict=True)] if small else [0, 0.0]
    for name, (number, seconds) in [*ordered, ("other files", rest)]:
        cell = f"`{name}`" if name.startswith("tests/") else name
        lines.append(f"| {cell} | {number} | {seconds / 3600:.1f} |")
    lines.append(f"| all | {len(there_are)} | {total / 3600:.1f} |")
    number = math.ceil(total / _PROCESSES / _SHARD_SECONDS)
    return "\n".join(lines) + (
        f"\n\nThat is {total / _PROCESSES / 3600:.1f} hours of two cores, "
        f"{number} parts: `make test-long SHARD=1/{number}` and so on.\n"
    )


def collected() -> dict[str, bool]:
    """Returns all tests, each with whether it is of the long tier only."""
    found = {}

    class Collector:
        def pytest_collection_finish(self, session):
            for item in session.items:
                found[item.nodeid] = item.get_closest_marker("long") is not None

    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = pytest.main(["--collect-only", "-q", str(shards.REPO / "tests")], [Collector()])
    if code:
        raise SystemExit(said.getvalue())
    return found


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the page; returns the exit code."""
    PARSER.parse(arguments)
    page, there_are = PAGE.read_text(), collected()
    PAGE.write_text(updated(page, there_are, shards.results(shards.RESULTS)))
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
