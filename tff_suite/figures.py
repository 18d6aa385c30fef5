"""The common look of all figures, and how they are written: PNG for reading, PDF for print.

A legend stands beside the panels. `fit` sizes a figure so that its panels keep their size
regardless of what surrounds them. Long texts are broken into lines, and nothing leaves the canvas.
For a column of a paper, `fit` takes the figure's width instead; the legend then stands below the
panels.
"""

import contextlib
import functools
import io
import itertools
import numbers
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # Draws into files; no display is needed.

import numpy as np
from matplotlib import font_manager, pyplot, ticker
from matplotlib.axes import Axes
from matplotlib.backends import backend_agg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tff_suite import palette, writing
from tff_suite.errors import FedError

# Inches within the axes of a panel, and from panel to panel where the figure's width is given.
_PANEL = (3.0, 2.2)
_LEAST_PANEL = 2.1
_LEAST_MAP = 1.6
# What a panel needs at least.
_LEAST_INCHES = 0.9
# Inches that a panel may be high there.
_HEIGHTS = (1.3, 2.6)
# Entries of a legend below one another.
_ENTRIES = 22
_LEGEND_INCHES = 2.4
# Points of all text.
TEXT = 8

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelsize": TEXT,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": TEXT,
    "figure.dpi": 150,
    "figure.titlesize": TEXT,
    "font.size": TEXT,
    "grid.alpha": 0.3,
    "legend.fontsize": TEXT,
    "legend.frameon": False,
    "legend.handlelength": 3.2,
    "pdf.fonttype": 42,  # Letters as letters, not as curves.
    "xtick.labelsize": TEXT,
    "ytick.labelsize": TEXT,
}


def width(place: int, number: int) -> float:
    """Returns the width of a line in points; lower lines are wider, so that they stay visible."""
    return 2.6 - 1.4 * place / max(1, number - 1)


