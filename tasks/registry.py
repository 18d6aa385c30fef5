"""The tasks by name: what each one lets its user set, known without importing TensorFlow."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence

import hparams as hparams_lib


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """What is known of a task before anything is loaded.

    Attributes:
      name: Name of the task, the value of `--task`.
      summary: One line for `--help` and the README's table.
      loader: `module:function`, imported on first use, or the function itself. It is called with
        `data_dir` (str or None), `seed` (int; initial weights and partitions derive from it),
        `use_synthetic_data` (bool) and every declared setting by name, and returns a
        `tasks.task.Task`.
      hparams: The task's settings; flags are `--<task>_<name>`.
      needs_data: Whether the task reads files (so that `--data_dir` means something to it).
    """

    name: str
    summary: str
    loader: str | Callable
    hparams: Sequence[hparams_lib.Hparam] = ()
    needs_data: bool = True

    def load_fn(self) -> Callable:
        """Imports and returns the loader."""
        if callable(self.loader):
            return self.loader
        module, function = self.loader.split(":")
        return getattr(importlib.import_module(module), function)


_SPECS: dict[str, TaskSpec] = {}


def register(spec: TaskSpec) -> None:
    """Adds a task; a package outside the suite calls this when `--import` brings it in.

    Raises:
      ValueError: If the name is taken by another task.
    """
    if _SPECS.get(spec.name, spec) != spec:
        raise ValueError(f"A task named {spec.name!r} is registered already.")
    _SPECS[spec.name] = spec


def names() -> list[str]:
    """Returns the registered names in alphabetical order."""
    return sorted(_SPECS)


def get(name: str) -> TaskSpec:
    """Returns the task's specification.

    Raises:
      HparamError: If there is no such task.
    """
    if name not in _SPECS:
        raise hparams_lib.HparamError(f"Unknown task {name!r}; known: {', '.join(names())}.")
    return _SPECS[name]
