"""A set-up's figures, each as PNG and PDF with its data as CSV, in the style of `figures`.

The figure `results` shows all rows beside the published values, from results.csv and runs.csv. It
is left out if a figure over a swept setting shows the same. Further figures are tables in the
item's `figures`, with `kind` and the options of the kind:

    curves         `column` of metrics.csv over rounds, mean and standard deviation over seeds;
                   `label`, the axis label without a unit; `log = true` for a logarithmic axis, here
                   and in `results`; `smooth = N` for a running mean of N values, stated in the
                   legend
    density        clients' values of `column` of client_metrics.csv
    pareto         the columns `mean_error` and `error_rsd` of the set-up, over the swept setting
    rates          the first column over client and server rate, as heat maps
    best_rates     the best server rate of each client rate
    tau            the first column over tau
    setting        the first column over `setting`
    improved       share of clients whose loss did not rise; `smooth` as for `curves`
    client_losses  training losses of the tracked clients
    direction      length of the update's direction
    similarity     linear CKA of the states of ten clients, by their `part` (FedCAda, Figure 2)

In all figures, fractions have the unit of the set-up's columns: percent if these are scaled by 100.
A figure is drawn from its CSV alone, so `draw_again` does not need the runs.
"""

import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction import columns, plots, quantities, results, run_folders
from reproduction.items import PlannedRun, ReproduceError, Setup
from tff_suite import command_line, figures, writing

# Most panels of `results`, one per column of the table.
_MOST_PANELS = 3
_RATES = ("client_learning_rate", "server_learning_rate")


class Kind(NamedTuple):
    """A kind of figure.

    Attributes:
      table: (set-up, runs, table in `figures`) → the figure's data; `None` if no run has any.
      figure: (set-up, data, table in `figures`) → the figure.
      of_ended: Whether it needs final models. Other kinds show a diverged run up to its end.
      swept: Whether it shows every row's results over settings, so that `results` would repeat it.
      of_best: Whether it shows or marks a best point, so it must know which values are better.
      takes: Required keys of its table in `figures`.
      options: Optional keys.
      columns: Columns that the set-up must have.
      flags: Flags that must be numbers in every row. `{method}` stands for the row's method,
        `{setting}` for the key `setting` of the table in `figures`.
    """

    table: Callable[[Setup, Sequence[PlannedRun], Mapping[str, Any]], pd.DataFrame | None]
    figure: Callable[[Setup, pd.DataFrame, Mapping[str, Any]], Figure]
    of_ended: bool = False
    swept: bool = False
    of_best: bool = False
    takes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


def check(setup: Setup, runs: Sequence[PlannedRun]) -> None:
    """Refuses figures that cannot be drawn, before hours of runs.

    Args:
      setup: The set-up.
      runs: Its planned runs.

    Raises:
      ReproduceError: If a kind of figure is unknown, or the set-up or a run lacks something that
        the figure needs.
    """

    def refuse(text):
        raise ReproduceError(f"{setup.item} {setup.name}: figures: {text}")

    rows = {run.row: run for run in runs}
    for wanted in setup.figures:
        name = wanted["kind"]
        if name not in KINDS:
            refuse(f"kind {name} is unknown; known: {', '.join(KINDS)}.")
        kind = KINDS[name]
        for key in kind.takes:
            if not isinstance(wanted.get(key), str):
                refuse(f"{name} needs {key}, a text.")
        known = ("kind", *kind.takes, *kind.options)
        for key in wanted:
            if key not in known:
                refuse(f"{name} takes no {key}; known: {', '.join(known)}.")
        smooth = wanted.get("smooth", 1)
        if not isinstance(smooth, int) or isinstance(smooth, bool) or smooth < 1:
            refuse(f"smooth must be a whole number above 0, found {smooth}.")
        for column in kind.columns:
            if column not in {c["name"] for c in setup.columns}:
                refuse(f"{name} needs a column {column}.")
        for row, run in rows.items() if kind.flags else ():
            for flag, value in _settings_shown(setup, run, kind, wanted).items():
                if not isinstance(value, int | float) or isinstance(value, bool):
                    refuse(f"{name} needs a number as --{flag} of {row}.")
        if kind.of_best and _known_better(setup) is None:
            refuse(
                f"{name}: set higher_is_better to true or false; {setup.columns[0]['metric']} does "
                "not say which."
            )
        _refuse_means(setup, rows if kind.swept else {}, wanted, refuse)


