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
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence

from common import command_line

if __name__ == "__main__":
    command_line.begin()

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from scipy import stats  # noqa: E402

from common import figures  # noqa: E402
from reproduction import quantities, run_folders  # noqa: E402
from reproduction.quantities import Quantity  # noqa: E402
from simulation.errors import RunError  # noqa: E402

_ROUND = "round"
_MOST_ROUNDS = 1_000_000


@figures.look()
def curves(
    points: pd.DataFrame,
    *,
    quantity: Quantity,
    title: str | None = None,
    smooth: int = 1,
    log: bool = False,
    published: Mapping[str, float] | None = None,
    protocol: int | None = None,
) -> Figure:
    """Draws values over rounds: a line per method, the mean over seeds, and a band around it.

    The band is one sample standard deviation over seeds (ddof 1) on either side; one seed has none.
    A line ends where the first of its seeds does.
    Where lines lie much closer in the second half of the rounds than over all of them, that half is
    shown again in a panel of its own.

    Args:
      points: Columns `method`, `seed`, `round_num`, `value`, as in metrics.csv.
      quantity: What the values are.
      title: Title of the figure.
      smooth: Each value becomes the mean of that many before and including it, within its seed.
      log: Whether the values' axis is logarithmic.
      published: Method → the published final value, in the unit of the axis; a mark at the panel's
        right edge.
      protocol: The rounds of the protocol, which are said where they differ from those shown.

    Raises:
      RunError: If there is no value, or there are two of a method, a seed and a round.
    """
    if points.empty:
        raise RunError(f"No run has a value of {quantity.label}.")
    if points.duplicated(["method", "seed", "round_num"]).any():
        raise RunError("Two of the runs have the same settings and the same seed.")
    # Where one seed diverged or was cut short, the mean of the others is no mean of all.
    ends = points.groupby(["method", "seed"]).round_num.max().groupby("method").min()
    points = points[points.round_num <= points.method.map(ends)]
    points = points.assign(value=quantity.factor * points.value)
    half = points.round_num.max() / 2
    zoomed = not log and _has_detail(points, half)
    figure, axes = figures.panels(2 if zoomed else 1, width=1.2 if zoomed else 1.5)
    drawn = _draw_curves(axes[0, 0], points, smooth, published)
    xlabel = _rounds(points, protocol)
    axes[0, 0].set(xlabel=xlabel, ylabel=quantity.label)
    if log:
        axes[0, 0].set_yscale("log")
    _keep_within(axes[0, 0], quantity.bounds)
    if zoomed:
        _draw_curves(axes[0, 1], points, smooth, published, named=False)
        last = points.round_num.max()
        axes[0, 1].set(xlabel=xlabel, xlim=(half, last + 0.02 * (last - half)))
        axes[0, 1].set_ylim(*_late_limits(drawn, half, published, quantity.bounds))
        axes[0, 1].set_gid("zoom")
        axes[0, 0].set_title("all rounds")
        axes[0, 1].set_title("second half, enlarged")
    _title(figure, title)
    further = _bands(points)
    if published:
        differs = protocol and protocol != points.round_num.max()
        after = f", after {protocol:,} rounds" if differs else ""
        further.append(figures.mark("D", f"published{after}", mfc="white"))
    if smooth > 1:
        further.append(figures.note(f"running mean of {smooth} values"))
    figures.legend(figure, further)
    return figures.fit(figure)


def _title(figure, title):
    if not title:
        return
    if len(figure.axes) > 1:
        figure.suptitle(title, x=0.01, ha="left")
    else:
        figure.axes[0].set_title(title)


def _rounds(points, protocol) -> str:
    shown = points.round_num.max()
    if protocol and shown < protocol:
        return f"{_ROUND} ({shown:,} of the protocol's {protocol:,})"
    return _ROUND


def _bands(points) -> list:
    """Returns the legend's entry that says what bands are, and over how many seeds."""
    seeds = points.groupby("method").seed.nunique()
    if seeds.max() == 1:
        return [figures.note("one seed")]
    number = f"{seeds.max()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    return [figures.band(f"mean ± one standard deviation over {number} seeds")]


