"""Reads items from TOML files: the papers' in `papers/`, and a user's own (`--items=DIR`)."""

import csv
import dataclasses
import difflib
import io
import itertools
import math
import pathlib
import re
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction import points
from reproduction.setups import (
    FIELDS,
    PAPERS,
    REQUIRED,
    SEEDS,
    TAKEN,
    ReproduceError,
    Row,
    Setup,
    UsageError,
    is_number,
    words,
)


@dataclasses.dataclass(frozen=True)
class Item:
    """A table or figure.

    Attributes:
      paper: Folder under papers/.
      name: Name of the .toml file.
      title: What the table or figure shows.
      setups: Name → set-up.
    """

    paper: str
    name: str
    title: str
    setups: Mapping[str, Setup]


def load_item(paper: str, item: str) -> Item:
    """Reads `papers/<paper>/<item>.toml`.

    Raises:
      ReproduceError: If the paper or item is unknown, or its file is invalid.
    """
    _check_paper(paper)
    path = PAPERS / paper / f"{item}.toml"
    if path not in PAPERS.glob(f"{paper}/*.toml"):
        items = ", ".join(i.name for i in all_items(paper))
        raise UsageError(f"--item={item} is unknown; {paper} has: {items}.")
    return read_item(path)


def _check_paper(paper):
    known = sorted({p.parent.name for p in PAPERS.glob("*/*.toml")})
    if paper not in known:
        raise UsageError(f"--paper={paper} is unknown; known: {', '.join(known)}.")


def own_items(folder: str) -> list[Item]:
    """Reads a user's own items: all `.toml` files of a folder, by name.

    Raises:
      ReproduceError: If the folder has none, or one is invalid. Also if published.csv has a number
        of something that none of the items has.
    """
    home = pathlib.Path(folder).absolute()
    paths = sorted(home.glob("*.toml"))
    if not paths:
        raise UsageError(f"--items={folder} has no .toml file; docs/items.md shows one.")
    found = [read_item(path) for path in paths]
    if home.parent != PAPERS:
        _check_published(home, found)
    return found


def _check_published(home: pathlib.Path, found: Sequence[Item]) -> None:
    """Refuses published numbers that no table shows, since a name is misspelt there."""
    shown = [
        (item.name, setup.published, setup.published_rows.get(row, row), column)
        for item in found
        for setup in item.setups.values()
        for row in setup.rows
        for own in setup.columns
        for column in (own["name"], own.get("reading_of", own["name"]), "seconds_per_round")
    ]
    for number, line in enumerate(published_lines(home), 1):
        wanted = tuple(line[what] for what in _PUBLISHED[:4])
        for k, what in enumerate(_PUBLISHED[:4]):
            known = dict.fromkeys(one[k] for one in shown if one[:k] == wanted[:k])
            if wanted[k] not in known:
                raise ReproduceError(
                    f"{home / 'published.csv'}, number {number}: there is no {what} "
                    f"{wanted[k] or 'without a name'}; known: {', '.join(known)}."
                )


def read_item(path: pathlib.Path) -> Item:
    """Reads an item's file.

    Raises:
      ReproduceError: If it is not valid TOML or not an item; the text names the file and the field.
    """
    item = _parsed(path)
    published_lines(path.parent)
    setups = {name: _with_points_of(path, setup) for name, setup in item.setups.items()}
    return dataclasses.replace(item, setups=setups)


