"""Every command of `python -m` answers `--help` at once, and for itself alone."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_REPO = pathlib.Path(__file__).resolve().parent.parent.parent
_ROOMS = (
    "benchmarks",
    "examples",
    "reproduction",
    "simulation",
    "tasks",
    "tff_algos",
    "tff_suite",
    "tools",
)
# Of processor time, about twice what the slowest take where little else runs.
_SECONDS = 2.5


def _is_command(path):
    text = path.read_text()
    if path.name == "command_line.py":  # Its docstring shows how a command begins.
        return False
    return 'if __name__ == "__main__":' in text  # Of former names the test is another.


def _commands():
    paths = [p for room in _ROOMS for p in sorted((_REPO / room).rglob("*.py"))]
    return [str(p.relative_to(_REPO)) for p in [*_REPO.glob("*.py"), *paths] if _is_command(p)]


def _command(path):
    if "peers" in path:  # Scripts: their environments do not have the suite.
        return [sys.executable, path]
    return [sys.executable, "-m", path.removesuffix(".py").replace("/", ".")]


def _asked(path, stdout):
    # Else a line is written when it is printed, and trouble at the end would not show.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [*_command(path), "--help"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=_REPO,
        text=True,
    )


def test_commands_are_found():
    some = {"run_experiment.py", "benchmarks/side.py", "tasks/prepare.py"}
    assert some | {"examples/tff_objects.py"} < set(_commands())
    assert len(_commands()) > 25


@pytest.mark.quick_cases("[!b]*", "benchmarks/side.py")
@pytest.mark.parametrize("path", _commands())
def test_help_is_there_at_once_without_noise(path):
    before = os.times()
    done = _asked(path, subprocess.PIPE)
    after = os.times()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 40
    taken = sum(after[2:4]) - sum(before[2:4])
    assert taken < _SECONDS


@pytest.mark.quick_cases("run_experiment.py", "benchmarks/side.py", "tasks/prepare.py")
@pytest.mark.parametrize("path", _commands())
def test_help_goes_into_a_closed_pipe(path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        done = _asked(path, closed)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", _commands())
def test_docstrings_that_stand_for_help_name_every_flag(path):
    text = (_REPO / path).read_text()
    if "answer_help(__doc__)" not in text:
        return
    docstring, code = text.split('"""', 2)[1:]
    for flag, rest in re.findall(r'add_argument\(\s*"(--\w+)"([^\n]*)', code):
        assert flag in docstring or "SUPPRESS" in rest, flag
