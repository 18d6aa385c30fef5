"""Items: a paper's tables and figures, described by `papers/<paper>/<item>.toml`, and their runs.

Users keep their own items in the same form in another folder (`reproduce.py --items=DIR`). `title`
says what the paper shows in the table or figure. `[setups.NAME]` is a part of it with its own rows;
fields outside these tables are defaults for all set-ups. The fields of a set-up are those of
`Setup`, with their types and defaults; docs/items.md explains them with an example.
"""

import dataclasses
import difflib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from reproduction import points, run_folders
from simulation import experiment_flags, run_hparams
from simulation.errors import RunError
from tasks.formats import remote
from tff_suite.errors import FedError
from tff_suite.hparams import HparamError, Value

REPO = pathlib.Path(__file__).resolve().parent.parent
PAPERS = REPO / "papers"
# The part of a title that names the metric.
_MEASURE = re.compile(r"(?:, |: |^)(?:mean |test )*(?:accuracy|error|recall|squared error)\b")


class ReproduceError(FedError):
    """A request that cannot be carried out; its text is one line for the user."""


class UsageError(ReproduceError):
    """A request with an unknown name, or with flags that contradict each other."""

    exit_code = 2


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table: its flag file and the settings that a sweep adds.

    Attributes:
      name: Name of the row.
      flagfile: Path of the flag file, relative to the repository; absolute for a user's own item.
      settings: Flag → value of the sweep, which overrides the file.
      flags: Flag → text of flags that the item gives after the file; the row's name omits them.
    """

    name: str
    flagfile: str
    settings: Mapping[str, Value]
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def on_top(self) -> dict[str, Value]:
        """All flags of the row that override its file."""
        return {**self.flags, **self.settings}

    @property
    def base(self) -> str:
        """The name without the settings of a sweep."""
        return self.name.removesuffix("".join(f" {w}" for w in _words(self.name, self.settings)))


def _is_value(value) -> bool:
    return isinstance(value, bool | int | float | str)


def _is_texts(value) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _is_sweep(value) -> bool:
    return _is_grid(value) and all(
        isinstance(v, list) for flags in value.values() for v in flags.values()
    )


def _is_grid(value) -> bool:
    return isinstance(value, dict) and all(
        isinstance(flags, dict)
        and all(
            isinstance(v, dict) or (isinstance(v, list) and v and all(map(_is_value, v)))
            for v in flags.values()
        )
        for flags in value.values()
    )


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_seeds(value) -> bool:
    return isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)


# Key of a column → function that says whether a value is valid.
_OF_COLUMN = {
    "name": lambda v: isinstance(v, str),
    "metric": lambda v: isinstance(v, str),
    "reading_of": lambda v: isinstance(v, str),
    "scale": _is_number,
    "offset": _is_number,
    "power": _is_number,
    "digits": lambda v: v == 0 or _is_count(v),
    "last_rounds": _is_count,
    "best": lambda v: v in ("max", "min"),
}


def _is_column(value) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "metric"} <= value.keys() <= _OF_COLUMN.keys()
        and all(_OF_COLUMN[key](v) for key, v in value.items())
    )


def _is_list_of_texts(value) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _of_keys(known: Mapping[str, Callable[[Any], Any]], needed: Iterable[str] = ()):
    """Returns a function that says whether a value is a table of known keys with valid values."""
    return lambda value: (
        isinstance(value, dict)
        and set(needed) <= value.keys() <= known.keys()
        and all(known[key](own) for key, own in value.items())
    )


def _field(kind: str, is_right: Callable[[Any], bool], default: Any = dataclasses.MISSING) -> Any:
    """Returns a field of a set-up that an item's file may set.

    Args:
      kind: The valid values in words, for errors.
      is_right: Function that says whether a value is valid.
      default: Its value if the file does not set it; without a default the file must set it.
    """
    known = {"kind": kind, "is_right": is_right}
    if isinstance(default, dict | list):
        return dataclasses.field(default_factory=lambda: default, metadata=known)
    return dataclasses.field(default=default, metadata=known)


_TEXT = ("a text", lambda v: isinstance(v, str))
_BOOL = ("true or false", lambda v: isinstance(v, bool))
_TEXTS = ("a table of texts", _is_texts)


@dataclasses.dataclass(frozen=True)
class Setup:
    """A set-up of an item; docs/items.md explains the fields that its file may set.

    Attributes:
      paper: Name of the folder `home`.
      item: Name of the item.
      name: Name of the set-up.
      home: Folder of the item's file.
      objects: Python objects given in place of a flag: `task`, `model`.
    """

    paper: str
    item: str
    name: str
    home: pathlib.Path
    title: str = _field(*_TEXT)
    rounds: int = _field("a whole number above 0", _is_count, 0)
    seeds: Sequence[int] = _field("a list of whole numbers", _is_seeds, [])
    rows: Mapping[str, Row] = _field("a table row = flag file", _is_texts, {})
    columns: Sequence[Mapping[str, Any]] = _field(
        f"a list of tables with name and metric, and of {', '.join(list(_OF_COLUMN)[2:])}",
        lambda v: isinstance(v, list) and all(map(_is_column, v)),
        [],
    )
    grid: Mapping[str, Mapping[str, Sequence[Value]]] = _field(
        "a table row = { flag = [values] }", _is_grid, {}
    )
    sample: Mapping[str, int] = _field(
        "a table of points (a whole number above 0) and seed (a whole number)",
        _of_keys({"points": _is_count, "seed": lambda v: _is_seeds([v])}, ["points"]),
        {},
    )
    widen: Mapping[str, Any] = _field(
        "a table of times (a whole number above 0) and flags (a list of texts)",
        _of_keys({"times": _is_count, "flags": _is_list_of_texts}, ["times", "flags"]),
        {},
    )
    search: Mapping[str, Any] = _field(
        "a table of factor (2 or more), rounds and budget (above 0) and restart (true or false)",
        _of_keys(
            {
                "factor": lambda v: _is_count(v) and v > 1,
                "rounds": _is_count,
                "budget": lambda v: _is_number(v) and v > 0,
                "restart": lambda v: isinstance(v, bool),
            }
        ),
        {},
    )
    selection: Mapping[str, Any] = _field(
        "a table of metric (a text), last_rounds (above 0) and seeds (some whole numbers)",
        _of_keys(
            {
                "metric": lambda v: isinstance(v, str),
                "last_rounds": _is_count,
                "seeds": lambda v: _is_seeds(v) and v,
            }
        ),
        {},
    )
    validation_fraction: float = _field(
        "a number above 0 and below 1", lambda v: isinstance(v, float) and 0 < v < 1, 0.1
    )
    curve: str = _field(*_TEXT, "")
    curve_label: str = _field(*_TEXT, "")
    figures: Sequence[Mapping[str, Any]] = _field(
        "a list of tables with kind",
        lambda v: (
            isinstance(v, list)
            and all(isinstance(f, dict) and isinstance(f.get("kind"), str) for f in v)
        ),
        [{"kind": "curves"}],
    )
    higher_is_better: bool = _field(*_BOOL, True)
    draws: Sequence[str] = _field(
        "a list of texts", lambda v: isinstance(v, list) and all(map(_is_value, v)), []
    )
    folder: str = _field(*_TEXT, "")
    published: str = _field(*_TEXT, "")
    published_rows: Mapping[str, str] = _field(*_TEXTS, {})
    counted_rows: Mapping[str, str] = _field(*_TEXTS, {})
    counts: bool = _field(*_BOOL, True)
    planned: bool = _field(*_BOOL, False)
    stand_in: str = _field(*_TEXT, "")
    reasons: Mapping[str, str] = _field(*_TEXTS, {})
    seconds: Mapping[str, float] = _field(
        "a table row = seconds",
        lambda v: isinstance(v, dict) and all(isinstance(s, int | float) for s in v.values()),
        {},
    )
    objects: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def heading(self) -> str:
        """The title without the metric and the number of rounds, which a figure's axes show."""
        parts = []
        for part in self.title.split("; "):
            kept = _MEASURE.split(part)[0] if _MEASURE.search(part) else part
            if kept and "percent" not in kept:
                parts.append(kept)
        return "; ".join(parts).replace(f", {self.rounds:,} rounds", "")

    def named_figures(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Returns the name of each figure, which is also its file's, and its table in `figures`."""
        kinds = enumerate(self.figures)
        return [(f["kind"] + (f"_{i + 1}" if i else ""), f) for i, f in kinds]

    def points(self, row: str) -> list[dict[str, Value]]:
        """Returns the points of the row's grid; one empty point if it has no grid."""
        number, seed = self.sample.get("points"), self.sample.get("seed", 0)
        return points.of_space(self.grid.get(row, {}), number, seed)


# Field of a set-up in an item's file → its valid values in words, and the function that checks one.
# `sweep` is no field of `Setup`: it is expanded into rows.
FIELDS = {
    **{
        f.name: (f.metadata["kind"], f.metadata["is_right"])
        for f in dataclasses.fields(Setup)
        if f.metadata
    },
    "sweep": ("a table row = { flag = [values] }", _is_sweep),
}


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


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a row, whether done or not.

    Attributes:
      row: Name of the row.
      seed: Seed of the run.
      point: The grid's settings of the run; empty without a grid.
      folder: Folder of its results.
      flagfile: Path of its flag file; empty if it has none.
      flags: Flag → value, which override the file.
      rounds: Rounds to train.
      protocol_rounds: Rounds of the protocol, which `rounds` may cut short.
      home: Folder of a user's own item, in which modules of `--import` are also looked for.
      objects: Python objects given in place of a flag: `task`, `model`.
      kept: Folder that this run would have, if a run with other settings, code or data is there;
        else `None`.
    """

    row: str
    seed: int
    point: Mapping[str, Value]
    folder: pathlib.Path
    flagfile: str
    flags: Mapping[str, Value]
    rounds: int
    protocol_rounds: int
    home: str = ""
    objects: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    kept: pathlib.Path | None = None

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.name

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of `run_experiment.py`; `objects` are left out."""
        file = [f"--flagfile={self.flagfile}"] if self.flagfile else []
        return (*file, *(f"--{flag}={value}" for flag, value in self.flags.items()))

    def request(self, **more: Value) -> experiment_flags.Request:
        """Returns the run's checked settings, with those in `more` replaced.

        Raises:
          HparamError: If its flags are wrong.
        """
        if self.objects:
            flags = {k: v for k, v in self.flags.items() if k not in self.objects}
            return experiment_flags.from_python({**flags, **more}, **self.objects)
        return experiment_flags.parse([*self.command, *(f"--{k}={v}" for k, v in more.items())])

    def read(self) -> run_folders.RunFolder:
        """Returns a reader of the run's folder."""
        return run_folders.opened(self.folder)

    def beside(self, digest: str) -> "PlannedRun":
        """Returns the run with another folder, since a different run has this one.

        Args:
          digest: Digest of what differs, appended to the folder's name.
        """
        folder = self.folder.with_name(f"{self.folder.name}.{digest}")
        flags = {**self.flags, "experiment_name": folder.name}
        return dataclasses.replace(self, folder=folder, flags=flags, kept=self.folder)


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
      ReproduceError: If the folder has none, or one is invalid.
    """
    paths = sorted(pathlib.Path(folder).absolute().glob("*.toml"))
    if not paths:
        raise UsageError(f"--items={folder} has no .toml file; docs/items.md shows one.")
    return [read_item(path) for path in paths]


def read_item(path: pathlib.Path) -> Item:
    """Reads an item's file.

    Raises:
      ReproduceError: If it is not valid TOML or not an item; the text names the file and the field.
    """
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
        read[name] = _setup(path, name, {**content, **fields})
    return Item(path.parent.name, path.stem, title, read)


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


def _file_and_flags(home, text) -> list[str]:
    """Returns a row's flag file, whose name may have blanks, followed by the row's flags."""
    return [text] if (home / text).is_file() else shlex.split(text) or [""]


def _checked(where, home, fields):  # noqa: C901
    """Refuses fields that do not have the form of docs/items.md."""

    def refuse(text):
        raise ReproduceError(f"{where}: {text}")

    for key, value in fields.items():
        if key not in FIELDS:
            close = difflib.get_close_matches(key, FIELDS, n=1)
            refuse(f"unknown key {key}." + (f" Did you mean {close[0]}?" if close else ""))
        kind, is_right = FIELDS[key]
        if not is_right(value):
            refuse(f"{key} must be {kind}, found {str(value)[:80]}.")
    if "title" not in fields:
        refuse("title is missing.")
    rows = fields.get("rows", {})
    if not rows and not fields.get("draws"):
        refuse("rows is missing: a table row = flag file.")
    for key in ("rounds", "seeds", "columns") if rows else ():
        if not fields.get(key):
            refuse(f"{key} is missing.")
    for row, text in rows.items():
        file, *further = _file_and_flags(home, text)
        if not (home / file).is_file():
            refuse(f"rows.{row}: there is no flag file {home / file}.")
        for flag in further:
            if not re.fullmatch(r"--\w+=.*", flag):
                refuse(f"rows.{row}: {flag} must be --flag=value.")
    for row in fields.get("sweep", {}):
        if row not in rows:
            refuse(f"sweep.{row}: there is no such row.")
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
    grids = fields.get("grid", {}).values()
    numbers = {
        flag for grid in grids for flag, values in grid.items() if all(map(_is_number, values))
    }
    for flag in fields.get("widen", {}).get("flags", ()) if grids else ():
        if flag not in numbers:
            raise ReproduceError(f"{where}: widen.flags: no grid has numbers of {flag}.")


def _setup(path, name, fields) -> Setup:
    home, paper, item = path.parent, path.parent.name, path.stem
    is_own = home.parent != PAPERS
    where = f"{path if is_own else f'{paper}/{path.name}'}, {name}"
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
            full = " ".join([row, *_words(row, settings)])
            rows[full] = Row(full, flagfile, settings, given)
    _check_full_rows(where, rows, fields)
    if "search" in fields:
        # An empty table [search] is a search, too.
        fields["search"] = {"factor": 3, **fields["search"]}
    fields = {"folder": f"{item}/{name}", "published": name, **fields}
    return Setup(paper=paper, item=item, name=name, home=home, rows=rows, **fields)


def _words(row, settings) -> list[str]:
    """Returns settings as texts such as `gamma=0.1`, without the method's name as a prefix."""
    method = row.split(" ")[0]
    return [
        f"{flag.removeprefix(f'{method}_')}={format_value(value)}"
        for flag, value in settings.items()
    ]


def format_value(value: Value) -> str:
    """Returns a setting's value as shown in tables and in names of folders."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def planned_runs(
    setup: Setup,
    rows: Iterable[str],
    points: Mapping[str, Sequence[Mapping[str, Value]]],
    seeds: Iterable[int],
    *,
    root: str,
    data_dir: str | None = None,
    max_rounds: int | None = None,
) -> list[PlannedRun]:
    """Returns runs in order: rows, then grid points, then seeds.

    Args:
      setup: The set-up.
      rows: Names of rows.
      points: Row → points of its grid.
      seeds: Seeds.
      root: Folder of all results.
      data_dir: Passed to the runs of tasks that read files.
      max_rounds: If set, no run gets more rounds than this.
    """
    runs = []
    for row in rows:
        for point in points[row]:
            for seed in seeds:
                runs.append(_run(setup, setup.rows[row], point, seed, root, data_dir, max_rounds))
    _check_folders(setup, runs)
    return runs


def _check_folders(setup, runs):
    """Refuses two different runs that would share a folder."""
    known = {}
    for run in runs:
        other = known.setdefault(run.folder, run)
        if run.command != other.command and run.request().in_force != other.request().in_force:
            raise ReproduceError(
                f"{setup.item} {setup.name}: {_told(other)} and {_told(run)} would share the "
                f"folder {run.name}; give them different names, or settings that differ in their "
                "first six digits."
            )


def has_settings(request: experiment_flags.Request, recorded: Mapping[str, Any]) -> bool:
    """Returns whether a recorded run has the settings of a request.

    Args:
      request: The request.
      recorded: Flag → value, as in hparams.json.
    """
    fixed = request.in_force.keys() - run_hparams.MAY_CHANGE - {"runtime"}
    return all(recorded.get(flag) == request.in_force[flag] for flag in fixed)


def _told(run) -> str:
    point = ", ".join(f"{flag}={value}" for flag, value in run.point.items())
    return f"row {run.row!r}" + (f" with {point}" if point else "")


def _run(setup, row, point, seed, root, data_dir, max_rounds) -> PlannedRun:
    settings = {**row.settings, **point}
    whole = settings.get("total_rounds", setup.rounds)
    rounds = min(whole, max_rounds or whole)
    flagfile = str(REPO / row.flagfile) if row.flagfile else ""
    flags = {**row.on_top, **point, "seed": seed, "client_datasets_random_seed": seed}
    home = "" if setup.home.parent == PAPERS else str(setup.home)
    run = PlannedRun(
        row.name, seed, point, pathlib.Path(), flagfile, flags, rounds, whole, home, setup.objects
    )
    # Settings that the flag file already has are not in the name, so sweeps share a table's runs.
    fixed = settings_of_file(row.flagfile) if row.flagfile else {}
    new = {flag: value for flag, value in settings.items() if fixed.get(flag) != value}
    name = "_".join([row.base, *_words(row.name, new)])
    if rounds != whole or ("total_rounds" not in settings and fixed.get("total_rounds") != whole):
        flags["total_rounds"] = rounds
    if rounds != whole and run.request().first_other_plan(rounds, rounds, whole) is not None:
        # Such a run cannot be resumed for more rounds later, so it gets its own folder.
        name += f"_rounds={rounds}"
    if setup.selection.get("metric", "").startswith("validation/"):
        given = run.request().run
        if not (given["validation_fraction"] or given["validation_clients"]):
            flags["validation_fraction"] = setup.validation_fraction
    name = _folder_name(name)
    if data_dir and not setup.objects.get("task") and _needs_data(run):
        flags["data_dir"] = absolute(data_dir)
    folder = pathlib.Path(root).absolute() / setup.paper / setup.folder / f"{name}_seed{seed}"
    flags |= {"root_output_dir": str(folder.parent), "experiment_name": folder.name}
    return in_its_folder(dataclasses.replace(run, folder=folder, flags=flags))


def in_its_folder(run: PlannedRun) -> PlannedRun:
    """Returns the run, with another folder if its folder holds a run with other settings."""
    try:
        recorded = run.read().recorded or {}
        flags = recorded.get("flags")
        if not isinstance(flags, dict) or has_settings(run.request(), flags):
            return run
    except (RunError, HparamError):
        return run  # The run itself says what is damaged or wrong.
    # Seeds are in the name already; without them all seeds of a row get the same digest.
    left_out = {*run_hparams.MAY_CHANGE, "seed", "client_datasets_random_seed"}
    known = {k: v for k, v in run.request().in_force.items() if k not in left_out}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:8]
    return run.beside(digest)


# Characters and names that can be used in folder names as they are, as all papers' rows can.
_NOT_PLAIN = re.compile(r"[^\w.=+-]+")
_PLAIN = re.compile(r"[^\s/\x00-\x1f\x7f]{1,150}")


def _folder_name(name: str) -> str:
    """Returns a valid folder name: the name itself if possible, else a short one with a digest."""
    if _PLAIN.fullmatch(name):
        return name
    digest, shown = hashlib.sha256(name.encode()).hexdigest()[:8], _NOT_PLAIN.sub("-", name)
    return f"{shown[:100]}-{digest}"


def absolute(data_dir: str) -> str:
    """Returns a `--data_dir` as an absolute path; addresses stay as they are."""
    return data_dir if remote.is_address(data_dir) else str(pathlib.Path(data_dir).absolute())


def settings_of_file(flagfile: str) -> Mapping[str, Value]:
    """Returns flag → value of a flag file; empty if a run needs further flags."""
    return _settings_of_file(str(REPO / flagfile), os.stat(REPO / flagfile).st_mtime_ns)


@functools.cache
def _settings_of_file(path, changed):
    del changed
    try:
        return experiment_flags.parse([f"--flagfile={path}"]).in_force
    except HparamError:
        return {}


def _needs_data(run) -> bool:
    import tasks

    return tasks.get(run.request().run["task"]).needs_data
