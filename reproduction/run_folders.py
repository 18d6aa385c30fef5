"""Reads folders of finished or unfinished runs, each file once for all figures and tables."""

import difflib
import functools
import hashlib
import itertools
import json
import os
import pathlib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import tasks
import tff_algos
from simulation import model_identity, run_hparams
from simulation.errors import RunError
from simulation.records import metrics_csv, outputs
from tasks import fingerprint
from tff_suite import specs
from tff_suite.hparams import Value

if typing.TYPE_CHECKING:
    import pandas as pd

# Flags in which runs of one line of a figure may differ: they choose no method and no setting.
_NOT_SETTINGS = (run_hparams.MAY_CHANGE - {"total_rounds"}) | {
    "algorithm",
    "client_datasets_random_seed",
    "rounds_per_eval",
    "seed",
}


# Columns of a table of curves.
_CURVE = ("method", "seed", "round_num", "value")

# The files that are read. If one of them changes, the folder is read again.
_FILES = ("hparams.json", "metrics.csv", "client_metrics.csv", "summary.json", outputs.DIVERGED)
_MOST_FOLDERS = 128


class Circumstances(NamedTuple):
    """Data, device and code of a run.

    Attributes:
      data: Description of task, clients and examples.
      device: The device that TensorFlow used.
      commit: The commit of the code; `None` outside git.
    """

    data: str
    device: str
    commit: str | None


