"""Callbacks, by which users' code follows a run: `simulation.run(callbacks=[...])`.

Callbacks observe a run and do not change it, with two exceptions. A callback may stop the run
(`Round.stop`). It may also replace the server's weights by returning other weights from
`after_round`. The row of that round then has `train/weights_replaced` = 1.

A resumed run passes the recorded rows to every callback (`begin`). If a callback's state follows
from these rows alone, a resumed run ends like an uninterrupted one.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from simulation import run_checks
from tasks import directions
from tasks.task import Task
from tff_suite.hparams import HparamError

REPLACED = "train/weights_replaced"


class Round:
    """A completed round; round 0 is the initial model.

    Attributes:
      number: Number of rounds done.
      metrics: Column of metrics.csv → number, as far as known at the time of the call.
    """

    def __init__(
        self, number: int, metrics: Mapping[str, float], weights: Callable[[], list[np.ndarray]]
    ):
        """Initialises a round.

        Args:
          number: Number of rounds done.
          metrics: Column → number.
          weights: Function that returns the model's weights.
        """
        self.number, self.metrics, self._make = number, metrics, weights
        self._weights: list[np.ndarray] | None = None
        self.reason: str | None = None

    @property
    def weights(self) -> list[np.ndarray]:
        """The model's weights, as `tf.keras.Model.set_weights` takes them; computed on access."""
        if self._weights is None:
            self._weights = self._make()
        return self._weights

    def stop(self, reason: str) -> None:
        """Ends the run after this round, with a checkpoint and results.

        Args:
          reason: The reason, which the run prints at its end and writes to summary.json.

        Raises:
          HparamError: If there is no reason.
        """
        if not isinstance(reason, str) or not reason:
            raise HparamError(f"Round.stop: the reason must be text, found {reason!r:.80}.")
        self.reason = self.reason or reason


class Callback:
    """A callback; subclasses override the methods that they need.

    If a method raises an exception, the run ends with a checkpoint of the round and re-raises it.
    """

    def begin(self, past: Sequence[tuple[int, Mapping[str, float]]]) -> str | None:
        """Is called before the first round of a start, and to learn whether a run is over.

        Args:
          past: (number, metrics) of the completed rounds, if the run resumes.

        Returns:
          The reason to stop before any further round, or `None` to go on.
        """

    def after_round(self, done: Round) -> Sequence[np.ndarray] | None:
        """Called after a round, before the model is evaluated.

        Args:
          done: The round; its metrics are those of training.

        Returns:
          Weights to replace the server's, in the order of `done.weights`, or `None`.
        """

    def at_evaluation(self, done: Round) -> None:
        """Called after each evaluation of the model, including that before round 1."""

    def at_checkpoint(self, done: Round) -> None:
        """Called after a checkpoint was saved."""

    def at_end(self, done: Round) -> None:
        """Called after the results were written; the metrics are those of the final model."""


class _Function(Callback):
    """Wraps a function that is called after each round."""

    def __init__(self, function: Callable[[Round], Any]):
        self._function = function

    def after_round(self, done: Round) -> Any:
        return self._function(done)


_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class StopAt(Callback):
    """Stops a run once a column of metrics.csv meets a condition."""

    def __init__(self, condition: str):
        """Initialises the callback.

        Args:
          condition: Column, comparison (`>=`, `<=`, `>`, `<`) and number, such as
            `eval/accuracy>=0.9`.

        Raises:
          HparamError: If the condition has another form.
        """
        self._column, comparison, self._bound = run_checks.stop_condition(condition)
        self._condition = f"{self._column}{comparison}{self._bound:g}"
        self._compare = _COMPARISONS[comparison]

    def begin(self, past: Sequence[tuple[int, Mapping[str, float]]]) -> str | None:
        """See `Callback`."""
        return next(filter(None, (self._met(number, metrics) for number, metrics in past)), None)

    def after_round(self, done: Round) -> None:
        """See `Callback`."""
        self._look(done)

    def at_evaluation(self, done: Round) -> None:
        """See `Callback`.

        Raises:
          HparamError: If there is no such column.
        """
        if done.number or not self._column.startswith("train/"):
            _require(f"stop_at={self._condition}", self._column, done.metrics)
        self._look(done)

    def _look(self, done: Round) -> None:
        reason = self._met(done.number, done.metrics)
        if reason:
            done.stop(reason)

    def _met(self, number: int, metrics: Mapping[str, float]) -> Any:
        if self._compare(metrics.get(self._column, math.nan), self._bound):
            return f"{self._condition} after round {number}"
        return None


