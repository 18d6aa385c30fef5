"""Figures of the five papers, from tables of results.

Every function takes a `pandas.DataFrame` (or arrays) and returns a `matplotlib` figure, which
`figures.save` writes; `reproduction.run_folders` makes the tables of folders of runs. The same by
hand:

    python -m reproduction.plots KIND RUN_DIR... --output=figure.png

KIND is one of

    curves          a column of metrics.csv over rounds, mean and spread over seeds
    density         density of clients' accuracies (AdaFedAdam Fig. 2, AdaFed Fig. 7)
    pareto          mean error of clients against its relative deviation, over a swept setting
                    (AdaFedAdam Fig. 3)
    improved        share of clients whose loss did not rise, over rounds (AdaFed Fig. 2)
    client_losses   training losses of single clients over rounds (AdaFed Fig. 3)
    direction       length of the update's direction, relative to its largest (AdaFed Fig. 4)
    rates           heat maps over client and server learning rates (FedOpt Figs. 5 to 11)
    best_rates      best server rate for each client rate (FedOpt Fig. 12)
    tau             best result for each tau (FedOpt Fig. 3, 13)
    adjustments     adjustment functions and what they do to a step (FedCAda Fig. 3); no RUN_DIR
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

from common import command_line

if __name__ == "__main__":
    command_line.begin()

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from scipy import stats  # noqa: E402

from common import figures  # noqa: E402
from reproduction import run_folders  # noqa: E402
from simulation.errors import RunError  # noqa: E402

_ROUND = "round"
_MOST_ROUNDS = 1_000_000


def curves(
    points: pd.DataFrame, *, ylabel: str, title: str | None = None, smooth: int = 1
) -> Figure:
    """Draws values over rounds: a line per method, the mean over seeds, and a band around it.

    The band is one sample standard deviation over seeds (ddof 1) on either side; one seed has none.

    Args:
      points: Columns `method`, `seed`, `round_num`, `value`.
      ylabel: What the values are.
      title: Title of the panel.
      smooth: Each value becomes the mean of that many before and including it, within its seed.
    """
    figure, axes = figures.panels(width=1.4)
    _draw_curves(axes[0, 0], points, smooth)
    axes[0, 0].set(xlabel=_ROUND, ylabel=ylabel, title=title)
    return figure


def _draw_curves(axes, points, smooth=1):
    if points.duplicated(["method", "seed", "round_num"]).any():
        raise RunError("Two of the runs have the same settings and the same seed.")
    for i, (method, group) in enumerate(points.groupby("method", sort=False)):
        by_seed = group.pivot(index="round_num", columns="seed", values="value").sort_index()
        by_seed = by_seed.rolling(smooth, min_periods=1).mean()
        mean, spread = by_seed.mean(axis=1), by_seed.std(axis=1)
        axes.plot(mean.index, mean, color=figures.colour(i), label=method)
        if spread.notna().any():
            axes.fill_between(
                mean.index, mean - spread, mean + spread, color=figures.colour(i), alpha=0.2, lw=0
            )
    figures.legend(axes)


def densities(values: Mapping[str, Sequence[float]], *, xlabel: str) -> Figure:
    """Draws the density of clients' values: AdaFedAdam Fig. 2 (bottom), AdaFed Fig. 7.

    A Gaussian kernel density with Scott's bandwidth. Values that are all equal have no density and
    are shown as a vertical line.

    Args:
      values: Method → value of each client, finite.
      xlabel: What the values are.
    """
    figure, axes = figures.panels(width=1.4)
    axes = axes[0, 0]
    every = np.concatenate([np.asarray(v, float) for v in values.values()])
    if not all(map(len, values.values())) or not np.all(np.isfinite(every)):
        raise RunError(f"Not every run has a density of {xlabel}: values are missing or infinite.")
    margin = 0.1 * (np.ptp(every) or 1.0)
    grid = np.linspace(every.min() - margin, every.max() + margin, 400)
    for i, (method, of_clients) in enumerate(values.items()):
        of_clients = np.asarray(of_clients, float)
        if np.ptp(of_clients) > 0:
            axes.plot(
                grid, stats.gaussian_kde(of_clients)(grid), color=figures.colour(i), label=method
            )
        else:
            axes.axvline(of_clients[0], color=figures.colour(i), label=method)
    axes.set(xlabel=xlabel, ylabel="density of clients")
    axes.set_ylim(bottom=0)
    figures.legend(axes)
    return figure


def pareto_optimal(mean_error: Sequence[float], rsd: Sequence[float]) -> np.ndarray:
    """Returns which points no other point beats: less of one of the two and no more of the other.

    Args:
      mean_error: float `[n]`.
      rsd: float `[n]`.

    Returns:
      bool `[n]`.
    """
    both = np.stack([np.asarray(mean_error, float), np.asarray(rsd, float)], axis=1)
    no_worse = np.all(both[:, None] <= both[None], axis=2)
    better = np.any(both[:, None] < both[None], axis=2)
    return ~np.any(no_worse & better, axis=0)


def pareto(points: pd.DataFrame, *, parameter: str | None = None) -> Figure:
    """Draws the mean error of clients against its relative deviation: AdaFedAdam Fig. 3 (right).

    Points of a method are joined in the order of its parameter. The Pareto front, those points that
    no other of the figure beats in both, is a dashed line.

    Args:
      points: Columns `method`, `parameter` (numbers; NaN for methods without), `mean_error`, `rsd`;
        one row a setting.
      parameter: Name of the parameter, for the labels beside the points.
    """
    figure, axes = figures.panels(width=1.4)
    axes = axes[0, 0]
    for i, (method, group) in enumerate(points.groupby("method", sort=False)):
        group = group.sort_values("parameter")
        axes.plot(
            group.mean_error, group.rsd, marker="o", ms=4, color=figures.colour(i), label=method
        )
        for row in group.dropna(subset="parameter").itertuples():
            text = f"{parameter}={row.parameter:g}" if parameter else f"{row.parameter:g}"
            axes.annotate(
                text,
                (row.mean_error, row.rsd),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
            )
    front = points[pareto_optimal(points.mean_error, points.rsd)].sort_values("mean_error")
    axes.plot(front.mean_error, front.rsd, ls="--", lw=1, color="0.4", label="Pareto front")
    axes.set(xlabel="mean error of clients", ylabel="RSD of clients' errors")
    figures.legend(axes)
    return figure


def improved(points: pd.DataFrame, *, smooth: int = 1, title: str | None = None) -> Figure:
    """Draws ρ_t, the share of clients whose training loss did not rise: AdaFed Fig. 2.

    Args:
      points: As for `curves`; values are fractions.
      smooth: See `curves`.
      title: Title of the panel.
    """
    percent = points.assign(value=100 * points.value)
    figure = curves(percent, ylabel="improved clients ρ (%)", title=title, smooth=smooth)
    figure.axes[0].set_ylim(-2, 102)
    return figure


def client_losses(points: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Draws single clients' training losses over rounds, a panel per method: AdaFed Fig. 3.

    Args:
      points: Columns `method`, `seed`, `client`, `round_num`, `value`.
      title: Title of the figure.
    """
    methods = list(points.groupby("method", sort=False))
    figure, axes = figures.panels(len(methods), width=1.2, sharey=True)
    for panel, (method, group) in zip(axes[0], methods, strict=True):
        named = group.assign(method="client " + group.client.astype(str))
        _draw_curves(panel, named)
        panel.set(xlabel=_ROUND, title=method)
    axes[0, 0].set_ylabel("training loss")
    if title:
        figure.suptitle(title)
    return figure


