"""Running an experiment from Python: settings as arguments, results as values."""

import contextlib
import dataclasses
import functools
import os
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simulation import experiment, experiment_flags
from simulation.caller import Caller
from simulation.records import metrics_csv, outputs
from simulation.records.progress import ProgressInPython
from simulation.rounds.callbacks import Callback, Round
from tasks.task import Task
from tff_suite import user_warnings
from tff_suite.hparams import HparamError, Value

if typing.TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class Result:
    """The results of a run.

    Attributes:
      folder: Path of its folder.
      rounds: metrics.csv: `round_num` (int), then float columns, NaN where a row is blank. Row 0 is
        the initial model.
      summary: The content of summary.json.
      weights: The model's weights after the last round, frozen ones included, as
        `tf.keras.Model.set_weights` takes them.
    """

    folder: str
    rounds: "pd.DataFrame"
    summary: dict[str, Any]
    weights: list[np.ndarray]


def run(
    *,
    task: str | Task | None = None,
    algorithm: str | None = None,
    model: Any = None,
    progress: bool = True,
    callbacks: Sequence[Callback | Callable[[Round], Any]] = (),
    evaluators: Mapping[str, Callable[[list[np.ndarray]], float]] | None = None,
    **settings: Value | os.PathLike,
) -> Result:
    """Runs an experiment as `run_experiment.py` does, or resumes it where it was interrupted.

    Settings are the flags of the command, with the same checks and defaults. A method's own are
    `<algorithm>_<name>`, a task's own `<task>_<name>`. Without `experiment_name`, the folder's name
    contains the seed and a digest of the settings. So a loop over settings needs no names, and the
    same call finds its run again.

    Only a progress bar is printed, on standard error. An interrupt (`KeyboardInterrupt`) is not
    caught; the same call then resumes from the last checkpoint. As in the command, each TensorFlow
    operation gets one thread, unless TensorFlow has already started.

    Args:
      task: Name of a task, or your own task; its name must not be that of a registered one.
      algorithm: The method.
      model: A Keras model that replaces the task's, or a function from a seed to such a model.
        Training begins with the model's weights and does not change the model. To resume a run, or
        to get a finished run's result again, pass the same model and task: code, data and initial
        weights are compared.
      progress: Whether to show the bar.
      callbacks: Callbacks that follow the rounds and may stop the run, see `simulation.Callback`. A
        function is called after each round.
      evaluators: Name → function from the model's weights (as `tf.keras.Model.set_weights` takes
        them) to a number. Evaluations record it as `eval/<name>`.
      **settings: Flag → value; `None` means that the flag is not set. The command's required flags
        are required here, too. `flagfile` is the path of a flag file, which the other settings
        override.

    Raises:
      HparamError: If a setting is wrong, or contradicts others or the task's data.
      RunError: If the run cannot start or resume; `ChangedError` if the folder's run has other code
        or data; `DivergedError` if training diverged.
      tasks.task.DataError: If data is missing or damaged.
    """
    if isinstance(callbacks, Callback) or callable(callbacks):
        raise HparamError("callbacks must be a list; pass [callback].")
    if not isinstance(evaluators, Mapping | None):
        raise HparamError(
            f"evaluators must be a dictionary by name, found a {type(evaluators).__name__}; write "
            '{"name": function}.'
        )
    own_task = task if not isinstance(task, str | None) else None
    named = {"task": None if own_task is not None else task, "algorithm": algorithm}
    request = experiment_flags.from_python({**named, **settings}, own_task, model)
    caller = Caller(
        command=["simulation.run"],
        say=lambda _: None,
        warn=user_warnings.warn,
        progress=functools.partial(ProgressInPython, shown=progress),
        stop_request=_no_stop_request,
        takes_weights=True,
        callbacks=tuple(callbacks),
        evaluators=dict(evaluators or {}),
    )
    if "tensorflow" not in sys.modules:
        # TensorFlow reads this when it is imported; otherwise it logs its start.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        # Warnings of packages that TFF imports, which users cannot fix.
        warnings.filterwarnings("ignore", message=".*pkg_resources")
        outcome = experiment.carry_out(request, caller)
    rounds = metrics_csv.read_metrics(os.path.join(outcome.folder, "metrics.csv"))
    summary = outputs.read_json(os.path.join(outcome.folder, "summary.json"))
    assert summary is not None and outcome.weights is not None  # The run has ended.
    return Result(outcome.folder, rounds, summary, outcome.weights)


def _no_stop_request() -> contextlib.AbstractContextManager:
    """Keeps a notebook's signal handling, in which an interrupt is a `KeyboardInterrupt`."""
    return contextlib.nullcontext(types.SimpleNamespace(signal=None))
