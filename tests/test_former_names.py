"""Commands that have moved answer under their former names."""

import pathlib
import subprocess
import sys

import pytest

_REPO = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "name",
    ["simulation.plots", "simulation.cka", "simulation.communication", "tasks.shakespeare_text"],
)
def test_a_former_name_is_the_command(name):
    command = [sys.executable, "-m", name, "--help"]
    done = subprocess.run(command, cwd=_REPO, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr
