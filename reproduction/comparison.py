"""Compares methods on the same seeds and clients, from Python or from an item's folder.

`simulation.compare` runs methods on a task and returns a `Comparison`; `reproduce.py --compare`
reads one from the folder of an item's results. Both compare only the chosen point of each grid, by
the numbers in the item's table.
"""

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
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import tasks
import tff_algos
from reproduction import (
    items,
    latex,
    plots,
    quantities,
    results,
    run_folders,
    statistics,
    study,
    tuning,
)
from reproduction import sweep as sweep_lib
from reproduction.items import ReproduceError, Row, Setup
from reproduction.looks import displayed
from reproduction.setups import TAKEN
from simulation import assembly, experiment_flags, run_hparams
from simulation.errors import RunError
from simulation.experiment_flags import Request
from simulation.measures import columns as columns_lib
from simulation.records import files
from tasks import directions
from tasks.task import Task
from tff_suite import command_line, figures, tables, writing
from tff_suite.hparams import HparamError, Settings

# File beside runs.csv in an item's folder, which describes the columns for later comparisons.
COLUMNS = "columns.json"
# What a call of `compare` asked for, in the folder of its table.
_ASKED = "asked.json"
_RATES = ("client_learning_rate", "server_learning_rate")
# Default number of points of learning rates to try.
_POINTS = 9
# Flags that `compare` itself sets.
_OF_COMPARE = ("algorithm", "client_datasets_random_seed", "experiment_name", "seed", "task")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Results of methods that were run on the same seeds.

    Attributes:
      title: Name of the task or set-up, and rounds.
      columns: Columns of the table, see docs/items.md; the first one is compared by default.
      runs: A row per run of a chosen row: `row`, `seed`, settings, `rounds`, a column for each of
        `columns`, and `run`, its folder.
      caveats: Sentences that must accompany every table.
      folder: Folder of tables and figures.
      settings: Columns of `runs` that hold the settings chosen for each row.
      published: Row → column → the published value, if any.
    """

    title: str
    columns: Sequence[Mapping[str, Any]]
    runs: pd.DataFrame
    caveats: Sequence[str]
    folder: str
    settings: Sequence[str] = ()
    published: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    @property
    def methods(self) -> dict[str, str]:
        """Row → its name as its paper writes it."""
        return displayed(list(dict.fromkeys(self.runs.row)))

    def column(self, name: str | None = None) -> Mapping[str, Any]:
        """Returns a column of the table, the first one by default.

        Raises:
          RunError: If the table does not have it.
        """
        for column in self.columns:
            if name in (None, column["name"], column["metric"]):
                return column
        known = ", ".join(column["name"] for column in self.columns)
        raise RunError(f"There is no column {name} in {self.folder}; it has {known}.")

    def values(self, column: str | None = None) -> dict[str, dict[int, float]]:
        """Returns row → seed → value of a column; NaN where a run diverged."""
        name = self.column(column)["name"]
        found: dict[str, dict[int, float]] = {}
        for row, seed, value in zip(
            self.runs.row, self.runs.seed, self.runs[name].astype(float), strict=True
        ):
            found.setdefault(row, {})[int(seed)] = value
        return found

    def pairs(self, column: str | None = None) -> list[statistics.Pair]:
        """Returns the difference of each method to each earlier one, paired over seeds and clients.

        Args:
          column: Name of a column of the table; its first one by default.
        """
        chosen = self.column(column)
        values = self.values(column)
        clients, weights = _of_clients(self.runs, chosen) if values else ({}, {})
        return statistics.compare(values, self.better(column), clients, weights)

    def better(self, column: str | None = None) -> bool | None:
        """Returns whether higher values of a column are better; `None` if that is unknown.

        The column's own `higher_is_better` comes first, then the direction of the task's primary
        metric, by which its runs recorded their best round, then the metric's name.

        Args:
          column: Name of a column of the table; its first one by default.
        """
        chosen = self.column(column)
        if "higher_is_better" in chosen:
            return chosen["higher_is_better"]
        for folder in self.runs.run:
            known = _of_best_round(run_folders.opened(folder), chosen)
            if known is not None:
                return known
        return results.higher_is_better(chosen)

    def table(self, column: str | None = None) -> pd.DataFrame:
        """Returns a row per method: mean of each column over seeds with its 95 % interval.

        Seeds without a value, such as diverged runs, are left out of `seeds` and of the mean.

        Args:
          column: Name of a column; all by default.
        """
        rows = []
        shown = self.columns if column is None else [self.column(column)]
        for row, name in self.methods.items():
            seeds = len(latex.finished(self, row, shown[0]["name"]))
            line: dict[str, Any] = {"method": name, "seeds": seeds}
            for one in shown:
                found = statistics.interval(latex.finished(self, row, one["name"]))
                line |= {one["name"]: found.mean, f"{one['name']} ±": found.high - found.mean}
            rows.append(line)
        return pd.DataFrame(rows).set_index("method")

    def differences(self, column: str | None = None) -> pd.DataFrame:
        """Returns `pairs` as a table: a row per pair, with intervals, p-values and wins."""
        names = self.methods
        rows = [
            {
                "difference": f"{names[pair.one]} - {names[pair.other]}",
                "seeds": len(pair.seeds),
                "mean": pair.difference.mean,
                "low": pair.difference.low,
                "high": pair.difference.high,
                "p (Holm)": pair.holm,
                "wins": pair.wins,
                "clients low": np.nan if pair.clients is None else pair.clients.low,
                "clients high": np.nan if pair.clients is None else pair.clients.high,
            }
            for pair in self.pairs(column)
        ]
        columns = ["difference", "seeds", "mean", "low", "high", "p (Holm)", "wins"]
        return pd.DataFrame(rows, columns=[*columns, "clients low", "clients high"])

    def plot(self, column: str | None = None, *, width: float | None = None) -> Figure:
        """Draws a column of metrics.csv over rounds: mean and standard deviation over seeds.

        As in the table, diverged seeds are left out, and a warning names them. A method of which
        all seeds diverged is drawn until the first one ends.

        Args:
          column: Name of a column of the table; its first one by default.
          width: Inches: 3.25 or 6.75 for one or two columns of a paper. `figures.save` then writes
            the figure in that size, with text of 8 points.
        """
        metric = self.column(column)["metric"]
        runs = [(run, run_folders.opened(run.run)) for run in self.runs.itertuples()]
        diverged = {run.run for run, found in runs if found.diverged and not _went_on(run)}
        kept = {run.row for run, _ in runs if run.run not in diverged}
        parts, left_out = [], {}
        for run, found in runs:
            if run.run in diverged and run.row in kept:
                left_out[self.methods[run.row], run.seed] = found
                continue
            rounds, values = found.values(metric)
            if _went_on(run):
                of_table = rounds <= run.rounds
                rounds, values = rounds[of_table], values[of_table]
            parts.append(
                pd.DataFrame({"round_num": rounds, "value": values}).assign(
                    method=run.row, seed=run.seed
                )
            )
        if left_out:
            told = "; ".join(run_folders.where_ended(left_out))
            warnings.warn(f"Not drawn, since they diverged: {told}.", RuntimeWarning, stacklevel=2)
        points = pd.concat(parts, ignore_index=True)
        return figures.fit(plots.curves(points, quantity=quantities.of_column(metric)), width)

    def to_latex(
        self, caption: str | None = None, label: str = "tab:comparison", rates: bool = False
    ) -> str:
        """Returns the table as LaTeX, ready to paste: see `reproduction.latex`.

        Args:
          caption: The caption; by default it describes the runs and the numbers.
          label: The label.
          rates: Whether to show the settings that were chosen for each method.
        """
        seeds = self.runs.groupby("row").seed.nunique()
        number = " to ".join(map(str, sorted({seeds.min(), seeds.max()})))
        words = "; ".join(map(self._in_words, self.columns))
        better = {column["name"]: self.better(column["name"]) for column in self.columns}
        unknown = [name for name, one in better.items() if one is None]
        bold = "; the best in bold" if len(unknown) < len(better) else ""
        if seeds.max() > 1:
            bold = bold and f"{bold}, those within its interval underlined"
            told = f"Mean over {number} seeds ± half a 95 % interval{bold}."
        else:
            told = f"One seed, so there are no intervals{bold}."
        if unknown:
            told += f" Whether more is better is unknown for {', '.join(unknown)}."
        caption = caption or f"{self.title}. {told} {words}."
        return latex.table(self, better, caption, label, list(self.settings) if rates else None)

    def report(self, column: str | None = None) -> str:
        """Returns the table and the differences, with their statistics explained, as Markdown."""
        chosen = self.column(column)
        lines = [f"## {self.title}: {self._in_words(chosen)}\n"]
        lines.append(tables.of_frame(self.table(column), 4))
        differences = self.differences(column)
        if len(differences):
            lines += ["\n## Differences, paired over seeds\n"]
            lines.append(tables.of_frame(differences, 3, index=False))
            lines.append(
                "\nIntervals are 95 %: `low` to `high` over seeds (Student's t), `clients` over "
                "the clients of the final models (bootstrap, weighted by test examples as the mean "
                "is). p is of the paired t-test, after Holm's correction over all pairs."
            )
        finite = [len(latex.finished(self, row, chosen["name"])) for row in self.methods]
        seeds = min(differences.seeds if len(differences) else filter(None, finite), default=0)
        lines.append(f"\n{statistics.told_of_seeds(seeds)}" if seeds else "\nNo seed has a value.")
        warned = [line for line in self.warnings(column) if line not in self.caveats]
        lines += [f"\n{line}" for line in [*warned, *self.caveats]]
        return "\n".join([*lines, f"\nFiles: {self.folder}"])

    def _in_words(self, column: Mapping[str, Any]) -> str:
        """Describes a column: its name, its metric and which of a run's values it takes."""
        if "last_rounds" in column:
            ended = self.runs[np.isfinite(self.runs[column["name"]].astype(float))]
            number = results.rounds_averaged(column, ended.get("rounds", ()))
            which = "last round" if number == 1 else f"mean of the last {number} rounds"
        elif "best" in column:
            which = "best round of each run"
        else:
            which = "final model"
        metric = results.metric_in_words(column, column["metric"])
        return f"{column['name']} ({metric}, {which})"

    def warnings(self, column: str | None = None) -> list[str]:
        """Returns sentences on what the numbers of a column cannot show.

        Args:
          column: Name of a column of the table; its first one by default.
        """
        name, told = self.column(column)["name"], []
        if self.better(column) is None:
            told.append(
                f"Whether higher or lower values of {name} are better is unknown: nothing is in "
                f"bold and wins are not counted. Set `higher_is_better` of the column in {COLUMNS}."
            )
        names = self.methods
        pairs = statistics.compare(self.values(column))  # Intervals over clients would take long.
        alike = [f"{names[p.one]} - {names[p.other]}" for p in pairs if p.without_spread]
        if alike:
            told.append(statistics.told_of_spread(name, alike))
        if number := sum(map(_went_on, self.runs.itertuples())):
            told.append(
                f"{number} of {len(self.runs)} runs have gone on since this table was made. Its "
                "numbers stand, but intervals over clients need the final models of then."
            )
        return told