class EarlyStopping(Callback):
    """Stops a run once a column has not improved for some evaluations.

    Use a column of validation data (`validation_fraction`), never of test data.
    """

    def __init__(
        self,
        column: str = "validation/loss",
        patience: int = 10,
        min_delta: float = 0.0,
        higher_is_better: bool | None = None,
    ):
        """Initialises the callback.

        Args:
          column: Column of metrics.csv.
          patience: Number of successive evaluations without improvement after which to stop, 1 or
            more.
          min_delta: Smallest change that counts as improvement, 0 or more.
          higher_is_better: Whether higher values of the column are better. By default the run's
            task says so of its primary metric, and lower losses are better. Set it for other
            columns.

        Raises:
          HparamError: If a number is out of range.
        """
        if patience < 1 or min_delta < 0:
            raise HparamError("EarlyStopping: patience must be 1 or more, min_delta 0 or more.")
        self._column, self._patience, self._min_delta = column, patience, min_delta
        self._higher_is_better = higher_is_better
        self._sign: float | None = None

    def settle(self, task: Task | None) -> None:
        """Learns from a run's task which values of the column are better.

        Args:
          task: The task; `None` if only the column's name is known.

        Raises:
          HparamError: If neither the caller, nor the task, nor the column's name says so.
        """
        higher = self._higher_is_better
        if higher is None:
            higher = directions.higher_is_better(self._column, task)
        if higher is None:
            raise HparamError(
                f"EarlyStopping: pass higher_is_better; {self._column} does not say whether it is "
                "True or False."
            )
        self._sign = 1.0 if higher else -1.0

    def begin(self, past: Sequence[tuple[int, Mapping[str, float]]]) -> str | None:
        """See `Callback`."""
        if self._sign is None:  # Another callback calls this one.
            self.settle(None)
        self._best, self._waited, reason = -math.inf, 0, None
        for number, metrics in past:
            reason = self._look(number, metrics) or reason
        return reason

    def at_evaluation(self, done: Round) -> None:
        """See `Callback`.

        Raises:
          HparamError: If there is no such column.
        """
        if self._column not in done.metrics:
            known = ", ".join(c for c in done.metrics if not c.startswith("time/"))
            raise HparamError(
                f"EarlyStopping: there is no column {self._column}; there are {known}."
            )
        reason = self._look(done.number, done.metrics)
        if reason:
            done.stop(reason)

    def _look(self, number: int, metrics: Mapping[str, float]) -> str | None:
        if self._column not in metrics:
            return None
        assert self._sign is not None  # `begin` comes first.
        value = self._sign * metrics[self._column]
        if value > self._best + self._min_delta:
            self._best, self._waited = value, 0
        else:
            self._waited += 1
        if self._waited < self._patience:
            return None
        return f"{self._column} has not improved for {self._patience} evaluations"


