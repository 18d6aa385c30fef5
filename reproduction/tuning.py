"""Searches for learning rates: `--client_learning_rate=tune`.

For one rate, the search tries nine values from 0.001 to 10, half a decade apart. For both rates, it
tries 27 pairs: a quasi-random sample of the same ranges on a log scale (`reproduction.points`).
Successive halving (`reproduction.search`) compares them. All do a ninth (for pairs a 27th) of the
run's rounds. The best third do three times as many, and so on up to a third of the run's rounds.
The lowest mean validation loss over the last evaluations wins. The search takes at most about 1.7
times (for pairs 2.3 times) the rounds of the run. Test data are not used.

The search's runs are in the folder `<experiment_name>.tuning` beside the run's own, and resume like
any other run. If settings, code or data have changed, the search starts anew, and the old folder is
kept as `<experiment_name>.tuning.replaced-N`. `tried.csv` lists the points tried. A run that has
begun keeps its rates.
"""

import csv
import dataclasses
import io
import math
import os
import pathlib
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from reproduction import points, results, run_folders, search
from reproduction.items import format_value, other_settings
from simulation import experiment, experiment_flags, identity
from simulation.caller import Caller
from simulation.errors import DivergedError, RunError
from simulation.experiment_flags import Request
from simulation.records import files, outputs, progress
from tff_suite import writing
from tff_suite.hparams import Settings

LOWEST, HIGHEST = 1e-3, 10.0
_VALUES = [float(f"{rate:.3g}") for rate in np.geomspace(LOWEST, HIGHEST, 9)]
_PAIRS = 27
_FACTOR = 3
_SELECTION = {"metric": "validation/loss", "last_rounds": 5}
_VALIDATION_FRACTION = 0.1
# Settings of the search's runs: these flags only apply to the user's own run.
_OFF = {
    "evaluate_all_local_data": False,
    "evaluate_classes": False,
    "evaluate_test": False,
    "fresh": False,
    "max_minutes": None,
    "mlflow_uri": None,
    "profile": None,
    "stop_at": None,
    "wandb_project": None,
}


class StoppedError(Exception):
    """The search was stopped by `signal`, or by the time limit if `signal` is `None`."""

    def __init__(self, by: signal.Signals | None):
        super().__init__()
        self.signal = by


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """A run of the search; see `reproduction.items.PlannedRun`."""

    row: str
    point: Settings
    folder: pathlib.Path
    rounds: int
    request: Request

    def read(self) -> run_folders.RunFolder:
        """Returns a reader of the run's folder."""
        return run_folders.opened(self.folder)


@dataclasses.dataclass(frozen=True)
class _Setup:
    """The fields of a set-up that `search.search` reads."""

    tried: Sequence[Settings]
    rounds: int
    search: Mapping[str, Any]
    rows: Mapping[str, "_Setup"] = dataclasses.field(default_factory=dict)
    settings: Settings = dataclasses.field(default_factory=dict)
    selection: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _SELECTION)

    def points(self, row: str) -> list[dict[str, Any]]:
        """Returns the points of the only row."""
        del row
        return [dict(point) for point in self.tried]


def settle(request: Request, caller: Caller) -> Request:
    """Returns the settings of a run with `tune` replaced by the rates that a search chooses.

    Args:
      request: The settings; `tune` names the rates.
      caller: How to communicate with the command or program that started the run.

    Raises:
      DivergedError: If the run diverges with every rate.
      StoppedError: If a signal or `max_minutes` ended the search; the next start continues it.
      HparamError: As `simulation.experiment.run`.
      RunError: As `simulation.experiment.run`.
      tasks.task.DataError: As `simulation.experiment.run`.
    """
    run = request.run
    folder = os.path.join(run["root_output_dir"], run["experiment_name"])
    place = place_of(folder)
    if run["fresh"]:
        set_aside(place)
    else:
        recorded = outputs.read_json(os.path.join(folder, "hparams.json")) or {}
        kept = {flag: recorded.get("flags", {}).get(flag) for flag in _fixed(request)}
        if all(isinstance(kept[flag], float) for flag in request.tune):
            caller.say(f"Using {_told(kept, request.tune)}, with which {folder} was begun.")
            return _settled(request, kept)
    fixed = {}
    if "validation_fraction" in _fixed(request):
        fixed["validation_fraction"] = _VALIDATION_FRACTION
        caller.say(
            f"Holding out {_VALIDATION_FRACTION:.0%} of each client's training examples as "
            "validation data (--validation_fraction)."
        )
    chosen = _search(_settled(request, fixed), request.tune, place, caller)
    return _settled(request, {**fixed, **chosen})