def _went_on(run: Any) -> bool:
    """Returns whether a run of a table has done more rounds since the table was made."""
    rounds = getattr(run, "rounds", math.nan)
    return run_folders.opened(run.run).last_round > rounds


def _of_primary(column: Mapping[str, Any], primary: str, more: bool) -> bool | None:
    """Returns a column's direction by that of the primary metric; `None` if it is of another."""
    metric = column["metric"].rpartition("/")[2]
    of_clients = column["metric"].startswith("fairness") and metric.startswith(f"{primary}_")
    if metric != primary and (not of_clients or directions.is_spread(metric)):
        return None
    return more == results.keeps_order(column)


def _of_best_round(run: run_folders.RunFolder, column: Mapping[str, Any]) -> bool | None:
    """Returns a column's direction by the best round of a run, which it chose by the task's."""
    known = run_folders.primary_direction(run)
    return None if known is None else _of_primary(column, *known)


def _of_clients(
    runs: Any, column: Mapping[str, Any]
) -> tuple[dict[str, dict[int, dict[str, float]]], dict[str, dict[int, dict[str, float]]]]:
    """Returns row → seed → client → value of the final models, and the same of test examples.

    Runs are left out whose value is not the clients' mean, weighted by test examples: an interval
    over clients would be of another quantity.
    """
    metric = column["metric"].rpartition("/")[2]
    found: dict[str, dict[int, dict[str, float]]] = {}
    weights: dict[str, dict[int, dict[str, float]]] = {}
    if {"last_rounds", "best", "power"} & column.keys():
        return found, weights
    if not column["metric"].startswith("eval/"):
        return found, weights
    scale, offset = column.get("scale", 1), column.get("offset", 0)
    values_of_runs = runs[column["name"]].astype(float)
    for row, seed, folder, whole in zip(runs.row, runs.seed, runs.run, values_of_runs, strict=True):
        clients = run_folders.opened(folder).clients
        if clients is None or metric not in clients:
            continue
        clients = clients[clients[metric].notna()]
        values, examples = scale * clients[metric], clients.test_examples
        total = examples.sum()
        if not total:
            continue
        mean, size = ((some * examples).sum() / total for some in (values, values.abs()))
        # Runs add up examples in float32.
        if abs(mean - (whole - offset)) <= 1e-4 * size:
            for of_row, numbers_of in ((found, values), (weights, examples)):
                of_clients = dict(zip(clients.client_id, numbers_of, strict=True))
                of_row.setdefault(row, {})[int(seed)] = of_clients
    return found, weights


