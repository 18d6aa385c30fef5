"""What an item shows of its runs: columns that must be among those which the runs write.

What settings tell is checked before the runs. What only a run tells (metrics of a task or method of
one's own that does not declare them, whether clients have tests) is checked when the first run of a
row has ended, before others begin.
"""

import difflib
from collections.abc import Sequence
from typing import NamedTuple

from reproduction import items
from reproduction.items import PlannedRun, ReproduceError, Setup
from simulation.measures import columns
from simulation.records import metrics_csv

# Kind of figure → the column of metrics.csv that it is of.
OF_FIGURES = {
    "best_rates": "eval/loss",
    "direction": "train/direction_norm",
    "improved": columns.IMPROVED,
}


class Shown(NamedTuple):
    """A column that an item shows or compares.

    Attributes:
      place: Where the item has it.
      column: The column; of one that ends in `/` any that begins so.
      rows: The rows that it is shown of.
      by: Which of them must write it: `all`; `some`, at least one; `able`, all whose settings let
        them, at least one.
      of: `rounds` of metrics.csv, the `final` model's in it, or `clients` of client_metrics.csv.
    """

    place: str
    column: str
    rows: Sequence[str]
    by: str
    of: str = "rounds"


def shown(setup: Setup) -> list[Shown]:
    """Returns the columns that a set-up shows of its rows."""
    found, rows = [], list(setup.rows)
    for column in setup.columns:
        of = "rounds" if {"last_rounds", "best"} & column.keys() else "final"
        found.append(Shown(f"columns.{column['name']}", column["metric"], rows, "able", of))
    wide = [row for row in rows if len(setup.points(row)) > 1]
    if wide:
        found.append(Shown("selection.metric", setup.selection["metric"], wide, "all"))
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
    """Refuses a set-up of which runs do not write what it shows."""

    def __init__(self, setup: Setup):
        """Initialises for a set-up."""
        self._setup = setup
        self._shown = shown(setup)
        # Row → the columns of its first run that has ended, by where they are.
        self._ended: dict[str, dict[str, Sequence[str]]] = {}

    def before(self) -> None:
        """Checks what settings tell, of each row those of its grid's first point.

        Raises:
          ReproduceError: If a column is none that the set-up's runs can write.
          HparamError: If the flags of a row are wrong.
        """
        setup = self._setup
        # Also those that are not asked for: what only they write is no mistake.
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
                    f"{setup.item} {setup.name}: {one.place}: {one.column} is of the rounds and "
                    "not of the final model: set last_rounds or best beside it."
                )
            self._shown[at] = one._replace(rows=[r for r in one.rows if r not in lacking])

    def after(self, run: PlannedRun) -> None:
        """Checks what a run has written that has ended; of each row the first one is looked at.

        Raises:
          ReproduceError: If a column is not there.
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
            # What is a ratio to nothing is left out.
            if lacking and not few and one.column not in columns.NOISE:
                self._refuse(one, lacking)

    def _refuse(self, one, lacking):
        """Refuses a column; `lacking` is of the rows that lack it what they have."""
        row = next(iter(lacking))
        near = difflib.get_close_matches(one.column, lacking[row], n=3)
        meant = f"the nearest are {', '.join(near)}" if near else "docs/metrics.md has them"
        file = "client_metrics.csv" if one.of == "clients" else "metrics.csv"
        raise ReproduceError(
            f"{self._setup.item} {self._setup.name}: {one.place}: {one.column} is no column of "
            f"{file} in runs of {row}; {meant}."
        )


def _may_be(column, known) -> bool:
    if column.endswith("/"):
        return any(name.startswith(column) for name in (*known.names, *known.beginnings))
    return known.may_have(column)


def _is_in(column, written) -> bool:
    if column.endswith("/"):
        return any(name.startswith(column) for name in written)
    return column in written