class RunFolder:
    """The files of a run; each is read once, when it is first needed.

    Callers share the contents and must not change them. All attributes and methods raise a
    `RunError` if the file that they read is damaged.

    Attributes:
      folder: Path of the folder.
    """

    def __init__(self, folder: str):
        """Initialises without reading anything. Prefer `opened`, which shares read folders."""
        self.folder = folder

    def _file(self, name):
        return os.path.join(self.folder, name)

    def _damaged(self, name):
        return RunError(f"{self._file(name)} is damaged: parts of it are missing.")

    @functools.cached_property
    def recorded(self) -> dict[str, Any] | None:
        """The content of hparams.json, unchecked; `None` if the run has not begun."""
        return outputs.read_json(self._file("hparams.json"))

    @functools.cached_property
    def ended(self) -> dict[str, Any] | None:
        """The content of summary.json, unchecked; `None` if the run has not ended, or diverged."""
        return outputs.read_json(self._file("summary.json"))

    @functools.cached_property
    def flags(self) -> Mapping[str, Any]:
        """Every setting in force that the run recorded, by flag.

        Raises:
          RunError: If the folder does not hold a run.
        """
        if self.recorded is None:
            raise RunError(
                f"{self.folder} is not the folder of a run, since it has no hparams.json; pass "
                "<root_output_dir>/<experiment_name>."
            )
        flags = self.recorded.get("flags")
        if (
            not isinstance(flags, dict)
            or not isinstance(flags.get("algorithm"), str)
            or not isinstance(flags.get("seed"), int)
            or not all(isinstance(value, Value) for value in flags.values())
        ):
            raise self._damaged("hparams.json")
        return flags

    @property
    def method(self) -> str:
        """The method, the value of `--algorithm`."""
        return self.flags["algorithm"]

    @functools.cached_property
    def circumstances(self) -> Circumstances | None:
        """Data, device and code of the run; `None` if it has not begun."""
        recorded = self.recorded or {}
        start, flags = recorded.get("start"), recorded.get("flags", {})
        if not isinstance(start, dict | None) or not isinstance(flags, dict):
            raise self._damaged("hparams.json")
        if not start:
            return None
        clients, examples = recorded.get("num_clients"), recorded.get("num_training_examples")
        device: Any = start.get("device")
        commit = start.get("git_commit", 0)
        kinds = (clients, int), (examples, int), (device, str), (commit, str | None)
        if "task" not in flags or not all(isinstance(value, kind) for value, kind in kinds):
            raise self._damaged("hparams.json")
        made = " made up" if flags.get("use_synthetic_data") else ""
        data = f"{flags['task']}{made}, {clients:,} clients, {examples:,} training examples"
        return Circumstances(data, device, commit)

    @property
    def versions(self) -> dict[str, int]:
        """The versions of the run's `method` and `task`; 1 where the run recorded none."""
        made_of = _part(self.recorded, "identity")
        return {kind: _part(made_of, kind).get("version", 1) for kind in ("method", "task")}

    @functools.cached_property
    def data_digest(self) -> str | None:
        """A digest of the run's data; `None` if data_digests.json is missing or damaged."""
        try:
            digests = outputs.read_json(self._file("data_digests.json"))
        except RunError:
            return None
        return fingerprint.whole(digests) if digests else None

    @functools.cached_property
    def summary(self) -> Mapping[str, Any] | None:
        """The content of summary.json; `None` if the run has not ended, or diverged."""
        summary = self.ended
        if summary is not None and not (
            isinstance(summary.get("rounds"), int)
            and isinstance(summary.get("final"), dict)
            and all(
                isinstance(value, int | float | None)
                for value in (summary.get("mean_round_seconds"), *summary["final"].values())
            )
        ):
            raise self._damaged("summary.json")
        return summary

    @functools.cached_property
    def diverged(self) -> bool:
        """Whether training diverged, so that the run stopped early."""
        return self.ended is None and outputs.read_json(self._file(outputs.DIVERGED)) is not None

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """The rounds of metrics.csv, and column → its rounds and numbers that are not blank."""
        columns, rows = metrics_csv.read_csv(self._file("metrics.csv"))
        rounds = np.array([int(row[metrics_csv.ROUND]) for row in rows], np.int64)
        table = {}
        for column in columns[1:]:
            found = [i for i, row in enumerate(rows) if row[column]]
            table[column] = rounds[found], np.array([float(rows[i][column]) for i in found])
        return rounds, table

    @functools.cached_property
    def digest_of_numbers(self) -> str:
        """A digest of metrics.csv without the columns of times, equal if every number is."""
        content = hashlib.sha256()
        for column, (rounds, numbers) in self._table[1].items():
            if not column.startswith("time/"):
                content.update(column.encode() + b"\0" + rounds.tobytes() + numbers.tobytes())
        return content.hexdigest()

    @property
    def rounds(self) -> np.ndarray:
        """The rounds in metrics.csv, int64; empty if the run has not begun."""
        return self._table[0]

    @property
    def last_round(self) -> int:
        """The last round in metrics.csv; 0 if the run has not begun."""
        return int(self.rounds[-1]) if len(self.rounds) else 0

    @property
    def columns(self) -> Sequence[str]:
        """The columns of metrics.csv after `round_num`, including entirely blank ones."""
        return list(self._table[1])

    def values(self, column: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rounds in which a column of metrics.csv is not blank, and its numbers there.

        Numbers may be NaN or infinite. Both arrays are empty if the column does not exist.
        """
        return self._table[1].get(column, (np.zeros(0, np.int64), np.zeros(0)))

    @functools.cached_property
    def metrics(self) -> "pd.DataFrame":
        """metrics.csv: `round_num` (int), then float columns, NaN where a row is blank."""
        return metrics_csv.read_metrics(self._file("metrics.csv"))

    @functools.cached_property
    def clients(self) -> "pd.DataFrame | None":
        """client_metrics.csv, `client_id` as text; `None` if the run has none (yet)."""
        path = self._file("client_metrics.csv")
        try:
            clients = read_table(path, ["client_id"])
            numbers = [c for c in clients if c != "client_id"]
            return clients.astype(dict.fromkeys(numbers, float))
        except FileNotFoundError:
            return None
        except OSError as e:
            raise RunError(f"Cannot use {path}: {e.strerror or e}.") from e
        except (ValueError, OverflowError) as e:  # pandas' own errors are ValueErrors.
            raise RunError(f"{path} is damaged: {str(e)[:200]}.") from e


def read_table(path: str | os.PathLike, words: Iterable[str], **dtypes: type) -> "pd.DataFrame":
    """Reads a CSV file, with some columns as unconverted text.

    Only the other columns can have missing values, since "NA" may be a client's name and "null" a
    row's.

    Args:
      path: The file.
      words: Columns of text; those that the file lacks are ignored.
      **dtypes: Column → type, for other columns.
    """
    import pandas as pd

    columns = pd.read_csv(path, nrows=0, encoding="utf-8").columns
    words = columns.intersection(list(words))
    return pd.read_csv(
        path,
        dtype={**dtypes, **dict.fromkeys(words, str)},
        keep_default_na=False,
        na_values={column: ["", "nan", "NaN", "NA"] for column in columns.difference(words)},
        encoding="utf-8",
    )


def opened(folder: str | os.PathLike) -> RunFolder:
    """Returns the folder of a run that may not have begun; cached until a file changes."""
    folder = os.fspath(folder)
    return _opened(folder, tuple(_state_of(os.path.join(folder, name)) for name in _FILES))


@functools.lru_cache(maxsize=_MOST_FOLDERS)
def _opened(folder, states):
    del states
    return RunFolder(folder)


def _state_of(path):
    """Returns values that change when a file does; `None` if the file does not exist."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # ValueError: a zero byte in the path.
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_run(folder: str) -> RunFolder:
    """Reads the folder of a run.

    Raises:
      RunError: If it holds no run, or a damaged one.
    """
    run = opened(folder)
    # Read everything, so that damage is reported before any of it is used.
    _ = run.flags, run.metrics, run.clients
    return run


def find_runs(folders: Iterable[str]) -> list[RunFolder]:
    """Returns the runs in folders, at any depth, by path.

    Raises:
      RunError: If a folder holds no run, or a damaged one.
    """
    found = {}
    for folder in folders:
        paths = sorted(pathlib.Path(folder).rglob("hparams.json"))
        # Replaced runs, and runs that tuned a rate, are included only if named explicitly.
        paths = [path for path in paths if not _is_replaced(path.parent, pathlib.Path(folder))]
        if not paths:
            raise RunError(f"{folder} holds no run: there is no hparams.json in it or below it.")
        found |= {path.parent: None for path in paths}
    return [read_run(str(path)) for path in found]


def _is_replaced(path: pathlib.Path, within: pathlib.Path) -> bool:
    parts = path.relative_to(within).parts
    return any(outputs.REPLACED.search(part) or part.endswith(".tuning") for part in parts)


def mixtures(runs: Sequence[RunFolder], names: Sequence[str] | None = None) -> list[str]:
    """Returns in which versions of code, data, method and task runs differ, and which, as lines.

    Only what should be the same is compared: the versions of one method or task, one file of code,
    the data of one task with equal settings and seed.

    Args:
      runs: Runs of one table.
      names: What the table calls each run; by default `labels`.
    """
    begun = [isinstance((run.recorded or {}).get("flags"), dict) for run in runs]
    some = list(itertools.compress(runs, begun))
    known = labels(some) if names is None else itertools.compress(names, begun)
    found: dict[str, dict[str, dict[str, list[int]]]] = {}
    without, accepted = 0, {}
    for run, name in zip(some, known, strict=True):
        recorded = run.recorded or {}
        made_of = recorded.get("identity")
        if not isinstance(made_of, dict):
            without, made_of = without + 1, {}
        for what, version in _versions(run, made_of):
            of_version = found.setdefault(what, {}).setdefault(version, {})
            of_version.setdefault(name, []).append(run.flags["seed"])
        changes = recorded.get("accepted_changes")
        for change in changes if isinstance(changes, list) else ():
            texts = "; ".join(map(str, _part(change, "changes", list)))
            accepted[texts] = accepted.get(texts, 0) + 1
    mixed = [_mixture(what, versions) for what, versions in found.items() if len(versions) > 1]
    told = "; ".join(dict.fromkeys(mixed))
    lines = [f"The runs are not all of one version: {told}."] if mixed else []
    if without and without < len(runs):
        lines.append(f"{without} of {len(runs)} runs recorded neither code nor versions.")
    lines += [
        f"Changes that were accepted in {n} of {len(runs)} runs: {texts}."
        for texts, n in accepted.items()
    ]
    return lines


def alike(runs: Sequence[RunFolder], names: Sequence[str] | None = None) -> list[str]:
    """Returns lines on finished runs that have the same numbers in every round.

    Their settings then differ in what has no effect, or nothing in them depends on the seed.

    Args:
      runs: Runs of one table.
      names: What the table calls each run with its settings, but not its seed; by default `labels`.
    """
    known = labels(runs) if names is None else names
    # Final numbers differ in nearly all cases, so few tables have to be compared.
    by_final = _grouped(zip(runs, known, strict=True), _finals)
    groups = [
        group for some in by_final for group in _grouped(some, lambda run: run.digest_of_numbers)
    ]
    of_settings: dict[tuple[str, ...], list[int]] = {}
    of_seeds: dict[tuple[int, ...], list[str]] = {}
    for group in groups:
        for seed in sorted({run.flags["seed"] for run, _ in group}):
            same = tuple(dict.fromkeys(name for run, name in group if run.flags["seed"] == seed))
            if len(same) > 1:
                of_settings.setdefault(same, []).append(seed)
        for name in dict.fromkeys(name for _, name in group):
            seeds = tuple(sorted(run.flags["seed"] for run, other in group if other == name))
            if len(set(seeds)) > 1:
                of_seeds.setdefault(seeds, []).append(name)
    return [
        f"{_some(same)} have the same numbers in every round (seed {_listed(seeds)}): what differs "
        "between them has no effect."
        for same, seeds in of_settings.items()
    ] + [
        f"The seeds {_listed(seeds)} give the same numbers in every round in {_some(same)}: "
        "nothing there depends on the seed, so there is no spread over seeds."
        for seeds, same in of_seeds.items()
    ]


def _grouped(named: Iterable[tuple[RunFolder, str]], key: Any) -> list[list[tuple]]:
    """Returns the groups of several runs with the same key; runs without one are left out."""
    groups: dict[Any, list[tuple]] = {}
    for run, name in named:
        if (value := key(run)) is not None:
            groups.setdefault(value, []).append((run, name))
    return [group for group in groups.values() if len(group) > 1]


def _finals(run: RunFolder) -> str | None:
    """Returns a finished run's rounds and final numbers as text; `None` if it has none."""
    ended = run.ended or {}
    known = [ended.get("rounds"), ended.get("final")]
    return json.dumps(known, sort_keys=True) if all(known) else None


def _some(names: Sequence[str]) -> str:
    """Returns names as part of a sentence; if there are many, only the first ones."""
    *others, last = _first(names)
    return " and ".join(filter(None, [", ".join(others), last]))


# Rows of a table that a line names.
_MOST_NAMED = 4


def _first(names: Sequence[str]) -> Sequence[str]:
    """Returns names; if there are many, the first ones and how many more there are."""
    if len(names) <= _MOST_NAMED:
        return names
    return [*names[: _MOST_NAMED - 1], f"{len(names) - _MOST_NAMED + 1} more"]


def _mixture(what: str, versions: Any) -> str:
    """Returns which versions of something there are, in which runs, and what has changed."""
    told = []
    what = what.partition("\0")[0]
    is_data = what.startswith("data of ")
    for version, of in versions.items():
        shown = version if len(version) <= 12 else "another" if told else "one"
        # Data depend on the seed, and differ with it for one reason.
        some = [n if is_data else f"{n} (seed {_listed(seeds)})" for n, seeds in of.items()]
        told.append(f"{shown} in {', '.join(_first(some))}")
    lines = _history(what, [int(v) for v in versions if v.isdigit()])
    return f"{what} {'; '.join(told)}" + (f" ({' '.join(lines)})" if lines else "")


def _listed(seeds: Iterable[int]) -> str:
    return " ".join(map(str, dict.fromkeys(seeds)))


def _history(what: str, versions: Any) -> Sequence[str]:
    """Returns what has changed from the earliest version of a method or task to the latest."""
    kind, _, name = what.removesuffix(", version").partition(" ")
    registry = {"method": tff_algos, "task": tasks}.get(kind)
    if registry is None or name not in registry.names() or not versions:
        return ()
    return specs.changes(registry.get(name).history, min(versions), max(versions))


def _part(content, name, kind=dict):
    """Returns a part of a file's content; an empty one if it is missing or damaged."""
    found = content.get(name) if isinstance(content, dict) else None
    return found if isinstance(found, kind) else kind()


def _versions(run: Any, made_of: Any) -> Iterator[tuple[str, str]]:
    """Yields each part of a run that should not change, with its version or digest."""
    flags = run.flags
    task = flags.get("task", "")
    for kind, name in (("method", run.method), ("task", task)):
        yield f"{kind} {name}, version", str(run.versions[kind])
    for module, parts in _part(made_of, "code").items():
        yield f"code of {module}", json.dumps(parts, sort_keys=True)
    stack = _part(run.recorded, "start").get("stack")
    if isinstance(stack, str):
        yield "stack", stack
    of_task = {k: v for k, v in flags.items() if k.startswith(f"{task}_")}
    model, values, data = (_part(made_of, name) for name in ("model", "values", "data"))
    built = json.dumps([task, of_task, flags.get("precision")], sort_keys=True)
    if model:
        drawn = model_identity.names_of_weights(model)  # By the seed.
        settings = {name: value for name, value in model.items() if name not in drawn}
        yield f"model of {task}\0{built}", json.dumps(settings, sort_keys=True)
    if values:
        yield f"values of {run.method} on {task}\0{built}", json.dumps(values, sort_keys=True)
    if data:
        fixed = (task, flags["seed"], flags.get("use_synthetic_data"), flags.get("initial_weights"))
        key = json.dumps([fixed, of_task], sort_keys=True)
        yield f"data of {task}\0{key}", str(data.get("digest"))


def mean_of_last(run: RunFolder, column: str, last_rounds: int) -> float:
    """Returns the mean of a column over those of the last rounds that have it.

    The mean covers at most the second half of the run's rows. Otherwise, in a run that ended early,
    it could include the start, which is not a result.

    Args:
      run: The run.
      column: The column of metrics.csv.
      last_rounds: Number of rounds; 1 is the last one.

    Returns:
      The mean; NaN if none of the rounds has a value, or if a value is not finite, as in diverged
      runs.
    """
    values = _of_last(run, column, last_rounds)
    if not values or not np.all(np.isfinite(values)):
        return float("nan")
    return sum(values) / len(values)


def _of_last(run: RunFolder, column: str, last_rounds: int) -> list[float]:
    last_rounds = min(last_rounds, max(1, len(run.rounds) // 2))
    rounds, values = run.values(column)
    return values[rounds > run.last_round - last_rounds].tolist()


def labels(runs: Sequence[RunFolder]) -> list[str]:
    """Names each run by its method and the settings in which runs of that method differ.

    Seeds, folders and other flags that may change on resumption are ignored. So runs that only
    differ in their seed share a name.
    """
    named = []
    for run in runs:
        settings = [f"{k.removeprefix(run.method + '_')}={run.flags[k]}" for k in swept(runs, run)]
        named.append(" ".join([run.method, *settings]))
    return named


def swept(runs: Sequence[RunFolder], of: RunFolder) -> list[str]:
    """Returns the flags of settings in which the runs with the same method as `of` differ."""
    same = [run.flags for run in runs if run.method == of.method]
    return [
        flag
        for flag in of.flags
        if flag not in _NOT_SETTINGS and any(f.get(flag) != of.flags[flag] for f in same)
    ]


def curve(runs: Sequence[RunFolder], column: str) -> "pd.DataFrame":
    """Returns a column of metrics.csv of several runs, one row per run and round with a value.

    Args:
      runs: The runs.
      column: The column, e.g. `eval/accuracy`.

    Returns:
      Columns `method` (see `labels`), `seed`, `round_num` and `value`.

    Raises:
      RunError: If a run lacks the column.
    """
    named = zip(runs, labels(runs), strict=True)
    return _joined([_of_curve(run, label, column) for run, label in named], _CURVE)


def _of_curve(run: RunFolder, label: str, column: str) -> "pd.DataFrame":
    return _values(run, column).assign(method=label, seed=run.flags["seed"])


def final(run: RunFolder, column: str, last_rounds: int) -> float:
    """As `mean_of_last`, but raises an error if there is no value.

    Raises:
      RunError: If the run lacks the column, or has no value in these rounds.
    """
    _check_column(run, column)
    if not _of_last(run, column, last_rounds):
        raise RunError(f"{run.folder} has no {column} in its last {last_rounds} rounds.")
    return mean_of_last(run, column, last_rounds)


def grid(runs: Sequence[RunFolder], column: str, last_rounds: int, **flags: str) -> "pd.DataFrame":
    """Returns one row per run: settings by name, and `value`, the `final` of a column.

    Args:
      runs: The runs.
      column: The column of metrics.csv.
      last_rounds: See `final`.
      **flags: Column of the result → flag of `hparams.json`. `{method}`, as in `{method}_tau`, is
        replaced by the run's method.

    Raises:
      RunError: If a run lacks a flag or the column, or if `refuse_means` refuses the runs.
    """
    import pandas as pd

    rows = []
    for run in runs:
        row = {"method": run.method, "seed": run.flags["seed"]}
        for name, pattern in flags.items():
            flag = pattern.format(method=run.method)
            if not isinstance(run.flags.get(flag), int | float):
                raise RunError(f"In {run.folder}, --{flag} is missing or not a number.")
            row[name] = run.flags[flag]
        rows.append({**row, "value": final(run, column, last_rounds)})
    refuse_means(runs, flags.values())
    return pd.DataFrame(rows)


def refuse_means(runs: Sequence[RunFolder], shown: Iterable[str]) -> None:
    """Refuses runs of one method and seed that a figure would place at one point.

    Args:
      runs: The runs of the figure.
      shown: The flags that it shows; `{method}` in one is replaced by the run's method.

    Raises:
      RunError: If two runs have the same method and seed, and the same values of these flags.
    """
    places: dict[Any, RunFolder] = {}
    for run in runs:
        flags = [flag.format(method=run.method) for flag in shown]
        place = run.method, run.flags["seed"], *(run.flags.get(flag) for flag in flags)
        other = places.setdefault(place, run)
        if other is run:
            continue
        differing = [flag for flag in swept([other, run], run) if flag not in flags]
        told = f"differ in {', '.join(differing)}" if differing else "have the same settings"
        raise RunError(
            f"{other.folder} and {run.folder} {told}, and the figure would show their mean; leave "
            "one of them out."
        )


def client_values(runs: Sequence[RunFolder], metric: str) -> dict[str, np.ndarray]:
    """Returns a metric of the final models for each client, over all runs with the same name.

    Args:
      runs: The runs.
      metric: Column of client_metrics.csv, e.g. `accuracy`.

    Returns:
      Name (see `labels`) → float `[clients with test examples, times seeds]`.

    Raises:
      RunError: If a run lacks the column.
    """
    values = {}
    for run, label in zip(runs, labels(runs), strict=True):
        if run.clients is None:
            raise RunError(f"{run.folder} has no client_metrics.csv, as the run has not ended.")
        if metric not in run.clients:
            known = ", ".join(run.clients.columns[3:])
            raise RunError(f"{run.folder} has no clients' {metric}; it has {known}.")
        values.setdefault(label, []).append(run.clients[metric].dropna().to_numpy(float))
    return {label: np.concatenate(parts) for label, parts in values.items()}


def primary_column(runs: Sequence[RunFolder]) -> str:
    """Returns the column of metrics.csv with the primary metric of the runs' tasks.

    Finished runs record it. If none of their columns is in another run, that run's is found by
    `outputs.primary_column`.

    Raises:
      RunError: If the runs have different ones.
    """
    known: dict[str, RunFolder] = {}
    for run in runs:
        best = set(_part(run.ended, "best")) - {metrics_csv.ROUND}
        if best:
            known.setdefault(best.pop(), run)
    for run in runs:
        if known.keys().isdisjoint(run.columns):
            found = outputs.primary_column(None, run.columns)
            if found:
                known.setdefault(found, run)
    if len(known) > 1:
        told = ", ".join(f"{column} of {run.folder}" for column, run in known.items())
        raise RunError(f"The runs have different primary metrics: {told}; choose one by --column.")
    return next(iter(known), "eval/accuracy")


def primary_direction(run: RunFolder) -> tuple[str, bool] | None:
    """Returns a run's primary metric and whether higher values of it are better.

    The run chose its best round by this direction. `None` if it has none, or if the round does not
    tell, since all rounds have the same value.
    """
    for column, value in _part(run.ended, "best").items():
        values = run.values(column)[1]
        if column.startswith("eval/") and len(values) and np.ptp(values) > 0:
            known = {np.max(values): True, np.min(values): False}.get(value)
            if known is not None:
                return column.removeprefix("eval/"), known
    return None


def without_diverged(runs: Sequence[RunFolder], column: str) -> tuple["pd.DataFrame", list[str]]:
    """As `curve`, but leaves out diverged runs, except of methods of which all runs diverged.

    A mean over the seeds of some rounds and over fewer seeds in later ones would jump.

    Args:
      runs: The runs.
      column: The column, e.g. `eval/accuracy`.

    Returns:
      The table without them, and a text on each run that is left out.

    Raises:
      RunError: If a run that is not left out lacks the column.
    """
    named = list(zip(runs, labels(runs), strict=True))
    kept = {label for run, label in named if not run.diverged}
    parts, left_out = [], []
    for run, label in named:
        # One run at a time, since another may have the same label and seed.
        if run.diverged and label in kept:
            left_out += where_ended({(label, run.flags["seed"]): run})
        else:
            parts.append(_of_curve(run, label, column))
    return _joined(parts, _CURVE), left_out


def where_ended(named: Mapping[tuple[str, int], RunFolder]) -> list[str]:
    """Returns a text on each run of `by_name`: what it is and where it ended."""
    return [
        f"{label} (seed {seed}) after round {run.last_round}"
        for (label, seed), run in named.items()
    ]


def by_name(runs: Sequence[RunFolder]) -> dict[tuple[str, int], RunFolder]:
    """Returns (label, seed) → run, see `labels`."""
    return {(label, run.flags["seed"]): run for run, label in zip(runs, labels(runs), strict=True)}


def twins(runs: Sequence[RunFolder]) -> list[tuple[RunFolder, RunFolder]]:
    """Returns each run whose label and seed an earlier one has, with that one before it.

    Such runs differ in code, data, or what a change of these left behind. A mean over the seeds of
    a label would count them as further seeds.

    Args:
      runs: The runs.
    """
    first: dict[tuple[str, int], RunFolder] = {}
    named = zip(runs, labels(runs), strict=True)
    pairs = [(first.setdefault((label, run.flags["seed"]), run), run) for run, label in named]
    return [(before, run) for before, run in pairs if before is not run]


def told_twins(before: RunFolder, run: RunFolder) -> str:
    """Returns what a pair of `twins` has in common, in words."""
    return f"{before.folder} and {run.folder} have the same settings and the same seed"


def tracked_losses(runs: Sequence[RunFolder]) -> "pd.DataFrame":
    """Returns the training losses of the clients in `--track_clients`.

    Returns:
      Columns `method` (see `labels`), `seed`, `client`, `round_num`, `value`.

    Raises:
      RunError: If a run did not track any client.
    """
    parts = []
    for run, label in zip(runs, labels(runs), strict=True):
        columns = list(_starting(run.metrics.columns, metrics_csv.TRACKED))
        if not columns:
            raise RunError(
                f"{run.folder} has no losses of clients, as it ran without --track_clients."
            )
        for column in columns:
            client = column.removeprefix(metrics_csv.TRACKED)
            values = _values(run, column)
            parts.append(values.assign(method=label, seed=run.flags["seed"], client=client))
    return _joined(parts, ["method", "seed", "client", "round_num", "value"])


def _values(run: RunFolder, column: str) -> "pd.DataFrame":
    _check_column(run, column)
    values = run.metrics[["round_num", column]].dropna()
    return values.rename(columns={column: "value"})


def _check_column(run, column):
    if column not in run.metrics:
        near = difflib.get_close_matches(column, run.columns, n=3)
        told = (
            f"the nearest are {', '.join(near)}" if near else "docs/metrics.md says what writes it"
        )
        raise RunError(f"{run.folder} has no column {column} in metrics.csv; {told}.")


def _joined(parts: Any, columns: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    return pd.concat(parts, ignore_index=True)[list(columns)]


def _starting(names: Iterable[str], prefix: str) -> Iterator[str]:
    return (name for name in names if name.startswith(prefix))
