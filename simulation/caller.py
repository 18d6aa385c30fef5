"""How a run communicates with what started it, and how it ended."""

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from simulation import identity
from simulation.records.progress import Progress, ProgressInPython


@dataclasses.dataclass(frozen=True)
class Caller:
    """How a run communicates with the command or program that started it.

    Attributes:
      command: The command line or call that started it, for the record.
      say: Prints or logs a line on what the run does.
      warn: Prints or logs a warning of one line.
      progress: (rounds done, rounds in total) → the `Progress` that is shown.
      stop_request: Makes a context manager whose value has an attribute `signal`. The run stops
        after the current round once this is not `None`.
      takes_weights: Whether the caller needs the final weights, even of a run that is already
        finished.
      callbacks: See `simulation.rounds.callbacks`.
      evaluators: Name → function of the weights that returns a number, the column `eval/<name>`.
    """

    command: Sequence[str]
    say: Callable[[str], None]
    warn: Callable[[str], None]
    progress: Callable[[int, int], Progress | ProgressInPython]
    stop_request: Callable[[], contextlib.AbstractContextManager]
    takes_weights: bool
    callbacks: Sequence[Any] = ()
    evaluators: Mapping[str, Callable[[list[np.ndarray]], float]] = dataclasses.field(
        default_factory=dict
    )

    @functools.cached_property
    def own_functions(self) -> dict[str, str]:
        """Digests of evaluators and own callbacks, see `identity.of_own_functions`."""
        return identity.of_own_functions(self.evaluators, self.callbacks)


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
      folder: Path of its folder.
      weights: The model's weights as `tf.keras.Model.set_weights` takes them; `None` if the run had
        nothing to do and the caller does not need them.
      stopped_by: The signal that stopped it, if any.
    """

    folder: str
    weights: list[np.ndarray] | None
    stopped_by: signal.Signals | None = None
