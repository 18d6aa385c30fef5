"""Folders of finished or unfinished runs as tables, for figures and tables made of many runs."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hparams import Value
from simulation import experiment_flags
from simulation.errors import RunError
from simulation.records import outputs

# Flags in which runs of one line of a figure may differ: they choose no method and no setting.
_NOT_SETTINGS = (experiment_flags.MAY_CHANGE - {"total_rounds"}) | {
    "algorithm",
    "client_datasets_random_seed",
    "rounds_per_eval",
    "seed",
}


class Run(NamedTuple):
    """What a run left.

    Attributes:
      folder: Path of its folder.
      flags: Every setting in force, by flag.
      metrics: metrics.csv: `round_num` (int), then float columns, NaN where a row is blank.
      clients: client_metrics.csv, `client_id` as text; `None` if the run has none (yet).
    """

    folder: str
    flags: Mapping[str, Any]
    metrics: pd.DataFrame
    clients: pd.DataFrame | None

    @property
    def method(self) -> str:
        """The method, the value of `--algorithm`."""
        return self.flags["algorithm"]


def read_run(folder: str) -> Run:
    """Reads the folder of a run.

    Raises:
      RunError: If it holds no run, or a damaged one.
    """
    path = os.path.join(folder, "hparams.json")
    recorded = outputs.read_json(path)
    columns, rows = outputs.read_csv(os.path.join(folder, "metrics.csv"))
    if recorded is None:
        raise RunError(
            f"{folder} is not the folder of a run: it holds no hparams.json; give "
            "<root_output_dir>/<experiment_name>."
        )
    flags = recorded.get("flags")
    if (
        not isinstance(flags, dict)
        or not isinstance(flags.get("algorithm"), str)
        or not isinstance(flags.get("seed"), int)
        or not all(isinstance(value, Value) for value in flags.values())
    ):
        raise RunError(f"{path} is damaged: parts of it are missing.")
    metrics = pd.DataFrame(rows, columns=columns, dtype=object).replace("", np.nan)
    metrics = metrics.astype({c: int if c == outputs.ROUND else float for c in columns})
    clients = _read_clients(os.path.join(folder, "client_metrics.csv"))
    return Run(folder, flags, metrics, clients)


def _read_clients(path) -> pd.DataFrame | None:
    """Reads client_metrics.csv; `None` if there is no such file."""
    try:
        clients = pd.read_csv(path, dtype={"client_id": str}, encoding="utf-8")
        numbers = [c for c in clients if c != "client_id"]
        return clients.astype(dict.fromkeys(numbers, float))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise RunError(f"Cannot use {path}: {e.strerror or e}.") from e
    except (ValueError, OverflowError) as e:  # pandas' own errors are ValueErrors.
        raise RunError(f"{path} is damaged: {str(e)[:200]}.") from e


def labels(runs: Sequence[Run]) -> list[str]:
    """Names each run by its method and the settings in which runs of that method differ.

    Seeds, folders and the like don't count, so runs that only differ in seed share a name.
    """
    named = []
    for run in runs:
        settings = [f"{k.removeprefix(run.method + '_')}={run.flags[k]}" for k in swept(runs, run)]
        named.append(" ".join([run.method, *settings]))
    return named


def swept(runs: Sequence[Run], of: Run) -> list[str]:
    """Returns the flags of settings in which runs of one run's method differ, in their order."""
    same = [run.flags for run in runs if run.method == of.method]
    return [
        flag
        for flag in of.flags
        if flag not in _NOT_SETTINGS and any(f.get(flag) != of.flags[flag] for f in same)
    ]


def curve(runs: Sequence[Run], column: str) -> pd.DataFrame:
    """Returns a column of metrics.csv of several runs, one row per run and round that has it.

    Args:
      runs: The runs.
      column: The column, e.g. `eval/accuracy`.

    Returns:
      Columns `method` (see `labels`), `seed`, `round_num` and `value`.

    Raises:
      RunError: If a run lacks the column.
    """
    parts = []
    for run, label in zip(runs, labels(runs), strict=True):
        values = _values(run, column)
        parts.append(values.assign(method=label, seed=run.flags["seed"]))
    return pd.concat(parts, ignore_index=True)[["method", "seed", "round_num", "value"]]