def write(outcome: study.Outcome, folder: pathlib.Path) -> Comparison:
    """Writes a set-up's results in the form that `read` reads, and its table as LaTeX.

    Args:
      outcome: The results.
      folder: The folder.
    """
    setup = outcome.setup
    records = results.grid_records(outcome.runs, setup, outcome.chosen)
    for record, run in zip(records, outcome.runs, strict=True):
        record["run"] = os.path.relpath(run.folder, folder)
    results.write_csv(folder / "runs.csv", records)
    begun = [
        (run, run.read())
        for run in outcome.runs
        if run.point == outcome.chosen[run.row] and len(run.read().rounds)
    ]
    ended = [(run, found) for run, found in begun if found.summary is not None]
    done = [(found.last_round, run.protocol_rounds) for run, found in ended or begun]
    published = results.published(setup)
    of_rows: dict[str, dict[str, float]] = {}
    for row in outcome.chosen:
        for column in setup.columns:
            line = published.get((setup.published_rows.get(row, row), column["name"]))
            if line is not None:
                of_rows.setdefault(row, {})[column["name"]] = float(line["value"])
    known: dict[str, Any] = {
        "title": _with_rounds(setup.title, setup.rounds, done),
        "columns": [{**column, **_declared(setup, column)} for column in setup.columns],
        "caveats": outcome.caveats(),
        "settings": list(
            dict.fromkeys(flag for point in outcome.chosen.values() for flag in point)
        ),
        "published": of_rows,
    }
    writing.write_atomically(folder / COLUMNS, f"{json.dumps(known, indent=1)}\n".encode())
    made = read(folder)
    assert made is not None  # It was just written.
    if told := [line for column in setup.columns for line in made.warnings(column["name"])]:
        known["caveats"] += told
        writing.write_atomically(folder / COLUMNS, f"{json.dumps(known, indent=1)}\n".encode())
        made = dataclasses.replace(made, caveats=known["caveats"])
    writing.write_atomically(folder / "table.tex", made.to_latex().encode())
    return made


