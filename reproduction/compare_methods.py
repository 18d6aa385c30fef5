"""Runs methods on one task, on the same seeds and clients: `simulation.compare`."""

import dataclasses
import difflib
import hashlib
import inspect
import itertools
import json
import math
import numbers
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tasks
import tff_algos
from reproduction import comparison, items, quantities, results, study, tuning
from reproduction import sweep as sweep_lib
from reproduction.items import Row, Setup
from reproduction.setups import TAKEN
from simulation import assembly, experiment_flags, run_hparams
from simulation.experiment_flags import Request
from simulation.measures import columns as columns_lib
from simulation.records import files
from tasks.task import Task
from tff_suite import command_line, writing
from tff_suite.hparams import HparamError, Settings

# What a call of `compare` asked for, in the folder of its table.
_ASKED = "asked.json"
_RATES = ("client_learning_rate", "server_learning_rate")
# Default number of points of learning rates to try.
_POINTS = 9
# Flags that `compare` itself sets.
_OF_COMPARE = ("algorithm", "client_datasets_random_seed", "experiment_name", "seed", "task")


def compare(
    *,
    task: str | Task,
    algorithms: Sequence[str] | Mapping[str, Mapping[str, Any]],
    seeds: int | Sequence[int] = 5,
    model: Any = None,
    metric: str | None = None,
    tune: str | None = None,
    budget: int = _POINTS,
    max_minutes: float | None = None,
    root_output_dir: str | os.PathLike = "results/compare",
    fresh: bool = False,
    jobs: int | None = None,
    **settings: Any,
) -> comparison.Comparison:
    """Runs methods on a task, on the same seeds and clients, and compares them.

    When you call it again, it reuses completed runs and resumes interrupted ones. Runs with other
    settings, code or data get their own folders, and so does the table of another call.

    Args:
      task: Name of a task, or a `tasks.task.Task`.
      algorithms: Names of methods; or row → settings of this row alone. The first word of a row's
        name is its method, unless its settings include `algorithm`.
      seeds: Number of seeds (1, 2, …), or the seeds themselves. Each is used as `seed` and as
        `client_datasets_random_seed`.
      model: A Keras model that replaces the task's, or a function from a seed to such a model.
      metric: Column of metrics.csv to compare; by default that of the task's primary metric.
      tune: `rates` searches the learning rates for which a method has no default, by validation
        loss on the first seed: `budget` points from 0.001 to 10, by successive halving. `None`
        takes the rates in `settings`.
      budget: Number of points to try for each method.
      max_minutes: Minutes for all runs together, shared equally; `None` for no limit. The same call
        resumes what was cut short, and the caveats say how many rounds are done.
      root_output_dir: Folder of all runs. The table goes to `<task>/comparison` in it; if that has
        the table of another call, to `<task>/comparison.` and a digest (`Comparison.folder`).
      fresh: Whether to run all anew; earlier runs are kept beside the new ones.
      jobs: Number of runs at a time, each in its own process; needs a registered task. Your own
        task or method needs a module, and `flagfile` the path of a file with `--import=<module>`.
        By default runs follow one another in this process.
      **settings: Flags of a run, as for `simulation.run`. A flag is left out for methods that do
        not use it, and the caveats say so.

    Raises:
      HparamError: If settings are wrong.
      ReproduceError: If runs fail, or `max_minutes` ended the search of rates.
      RunError: If the table cannot be written. The runs are kept, and the same call reuses them.
      tasks.task.DataError: If data is missing or damaged.
    """
    if max_minutes is not None and (
        not isinstance(max_minutes, numbers.Real) or not 0 < max_minutes < math.inf
    ):
        raise HparamError(f"max_minutes={max_minutes!r} must be a finite number above 0.")
    objects = {"model": model} if model is not None else {}
    if isinstance(task, Task):
        objects["task"] = task
    if jobs is not None and objects:
        raise HparamError("jobs does not support a task or model made in Python; leave it out.")
    if tune not in (None, "rates"):
        raise HparamError(f"tune={tune!r} must be 'rates' or None.")
    if not _whole(budget) or budget < 1:
        raise HparamError(f"budget={budget!r} must be a whole number of points, at least 1.")
    of_seeds = _seeds(seeds)
    for flag in _OF_COMPARE:
        if flag in settings:
            raise HparamError(f"compare sets {flag} itself; leave it out.")
    named: Mapping[str, Mapping[str, Any]] = (
        algorithms if isinstance(algorithms, Mapping) else {a: {} for a in algorithms}
    )
    if isinstance(algorithms, str):
        raise HparamError(f"algorithms={algorithms!r} must be a list: pass [{algorithms!r}].")
    if not named:
        raise HparamError("algorithms must name at least one method.")
    _check_rows(named)
    given = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in settings.items()}
    rows, grid, left_out, requests = {}, {}, {}, []
    for row, own in named.items():
        method = {"algorithm": row.split(" ")[0], "task": task if isinstance(task, str) else None}
        tried = _rates_of({**method, **own}) if tune else []
        rate = dict.fromkeys(tried, 1.0)
        flags, unused, request = _used({**method, **own, **rate}, given, tried, objects)
        requests.append(request)
        for flag in unused:
            left_out.setdefault(flag, []).append(row)
        flags = {k: v for k, v in flags.items() if v is not None and k not in tried}
        rows[row] = Row(row, "", {}, flags)
        if tried:
            grid[row] = {flag: {"log": [tuning.LOWEST, tuning.HIGHEST]} for flag in tried}
    _check_importable(requests, jobs)
    for flag, some in left_out.items():
        if len(some) == len(rows):
            raise HparamError(f"{flag} is used by none of {', '.join(rows)}.")
    metric = metric or _first_metric(requests[0])
    share = quantities.of_column(metric).factor != 1
    label = quantities.of_column(metric).label
    # `runs.csv` has columns of its own.
    column = {"name": metric if label in TAKEN else label, "metric": metric}
    place = pathlib.Path(root_output_dir).expanduser().absolute()
    name = requests[0].run["task"]
    setup = Setup(
        paper="",
        item=name,
        name="comparison",
        home=place,
        title=f"{name}, {requests[0].run['total_rounds']} rounds",
        rounds=requests[0].run["total_rounds"],
        seeds=of_seeds,
        rows=rows,
        columns=[{**column, "scale": 100} if share else column],
        grid=grid,
        sample={"points": int(budget)} if tune else {},
        search={"factor": 3, "restart": True} if tune else {},
        selection={**items.OWN_SELECTION, "seeds": of_seeds[:1]} if tune else {},
        curve=metric,
        folder=name,
        published="comparison",
        objects=objects,
    )
    resources = sweep_lib.Resources(here=jobs is None, jobs=jobs)
    asked = study.Study(
        setup, list(rows), of_seeds, str(place), resources, max_minutes=max_minutes, fresh=fresh
    )
    outcome = asked.carry_out()
    methods = [request.run["algorithm"] for request in requests]
    told = [
        f"{flag} is not used by {', '.join(some)}."
        for flag, some in left_out.items()
        if not flag.startswith(tuple(f"{method}_" for method in methods))
    ]
    outcome = dataclasses.replace(outcome, told=[*outcome.told, *told])
    with files.explained(str(asked.folder)):
        folder = _folder_of(outcome, requests, asked.folder)
        results.write_csv(folder / "results.csv", outcome.records())
        found = comparison.write(outcome, folder)
    command_line.say(f"The table is in {folder} (table.tex, results.csv, runs.csv).")
    return found


