r"""LaTeX tables, ready to paste; the preamble only needs `\usepackage{booktabs}`.

A cell shows the mean over seeds ± half the width of its 95 % interval. It consists of two columns
that meet at the sign, so that numbers align. In each column the best mean is bold. Means within the
best one's interval are underlined: these seeds do not distinguish them.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from reproduction import statistics
from reproduction.items import format_value

if TYPE_CHECKING:
    from reproduction.comparison import Comparison

_SPECIAL = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
}


def escape(text: str) -> str:
    """Returns a text on one line, with special characters escaped for LaTeX."""
    return "".join(_SPECIAL.get(c, c) for c in " ".join(text.split()))


def table(
    found: "Comparison",
    better: Mapping[str, bool],
    caption: str,
    label: str,
    settings: list[str] | None = None,
) -> str:
    """Returns the table of a comparison.

    Args:
      found: The comparison.
      better: Column → whether higher values are better.
      caption: The caption, as text.
      label: The label.
      settings: Columns of `found.runs` to show between method and results.
    """
    settings = settings or []
    cells = {c["name"]: _cells(found, c, better[c["name"]]) for c in found.columns}
    paper = [name for name in cells if any(name in row for row in found.published.values())]
    spec, head = ["l", *("r" for _ in settings)], ["Method", *map(escape, settings)]
    for name in cells:
        spec += [r"r@{\,$\pm$\,}l", *(["r"] if name in paper else [])]
        head += [
            rf"\multicolumn{{2}}{{c}}{{{escape(name)}}}",
            *(["paper"] if name in paper else []),
        ]
    lines = []
    for row, method in found.methods.items():
        own = found.runs[found.runs.row == row].iloc[0]
        line = [escape(method), *(_setting(own[name]) for name in settings)]
        for column in found.columns:
            name = column["name"]
            line.append(cells[name][row])
            if name in paper:
                line.append(_number(found.published.get(row, {}).get(name), column))
        lines.append(rf"    {' & '.join(line)} \\")
    return "\n".join(
        [
            *(f"% {' '.join(caveat.split())}" for caveat in found.caveats),
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{escape(caption)}}}",
            rf"  \label{{{label}}}",
            rf"  \begin{{tabular}}{{{' '.join(spec)}}}",
            r"    \toprule",
            rf"    {' & '.join(head)} \\",
            r"    \midrule",
            *lines,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _cells(found: Any, column: Any, more_is_better: bool) -> dict[str, str]:
    """Returns row → the two cells of a column; the table's format puts the sign between them."""
    of_row = {
        row: statistics.interval(found.runs[found.runs.row == row][column["name"]].astype(float))
        for row in found.methods
    }
    finite = {row: one for row, one in of_row.items() if math.isfinite(one.mean)}
    pick = max if more_is_better else min
    best = pick(finite, key=lambda row: finite[row].mean) if finite else None
    cells = {}
    for row, one in of_row.items():
        if row not in finite:
            cells[row] = r"\multicolumn{2}{c}{diverged}"
            continue
        text, half = _number(one.mean, column), one.high - one.mean
        if one.mean == finite[best].mean:
            text = rf"\textbf{{{text}}}"
        elif finite[best].low <= one.mean <= finite[best].high:
            text = rf"\underline{{{text}}}"
        # A single seed has no interval, so the sign is left out, too.
        if math.isfinite(half):
            cells[row] = f"{text} & {_number(half, column)}"
        else:
            cells[row] = rf"\multicolumn{{2}}{{c}}{{{text}}}"
    return cells


def _number(value: float | None, column: Mapping[str, Any]) -> str:
    return "" if value is None else f"{value:.{column.get('digits', 2)}f}"


def _setting(value: Any) -> str:
    return "" if pd.isna(value) else escape(format_value(value))
