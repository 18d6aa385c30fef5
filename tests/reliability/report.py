"""Brings docs/reliability.md up to date with what `make test-long` found: `make reliability`.

    python -m tests.reliability.report --durations

writes the last column of the table of promises, and the table of hours, from .test-results, from
what was found before and from the tests that there are. What is known then of the promises' tests
is kept in tests/reliability/found.jsonl, to which every machine adds the parts that it has run.
`--durations` first writes what the tests took to tests/durations.json.
"""

import collections
import contextlib
import io
import json
import math
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest

from tests import shards
from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.flag("durations", False, "First write what the tests took to tests/durations.json.")

PAGE = shards.REPO / "docs" / "reliability.md"
RESULTS = shards.REPO / ".test-results"
FOUND = shards.REPO / "tests" / "reliability" / "found.jsonl"
NOT_RUN = "not run yet"
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) \|$", re.M)
_TEST = re.compile(r"`(tests/[\w/]+\.py::\w+)`")
_HOURS = re.compile(r"(?<=<!-- begin hours -->\n).*?(?=<!-- end hours -->)", re.S)
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


def results(folder: pathlib.Path) -> dict[str, dict]:
    """Returns test → its last result with the `commit` at which it was run."""
    last = {}
    for path in sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
        for test, result in shards.read(path).items():
            last[test] = {**result, "commit": path.stem}
    return last


def kept(known: Mapping[str, dict], page: str, there_are: Iterable[str]) -> list[dict]:
    """Returns the results to be kept: of the cases that there are of a promise's tests, in order.

    Args:
      known: Test → its result, with `commit`.
      page: The page.
      there_are: All tests.
    """
    promised = {test for promise in promises(page) for test in promise.tests}
    cases = sorted(t for t in known.keys() & set(there_are) if shards.function_of(t) in promised)
    fields = ("outcome", "counts", "commit")
    return [{"test": test} | {field: known[test][field] for field in fields} for test in cases]


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
        number, text, tests, _ = match.groups()
        said = counts(_TEST.findall(tests), there_are, last)
        return f"| {number} | {text} | {tests} | {said} |"

    return _HOURS.sub(lambda _: _hours(there_are), _ROW.sub(row, page))


def _hours(there_are):
    known = json.loads(shards.DURATIONS.read_text())
    files = collections.defaultdict(lambda: [0, 0.0])
    for test, long in there_are.items():
        name = test.partition("::")[0] if long else "the quick tier"
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


def measured(last: Mapping[str, dict], known: Mapping[str, float]) -> dict[str, float]:
    """Returns seconds a case by function: the mean of what was measured, else what is known."""
    seconds = collections.defaultdict(list)
    for test, result in last.items():
        if result["outcome"] != "skipped":
            seconds[shards.function_of(test)].append(result["seconds"])
    means = {name: round(sum(values) / len(values), 1) for name, values in seconds.items()}
    return dict(sorted({**known, **means}.items()))


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the page; returns the exit code."""
    options = PARSER.parse(arguments)
    last = results(RESULTS)
    if options.durations:
        known = json.loads(shards.DURATIONS.read_text())
        shards.DURATIONS.write_text(json.dumps(measured(last, known), indent=1) + "\n")
    page, there_are = PAGE.read_text(), collected()
    known = kept({**shards.read(FOUND), **last}, page, there_are)
    FOUND.write_text("".join(json.dumps(result) + "\n" for result in known))
    PAGE.write_text(updated(page, there_are, {result["test"]: result for result in known}))
    return 0


if __name__ == "__main__":
    command_line.begin()
    command_line.run(main)
