"""Figures of the papers, from tables of results.

    python -m reproduction.plots curves results/synthetic_fedavg --output=figure.png

Every function takes a `pandas.DataFrame` (or arrays) and returns a `matplotlib` figure, which
`figures.save` writes. `reproduction.run_folders` makes these tables from folders of runs.

KIND is one of

    curves          a column of metrics.csv over rounds, mean and standard deviation over seeds
    density         density of clients' accuracies (AdaFedAdam Fig. 2, AdaFed Fig. 7)
    pareto          mean error of clients against its relative deviation, over a swept setting
                    (AdaFedAdam Fig. 3)
    improved        share of clients whose loss did not rise, over rounds (AdaFed Fig. 2)
    client_losses   training losses of single clients over rounds (AdaFed Fig. 3)
    direction       length of the update's direction, relative to its largest (AdaFed Fig. 4)
    rates           heat maps over client and server learning rates (FedOpt Figs. 5 to 11)
    best_rates      best server rate for each client rate (FedOpt Fig. 12)
    tau             best result for each tau (FedOpt Fig. 3, 13)
"""

from typing import Any

from tff_suite import command_line, parser

_MOST_ROUNDS = 1_000_000
_KINDS = (
    "curves",
    "density",
    "pareto",
    "improved",
    "client_losses",
    "direction",
    "rates",
    "best_rates",
    "tau",
)

_OF_RESULTS = "pareto, rates, best_rates, tau"
PARSER = parser.Parser(__doc__)
PARSER.positional("kind", "what to draw", choices=_KINDS)
PARSER.positional("run", "folder of a run", many=True)
PARSER.flag("output", help="File to write; PNG and PDF are both written.", required=True, path=True)
PARSER.flag(
    "column",
    help="Column of metrics.csv; density, pareto: the metric's name. Default: the primary metric; "
    "pareto: accuracy.",
)
PARSER.flag("parameter", "alpha", "pareto: the swept setting, without its method's name.")
PARSER.flag(
    "last_rounds",
    100,
    f"{_OF_RESULTS}: rounds over which a result is averaged.",
    minimum=1,
    maximum=_MOST_ROUNDS,
)
PARSER.flag(
    "smooth", 1, "curves, improved: values of a running mean.", minimum=1, maximum=_MOST_ROUNDS
)
PARSER.flag(
    "lower_is_better",
    help=f"{_OF_RESULTS}: whether lower values are better. By default the runs' task decides for "
    "its primary metric, and the column's name for others.",
    type=bool,
)
PARSER.flag("title", help="Title of the figure.")
PARSER.flag(
    "figure_width",
    help="Inches of the figure; 3.25 or 6.75 for a column of a paper. Default: as its panels need.",
    type=float,
    minimum=2.0,
    maximum=20.0,
)
PARSER.flag("log", False, "curves: a logarithmic axis of values.")

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction import quantities, run_folders
from reproduction.kinds.clients import densities, pareto, pareto_optimal, similarities
from reproduction.kinds.rounds import client_losses, curves, direction_norms, improved
from reproduction.kinds.settings import (
    best_over_seeds,
    best_server_rates,
    by_setting,
    rate_heat_maps,
    tau_curves,
)
from reproduction.kinds.summary import summary
from simulation.errors import RunError
from tasks import directions
from tff_suite import figures

__all__ = [
    "best_over_seeds",
    "best_server_rates",
    "by_setting",
    "client_losses",
    "curves",
    "densities",
    "direction_norms",
    "improved",
    "pareto",
    "pareto_optimal",
    "rate_heat_maps",
    "similarities",
    "summary",
    "tau_curves",
]


