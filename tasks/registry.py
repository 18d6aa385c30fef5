"""The tasks by name, with their settings, known without importing TensorFlow."""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tasks import label_noise
from tasks.data_files import DataFiles
from tff_suite import hparams as hparams_lib
from tff_suite import specs


class _Numbers:
    """The texts 0, 1, ..., made on access."""

    def __init__(self, number: int):
        self._numbers = range(number)

    def __getitem__(self, index: int) -> str:
        return str(self._numbers[index])

    def __contains__(self, text: str) -> bool:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        return number in self._numbers and str(number) == text


class Clients(NamedTuple):
    """Facts on a task's clients that are known without reading data.

    Attributes:
      number: Number of clients, or an upper bound of it.
      ids: Their ids; `None` if only the data determines them.
    """

    number: int
    ids: "Sequence[str] | _Numbers | None" = None

    @classmethod
    def numbered(cls, number: int) -> "Clients":
        """Returns clients named 0, 1, ..."""
        return cls(number, _Numbers(number))


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """What is known of a task before anything is loaded.

    Attributes:
      name: Name of the task, the value of `--task`.
      summary: One line for `--help` and the README's table.
      loader: `module:function`, imported on first use, or the function itself; in the `SPEC` of a
        module (see `add_folder`) just the function's name. It is called with `data_dir` (str or
        None), `seed` (int; initial weights and partitions derive from it), `use_synthetic_data`
        (bool) and every declared setting by name, and returns a `tasks.task.Task`. An unset
        `partition_seed` is passed as the run's seed. The task's `settings` need only hold values
        that the data determined; `tasks.load` adds the others.
      hparams: The task's settings; flags are `--<task>_<name>`.
      needs_data: Whether the task reads files, so that it uses `--data_dir`.
      preparer: A function, or its name as for `loader`, if `python -m tasks.prepare` can make the
        task's data faster to load. It is called with the folder of the raw files and the output
        folder, and returns a `tasks.formats.prepared.Outcome`.
      class_labels: Whether the training targets are class numbers `[n]`. The settings of
        `tasks.label_noise` are then added to `hparams`; `tasks.load` applies them, not the loader.
      check: Called with all settings by name; raises `HparamError` if they contradict each other in
        ways that `tff_suite.hparams.By` does not cover. Must not import TensorFlow.
      check_data: Called with all settings by name unless the data is synthetic; raises
        `HparamError` if a setting that says what to read is missing. Must not import TensorFlow.
      clients: Called with all settings by name and `use_synthetic_data`; returns the `Clients`, or
        `None` if only the data determines them. Must not import TensorFlow.
      metrics: Names of the task's metrics, the primary one first; or a function that returns them
        from all settings by name, and must not import TensorFlow. `None` if only the loaded task
        knows.
      own_code: Whether a setting names the user's own code. Changes of loss, metrics and model are
        then detected as for a user's own task.
      data: The files that the task reads. Of several entries, the first applies whose settings fit.
      version: Increased by every change that changes the task's numbers: in data, model, loss or
        metrics. Runs of another version are treated as different runs.
      history: For each version after the first, one line on what changed.
      known_problems: One line per problem with the data here, or with what it can show.
      used_for: One line per user or publisher of the data, with the source.
    """

    name: str
    summary: str
    loader: str | Callable = "load"
    hparams: Sequence[hparams_lib.Hparam] = ()
    needs_data: bool = True
    preparer: str | Callable | None = None
    class_labels: bool = False
    check: Callable[[hparams_lib.Settings], None] | None = None
    check_data: Callable[[hparams_lib.Settings], None] | None = None
    clients: Callable[[hparams_lib.Settings, bool], Clients | None] | None = None
    metrics: Sequence[str] | Callable[[hparams_lib.Settings], Sequence[str] | None] | None = None
    own_code: bool = False
    data: Sequence[DataFiles] = ()
    version: int = 1
    history: Sequence[str] = ()
    known_problems: Sequence[str] = ()
    used_for: Sequence[str] = ()

    def __post_init__(self) -> None:
        specs.check_history(self)
        if self.class_labels:
            own = [h for h in self.hparams if h not in label_noise.HPARAMS]
            object.__setattr__(self, "hparams", (*own, *label_noise.HPARAMS))

    def resolve(self, given: hparams_lib.Settings, synthetic: bool = True) -> dict[str, Any]:
        """Returns all settings by name: the given ones, after all checks, and defaults.

        Args:
          given: Settings by name; `None` means not given.
          synthetic: Whether the data is generated instead of read.

        Raises:
          HparamError: If a name is unknown, a value is refused, settings contradict each other, or
            one that says what to read is missing.
        """
        settings = hparams_lib.resolve(self.name, self.hparams, given)
        if self.check is not None:
            self.check(settings)
        if self.check_data is not None and not synthetic:
            self.check_data(settings)
        return settings

    def settled(self, settings: hparams_lib.Settings, **found: hparams_lib.Value) -> dict[str, Any]:
        """Returns the settings after the data has determined what `auto` means.

        Args:
          settings: What `resolve` returned; open values (`None`) are filled in or refused.
          **found: Values that the data determined.

        Raises:
          HparamError: If a given setting is not used with those values.
        """
        given = {name: v for name, v in {**settings, **found}.items() if v is not None}
        return self.resolve(given)

    def metrics_with(self, settings: hparams_lib.Settings) -> Sequence[str] | None:
        """Returns the names of the metrics with these settings; `None` if they are unknown."""
        return self.metrics(settings) if callable(self.metrics) else self.metrics

    def data_with(self, settings: hparams_lib.Settings, stand_in: bool = False) -> DataFiles | None:
        """Returns the files that the task reads with these settings; `None` for no files.

        Args:
          settings: Settings by name; those that are left out leave it to the task.
          stand_in: Whether data will do that are not the paper's.
        """
        allowed = (files for files in self.data if stand_in or not files.stand_in)
        return next((files for files in allowed if files.are_read(settings)), None)

    def load_fn(self) -> Callable:
        """Imports and returns the loader."""
        return specs.function(self.loader)

    def prepare_fn(self) -> Callable | None:
        """Imports and returns the preparer, or `None` if there is none."""
        return None if self.preparer is None else specs.function(self.preparer)


_SPECS: dict[str, TaskSpec] = {}


def register(spec: TaskSpec) -> None:
    """Adds a task; a package outside the suite calls this when `--import` brings it in.

    Raises:
      ValueError: If the name is taken by another task.
    """
    if _SPECS.get(spec.name, spec) != spec:
        raise ValueError(
            f"A task named {spec.name!r} is already registered; choose another name, or restart "
            "Python to replace your own."
        )
    _SPECS[spec.name] = spec


def add_folder(package: types.ModuleType) -> None:
    """Registers `SPEC` or `SPECS` of each module of a package, without importing TensorFlow.

    Raises:
      ImportError: If a module uses TensorFlow while it is imported.
      ValueError: If a name is taken by another task.
    """
    for spec in specs.in_folder(package, "loader", "preparer"):
        register(spec)


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
