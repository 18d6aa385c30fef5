"""What an item says: rows, set-ups and the fields that their files may have."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reproduction import points
from reproduction.points import Space
from tff_suite.errors import FedError
from tff_suite.hparams import Settings, Value

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
    settings: Settings
    flags: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def on_top(self) -> dict[str, Any]:
        """All flags of the row that override its file."""
        return {**self.flags, **self.settings}

    @property
    def base(self) -> str:
        """The name without the settings of a sweep."""
        return self.name.removesuffix("".join(f" {w}" for w in words(self.name, self.settings)))


def _is_value(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(v, str) for v in value.values())


def _is_sweep(value: Any) -> bool:
    return _is_grid(value) and all(
        isinstance(v, list) for flags in value.values() for v in flags.values()
    )


def _is_grid(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(flags, dict)
        and all(
            isinstance(v, dict) or (isinstance(v, list) and v and all(map(_is_value, v)))
            for v in flags.values()
        )
        for flags in value.values()
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: Any) -> bool:
    """Returns whether a value of a file is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_seeds(value: Any) -> bool:
    return isinstance(value, list) and all(type(seed) is int and seed >= 0 for seed in value)


# Key of a column → function that says whether a value is valid.
_OF_COLUMN = {
    "name": lambda v: isinstance(v, str),
    "metric": lambda v: isinstance(v, str),
    "reading_of": lambda v: isinstance(v, str),
    "scale": is_number,
    "offset": is_number,
    "power": is_number,
    "digits": lambda v: v == 0 or _is_count(v),
    "last_rounds": _is_count,
    "best": lambda v: v in ("max", "min"),
    "higher_is_better": lambda v: isinstance(v, bool),
}


def _is_column(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "metric"} <= value.keys() <= _OF_COLUMN.keys()
        and all(_OF_COLUMN[key](v) for key, v in value.items())
    )


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _of_keys(
    known: Mapping[str, Callable[[Any], Any]], needed: Iterable[str] = ()
) -> Callable[[Any], bool]:
    """Returns a function that says whether a value is a table of known keys with valid values."""
    return lambda value: (
        isinstance(value, dict)
        and set(needed) <= value.keys() <= known.keys()
        and all(known[key](own) for key, own in value.items())
    )


class Field(NamedTuple):
    """A field that an item's file may set.

    Attributes:
      kind: The valid values in words.
      is_right: Says whether a value is valid.
      help: Its meaning as Markdown.
    """

    kind: str
    is_right: Callable[[Any], bool]
    help: str


