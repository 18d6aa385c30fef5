"""The documentation's pages."""

import importlib
import json
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

from tools import site_pages

REPO = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    methods = (tmp_path / "reference" / "methods" / "index.html").read_text()
    assert "--adafed_gamma" in methods and "u is the shortest vector" in methods
    scoreboard = (tmp_path / "papers" / "index.html").read_text()
    assert "not reproduced" in scoreboard
    assert "run_experiment.py" in (tmp_path / "index.html").read_text()
    python = (tmp_path / "reference" / "python" / "index.html").read_text()
    for name, of in site_pages._CALLS.items():
        assert f'id="{of}"' in python and name in python, name
    for page in (python, scoreboard):
        assert "/site.css" in page
    assert "white-space: normal" in (tmp_path / "site.css").read_text()
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    separator = re.compile(index["config"]["separator"])
    for word in ("build", "from_keras", "load", "run", "client_learning_rate", "adafed"):
        texts = [f"{entry['title']} {entry['text']}" for entry in index["docs"]]
        assert any(word in separator.split(text) for text in texts), word
    assert (tmp_path / "search.html").exists() and "search/main.js" in python


def test_what_a_script_calls_is_there():
    """Under the name on the page, and it is what the page describes."""
    for name, of in site_pages._CALLS.items():
        package, _, last = name.rpartition(".")
        assert getattr(importlib.import_module(package), last) is pkgutil.resolve_name(of), name
