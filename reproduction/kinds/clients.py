"""What clients have: densities, fairness, similarities."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from reproduction.looks import displayed, looks_of
from reproduction.quantities import Quantity
from simulation.errors import RunError
from tff_suite import figures


@figures.look()
def densities(
    values: Mapping[str, npt.ArrayLike], *, quantity: Quantity, title: str | None = None
) -> Figure:
    """Draws the density of clients' values: AdaFedAdam Fig. 2 (bottom), AdaFed Fig. 7.

    This is a Gaussian kernel density with Scott's bandwidth. Mass beyond the smallest or largest
    possible value is reflected there. If all values are equal, a vertical line shows them.

    Args:
      values: Method → value of each client, finite, as in client_metrics.csv.
      quantity: What the values measure.
      title: Title of the figure.
    """
    shown = {name: quantity.factor * np.asarray(v, float) for name, v in values.items()}
    every = np.concatenate(list(shown.values()))
    if not all(map(len, shown.values())) or not np.all(np.isfinite(every)):
        raise RunError(
            f"Cannot draw a density of {quantity.label}: values are missing or infinite."
        )
    figure, axes = figures.panels(width=1.5)
    axes = axes[0, 0]
    margin = 0.1 * (np.ptp(every) or 1.0)
    low, high = every.min() - margin, every.max() + margin
    if quantity.bounds:
        low, high = max(low, quantity.bounds[0]), min(high, quantity.bounds[1])
    at = np.linspace(low, high, 400)
    looks, names = looks_of(shown), displayed(shown)
    for i, (method, of_clients) in enumerate(shown.items()):
        look, lw = looks[method], figures.width(i, len(shown))
        style = {"color": look.colour, "ls": look.dashes, "lw": lw, "label": names[method]}
        if np.ptp(of_clients) > 0:
            every_40th = figures.sparse(i, len(shown), len(at))
            density = _density(of_clients, at, quantity.bounds)
            axes.plot(at, density, marker=look.mark, ms=4, markevery=every_40th, **style)
        else:
            axes.axvline(of_clients[0], **style)
    axes.set(xlabel=f"{quantity.label}, of a client", ylabel="density of clients")
    axes.set_ylim(bottom=0)
    figures.title(figure, title)
    figures.legend(figure, [figures.note("clients of all seeds")])
    return figures.fit(figure)


def _density(values, at, bounds):
    kernel = stats.gaussian_kde(values)
    density = kernel(at)
    for bound in bounds or ():
        density = density + kernel(2 * bound - at)
    return density


def pareto_optimal(mean_error: Sequence[float], rsd: Sequence[float]) -> np.ndarray:
    """Returns which points are Pareto-optimal: no other is lower in one and no higher in the other.

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


@figures.look()
def pareto(
    points: pd.DataFrame,
    *,
    parameter: str | None = None,
    parameters: Mapping[str, str] | None = None,
    error: str = "mean error of clients (%)",
    title: str | None = None,
) -> Figure:
    """Draws the mean error of clients against its relative deviation: AdaFedAdam Fig. 3 (right).

    A method's points are joined in the order of its parameter. A broad grey line behind them is the
    Pareto front of all points in the figure. Marks are open, so that two marks at one place can
    both be seen.

    Args:
      points: Columns `method`, `parameter` (number; NaN for methods without one), `mean_error`,
        `rsd`; one row per setting.
      parameter: Name of the parameter, for the labels beside the points.
      parameters: Method → name of its parameter, for the legend. Labels then show only numbers.
      error: Label of the mean errors, with their unit.
      title: Title of the figure.
    """
    figure, axes = figures.panels(width=1.5, height=1.3)
    axes = axes[0, 0]
    looks, names = looks_of(points.method), displayed(points.method)
    front = points[pareto_optimal(points.mean_error, points.rsd)].sort_values("mean_error")
    axes.plot(
        front.mean_error, front.rsd, lw=6, color="0.85", label="Pareto front", zorder=0,
        solid_capstyle="round",
    )  # fmt: skip
    labels = []
    for method, group in points.groupby("method", sort=False):
        group, look = group.sort_values("parameter"), looks[method]
        swept = (parameters or {}).get(method)
        axes.plot(
            group.mean_error,
            group.rsd,
            marker=look.mark,
            ms=6,
            mfc="none",
            lw=1.2,
            color=look.colour,
            ls=look.dashes,
            label=f"{names[method]}; numbers: {swept}" if swept else names[method],
        )
        for row in group.dropna(subset="parameter").itertuples():
            text = f"{parameter}={row.parameter:g}" if parameter else f"{row.parameter:g}"
            labels.append((text, (row.mean_error, row.rsd), look.colour))
    axes.set(xlabel=error, ylabel="relative standard deviation of errors")
    axes.margins(0.1)
    figures.title(figure, title)
    told = parameter or parameters
    figures.legend(figure, [figures.note("numbers: the swept setting")] if not told else [])
    figures.fit(figure)
    figures.label_points(axes, labels)
    return figure


@figures.look()
def similarities(
    matrices: Mapping[str, np.ndarray], *, label: str = "linear CKA", title: str | None = None
) -> Figure:
    """Draws clients' pairwise similarities, a panel per method: FedCAda Fig. 2.

    Args:
      matrices: Method → float `[clients, clients]`, in [0, 1] (see `reproduction.cka`).
      label: Name of the similarity.
      title: Title of the figure.
    """
    figure, axes = figures.grid(len(matrices), width=0.75)
    names = displayed(matrices)
    for panel, (method, matrix) in zip(axes, matrices.items(), strict=True):
        image = panel.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        panel.grid(False)
        panel.set(title=names[method], xlabel="client", ylabel="client")
        figures.whole_numbers(panel.xaxis)
        figures.whole_numbers(panel.yaxis)
    figure.colorbar(image, ax=axes, label=label)
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figures.fit(figure)
