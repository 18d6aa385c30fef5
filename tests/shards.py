"""The tests in parts of about equal time, with what came out kept by commit: a pytest plugin.

    python -m pytest -p tests.shards --shard=2/8 tests

runs the second of eight parts. A part that was interrupted and is started again, at the same
commit, passes over what has passed and runs what has failed, or has not run, only.

Results are lines of JSON in .test-results/<commit>.jsonl, and say how long a test takes. The page
that is made of them makes no commit another one. Machines that run parts of one whole need the same
files there, or their parts differ.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence

import pytest

REPO = pathlib.Path(__file__).resolve().parent.parent
RESULTS = REPO / ".test-results"
# Of a test that has not run yet, in seconds.
_UNKNOWN, _UNKNOWN_LONG = 0.5, 30.0
_NOT_CODE = (":!docs/reliability.md",)


def pytest_addoption(parser):
    group = parser.getgroup("shards")
    group.addoption("--shard", default="1/1", help="run part I of N", metavar="I/N", type=_shard)
    group.addoption(
        "--results",
        default=str(RESULTS),
        help="folder of what came out, by commit",
        metavar="DIR",
    )


def _shard(text):
    index, _, number = text.partition("/")
    if not (index.isdigit() and number.isdigit() and 1 <= int(index) <= int(number)):
        raise argparse.ArgumentTypeError(f"{text} must be I/N, part I of N, as 2/8")
    return int(index), int(number)


def pytest_configure(config):
    config.pluginmanager.register(_Shard(config), "shard")


class _Shard:
    """Chooses what a session runs and notes what came out."""

    def __init__(self, config):
        self._index, self._number = config.getoption("--shard")
        self._commit = commit(config.rootpath)
        folder = pathlib.Path(config.getoption("--results"))
        self._path = folder / f"{self._commit}.jsonl"
        self._of_worker = hasattr(config, "workerinput")
        self._phases = collections.defaultdict(list)
        self._passed_over = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        # Not by what this commit has measured: its parts must stay what they are.
        known = durations(self._path.parent, without=self._path)
        seconds = [
            duration(item.nodeid, bool(item.get_closest_marker("long")), known) for item in items
        ]
        chosen = part(items, seconds, self._index, self._number)
        done = {k for k, r in read(self._path).items() if r["outcome"] in ("passed", "xfailed")}
        left = [item for item in chosen if item.nodeid not in done]
        self._passed_over = len(chosen) - len(left)
        kept = set(left)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = left

    def pytest_runtest_logreport(self, report):
        # Under xdist the process that starts the others hears of every test.
        phases = self._phases[report.nodeid]
        phases.append(report)
        if report.when != "teardown" or self._of_worker or self._commit is None:
            return
        del self._phases[report.nodeid]
        outcomes = [
            "xfailed" if phase.skipped and hasattr(phase, "wasxfail") else phase.outcome
            for phase in phases
        ]
        worst = next((o for o in ("failed", "skipped", "xfailed") if o in outcomes), "passed")
        result = {
            # Without the group in which xdist has put it.
            "test": re.sub(r"@[\w.]+$", "", report.nodeid),
            "outcome": worst,
            "seconds": round(sum(phase.duration for phase in phases), 2),
            "counts": dict(report.user_properties),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a", encoding="utf-8") as file:
            # A line that a kill has torn then harms no other.
            file.write("\n" + json.dumps(result))

    def pytest_report_header(self):
        return f"part {self._index} of {self._number}, results in {self._path}"

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._path.exists():
            session.exitstatus = pytest.ExitCode.OK


def part(items: Sequence, durations: Sequence[float], index: int, number: int) -> list:
    """Returns part `index` (from 1) of `number`: items that follow each other, so that neighbours
    share what they set up, of about the same time in all."""
    total, begun, chosen = sum(durations), 0.0, []
    for item, seconds in zip(items, durations, strict=True):
        # An item belongs where its middle lies.
        if int((begun + seconds / 2) / total * number) == index - 1:
            chosen.append(item)
        begun += seconds
    return chosen


def duration(test: str, long: bool, known: Mapping[str, float]) -> float:
    """Returns how many seconds a test takes: as measured for the cases of its function."""
    return known.get(function_of(test), _UNKNOWN_LONG if long else _UNKNOWN)


def function_of(test: str) -> str:
    """Returns `file::function` of `file::function[case]`."""
    return test.partition("[")[0]


def durations(folder: pathlib.Path, without: pathlib.Path | None = None) -> dict[str, float]:
    """Returns function → seconds a case: the mean of the last results in the files of a folder."""
    seconds = collections.defaultdict(list)
    for test, result in results(folder, without).items():
        if result["outcome"] != "skipped":
            seconds[function_of(test)].append(result["seconds"])
    # At no time at all the last test would lie beyond the last part.
    return {name: max(sum(values) / len(values), 0.01) for name, values in seconds.items()}


def results(folder: pathlib.Path, without: pathlib.Path | None = None) -> dict[str, dict]:
    """Returns test → its last result in a folder, with the `commit` at which it was run."""
    last = {}
    paths = [path for path in folder.glob("*.jsonl") if path != without]
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        for test, result in read(path).items():
            last[test] = {**result, "commit": path.stem}
    return last


def read(path: pathlib.Path) -> dict[str, dict]:
    """Returns test → its last result; a line torn by a kill is left out."""
    results = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            result = json.loads(line)
            results[result["test"]] = result
    return results


def _content(path):
    # As in Git, a link is where it points to, and a repository inside another one is none of it.
    if path.is_symlink():
        return os.fsencode(os.readlink(path))
    return b"" if path.is_dir() else path.read_bytes()


def commit(folder: pathlib.Path) -> str | None:
    """Returns what names the code: its commit, and a digest of what differs from it.

    `None` if it is in no repository: then nothing is kept.
    """

    def git(*arguments):
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=True)
        return done.stdout

    try:
        name = git("log", "-1", "--format=%H", "--", ".", *_NOT_CODE).decode().strip()
        changed = git("diff", "HEAD", "--binary", "--", ".", *_NOT_CODE)
        new = git("ls-files", "--others", "--exclude-standard", "-z", "--", ".", *_NOT_CODE)
    except (OSError, subprocess.CalledProcessError):
        return None
    if not changed and not new:
        return name
    digest = hashlib.sha256(changed)
    for path in filter(None, new.decode().split("\0")):
        digest.update(path.encode() + b"\0" + _content(folder / path))
    return f"{name}+{digest.hexdigest()[:12]}"
