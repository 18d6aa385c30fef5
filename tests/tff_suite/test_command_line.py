"""Commands on a terminal that goes away, is full or knows no Unicode, and Ctrl-C at any time."""

import os
import pathlib
import random
import subprocess
import sys

import pytest

import tff_algos
from tff_suite import command_line

_REPO = pathlib.Path(__file__).resolve().parent.parent.parent
_COMMANDS = {
    "run": ["run_experiment.py", "--help"],
    "reproduce": ["reproduce.py", "--list"],
    "plots": ["-m", "reproduction.plots", "--help"],
    "plot": ["-m", "tasks.plot", "--help"],
    "prepare": ["-m", "tasks.prepare", "--help"],
}
_ASCII = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}


def start(arguments, environment=None, closed=(), **streams):
    """Starts Python; `closed` are the descriptors that it begins without."""
    # A shell closes them: with `preexec_fn` the tests' own process forks, and where its libraries
    # have threads (gRPC's), what these do in a fork is written to the child's standard error.
    closing = ["sh", "-c", f'exec "$@" {" ".join(f"{d}>&-" for d in closed)}', "sh"]
    return subprocess.Popen(
        [*(closing if closed else ()), sys.executable, *arguments],
        cwd=_REPO,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
        **streams,
    )


def told(process):
    """Returns exit code and standard error."""
    error = process.communicate(timeout=60)[1].decode()
    assert "Traceback" not in error and "Exception ignored" not in error
    return process.returncode, error


@pytest.mark.quick_cases("run", "prepare")
@pytest.mark.parametrize("name", _COMMANDS)
def test_output_that_cannot_be_written(name):
    """A full disk is told and fails the command; a closed pipe or descriptor is the user's wish."""
    with open("/dev/full", "w") as full:
        code, error = told(start(_COMMANDS[name], stdout=full))
    assert code == 1
    assert error == "error: standard output cannot be written: No space left on device\n"
    if name != "run":
        return
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        assert told(start(_COMMANDS[name], stdout=closed)) == (0, "")
    assert told(start(_COMMANDS[name], closed=[1])) == (0, "")


def test_what_is_opened_first_does_not_become_standard_output(tmp_path):
    text = (
        "import os\nfrom tff_suite import command_line\n"
        "command_line.begin()\n"
        f"with open({str(tmp_path / 'file')!r}, 'w') as file:\n"
        "    print('stray', flush=True)\n"
        "    os.write(1, b'stray')\n"
        "command_line.run(lambda arguments: 0)\n"
    )
    for descriptors in ((1,), (0, 1, 2)):
        assert start(["-c", text], closed=descriptors).wait(60) == 0
        assert (tmp_path / "file").read_text() == ""


def test_a_terminal_without_unicode(tmp_path):
    """Names that it lacks are shown as numbers; files are found and named as they are."""
    folder = tmp_path / "Zürich"
    folder.mkdir()
    (folder / "hparams.json").write_text("{")
    code, error = told(start(["-m", "reproduction.plots", "curves", folder, "--output=x"], _ASCII))
    assert code == 1 and f"{tmp_path}/Z\\xfcrich" in error and "hparams.json" in error
    given = ["--task=synthetic", "--algorithm=fedävg"]
    code, error = told(start(["run_experiment.py", *given], _ASCII))
    assert code == 2 and "Unknown algorithm fed\\xe4vg." in error


_INTERRUPTER = """
import os, signal, sys
class Interrupter:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Interrupter())
"""


@pytest.mark.parametrize(
    ("name", "module"),
    [
        *[
            ("run", module)
            for module in ("absl", "tff_suite.hparams", "numpy", "simulation.experiment")
        ],
        *[("reproduce", module) for module in ("reproduction.needs", "simulation.records.outputs")],
        *[("plots", module) for module in ("numpy", "pandas", "tff_suite.figures")],
        *[("plot", module) for module in ("matplotlib", "tff_suite.figures")],
        ("train", "tensorflow"),
    ],
)
def test_interrupted_while_modules_are_imported(tmp_path, name, module):
    """A signal comes with the import of a module: one line and its code, whatever the module is."""
    number = random.Random(f"{name} {module}").choice(command_line.SIGNALS)
    interrupter = _INTERRUPTER.format(module=module, number=int(number))
    (tmp_path / "sitecustomize.py").write_text(interrupter)
    train = ["run_experiment.py", "--task=synthetic", "--algorithm=fedavg", "--total_rounds=1"]
    train += ["--clients_per_round=1", "--client_batch_size=1", "--client_learning_rate=0.1"]
    train += [f"--root_output_dir={tmp_path}"]
    plots = ["-m", "reproduction.plots", "curves", tmp_path, f"--output={tmp_path}/figure"]
    arguments = {**_COMMANDS, "train": train, "plots": plots}[name]
    process = start(arguments, {"PYTHONPATH": str(tmp_path)}, stdout=subprocess.DEVNULL)
    assert told(process) == (128 + number, f"error: stopped by {number.name}.\n")


def test_methods_say_whether_they_draw_clients():
    """So that nobody has to ask for the plan of every round of a run before its first."""
    for name in tff_algos.names():
        spec = tff_algos.get(name)
        settings = {h.name: h.default for h in spec.hparams}
        plans = [spec.plan(settings, r, 40) for r in range(40)] if spec.plan else [None]
        draws = any(plan is None or plan.cohort == "sampled" for plan in plans)
        assert spec.draws_clients == draws, name


@pytest.mark.parametrize("length", [5, 40, 70, 90, 200])
@pytest.mark.parametrize("number", [0, 1, 3, 8])
def test_a_command_to_try_fits_the_line_and_is_the_same_command(length, number):
    flags = [f"--f{i}={'x' * length}" for i in range(number)]
    words = ["python", "reproduce.py", "--rows=a b", *flags]
    told = command_line.to_try("try:", words)
    assert told.startswith("  try:      python reproduce.py")
    for line in told.splitlines():
        assert len(line) <= 100 or max(map(len, line.split())) > 84, "but for a longer word"
    done = subprocess.run(
        ["sh", "-c", told.replace("  try:      python", "printf '%s\\n' python", 1)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == words


def test_paths_in_a_command_to_try_are_short_where_they_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["a", str(tmp_path / "runs" / "one"), f"--root_output_dir={tmp_path}/runs", "/etc/x"]
    told = command_line.to_try("try:", words)
    assert told == "  try:      a runs/one --root_output_dir=runs /etc/x"


def test_an_installed_program_is_called_by_its_module(tmp_path, monkeypatch):
    assert command_line.calling("reproduce.py") == [command_line.python(), "reproduce.py"]
    monkeypatch.chdir(tmp_path)
    assert command_line.calling("reproduce.py") == [command_line.python(), "-m", "reproduce"]
