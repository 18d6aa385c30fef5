"""The tutorial from a table to a figure: its program as written, and what the page shows of it."""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_REPO = pathlib.Path(__file__).resolve().parent.parent
_PAGE = (_REPO / "docs" / "tutorial.md").read_text("utf-8")


def _block(language):
    return re.search(rf"```{language}\n(.*?)```", _PAGE, re.S)[1]


def _rows(latex):
    """Returns method → numbers of a LaTeX table."""
    body = latex.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [line.split("&", 1) for line in body.splitlines() if "&" in line]
    return {name.strip(): [float(n) for n in re.findall(r"\d+\.\d+", rest)] for name, rest in rows}


def test_the_reader_writes_no_more_than_forty_lines():
    assert len([line for line in _block("python").splitlines() if line.strip()]) <= 40


def test_the_page_shows_its_figure_and_no_gap():
    (image,) = re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", _PAGE)
    assert (_REPO / "docs" / image).stat().st_size > 0
    assert "@@" not in _PAGE


@pytest.mark.timeout(900)
def test_the_program_as_written(tmp_path):
    (tmp_path / "study.py").write_text(_block("python"), "utf-8")
    # A file, not a pipe: TFF's worker may hold a pipe open longer than the program lasts.
    with open(tmp_path / "log", "w") as log:
        done = subprocess.run(
            [sys.executable, "study.py"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(_REPO), "HOME": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    said = (tmp_path / "log").read_text("utf-8")
    assert done.returncode == 0, said[-3000:]
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
    found, shown = _rows((tmp_path / "digits.tex").read_text("utf-8")), _rows(_block("latex"))
    assert list(found) == list(shown) and len(found) == 5
    for method, numbers in shown.items():
        # Other machines round differently, and so may choose another rate.
        assert found[method][0] == pytest.approx(numbers[0], abs=3.0), method
    assert "p (Holm)" in said
