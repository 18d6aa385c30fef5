"""Methods and tasks as files of a folder: reads what each declares without loading TensorFlow."""

import dataclasses
import importlib
import pkgutil
import types
from collections.abc import Callable, Sequence
from typing import Any

from tff_suite import imports


def in_folder(package: types.ModuleType, *functions: str) -> list[Any]:
    """Returns the `SPEC`, or the entries of `SPECS`, of each module of a package.

    Args:
      package: The package. Its modules must not use TensorFlow while they are imported.
      *functions: Fields that name a function. The folder's files give just its name; the result has
        `module:name`.

    Raises:
      ImportError: If a module uses TensorFlow while it is imported.
    """
    with imports.when_used():
        modules = [
            importlib.import_module(f"{package.__name__}.{found.name}")
            for found in pkgutil.iter_modules(package.__path__)
        ]
    return [
        dataclasses.replace(spec, **_named(module, spec, functions))
        for module in modules
        for spec in getattr(module, "SPECS", None) or (module.SPEC,)
    ]


def check_history(spec: Any) -> None:
    """Refuses a version without a history of its changes.

    Args:
      spec: A method's or a task's specification.

    Raises:
      ValueError: If `version` is not a whole number of at least 1, or `history` does not have one
        line for each version after the first.
    """
    if not isinstance(spec.version, int) or spec.version != 1 + len(spec.history):
        raise ValueError(
            f"{spec.name}: version={spec.version!r} needs {spec.version!r} - 1 lines of history, "
            f"found {len(spec.history)}."
        )


def changes(history: Sequence[str], was: Any, now: int) -> Sequence[str]:
    """Returns the lines of a `history` from one version to a later one; none if it is not later.

    Args:
      history: A line for each version after the first.
      was: The earlier version, as a file has it.
      now: The later version.
    """
    return history[was - 1 : now - 1] if isinstance(was, int) and 0 < was < now else ()


def _named(module: types.ModuleType, spec: Any, functions: Sequence[str]) -> dict[str, str]:
    given = {field: getattr(spec, field) for field in functions}
    return {
        field: f"{module.__name__}:{name}"
        for field, name in given.items()
        if isinstance(name, str) and ":" not in name
    }


def function(named: str | Callable) -> Callable:
    """Returns a function given as `module:name`, or as itself."""
    if callable(named):
        return named
    module, name = named.split(":")
    return getattr(importlib.import_module(module), name)
