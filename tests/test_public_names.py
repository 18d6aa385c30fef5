"""What authors of methods and tasks import: known to type checkers, loaded when it is used."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import tff_algos
from tff_suite.errors import FedError

_REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
_PACKAGES = ("simulation", "tasks", "tff_algos")


@pytest.mark.parametrize("name", _PACKAGES)
def test_type_checkers_see_what_is_imported_on_first_use(name):
    package = importlib.import_module(name)
    tree = ast.parse((_REPOSITORY / name / "__init__.py").read_text("utf-8"))
    checked = [
        inner
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in node.body
    ]
    shown = [alias.name for node in checked for alias in getattr(node, "names", ())]
    # Of a package above this one, which it must not import.
    shown += [node.target.id for node in checked if isinstance(node, ast.AnnAssign)]
    assert sorted(shown) == sorted(package._LAZY)
    assert set(package._LAZY) <= set(package.__all__) == set(dir(package))
    assert sorted(set(package.__all__)) == sorted(package.__all__)


@pytest.mark.parametrize("name", _PACKAGES)
def test_a_public_name_is_there_and_another_is_not(name):
    package = importlib.import_module(name)
    assert all(getattr(package, public) is not None for public in package.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


def test_public_errors_are_the_users():
    errors = [getattr(importlib.import_module(p), n) for p in _PACKAGES for n in _errors_of(p)]
    assert len(errors) == 5 and all(issubclass(error, FedError) for error in errors)


def _errors_of(name):
    return [n for n in importlib.import_module(name).__all__ if n.endswith("Error")]


def test_importing_the_packages_loads_no_tensorflow():
    code = f"import sys, {', '.join(_PACKAGES)}; print('tensorflow' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_a_former_name_works_with_a_warning():
    with pytest.warns(DeprecationWarning, match="taking_datasets is now tff_algos.from_datasets"):
        assert tff_algos.taking_datasets is tff_algos.from_datasets


def _not_annotated(tree, of_class=False):
    """Yields public functions and methods with an argument or a result without annotation."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _not_annotated(node, of_class=True)
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name.startswith("_") and node.name != "__init__":
            continue
        arguments = node.args.posonlyargs + node.args.args
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        if of_class and "staticmethod" not in decorators:
            arguments = arguments[1:]
        arguments += node.args.kwonlyargs + [node.args.vararg, node.args.kwarg]
        unannotated = any(a is not None and a.annotation is None for a in arguments)
        if unannotated or (node.returns is None and node.name != "__init__"):
            yield node.name


def test_public_functions_are_annotated():
    found = {}
    for package in (*_PACKAGES, "reproduction", "tff_suite"):
        for path in (_REPOSITORY / package).rglob("*.py"):
            names = list(_not_annotated(ast.parse(path.read_text("utf-8"))))
            found[str(path.relative_to(_REPOSITORY))] = names
    assert len(found) > 200
    assert {path: names for path, names in found.items() if names} == {}