class Callbacks:
    """All callbacks of a run.

    Attributes:
      reason: The reason why a callback stops the run, if any.
      failure: The exception that a callback raised, if any; it also stops the run.
    """

    def __init__(
        self,
        given: Sequence[Callback | Callable[[Round], Any]],
        all_weights: Callable[[Sequence[np.ndarray]], list[np.ndarray]] = list,
        trained: Callable[[Sequence[np.ndarray]], list[np.ndarray]] | None = list,
        task: Task | None = None,
        check_model: Callable[[], None] = lambda: None,
    ):
        """Initialises the callbacks.

        Args:
          given: Callbacks, or functions that are called after each round.
          all_weights: Function from trained weights to all weights, in Keras's order.
          trained: The inverse; `None` if the method's weights cannot be replaced.
          task: The run's task, if known.
          check_model: Is called after each callback; raises an `HparamError` if that has changed
            the run's model in a way that has no effect.

        Raises:
          HparamError: If an element is neither callback nor function, or see
            `EarlyStopping.settle`.
        """
        for callback in given:
            if isinstance(callback, type) and issubclass(callback, Callback):
                name = callback.__name__
                raise HparamError(f"callbacks: {name} is a class; pass one of it, {name}(...).")
            if not isinstance(callback, Callback) and not callable(callback):
                raise HparamError(
                    f"callbacks: {callback!r:.80} must be a simulation.Callback or a function."
                )
        self._callbacks = [c if isinstance(c, Callback) else _Function(c) for c in given]
        for callback in self._callbacks:
            if isinstance(callback, EarlyStopping):
                callback.settle(task)
        self._all_weights, self._trained = all_weights, trained
        self._check_model = check_model
        self.reason: str | None = None
        self.failure: Exception | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether a callback has stopped the run."""
        return self.reason is not None or self.failure is not None

    def begin(self, rows: Sequence[Mapping[str, str]]) -> None:
        """Passes the completed rounds to all callbacks.

        Args:
          rows: Rows of metrics.csv: column → text.
        """
        past = [numbers(row) for row in rows]
        for callback in self._callbacks:
            reason = callback.begin(past)
            self.reason = self.reason or reason

    def after_round(
        self, number: int, metrics: Mapping[str, float], trained: Sequence[np.ndarray]
    ) -> list[np.ndarray] | None:
        """Returns trained weights that replace the given ones, or `None`."""
        done, replaced = self._round(number, metrics, trained), None
        for callback in self._callbacks:
            given = self._call(callback.after_round, done)
            if given is None or self.failure is not None:
                continue
            replaced = self._checked(given, trained)
            if self.failure is None:
                # The next callback sees these weights. Those that do not train stay as they are.
                done = self._round(number, metrics, replaced)
        return replaced

    def at(self, what: str, number: int, metrics: Mapping[str, float], trained: Any) -> None:
        """Calls `at_<what>` of every callback."""
        done = self._round(number, metrics, trained)
        for callback in self._callbacks:
            self._call(getattr(callback, f"at_{what}"), done)

    def _round(self, number: int, metrics: Mapping[str, float], trained: Any) -> Round:
        # A copy: what callbacks add or change is not recorded.
        return Round(number, dict(metrics), lambda: self._all_weights(trained))

    def _call(self, function: Callable[[Round], Any], done: Round) -> Any:
        if self.failure is not None:
            return None
        try:
            given = function(done)
            self._check_model()
        except Exception as e:
            self.failure = e
            return None
        self.reason = self.reason or done.reason
        return given

    def _checked(self, given: Any, trained: Any) -> Any:
        if self._trained is None:
            self.failure = HparamError(
                "callbacks: the weights of a method in several stages cannot be replaced."
            )
            return None
        try:
            arrays = [np.asarray(w, np.float32) for w in given]
            shapes = [np.shape(w) for w in self._all_weights(trained)]
            if [w.shape for w in arrays] != shapes:
                raise ValueError(f"found shapes {[list(w.shape) for w in arrays]}")
            replaced = self._trained(arrays)
            for i, (kept, w) in enumerate(zip(self._all_weights(replaced), arrays, strict=True)):
                if not np.array_equal(np.asarray(kept, np.float32), w, equal_nan=True):
                    self.failure = HparamError(
                        f"callbacks: after_round returned another value of weight {i}, which does "
                        "not train and is the same in all rounds: set it in the model before the "
                        "run, or return it as it is in Round.weights."
                    )
                    return None
            return replaced
        except (TypeError, ValueError) as e:
            self.failure = HparamError(
                f"callbacks: after_round must return None or weights as Round.weights has them: {e}"
            )
            return None


def _require(whose: str, column: str, metrics: Mapping[str, float]) -> None:
    if column not in metrics:
        known = ", ".join(c for c in metrics if not c.startswith("time/"))
        raise HparamError(f"{whose}: there is no column {column}; there are {known}.")


def numbers(row: Mapping[str, str]) -> tuple[int, dict[str, float]]:
    """Returns a row of metrics.csv, column → text, as its round and its numbers."""
    metrics = {c: float(text) for c, text in row.items() if c != "round_num" and text != ""}
    return int(row["round_num"]), metrics