def _declared(setup: Setup, column: Mapping[str, Any]) -> dict[str, bool]:
    """Returns `higher_is_better` of a column, if the set-up or its own task declares it."""
    known = None
    if "higher_is_better" in column:
        known = column["higher_is_better"]
    elif setup.higher_is_better is not None:
        known = setup.higher_is_better
    elif (own := setup.objects.get("task")) is not None:
        known = _of_primary(column, own.primary_metric, bool(own.higher_is_better))
    return {} if known is None else {"higher_is_better": known}


def _with_rounds(title: str, rounds: int, done: Sequence[tuple[int, int]]) -> str:
    """Returns a title with the rounds that runs did, if it names others or they did too few.

    Args:
      title: The title.
      rounds: Rounds of the set-up, which the title may name as "N rounds".
      done: For each run the rounds that it did and those of the protocol.
    """
    if not done:
        return title
    did, planned = (
        " to ".join(map(str, sorted({min(some), max(some)}))) for some in zip(*done, strict=True)
    )
    short = any(mine < whole for mine, whole in done)
    told = f"{did} of {planned} rounds" if short else f"{did} rounds"
    if f"{rounds} rounds" in title:
        return title.replace(f"{rounds} rounds", told)
    return f"{title}, {told}" if short else title


def read(folder: str | os.PathLike) -> Comparison | None:
    """Reads the comparison of an item's folder; `None` if it is not an item's folder.

    Raises:
      RunError: If its files are damaged.
    """
    place = pathlib.Path(folder)
    if not (place / COLUMNS).is_file():
        return None
    try:
        known = json.loads((place / COLUMNS).read_text())
        texts = ("row", "run", "device", "commit")
        runs = run_folders.read_table(place / "runs.csv", texts)
        runs["run"] = [str((place / path).resolve()) for path in runs.run]
        runs = runs[runs.chosen.astype(str) == "True"].drop(columns=["chosen"])
        for column in known["columns"]:
            # If all runs diverged, the file lacks the column.
            runs[column["name"]] = runs.get(column["name"], np.nan)
        return Comparison(runs=runs.reset_index(drop=True), folder=str(place), **known)
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as e:
        raise RunError(f"{place} is damaged: {' '.join(str(e).split())[:200]}") from e


