"""Tasks: what is learnt, on which clients' data, and how it is measured.

A task is independent of algorithms. `tasks.load(name, **settings)` returns its federated data,
model, loss and metrics as one `tasks.task.Task`. `tasks.from_frame` and `tasks.from_arrays` make a
task from your own table or arrays.
"""

import dataclasses as _dataclasses
import importlib as _importlib
import os as _os
from typing import TYPE_CHECKING, Any

from tasks import datasets as _datasets
from tasks import label_noise as _label_noise
from tasks import registry as _registry
from tasks import settings as _settings
from tasks.data_files import DataFiles
from tasks.formats import files as _files
from tasks.formats import remote as _remote
from tasks.registry import Clients, TaskSpec, get, names, register
from tasks.task import ArrayFederatedData, DataError, Examples, Task
from tff_suite import imports as _imports  # noqa: F401  (has to come before TFF)

if TYPE_CHECKING:
    from tasks.frames import from_arrays, from_frame

_registry.add_folder(_datasets)


def load(
    name: str,
    *,
    data_dir: str | None = None,
    seed: int = 0,
    use_synthetic_data: bool = False,
    **settings: Any,
) -> Task:
    """Loads a task.

    Args:
      name: A name of `tasks.names()`.
      data_dir: Folder with the task's data files, or an fsspec address of one; `None` lets the task
        use its cache or download.
      seed: Seed of initial weights and of partitions that are drawn at random.
      use_synthetic_data: Whether to generate data of the true shape and types instead of reading
        files.
      **settings: The task's own settings; see `tasks.get(name).hparams`.

    Returns:
      A `tasks.task.Task`.

    Raises:
      HparamError: If the task or a setting is unknown or a value is out of range.
      tasks.task.DataError: If data is missing or damaged; the message says how to fix it.
    """
    spec = get(name)
    resolved = spec.resolve(settings, use_synthetic_data)
    if data_dir is not None and not use_synthetic_data:
        data_dir = _os.path.expanduser(data_dir)
        data_dir = _remote.folder(data_dir, "--data_dir")
        _files.check_folder(data_dir, "--data_dir")
    resolved = _settings.with_partition_seed(spec.hparams, resolved, seed)
    noise: dict[str, Any] = {
        h.name: resolved[h.name] for h in _label_noise.HPARAMS if spec.class_labels
    }
    task = spec.load_fn()(
        data_dir=data_dir,
        seed=seed,
        use_synthetic_data=use_synthetic_data,
        **{name: value for name, value in resolved.items() if name not in noise},
    )
    task = _dataclasses.replace(task, settings={**resolved, **task.settings})
    return _label_noise.add(task, seed=seed, **noise) if noise else task


_LAZY = {"from_arrays": "frames", "from_frame": "frames"}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'tasks' has no attribute {name!r}")
        return getattr(_importlib.import_module(f"tasks.{_LAZY[name]}"), name)


__all__ = [
    "ArrayFederatedData",
    "Clients",
    "DataError",
    "DataFiles",
    "Examples",
    "Task",
    "TaskSpec",
    "from_arrays",
    "from_frame",
    "get",
    "load",
    "names",
    "register",
]


def __dir__() -> list[str]:
    return __all__
