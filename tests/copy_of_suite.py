"""A copy of the suite's code, into which a test may put a file."""

import pathlib
import subprocess
import sys

_REPO = pathlib.Path(__file__).resolve().parent.parent


def make(folder: pathlib.Path) -> pathlib.Path:
    """Copies what the command runs of, and returns the folder."""
    paths = [_REPO / "run_experiment.py"]
    for room in ("simulation", "tasks", "tff_algos", "tff_suite"):
        paths += (_REPO / room).rglob("*.py")
    for path in paths:
        copy = folder / path.relative_to(_REPO)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    return folder


def run(folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs the copy's command."""
    command = [sys.executable, "run_experiment.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)