def place_of(folder: str | os.PathLike) -> str:
    """Returns the folder of the search for a run in `folder`."""
    return f"{os.fspath(folder)}.tuning"


def set_aside(place: str) -> str | None:
    """Moves the folder of a search aside, if there is one.

    Returns:
      Its new path.

    Raises:
      RunError: If it cannot be moved, or another process uses it.
    """
    with files.explained(place):
        if not os.path.isdir(place):
            return None
        for found in [entry for entry in os.scandir(place) if entry.is_dir()]:
            with outputs.ExperimentFolder(place, found.name):
                pass  # No other process has locked it.
        kept = outputs.free_place(place)
        os.rename(place, kept)
    return kept


def _settled(request: Request, settings: Settings) -> Request:
    return dataclasses.replace(experiment_flags.with_settings(request, **settings), tune=())


def _fixed(request: Request) -> list[str]:
    """Returns the flags that tuning sets: the rates, and a validation fraction if there is none."""
    own = getattr(request.objects.get("task"), "validation", None)
    held_out = request.run["validation_fraction"] or request.run["validation_clients"] or own
    return [*request.tune, *([] if held_out else ["validation_fraction"])]


def _search(request: Request, flags: Sequence[str], place: str, caller: Caller) -> dict[str, Any]:
    started, rounds = time.monotonic(), request.run["total_rounds"]
    if len(flags) == 1:
        tried = [{flags[0]: rate} for rate in _VALUES]
    else:
        tried = points.of_space({flag: {"log": [LOWEST, HIGHEST]} for flag in flags}, _PAIRS)
    first, whole = math.ceil(rounds / len(tried)), math.ceil(rounds / _FACTOR)
    of_search = {"factor": _FACTOR, "rounds": first, "restart": True}
    setup = _Setup(tried, whole, of_search, rows={"": _Setup(tried, whole, {})})
    off = {
        **_OFF,
        "root_output_dir": place,
        # Otherwise a short run might not be evaluated after its start.
        "rounds_per_eval": min(request.run["rounds_per_eval"], max(1, first // 5)),
    }
    records: list[dict[str, Any]] = []

    def plan(by_row, reached):
        return [_trial(request, point, reached, whole, place, off) for point in by_row[""]]

    every = [
        trial
        for rounds in search.rungs(len(tried), whole, _FACTOR, first)
        for trial in plan({"": tried}, rounds)
    ]
    change = _change({trial.folder: trial for trial in every}.values())
    if change:
        kept = set_aside(place)
        caller.say(
            f"The search in {place} was of other {change}. It is kept as {kept}, and a new one "
            "begins."
        )

    def execute(trials):
        for trial in trials:
            late = request.run["max_minutes"]
            if late is not None and time.monotonic() - started >= 60 * late:
                raise StoppedError(None)
            _run(trial, caller)
            value = results.selection_value(trial, _SELECTION, trial.rounds)
            records.append({"rounds": trial.rounds, **trial.point, "validation/loss": value})
            caller.say(
                f"{_told(trial.point, flags)}: validation loss {value:.4g} after "
                f"{trial.rounds} rounds"
            )

    caller.say(
        f"Tuning {' and '.join(flags)}: {len(tried)} points from {LOWEST:g} to {HIGHEST:g}, "
        f"{first} rounds each; the best third continues, up to {whole} rounds. Runs: {place}"
    )
    found = search.search(setup, [""], plan, execute)[""]
    last = [r for r in records if r["rounds"] == found.rungs[-1][0]]
    if not any(math.isfinite(record["validation/loss"]) for record in last):
        of_first = outputs.read_json(os.path.join(every[0].folder, outputs.DIVERGED))
        why = f" Of {_told(every[0].point, flags)}: {of_first['reason']}" if of_first else ""
        raise DivergedError(
            f"Training diverged with every rate from {LOWEST:g} to {HIGHEST:g}; see {place}.{why}"
        )
    path = os.path.join(place, "tried.csv")
    _write(path, records, found.point)
    caller.say(f"Chosen: {_told(found.point, flags)}. All points tried: {path}")
    if len(flags) == 1 and found.point[flags[0]] in (_VALUES[0], _VALUES[-1]):
        caller.warn(
            f"{_told(found.point, flags)} is at the end of the range; also try values beyond it."
        )
    return dict(found.point)


def _trial(
    request: Request, point: Settings, rounds: int, whole: int, place: str, off: Settings
) -> _Trial:
    name = "_".join(f"{flag}={format_value(value)}" for flag, value in point.items())
    if request.first_other_plan(rounds, rounds, whole) is not None:
        # Its rounds depend on the total number of rounds, so it cannot be resumed for more.
        name += f"_rounds={rounds}"
    settings = {**off, **point, "total_rounds": rounds, "experiment_name": name}
    asked = experiment_flags.with_settings(request, **settings)
    return _Trial("", point, pathlib.Path(place, name), rounds, asked)


def _change(trials: Iterable[_Trial]) -> str:
    """Says in what trials of an earlier start differ from those of this one; else blank."""
    known: dict[str, identity.Looked] = {}
    for trial in trials:
        try:
            recorded = trial.read().recorded
        except RunError:
            continue  # The trial itself will report the damage.
        if recorded is None:
            continue
        flags, before = recorded.get("flags"), recorded.get("identity")
        if not isinstance(flags, dict) or not isinstance(before, dict):
            return "versions of the suite"
        asked = trial.request
        other = other_settings(asked, flags)
        if asked.run["runtime"] not in ("auto", flags.get("runtime")):
            other.append("runtime")
        given = recorded.get("objects") or {}
        other += [name for name in ("task", "model") if (name in given) != (name in asked.objects)]
        if other:
            return f"settings ({', '.join(dict.fromkeys(other))})"
        now = identity.look(asked, before, known).identity
        changes = identity.differences(before, now, history=identity.history_of(asked))
        if asked.run["accept_code_changes"]:
            changes = [change for change in changes if change.kind == "data"]
        if changes:
            return f"{identity.what(changes)} ({identity.in_words(changes)})"
    return ""


class _NoProgress(progress.ProgressInPython):
    """Progress without a bar and without warnings."""

    def warn(self, text: str) -> None:
        """Does nothing: the run with the chosen rates shows its own warnings."""


def _run(trial: _Trial, caller: Caller) -> None:
    """Carries out a trial, unless an earlier start has already taken it as far or further."""
    if trial.folder.exists():
        found = trial.read()
        ended = found.summary
        intact = ended is None or (
            outputs.is_intact(ended) and ended.get("run_id") == (found.recorded or {}).get("run_id")
        )
        done = ended["rounds"] if ended else 0
        # What is damaged is reported below.
        if intact and (done >= trial.rounds or found.last_round > trial.rounds):
            return
    quiet = dataclasses.replace(
        caller,
        say=lambda text: None,
        warn=lambda text: None,
        progress=lambda done, total: _NoProgress(done, total, shown=False),
        takes_weights=False,
        callbacks=(),
        evaluators={},
    )
    try:
        stopped_by = experiment.carry_out(trial.request, quiet).stopped_by
    except DivergedError:
        return
    if stopped_by is not None:
        raise StoppedError(stopped_by)


def _write(path: str | os.PathLike, records: Sequence[Mapping[str, Any]], chosen: Settings) -> None:
    last = max(record["rounds"] for record in records)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*records[0], "chosen"], lineterminator="\n")
    writer.writeheader()
    for record in records:
        is_chosen = record["rounds"] == last and record.items() >= chosen.items()
        writer.writerow({**record, "chosen": int(is_chosen)})
    writing.write_atomically(pathlib.Path(path), text.getvalue().encode())


def _told(settings: Settings, flags: Sequence[str]) -> str:
    return ", ".join(f"{flag}={format_value(settings[flag])}" for flag in flags)
