"""Commands that have moved answer under their former names."""

import runpy
import sys

import pytest


# Python tells that the package has imported the module that it has moved to.
@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("simulation.plots", "Figures of the five papers"),
        ("simulation.cka", "How alike clients' matrices are"),
        ("simulation.communication", "usage: "),
        ("tasks.shakespeare_text", "usage: "),
    ],
)
def test_a_former_name_is_the_command(name, answer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    out, err = capsys.readouterr()
    assert ended.value.code in (None, 0) and out.startswith(answer), err
