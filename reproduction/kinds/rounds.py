"""Values over rounds: curves, and what is drawn like them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reproduction.kinds.spans import extent, most_within
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
    no band. A line has the rounds in which all of its seeds have a value, so it ends with the
    shortest run among them.

    A second panel enlarges the second half of the rounds if most lines are much closer together
    there than all lines are over all rounds. The legend names the lines that leave it. More than
    eight lines are distributed over panels, by method if that gives fewer panels.

    Args:
      points: Columns `method`, `seed`, `round_num`, `value`, as in metrics.csv.
      quantity: What the values measure.
      title: Title of the figure.
      smooth: Each value becomes the mean of this many values up to and including it, per seed. The
        first ones are means of as many as there are.
      log: Whether the values' axis is logarithmic.
      published: Method → the published value, in the unit of the axis. It is drawn as an open mark
        of the method's shape, to the right of each panel whose limits include it.
      published_as: Legend text for the published values.
      protocol: The rounds of the protocol; stated on the axis if fewer are shown.

    Raises:
      RunError: If `points` has no finite value, or two values for a method, seed and round.
        The same if the seeds of a method have no round in common, or no value fits on a
        logarithmic axis.
    """
    points, notes = _drawable(points, quantity.label, log)
    if points.duplicated(["method", "seed", "round_num"]).any():
        raise RunError("Two of the runs have the same settings and the same seed.")
    points = _of_all_seeds(points, ["method"])
    points = points.assign(value=quantity.factor * points.value)
    last = points.round_num.max()
    half = last / 2
    means = _means(points, smooth)
    panels = grouped(means)
    near = [] if log or len(panels) > 1 else _near_in_the_end(means, half)
    if len(panels) > 1:
        figure, axes = figures.grid(len(panels), sharey=True)
    else:
        figure, placed = figures.panels(2 if near else 1, width=1.2 if near else 1.5)
        axes = list(placed.flat)
    xlabel = _rounds(points, protocol)
    for whole, rows in zip(axes, panels, strict=False):
        _draw_curves(whole, {row: means[row] for row in rows}, means, bounds=quantity.bounds)
        whole.set(xlabel=xlabel)
        place = whole.get_subplotspec()
        if place is not None and place.is_first_col():
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
    further = _bands(points) + notes
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
    figures.title(figure, title)
    figures.legend(figure, further)
    return figures.fit(figure)


def _drawable(points: pd.DataFrame, label: str, log: bool) -> tuple[pd.DataFrame, list]:
    """Returns the points with a finite value, and legend entries on what the axis cannot show."""
    infinite = bool(np.isinf(points.value).any())
    points = points[np.isfinite(points.value)]
    if points.empty:
        raise RunError(f"No run has a {'finite ' * infinite}value of {label}.")
    notes = [figures.note("infinite values are not shown")] if infinite else []
    positive = points.value > 0
    if log and not positive.any():
        raise RunError(
            f"No value of {label} is above zero, so a logarithmic axis would be empty. "
            "Draw it without --log."
        )
    if log and not positive.all():
        notes.append(figures.note("values of zero or below are off the axis"))
    return points, notes


def _of_all_seeds(points: pd.DataFrame, line: list[str]) -> pd.DataFrame:
    """Returns the points in rounds in which all seeds of their line have a value.

    In other rounds, the mean of some seeds is not comparable with the mean of all.
    """
    of_line, of_round = (
        points.groupby(by).seed.transform("nunique") for by in (line, [*line, "round_num"])
    )
    shared = points[of_round == of_line]
    if lacking := [*dict.fromkeys(points.method[~points.method.isin(shared.method)])]:
        raise RunError(
            f"The runs of {lacking[0]} have no round in which all seeds have a value; draw one "
            "seed at a time."
        )
    return shared


def _rounds(points: pd.DataFrame, protocol: int | None) -> str:
    shown = points.round_num.max()
    if protocol and shown < protocol:
        return f"{_ROUND} ({shown:,} of the protocol's {protocol:,})"
    return _ROUND


def _bands(points: Any) -> list:
    """Returns the legend entry that explains the bands and gives the number of seeds."""
    seeds = points.groupby("method").seed.nunique()
    if seeds.max() == 1:
        return [figures.note("one seed")]
    number = f"{seeds.max()}" if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    return [figures.band(f"mean ± one standard deviation over {number} seeds")]


def _means(points: pd.DataFrame, smooth: int = 1) -> dict[str, tuple[pd.Series, pd.Series]]:
    """Returns method → mean and standard deviation over seeds, by round."""
    means = {}
    for method, group in points.groupby("method", sort=False):
        by_seed = group.pivot(index="round_num", columns="seed", values="value").sort_index()
        by_seed = by_seed.rolling(smooth, min_periods=1).mean()
        means[method] = by_seed.mean(axis=1), by_seed.std(axis=1)
    return means


def _near_in_the_end(means: Mapping[str, tuple[pd.Series, pd.Series]], half: float) -> list[str]:
    """Returns the methods whose second halves share a quarter of the full range, if most do."""
    finite = np.concatenate([mean[np.isfinite(mean)] for mean, _ in means.values()])
    late = {method: mean[mean.index >= half] for method, (mean, _) in means.items()}
    spans = {method: (m.min(), m.max()) for method, m in late.items() if len(m)}
    if not finite.size or max(map(len, late.values())) <= 2:
        return []
    near = most_within(spans, 0.25 * np.ptp(finite))
    # Leave out outliers among many lines if that enlarges the others at least twofold.
    while closer := most_within(spans, extent(spans, near) / 2, share=0.8) if near else []:
        near = closer
    # If all lines are at one value, there is nothing to enlarge.
    return near if len({value for method in near for value in spans[method]}) > 1 else []


def _leaves(
    mean: pd.Series, spread: pd.Series, half: float, low: float, high: float, bounds: Any
) -> bool:
    """Returns whether a mean or its band leaves the limits in the second half."""
    spread = spread.fillna(0)
    ends = pd.concat([mean - spread, mean + spread]).dropna()
    ends = ends[ends.index >= half]
    ends = ends.clip(*bounds) if bounds else ends
    return not ends.between(low, high).all()


def _told_beyond(beyond: Any, means: Any) -> str:
    """Returns a note for the legend on the lines that leave the enlarged panel."""
    if len(beyond) > 4:
        return f"{len(beyond)} of {len(means)} lines leave the enlarged panel"
    short = displayed(means)
    return f"beyond the enlarged panel: {', '.join(short[method] for method in beyond)}"


def _late_limits(
    means: Mapping[str, tuple[pd.Series, pd.Series]],
    near: Sequence[str],
    half: float,
    published: Any,
    bounds: Any,
) -> tuple[float, float]:
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
    points, notes = _drawable(points, "the clients' training loss", log=False)
    points = _of_all_seeds(points, ["method", "client"])
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
    figures.legend(figure, [*_bands(points), *notes])
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
    finite = points.value.where(np.isfinite(points.value))
    largest = finite.groupby([points.method, points.seed]).transform("max")
    relative = points.assign(value=points.value / largest)
    return curves(relative, quantity=Quantity("‖d‖ / max ‖d‖"), title=title, protocol=protocol)