def within(folder: str | os.PathLike) -> list[Comparison]:
    """Returns the comparisons of all items' results in a folder, at any depth, by path."""
    found = sorted(pathlib.Path(folder).rglob(COLUMNS))
    return [made for path in found if (made := read(path.parent)) is not None]


def over_tasks(
    comparisons: Sequence[Comparison], column: str | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compares methods over several tasks, by scores that are comparable between the tasks.

    Args:
      comparisons: One for each task.
      column: Name of the column that is the score; the first one of each by default.

    Returns:
      Two tables, each with 95 % bootstrap intervals: method → interquartile mean of its scores, and
      pair of methods → probability that a run of the first beats one of the second on a random
      task; NaN if it is unknown on some task whether higher scores are better.

    Raises:
      RunError: If there are no comparisons, if scores differ in scale or direction between tasks,
        or if a method does not have the same number of finite scores on every task.
    """
    if not comparisons:
        raise RunError("There is nothing to compare: pass a list with a comparison for each task.")
    columns = [c.column(column) for c in comparisons]
    better = [c.better(column) for c in comparisons]
    if {True, False} <= set(better) or len({one.get("scale", 1) for one in columns}) > 1:
        told = ", ".join(dict.fromkeys(one["name"] for one in columns))
        raise RunError(f"Cannot average different metrics: {told}; name a column of one kind.")
    methods = [row for row in comparisons[0].methods if all(row in c.methods for c in comparisons)]
    # float [tasks]
    sign = np.array([{True: 1, False: -1, None: np.nan}[one] for one in better])
    scores, signed = {}, {}
    for row in methods:
        of_tasks = [[*c.values(column)[row].values()] for c in comparisons]
        equal = len({len(some) for some in of_tasks}) == 1
        if not equal or not np.all(np.isfinite(np.array(of_tasks))):
            raise RunError(f"{row} does not have the same number of finite scores on every task.")
        scores[row] = np.array(of_tasks).T
        signed[row] = sign * scores[row]
    names = displayed(methods)
    means = {}
    for row, of_row in scores.items():
        found = statistics.interquartile_mean(of_row)
        means[names[row]] = found._asdict()
    improved = {
        f"{names[one]} > {names[other]}": statistics.probability_of_improvement(
            signed[one], signed[other]
        )._asdict()
        for i, one in enumerate(methods)
        for other in methods[:i]
    }
    return pd.DataFrame(means).T, pd.DataFrame(improved).T


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
) -> Comparison:
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
        found = write(outcome, folder)
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
    if (first / COLUMNS).exists() and _text_of(first / _ASKED) != text:
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


__all__ = ["Comparison", "ReproduceError", "compare", "over_tasks", "read"]
