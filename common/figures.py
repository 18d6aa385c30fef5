"""The one look of all figures, and how they are written: PNG for reading, PDF for print."""

import contextlib
import os

import matplotlib

matplotlib.use("Agg")  # Draws into files; no display is needed.

import numpy as np  # noqa: E402
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

# Inches of one panel, so that three side by side fill a page's width.
_PANEL = (3.6, 2.9)

_STYLE = {
    "axes.grid": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.dpi": 150,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # Letters as letters, not as curves.
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def panels(
    columns: int = 1, rows: int = 1, *, width: float = 1.0, **kwargs
) -> tuple[Figure, np.ndarray]:
    """Makes an empty figure in the common look.

    Args:
      columns: Panels side by side.
      rows: Panels one below the other.
      width: Width of a panel relative to the common one.
      **kwargs: Passed to `matplotlib.pyplot.subplots`, e.g. `sharey`.

    Returns:
      The figure and its panels, an array of `Axes` `[rows, columns]`.
    """
    size = (width * _PANEL[0] * columns, _PANEL[1] * rows)
    with look():
        return pyplot.subplots(
            rows, columns, figsize=size, layout="constrained", squeeze=False, **kwargs
        )


@contextlib.contextmanager
def look():
    """Draws in the common look within a `with` statement."""
    with matplotlib.rc_context(_STYLE):
        yield


def colour(place: int) -> str:
    """Returns the colour of the method (the client, the class) at a place, from 0."""
    return f"C{place % 10}"


def legend(axes: Axes) -> None:
    """Adds a legend if anything in the panel has a name."""
    if axes.get_legend_handles_labels()[0]:
        with look():
            axes.legend()


def save(figure: Figure, output: str) -> list[str]:
    """Writes a figure as PNG and as PDF and closes it.

    Args:
      figure: The figure.
      output: Path of either file, or of both without an ending; missing folders are made.

    Returns:
      The paths written.

    Raises:
      OSError: If a file cannot be written.
    """
    stem, ending = os.path.splitext(output)
    if ending.lower() not in (".png", ".pdf"):
        stem = output
    os.makedirs(os.path.dirname(stem) or ".", exist_ok=True)
    paths = [f"{stem}.png", f"{stem}.pdf"]
    for axes in figure.axes:
        axes.title.set_fontsize(_STYLE["axes.titlesize"])
    with look():
        for path in paths:
            # Without the date, equal figures are equal files.
            metadata = {"CreationDate": None} if path.endswith(".pdf") else {}
            figure.savefig(path, metadata=metadata)
    pyplot.close(figure)
    return paths
