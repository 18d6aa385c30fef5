"""Declares the data files of tasks in their `SPEC`s, for pages and for the items of papers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_suite.hparams import Value


@dataclasses.dataclass(frozen=True, eq=False)
class DataFiles:
    """Files that a task reads.

    Attributes:
      name: Description of the files.
      source: How to get them, as a request.
      files: Patterns of files below `--data_dir`; one match shows that the files exist.
      examples: Number of training examples that the publisher states.
      clients: Number of clients, if the settings do not determine it.
      cached: The path below the home folder at which a run without `--data_dir` looks before it
        downloads.
      tfds_set: The `tasks.formats.tfds.Set` of TensorFlow Datasets that can replace the files.
      tfds_cache: When a run reads that set from TFDS's own cache: `never`; `alone`, without
        `--data_dir`; `beside`, if that folder has only what TFDS lacks; `always`.
      beside: Patterns of further files below `--data_dir`, one of which must also exist.
      when: Setting → values with which the task reads these files; empty for always.
      stand_in: Whether they are only for set-ups that state that their data is not the paper's.
    """

    name: str
    source: str
    files: Sequence[str]
    examples: int
    clients: int = 0
    cached: Sequence[str] = ()
    tfds_set: Any = None
    tfds_cache: str = "never"
    beside: Sequence[str] = ()
    when: Mapping[str, Sequence[Value]] = dataclasses.field(default_factory=dict)
    stand_in: bool = False

    def replace(self, **changes: Any) -> DataFiles:
        """Returns a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def are_read(self, settings: Mapping[str, Value]) -> bool:
        """Returns whether a task with these settings, by name, reads these files."""
        return all(settings.get(name) in values for name, values in self.when.items())
