"""Results over settings, such as learning rates."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction.looks import displayed, looks_of
from tff_suite import figures


def best_over_seeds(
    points: pd.DataFrame, by: Sequence[str], higher_is_better: bool
) -> pd.DataFrame:
    """Averages over seeds, then keeps the best of all settings for each value of `by`.

    Args:
      points: Columns of settings, `seed` and `value`. A setting with a NaN (diverged) is dropped.
      by: Columns of settings.
      higher_is_better: Whether the largest value is the best.

    Returns:
      One row for each combination of `by` that has a value.
    """
    settings = [c for c in points.columns if c not in ("seed", "value", "loss")]
    # If one seed diverged, the setting's mean is NaN.
    averaged = points.groupby(settings, sort=False).value.agg(lambda v: v.mean(skipna=False))
    averaged = averaged.reset_index().dropna(subset="value")
    groups = averaged.groupby(list(by), sort=False).value
    return averaged.loc[groups.idxmax() if higher_is_better else groups.idxmin()]


@figures.look()
def rate_heat_maps(
    points: pd.DataFrame,
    *,
    label: str,
    higher_is_better: bool = True,
    scale: float = 1.0,
    title: str | None = None,
) -> Figure:
    """Draws results over client and server learning rates, a panel per method: FedOpt Figs. 5-11.

    Args:
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`. NaN
        stands for a diverged run and is shown as a cross; untried pairs of rates stay blank.
      label: Name of the values, with their unit.
      higher_is_better: Whether high values are bright; otherwise low ones are.
      scale: Factor on the values.
      title: Title of the figure.
    """
    methods, names = list(points.groupby("method", sort=False)), displayed(points.method)
    rates = ["client_learning_rate", "server_learning_rate"]
    across, down = (points[name].nunique() for name in rates)
    figure, axes = figures.grid(
        len(methods), width=max(0.8, 0.13 * across), height=max(0.8, 0.1 * down)
    )
    values = scale * points.value
    image = None
    for panel, (method, group) in zip(axes, methods, strict=True):
        table = group.pivot_table(
            index="server_learning_rate",
            columns="client_learning_rate",
            values="value",
            aggfunc=lambda v: v.mean(skipna=False),
            dropna=False,
        )
        table = scale * table.sort_index()
        tried = set(zip(group.server_learning_rate, group.client_learning_rate, strict=True))
        image = panel.imshow(
            table,
            origin="lower",
            aspect="auto",
            cmap="viridis" if higher_is_better else "viridis_r",
            vmin=values.min(),
            vmax=values.max(),
        )
        for (i, j), value in np.ndenumerate(table.to_numpy()):
            if (table.index[i], table.columns[j]) not in tried:
                continue
            # Values that are not finite have no colour.
            dark = np.isfinite(value) and np.mean(image.cmap(image.norm(value))[:3]) < 0.5
            panel.text(
                j,
                i,
                f"{value:.3g}" if np.isfinite(value) else "×",
                ha="center",
                va="center",
                size=figures.TEXT,
                color="white" if dark else "black",
                gid=figures.OPTIONAL if np.isfinite(value) else None,
            )
        panel.set_xticks(range(len(table.columns)), map(_power, table.columns))
        panel.set_yticks(range(len(table.index)), map(_power, table.index))
        panel.grid(False)
        panel.set(title=names[method], xlabel="log₁₀ of the client's rate")
        panel.set_ylabel("log₁₀ of the server's rate")
    if image is not None and np.isfinite(values).any():
        figure.colorbar(image, ax=axes, label=label)
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    if points.value.isna().any():
        figures.legend(figure, [figures.mark("x", "diverged")])
    return figures.fit(figure)


def _power(rate: float) -> str:
    return f"{np.log10(rate):.2g}" if rate > 0 else "0"


@figures.look()
def best_server_rates(
    points: pd.DataFrame, *, higher_is_better: bool = True, title: str | None = None
) -> Figure:
    """Draws the best server learning rate for each client learning rate: FedOpt Fig. 12.

    If losses are known, client rates at which the model did not learn are left out, as in the
    paper. These are rates whose best loss is within 10 % of the method's worst.

    Args:
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`,
        and, if known, `loss`.
      higher_is_better: Whether higher values are better.
      title: Title of the figure.

    Raises:
      ValueError: If no rate is left.
    """
    lines = {}
    for method, group in points.groupby("method", sort=False):
        if "loss" in group and group.loss.notna().any():
            best_loss = group.groupby("client_learning_rate").loss.transform("min")
            group = group[best_loss < 0.9 * group.loss.max()]
        best = best_over_seeds(group, ["client_learning_rate"], higher_is_better)
        best = best.sort_values("client_learning_rate")
        lines[method] = best.client_learning_rate, best.server_learning_rate, None
    if all(not len(client_rates) for client_rates, _, _ in lines.values()):
        raise ValueError("the best loss at every client rate is within 10 % of the worst loss.")
    figure = _settings_figure(lines, "client learning rate", "best server learning rate", title)
    figure.axes[0].set(xscale="log", yscale="log")
    return figures.fit(figure)


@figures.look()
def tau_curves(
    points: pd.DataFrame, *, ylabel: str, higher_is_better: bool = True, title: str | None = None
) -> Figure:
    """Draws the best result over all other settings for each τ: FedOpt Figs. 3 and 13.

    Args:
      points: Columns `method`, `seed`, `tau`, further settings, `value`.
      ylabel: Name of the values, with their unit.
      higher_is_better: Whether higher values are better.
      title: Title of the figure.
    """
    lines = {}
    for method, group in points.groupby("method", sort=False):
        best = best_over_seeds(group, ["tau"], higher_is_better).sort_values("tau")
        lines[method] = best.tau, best.value, None
    figure = _settings_figure(lines, "adaptivity τ", ylabel, title)
    figure.axes[0].set_xscale("log")
    return figures.fit(figure)


@figures.look()
def by_setting(
    points: pd.DataFrame, *, setting: str, ylabel: str, title: str | None = None
) -> Figure:
    """Draws results over the values of a setting: mean and sample standard deviation over seeds.

    The setting's axis has its ticks at the values that were run. It is logarithmic if they are
    positive and span a factor of ten or more.

    Args:
      points: Columns `method`, `seed`, `setting` (numbers) and `value`. A setting with a NaN
        (diverged) has no point.
      setting: Name of the setting.
      ylabel: Name of the values, with their unit.
      title: Title of the figure.
    """
    lines = {}
    for method, group in points.groupby("method", sort=False):
        values = group.groupby("setting").value
        # If one seed diverged, the setting's mean is NaN.
        mean = values.agg(lambda v: v.mean(skipna=False)).dropna()
        lines[method] = mean.index, mean, values.std().loc[mean.index]
    seeds = points.groupby(["method", "setting"]).seed.nunique().max()
    told = f"± one standard deviation over {seeds} seeds"
    entry = figures.bar(told) if seeds > 1 else figures.note("one seed")
    figure = _settings_figure(lines, setting, ylabel, title, [entry])
    axes, values = figure.axes[0], sorted(points.setting.unique())
    if values[0] > 0 and values[-1] >= 10 * values[0]:
        axes.set_xscale("log")
    figures.ticks_at(axes.xaxis, values)
    return figures.fit(figure)


def _settings_figure(
    lines: Any, xlabel: str, ylabel: str, title: str | None, further: Sequence[Any] = ()
) -> Figure:
    figure, axes = figures.panels(width=1.5)
    axes = axes[0, 0]
    looks, names = looks_of(lines), displayed(lines)
    for i, (method, (x, y, spread)) in enumerate(lines.items()):
        look = looks[method]
        style = {
            "color": look.colour,
            "ls": look.dashes,
            "marker": look.mark,
            "label": names[method],
        }
        style |= {"lw": figures.width(i, len(lines)), "ms": 5}
        if spread is not None and spread.notna().any():
            axes.errorbar(x, y, spread.fillna(0), capsize=2.5, **style)
        else:
            axes.plot(x, y, **style)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    figures.title(figure, title)
    figures.legend(figure, further)
    return figure