def direction_norms(points: pd.DataFrame, *, title: str | None = None) -> Figure:
    """Draws ‖d_t‖ over rounds, each run's divided by its largest: AdaFed Fig. 4.

    Args:
      points: As for `curves`; values are norms.
      title: Title of the panel.
    """
    largest = points.groupby(["method", "seed"]).value.transform("max")
    return curves(points.assign(value=points.value / largest), ylabel="‖d‖ / max ‖d‖", title=title)


def best_over_seeds(points: pd.DataFrame, by: Sequence[str], higher_is_better: bool):
    """Averages over seeds, then keeps of all settings the best for each value of `by`.

    Args:
      points: Columns of settings, `seed` and `value`; NaN values (diverged) are never the best.
      by: Columns of settings.
      higher_is_better: Whether the largest value is the best.

    Returns:
      One row for each combination of `by` that has a value.
    """
    settings = [c for c in points.columns if c not in ("seed", "value", "loss")]
    # A setting at which one seed diverged has no mean.
    averaged = points.groupby(settings, sort=False).value.agg(lambda v: v.mean(skipna=False))
    averaged = averaged.reset_index().dropna(subset="value")
    groups = averaged.groupby(list(by), sort=False).value
    return averaged.loc[groups.idxmax() if higher_is_better else groups.idxmin()]


