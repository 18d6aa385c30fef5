"""The README and the pages that carry its tables: their commands and programs, as written."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.tasks.test_registry import OWN
from tests.tff_algos import cases
from tools import methods_table

pytestmark = pytest.mark.slow

REPO = pathlib.Path(__file__).resolve().parent.parent
README = (REPO / "README.md").read_text()
DOCS = REPO / "docs"


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
    shown = re.findall(r"^    ((?:Starting|round|After).*)", README, re.M)
    assert [line.split()[0] for line in shown] == ["Starting:", "round", "round", "After"]
    for line in shown:
        words = re.split(r", results in| \(results", line)[0]
        assert _without_numbers(words) in _without_numbers(done.stdout), "as it prints it"
    named = re.findall(
        r"^\| `(.+?)` \|", (DOCS / "run_folder.md").read_text().split("\n## ")[0], re.M
    )
    names = set(named) - {"client_states.sqlite", "diverged.json", "encoding.json"}
    assert len(names) >= 8 and len(names) == len(set(named)) - 3
    for name in names:
        assert list(folder.glob(name.replace("…", "*"))), f"the page promises {name}"
    # What not every run has.
    others = {"objects", "validation", "accepted_changes", "simulated", "stopped"}
    for name in ("hparams.json", "summary.json"):
        keys, known = json.loads((folder / name).read_text()).keys(), _documented(name)
        assert keys <= known and known - keys <= others, name


def _without_numbers(text):
    return re.sub(r"[\d.]+", "", text)


def _documented(name):
    """Returns the keys of a JSON file that the page of the run folder describes."""
    page = (DOCS / "run_folder.md").read_text()
    lines = page.split(f"**`{name}`**")[1].split("\n**`")[0].splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize("page", ["README.md", "docs/own_data.md"])
def test_the_program_of_the_page(page, tmp_path, monkeypatch, capsys):
    program = re.search(r"```python\n(.*?)```", (REPO / page).read_text(), re.S).group(1)
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
    assert list((tmp_path / "results").glob("*_fedyogi*/summary.json"))
    monkeypatch.chdir(tmp_path)
    exec(program, {"__name__": "__main__"})
    assert capsys.readouterr().out == done.stdout, "the finished run is returned"


def test_the_readme_is_short():
    assert len(README.split()) <= 900


def test_the_table_of_methods_is_what_they_declare():
    page = methods_table.PAGE.read_text()
    assert methods_table.written(page) == page, "run python tools/methods_table.py"
    assert all(f"`{name}`" in methods_table.table() for name in cases.OWN)


def test_the_table_of_tasks_names_each_once():
    page = (DOCS / "tasks.md").read_text()
    rows = page.split("| task | data | state |")[1].split("\n\n")[0].splitlines()
    rows = [row.split("|")[1] for row in rows if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(OWN)