def _check_rows(named: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses rows that are not names with settings, and settings that all rows share."""
    shared = {*_OF_COMPARE, "total_rounds"} - {"algorithm"}
    for row, own in named.items():
        if not isinstance(row, str) or not isinstance(own, Mapping):
            raise HparamError(
                f"algorithms: {row!r:.80} must be a method's name, or a row's name with a "
                "dictionary of its settings."
            )
        for flag in sorted(shared & own.keys()):
            raise HparamError(
                f"algorithms: {row} cannot have its own {flag}, which all rows share."
            )


def _check_importable(requests: Sequence[Request], jobs: int | None) -> None:
    """Refuses the user's own methods and tasks that the processes of `jobs` would not know."""
    for request in requests if jobs is not None else ():
        method, task = request.run["algorithm"], request.run["task"]
        functions = {method: tff_algos.get(method).builder, task: tasks.get(task).loader}
        for name, function in functions.items():
            module = function if isinstance(function, str) else getattr(function, "__module__", "")
            if not request.run["import"] and not module.startswith(("tff_algos.", "tasks.")):
                raise HparamError(
                    f"jobs: other processes do not know your own {name}. Leave jobs out, or pass "
                    "flagfile, the path of a file with --import=<module>."
                )


def _whole(value: Any) -> bool:
    """Returns whether a value is a whole number, of any type but bool."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        return False
    return math.isfinite(value) and bool(value == int(value))


def _seeds(seeds: Any) -> list[int]:
    """Returns the seeds that a number of seeds, or seeds themselves, stand for."""
    if np.iterable(seeds) and not isinstance(seeds, str):
        seeds = list(seeds)
    if _whole(seeds):
        found = list(range(1, int(seeds) + 1))
    elif isinstance(seeds, str) or not np.iterable(seeds) or not all(map(_whole, seeds)):
        raise HparamError(
            f"seeds={seeds!r} must be a number of seeds, such as 5, or a list of whole numbers."
        )
    else:
        found = list(dict.fromkeys(map(int, seeds)))
    if not found:
        raise HparamError("seeds must name at least one seed.")
    return found


def _folder_of(outcome: Any, requests: Any, first: Any) -> pathlib.Path:
    """Returns where the table of a call goes, and notes there what was asked.

    That is `first`, or `first.<digest>` if `first` has the table of another call or of other runs.
    """
    left_out = run_hparams.MAY_CHANGE - {"total_rounds"}
    asked = {
        "columns": outcome.setup.columns,
        "settings": {
            row: {k: v for k, v in request.in_force.items() if k not in left_out}
            for row, request in zip(outcome.setup.rows, requests, strict=True)
        },
        "tuned": outcome.setup.grid,
        "runs": sorted(run.name for run in outcome.runs),
    }
    text = f"{json.dumps(asked, indent=1, sort_keys=True)}\n"
    folder = first
    if (first / comparison.COLUMNS).exists() and _text_of(first / _ASKED) != text:
        folder = first.with_name(f"{first.name}.{hashlib.sha256(text.encode()).hexdigest()[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    writing.write_atomically(folder / _ASKED, text.encode())
    return folder


def _text_of(path: pathlib.Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return None


def _rates_of(settings: Settings) -> list[str]:
    """Returns the learning rates to search: those for which a method has no default.

    A server rate of 1 is part of FedAvg. Searching it beside the client rate would only waste
    points, since the two act through their product.
    """
    method = settings["algorithm"]
    spec = tff_algos.get(method) if method in tff_algos.names() else None
    if spec is None:
        return []  # Checking the settings reports it and lists the known methods.
    needs_server_rate = spec.has_server_step and spec.server_learning_rate is None
    needed = spec.client_learning_rate is None, needs_server_rate
    return list(itertools.compress(_RATES, needed))


def _used(own, shared, tried, objects):
    """Returns a row's flags, the shared ones that its method does not use, and the request.

    A method does not use a flag if the settings are refused with it, by an error that names it, and
    accepted without it.

    Raises:
      HparamError: If settings are wrong.
    """

    def request(flags):
        flags = {k: v for k, v in flags.items() if k not in objects}
        return experiment_flags.from_python(flags, **objects)

    unused: list[str] = []
    while True:
        flags = {**{k: v for k, v in shared.items() if k not in unused}, **own}
        try:
            return flags, unused, request(flags)
        except HparamError as e:
            for flag in shared:
                if flag in unused or flag in tried or not _names(str(e), flag):
                    continue
                if str(e).startswith(f"Unknown flag --{flag}."):
                    own_names = inspect.signature(compare).parameters
                    near = difflib.get_close_matches(flag, own_names, n=1, cutoff=0.75)
                    if near:
                        told = f"compare has no argument {flag}. Did you mean {near[0]}?"
                        raise HparamError(told) from e
                    raise
                try:
                    request({k: v for k, v in flags.items() if k != flag})
                except HparamError as other:
                    if _names(str(other), flag):
                        continue
                unused.append(flag)
                break
            else:
                raise


def _names(text: str, flag: str) -> bool:
    return re.search(rf"\b{re.escape(flag)}\b", text) is not None


def _first_metric(request: Request) -> str:
    own = request.objects.get("task")
    if own is None and tasks.get(request.run["task"]).metrics_with(request.task) is None:
        own = assembly.load(request)  # Its data decide on its metrics.
    if own is not None:
        if own.test is None and own.central_test is None:
            raise HparamError(
                "The task has no test examples to compare by; add some, or pass metric, such as "
                "validation/loss with validation_fraction."
            )
        return f"eval/{own.primary_metric}"
    known = [name for name in columns_lib.in_rounds(request).names if name.startswith("eval/")]
    return next((name for name in known if name != "eval/loss"), "eval/loss")