def _has_detail(points, half) -> bool:
    """Returns whether the means of the second half span less than a quarter of all means."""
    means = points.groupby(["method", "round_num"]).value.mean()
    late = means[means.index.get_level_values("round_num") >= half]
    finite = means[np.isfinite(means)]
    rounds = late.index.get_level_values("round_num").nunique()
    return rounds > 2 and np.isfinite(late).all() and 0 < np.ptp(late) < 0.25 * np.ptp(finite)


def _late_limits(drawn, half, published, bounds) -> tuple[float, float]:
    """Returns limits for the second half: means and bands, and published values that are near."""
    values = []
    for mean, spread in drawn.values():
        late = mean.index >= half
        spread = spread.fillna(0)
        values += [*(mean - spread)[late], *(mean + spread)[late]]
    low, high = np.nanmin(values), np.nanmax(values)
    near = [v for v in (published or {}).values() if low - (high - low) < v < high + high - low]
    low, high = min([low, *near]), max([high, *near])
    margin = 0.05 * ((high - low) or 1.0)
    low, high = low - margin, high + margin
    return (max(low, bounds[0]), min(high, bounds[1] + margin)) if bounds else (low, high)


def _keep_within(axes, bounds):
    """Lets an axis end where its values must, a little beyond where a line may run along it."""
    if bounds:
        low, high = axes.get_ylim()
        margin = 0.01 * (bounds[1] - bounds[0])
        axes.set_ylim(max(low, bounds[0] - margin), min(high, bounds[1] + margin))


def _draw_curves(axes, points, smooth=1, published=None, looks=None, named=True):
    """Draws a line a method; returns method → mean and spread by round."""
    groups = list(points.groupby("method", sort=False))
    # Names of clients are no settings.
    short = {name: name for name in looks} if looks else without_common(points.method)
    looks = looks or figures.looks(method for method, _ in groups)
    drawn = {}
    for i, (method, group) in enumerate(groups):
        by_seed = group.pivot(index="round_num", columns="seed", values="value").sort_index()
        by_seed = by_seed.rolling(smooth, min_periods=1).mean()
        mean, spread = by_seed.mean(axis=1), by_seed.std(axis=1)
        drawn[method] = mean, spread
        look = looks[method]
        axes.plot(
            mean.index,
            mean,
            color=look.colour,
            ls=look.dashes,
            lw=figures.width(i, len(groups)),
            marker=look.mark,
            ms=4,
            markevery=figures.sparse(i, len(groups), len(mean)),
            label=short[method] if named else None,
        )
        if spread.notna().any():
            low, high = mean - spread, mean + spread
            axes.fill_between(mean.index, low, high, color=look.colour, alpha=0.15, lw=0)
        if published and method in published:
            axes.plot(
                1.015,
                published[method],
                transform=axes.get_yaxis_transform(),
                clip_on=False,
                marker="D",
                ms=5,
                mfc="white",
                mec=look.colour,
                ls="none",
                gid="published",
            )
    figures.whole_numbers(axes.xaxis)
    return drawn


def without_common(names: Iterable[str]) -> dict[str, str]:
    """Returns name → the name without the settings that all of several names have."""
    names = list(dict.fromkeys(names))
    words = [name.split(" ")[1:] for name in names]
    common = set(words[0]).intersection(*words) if len(names) > 1 else set()
    return {
        name: " ".join([name.split(" ")[0], *(w for w in own if w not in common)])
        for name, own in zip(names, words, strict=True)
    }


