"""The commands and the program of the README, as written."""

import os
import pathlib
import re
import subprocess
import sys

from tests.tasks.test_registry import OWN
from tests.tff_algos import cases
from tools import methods_table

REPO = pathlib.Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text()


def test_the_experiment_of_the_readme(tmp_path):
    command = re.search(r"    \.venv/bin/python run_experiment\.py(.*?)\n\n", README, re.S).group(1)
    arguments = command.replace("\\\n", " ").split()
    done = subprocess.run(
        [sys.executable, "run_experiment.py", *arguments, f"--root_output_dir={tmp_path}"],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "synthetic_fedadam"
    named = re.findall(r"^\| `(.+?)`(?:, `(.+?)`)? \|.*", README.split("Results go to")[1], re.M)
    names = [name for pair in named[:5] for name in pair if name]
    assert len(names) == 5
    assert list(folder.glob("events.out.tfevents.*"))
    for name in names:
        assert (folder / name).exists(), f"the README promises {name}"


def test_the_program_of_the_readme(tmp_path, monkeypatch, capsys):
    program = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPO)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    losses = [line.split() for line in done.stdout.splitlines()]
    assert [int(r) for r, _ in losses] == list(range(1, 11))
    assert float(losses[-1][1]) > 0
    assert (tmp_path / "results" / "mine_fedyogi" / "summary.json").exists()
    monkeypatch.chdir(tmp_path)
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out == done.stdout, "the finished run is returned"


def test_the_table_of_methods_is_what_they_declare():
    assert methods_table.written(README) == README, "run python tools/methods_table.py"
    assert all(f"`{name}`" in methods_table.table() for name in cases.OWN)


def test_the_table_of_tasks_names_each_once():
    rows = README.split("| task | data | |")[1].split("\n\n")[0].splitlines()
    rows = [row.split("|")[1] for row in rows if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(OWN)
