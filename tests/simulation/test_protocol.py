"""The loop and what is around it ask of a process what `simulation.protocol` says, and no more."""

import ast
import pathlib

import pytest

_SIMULATION = pathlib.Path(__file__).resolve().parents[2] / "simulation"
_PLACES = ("rounds", "measures", "records", "workers", "experiment.py", "assembly.py")
# Names by which these modules hold a process, a method, a pool, or what builds one.
_PROCESSES = ("process", "method", "pool", "spread", "driver", "runs", "built", "of_round")


def asked(tree: ast.AST) -> list[str]:
    """Returns the calls that ask what kind of process something is, as text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("getattr", "hasattr", "isinstance") and node.args:
                of, text = ast.unparse(node.args[0]), ast.unparse(node)
                name = of.split("[")[0].rstrip(")").split(".")[-1].strip("_")
                kinds = ("Process", "Stages", "Pool")
                if name in _PROCESSES or any(kind in text for kind in kinds):
                    found.append(text)
    return found


def modules():
    paths = [_SIMULATION / place for place in _PLACES]
    files = [f for p in paths for f in (p.rglob("*.py") if p.is_dir() else [p])]
    return [f for f in files if "__pycache__" not in f.parts]


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(_SIMULATION).as_posix())
def test_no_module_asks_what_kind_of_process_it_has(path):
    assert asked(ast.parse(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "getattr(process, 'moved', dict)()",
        "hasattr(self._pool, 'evaluate')",
        "isinstance(self._method, Stages)",
        "isinstance(x, staged.StagedProcess)",
        "getattr(parts.method.process, 'method', None)",
    ],
)
def test_such_a_question_is_seen(text):
    assert len(asked(ast.parse(text))) == 1