def _draw(options: Any, runs: Any) -> Figure:
    """Draws the figure of a command line."""
    kind, title = options.kind, options.title
    if kind == "density":
        metric = options.column or run_folders.primary_column(runs).removeprefix("eval/")
        values = run_folders.client_values(runs, metric)
        for pair in run_folders.twins(runs):
            print(f"{run_folders.told_twins(*pair)}. The figure shows the clients of both.")
        return densities(values, quantity=quantities.of_column(metric), title=title)
    if kind == "pareto":
        points = _pareto_points(runs, options)
        error = "mean error of clients (%)"
        if not quantities.is_share(options.column or "accuracy"):
            error = f"mean {options.column} of clients".replace("_", " ")
        return pareto(points, parameter=options.parameter, error=error, title=title)
    if kind == "client_losses":
        return client_losses(run_folders.tracked_losses(runs), title=title)
    if kind in ("curves", "improved", "direction"):
        own = {"improved": "fairness/improved_fraction", "direction": "train/direction_norm"}
        column = options.column or own.get(kind) or run_folders.primary_column(runs)
        points, left_out = run_folders.without_diverged(runs, column)
        if left_out:
            print(f"Not drawn, since they diverged: {'; '.join(left_out)}.")
        if kind == "improved":
            return improved(points, smooth=options.smooth, title=title)
        if kind == "direction":
            return direction_norms(points, title=title)
        return curves(
            points,
            quantity=quantities.of_column(column),
            title=title,
            smooth=options.smooth,
            log=options.log,
        )
    column = options.column or run_folders.primary_column(runs)
    quantity = quantities.of_column(column)
    rates = {
        "client_learning_rate": "client_learning_rate",
        "server_learning_rate": "server_learning_rate",
    }
    settings = {"tau": "{method}_tau", **rates} if kind == "tau" else rates
    points = run_folders.grid(runs, column, options.last_rounds, **settings)
    points = points.assign(value=quantity.factor * points.value)
    # In shorter runs fewer rounds are averaged, see `run_folders.mean_of_last`.
    ended = [run for run, value in zip(runs, points.value, strict=True) if value == value]
    last = min(options.last_rounds, *(max(1, len(r.rounds) // 2) for r in ended or runs))
    label = f"{quantity.label}, mean of the last {last} rounds"
    higher = _is_higher_better(options, runs, column)
    if kind == "tau":
        return tau_curves(points, ylabel=label, higher_is_better=higher, title=title)
    if kind == "rates":
        return rate_heat_maps(points, label=label, higher_is_better=higher, title=title)
    losses = [run_folders.final(run, "eval/loss", options.last_rounds) for run in runs]
    points = points.assign(loss=losses)
    return best_server_rates(points, higher_is_better=higher, title=title)


def _is_higher_better(options: Any, runs: Any, column: str) -> bool:
    """Returns whether higher values of a column are better.

    Raises:
      RunError: If neither the flag, the runs nor the column's name tells.
    """
    if options.lower_is_better is not None:
        return not options.lower_is_better
    metric = column.rpartition("/")[2]
    for run in runs:
        known = run_folders.primary_direction(run)
        if known is not None and known[0] == metric:
            return known[1]
    named = directions.higher_is_better(column)
    if named is None:
        raise RunError(
            f"Nothing says whether lower values of {column} are better: add --lower_is_better or "
            "--nolower_is_better."
        )
    return named


def _pareto_points(runs: Any, options: Any) -> pd.DataFrame:
    """Returns mean error and its relative deviation per setting of the swept flag, over seeds."""
    metric = options.column or "accuracy"
    higher, is_share = _is_higher_better(options, runs, metric), quantities.is_share(metric)
    if higher and not is_share:
        raise RunError(
            f"pareto draws errors, and {metric} is neither an error nor a share such as accuracy; "
            "choose another --column."
        )
    factor = 100 if is_share else 1
    run_folders.refuse_means(runs, [f"{{method}}_{options.parameter}"])
    rows = []
    for run in runs:
        flag = f"{run.method}_{options.parameter}"
        mean = factor * run_folders.final(run, f"fairness/{metric}_avg_u", options.last_rounds)
        rows.append(
            {
                "method": run.method,
                "parameter": float(run.flags.get(flag, np.nan)),
                "mean_error": 100 - mean if higher else mean,
                "rsd": run_folders.final(
                    run, f"fairness/{metric}_error_rsd_u", options.last_rounds
                ),
            }
        )
    points = pd.DataFrame(rows).groupby(["method", "parameter"], sort=False, dropna=False)
    # If one seed diverged, the setting's mean is NaN.
    return points.agg(lambda v: v.mean(skipna=False)).dropna().reset_index()


@command_line.reported
def main(arguments: list[str]) -> int:
    """Draws the figure that the arguments describe.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0, or 1 if the runs don't hold what the figure needs.
    """
    options = PARSER.parse(arguments)
    runs = [run_folders.read_run(folder) for folder in options.run]
    try:
        figure = _draw(options, runs)
        paths = figures.save(figure, options.output, width=options.figure_width)
    except (ArithmeticError, ValueError) as e:  # matplotlib and SciPy, for numbers too large.
        raise RunError(f"Cannot draw {options.kind} for these runs: {e}") from e
    print("\n".join(paths))
    return 0


if __name__ == "__main__":
    command_line.run(main)
