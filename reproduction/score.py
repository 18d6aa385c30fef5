"""The scoreboard's rules: when a number agrees with the published one, and what is counted.

The three constants of the rule of agreement are defined here and nowhere else.
"""

import csv
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from reproduction import items, results
from reproduction.items import Item, Setup

# Two numbers agree if they differ by at most this many standard errors of their difference,
STANDARD_ERRORS = 2.0
# provided that this margin is at most this share of the published number (a wider one would prove
# little),
LARGEST_MARGIN = 0.05
# or if they differ by at most this share of the published number.
ALWAYS_WITHIN = 0.01

STATUSES = (
    "reproduced",
    "not reproduced",
    "partial",
    "stand-in",
    "needs data or hours",
    "not yet run",
)
# The statuses of numbers that were compared with the published ones.
COMPARED = STATUSES[:2]
# Values of `spread_kind` in published.csv: the kind of the number after "±"; blank without one.
SPREAD_KINDS = ("deviation", "standard error", "unknown")


def recorded_folder(setup: Setup) -> pathlib.Path:
    """Returns the folder beside the item's file that holds a set-up's recorded results."""
    return setup.home / setup.item / setup.name


def recorded(setup: Setup, name: str = "results.csv") -> list[dict[str, str]]:
    """Reads a set-up's recorded results.csv or runs.csv; empty if it does not exist."""
    return lines_of(recorded_folder(setup) / name)


def lines_of(path: pathlib.Path) -> list[dict[str, str]]:
    """Reads a results.csv or runs.csv; empty if it does not exist."""
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def deviation(theirs: Mapping[str, str]) -> float:
    """Returns the standard deviation over seeds that a published spread corresponds to.

    Args:
      theirs: A line of published.csv with a spread. A standard error is multiplied by the square
        root of the number of seeds, if known. Any other spread is taken as printed.
    """
    spread = float(theirs["spread"])
    if theirs.get("spread_kind") == "standard error" and (theirs.get("seeds") or "").isdigit():
        spread *= int(theirs["seeds"]) ** 0.5
    return spread


def margin(ours: Mapping[str, str], theirs: Mapping[str, str]) -> float | None:
    """Returns two standard errors of the difference of two means.

    Args:
      ours: A line of results.csv: `spread` is the standard deviation over `seeds`, which are
        separated by blanks.
      theirs: A line of published.csv: `spread` is of the kind `spread_kind`, over `seeds` seeds. A
        standard deviation is divided by the square root of the number of seeds, if known. A
        standard error, or a spread of unknown kind, is taken as printed.

    Returns:
      The margin in the unit of the number; `None` if we have fewer than two seeds, or the paper
      prints no spread.
    """
    own = len(ours["seeds"].split())
    if own < 2 or not ours["spread"] or not theirs["spread"]:
        return None
    error = float(theirs["spread"])
    if theirs.get("spread_kind") == "deviation" and (theirs.get("seeds") or "").isdigit():
        error /= int(theirs["seeds"]) ** 0.5
    return STANDARD_ERRORS * (float(ours["spread"]) ** 2 / own + error**2) ** 0.5


def tolerance(ours: Mapping[str, str], theirs: Mapping[str, str]) -> float:
    """Returns the largest difference to the published number that the rule above allows.

    Args:
      ours: A line of results.csv; for a diverged run it has no spread.
      theirs: A line of published.csv.
    """
    size = abs(float(theirs["value"]))
    errors = margin(ours, theirs)
    if errors is None or errors > LARGEST_MARGIN * size:
        errors = 0.0
    return max(ALWAYS_WITHIN * size, errors)


