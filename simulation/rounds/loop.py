"""The loop over a run's rounds, with the rules for divergence and stopping."""

import collections
import math
import signal
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from simulation.errors import DivergedError, NoWorkersError, RunError
from simulation.protocol import Cohort, Process
from simulation.records.client_states import ClientStates
from simulation.rounds.callbacks import REPLACED, Callbacks
from tff_suite import command_line

Metrics = collections.OrderedDict[str, float]

# A run has diverged if in this number of successive rounds every client was dropped or the loss was
# beyond its bound.
MOST_LOST_ROUNDS = 10

# The bound is this multiple of the loss before the first round, or this number if that is below 1.
# To reach it, logits must be a million apart, or predictions a thousand times as far off as at
# first.
MOST_LOSS = 1e6

# Weights beyond this have diverged: there, neighbouring float32 numbers differ by about a thousand.
MOST_WEIGHT = 1e10

CURE = "a lower learning rate may help"


class StopRequest:
    """Turns the first Ctrl-C, SIGTERM or SIGHUP into a request to stop after the current round.

    Used as a context manager in the main thread. A second signal interrupts at once.

    Attributes:
      signal: The signal received; `None` if none was.
    """

    def __init__(self):
        self.signal = None
        self._before = {}

    def __enter__(self) -> "StopRequest":
        self._before = command_line.handle_stops(self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        command_line.restore(self._before)

    def _handle(self, number, frame):
        if self.signal is not None:
            command_line.raise_stop(number, frame)
        self.signal = signal.Signals(number)


class Pace(NamedTuple):
    """The length of a run, and the intervals of evaluations and checkpoints.

    Attributes:
      total_rounds: Number of rounds to train.
      rounds_per_eval: The model is evaluated after every N rounds, and before the first.
      rounds_per_checkpoint: A checkpoint is saved after every N rounds, before the first and after
        the last.
    """

    total_rounds: int
    rounds_per_eval: int
    rounds_per_checkpoint: int


class Standing(NamedTuple):
    """The position at which a run starts or resumes.

    Attributes:
      state: The server's state.
      round_num: Number of rounds done.
      lost: Number of lost rounds at their end, see `lost_rounds`.
      bounds: Column → bound beyond which a loss has diverged, see `loss_bounds`.
    """

    state: Any
    round_num: int
    lost: int = 0
    bounds: Mapping[str, float] = types.MappingProxyType({})


class Recorder(Protocol):
    """Receives the results of rounds; a run uses that of `simulation.records.recorder`."""

    def record(self, round_num: int, values: Metrics) -> None:
        """Records the metrics after a number of rounds, by column."""

    def checkpoint(self, round_num: int, leaves: list[np.ndarray]) -> None:
        """Saves the arrays of the server's state after a number of rounds."""

    def show(self, round_num: int, values: Metrics) -> None:
        """Called at the end of a round, after `record`."""

    def warn(self, text: str) -> None:
        """Called with a warning; the run continues."""


def run(
    process: Process,
    standing: Standing,
    pace: Pace,
    recorder: Recorder,
    *,
    cohort_of_round: Callable[[int, Any], Cohort],
    client_states: ClientStates | None = None,
    evaluate: Callable[[Any, Any], Metrics],
    compare: Callable[[int, Any, Any], Metrics] | None = None,
    should_stop: Callable[[], bool],
    before_round: Callable[[int], None] | None = None,
    callbacks: Callbacks | None = None,
    replace: Callable[[Any, Sequence[np.ndarray]], Any] | None = None,
    cure: str = CURE,
) -> tuple[Any, int]:
    """Runs rounds until all are done or the run is stopped.

    A round is lost if clients trained and all of them were dropped, or if their mean loss was
    beyond its bound (`loss_bounds`). Rounds in which no client trains are ignored. The run has
    diverged in any of these cases:

    - `MOST_LOST_ROUNDS` rounds in a row are lost, or all except the first of a shorter run;
    - the loss of the last round, or of its model, is beyond its bound;
    - a weight is not finite, or beyond `MOST_WEIGHT`.

    Args:
      process: The method's process.
      standing: Where the run starts or resumes.
      pace: Length of the run and intervals.
      recorder: Receives the results.
      cohort_of_round: (round from 0, state before it) → its clients.
      client_states: The clients' states between rounds; `None` if the method's clients keep none.
      evaluate: (model weights, state) → metrics by column.
      compare: (round from 0, model weights before it, weights after it) → metrics by column; called
        after every round, if given.
      should_stop: Called once after every round.
      before_round: Called before every round with its number, from 1, if given.
      callbacks: Callbacks that follow the rounds and may stop the run.
      replace: (state, weights from a callback) → state with these weights.
      cure: Advice for a run that has diverged, for its error message.

    Returns:
      The state and the number of rounds done.

    Raises:
      DivergedError: If the run has diverged.
      Exception: What a callback raised, after a checkpoint of the round.
    """
    state, round_num, lost, bounds = standing
    callbacks = callbacks or Callbacks(())
    watch = _Watch(pace.total_rounds, lost, bounds, recorder.warn, cure)

    def evaluated(weights, state):
        started = time.perf_counter()
        values = evaluate(weights, state)
        values["time/eval_seconds"] = time.perf_counter() - started
        return values

    before = process.model_weights(state)
    if round_num == 0:
        values = evaluated(before, state)
        watch.learn(0, values)
        callbacks.at("evaluation", 0, values, before)
        recorder.record(0, values)
        recorder.checkpoint(0, flatten_state(state))
        callbacks.at("checkpoint", 0, values, before)
    # Read once per round: if it changed between two reads, the checkpoint would be skipped.
    stopping, saved = callbacks.is_stopping, round_num
    while round_num < pace.total_rounds and not stopping:
        if before_round is not None:
            before_round(round_num + 1)
        try:
            given = _next(process, state, round_num, cohort_of_round, client_states)
        except NoWorkersError:
            if saved != round_num:
                recorder.checkpoint(round_num, flatten_state(state))
            raise
        state, metrics, times = given
        round_num += 1
        values = collections.OrderedDict((f"train/{k}", v) for k, v in metrics.items())
        weights = process.model_weights(state)
        finite = all(map(_is_sound, weights))
        if finite and compare is not None:
            values.update(compare(round_num - 1, before, weights))
        replaced = callbacks.after_round(round_num, values, weights) if finite else None
        if replaced is not None:
            assert replace is not None  # Whose callbacks replace weights says how.
            state, weights = replace(state, replaced), replaced
            values[REPLACED] = 1.0
            finite = all(map(_is_sound, weights))
        before = weights
        if finite and round_num % pace.rounds_per_eval == 0:
            values.update(evaluated(weights, state))
            callbacks.at("evaluation", round_num, values, weights)
        values.update(times)
        recorder.record(round_num, values)
        watch.check(round_num, weights if not finite else None, values)
        recorder.show(round_num, values)
        stopping = should_stop() or callbacks.is_stopping
        due = round_num % pace.rounds_per_checkpoint == 0 or round_num == pace.total_rounds
        if due or stopping:
            recorder.checkpoint(round_num, flatten_state(state))
            saved = round_num
            callbacks.at("checkpoint", round_num, values, weights)
            stopping = stopping or callbacks.is_stopping
    if callbacks.failure is not None:
        raise callbacks.failure
    return state, round_num


def _next(process, state, round_index, cohort_of_round, client_states):
    """Does a round; returns the state after it, its metrics, and its times by column."""
    started = time.perf_counter()
    cohort = cohort_of_round(round_index, state)
    ready = time.perf_counter()
    given = None if client_states is None else client_states.slices(cohort.ids)
    output = process.next(state, cohort, given)
    if client_states is not None:
        client_states.take(cohort.ids, output.client_states, round_index + 1)
    metrics = collections.OrderedDict((k, float(v)) for k, v in output.metrics.items())
    times = {
        "time/data_seconds": ready - started,
        "time/round_seconds": time.perf_counter() - ready,
    }
    times.update((f"time/{name}", float(value)) for name, value in output.moved.items())
    return output.state, metrics, times


class _Watch:
    """Checks after every round whether training has diverged."""

    def __init__(self, total_rounds, lost, bounds, warn, cure):
        self._total_rounds, self._lost, self._bounds = total_rounds, lost, bounds
        self._warn, self._cure = warn, cure
        self._warned = set()

    def learn(self, round_num, values):
        """Derives the bounds from the first loss, once it is known."""
        self._bounds = self._bounds or _bounds_by(round_num, values)

    def check(self, round_num, unsound, values):
        """Checks a round for divergence, and warns once about each lesser problem.

        Args:
          round_num: Number of rounds done.
          unsound: The model's weights if they are not finite or far too large; else `None`.
          values: Metrics of the round by column.

        Raises:
          DivergedError: If the run has diverged.
        """
        metrics = _of_training(values)
        self._tell(round_num, metrics)
        if unsound is not None:
            all_finite = all(np.all(np.isfinite(w)) for w in unsound)
            how = f"larger than {MOST_WEIGHT:g}" if all_finite else "not finite"
            self._diverged(f"The model's weights are {how} after round {round_num}")
        self.learn(round_num, values)
        self._lost = lost = _lost_after(self._lost, metrics, self._bounds)
        last = round_num == self._total_rounds
        if lost >= MOST_LOST_ROUNDS or (last and lost >= max(self._total_rounds - 1, 1)):
            what = "No client's update was finite"
            if not _all_dropped(metrics):
                what = f"The training loss was above {self._bounds['train/loss']:.3g}"
            self._diverged(
                f"{what} in {lost} round{'s' * (lost > 1)} in a row, the last being round "
                f"{round_num}"
            )
        if last:
            check_last(values, self._bounds, self._cure)

    def _diverged(self, what):
        raise DivergedError(_line(what, self._cure))

    def _tell(self, round_num, metrics):
        dropped = metrics.get("clients_dropped", 0)
        if dropped and "dropped" not in self._warned:
            self._warned.add("dropped")
            self._warn(
                f"round {round_num}: {dropped:g} of {metrics.get('num_clients', math.nan):g} "
                "clients were dropped, since their updates were not finite; the column "
                "train/clients_dropped counts later ones."
            )
        for name, value in metrics.items():
            if not math.isfinite(value) and name not in self._warned:
                self._warned.add(name)
                self._warn(f"round {round_num}: train/{name} is {value}; the run continues.")


def lost_rounds(rows: Sequence[Mapping[str, str]]) -> int:
    """Returns the number of lost rounds at the end of a table.

    Args:
      rows: Rows of metrics.csv, in order: column → text.
    """
    lost, bounds = 0, loss_bounds(rows)
    for row in rows:
        columns = {name: f"train/{name}" for name in ("num_clients", "clients_dropped", "loss")}
        lost = _lost_after(lost, {k: float(row.get(c) or 0) for k, c in columns.items()}, bounds)
    return lost


def loss_bounds(rows: Sequence[Mapping[str, str]]) -> Mapping[str, float]:
    """Returns the bounds beyond which losses have diverged.

    A bound is `MOST_LOSS` times the test loss before the first round. If that is not finite, it is
    `MOST_LOSS` times the first round's training loss. A loss below 1 is replaced by 1.

    Args:
      rows: Rows of metrics.csv, in order: column → text.

    Returns:
      Column → bound; without the test loss if that was not finite at first, and empty if no loss is
      known yet.
    """
    for number, row in enumerate(rows):
        losses = {c: float(row.get(c) or "nan") for c in ("eval/loss", "train/loss")}
        bounds = _bounds_by(number, losses)
        if bounds:
            return bounds
    return {}


def _bounds_by(round_num: int, values: Mapping[str, float]) -> Mapping[str, float]:
    """Returns the bounds that follow from the losses after a number of rounds, if any."""
    columns = ("eval/loss", "train/loss")[bool(round_num) :]
    loss = values.get(columns[0], math.nan)
    return dict.fromkeys(columns, MOST_LOSS * max(1.0, loss)) if math.isfinite(loss) else {}


def check_last(values: Mapping[str, float], bounds: Mapping[str, float], cure: str) -> None:
    """Checks that the losses of a run's last round, or of its model, have not diverged.

    Args:
      values: Metrics by column.
      bounds: See `loss_bounds`.
      cure: Advice for the error message.

    Raises:
      DivergedError: If a loss is beyond its bound. A NaN is ignored, since one test example can
        cause it.
    """
    for column, bound in bounds.items():
        loss = values.get(column, math.nan)
        if loss > bound:
            what = f"{column} is {loss:.3g} in the end, above {bound:.3g}"
            raise DivergedError(_line(what, cure))


def _line(what, cure):
    return f"{what}: training diverged, so the run stops here; {cure}."


def _is_sound(weights: np.ndarray) -> bool:
    """Returns whether all numbers are finite and within `MOST_WEIGHT`."""
    # Avoids a copy of the weights, and is false for NaN.
    return not weights.size or bool(
        np.min(weights) >= -MOST_WEIGHT and np.max(weights) <= MOST_WEIGHT
    )


def _of_training(values: Mapping[str, float]) -> dict[str, float]:
    prefix = "train/"
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _all_dropped(metrics: Mapping[str, float]) -> bool:
    return metrics.get("clients_dropped", 0) >= metrics.get("num_clients", 0)


def _lost_after(lost: int, metrics: Mapping[str, float], bounds: Mapping[str, float]) -> int:
    """Returns the number of lost rounds in a row after one more round."""
    if not metrics.get("num_clients", 0):
        return lost
    beyond = metrics.get("loss", math.nan) > bounds.get("train/loss", math.inf)
    return lost + 1 if beyond or _all_dropped(metrics) else 0


def flatten_state(state: Any) -> list[np.ndarray]:
    """Returns the arrays of a server state, in the order of its structure."""
    leaves = tf.nest.flatten(state)
    # From a tensor of strings, NumPy itself would make an array of objects.
    return [np.asarray(leaf.numpy() if tf.is_tensor(leaf) else leaf) for leaf in leaves]


def restore_state(initial: Any, leaves: Sequence[np.ndarray]) -> Any:
    """Puts arrays back into the structure of a server state.

    Args:
      initial: A state with the right structure, as from `process.initialize()`; its `weights` are
        the model's.
      leaves: The arrays, from `flatten_state`.

    Raises:
      RunError: If the number, types or ranks of the arrays do not match the state, or the shapes of
        the model's weights differ.
    """
    expected = flatten_state(initial)
    same = len(expected) == len(leaves) and all(
        a.dtype == b.dtype and a.ndim == b.ndim for a, b in zip(expected, leaves, strict=True)
    )
    if not same:
        raise RunError(
            "The checkpoint has a state whose structure differs from what this version of the "
            "method uses; choose another --experiment_name."
        )
    state = tf.nest.pack_sequence_as(initial, list(leaves))
    # Other parts of the state may grow during a run, so only the weights' shapes are compared.
    shapes, found = ([np.shape(w) for w in tf.nest.flatten(s.weights)] for s in (initial, state))
    if found != shapes:
        raise RunError(
            f"The checkpoint is of another model: its weights have shapes {found}, not {shapes}; "
            "choose another --experiment_name."
        )
    return state
