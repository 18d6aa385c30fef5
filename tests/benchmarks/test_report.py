"""The page of measurements: made of tables alone, and up to date."""

import pathlib
import re
import subprocess
import sys

from benchmarks import workloads
from simulation.engine import batching as vectorized

_REPO = pathlib.Path(__file__).resolve().parent.parent.parent
_PAGE = _REPO / "docs" / "performance.md"
_WRITE = """
import sys
from benchmarks import report
assert report.main(sys.argv[1:]) == 0
assert "tensorflow" not in sys.modules
"""


def test_the_page_is_what_the_report_writes_without_tensorflow(tmp_path):
    output = tmp_path / "performance.md"
    command = [sys.executable, "-c", _WRITE, f"--output={output}"]
    done = subprocess.run(command, cwd=_REPO, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert output.read_text() == _PAGE.read_text(), "python -m benchmarks.report"


def test_the_page_has_the_padding_of_w5s_blocks():
    workload = workloads.WORKLOADS["w5"](None)
    steps = [-(-len(y) // workload.batch_size) for _, y in workload.clients]
    blocks = vectorized.blocks_of(steps, [workload.batch_size] * len(steps))
    padded = sum(len(block) * max(steps[k] for k in block) for block in blocks)
    (told,) = re.findall(r"W5's padded work is ([\d.]+) times", _PAGE.read_text())
    assert told == f"{padded / sum(steps):.2f}"
