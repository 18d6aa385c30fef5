"""Where modules lie: the suite's, the user's, and installed ones."""

import ast
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Iterable

SUITE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Its packages and modules; tests and examples are what a user may have written.
_OF_SUITE = frozenset(
    ("benchmarks", "reproduce", "reproduction", "run_experiment", "simulation")
    + ("tasks", "tff_algos", "tff_suite", "tools")
)
_INSTALLED = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def is_suites(module: str, path: str | None) -> bool:
    """Returns whether a module is the suite's own."""
    return module.split(".")[0] in _OF_SUITE and _within(path, SUITE)


def _within(path: str | None, folder: str) -> bool:
    return path is not None and os.path.realpath(path).startswith(folder + os.sep)


def is_own(module: str, path: str | None, packages: Iterable[str] = ()) -> bool:
    """Returns whether a module is the user's: neither the suite's nor installed."""
    if not path or not path.endswith(".py") or is_suites(module, path):
        return False
    if module.split(".")[0] in packages:
        return True
    path = os.path.realpath(path)
    return not (
        path.startswith(_INSTALLED) or {"site-packages", "dist-packages"} & set(path.split(os.sep))
    )


def path_of(name: str) -> str | None:
    """Returns the file of a module, without importing anything."""
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    places, spec = None, None
    *parents, _ = names = [name[: i or None] for i in (*_dots(name), None)]
    for inner in names:
        loaded = sys.modules.get(inner)
        if loaded is not None and inner in parents:
            places = list(getattr(loaded, "__path__", ()))
            continue
        try:
            spec = importlib.machinery.PathFinder.find_spec(inner, places)
        except (ImportError, ValueError, OSError):
            return None
        if spec is None:
            return None
        places = spec.submodule_search_locations
    return None if spec is None else spec.origin


def _dots(name: str) -> list[int]:
    return [i for i, c in enumerate(name) if c == "."]


def label(module: str) -> str:
    """Returns the name of a module independently of its location: `my_tasks/blobs.py`.

    A script, notebook or console is `the program`, so that it may be renamed.
    """
    return "the program" if module == "__main__" else module.replace(".", "/") + ".py"


def imports_of(tree: ast.AST, module: str) -> list[str]:
    """Returns the names of modules that a syntax tree may import."""
    loaded = sys.modules.get(module)
    path = path_of(module) if module != "__main__" else None
    is_package = os.path.basename(path or "") == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    if module == "__main__":
        package = getattr(loaded, "__package__", None) or ""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    with_parents = [name[: i or None] for name in names for i in (*_dots(name), None)]
    return [name for name in dict.fromkeys(with_parents) if name and not name.endswith(".*")]