def sparse(place: int, number: int, points: int) -> tuple[int, int]:
    """Returns the points of a line that get a mark (`markevery`), unlike its neighbours'."""
    step = max(1, points // 6)
    return place * step // number % step, step


_wanted: "weakref.WeakKeyDictionary[Figure, tuple[float, float]]" = weakref.WeakKeyDictionary()
# What the legend of a figure says, as `legend` was given it.
_entries: "weakref.WeakKeyDictionary[Figure, dict[str, Any]]" = weakref.WeakKeyDictionary()


# Figures whose panels need their height whatever their width, such as those with a line per row.
_of_rows: "weakref.WeakSet[Figure]" = weakref.WeakSet()
# Group of texts that are left out together where one of them has no room, see `fit`.
OPTIONAL = "optional"
# Inches from which a figure has room for panels side by side.
TWO_COLUMNS = 5.0
# Inches that a figure may be high if its width is that of a column.
_PAGE = 9.0
# Pixels by which texts may touch.
_SLACK = 1.0


class NoRoomError(FedError, ValueError):
    """A figure that does not fit the requested size."""


def panels(
    columns: int = 1,
    rows: int = 1,
    *,
    width: float = 1.0,
    height: float = 1.0,
    of_rows: bool = False,
    **kwargs: Any,
) -> tuple[Figure, np.ndarray]:
    """Makes an empty figure in the common look.

    Args:
      columns: Panels side by side.
      rows: Panels one below the other.
      width: Width of a panel relative to the common one.
      height: Height of a panel relative to the common one.
      of_rows: Whether panels keep this height if `fit` gets a width.
      **kwargs: Passed to `matplotlib.pyplot.subplots`, e.g. `sharey`.

    Returns:
      The figure and its panels, an array of `Axes` `[rows, columns]`.
    """
    inner = (width * _PANEL[0], height * _PANEL[1])
    size = ((inner[0] + 0.7) * columns, (inner[1] + 0.8) * rows)
    with look():
        figure, axes = pyplot.subplots(
            rows, columns, figsize=size, layout="constrained", squeeze=False, **kwargs
        )
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    _wanted[figure] = inner
    if of_rows:
        _of_rows.add(figure)
    return figure, axes


def grid(number: int, columns: int = 3, **kwargs: Any) -> tuple[Figure, list[Axes]]:
    """Makes a figure with `number` panels, at most `columns` side by side; see `panels`."""
    columns = min(number, columns)
    figure, axes = panels(columns, -(-number // columns), **kwargs)
    for unused in axes.flat[number:]:
        unused.remove()
    return figure, list(axes.flat[:number])


@contextlib.contextmanager
def look() -> Iterator[None]:
    """Draws in the common look within a `with` statement, or in a function under `@look()`."""
    with matplotlib.rc_context(_STYLE):
        yield


def colour(place: int) -> str:
    """Returns the colour of the client (the class, the setting) at a position, from 0."""
    shades = list(palette.COLOURS.values())
    return shades[(place + 1) % len(shades)]


def whole_numbers(axis: Any) -> None:
    """Puts an axis's ticks at whole numbers, with a comma between thousands."""
    axis.set_major_locator(ticker.MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))


def ticks_at(axis: Any, values: Sequence[float]) -> None:
    """Puts an axis's ticks at the given values only."""
    axis.set_major_locator(ticker.FixedLocator(list(values)))
    axis.set_major_formatter(ticker.FixedFormatter([f"{value:g}" for value in values]))
    axis.set_minor_locator(ticker.NullLocator())


def band(label: str) -> Patch:
    """Returns an entry of a legend that explains bands."""
    return Patch(color="0.5", alpha=0.35, lw=0, label=label)


def mark(shape: str, label: str, **kwargs: Any) -> Line2D:
    """Returns an entry of a legend that explains a mark."""
    kwargs = {"color": "0.3", "ms": 5, **kwargs}
    return Line2D([], [], ls="none", marker=shape, label=label, **kwargs)


def bar(label: str) -> Line2D:
    """Returns an entry of a legend that explains error bars."""
    return Line2D([], [], color="0.3", lw=1.2, label=label)


def note(text: str) -> Line2D:
    """Returns an entry of a legend that consists of text alone."""
    return Line2D([], [], ls="none", marker="", label=text)


# Where a label may lie beside its point, in points: as text is aligned, and how far away.
_BESIDE = [
    (ha, va, (dx, dy))
    for ha, dx in (("left", 6), ("right", -6), ("center", 0))
    for va, dy in (("bottom", 5), ("top", -5), ("center", 0))
    if dx or dy
]


def label_points(axes: Axes, labels: Sequence[tuple[str, tuple[float, float], str]]) -> None:
    """Labels points of a laid-out panel, avoiding its lines, its marks and the other labels.

    Args:
      axes: The panel.
      labels: For each point its text, its position in the panel's data coordinates, and a colour.
    """
    whole: Any = axes.figure  # Its renderer is private.
    with look():
        renderer = whole._get_renderer()
        on_lines = []
        for line in axes.get_lines():
            ends = axes.transData.transform(line.get_xydata())
            parts = itertools.pairwise(ends)
            on_lines += [a + (b - a) * t for a, b in parts for t in np.linspace(0, 1, 50)]
            on_lines += list(ends)
        taken = np.array(on_lines).reshape(-1, 2)
        for text, point, shade in labels:
            best: tuple[float, Any, np.ndarray] | None = None
            for ha, va, away in _BESIDE:
                words = axes.annotate(
                    text,
                    point,
                    away,
                    textcoords="offset points",
                    ha=ha,
                    va=va,
                    size=TEXT,
                    color=shade,
                )
                box = words.get_window_extent(renderer)
                low, high = np.array(box.min), np.array(box.max)
                outside = np.maximum(np.maximum(low - taken, taken - high), 0)
                room = float(np.min(np.hypot(*outside.T)))
                room = room if axes.bbox.contains(*low) and axes.bbox.contains(*high) else -1
                if best is None or room > best[0] + 0.5:
                    if best is not None:
                        best[1].remove()
                    best = room, words, np.vstack([box.corners(), [(low + high) / 2]])
                else:
                    words.remove()
            assert best is not None
            taken = np.vstack([taken, best[2]])


def title(figure: Figure, words: str | None) -> None:
    """Gives a figure its title, if there is one."""
    if not words:
        return
    if len(figure.axes) > 1:
        figure.suptitle(words, x=0.01, ha="left")
    else:
        figure.axes[0].set_title(words)


def legend(figure: Figure, further: Sequence[Any] = ()) -> None:
    """Adds a legend beside the panels if anything in them has a name, each name once.

    Args:
      figure: The figure.
      further: Additional entries, below the others.
    """
    entries = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    entries |= {handle.get_label(): handle for handle in further}
    if not entries:
        return
    _entries[figure] = entries
    _place_legend(figure, "outside right upper", _LEGEND_INCHES, -(-len(entries) // _ENTRIES))


def _place_legend(figure: Figure, where: str, inches: float, columns: int) -> None:
    entries = _entries[figure]
    for old in list(figure.legends):
        old.remove()
    with look():
        labels = [_wrap(label, inches, TEXT) for label in entries]
        figure.legend(list(entries.values()), labels, loc=where, ncols=columns)


def _legend_below(figure: Figure, width_: float) -> None:
    """Puts the legend below the panels, in as many columns as fit the width."""
    # Of an entry the line and what is around it take this much.
    beside = (_STYLE["legend.handlelength"] + 3) * TEXT / 72
    font = font_manager.FontProperties(family=matplotlib.rcParams["font.family"], size=TEXT)
    short = [label for label in _entries[figure] if _inches(label, font) < width_ / 2 - beside]
    widest = max((_inches(label, font) for label in short), default=width_) + beside
    columns = max(1, min(int(width_ / widest), len(_entries[figure])))
    _place_legend(figure, "outside lower center", max(width_ / columns - beside, 0.5), columns)


def broken(name: str, inches: float = _LEGEND_INCHES) -> str:
    """Returns the name of a row, broken into lines so that it fits beside a panel."""
    return _wrap(name, inches, TEXT)


def fit(figure: Figure, width: float | None = None) -> Figure:
    """Breaks long titles and labels into lines, and sizes a figure so that panels keep their size.

    Args:
      figure: The figure.
      width: Inches of the figure, 2 to 20, for a column of a paper. Panels then share that width in
        their usual proportions, and the figure's title is left to the caption. Where there is too
        little space, tick labels are thinned and texts with the `gid` `OPTIONAL` are removed.

    Returns:
      The figure.

    Raises:
      ValueError: If something drawn leaves no space for the panels, or `width` is invalid;
        `NoRoomError` if the figure does not fit `width`.
    """
    if width is not None:
        if not isinstance(width, numbers.Real) or not 2 <= width <= 20:
            raise ValueError(f"width={width!r} must be a number of inches, 2 to 20, such as 3.25.")
        return _placed(figure, float(width))
    inner = np.array(_wanted.get(figure, _PANEL))
    shape = np.ones(2, int)
    with look(), _must_be_laid_out():
        for axes in figure.axes:
            if not _is_bar(axes):
                spec = axes.get_subplotspec()
                number = spec.get_gridspec() if spec else None
                shape = np.array([number.ncols, number.nrows]) if number else shape
            _wrap_words(axes, *(inner * (shape if _is_bar(axes) else 1)))
        whole: Any = figure  # The artist of its title is private.
        title = whole._suptitle
        words = title.get_text() if title is not None else ""
        if words:
            _wrap_text(title, shape[0] * (inner[0] + 0.5))
        # Where there is too little room there is no layout at all, so at first there is plenty.
        figure.set_size_inches(shape * (inner + 3) + (3, 0))
        _size(figure, shape, inner)
        if words and figure.legends:
            # Panels that share their labels are nearer each other than the title's lines expect.
            box = title.get_window_extent()
            room = figure.legends[0].get_window_extent().x0 - box.x0
            if box.width > room:
                title.set_text(_wrap(words, room / figure.dpi - 0.1, title.get_fontsize()))
                _size(figure, shape, inner)
    return figure


def _placed(figure: Figure, width_: float) -> Figure:
    """Sizes a figure for a column of `width_` inches."""
    panels_ = [axes for axes in figure.axes if not _is_bar(axes)]
    spec = panels_[0].get_subplotspec()
    assert spec is not None  # Panels lie in a grid.
    rows, columns = spec.get_gridspec().get_geometry()
    whole: Any = figure  # The artist of its title is private.
    with look(), _must_be_laid_out():
        if len(panels_) == 1:
            panels_[0].set_title("")
        if whole._suptitle is not None:
            whole._suptitle.remove()
            whole._suptitle = None
        maps = all(axes.images for axes in panels_)
        most = max(1, int(width_ / (_LEAST_MAP if maps else _LEAST_PANEL)))
        if columns > most:
            rows, columns = -(-len(panels_) // most), most
            places = figure.add_gridspec(rows, columns)
            for i, axes in enumerate(panels_):
                axes.set_subplotspec(places[i // columns, i % columns])
                axes.tick_params(
                    labelleft=axes.yaxis.get_tick_params()["labelleft"] or not i % columns
                )
        if maps:
            _share_words(panels_, columns)
            if width_ < TWO_COLUMNS:
                _bar_below(figure, panels_)
        if _entries.get(figure):
            _legend_below(figure, width_)
        wide, high = _wanted.get(figure, _PANEL)
        figure.set_size_inches(width_, 3 * rows + 2)
        for _ in range(4):
            figure.draw_without_rendering()
            boxes = [axes.get_window_extent() for axes in panels_]
            found = np.min([(box.width, box.height) for box in boxes], axis=0) / figure.dpi
            needed = high if figure in _of_rows else np.clip(found[0] * high / wide, *_HEIGHTS)
            for axes in panels_:
                _unwrap_words(axes)
                _wrap_words(axes, found[0], needed)
            for axes in filter(_is_bar, figure.axes):
                _unwrap_words(axes)
                _wrap_text(axes.xaxis.label, width_ - 1)
                _wrap_text(axes.yaxis.label, rows * needed)
            missing = needed - found[1]
            figure.set_size_inches(width_, figure.get_size_inches()[1] + rows * missing)
            if abs(missing) < 0.01:
                break
        if figure.get_size_inches()[1] > _PAGE:
            raise NoRoomError(
                f"At a width of {width_:g} inches it would be {figure.get_size_inches()[1]:.1f} "
                f"inches high, more than a page's {_PAGE:g}; choose fewer rows, or a wider figure."
            )
        _make_room(figure, panels_)
    crowded = _crowded(figure, panels_)
    if crowded:
        raise NoRoomError(f"Text of {TEXT} points does not fit {width_:g} inches: {crowded}.")
    return figure


def _share_words(panels_: Sequence[Axes], columns: int) -> None:
    """Removes texts between maps if all maps have the same; those at the edge stay."""
    for get, edge in (
        (lambda axes: axes.yaxis, lambda i: i % columns == 0),
        (lambda axes: axes.xaxis, lambda i: i + columns >= len(panels_)),
    ):
        axis_words = [_words_of(get(axes)) for axes in panels_]
        if all(words == axis_words[0] for words in axis_words):
            for i, axes in enumerate(panels_):
                if not edge(i):
                    get(axes).label.set_text("")
                    get(axes).set_tick_params(labelbottom=False, labelleft=False)


def _words_of(axis: Any) -> tuple[str, ...]:
    return axis.label.get_text(), *(label.get_text() for label in axis.get_majorticklabels())


def _bar_below(figure: Figure, panels_: Sequence[Axes]) -> None:
    """Moves a colour bar from beside the maps to below them."""
    for bar in list(filter(_is_bar, figure.axes)):
        label = bar.yaxis.label.get_text()
        bar.remove()
        figure.colorbar(panels_[0].images[0], ax=panels_, label=label, location="bottom")


def _make_room(figure: Figure, panels_: Sequence[Axes]) -> None:
    """Thins tick labels, and removes optional texts, where they overlap."""
    for axes in panels_:
        for axis in (axes.xaxis, axes.yaxis):
            _thin(figure, axis)
    optional = [[t for t in axes.texts if t.get_gid() == OPTIONAL] for axes in panels_]
    if any(_overlapping([_extent(figure, t) for t in texts]) for texts in optional):
        for text in itertools.chain(*optional):
            text.remove()


def _thin(figure: Figure, axis: Any) -> None:
    """Labels only every second tick, or every third and so on, until labels do not overlap."""
    ticks = list(axis.get_majorticklocs())
    words = [label.get_text() for label in axis.get_majorticklabels()]
    low, high = sorted(axis.get_view_interval())
    shown = [(at, word) for at, word in zip(ticks, words, strict=False) if low <= at <= high]
    # Numbers in between can be guessed, names of rows cannot.
    if not all(re.fullmatch(r"[-\u2212]?[\d.,]+", word) for _, word in shown):
        return
    for step in range(1, len(shown)):
        if not _overlapping([_extent(figure, t.label1) for t in _labelled(axis)]):
            return
        kept = shown[:: step + 1]
        axis.set_ticks([at for at, _ in kept], [word for _, word in kept])
        figure.draw_without_rendering()


def _labelled(axis: Any) -> list[Any]:
    """Returns the ticks of an axis whose labels are shown."""
    low, high = sorted(axis.get_view_interval())
    return [
        tick
        for tick in axis.get_major_ticks()
        if tick.label1.get_visible() and tick.label1.get_text() and low <= tick.get_loc() <= high
    ]


def _extent(figure: Figure, text: Any) -> Any:
    whole: Any = figure  # Its renderer is private.
    return text.get_window_extent(whole._get_renderer())


def _overlapping(boxes: Sequence[Any]) -> bool:
    """Returns whether any two boxes share more than their edges."""
    for one, other in itertools.combinations(boxes, 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        if across > _SLACK and min(one.y1, other.y1) - max(one.y0, other.y0) > _SLACK:
            return True
    return False


def _crowded(figure: Figure, panels_: Sequence[Axes]) -> str:
    """Returns a description of the texts that do not fit; blank if all do."""
    figure.draw_without_rendering()
    outer = figure.bbox
    for axes in panels_:
        if axes.get_window_extent().width < _LEAST_INCHES * figure.dpi:
            return "the texts beside a panel leave no space for it"
        texts = [_extent(figure, text) for text in axes.texts if text.get_text()]
        if _overlapping(texts):
            return "texts within a panel overlap"
        for axis in (axes.xaxis, axes.yaxis):
            if _overlapping([_extent(figure, tick.label1) for tick in _labelled(axis)]):
                return f"labels of the {axis.axis_name} axis overlap"
    boxes: list[Any] = [axes.get_tightbbox() for axes in figure.axes]
    boxes += [_extent(figure, legend_) for legend_ in figure.legends]
    if any(box.x0 < outer.x0 - _SLACK or box.x1 > outer.x1 + _SLACK for box in boxes):
        return "texts leave the figure"
    return "panels overlap" if _overlapping(boxes) else ""


def _size(figure: Figure, shape: np.ndarray, inner: np.ndarray) -> None:
    """Sizes a figure of `shape` columns and rows so that each panel has `inner` inches."""
    for _ in range(4):
        figure.draw_without_rendering()
        boxes = [axes.get_window_extent() for axes in figure.axes if not _is_bar(axes)]
        found = np.min([(box.width, box.height) for box in boxes], axis=0) / figure.dpi
        boxes = [legend_.get_window_extent() for legend_ in figure.legends]
        legends = np.max([(0, 0), *((b.width, b.height) for b in boxes)], axis=0) / figure.dpi
        old = figure.get_size_inches()
        size = old + shape * (inner - found)
        size[1] = max(size[1], legends[1] + 0.1)
        figure.set_size_inches(size)
        if np.allclose(size, old, rtol=0, atol=0.01):
            break


@contextlib.contextmanager
def _must_be_laid_out() -> Iterator[None]:
    """Turns matplotlib's warning that it could not lay out a figure into an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        try:
            yield
        except UserWarning as e:
            raise NoRoomError(
                "The figure leaves no space for its panels: something in it is far outside them."
            ) from e


def _is_bar(axes: Axes) -> bool:
    return axes.get_label() == "<colorbar>"


def _unwrap_words(axes: Any) -> None:
    for text in (axes._left_title, axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_text(text.get_text().replace("\n", " "))


def _wrap_words(axes: Any, wide: float, high: float) -> None:
    """Breaks the texts around a panel of `wide` by `high` inches into lines."""
    for title in (axes.title, axes._left_title, axes._right_title):
        _wrap_text(title, wide)
    _wrap_text(axes.xaxis.label, wide)
    _wrap_text(axes.yaxis.label, high)


def _wrap_text(text: Any, inches: float) -> None:
    text.set_text(_wrap(text.get_text(), inches, text.get_fontsize()))


def _wrap(text: str, inches: float, size: float) -> str:
    """Breaks a text into lines of at most `inches`, splitting words that are longer."""
    font = font_manager.FontProperties(family=matplotlib.rcParams["font.family"], size=size)
    return "\n".join(
        line
        for part in text.split("\n")
        for line in _lines(part, lambda t: _inches(t, font) <= inches)
    )


def _lines(text: str, fits: Callable[[str], bool]) -> list[str]:
    if fits(text):
        return [text]
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if fits(longer):
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and not fits(lines[-1] + letter):
                lines.append("")
            lines[-1] += letter
    return lines


def _inches(text: str, font: font_manager.FontProperties) -> float:
    width_, _, _ = _measure().get_text_width_height_descent(text, font, ismath=False)
    return width_ / 72


@functools.cache
def _measure() -> Any:
    # At 72 dots an inch a dot is a point.
    return backend_agg.FigureCanvasAgg(Figure(dpi=72)).get_renderer()


def close(figure: Figure) -> None:
    """Frees the memory of a figure that is not saved."""
    pyplot.close(figure)


def save(
    figure: Figure,
    output: str,
    endings: Sequence[str] = (".png", ".pdf"),
    width: float | None = None,
) -> list[str]:
    """Fits a figure, writes it (by default as PNG and as PDF), and closes it.

    Args:
      figure: The figure.
      output: Path of one file, or of both without an ending; missing folders are created.
      endings: The formats to write.
      width: As for `fit`.

    Returns:
      The paths written.

    Raises:
      OSError: If a file cannot be written.
      ValueError: See `fit`.
    """
    output = os.path.expanduser(output)
    stem, ending = os.path.splitext(output)
    if ending.lower() not in (".png", ".pdf"):
        stem = output
    os.makedirs(os.path.dirname(stem) or ".", exist_ok=True)
    paths = [stem + ending for ending in endings]
    fit(figure, width)
    with look(), _must_be_laid_out():
        for path in paths:
            # Without the date, equal figures are equal files.
            metadata = {"CreationDate": None} if path.endswith(".pdf") else {}
            content = io.BytesIO()
            figure.savefig(content, format=path[-3:], metadata=metadata)
            writing.write_atomically(path, content.getvalue())
    pyplot.close(figure)
    return paths
