"""Errors that a user can cause have one base class."""

import ast
import builtins
import importlib
import pathlib

import pytest

from tff_suite import command_line, errors

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_PACKAGES = ("reproduction", "simulation", "tasks", "tff_algos", "tff_suite")
# One ends a command with an answer, the other is caught where a run begins.
_NO_ERRORS = {"Answered", "StoppedError"}


def _classes():
    """Yields the module and the syntax tree of every class at the top of a module."""
    for folder in _PACKAGES:
        for path in sorted((_REPOSITORY / folder).rglob("*.py")):
            module = ".".join(path.relative_to(_REPOSITORY).with_suffix("").parts)
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    yield module, node


def _errors() -> list[tuple[str, str]]:
    """Returns the module and the name of every public exception class."""
    names = {n for n, c in vars(builtins).items() if isinstance(c, type)}
    names = {n for n in names if issubclass(getattr(builtins, n), BaseException)}
    found = {}
    while True:
        more = {
            (module, node.name)
            for module, node in _classes()
            if any(ast.unparse(base).rpartition(".")[2] in names for base in node.bases)
        } - found.keys()
        if not more:
            break
        found.update(dict.fromkeys(more))
        names |= {name for _, name in more}
    return sorted((m, n) for m, n in found if not n.startswith("_") and n not in _NO_ERRORS)


def test_errors_are_found():
    names = {name for _, name in _errors()}
    assert {"FedError", "HparamError", "RunError", "DataError", "TaskError", "ModelError"} <= names


@pytest.mark.parametrize(("module", "name"), _errors())
def test_every_public_error_is_a_fed_error_that_ends_a_command_with_its_line(module, name, capsys):
    error = getattr(importlib.import_module(module), name)
    assert issubclass(error, errors.FedError)

    @command_line.reported
    def command(arguments):
        raise error("what is wrong")

    assert command([]) == error.exit_code in (1, 2, 3)
    assert capsys.readouterr().err == "error: what is wrong\n"


def test_other_exceptions_are_defects_and_let_through():
    @command_line.reported
    def command(arguments):
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        command([])