def _parsed(path: pathlib.Path) -> Item:
    """Reads an item's file and no other item, so `points_of` is not looked up."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:  # TOMLDecodeError, UnicodeDecodeError.
        raise ReproduceError(f"{path} cannot be read: {e}") from e
    setups = content.pop("setups", None)
    if not isinstance(setups, dict) or not setups:
        raise ReproduceError(f"{path}: a table [setups.NAME] is missing.")
    title = content.pop("title", None)
    if not isinstance(title, str):
        raise ReproduceError(f"{path}: title must be a text.")
    read = {}
    for name, fields in setups.items():
        if not isinstance(fields, dict):
            raise ReproduceError(f"{path}: setups.{name} must be a table.")
        for what, folder in (("", name), (".folder", fields.get("folder", name))):
            # Results lie in folders of these names, and must not lie elsewhere.
            if isinstance(folder, str) and not _is_within(folder):
                raise ReproduceError(
                    f"{path}: setups.{name}{what}: {folder!r} must be a path without .. that does "
                    "not begin with a slash."
                )
        read[name] = _setup(path, name, {**content, **fields})
    return Item(path.parent.name, path.stem, title, read)


def _is_within(folder: str) -> bool:
    """Returns whether a relative path stays within the folder that it begins in."""
    path = pathlib.PurePosixPath(folder)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


# Columns that published.csv must have; others may be missing.
_PUBLISHED = ("item", "setup", "row", "column", "value")


def published_lines(home: pathlib.Path) -> list[dict[str, str]]:
    """Returns the lines of a folder's published.csv, all with a `spread`; none without the file.

    Raises:
      ReproduceError: If a column is missing, a number is there twice, or a value or spread is not a
        finite number.
    """
    path = home / "published.csv"
    if not path.exists():
        return []
    try:
        # Excel begins a file with a byte order mark, which utf-8-sig drops.
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as e:
        raise ReproduceError(f"{path} cannot be read: {e}; save it as CSV in UTF-8.") from e
    reader = csv.DictReader(io.StringIO(text, newline=""))
    lacking = [name for name in _PUBLISHED if name not in (reader.fieldnames or ())]
    if lacking:
        raise ReproduceError(
            f"{path} has no column {', '.join(lacking)}; its first line must be "
            f"{','.join(_PUBLISHED)},spread, with commas."
        )
    lines, places = [], {}
    for line in reader:
        one = {**line, "spread": line.get("spread") or ""}
        what = tuple(one[name] for name in _PUBLISHED[:4])
        first = places.setdefault(what, reader.line_num)
        if first != reader.line_num:
            raise ReproduceError(
                f"{path}, line {reader.line_num}: line {first} has {', '.join(map(str, what))} "
                "already; leave one of them out."
            )
        for name in ("value", *(["spread"] if one["spread"] else [])):
            if not _is_finite(one[name]):
                raise ReproduceError(
                    f"{path}, line {reader.line_num}: {name} must be a number such as 0.9, found "
                    f"{one[name] or 'nothing'}."
                )
        lines.append(one)
    return lines


def _is_finite(text: str | None) -> bool:
    try:
        return math.isfinite(float(text or "nan"))
    except ValueError:
        return False


def all_items(paper: str | None = None) -> list[Item]:
    """Returns all items of a paper, or of all papers: tables before figures, by their numbers.

    Raises:
      ReproduceError: If the paper is unknown, or a file is invalid.
    """
    if paper is not None:
        _check_paper(paper)

    def order(path):
        kind = path.stem.rstrip("0123456789")
        number = path.stem[len(kind) :]
        kinds = ("table", "fig")
        rank = kinds.index(kind) if kind in kinds else len(kinds)
        return path.parent.name, rank, kind, int(number or 0)

    paths = sorted(PAPERS.glob(f"{paper or '*'}/*.toml"), key=order)
    return [load_item(path.parent.name, path.stem) for path in paths]


# Default `selection` of users' own items. The papers' items set it themselves.
OWN_SELECTION = {"metric": "validation/loss", "last_rounds": 5}


def _file_and_flags(home: pathlib.Path, text: str) -> list[str]:
    """Returns a row's flag file, whose name may have blanks, followed by the row's flags."""
    return [text] if (home / text).is_file() else shlex.split(text) or [""]


def _with_points_of(path: pathlib.Path, setup: Setup) -> Setup:
    """Returns a set-up with points of the item that its `points_of` names, if it names one.

    The first point of that item stands for the best one until its runs are done.
    """
    if not setup.points_of:
        return setup
    where = f"{_where(path, setup.name)}: points_of"
    source = path.with_name(f"{setup.points_of}.toml")
    if not source.is_file():
        raise ReproduceError(f"{where}: there is no item {source}.")
    grid: dict[str, dict[str, list[Any]]] = {}
    for other in _parsed(source).setups.values():
        if other.points_of:
            raise ReproduceError(f"{where}: {source.stem} has points_of itself.")
        for row in other.rows:
            grid.setdefault(row, {k: [value] for k, value in other.points(row)[0].items()})
    for row in setup.rows:
        if row not in grid:
            raise ReproduceError(f"{where}: {source.stem} has no row {row}.")
    return dataclasses.replace(setup, grid={row: grid[row] for row in setup.rows})


def _checked(where, home, fields):  # noqa: C901
    """Refuses fields that do not have the form of docs/items.md."""

    def refuse(text):
        raise ReproduceError(f"{where}: {text}")

    for key, value in fields.items():
        if key not in FIELDS:
            close = difflib.get_close_matches(key, FIELDS, n=1)
            refuse(f"unknown key {key}." + (f" Did you mean {close[0]}?" if close else ""))
        field = FIELDS[key]
        if not field.is_right(value):
            refuse(f"{key} must be {field.kind}, found {str(value)[:80]}.")
    if "title" not in fields:
        refuse("title is missing.")
    rows = fields.get("rows", {})
    if not rows and not fields.get("draws"):
        refuse(
            'rows is missing: add lines such as fedavg = "fedavg.flags" below [setups.NAME.rows].'
        )
    for key in REQUIRED if rows else ():
        if not fields.get(key):
            refuse(f"{key} is missing.")
    for row, text in rows.items():
        file, *further = _file_and_flags(home, text)
        if not (home / file).is_file():
            refuse(f"rows.{row}: there is no flag file {home / file}.")
        for flag in further:
            if not re.fullmatch(r"--\w+=.*", flag):
                refuse(f"rows.{row}: {flag} must be --flag=value.")
            if flag.removeprefix("--").partition("=")[0] in SEEDS:
                refuse(f"rows.{row}: leave out {flag}; list the seeds in seeds.")
            if flag.startswith("--total_rounds="):
                refuse(f"rows.{row}: leave out {flag}; set rounds, or sweep.{row}.total_rounds.")
    for row in fields.get("sweep", {}):
        if row not in rows:
            refuse(f"sweep.{row}: there is no such row.")
    for key in ("sweep", "grid"):
        for row, flags in fields.get(key, {}).items():
            for flag in flags.keys() & set(SEEDS):
                refuse(f"{key}.{row}: {flag} cannot vary here; list the seeds in seeds.")
    columns = [column["name"] for column in fields.get("columns", ())]
    for name in columns:
        if columns.count(name) > 1:
            refuse(f"columns: {name} is there twice; give each column its own name.")
        if name in TAKEN or any(name in flags for flags in fields.get("grid", {}).values()):
            refuse(f"columns: runs.csv has its own {name}; give the column another name.")
    for column in fields.get("columns", ()):
        if {"best", "last_rounds"} <= column.keys():
            refuse(f"columns.{column['name']}: set best or last_rounds, not both.")
    for seed in fields.get("seeds", ()):
        if fields["seeds"].count(seed) > 1:
            refuse(f"seeds: {seed} is there twice.")
    grids, number = fields.get("grid", {}), fields.get("sample", {}).get("points")
    for row, space in grids.items():
        wrong = points.fault(space, number)
        if wrong:
            refuse(f"grid.{row}: {wrong}.")
    grids = grids.values()
    wide = any(
        isinstance(values, dict) or len(values) > 1 for flags in grids for values in flags.values()
    )
    if wide and not fields.get("selection", {}).keys() >= {"metric", "last_rounds"}:
        refuse(
            "selection is missing: set the metric and last_rounds by which to choose a grid's "
            "point."
        )
    if fields.get("search") is not None and not wide:
        refuse("search needs a grid of more than one point.")
    # An empty table [search] is a search, too.
    if "search" in fields and "widen" in fields:
        refuse("widen cannot be combined with search.")
    if "sample" in fields and "widen" in fields:
        refuse("widen cannot be combined with sample.")
    for key in ("grid", "sample", "widen", "search") if fields.get("points_of") else ():
        if key in fields:
            refuse(f"{key} cannot be combined with points_of.")
    for seed in fields.get("selection", {}).get("seeds", ()) if rows else ():
        if seed not in fields["seeds"]:
            refuse(f"selection.seeds: {seed} is not among the set-up's seeds.")


def _check_full_rows(where, rows, fields):
    """Refuses fields that name rows or settings which the set-up does not have."""
    for key, known in (("grid", rows), ("seconds", [*rows, "*"])):
        for row in fields.get(key, {}):
            if row not in known:
                near = difflib.get_close_matches(row, rows, n=1)
                meant = f" Did you mean {near[0]}?" if near else ""
                raise ReproduceError(f"{where}: {key}.{row}: there is no such row.{meant}")
    for row, space in fields.get("grid", {}).items():
        for flag in space.keys() & rows[row].on_top.keys():
            raise ReproduceError(
                f"{where}: grid.{row}: the row sets {flag} already; leave it out in one place."
            )
    grids = fields.get("grid", {}).values()
    numbers = {
        flag for grid in grids for flag, values in grid.items() if all(map(is_number, values))
    }
    for flag in fields.get("widen", {}).get("flags", ()) if grids else ():
        if flag not in numbers:
            raise ReproduceError(f"{where}: widen.flags: no grid has numbers of {flag}.")


def _where(path: pathlib.Path, name: str) -> str:
    """Returns the place of a set-up as errors name it."""
    home = path.parent
    return f"{path if home.parent != PAPERS else f'{home.name}/{path.name}'}, {name}"


def _setup(path: pathlib.Path, name: str, fields: dict[str, Any]) -> Setup:
    home, paper, item = path.parent, path.parent.name, path.stem
    is_own, where = home.parent != PAPERS, _where(path, name)
    fields = dict(fields)
    if is_own and fields.get("grid") and isinstance(fields.get("selection", {}), dict):
        fields["selection"] = OWN_SELECTION | fields.get("selection", {})
    _checked(where, home, fields)
    sweep = fields.pop("sweep", {})
    rows = {}
    for row, text in fields.pop("rows", {}).items():
        file, *further = _file_and_flags(home, text)
        given = dict(flag.removeprefix("--").split("=", 1) for flag in further)
        flagfile = str(home / file) if is_own else f"papers/{paper}/{file}"
        flags = sweep.get(row, {})
        for values in itertools.product(*flags.values()):
            settings = dict(zip(flags, values, strict=True))
            full = " ".join([row, *words(row, settings)])
            if full in rows:
                raise ReproduceError(
                    f"{where}: sweep.{row}: another row is also named {full}; rename it, or use "
                    "values that differ in their first six digits."
                )
            rows[full] = Row(full, flagfile, settings, given)
    _check_full_rows(where, rows, fields)
    if "search" in fields:
        # An empty table [search] is a search, too.
        fields["search"] = {"factor": 3, **fields["search"]}
    fields = {"folder": f"{item}/{name}", "published": name, **fields}
    return Setup(paper=paper, item=item, name=name, home=home, rows=rows, **fields)
