"""A set-up's figures, each as PNG and PDF, in the one look of `figures`.

A figure is a line of the item's `figures`: `kind`, and what the kind takes.

    curves         `column` of metrics.csv over rounds, mean and spread over seeds; `label`
    density        clients' values of `column` of client_metrics.csv
    pareto         the columns `mean_error` and `error_rsd` of the set-up, over the swept setting
    rates          the first column over client and server rate, as heat maps
    best_rates     the best server rate of each client rate
    tau            the first column over tau
    setting        the first column over `setting`
    improved       share of clients whose loss did not rise
    client_losses  training losses of the clients that were followed
    direction      length of the update's direction
    similarity     linear CKA of what ten clients keep, by `part` of it (FedCAda, Figure 2)
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from common import figures
from reproduction import plots, results, run_folders
from reproduction.items import PlannedRun, Setup
from simulation import experiment_flags


def draw(
    setup: Setup,
    runs: Sequence[PlannedRun],
    chosen: Mapping[str, Mapping[str, Any]],
    folder: pathlib.Path,
) -> list[str]:
    """Draws the set-up's figures from the chosen points of its rows, in place of older ones.

    Args:
      setup: The set-up.
      runs: Its runs; those that have not begun, or diverged, are left out where they must be.
      chosen: Row → chosen point.
      folder: Where the files go.

    Returns:
      Paths of the files written; none for a figure that no run has anything for.
    """
    begun = [r for r in runs if r.point == chosen[r.row] and len(r.read().rounds)]
    ended = [r for r in begun if r.read().summary]
    for old in (path for kind in KINDS for path in folder.glob(f"{kind}*.p[dn][fg]")):
        old.unlink(missing_ok=True)
    paths = []
    for i, wanted in enumerate(setup.figures):
        make = KINDS[wanted["kind"]]
        some = ended if make in _OF_ENDED else begun
        figure = make(setup, some, wanted) if some else None
        if figure is not None:
            name = wanted["kind"] + (f"_{i + 1}" if i else "")
            paths += figures.save(figure, str(folder / name))
    return paths


def _points(runs, column) -> pd.DataFrame:
    parts = []
    for run in runs:
        metrics = run.read().metrics
        if column in metrics:
            values = metrics[["round_num", column]].dropna().rename(columns={column: "value"})
            parts.append(values.assign(method=run.row, seed=run.seed))
    columns = ["method", "seed", "round_num", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _curves(setup, runs, wanted):
    points = _points(runs, wanted.get("column", setup.curve))
    label = wanted.get("label", setup.curve_label)
    return plots.curves(points, ylabel=label, title=_title(setup)) if len(points) else None


def _title(setup) -> str:
    # Two lines at most: a long title would squeeze the panel.
    words = setup.title.split("; ")
    return "\n".join(["; ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _density(setup, runs, wanted):
    values = {}
    for run in runs:
        clients = run.read().clients
        if clients is not None and wanted["column"] in clients:
            values.setdefault(run.row, []).append(clients[wanted["column"]].dropna())
    joined = {row: pd.concat(parts).to_numpy() for row, parts in values.items()}
    return plots.densities(joined, xlabel=f"{wanted['column']} of a client") if joined else None


def _pareto(setup, runs, wanted):
    columns = {c["name"]: c for c in setup.columns}
    rows = []
    for run in runs:
        settings = setup.rows[run.row].settings
        rows.append(
            {
                "method": run.row.split(" ")[0],
                "parameter": next((float(v) for v in settings.values()), float("nan")),
                "mean_error": results.column_value(run, columns["mean_error"]),
                "rsd": results.column_value(run, columns["error_rsd"]),
            }
        )
    points = pd.DataFrame(rows).groupby(["method", "parameter"], dropna=False, sort=False).mean()
    return plots.pareto(points.reset_index())


def _settings_and_values(setup, runs, *flags) -> pd.DataFrame:
    """Returns method, seed, settings by flag and the first column; NaN where a run diverged."""
    rows = []
    for run in runs:
        in_force = experiment_flags.parse(run.command).in_force
        method = in_force["algorithm"]
        ended = run.read().summary is not None
        value = results.column_value(run, setup.columns[0]) if ended else float("nan")
        named = {flag: in_force[flag.format(method=method)] for flag in flags}
        rows.append({"method": run.row.split(" ")[0], "seed": run.seed, **named, "value": value})
    return pd.DataFrame(rows)


def _rates(setup, runs, wanted):
    points = _settings_and_values(setup, runs, "client_learning_rate", "server_learning_rate")
    return plots.rate_heat_maps(
        points, label=setup.columns[0]["name"], higher_is_better=setup.higher_is_better
    )


def _best_rates(setup, runs, wanted):
    points = _settings_and_values(setup, runs, "client_learning_rate", "server_learning_rate")
    losses = {"metric": "eval/loss", "last_rounds": 100}
    ended = [run.read().summary is not None for run in runs]
    points["loss"] = [
        results.column_value(run, losses) if e else float("inf")
        for run, e in zip(runs, ended, strict=True)
    ]
    return plots.best_server_rates(points, higher_is_better=setup.higher_is_better)


def _tau(setup, runs, wanted):
    points = _settings_and_values(setup, runs, "{method}_tau")
    return plots.tau_curves(
        points.rename(columns={"{method}_tau": "tau"}),
        ylabel=setup.curve_label,
        higher_is_better=setup.higher_is_better,
    )


def _setting(setup, runs, wanted):
    flag = wanted["setting"]
    points = _settings_and_values(setup, runs, flag).dropna(subset="value")
    figure, axes = figures.panels(width=1.4)
    for i, (method, group) in enumerate(points.groupby("method", sort=False)):
        by_setting = group.groupby(flag).value
        mean, spread = by_setting.mean(), by_setting.std().fillna(0)
        axes[0, 0].errorbar(
            mean.index, mean, spread, marker="o", ms=4, color=figures.colour(i), label=method
        )
    axes[0, 0].set(xlabel=flag.replace("_", " "), ylabel=setup.curve_label, title=_title(setup))
    figures.legend(axes[0, 0])
    return figure


def _improved(setup, runs, wanted):
    points = _points(runs, "fairness/improved_fraction")
    return plots.improved(points, title=_title(setup)) if len(points) else None


def _direction(setup, runs, wanted):
    points = _points(runs, "train/direction_norm")
    return plots.direction_norms(points, title=_title(setup)) if len(points) else None


def _client_losses(setup, runs, wanted):
    found = [run_folders.read_run(str(run.folder)) for run in runs]
    return plots.client_losses(run_folders.tracked_losses(found), title=_title(setup))


def _similarity(setup, runs, wanted):
    from reproduction import cka  # Imports TensorFlow, which nothing else here needs.

    matrices = {
        f"{run.row}, seed {run.seed}": cka.of_run(str(run.folder), wanted["part"], 10)
        for run in runs
    }
    return plots.similarities(matrices)


KINDS = {
    "curves": _curves,
    "density": _density,
    "pareto": _pareto,
    "rates": _rates,
    "best_rates": _best_rates,
    "tau": _tau,
    "setting": _setting,
    "improved": _improved,
    "client_losses": _client_losses,
    "direction": _direction,
    "similarity": _similarity,
}
# What needs a final model; the others show a run that diverged as far as it came.
_OF_ENDED = (_density, _pareto, _similarity)