def _field(
    kind: str,
    is_right: Callable[[Any], bool],
    default: Any = dataclasses.MISSING,
    *,
    help: str,
) -> Any:
    """Returns a field of a set-up that an item's file may set.

    Args:
      kind: The valid values in words, for errors.
      is_right: Function that says whether a value is valid.
      default: Its value if the file does not set it; without a default the file must set it.
      help: Its meaning as Markdown, for docs/items.md.
    """
    known = {"field": Field(kind, is_right, help)}
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
    title: str = _field(
        *_TEXT,
        help="of the item, and of each set-up: data, clients and scale in words",
    )
    rounds: int = _field(
        "a whole number above 0",
        _is_count,
        0,
        help="of the protocol; a row whose `sweep` has `total_rounds` overrides it",
    )
    seeds: Sequence[int] = _field(
        "a list of whole numbers",
        _is_seeds,
        [],
        help="each is `--seed` and `--client_datasets_random_seed`",
    )
    rows: Mapping[str, Row] = _field(
        "a table row = flag file",
        _is_texts,
        {},
        help='from the folder of the TOML file; further flags may follow, such as `"blobs.flags '
        "--algorithm=fedavg\"`. The whole name of a row names its runs' folders; a name with"
        " blanks or slashes gets a short digest there",
    )
    columns: Sequence[Mapping[str, Any]] = _field(
        f"a list of tables with name and metric, and of {', '.join(list(_OF_COLUMN)[2:])}",
        lambda v: isinstance(v, list) and all(map(_is_column, v)),
        [],
        help="of the table. `metric` is a column of `metrics.csv` ([metrics](metrics.md)); then "
        "`scale`, `offset` and `power` are applied. `digits` is the number of decimals shown, by "
        "default four significant digits. It is the final model's value. With `last_rounds` it is "
        "the mean over these, at most the second half of the run. "
        'With `best` (`"max"`, `"min"`) it is the best of the rounds that `--rounds_per_eval` '
        "evaluates. Set only one of the two. With `reading_of` the published number of that column "
        "stands beside this one, too. `higher_is_better` is needed where the metric's name does "
        "not say it",
    )
    grid: Mapping[str, Space] = _field(
        "a table row = { flag = [values] }",
        _is_grid,
        {},
        help="one point of it is chosen by `selection`. With `sample` a flag may have a range "
        "instead: `{log = [0.001, 1]}` or `{linear = [0, 1]}`",
    )
    sample: Mapping[str, int] = _field(
        "a table of points (a whole number above 0) and seed (a whole number)",
        _of_keys({"points": _is_count, "seed": lambda v: _is_seeds([v])}, ["points"]),
        {},
        help="this many quasi-random points are tried, and not all combinations. Rows that share"
        " their first settings are tried at the same values of these",
    )
    points_of: str = _field(
        *_TEXT,
        "",
        help="name of another item of the folder. Each row runs at the best point that this item's "
        "set-ups found, so it has no `grid` here. The item's runs must be done. See [final "
        "runs](#final-runs)",
    )
    widen: Mapping[str, Any] = _field(
        "a table of times (a whole number above 0) and flags (a list of texts)",
        _of_keys({"times": _is_count, "flags": _is_list_of_texts}, ["times", "flags"]),
        {},
        help="While the best point lies at an edge of one of these settings, the next value "
        "beyond it is run with the best point's other settings. The step is the factor "
        "between the edge and its neighbour. It is repeated at most `times` times. Name "
        "settings without a natural bound, such as rates",
    )
    search: Mapping[str, Any] = _field(
        "a table of factor (2 or more), rounds and budget (above 0) and restart (true or false)",
        _of_keys(
            {
                "factor": lambda v: _is_count(v) and v > 1,
                "rounds": _is_count,
                "budget": lambda v: is_number(v) and v > 0,
                "restart": lambda v: isinstance(v, bool),
            }
        ),
        {},
        help="the grid's point is found by [successive halving](#search)",
    )
    selection: Mapping[str, Any] = _field(
        "a table of metric (a text), last_rounds (above 0), seeds (some whole numbers) and "
        "higher_is_better (true or false)",
        _of_keys(
            {
                "metric": lambda v: isinstance(v, str),
                "last_rounds": _is_count,
                "seeds": lambda v: _is_seeds(v) and v,
                "higher_is_better": lambda v: isinstance(v, bool),
            }
        ),
        {},
        help="The point with the best mean of `metric` over the last rounds, at most the second "
        "half of the run, wins. The metric's name says whether that is the highest or the least, "
        "such as for accuracy and loss. For other names, set `higher_is_better`. The mean is over "
        "`seeds`, by default all. If `--seeds` names none of them, the given seeds choose, and a "
        "line says so. By default `validation/loss` over the last 5 rounds. Never take a column of "
        "test data: a line below the table then says so",
    )
    validation_fraction: float = _field(
        "a number above 0 and below 1",
        lambda v: isinstance(v, float) and 0 < v < 1,
        0.1,
        help="share of each client's training examples that the runs hold out "
        "(`--validation_fraction`) where `selection` reads a `validation/...` column; 0.1 "
        "by default. A flag file that sets `--validation_fraction` or "
        "`--validation_clients` goes before it",
    )
    curve: str = _field(
        *_TEXT,
        "",
        help="column that is drawn over rounds",
    )
    curve_label: str = _field(
        *_TEXT,
        "",
        help="name of that column in figures",
    )
    figures: Sequence[Mapping[str, Any]] = _field(
        "a list of tables with kind",
        lambda v: (
            isinstance(v, list)
            and all(isinstance(f, dict) and isinstance(f.get("kind"), str) for f in v)
        ),
        [{"kind": "curves"}],
        help="what is drawn; kinds and what they take are in `reproduction/drawing.py`. The "
        "curve by default",
    )
    higher_is_better: bool | None = _field(
        *_BOOL,
        None,
        help="of the first column in figures of settings; by default the metric's name decides. "
        "If it does not, `rates`, `best_rates` and `tau` need this",
    )
    draws: Sequence[str] = _field(
        "a list of texts",
        lambda v: isinstance(v, list) and all(map(_is_value, v)),
        [],
        help="for figures that need no run: arguments of Python that draw to `{output}`, from "
        "`{data_dir}`",
    )
    folder: str = _field(
        *_TEXT,
        "",
        help="where the runs go, `<item>/<setup>` by default: items that show the same runs "
        "share one",
    )
    published: str = _field(
        *_TEXT,
        "",
        help="name of the set-up in `published.csv` where it differs",
    )
    published_rows: Mapping[str, str] = _field(
        *_TEXTS,
        {},
        help="row = its name in `published.csv`, where that differs",
    )
    counted_rows: Mapping[str, str] = _field(
        *_TEXTS,
        {},
        help="for the papers' scoreboard only",
    )
    counts: bool = _field(
        *_BOOL,
        True,
        help="for the papers' scoreboard only",
    )
    planned: bool = _field(
        *_BOOL,
        False,
        help="for the papers' scoreboard only",
    )
    stand_in: str = _field(
        *_TEXT,
        "",
        help="what is not the paper's; is said beside every result",
    )
    reasons: Mapping[str, str] = _field(
        *_TEXTS,
        {},
        help="why its numbers differ most from the published ones, where that is known",
    )
    seconds: Mapping[str, float] = _field(
        "a table row = seconds",
        lambda v: isinstance(v, dict) and all(isinstance(s, int | float) for s in v.values()),
        {},
        help='seconds a round on one core, `"*"` for any row; for `--dry_run` before anything is'
        " measured",
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

    def points(self, row: str) -> list[dict[str, Any]]:
        """Returns the points of the row's grid; one empty point if it has no grid."""
        number, seed = self.sample.get("points"), self.sample.get("seed", 0)
        return points.of_space(self.grid.get(row, {}), number, seed)


# Name → field. `sweep` is no field of `Setup`: it is expanded into rows.
FIELDS: Mapping[str, Field] = {
    **{f.name: f.metadata["field"] for f in dataclasses.fields(Setup) if f.metadata},
    "sweep": Field(
        "a table row = { flag = [values] }",
        _is_sweep,
        "each point becomes a row, `row name=value`",
    ),
}
# What a file must set.
REQUIRED = ("title", "rounds", "seeds", "rows", "columns")
# Columns of runs.csv and of a comparison's table, which a set-up's own column would replace.
TAKEN = (
    *("row", "seed", "rounds", "selection", "seconds_per_round", "device", "commit"),
    *("method_version", "task_version", "chosen", "run", "method", "seeds"),
)
# Flags that every run gets from `seeds`, so that rows and grids cannot set them.
SEEDS = ("seed", "client_datasets_random_seed")


def words(row: str, settings: Settings) -> list[str]:
    """Returns settings as texts such as `gamma=0.1`, without the method's name as a prefix."""
    method = row.split(" ")[0]
    return [
        f"{flag.removeprefix(f'{method}_')}={format_value(value)}"
        for flag, value in settings.items()
    ]


def point_in_words(point: Settings) -> str:
    """Returns a grid's point as a text such as `server_learning_rate=0.1, tau=0.001`."""
    return ", ".join(f"{flag}={format_value(value)}" for flag, value in point.items())


def format_value(value: Value) -> str:
    """Returns a setting's value as shown in tables and in names of folders."""
    return f"{value:g}" if isinstance(value, float) else str(value)