def _refuse_means(
    setup: Setup,
    rows: Mapping[str, PlannedRun],
    wanted: Mapping[str, Any],
    refuse: Callable[[str], None],
) -> None:
    """Refuses rows of one sweep that a figure would place at one point."""
    name = wanted["kind"]
    places: dict[Any, str] = {}
    for row, run in rows.items():
        shown = _settings_shown(setup, run, KINDS[name], wanted)
        other = places.setdefault((setup.rows[row].base, *shown.items()), row)
        if other != row:
            settings = " and ".join(f"--{flag}" for flag in shown)
            refuse(
                f"{name} would draw the mean of {other} and {row}, which have the same {settings}; "
                "put their other settings into rows, or into grid."
            )


def _settings_shown(
    setup: Setup, run: PlannedRun, kind: Kind, wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns flag → value of the settings by which a kind of figure places a run."""
    of_sweep = setup.rows[run.row].settings
    if not kind.flags:
        return dict(list(of_sweep.items())[:1])
    # A budget may give runs of several lengths the same number of rounds.
    in_force = {**run.request().in_force, **of_sweep}
    named = (flag.replace("{setting}", str(wanted.get("setting"))) for flag in kind.flags)
    flags = [flag.format(method=in_force["algorithm"]) for flag in named]
    return {flag: in_force.get(flag) for flag in flags}


def draw(
    setup: Setup,
    runs: Sequence[PlannedRun],
    chosen: Mapping[str, Mapping[str, Any]],
    folder: pathlib.Path,
    width: float | None = None,
) -> list[str]:
    """Draws the set-up's figures for the chosen points of its rows, and removes older figures.

    Args:
      setup: The set-up.
      runs: Its runs. Runs that have not begun are left out. Figures of final models leave out rows
        in which a run has none.
      chosen: Row → chosen point.
      folder: Folder of the files. `results` is drawn only if results.csv and runs.csv are there.
      width: Inches of each figure, for a column of a paper; see `figures.fit`.

    Returns:
      Paths of the figures written; figures without data are left out.
    """
    wanted_runs = [r for r in runs if r.point == chosen[r.row]]
    begun = [r for r in wanted_runs if len(r.read().rounds)]
    # If a row lacks a seed, the mean of its other seeds is not comparable.
    lacking = {r.row for r in wanted_runs if not r.read().summary}
    ended = [r for r in begun if r.row not in lacking]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        # Not the user's `curves_of_mine.png`.
        if old.suffix in (".png", ".pdf", ".csv") and re.sub(r"_\d+$", "", old.stem) in KINDS:
            old.unlink()
    for name, wanted in setup.named_figures():
        kind = KINDS[wanted["kind"]]
        some = ended if kind.of_ended else begun
        table = kind.table(setup, some, wanted) if some else None
        if table is not None and len(table):
            text = table.to_csv(index=False, float_format="%.7g")
            writing.write_atomically(folder / f"{name}.csv", text.encode())
    return draw_again(setup, folder, width=width)


def draw_again(
    setup: Setup,
    folder: pathlib.Path,
    endings: Sequence[str] = (".png", ".pdf"),
    width: float | None = None,
) -> list[str]:
    """Draws a set-up's figures from the CSV files in a folder.

    Args:
      setup: The set-up.
      folder: A folder of results or of recorded results.
      endings: File name endings of the formats to write.
      width: As for `draw`.

    Returns:
      Paths of the figures written; figures without data are left out.
    """
    paths = []
    for name, figure in drawn(setup, folder, width):
        try:
            paths += figures.save(figure, str(folder / name), endings, width)
        except figures.NoRoomError as e:
            figures.close(figure)
            command_line.warn(f"{name} is not drawn. {e}")
    return paths


def drawn(
    setup: Setup, folder: pathlib.Path, width: float | None = None
) -> Iterator[tuple[str, Figure]]:
    """Yields the name and the figure of each figure whose data are in a folder."""
    swept = any(KINDS[wanted["kind"]].swept for _, wanted in setup.named_figures())
    if (folder / "results.csv").exists() and not swept:
        figure = _results(
            setup,
            _read(folder / "results.csv", seeds=str),
            _read(folder / "runs.csv", seed=str),
            width,
        )
        if figure is not None:
            yield "results", figure
    for name, wanted in setup.named_figures():
        if (folder / f"{name}.csv").exists():
            table = _read(folder / f"{name}.csv")
            yield name, KINDS[wanted["kind"]].figure(setup, table, wanted)


def _heading(setup: Setup, rounds: str = "") -> str:
    """Returns a figure's title; a second line names the stand-in, if it is one."""
    title = "; ".join(part for part in (setup.heading, rounds) if part)
    return f"{title}\nStand-in: {setup.stand_in}" if setup.stand_in else title


def _read(path: pathlib.Path, **dtypes: type) -> pd.DataFrame:
    return run_folders.read_table(path, ("client", "method", "row"), **dtypes)


def _results(
    setup: Setup, rows: pd.DataFrame, runs: pd.DataFrame, width: float | None = None
) -> Figure | None:
    """Draws what the set-up's rows came to, with seeds and published values."""
    theirs = results.published(setup)
    shown = _shown_columns(setup, rows, theirs)
    if not shown:
        return None
    chosen = runs[runs.chosen.astype(str) == "True"]
    table = []
    for column in shown:
        reading = column.get("reading_of", column["name"])
        panel = _column_label(setup, column, rows)
        for row in dict.fromkeys(rows.row):
            one = {"row": row, "panel": panel, "status": "", "spread": np.nan}
            ours = rows[(rows.row == row) & (rows.column == column["name"])]
            for found in ours.itertuples():
                spread = found.spread if pd.notna(found.spread) else np.nan
                table.append({**one, "kind": "mean", "value": found.value, "spread": spread})
                table[-1]["status"] = found.status
            seeds = chosen[chosen.row == row]
            if column["name"] in seeds and len(seeds) > 1:
                table += [{**one, "kind": "seed", "value": v} for v in seeds[column["name"]]]
            paper = theirs.get((setup.published_rows.get(row, row), reading))
            if paper is not None:
                value, spread = float(paper["value"]), float(paper["spread"] or "nan")
                table.append({**one, "kind": "published", "value": value, "spread": spread})
    reached = rows.dropna(subset="rounds")
    protocols = pd.Series(setup.rounds, reached.index)
    if "protocol_rounds" in rows:
        protocols = reached.protocol_rounds
    short = (reached.rounds < protocols).any()
    protocol = int(protocols.max()) if short else None
    logarithmic = {w.get("column", setup.curve) for w in setup.figures if w.get("log")}
    return plots.summary(
        pd.DataFrame(table),
        title=_heading(setup, _told_rounds(reached.rounds, protocol)),
        published=f"published, after {protocol:,} rounds" if short else "published",
        log=[_column_label(setup, c, rows) for c in shown if c["metric"] in logarithmic],
        foreign=bool(setup.stand_in),
        inches=width,
    )


def _told_rounds(rounds: Any, protocol: Any) -> str:
    """Returns a text on the rounds of the values, and of the protocol if more; blank if unknown."""
    if not len(rounds):
        return ""
    least, most = int(rounds.min()), int(rounds.max())
    told = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    part = f" of the protocol's {protocol:,}" if protocol and least < protocol else ""
    return f"after {told} rounds{part}"


def _shown_columns(setup, rows, theirs):
    """Returns the columns to show: those that the paper has, or else the first ones."""
    columns = [c for c in setup.columns if c["name"] in set(rows.column)]
    names = {column for _, column in theirs}
    both = [c for c in columns if c["name"] in names]
    return (both or columns)[:_MOST_PANELS]


def _column_label(setup: Setup, column: Any, rows: Any = None) -> str:
    """Returns the label of a column of the table: its quantity, rounds and unit."""
    label = setup.curve_label if column["metric"] == setup.curve else None
    quantity = quantities.of_column(column["metric"], label)
    words = quantity.label.removesuffix(" (%)")
    scale, power = column.get("scale", 1), column.get("power", 1)
    if power != 1:
        root = "square root of the " if power == 0.5 else f"power {power:g} of the "
        words, unit = f"{root}{words}{' in percent' * (scale == 100)}", ""
    else:
        if scale < 0:  # Of a share, what is missing to all of it.
            is_error = "accuracy" in words and column.get("offset", 0) == -scale
            words = words.replace("accuracy", "error") if is_error else f"negative {words}"
        unit = {100: "%", 1: ""}.get(abs(scale), f"× {abs(scale):g}")
    if "last_rounds" in column:
        number = results.rounds_averaged(column, () if rows is None else rows.rounds.dropna())
        words += f", mean of the last {number} rounds"
    elif "best" in column:
        words += ", best round"
    return f"{words} ({unit})" if unit else words


def _points(runs: pd.DataFrame, column: str) -> pd.DataFrame | None:
    parts = []
    for run in runs:
        metrics = run.read().metrics
        if column in metrics:
            values = metrics[["round_num", column]].dropna().rename(columns={column: "value"})
            parts.append(values.assign(method=run.row, seed=run.seed))
    columns = ["method", "seed", "round_num", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else None


def _curve_points(setup, runs, wanted):
    return _points(runs, wanted.get("column", setup.curve))


def _curves(setup, points, wanted):
    column = wanted.get("column", setup.curve)
    label = wanted.get("label") or (setup.curve_label if column == setup.curve else None)
    published, words = _published_marks(setup, column, points)
    return plots.curves(
        points,
        quantity=_quantity(setup, column, label),
        title=_heading(setup),
        smooth=wanted.get("smooth", 1),
        log=wanted.get("log", False),
        published=published,
        published_as=words,
        protocol=setup.rounds,
    )


def _quantity(setup: Setup, column: Any, label: str | None = None) -> quantities.Quantity:
    """Returns the quantity of a column of metrics.csv, in the unit of the set-up's columns."""
    quantity = quantities.of_column(column, label)
    if quantity.factor == 1:
        return quantity
    shares = [c for c in setup.columns if quantities.of_column(c["metric"]).factor != 1]
    shares = [c for c in shares if c["metric"] == column] or shares
    if not shares or any(abs(c.get("scale", 1)) == 100 for c in shares):
        return quantity
    return quantities.Quantity(quantity.label.removesuffix(" (%)"), 1.0, (0.0, 1.0))


def _published_marks(
    setup: Setup, column: Any, points: pd.DataFrame
) -> tuple[dict[str, float], str]:
    """Returns row → the published value of a column of metrics.csv, and their legend text.

    These are values of the final model if the paper has them. Otherwise they are taken from the
    first column that has any, e.g. the best round of the run, and the legend says so.
    """
    theirs = results.published(setup)
    factor = _quantity(setup, column).factor
    candidates = [
        one
        for one in setup.columns
        if one["metric"] == column
        and not {"power", "offset"} & set(one)
        and one.get("scale", 1) > 0
    ]
    for one in sorted(candidates, key=lambda c: bool({"best", "last_rounds"} & set(c))):
        found = {}
        for row in dict.fromkeys(points.method):
            paper = theirs.get((setup.published_rows.get(row, row), one["name"]))
            if paper is not None:
                found[row] = float(paper["value"]) * factor / one.get("scale", 1)
        if found:
            words = "published"
            if "best" in one:
                words = "published best of the run"
            elif "last_rounds" in one:
                words = f"published mean of the last {one['last_rounds']} rounds"
            return found, words
    return {}, "published"


def _client_values(setup, runs, wanted):
    parts = []
    for run in runs:
        clients = run.read().clients
        if clients is not None and wanted["column"] in clients:
            values = clients[["client_id", wanted["column"]]].dropna()
            values.columns = ["client", "value"]
            parts.append(values.assign(method=run.row, seed=run.seed))
    columns = ["method", "seed", "client", "value"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else None


def _density(setup, table, wanted):
    values = {name: group.value for name, group in table.groupby("method", sort=False)}
    quantity = _quantity(setup, wanted["column"])
    return plots.densities(values, quantity=quantity, title=_heading(setup))


def _pareto_points(setup, runs, wanted):
    columns = {c["name"]: c for c in setup.columns}
    rows = []
    for run in runs:
        settings = setup.rows[run.row].settings
        rows.append(
            {
                "method": setup.rows[run.row].base,
                "parameter": next((float(v) for v in settings.values()), float("nan")),
                "mean_error": results.column_value(run, columns["mean_error"]),
                "rsd": results.column_value(run, columns["error_rsd"]),
            }
        )
    points = pd.DataFrame(rows).groupby(["method", "parameter"], dropna=False, sort=False)
    # If a seed has no value, such as a relative deviation from no error, neither has the setting.
    return points.agg(lambda v: v.mean(skipna=False)).dropna().reset_index()


def _pareto(setup, points, wanted):
    parameters = {}
    for name, row in setup.rows.items():
        method = name.split(" ")[0]
        for flag in row.settings:
            # A row's name may only begin with that of its method (`qfedavg_reweight`).
            prefix = os.path.commonprefix([flag, f"{method}_"])  # noqa: RUF071
            parameters.setdefault(row.base, flag.removeprefix(prefix[: prefix.rfind("_") + 1]))
    return plots.pareto(points, parameters=parameters, title=_heading(setup))


def _settings_and_values(setup: Setup, runs: pd.DataFrame, *flags: str) -> pd.DataFrame:
    """Returns method, seed, settings by flag and the first column; NaN where a run diverged."""
    rows = []
    for run in runs:
        in_force = run.request().in_force
        method = in_force["algorithm"]
        ended = run.read().summary is not None
        value = results.column_value(run, setup.columns[0]) if ended else float("nan")
        named = {flag: in_force[flag.format(method=method)] for flag in flags}
        line = setup.rows[run.row].base
        rows.append({"method": line, "seed": run.seed, **named, "value": value})
    return pd.DataFrame(rows)


def _rate_points(setup, runs, wanted):
    points = _settings_and_values(setup, runs, *_RATES)
    return points.assign(rounds=[run.read().last_round for run in runs])


def _rates(setup, points, wanted):
    return plots.rate_heat_maps(
        points,
        label=_column_label(setup, setup.columns[0], _with_values(points)),
        higher_is_better=_is_higher_better(setup),
        title=_title(setup, points),
    )


def _is_higher_better(setup: Setup) -> bool:
    return _known_better(setup) is not False  # `check` refuses what is unknown.


def _known_better(setup: Setup) -> bool | None:
    """Returns whether higher values of the first column are better; `None` if nothing says so."""
    if setup.higher_is_better is not None:
        return setup.higher_is_better
    return results.higher_is_better(setup.columns[0])


def _title(setup: Setup, points: pd.DataFrame) -> str:
    return _heading(setup, _told_rounds(_with_values(points).rounds, setup.rounds))


def _with_values(points: pd.DataFrame) -> pd.DataFrame:
    """Returns the points of runs that did not diverge; all points if every run diverged."""
    valued = points[points.value.notna()]
    return valued if len(valued) else points


def _best_rate_points(setup, runs, wanted):
    points = _rate_points(setup, runs, wanted)
    losses = {"metric": columns.OF_FIGURES["best_rates"], "last_rounds": 100}
    points["loss"] = [
        results.column_value(run, losses) if run.read().summary is not None else float("nan")
        for run in runs
    ]
    return points


def _best_rates(setup, points, wanted):
    return plots.best_server_rates(
        points.drop(columns="rounds"),
        higher_is_better=_is_higher_better(setup),
        title=_title(setup, points),
    )


def _tau_points(setup, runs, wanted):
    points = _settings_and_values(setup, runs, "{method}_tau")
    points = points.rename(columns={"{method}_tau": "tau"})
    return points.assign(rounds=[run.read().last_round for run in runs])


def _tau(setup, points, wanted):
    return plots.tau_curves(
        points.drop(columns="rounds"),
        ylabel=_column_label(setup, setup.columns[0], _with_values(points)),
        higher_is_better=_is_higher_better(setup),
        title=_title(setup, points),
    )


def _setting_points(setup, runs, wanted):
    points = _settings_and_values(setup, runs, wanted["setting"])
    points = points.rename(columns={wanted["setting"]: "setting"})
    return points.assign(rounds=[run.read().last_round for run in runs])


def _setting(setup, points, wanted):
    # If the setting is the number of rounds, the axis shows it and the title need not.
    of_rounds = wanted["setting"] == "total_rounds"
    return plots.by_setting(
        points,
        setting=wanted["setting"].replace("_", " "),
        ylabel=_column_label(setup, setup.columns[0], _with_values(points)),
        title=_heading(setup) if of_rounds else _title(setup, points),
    )


def _improved_points(setup, runs, wanted):
    return _points(runs, columns.OF_FIGURES["improved"])


def _improved(setup, points, wanted):
    return plots.improved(
        points, smooth=wanted.get("smooth", 1), title=_heading(setup), protocol=setup.rounds
    )


def _direction_points(setup, runs, wanted):
    return _points(runs, columns.OF_FIGURES["direction"])


def _direction(setup, points, wanted):
    return plots.direction_norms(points, title=_heading(setup), protocol=setup.rounds)


def _loss_points(setup, runs, wanted):
    return run_folders.tracked_losses([run_folders.read_run(str(run.folder)) for run in runs])


def _client_losses(setup, points, wanted):
    return plots.client_losses(points, title=_heading(setup), protocol=setup.rounds)


def _similarity_points(setup, runs, wanted):
    from reproduction import cka  # Imports TensorFlow, which no other figure needs.

    parts = []
    for run in runs:
        matrix = cka.of_run(str(run.folder), wanted["part"], 10)
        one, other = np.indices(matrix.shape)
        pairs = {"client": one.ravel(), "other": other.ravel(), "value": matrix.ravel()}
        parts.append(pd.DataFrame(pairs).assign(method=run.row, seed=run.seed))
    return pd.concat(parts, ignore_index=True)


def _similarity(setup, table, wanted):
    matrices = {}
    for (row, seed), group in table.groupby(["method", "seed"], sort=False):
        number = int(len(group) ** 0.5)
        matrices[f"{row}, seed {seed}"] = group.value.to_numpy().reshape(number, number)
    return plots.similarities(matrices, title=_heading(setup))


KINDS = {
    "curves": Kind(_curve_points, _curves, options=("column", "label", "log", "smooth")),
    "density": Kind(_client_values, _density, of_ended=True, takes=("column",)),
    "pareto": Kind(
        _pareto_points, _pareto, of_ended=True, swept=True, columns=("mean_error", "error_rsd")
    ),
    "rates": Kind(_rate_points, _rates, swept=True, of_best=True, flags=_RATES),
    "best_rates": Kind(_best_rate_points, _best_rates, swept=True, of_best=True, flags=_RATES),
    "tau": Kind(_tau_points, _tau, swept=True, of_best=True, flags=("{method}_tau",)),
    "setting": Kind(
        _setting_points, _setting, swept=True, takes=("setting",), flags=("{setting}",)
    ),
    "improved": Kind(_improved_points, _improved, options=("smooth",)),
    "client_losses": Kind(_loss_points, _client_losses),
    "direction": Kind(_direction_points, _direction),
    "similarity": Kind(_similarity_points, _similarity, of_ended=True, takes=("part",)),
}
