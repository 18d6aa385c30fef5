"""A user's script runs next to modules of any name."""

import pathlib
import subprocess
import sys

import pytest

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_FIND = "import os, sys\nsys.path.append(os.environ['SUITE'])\n"
_SCRIPT = """
import tff_algos
import tasks
import simulation
import common, hparams, plots, utils
assert {m.OWN for m in (common, hparams, plots, utils)} == {"mine"}
task = tasks.load("synthetic", use_synthetic_data=True)
print(tff_algos.get("fedavg").name, simulation.run.__name__, task.name)
"""


def run(script, *names):
    """Runs a script beside modules of these names; returns exit code, output and errors."""
    for name in names:
        (script.parent / f"{name}.py").write_text("OWN = 'mine'\n")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"SUITE": str(_REPOSITORY), "PATH": "/usr/bin:/bin", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_script_runs_beside_modules_of_common_names(tmp_path):
    script = tmp_path / "experiment.py"
    script.write_text(_FIND + _SCRIPT)
    code, out, err = run(script, "common", "hparams", "plots", "utils")
    assert (code, out) == (0, "fedavg run synthetic\n"), err


@pytest.mark.parametrize("package", ["reproduction", "simulation", "tasks", "tff_algos"])
@pytest.mark.parametrize("itself", [True, False])
def test_a_script_that_hides_a_package_is_told_so(package, itself, tmp_path):
    """The script itself has the package's name, or a module beside it has."""
    script = tmp_path / f"{package if itself else 'experiment'}.py"
    script.write_text(_FIND + "import tff_suite.imports\n")
    code, out, err = run(script, *([] if itself else [package]))
    hiding = tmp_path / f"{package}.py"
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == (
        f"ImportError: {hiding} hides the suite's package '{package}'; give it another name."
    )


def test_a_folder_without_init_hides_nothing(tmp_path):
    (tmp_path / "tasks").mkdir()
    script = tmp_path / "experiment.py"
    script.write_text(_FIND + "import tasks\nprint(tasks.__file__)\n")
    code, out, err = run(script)
    assert (code, out) == (0, f"{_REPOSITORY / 'tasks' / '__init__.py'}\n"), err