def rate_heat_maps(
    points: pd.DataFrame, *, label: str, higher_is_better: bool = True, scale: float = 1.0
) -> Figure:
    """Draws results over client and server learning rates, a panel per method: FedOpt Figs. 5-11.

    Args:
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`;
        NaN is a run that diverged, shown as a cross.
      label: What the values are.
      higher_is_better: Whether bright should be high.
      scale: Factor on the values.
    """
    methods = list(points.groupby("method", sort=False))
    figure, axes = figures.panels(len(methods), width=0.9)
    values = scale * points.value
    image = None
    for panel, (method, group) in zip(axes[0], methods, strict=True):
        table = group.pivot_table(
            index="server_learning_rate",
            columns="client_learning_rate",
            values="value",
            aggfunc=lambda v: v.mean(skipna=False),
            dropna=False,
        )
        table = scale * table.sort_index()
        image = panel.imshow(
            table,
            origin="lower",
            aspect="auto",
            cmap="viridis" if higher_is_better else "viridis_r",
            vmin=values.min(),
            vmax=values.max(),
        )
        for (i, j), value in np.ndenumerate(table.to_numpy()):
            # What is not finite has no colour.
            dark = np.isfinite(value) and np.mean(image.cmap(image.norm(value))[:3]) < 0.5
            panel.text(
                j,
                i,
                f"{value:.3g}" if np.isfinite(value) else "×",
                ha="center",
                va="center",
                size=6,
                color="white" if dark else "black",
            )
        panel.set_xticks(range(len(table.columns)), map(_power, table.columns))
        panel.set_yticks(range(len(table.index)), map(_power, table.index))
        panel.grid(False)
        panel.set(title=method, xlabel="log10 of client rate")
    axes[0, 0].set_ylabel("log10 of server rate")
    if np.isfinite(values).any():
        figure.colorbar(image, ax=list(axes[0]), label=label)
    return figure


def _power(rate: float) -> str:
    return f"{np.log10(rate):.2g}" if rate > 0 else "0"


def best_server_rates(points: pd.DataFrame, *, higher_is_better: bool = True) -> Figure:
    """Draws for each client rate the server rate of the best result: FedOpt Fig. 12.

    As in the paper, a client rate at which nothing was learnt is left out, if there are losses to
    tell: one whose best loss is within 10 % of the worst of the method.

    Args:
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`,
        and, if known, `loss`.
      higher_is_better: Whether a larger value is better.
    """
    figure, axes = figures.panels(width=1.4)
    axes = axes[0, 0]
    for i, (method, group) in enumerate(points.groupby("method", sort=False)):
        if "loss" in group:
            best_loss = group.groupby("client_learning_rate").loss.transform("min")
            group = group[best_loss < 0.9 * group.loss.max()]
        best = best_over_seeds(group, ["client_learning_rate"], higher_is_better)
        best = best.sort_values("client_learning_rate")
        axes.loglog(
            best.client_learning_rate,
            best.server_learning_rate,
            marker="o",
            ms=4,
            color=figures.colour(i),
            label=method,
        )
    axes.set(xlabel="client learning rate", ylabel="best server learning rate")
    figures.legend(axes)
    return figure


