"""Compares methods on the same seeds and clients, by an item's results.

`simulation.compare` runs methods on a task and returns a `Comparison`; `reproduce.py --compare`
reads one from the folder of an item's results. Both compare only the chosen point of each grid, by
the numbers in the item's table.
"""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction import (
    latex,
    plots,
    quantities,
    results,
    run_folders,
    statistics,
    study,
)
from reproduction.items import Setup
from reproduction.looks import displayed
from simulation.errors import RunError
from tasks import directions
from tff_suite import figures, tables, user_warnings, writing

# File beside runs.csv in an item's folder, which describes the columns for later comparisons.
COLUMNS = "columns.json"


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
            user_warnings.warn(f"Not drawn, since they diverged: {told}.")
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
        told = "One seed, so there are no intervals."
        if seeds.max() > 1:
            told = f"Mean over {number} seeds ± half a 95 % interval."
        if len(unknown) < len(better):
            underlined = "; underlined: within its interval" if seeds.max() > 1 else ""
            told += f" Bold: the best{underlined}."
        if unknown:
            told += f" Whether more is better is unknown for {', '.join(unknown)}."
        caption = caption or f"{self.title}. {told} Columns: {words}."
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
        return f"{column['name']} = {metric}, {which}"

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
