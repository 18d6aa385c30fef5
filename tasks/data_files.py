"""What files a task reads: declared in its `SPEC`, for pages and for what a paper's item takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tff_suite.hparams import Value


@dataclasses.dataclass(frozen=True, eq=False)
class DataFiles:
    """Files that a task reads.

    Attributes:
      name: What they are, in words.
      source: How to get them, as a request.
      files: Patterns of files below `--data_dir`, any of which shows that they are there.
      examples: Training examples that the publisher states.
      clients: Number of clients where the settings do not tell it.
      cached: What a run without `--data_dir` looks for below the home folder before it downloads.
      tfds_set: The `tasks.formats.tfds.Set` of TensorFlow Datasets that will do as well.
      tfds_cache: When a run reads that set from TFDS's own cache. `never`; `alone`, without
        `--data_dir`; `beside`, where that folder has only what TFDS lacks; `always`.
      beside: Patterns of files below `--data_dir`, one of which must be there, too.
      when: Setting → values with which the task reads these files; without any, always.
      stand_in: Whether they are for set-ups only that say that their data are not the paper's.
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
        """Returns the same files with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def are_read(self, settings: Mapping[str, Value]) -> bool:
        """Returns whether a task with these settings, by name, reads these files."""
        return all(settings.get(name) in values for name, values in self.when.items())
