"""The commands and the program of the README, as written."""

import os
import pathlib
import re
import subprocess
import sys

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
    assert len(names) == 6
    for name in names:
        assert (folder / name).exists(), f"the README promises {name}"


def test_the_program_of_the_readme(tmp_path):
    program = re.search(r"```python\n(.*?)```", README, re.S).group(1)

    def printed():
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPO)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    losses = printed()
    assert [int(r) for r, _ in losses] == list(range(1, 11))
    assert float(losses[-1][1]) > 0
    assert (tmp_path / "results" / "mine_fedyogi" / "summary.json").exists()
    assert printed() == losses, "the finished run is returned"


def test_the_tables_name_what_is_registered():
    """Every registered method and task is marked done, and nothing else is."""
    import tasks
    import tff_algos

    rows = [line for line in README.splitlines() if line.startswith("| `")]
    done = {
        n for line in rows if "| done" in line for n in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    planned = {
        n
        for line in rows
        if "| planned" in line
        for n in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    registered = {
        name
        for package in (tasks, tff_algos)
        for name in package.names()
        if name not in ("clipped_fedavg", "moving_blobs")
    }
    assert done >= {n for n in registered if n in done | planned}
    assert not planned & registered, "registered, but the README says planned"
    assert done <= registered, "the README says done, but it is not registered"
