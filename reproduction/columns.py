"""Checks that runs write the columns that an item shows.

Most of this is checked from settings before any run. Some facts need a run: whether clients have
test examples, and the metrics of a user's own task or method that does not declare them. These are
checked when the first run of a row has ended, before others begin.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from reproduction import items, results
from reproduction.items import PlannedRun, ReproduceError, Setup
from simulation.measures import columns
from simulation.records import metrics_csv

# Kind of figure → the column of metrics.csv that it shows.
OF_FIGURES = {
    "best_rates": "eval/loss",
    "direction": "train/direction_norm",
    "improved": columns.IMPROVED,
}
_SELECTION = "selection.metric"


class Shown(NamedTuple):
    """A column that an item shows or compares.

    Attributes:
      place: Field of the item that names it.
      column: The column; if it ends in `/`, any column with this prefix.
      rows: The rows for which it is shown.
      by: Which rows must write it: `all`; `some`, at least one; `able`, all whose settings allow
        it, and at least one.
      of: `rounds` for metrics.csv, `final` for the final model's metrics, `clients` for
        client_metrics.csv.
    """

    place: str
    column: str
    rows: Sequence[str]
    by: str
    of: str = "rounds"


def shown(setup: Setup) -> list[Shown]:
    """Returns the columns that a set-up shows for its rows."""
    found, rows = [], list(setup.rows)
    for column in setup.columns:
        of = "rounds" if {"last_rounds", "best"} & column.keys() else "final"
        found.append(Shown(f"columns.{column['name']}", column["metric"], rows, "able", of))
    wide = [row for row in rows if len(setup.points(row)) > 1]
    if wide:
        found.append(Shown(_SELECTION, setup.selection["metric"], wide, "all"))
    if setup.curve:
        found.append(Shown("curve", setup.curve, rows, "some"))
    for figure in setup.figures:
        kind = figure["kind"]
        if isinstance(figure.get("column"), str):
            of = "clients" if kind == "density" else "rounds"
            found.append(Shown(f"figures.{kind}", figure["column"], rows, "some", of))
        elif kind == "client_losses":
            found.append(Shown(f"figures.{kind}", metrics_csv.TRACKED, rows, "all"))
        elif kind in OF_FIGURES:
            found.append(Shown(f"figures.{kind}", OF_FIGURES[kind], rows, "some"))
    return found


class Check:
    """Refuses a set-up that shows columns which its runs do not write."""

    def __init__(self, setup: Setup):
        """Initialises for a set-up."""
        self._setup = setup
        self._shown = shown(setup)
        # Row → value of `Shown.of` → the columns of the row's first run that has ended.
        self._ended: dict[str, dict[str, Sequence[str]]] = {}

    def before(self) -> None:
        """Checks from settings alone, with the first point of each row's grid.

        Raises:
          ReproduceError: If the set-up's runs cannot write a column, or if it is unknown whether
            higher values of the selection's metric are better.
          HparamError: If the flags of a row are wrong.
        """
        setup = self._setup
        # All rows, even those that will not be run: a column that only they write is valid.
        points = {row: setup.points(row)[:1] for row in setup.rows}
        runs = items.planned_runs(setup, setup.rows, points, setup.seeds[:1], root="")
        requests = {run.row: run.request() for run in runs}
        rounds = {row: columns.in_rounds(request) for row, request in requests.items()}
        clients = {row: columns.of_clients(request) for row, request in requests.items()}
        for at, one in enumerate(self._shown):
            known = clients if one.of == "clients" else rounds
            lacking = {r: known[r].names for r in one.rows if not _may_be(one.column, known[r])}
            if len(lacking) == len(one.rows) or (lacking and one.by == "all"):
                self._refuse(one, lacking)
            if one.of == "final" and not columns.of_the_final_model(one.column):
                raise ReproduceError(
                    f"{setup.item} {setup.name}: {one.place}: {one.column} is measured in rounds, "
                    "not on the final model; also set last_rounds or best."
                )
            self._shown[at] = one._replace(rows=[r for r in one.rows if r not in lacking])
        if any(one.place == _SELECTION for one in self._shown):
            try:
                results.more_is_better(setup.selection)
            except ReproduceError as e:
                raise ReproduceError(f"{setup.item} {setup.name}: {e}") from e

    def after(self, run: PlannedRun) -> None:
        """Checks the columns of a run that has ended; only the first one of each row is read.

        Raises:
          ReproduceError: If a column is missing, or `results.column_value` fails.
        """
        found = run.read()
        if run.row in self._ended or found.summary is None:
            return
        self._ended[run.row] = {
            "final": list(found.summary["final"]),
            "rounds": found.columns,
            "clients": [] if found.clients is None else list(found.clients),
        }
        for one in self._shown:
            written = {r: self._ended[r][one.of] for r in one.rows if r in self._ended}
            lacking = {r: some for r, some in written.items() if not _is_in(one.column, some)}
            few = one.by == "some" and len(lacking) < len(one.rows)
            # Noise ratios may be missing: runs leave them out if the denominator is 0.
            if lacking and not few and one.column not in columns.NOISE:
                self._refuse(one, lacking)
        for column in self._setup.columns:
            results.column_value(run, column)

    def _refuse(self, one, lacking):
        """Refuses a column; `lacking` is row without it → the columns that the row has."""
        row = next(iter(lacking))
        near = difflib.get_close_matches(one.column, lacking[row], n=3)
        meant = f"the nearest are {', '.join(near)}" if near else "docs/metrics.md has them"
        file = "client_metrics.csv" if one.of == "clients" else "metrics.csv"
        raise ReproduceError(
            f"{self._setup.item} {self._setup.name}: {one.place}: {one.column} is not a column "
            f"of {file} in runs of {row}; {meant}."
        )


def _may_be(column: str, known: Any) -> bool:
    if column.endswith("/"):
        return any(name.startswith(column) for name in (*known.names, *known.beginnings))
    return known.may_have(column)


def _is_in(column: str, written: Iterable[str]) -> bool:
    if column.endswith("/"):
        return any(name.startswith(column) for name in written)
    return column in written
