"""What the rows of a table came to, beside the published values."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from reproduction.kinds.spans import extent, most_within
from reproduction.looks import displayed, looks_of
from tff_suite import figures


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

    Bars of published values are what the paper prints, and the legend says so: a paper may print
    standard errors, or not say what it prints.

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
    figures.title(figure, title)
    # A paper may print another kind of bar than ours.
    as_printed = ", bars as printed" if "published spread" in kinds else ""
    further = {
        "seed": figures.mark("|", "one seed", ms=7),
        "mean": figures.mark("o", "mean over seeds" if "seed" in kinds else "one seed"),
        "spread": figures.bar("± one standard deviation over seeds"),
        "published": figures.mark("D", f"{published}{as_printed}", mfc="white"),
        "beyond": figures.note(f"{_LEFT} {_RIGHT} beyond the axis"),
    }
    figures.legend(figure, [entry for kind, entry in further.items() if kind in kinds])
    return figures.fit(figure)


_LEFT, _RIGHT = "◂", "▸"
# Inches per letter of the text at a panel's edge, and the largest share of the panel for it.
_LETTER, _EDGE = 0.06, 0.4


def _extents(group: pd.DataFrame) -> pd.DataFrame:
    """Returns the finite values of a panel; `low` and `high` are the ends of their error bars."""
    group = group[np.isfinite(group.value)]
    spread = group.spread.fillna(0)
    return group.assign(low=group.value - spread, high=group.value + spread)


def _shared_limits(group: pd.DataFrame, foreign: Any) -> tuple[float, float] | None:
    """Returns limits that show most rows, if showing all would squeeze them; else `None`."""
    values = _extents(group)
    own = values[values.kind != "published"] if foreign else values
    if own.empty:
        return None
    spans = {row: (g.low.min(), g.high.max()) for row, g in own.groupby("row", sort=False)}
    whole = values.high.max() - values.low.min()
    if foreign and extent(spans, spans) < 0.5 * whole:
        most = list(spans)
    else:
        most = most_within(spans, 0.25 * whole)
    if not most:
        return None
    low, high = min(spans[row][0] for row in most), max(spans[row][1] for row in most)
    margin = 0.15 * (high - low) or 0.02 * whole
    return low - margin, high + margin


def _within(
    own: pd.DataFrame, limits: Any
) -> tuple[pd.DataFrame, list[tuple[str, bool, str, str]]]:
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


def _write_at_edges(panel: Axes, beyond: Any, looks: Any, inches: float) -> None:
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
    panel.set_xlim(*scale.inverted().transform([low, high]))
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


def _draw_row(panel: Axes, place: Any, look: Any, group: pd.DataFrame) -> set[str]:
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
        kinds.add(one.kind)
        if bar is not None:
            kinds.add("published spread" if one.kind == "published" else "spread")
    return kinds