def tau_curves(points: pd.DataFrame, *, ylabel: str, higher_is_better: bool = True) -> Figure:
    """Draws for each τ the best result over the other settings: FedOpt Figs. 3 and 13.

    Args:
      points: Columns `method`, `seed`, `tau`, further settings, `value`.
      ylabel: What the values are.
      higher_is_better: Whether a larger value is better.
    """
    figure, axes = figures.panels(width=1.4)
    axes = axes[0, 0]
    for i, (method, group) in enumerate(points.groupby("method", sort=False)):
        best = best_over_seeds(group, ["tau"], higher_is_better).sort_values("tau")
        axes.semilogx(best.tau, best.value, marker="o", ms=4, color=figures.colour(i), label=method)
    axes.set(xlabel="adaptivity τ", ylabel=ylabel)
    figures.legend(axes)
    return figure


def adjustment_table(beta1: float, beta2: float, rounds: int) -> pd.DataFrame:
    """Computes FedCAda's adjustment functions with the method's own code.

    Args:
      beta1: β_1.
      beta2: β_2.
      rounds: Number of rounds.

    Returns:
      Columns `option`, `round_num` (t, from 1), `phi1` = φ(β_1^t), `phi2` = φ(β_2^t) and
      `step_factor` = √(1 + φ(β_2^t)) / (1 + φ(β_1^t)), by which the adjustment scales a step
      (methods without adjustment: 1).
    """
    import tensorflow as tf

    from tff_algos.methods import fedcada

    t = np.arange(1, rounds + 1)
    parts = []
    for option, phi in fedcada.ADJUSTMENTS.items():
        phi1, phi2 = (
            phi(tf.constant(beta ** t.astype(np.float64))).numpy() for beta in (beta1, beta2)
        )
        factor = np.sqrt(1 + phi2) / (1 + phi1)
        columns = {"round_num": t, "phi1": phi1, "phi2": phi2, "step_factor": factor}
        parts.append(pd.DataFrame(columns).assign(option=option))
    return pd.concat(parts, ignore_index=True)


def adjustments(table: pd.DataFrame) -> Figure:
    """Draws FedCAda's adjustment functions (its Fig. 3) and the net factor on a step.

    Args:
      table: From `adjustment_table`.
    """
    figure, axes = figures.panels(3)
    titles = {"phi1": "φ(β₁ᵗ)", "phi2": "φ(β₂ᵗ)", "step_factor": "factor on a step"}
    for panel, (column, title) in zip(axes[0], titles.items(), strict=True):
        for i, (option, group) in enumerate(table.groupby("option", sort=False)):
            panel.plot(
                group.round_num, group[column], color=figures.colour(i), label=f"option {option}"
            )
        panel.set(xlabel=f"{_ROUND} t", title=title)
    axes[0, 2].axhline(1.0, color="0.4", ls="--", lw=1)
    figures.legend(axes[0, 0])
    return figure


def similarities(matrices: Mapping[str, np.ndarray], *, label: str = "linear CKA") -> Figure:
    """Draws clients' pairwise similarities, a panel per method: FedCAda Fig. 2.

    Args:
      matrices: Method → float `[clients, clients]`, in [0, 1] (see `reproduction.cka`).
      label: What the numbers are.
    """
    figure, axes = figures.panels(len(matrices))
    for panel, (method, matrix) in zip(axes[0], matrices.items(), strict=True):
        image = panel.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        panel.grid(False)
        panel.set(title=method, xlabel="client", ylabel="client")
    figure.colorbar(image, ax=list(axes[0]), label=label)
    return figure


