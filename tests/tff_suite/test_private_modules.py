"""TensorFlow's and TFF's private modules are named in one module, and are there."""

import ast
import functools
import importlib
import pathlib
import re

import pytest

from tff_suite import compat

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_FOLDERS = ("benchmarks", "reproduction", "simulation", "tasks", "tff_algos", "tff_suite")
_PRIVATE = re.compile(r"^(tensorflow|tensorflow_federated)\.python\b|^(tf_keras|keras)\.src\b")
_ROOTS = {"tf", "tff", "tensorflow", "tensorflow_federated"}
# What every module has.
_OF_MODULES = {"__file__", "__path__", "__version__"}


@functools.cache
def _sources():
    paths = [p for folder in _FOLDERS for p in (_REPOSITORY / folder).rglob("*.py")]
    paths += [*_REPOSITORY.glob("*.py"), *(_REPOSITORY / "examples").rglob("*.py")]
    kept = sorted(p for p in paths if p != _REPOSITORY / "tff_suite" / "compat.py")
    return {str(p.relative_to(_REPOSITORY)): p.read_text("utf-8") for p in kept}


def _private(source: str) -> list[str]:
    """Returns what a module's source names of TensorFlow's and TFF's own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if _PRIVATE.match(a.name)]
        elif isinstance(node, ast.ImportFrom) and _PRIVATE.match(node.module or ""):
            found.append(node.module)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] if _PRIVATE.match(node.value) else []
        elif isinstance(node, ast.Attribute) and node.attr not in _OF_MODULES:
            first, *rest = ast.unparse(node).split(".")
            if first in _ROOTS and (rest[:1] == ["python"] or rest[-1].startswith("_")):
                found.append(ast.unparse(node))
    # A method of a public class is what a subclass overrides.
    return [name for name in found if not name.endswith(".__call__")]


def test_only_compat_names_private_modules():
    found = {path: _private(source) for path, source in _sources().items()}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from tensorflow.python.framework import ops",
        "import tensorflow_federated.python.common_libs",
        "importlib.import_module('tensorflow.python.eager.context')",
        "tf.__internal__.EagerTensor",
        "tf.python.ops",
        "tff._secret",
        "from keras.src.utils import losses_utils",
    ],
)
def test_a_private_name_is_found(line):
    assert len(_private(line)) >= 1


@pytest.mark.parametrize("name", sorted(compat._PLACES))
def test_every_private_module_is_there_and_used(name):
    assert getattr(compat, name) is importlib.import_module(compat._PLACES[name])
    used = re.compile(rf"\b{name}\b")
    inside = (_REPOSITORY / "tff_suite" / "compat.py").read_text("utf-8").count(f'"{name}"')
    assert inside > 1 or any(used.search(s) for s in _sources().values() if "compat" in s)


def test_another_name_is_none_of_compats():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = compat.nothing