@figures.look()
def summary(
    table: pd.DataFrame, *, title: str | None = None, published: str = "published"
) -> Figure:
    """Draws what rows of a table came to: seeds, means with their spread, published values.

    Args:
      table: Columns `row`, `panel` (what the value is), `kind` (`seed`, `mean` or `published`),
        `value`, `spread` (NaN for none) and `status`, the words where a row has no value. Panels
        and rows are in the order in which they appear.
      title: Title of the figure.
      published: Name of the published values.
    """
    short = without_common(table.row)
    rows = list(short)
    wanted = list(table.groupby("panel", sort=False))
    height = max(0.5, 0.105 * (len(rows) + 1))
    figure, axes = figures.panels(
        len(wanted), width=0.8 if len(wanted) > 1 else 1.5, height=height, sharey=True
    )
    looks = figures.looks(rows)
    kinds = set()
    for panel, (name, group) in zip(axes[0], wanted, strict=True):
        for place, row in enumerate(rows):
            kinds |= _draw_row(panel, place, looks[row], group[group.row == row])
        panel.set(xlabel=name)
        panel.margins(x=0.08)
        panel.grid(axis="y", visible=False)
        panel.locator_params(axis="x", nbins=5)
    axes[0, 0].set_yticks(range(len(rows)), [figures.broken(name) for name in short.values()])
    axes[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    _title(figure, title)
    further = {
        "seed": figures.mark("|", "one seed", ms=7),
        "mean": figures.mark("o", "mean over seeds" if "seed" in kinds else "one seed"),
        "spread": figures.bar("± one standard deviation over seeds"),
        "published": figures.mark("D", published, mfc="white"),
    }
    figures.legend(figure, [entry for kind, entry in further.items() if kind in kinds])
    return figures.fit(figure)


def _draw_row(panel, place, look, group) -> set[str]:
    """Draws a row of a summary; returns what it consists of."""
    kinds = set()
    for one in group.itertuples():
        if not np.isfinite(one.value):
            if one.kind == "mean":
                where = {"transform": panel.get_yaxis_transform(), "va": "center", "size": 7}
                panel.text(0.02, place, one.status, color="0.3", **where)
            continue
        y, bar = place, one.spread if np.isfinite(one.spread) else None
        if one.kind == "seed":
            panel.plot(one.value, y, "|", color=look.colour, ms=9, alpha=0.8)
        elif one.kind == "mean":
            panel.errorbar(
                one.value,
                y,
                xerr=bar,
                fmt=look.mark,
                color=look.colour,
                ms=5,
                capsize=2.5,
                zorder=3,
            )
        else:
            y += 0.28
            style = {"color": look.colour, "mfc": "white", "ms": 4.5, "lw": 0.8}
            panel.errorbar(one.value, y, xerr=bar, fmt="D", **style)
        kinds |= {one.kind} | ({"spread"} if bar is not None else set())
    return kinds


@figures.look()
def densities(
    values: Mapping[str, Sequence[float]], *, quantity: Quantity, title: str | None = None
) -> Figure:
    """Draws the density of clients' values: AdaFedAdam Fig. 2 (bottom), AdaFed Fig. 7.

    A Gaussian kernel density with Scott's bandwidth; what would lie beyond the least or the largest
    possible value is reflected there. Values that are all equal have no density and are shown as a
    vertical line.

    Args:
      values: Method → value of each client, finite, as in client_metrics.csv.
      quantity: What the values are.
      title: Title of the figure.
    """
    values = {name: quantity.factor * np.asarray(v, float) for name, v in values.items()}
    every = np.concatenate(list(values.values()))
    if not all(map(len, values.values())) or not np.all(np.isfinite(every)):
        raise RunError(
            f"Not every run has a density of {quantity.label}: values are missing or infinite."
        )
    figure, axes = figures.panels(width=1.5)
    axes = axes[0, 0]
    margin = 0.1 * (np.ptp(every) or 1.0)
    low, high = every.min() - margin, every.max() + margin
    if quantity.bounds:
        low, high = max(low, quantity.bounds[0]), min(high, quantity.bounds[1])
    at = np.linspace(low, high, 400)
    looks = figures.looks(values)
    for i, (method, of_clients) in enumerate(values.items()):
        look, lw = looks[method], figures.width(i, len(values))
        style = {"color": look.colour, "ls": look.dashes, "lw": lw, "label": method}
        if np.ptp(of_clients) > 0:
            every_40th = figures.sparse(i, len(values), len(at))
            density = _density(of_clients, at, quantity.bounds)
            axes.plot(at, density, marker=look.mark, ms=4, markevery=every_40th, **style)
        else:
            axes.axvline(of_clients[0], **style)
    axes.set(xlabel=f"{quantity.label}, of a client", ylabel="density of clients")
    axes.set_ylim(bottom=0)
    _title(figure, title)
    figures.legend(figure, [figures.note("clients of all seeds")])
    return figures.fit(figure)


def _density(values, at, bounds):
    kernel = stats.gaussian_kde(values)
    density = kernel(at)
    for bound in bounds or ():
        density = density + kernel(2 * bound - at)
    return density


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


@figures.look()
def pareto(
    points: pd.DataFrame, *, parameter: str | None = None, title: str | None = None
) -> Figure:
    """Draws the mean error of clients against its relative deviation: AdaFedAdam Fig. 3 (right).

    Points of a method are joined in the order of its parameter. The Pareto front, those points that
    no other of the figure beats in both, is a broad grey line behind them.

    Args:
      points: Columns `method`, `parameter` (numbers; NaN for methods without), `mean_error` in
        percent, `rsd`; one row a setting.
      parameter: Name of the parameter, for the labels beside the points.
      title: Title of the figure.
    """
    figure, axes = figures.panels(width=1.5, height=1.3)
    axes = axes[0, 0]
    looks = figures.looks(points.method)
    front = points[pareto_optimal(points.mean_error, points.rsd)].sort_values("mean_error")
    axes.plot(
        front.mean_error, front.rsd, lw=6, color="0.85", label="Pareto front", zorder=0,
        solid_capstyle="round",
    )  # fmt: skip
    number = points.method.nunique()
    for i, (method, group) in enumerate(points.groupby("method", sort=False)):
        group, look = group.sort_values("parameter"), looks[method]
        axes.plot(
            group.mean_error,
            group.rsd,
            marker=look.mark,
            ms=3.5 * figures.width(i, number),
            lw=1.2,
            color=look.colour,
            ls=look.dashes,
            label=method,
        )
        for row in group.dropna(subset="parameter").itertuples():
            text = f"{parameter}={row.parameter:g}" if parameter else f"{row.parameter:g}"
            axes.annotate(
                text,
                (row.mean_error, row.rsd),
                xytext=(5, 4),
                textcoords="offset points",
                fontsize=7,
                color=look.colour,
            )
    axes.set(xlabel="mean error of clients (%)", ylabel="relative standard deviation of errors")
    axes.margins(0.1)
    _title(figure, title)
    figures.legend(figure, [figures.note("numbers: the swept setting")] if not parameter else [])
    return figures.fit(figure)


def improved(
    points: pd.DataFrame,
    *,
    smooth: int = 1,
    title: str | None = None,
    protocol: int | None = None,
) -> Figure:
    """Draws ρ_t, the share of clients whose training loss did not rise: AdaFed Fig. 2.

    Args:
      points: As for `curves`; values are fractions.
      smooth: See `curves`.
      title: Title of the figure.
      protocol: See `curves`.
    """
    quantity = Quantity("improved clients ρ (%)", 100.0, (0.0, 100.0))
    return curves(points, quantity=quantity, title=title, smooth=smooth, protocol=protocol)


@figures.look()
def client_losses(
    points: pd.DataFrame, *, title: str | None = None, protocol: int | None = None
) -> Figure:
    """Draws single clients' training losses over rounds, a panel per method: AdaFed Fig. 3.

    Args:
      points: Columns `method`, `seed`, `client`, `round_num`, `value`.
      title: Title of the figure.
      protocol: See `curves`.
    """
    methods = list(points.groupby("method", sort=False))
    figure, axes = figures.grid(len(methods), sharey=True)
    clients = list(dict.fromkeys("client " + points.client.astype(str)))
    # As of one method, so that clients get the palette in its order.
    looks = dict(zip(clients, figures.looks(f"client {c}" for c in clients).values(), strict=True))
    for panel, (method, group) in zip(axes, methods, strict=True):
        named = group.assign(method="client " + group.client.astype(str))
        _draw_curves(panel, named, looks=looks)
        panel.set(xlabel=_rounds(points, protocol), title=method)
        panel.set_ylabel("training loss")
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    figures.legend(figure, _bands(points))
    return figures.fit(figure)


def direction_norms(
    points: pd.DataFrame, *, title: str | None = None, protocol: int | None = None
) -> Figure:
    """Draws ‖d_t‖ over rounds, each run's divided by its largest: AdaFed Fig. 4.

    Args:
      points: As for `curves`; values are norms.
      title: Title of the figure.
      protocol: See `curves`.
    """
    largest = points.groupby(["method", "seed"]).value.transform("max")
    relative = points.assign(value=points.value / largest)
    return curves(relative, quantity=Quantity("‖d‖ / max ‖d‖"), title=title, protocol=protocol)


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
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`;
        NaN is a run that diverged, shown as a cross; pairs of rates that nobody tried stay blank.
      label: What the values are, with their unit.
      higher_is_better: Whether bright should be high.
      scale: Factor on the values.
      title: Title of the figure.
    """
    methods = list(points.groupby("method", sort=False))
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
            # What is not finite has no colour.
            dark = np.isfinite(value) and np.mean(image.cmap(image.norm(value))[:3]) < 0.5
            panel.text(
                j,
                i,
                f"{value:.3g}" if np.isfinite(value) else "×",
                ha="center",
                va="center",
                size=7,
                color="white" if dark else "black",
            )
        panel.set_xticks(range(len(table.columns)), map(_power, table.columns))
        panel.set_yticks(range(len(table.index)), map(_power, table.index))
        panel.grid(False)
        panel.set(title=method, xlabel="log₁₀ of the client's rate")
        panel.set_ylabel("log₁₀ of the server's rate")
    if np.isfinite(values).any():
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
    """Draws for each client rate the server rate of the best result: FedOpt Fig. 12.

    As in the paper, a client rate at which nothing was learnt is left out, if there are losses to
    tell: one whose best loss is within 10 % of the worst of the method.

    Args:
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`,
        and, if known, `loss`.
      higher_is_better: Whether a larger value is better.
      title: Title of the figure.
    """
    lines = {}
    for method, group in points.groupby("method", sort=False):
        if "loss" in group and group.loss.notna().any():
            best_loss = group.groupby("client_learning_rate").loss.transform("min")
            group = group[best_loss < 0.9 * group.loss.max()]
        best = best_over_seeds(group, ["client_learning_rate"], higher_is_better)
        best = best.sort_values("client_learning_rate")
        lines[method] = best.client_learning_rate, best.server_learning_rate, None
    figure = _settings_figure(lines, "client learning rate", "best server learning rate", title)
    figure.axes[0].set(xscale="log", yscale="log")
    return figures.fit(figure)


@figures.look()
def tau_curves(
    points: pd.DataFrame, *, ylabel: str, higher_is_better: bool = True, title: str | None = None
) -> Figure:
    """Draws for each τ the best result over the other settings: FedOpt Figs. 3 and 13.

    Args:
      points: Columns `method`, `seed`, `tau`, further settings, `value`.
      ylabel: What the values are, with their unit.
      higher_is_better: Whether a larger value is better.
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
    """Draws results over the values of a setting, mean and sample standard deviation over seeds.

    The setting's axis has its ticks at the values that were run, and is logarithmic where they
    span a factor of ten.

    Args:
      points: Columns `method`, `seed`, `setting` (numbers) and `value`, NaN where a run diverged:
        such a setting has no point.
      setting: Name of the setting.
      ylabel: What the values are, with their unit.
      title: Title of the figure.
    """
    lines = {}
    for method, group in points.groupby("method", sort=False):
        values = group.groupby("setting").value
        # A setting at which one seed diverged has no mean.
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


def _settings_figure(lines, xlabel, ylabel, title, further=()) -> Figure:
    figure, axes = figures.panels(width=1.5)
    axes = axes[0, 0]
    looks = figures.looks(lines)
    for i, (method, (x, y, spread)) in enumerate(lines.items()):
        look = looks[method]
        style = {"color": look.colour, "ls": look.dashes, "marker": look.mark, "label": method}
        style |= {"lw": figures.width(i, len(lines)), "ms": 5}
        if spread is not None and spread.notna().any():
            axes.errorbar(x, y, spread.fillna(0), capsize=2.5, **style)
        else:
            axes.plot(x, y, **style)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    _title(figure, title)
    figures.legend(figure, further)
    return figure


@figures.look()
def similarities(matrices: Mapping[str, np.ndarray], *, label: str = "linear CKA") -> Figure:
    """Draws clients' pairwise similarities, a panel per method: FedCAda Fig. 2.

    Args:
      matrices: Method → float `[clients, clients]`, in [0, 1] (see `reproduction.cka`).
      label: What the numbers are.
    """
    figure, axes = figures.grid(len(matrices), width=0.75)
    for panel, (method, matrix) in zip(axes, matrices.items(), strict=True):
        image = panel.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
        panel.grid(False)
        panel.set(title=method, xlabel="client", ylabel="client")
        figures.whole_numbers(panel.xaxis)
        figures.whole_numbers(panel.yaxis)
    figure.colorbar(image, ax=axes, label=label)
    return figures.fit(figure)


def _draw(options, runs) -> Figure:
    """Draws the figure of a command line."""
    kind, title = options.kind, options.title
    higher = not options.lower_is_better
    if kind == "density":
        metric = options.column or "accuracy"
        values = run_folders.client_values(runs, metric)
        return densities(values, quantity=quantities.of_column(metric), title=title)
    if kind == "pareto":
        points = _pareto_points(runs, options)
        return pareto(points, parameter=options.parameter, title=title)
    if kind == "client_losses":
        return client_losses(run_folders.tracked_losses(runs), title=title)
    if kind in ("curves", "improved", "direction"):
        own = {"improved": "fairness/improved_fraction", "direction": "train/direction_norm"}
        column = options.column or own.get(kind, "eval/accuracy")
        points = run_folders.curve(runs, column)
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
    column = options.column or "eval/accuracy"
    quantity = quantities.of_column(column)
    rates = {
        "client_learning_rate": "client_learning_rate",
        "server_learning_rate": "server_learning_rate",
    }
    settings = {"tau": "{method}_tau", **rates} if kind == "tau" else rates
    points = run_folders.grid(runs, column, options.last_rounds, **settings)
    points = points.assign(value=quantity.factor * points.value)
    # A run that was cut short has fewer, see `run_folders.mean_of_last`.
    ended = [run for run, value in zip(runs, points.value, strict=True) if value == value]
    last = min(options.last_rounds, *(max(1, len(r.rounds) // 2) for r in ended or runs))
    label = f"{quantity.label}, mean of the last {last} rounds"
    if kind == "tau":
        return tau_curves(points, ylabel=label, higher_is_better=higher, title=title)
    if kind == "rates":
        return rate_heat_maps(points, label=label, higher_is_better=higher, title=title)
    losses = [run_folders.final(run, "eval/loss", options.last_rounds) for run in runs]
    points = points.assign(loss=losses)
    return best_server_rates(points, higher_is_better=higher, title=title)


def _pareto_points(runs, options) -> pd.DataFrame:
    """Averages over seeds what the runs of each setting of the swept flag came to."""
    metric = options.column or "accuracy"
    rows = []
    for run in runs:
        flag = f"{run.method}_{options.parameter}"
        mean = 100 * run_folders.final(run, f"fairness/{metric}_avg_u", options.last_rounds)
        rows.append(
            {
                "method": run.method,
                "parameter": float(run.flags.get(flag, np.nan)),
                "mean_error": mean if options.lower_is_better else 100 - mean,
                "rsd": run_folders.final(
                    run, f"fairness/{metric}_error_rsd_u", options.last_rounds
                ),
            }
        )
    points = pd.DataFrame(rows).groupby(["method", "parameter"], sort=False, dropna=False)
    # A setting at which one seed diverged has no mean.
    return points.agg(lambda v: v.mean(skipna=False)).dropna().reset_index()


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproduction.plots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("kind", choices=_KINDS, metavar="KIND")
    add("run", nargs="+", metavar="RUN_DIR", help="folder of a run")
    add("--output", required=True, help="file to write; PNG and PDF are both written")
    add("--column", help="column of metrics.csv (density, pareto: the metric's name)")
    add("--parameter", default="alpha", help="pareto: the swept setting, without its method's name")
    results = "pareto, rates, best_rates, tau"
    add(
        "--last_rounds",
        type=int,
        default=100,
        help=f"{results}: rounds over which a result is averaged",
    )
    add("--smooth", type=int, default=1, help="curves, improved: values of a running mean")
    add("--lower_is_better", action="store_true", help=f"{results}: for losses and errors")
    add("--title", help="title of the figure")
    add("--log", action="store_true", help="curves: a logarithmic axis of values")
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
    for name in ("last_rounds", "smooth"):
        if not 1 <= getattr(options, name) <= _MOST_ROUNDS:
            parser.error(f"--{name} must be in [1, {_MOST_ROUNDS}]")
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