def final(run: Run, column: str, last_rounds: int) -> float:
    """Returns the mean of a column over its values in the last rounds.

    Args:
      run: The run.
      column: The column of metrics.csv.
      last_rounds: Number of rounds; 1 is the value after the last round.

    Returns:
      The mean; NaN where a value is not finite, as in runs that diverged.

    Raises:
      RunError: If the run lacks the column, or has no value in these rounds.
    """
    values = _values(run, column)
    last = values[values.round_num > run.metrics.round_num.max() - last_rounds].value
    if not len(last):
        raise RunError(f"{run.folder} has no {column} in its last {last_rounds} rounds.")
    return float(np.mean(last)) if np.all(np.isfinite(last)) else float("nan")


def grid(runs: Sequence[Run], column: str, last_rounds: int, **flags: str) -> pd.DataFrame:
    """Returns one row per run: settings by name, and `value`, the `final` of a column.

    Args:
      runs: The runs.
      column: The column of metrics.csv.
      last_rounds: See `final`.
      **flags: Name of a column of the result → the flag of `hparams.json` that it holds; the name
        of a method in braces, as in `{method}_tau`, is filled in.

    Raises:
      RunError: If a run has no such flag or column.
    """
    rows = []
    for run in runs:
        row = {"method": run.method, "seed": run.flags["seed"]}
        for name, pattern in flags.items():
            flag = pattern.format(method=run.method)
            if not isinstance(run.flags.get(flag), int | float):
                raise RunError(f"{run.folder} has no number as --{flag}.")
            row[name] = run.flags[flag]
        rows.append({**row, "value": final(run, column, last_rounds)})
    return pd.DataFrame(rows)


def client_values(runs: Sequence[Run], metric: str) -> dict[str, np.ndarray]:
    """Returns a metric of each client of the final models, runs of one name joined.

    Args:
      runs: The runs.
      metric: Column of client_metrics.csv, e.g. `accuracy`.

    Returns:
      Name (see `labels`) → float `[clients with test examples, times seeds]`.

    Raises:
      RunError: If a run has no such column.
    """
    values = {}
    for run, label in zip(runs, labels(runs), strict=True):
        if run.clients is None:
            raise RunError(f"{run.folder} has no client_metrics.csv: the run is not at its end.")
        if metric not in run.clients:
            known = ", ".join(run.clients.columns[3:])
            raise RunError(f"{run.folder} has no clients' {metric}; it has {known}.")
        values.setdefault(label, []).append(run.clients[metric].dropna().to_numpy(float))
    return {label: np.concatenate(parts) for label, parts in values.items()}


def tracked_losses(runs: Sequence[Run]) -> pd.DataFrame:
    """Returns the training losses of the clients that runs with `--track_clients` followed.

    Returns:
      Columns `method` (see `labels`), `seed`, `client`, `round_num`, `value`.

    Raises:
      RunError: If a run followed none.
    """
    parts = []
    for run, label in zip(runs, labels(runs), strict=True):
        columns = list(_starting(run.metrics.columns, outputs.TRACKED))
        if not columns:
            raise RunError(
                f"{run.folder} holds no clients' losses: it ran without --track_clients."
            )
        for column in columns:
            client = column.removeprefix(outputs.TRACKED)
            values = _values(run, column)
            parts.append(values.assign(method=label, seed=run.flags["seed"], client=client))
    return pd.concat(parts, ignore_index=True)[["method", "seed", "client", "round_num", "value"]]


def _values(run, column) -> pd.DataFrame:
    if column not in run.metrics:
        raise RunError(f"{run.folder} has no column {column} in metrics.csv.")
    values = run.metrics[["round_num", column]].dropna()
    return values.rename(columns={column: "value"})


def _starting(names, prefix) -> Iterator[str]:
    return (name for name in names if name.startswith(prefix))