def agrees(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    """Returns whether our number agrees with the published one, by the rule above.

    Args:
      ours: A line of results.csv.
      theirs: A line of published.csv.
    """
    return abs(float(ours["value"]) - float(theirs["value"])) <= tolerance(ours, theirs)


def indiscriminate(setup: Setup) -> set[tuple[str, str]]:
    """Returns the compared cells whose tolerance covers the paper's whole column.

    A single number for all methods would agree with every cell of the column, so such a cell does
    not distinguish methods.

    Args:
      setup: The set-up.

    Returns:
      Published row and column of each compared cell whose tolerance is at least the range
      (largest minus smallest number) of its published column.
    """
    ours = {(r["row"], r["column"]): r for r in recorded(setup)}
    published, columns = results.published(setup), {}
    for (_, column), theirs in published.items():
        columns.setdefault(column, []).append(float(theirs["value"]))
    return {
        (row, column)
        for (row, column), status in cell_statuses(setup).items()
        if status in COMPARED
        and tolerance(ours[counted_row(setup, row), column], published[row, column])
        >= max(columns[column]) - min(columns[column])
    }


def counted_row(setup: Setup, published_row: str) -> str:
    """Returns our row that the scoreboard compares with a published one.

    Raises:
      ReproduceError: If we have none or several, and the item does not choose one.
    """
    rows = [r for r in setup.rows if setup.published_rows.get(r, r) == published_row]
    if len(rows) == 1:
        return rows[0]
    if setup.counted_rows.get(published_row) not in rows:
        raise items.ReproduceError(
            f"{setup.paper}/{setup.item}.toml, {setup.name}: the paper's row {published_row} has "
            f"{', '.join(rows) or 'no row here'}; name one in counted_rows."
        )
    return setup.counted_rows[published_row]


def is_whole(setup: Setup, record: Mapping[str, str]) -> bool:
    """Returns whether a recorded row has all rounds, seeds and points of the protocol."""
    if record.get("chosen_by") == "search" or len(record["seeds"].split()) < len(setup.seeds):
        return False
    protocol = int(record.get("protocol_rounds") or setup.rounds)
    # A diverged run cannot do more rounds.
    return _diverged(record) or int(record["rounds"]) >= protocol


def _diverged(record: Mapping[str, str]) -> bool:
    return (record.get("status") or "").startswith("diverged")


def cell_statuses(setup: Setup) -> dict[tuple[str, str], str]:
    """Returns the status of each published cell of a set-up: (row, column) → one of `STATUSES`."""
    ours = {(r["row"], r["column"]): r for r in recorded(setup)}
    statuses = {}
    for key, theirs in results.published(setup).items():
        found = ours.get((counted_row(setup, key[0]), key[1]))
        diverged = found is not None and _diverged(found)
        if found is None or (not diverged and found["value"] in ("", None)):
            statuses[key] = "not yet run" if setup.planned else "needs data or hours"
        elif setup.stand_in:
            statuses[key] = "stand-in"
        elif not is_whole(setup, found):
            statuses[key] = "partial"
        else:
            same = not diverged and agrees(found, theirs)
            statuses[key] = COMPARED[0] if same else COMPARED[1]
    return statuses


class Cell(NamedTuple):
    """A published number.

    Attributes:
      item: The item (table or figure) that it is in.
      setup: The set-up's name in published.csv.
      row: The published row.
      column: The published column.
      status: One of `STATUSES`.
      identity: Equal for the same number of one configuration in two tables.
      discriminates: Whether it was compared with a tolerance below the range of its column.
    """

    item: str
    setup: str
    row: str
    column: str
    status: str
    identity: tuple
    discriminates: bool = True


def cells(item: Item) -> list[Cell]:
    """Returns the published cells of an item, each from the set-up that is counted for it."""
    result = []
    for setup in item.setups.values():
        if not setup.counts:
            continue
        columns = {c["name"]: c for c in setup.columns}
        theirs = results.published(setup)
        of_paper, blind = _of_paper(item, setup), indiscriminate(setup)
        for (row, column), status in cell_statuses(setup).items():
            line = theirs[row, column]
            identity = (
                setup.paper,
                *_configuration(of_paper, counted_row(of_paper, row)),
                json.dumps(
                    {k: v for k, v in columns[column].items() if k not in ("name", "digits")}
                ),
                float(line["value"]),
                float(line["spread"]) if line["spread"] else None,
            )
            tells = status in COMPARED and (row, column) not in blind
            result.append(Cell(item.name, setup.published, row, column, status, identity, tells))
    return result


def _of_paper(item: Item, setup: Setup) -> Setup:
    """Returns the set-up that a stand-in replaces, if the item has it; else the set-up itself."""
    same = (s for s in item.setups.values() if s.published == setup.published and not s.stand_in)
    return next(same, setup) if setup.stand_in else setup


def _configuration(setup: Setup, row: str) -> tuple:
    """Returns a row's configuration: flag file, settings that differ from it, rounds."""
    fixed = items.settings_of_file(setup.rows[row].flagfile)
    settings = setup.rows[row].on_top.items()
    new = tuple(sorted((flag, str(v)) for flag, v in settings if fixed.get(flag) != v))
    return setup.rows[row].flagfile, new, setup.rounds


class Count(NamedTuple):
    """Counts of a paper's cells.

    Attributes:
      statuses: Status → number of cells.
      rows: Number of rows whose cells are all reproduced.
      rows_compared: Number of rows whose cells were all compared.
      repeated: Number of cells left out because an earlier table has them.
      discriminating: Status → number of compared cells that distinguish methods.
    """

    statuses: Counter
    rows: int
    rows_compared: int
    repeated: int
    discriminating: Counter


def count(found: Iterable[Cell], seen: set | None = None) -> Count:
    """Counts cells and whole rows.

    Args:
      found: Cells.
      seen: Identities of cells counted before. Such cells are left out, and so are rows that
        consist only of them. The cells counted now are added. By default nothing is left out.
    """
    statuses, discriminating, rows, repeated = Counter(), Counter(), {}, 0
    for cell in found:
        if seen is not None and cell.identity in seen:
            repeated += 1
            rows.setdefault((cell.item, cell.setup, cell.row), []).append((cell.status, False))
            continue
        if seen is not None:
            seen.add(cell.identity)
        statuses[cell.status] += 1
        discriminating[cell.status] += cell.discriminates
        rows.setdefault((cell.item, cell.setup, cell.row), []).append((cell.status, True))
    compared = [
        {status for status, _ in some}
        for some in rows.values()
        if any(new for _, new in some) and {status for status, _ in some} <= set(COMPARED)
    ]
    whole = compared.count({"reproduced"})
    return Count(statuses, whole, len(compared), repeated, +discriminating)


def place_in_grid(setup: Setup, row: str, runs: Sequence[Mapping[str, str]]) -> str:
    """Returns the position of a row's chosen point in the grid that was run.

    Args:
      setup: The set-up.
      row: A row of it.
      runs: The recorded runs.csv.

    Returns:
      `inside`, or the settings that lie at an edge, e.g. `edge: client_learning_rate 0.1 of 0.01,
      0.1`; blank for a row without a grid.
    """
    of_row = [r for r in runs if r["row"] == row]
    chosen = [r for r in of_row if r["chosen"] == "True"]
    told, tried = [], False
    for flag, given in setup.grid.get(row, {}).items():
        if any(isinstance(v, bool | str) for v in given):
            continue  # Only numbers have an order, and so an edge.
        values = sorted({float(r[flag]) for r in of_row if r.get(flag)})
        if len(values) < 2 or not chosen:
            continue
        tried = True
        value = float(chosen[0][flag])
        if value in (values[0], values[-1]):
            listed = ", ".join(f"{v:g}" for v in values)
            told.append(f"{flag} {value:g} of {listed}")
    if not tried:
        return ""
    return f"edge: {'; '.join(told)}" if told else "inside"
