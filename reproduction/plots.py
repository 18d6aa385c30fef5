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

import textwrap
from collections.abc import Mapping, Sequence

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
PARSER.flag("column", help="Column of metrics.csv; density, pareto: the metric's name.")
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
PARSER.flag("lower_is_better", False, f"{_OF_RESULTS}: for losses and errors.")
PARSER.flag("title", help="Title of the figure.")
PARSER.flag(
    "figure_width",
    help="Inches of the figure, for a column of a paper: 3.25 or 6.75. Unset: as its panels need.",
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
from scipy import stats

from reproduction import quantities, run_folders
from reproduction.looks import displayed, grouped, looks_of
from reproduction.quantities import Quantity
from simulation.errors import RunError
from tff_suite import figures

_ROUND = "round"


@figures.look()
def curves(
    points: pd.DataFrame,
    *,
    quantity: Quantity,
    title: str | None = None,
    smooth: int = 1,
    log: bool = False,
    published: Mapping[str, float] | None = None,
    published_as: str = "published",
    protocol: int | None = None,
) -> Figure:
    """Draws values over rounds: one line per method, the mean over seeds, and a band around it.

    The band is one sample standard deviation over seeds (ddof 1) on either side; a single seed has
    no band. A line ends with the shortest run among its seeds.

    A second panel enlarges the second half of the rounds if most lines are much closer together
    there than all lines are over all rounds. The legend names the lines that leave it. More than
    eight lines are distributed over panels, by method if that gives fewer panels.

    Args:
      points: Columns `method`, `seed`, `round_num`, `value`, as in metrics.csv.
      quantity: What the values measure.
      title: Title of the figure.
      smooth: Each value becomes the mean of this many values up to and including it, per seed.
      log: Whether the values' axis is logarithmic.
      published: Method → the published value, in the unit of the axis. It is drawn as an open mark
        of the method's shape, to the right of each panel whose limits include it.
      published_as: Legend text for the published values.
      protocol: The rounds of the protocol; stated on the axis if fewer are shown.

    Raises:
      RunError: If `points` is empty, or has two values for a method, seed and round.
    """
    if points.empty:
        raise RunError(f"No run has a value of {quantity.label}.")
    if points.duplicated(["method", "seed", "round_num"]).any():
        raise RunError("Two of the runs have the same settings and the same seed.")
    # Beyond the end of one seed, the mean of the others is not comparable with the mean of all.
    ends = points.groupby(["method", "seed"]).round_num.max().groupby("method").min()
    points = points[points.round_num <= points.method.map(ends)]
    points = points.assign(value=quantity.factor * points.value)
    last = points.round_num.max()
    half = last / 2
    means = _means(points, smooth)
    panels = grouped(means)
    near = [] if log or len(panels) > 1 else _near_in_the_end(means, half)
    if len(panels) > 1:
        figure, axes = figures.grid(len(panels), sharey=True)
    else:
        figure, axes = figures.panels(2 if near else 1, width=1.2 if near else 1.5)
        axes = list(axes.flat)
    xlabel = _rounds(points, protocol)
    for whole, rows in zip(axes, panels, strict=False):
        _draw_curves(whole, {row: means[row] for row in rows}, means, bounds=quantity.bounds)
        whole.set(xlabel=xlabel)
        if whole.get_subplotspec().is_first_col():
            whole.set(ylabel=quantity.label)
        if log:
            whole.set_yscale("log")
        if published:
            whole.update_datalim([(last, v) for v in published.values()], updatex=False)
    # After all drawing, since panels share their limits.
    for whole in axes[: len(panels)]:
        whole.autoscale_view()
        _keep_within(whole, quantity.bounds)
    for whole, rows in zip(axes, panels, strict=False):
        shown = {row: v for row, v in (published or {}).items() if row in rows}
        _mark_published(whole, shown, means)
    further = _bands(points)
    if near:
        whole, part = axes
        low, high = _late_limits(means, near, half, published, quantity.bounds)
        beyond = [m for m in means if _leaves(*means[m], half, low, high, quantity.bounds)]
        _draw_curves(part, means, means, named=False, beyond=beyond, bounds=quantity.bounds)
        part.set(xlabel=xlabel, xlim=(half, last + 0.02 * (last - half)), ylim=(low, high))
        part.set_gid("zoom")
        _mark_published(part, published, means)
        whole.set_title("all rounds")
        part.set_title("second half, enlarged")
        if beyond:
            further.append(figures.note(_told_beyond(beyond, means)))
    if published:
        differs = protocol and protocol != last
        after = f", after {protocol:,} rounds" if differs else ""
        further.append(figures.mark("o", f"{published_as}{after}", mfc="white"))
    if smooth > 1:
        further.append(figures.note(f"running mean of {smooth} values"))
    _title(figure, title)
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
    """Returns the legend entry that explains the bands and gives the number of seeds."""
    seeds = points.groupby("method").seed.nunique()
    if seeds.max() == 1:
        return [figures.note("one seed")]
    number = f"{seeds.max()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    return [figures.band(f"mean ± one standard deviation over {number} seeds")]


def _means(points, smooth=1) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Returns method → mean and standard deviation over seeds, by round."""
    means = {}
    for method, group in points.groupby("method", sort=False):
        by_seed = group.pivot(index="round_num", columns="seed", values="value").sort_index()
        by_seed = by_seed.rolling(smooth, min_periods=1).mean()
        means[method] = by_seed.mean(axis=1), by_seed.std(axis=1)
    return means


def _most_within(
    spans: Mapping[str, tuple[float, float]], width: float, share: float = 0.75
) -> list[str]:
    """Returns the largest set of rows whose values all lie in some window of a given width.

    Args:
      spans: Row → its smallest and its largest value.
      width: The window's width.
      share: Least share of all rows that the set must have.

    Returns:
      Names of rows; among sets of equal size, the one with the smallest extent. Empty if no set is
      large enough.
    """
    most, closest = [], np.inf
    for start, _ in spans.values():
        rows = [row for row, (low, high) in spans.items() if start <= low and high < start + width]
        extent = _extent(spans, rows) if rows else np.inf
        if len(rows) > len(most) or (len(rows) == len(most) and extent < closest):
            most, closest = rows, extent
    return most if len(most) >= share * len(spans) else []


def _extent(spans, rows) -> float:
    """Returns the difference between the largest and the smallest value of some rows."""
    return max(spans[row][1] for row in rows) - min(spans[row][0] for row in rows)


def _near_in_the_end(means, half) -> list[str]:
    """Returns the methods whose second halves share a quarter of the full range, if most do."""
    finite = np.concatenate([mean[np.isfinite(mean)] for mean, _ in means.values()])
    late = {method: mean[mean.index >= half] for method, (mean, _) in means.items()}
    spans = {method: (m.min(), m.max()) for method, m in late.items() if len(m)}
    if not finite.size or max(map(len, late.values())) <= 2:
        return []
    near = _most_within(spans, 0.25 * np.ptp(finite))
    # Leave out outliers among many lines if that enlarges the others at least twofold.
    while closer := _most_within(spans, _extent(spans, near) / 2, share=0.8) if near else []:
        near = closer
    # If all lines are at one value, there is nothing to enlarge.
    return near if len({value for method in near for value in spans[method]}) > 1 else []


def _leaves(mean, spread, half, low, high, bounds) -> bool:
    """Returns whether a mean or its band leaves the limits in the second half."""
    spread = spread.fillna(0)
    ends = pd.concat([mean - spread, mean + spread]).dropna()
    ends = ends[ends.index >= half]
    ends = ends.clip(*bounds) if bounds else ends
    return not ends.between(low, high).all()


def _told_beyond(beyond, means) -> str:
    """Returns a note for the legend on the lines that leave the enlarged panel."""
    if len(beyond) > 4:
        return f"{len(beyond)} of {len(means)} lines leave the enlarged panel"
    short = displayed(means)
    return f"beyond the enlarged panel: {', '.join(short[method] for method in beyond)}"


def _late_limits(means, near, half, published, bounds) -> tuple[float, float]:
    """Returns limits for the second half that hold the bands and nearby published values."""
    values = []
    for method in near:
        mean, spread = means[method]
        late = mean.index >= half
        spread = spread.fillna(0)
        values += [*(mean - spread)[late], *(mean + spread)[late]]
    low, high = np.nanmin(values), np.nanmax(values)
    close = [v for v in (published or {}).values() if low - (high - low) < v < high + high - low]
    low, high = min([low, *close]), max([high, *close])
    margin = 0.05 * (high - low)
    low, high = low - margin, high + margin
    return (max(low, bounds[0]), min(high, bounds[1] + margin)) if bounds else (low, high)


def _mark_published(axes, published, means):
    """Draws published values right of a panel if within its limits, without overlaps."""
    looks = looks_of(means)
    low, high = axes.get_ylim()
    shown = {m: v for m, v in (published or {}).items() if m in looks and low <= v <= high}
    places, columns = {}, []
    for method, value in shown.items():
        place = axes.transData.transform((0, value))
        _, y = axes.transAxes.inverted().transform(place)
        # A twentieth of a panel's height is more than the height of a mark.
        free = (i for i, c in enumerate(columns) if all(abs(y - other) > 0.05 for other in c))
        places[method] = next(free, len(columns))
        if places[method] == len(columns):
            columns.append([])
        columns[places[method]].append(y)
    # Many columns are set closer together, so that the panel keeps enough space.
    step = min(0.03, 0.7 / max(1, len(columns)))
    for method, value in shown.items():
        axes.plot(
            1.015 + step * places[method],
            value,
            transform=axes.get_yaxis_transform(),
            clip_on=False,
            marker=looks[method].mark,
            ms=5.5,
            mfc="white",
            mec=looks[method].colour,
            ls="none",
            gid="published",
        )


def _keep_within(axes, bounds):
    """Limits an axis to the possible values, with a small margin for lines that run along it."""
    if bounds:
        low, high = axes.get_ylim()
        margin = 0.01 * (bounds[1] - bounds[0])
        axes.set_ylim(max(low, bounds[0] - margin), min(high, bounds[1] + margin))


def _draw_curves(axes, means, every, looks=None, named=True, beyond=(), bounds=None):
    """Draws one line and band per method.

    Looks and short names are chosen such that they differ between all rows in `every`. If `looks`
    is given, its keys are shown as they are. Methods in `beyond` may leave the panel. Bands are cut
    off at `bounds`.
    """
    short = {name: name for name in looks} if looks else displayed(every)
    looks = looks or looks_of(every)
    for i, (method, (mean, spread)) in enumerate(means.items()):
        look = looks[method]
        gid = "beyond" if method in beyond else None
        axes.plot(
            mean.index,
            mean,
            color=look.colour,
            ls=look.dashes,
            lw=figures.width(i, len(means)),
            marker=look.mark,
            ms=4,
            markevery=figures.sparse(i, len(means), len(mean)),
            label=short[method] if named else None,
            gid=gid,
        )
        if spread.notna().any():
            low, high = (v.clip(*bounds) if bounds else v for v in (mean - spread, mean + spread))
            style = {"color": look.colour, "alpha": 0.15, "lw": 0, "gid": gid}
            axes.fill_between(mean.index, low, high, **style)
    figures.whole_numbers(axes.xaxis)


@figures.look()
def summary(
    table: pd.DataFrame,
    *,
    title: str | None = None,
    published: str = "published",
    log: Sequence[str] = (),
    foreign: bool = False,
    inches: float | None = None,
) -> Figure:
    """Draws the results of a table's rows: seeds, means with error bars, published values.

    If most rows are much closer together than all values, the axis shows these rows. Values beyond
    it are written as numbers at its edge.

    Args:
      table: Columns `row`, `panel` (the quantity), `kind` (`seed`, `mean` or `published`), `value`,
        `spread` (NaN if unknown) and `status`, the text to show if a row has no value. Panels and
        rows are in order of first appearance.
      title: Title of the figure.
      published: Legend text for the published values.
      log: Panels whose axis is logarithmic.
      foreign: Whether the published values come from other data, so that axes need not show them.
      inches: Width that `figures.fit` will give the figure; by default as its panels need. Panels
        stand below one another where the width is that of one column.
    """
    short = displayed(table.row)
    rows = list(short)
    wanted = list(table.groupby("panel", sort=False))
    columns = 1 if inches and inches < figures.TWO_COLUMNS else len(wanted)
    width = 0.8 if len(wanted) > 1 else 1.5
    # Of a given width a third is for names.
    for_names = [inches / 3] if inches else []
    names = [figures.broken(name, *for_names) for name in short.values()]
    wide = (inches - for_names[0]) / columns - 0.2 if inches else 3.0 * width
    most = max(name.count("\n") + 1 for name in names)
    # The height of a row is that of one and a half lines of text.
    height = max(0.5, 0.105 * max(1, most / 1.5) * (len(rows) + 1))
    shape = columns, -(-len(wanted) // columns)
    figure, axes = figures.panels(*shape, width=width, height=height, of_rows=True, sharey=True)
    looks = looks_of(rows)
    kinds = set()
    for panel, (name, group) in zip(axes.flat, wanted, strict=True):
        limits = None if name in log else _shared_limits(group, foreign)
        beyond = {}
        for place, row in enumerate(rows):
            own, beyond[place] = _within(group[group.row == row], limits)
            kinds |= _draw_row(panel, place, looks[row], own)
        panel.set(xlabel=name)
        if name in log:
            panel.set_xscale("log")
        else:
            panel.locator_params(axis="x", nbins=5)
        panel.margins(x=0.08)
        if limits:
            panel.set_xlim(*limits)
            kinds |= {"beyond"} | {k for of in beyond.values() for *_, k, _ in of}
        _write_at_edges(panel, beyond, [looks[row] for row in rows], wide)
        panel.grid(axis="y", visible=False)
    axes[0, 0].set_yticks(range(len(rows)), names)
    axes[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    _title(figure, title)
    further = {
        "seed": figures.mark("|", "one seed", ms=7),
        "mean": figures.mark("o", "mean over seeds" if "seed" in kinds else "one seed"),
        "spread": figures.bar("± one standard deviation over seeds"),
        "published": figures.mark("D", published, mfc="white"),
        "beyond": figures.note(f"{_LEFT} {_RIGHT} beyond the axis"),
    }
    figures.legend(figure, [entry for kind, entry in further.items() if kind in kinds])
    return figures.fit(figure)


_LEFT, _RIGHT = "◂", "▸"
# Inches per letter of the text at a panel's edge, and the largest share of the panel for it.
_LETTER, _EDGE = 0.06, 0.4


def _extents(group) -> pd.DataFrame:
    """Returns the finite values of a panel; `low` and `high` are the ends of their error bars."""
    group = group[np.isfinite(group.value)]
    spread = group.spread.fillna(0)
    return group.assign(low=group.value - spread, high=group.value + spread)


def _shared_limits(group, foreign) -> tuple[float, float] | None:
    """Returns limits that show most rows, if showing all would squeeze them; else `None`."""
    values = _extents(group)
    own = values[values.kind != "published"] if foreign else values
    if own.empty:
        return None
    spans = {row: (g.low.min(), g.high.max()) for row, g in own.groupby("row", sort=False)}
    whole = values.high.max() - values.low.min()
    if foreign and _extent(spans, spans) < 0.5 * whole:
        most = list(spans)
    else:
        most = _most_within(spans, 0.25 * whole)
    if not most:
        return None
    low, high = min(spans[row][0] for row in most), max(spans[row][1] for row in most)
    margin = 0.15 * (high - low) or 0.02 * whole
    return low - margin, high + margin


def _within(own, limits) -> tuple[pd.DataFrame, list[tuple[str, bool, str, str]]]:
    """Splits a row into values within the limits and texts for the panel's edges.

    Args:
      own: The row's values.
      limits: The panel's limits; `None` if they include all values.

    Returns:
      The values, and for each text: its side; whether the panel must be widened for it, as it would
      cover marks otherwise; its kind (blank for a status); the text.
    """
    values = _extents(own)
    low, high = limits or (-np.inf, np.inf)
    leaves = values[(values.low < low) | (values.high > high)]
    kept = own.drop(leaves.index)
    texts = []
    for one in leaves[leaves.kind != "seed"].itertuples():
        text = f"◇ {one.value:.3g}" if one.kind == "published" else f"{one.value:.3g}"
        texts.append(("left" if one.low < low else "right", True, one.kind, text))
    for one in own[(own.kind == "mean") & ~np.isfinite(own.value)].itertuples():
        texts.append(("left", len(_extents(kept)) > 0, "", one.status))
    return kept, texts


def _write_at_edges(panel, beyond, looks, inches) -> None:
    """Writes texts at the edges of a summary's panel, and widens the panel for them if needed."""
    written = {}
    for place, texts in beyond.items():
        for side in ("left", "right"):
            own = [t for t in texts if t[0] == side]
            text = ", ".join(words for *_, words in own)
            if own and any(kind for *_, kind, _ in own):
                text = f"{_LEFT} {text}" if side == "left" else f"{text} {_RIGHT}"
            wide = any(wide for _, wide, *_ in own)
            if wide:
                text = textwrap.fill(text, int(_EDGE * inches / _LETTER) - 1)
            if own:
                written[place, side] = text, wide
    scale = panel.xaxis.get_transform()
    low, high = scale.transform(panel.get_xlim())
    span = high - low
    for side in ("left", "right"):
        of_side = [text for (_, s), (text, wide) in written.items() if s == side and wide]
        letters = max((len(line) for text in of_side for line in text.split("\n")), default=-1)
        share = min(_EDGE, _LETTER * (letters + 1) / inches)
        room = span * share / (1 - share)
        low, high = (low - room, high) if side == "left" else (low, high + room)
    panel.set_xlim(scale.inverted().transform([low, high]))
    for (place, side), (text, _) in written.items():
        panel.text(
            0.02 if side == "left" else 0.98,
            place,
            text,
            transform=panel.get_yaxis_transform(),
            ha=side,
            va="center",
            size=figures.TEXT,
            color=looks[place].colour if text[0] == _LEFT or text[-1] == _RIGHT else "0.3",
        )


def _draw_row(panel, place, look, group) -> set[str]:
    """Draws a row of a summary; returns the kinds of marks drawn, for the legend."""
    kinds = set()
    for one in group.itertuples():
        if not np.isfinite(one.value):
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

    This is a Gaussian kernel density with Scott's bandwidth. Mass beyond the smallest or largest
    possible value is reflected there. If all values are equal, a vertical line shows them.

    Args:
      values: Method → value of each client, finite, as in client_metrics.csv.
      quantity: What the values measure.
      title: Title of the figure.
    """
    values = {name: quantity.factor * np.asarray(v, float) for name, v in values.items()}
    every = np.concatenate(list(values.values()))
    if not all(map(len, values.values())) or not np.all(np.isfinite(every)):
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
    looks, names = looks_of(values), displayed(values)
    for i, (method, of_clients) in enumerate(values.items()):
        look, lw = looks[method], figures.width(i, len(values))
        style = {"color": look.colour, "ls": look.dashes, "lw": lw, "label": names[method]}
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
    title: str | None = None,
) -> Figure:
    """Draws the mean error of clients against its relative deviation: AdaFedAdam Fig. 3 (right).

    A method's points are joined in the order of its parameter. A broad grey line behind them is the
    Pareto front of all points in the figure. Marks are open, so that two marks at one place can
    both be seen.

    Args:
      points: Columns `method`, `parameter` (number; NaN for methods without one), `mean_error` in
        percent, `rsd`; one row per setting.
      parameter: Name of the parameter, for the labels beside the points.
      parameters: Method → name of its parameter, for the legend. Labels then show only numbers.
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
    axes.set(xlabel="mean error of clients (%)", ylabel="relative standard deviation of errors")
    axes.margins(0.1)
    _title(figure, title)
    told = parameter or parameters
    figures.legend(figure, [figures.note("numbers: the swept setting")] if not told else [])
    figures.fit(figure)
    figures.label_points(axes, labels)
    return figure


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
    # Matplotlib typesets text between dollar signs as mathematics.
    ids = points.client.astype(str).str.replace("$", r"\$", regex=False)
    points = points.assign(client="client " + ids)
    methods, names = list(points.groupby("method", sort=False)), displayed(points.method)
    figure, axes = figures.grid(len(methods), sharey=True)
    clients = list(dict.fromkeys(points.client))
    # Named like variants of one method, so that clients get the palette's colours in order.
    looks = dict(zip(clients, looks_of(f"client {c}" for c in clients).values(), strict=True))
    for panel, (method, group) in zip(axes, methods, strict=True):
        named = group.assign(method=group.client)
        _draw_curves(panel, _means(named), clients, looks=looks)
        panel.set(xlabel=_rounds(points, protocol), title=names[method])
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
    """Draws the best server learning rate for each client learning rate: FedOpt Fig. 12.

    If losses are known, client rates at which the model did not learn are left out, as in the
    paper. These are rates whose best loss is within 10 % of the method's worst.

    Args:
      points: Columns `method`, `seed`, `client_learning_rate`, `server_learning_rate`, `value`,
        and, if known, `loss`.
      higher_is_better: Whether higher values are better.
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


def _settings_figure(lines, xlabel, ylabel, title, further=()) -> Figure:
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
    _title(figure, title)
    figures.legend(figure, further)
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
    # In shorter runs fewer rounds are averaged, see `run_folders.mean_of_last`.
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
    """Returns mean error and its relative deviation per setting of the swept flag, over seeds."""
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