def _draw(options, runs) -> Figure:
    """Draws the figure of a command line."""
    kind = options.kind
    if kind == "adjustments":
        return adjustments(adjustment_table(options.beta1, options.beta2, options.rounds))
    higher = not options.lower_is_better
    if kind == "density":
        metric = options.column or "accuracy"
        return densities(run_folders.client_values(runs, metric), xlabel=f"{metric} of a client")
    if kind == "pareto":
        return pareto(_pareto_points(runs, options), parameter=options.parameter)
    if kind == "client_losses":
        return client_losses(run_folders.tracked_losses(runs), title=options.title)
    if kind in ("curves", "improved", "direction"):
        own = {"improved": "fairness/improved_fraction", "direction": "train/direction_norm"}
        column = options.column or own.get(kind, "eval/accuracy")
        points = run_folders.curve(runs, column)
        if kind == "improved":
            return improved(points, smooth=options.smooth, title=options.title)
        if kind == "direction":
            return direction_norms(points, title=options.title)
        return curves(points, ylabel=column, title=options.title, smooth=options.smooth)
    column = options.column or "eval/accuracy"
    rates = {
        "client_learning_rate": "client_learning_rate",
        "server_learning_rate": "server_learning_rate",
    }
    if kind == "tau":
        points = run_folders.grid(runs, column, options.last_rounds, tau="{method}_tau", **rates)
        return tau_curves(points, ylabel=column, higher_is_better=higher)
    points = run_folders.grid(runs, column, options.last_rounds, **rates)
    if kind == "rates":
        return rate_heat_maps(points, label=column, higher_is_better=higher)
    losses = [run_folders.final(run, "eval/loss", options.last_rounds) for run in runs]
    return best_server_rates(points.assign(loss=losses), higher_is_better=higher)


def _pareto_points(runs, options) -> pd.DataFrame:
    """Averages over seeds what the runs of each setting of the swept flag came to."""
    metric = options.column or "accuracy"
    rows = []
    for run in runs:
        flag = f"{run.method}_{options.parameter}"
        mean = run_folders.final(run, f"fairness/{metric}_avg_u", options.last_rounds)
        rows.append(
            {
                "method": run.method,
                "parameter": float(run.flags.get(flag, np.nan)),
                "mean_error": mean if options.lower_is_better else 1 - mean,
                "rsd": run_folders.final(
                    run, f"fairness/{metric}_error_rsd_u", options.last_rounds
                ),
            }
        )
    by = ["method", "parameter"]
    return pd.DataFrame(rows).groupby(by, sort=False, dropna=False).mean().reset_index()


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
    "adjustments",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.plots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kind", choices=_KINDS, metavar="KIND")
    add("run", nargs="*", metavar="RUN_DIR", help="folder of a run")
    add("--output", required=True, help="file to write; PNG and PDF are both written")
    add("--column", help="column of metrics.csv (density, pareto: the metric's name)")
    add("--parameter", default="alpha", help="pareto: the swept setting, without its method's name")
    add("--last_rounds", type=int, default=100, help="rounds over which a result is averaged")
    add("--smooth", type=int, default=1, help="rounds of a running mean")
    add("--lower_is_better", action="store_true", help="for losses and errors")
    add("--title", help="title of the figure")
    add("--beta1", type=float, default=0.9, help="adjustments: beta_1")
    add("--beta2", type=float, default=0.99, help="adjustments: beta_2")
    add("--rounds", type=int, default=200, help="adjustments: rounds to show")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Draws the figure that the arguments describe.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0, or 1 if the runs don't hold what the figure needs.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if bool(options.run) == (options.kind == "adjustments"):
        needs = "takes no RUN_DIR" if options.run else "needs at least one RUN_DIR"
        parser.error(f"{options.kind} {needs}")
    for name, least in (
        ("last_rounds", 1),
        ("smooth", 1),
        ("rounds", 1),
        ("beta1", 0),
        ("beta2", 0),
    ):
        most = 1 if name.startswith("beta") else _MOST_ROUNDS
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name} must be in [{least}, {most}]")
    try:
        runs = [run_folders.read_run(folder) for folder in options.run]
        try:
            figure = _draw(options, runs)
            paths = figures.save(figure, options.output)
        except (ArithmeticError, ValueError) as e:  # Of matplotlib and SciPy: numbers too large.
            raise RunError(f"These runs give no figure of {options.kind}: {e}") from e
        print("\n".join(paths))
    except (RunError, OSError) as e:
        print(f"error: {command_line.one_line(e)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    command_line.run(main)
