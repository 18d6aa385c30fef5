"""Every command of `python -m` answers `--help` at once, and for itself alone."""

import ast
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from simulation import run_parser
from tff_suite import parser

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
    # At the margin: docstrings show how a command begins.
    return re.search(r'^if __name__ == "__main__":', path.read_text(), re.M)


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


# Scripts of environments that do not have the suite, or not yet, and one that starts alone.
_WITHOUT_THE_SUITE = ("peers", "bare_import", "supervisor")
_OF_THE_SUITE = [p for p in _commands() if not any(name in p for name in _WITHOUT_THE_SUITE)]
_QUICK = ("[!b]*", "benchmarks/side.py")


@pytest.mark.parametrize("path", _OF_THE_SUITE)
def test_every_command_reads_its_flags_in_the_one_way(path):
    """Its own mistakes and those of its user are told apart, and end it, as everywhere else."""
    text = (_REPO / path).read_text()
    if "harness.Benchmark(" in text:  # Whose `run` is a main program.
        assert "BENCHMARK.run(records)" in text
        return
    imported = re.findall(r"^(?:from|import) (\w+)", text, re.M)
    assert not {"argparse", "absl", "optparse", "getopt"} & set(imported)
    assert re.search(r"@command_line\.reported\ndef main\(arguments: list\[str\]\) -> int:", text)
    assert "command_line.begin(" in text and "command_line.run(main)" in text


def test_the_page_of_commands_has_those_of_users():
    """Benchmarks and tools are for developers; `reproduction.changes` is started by sweeps."""
    page = (_REPO / "docs" / "commands.md").read_text()
    inside = ("benchmarks", "tools", "reproduction/changes")
    users = [p for p in _OF_THE_SUITE if not p.startswith(inside)]
    assert len(users) > 10
    for path in users:
        name = path if "/" not in path else f"-m {path.removesuffix('.py').replace('/', '.')}"
        assert f"| `python {name}`" in page, name


def _examples(path):
    """The arguments of the examples in a command's help."""
    if path == "run_experiment.py":
        text = run_parser.HELP
    elif path.endswith("shakespeare_text.py"):
        text = (_REPO / path).read_text().split("parser.Parser(")[1].split('"""')[1]
    else:
        text = ast.get_docstring(ast.parse((_REPO / path).read_text()), clean=False)
    commands = parser.Parser(text).examples.replace("\\\n", " ").splitlines()
    for command in commands:
        words = shlex.split(command)
        start = 3 if words[1] == "-m" else 2
        name = _REPO / (words[2].replace(".", "/") + ".py" if start == 3 else words[1])
        assert words[0] == "python" and name == _REPO / path
        yield words[start:]


@pytest.mark.quick_cases(*_QUICK)
@pytest.mark.parametrize("path", _OF_THE_SUITE)
def test_help_begins_with_examples_that_are_right(path):
    """Flags are checked before help is answered, so that a wrong example would end with 2."""
    examples = list(_examples(path))
    assert examples
    for given in examples:
        done = subprocess.run(
            [*_command(path), *given, "--helpfull"], cwd=_REPO, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, "")
        head = done.stdout.splitlines()[:6]
        assert any(line.startswith("Example") for line in head)
        assert any(line.startswith("  python ") for line in head)
        assert "Of every command:" in done.stdout


@pytest.mark.quick_cases(*_QUICK)
@pytest.mark.parametrize("path", _OF_THE_SUITE)
def test_a_misspelt_flag_is_answered_with_the_right_one(path):
    done = subprocess.run([*_command(path), "--hlep"], cwd=_REPO, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == "error: Unknown flag --hlep. Did you mean --help?\n"
