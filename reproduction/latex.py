r"""LaTeX tables, ready to paste; the preamble only needs `\usepackage{booktabs}`.

A cell shows the mean over finished seeds ± half the width of its 95 % interval. A note below the
table tells where seeds are missing. A cell consists of two columns that meet at the sign, so that
numbers align. In each column the best mean is bold. Means within the best one's interval are
underlined: these seeds do not distinguish them.

A column's `digits` apply where they show the numbers. Otherwise the half width has two significant
digits and its mean the same decimals; a mean without an interval has four significant digits.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from reproduction import statistics
from reproduction.items import format_value
from simulation.records import outputs

if TYPE_CHECKING:
    from reproduction.comparison import Comparison

# pdfLaTeX takes accented letters, but no Greek ones. The capitals that look Latin have no command.
_SMALL = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi o pi rho varsigma "
    "sigma tau upsilon phi chi psi omega"
)
_CAPITALS = "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
_GREEK = {
    **{chr(0x3B1 + k): rf"$\{name}$" for k, name in enumerate(_SMALL.split())},
    **{c: rf"$\{name}$" for c, name in zip("ΓΔΘΛΞΠΣΥΦΨΩ", _CAPITALS.split(), strict=True)},
    "ο": "o",
}

_SPECIAL = {
    **{c: rf"\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    # After a line's end, a bracket would begin an optional argument.
    "[": "{[}",
    "<": r"$<$",
    ">": r"$>$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≠": r"$\neq$",
    "≈": r"$\approx$",
    "×": r"$\times$",
    "→": r"$\to$",
    "−": "$-$",
    "∞": r"$\infty$",
    "µ": r"$\mu$",  # The micro sign, which is another character than the letter.
    **_GREEK,
}


def escape(text: str) -> str:
    """Returns a text on one line, with special characters escaped for LaTeX."""
    return "".join(_SPECIAL.get(c, c) for c in " ".join(text.split()))


def table(
    found: "Comparison",
    better: Mapping[str, bool | None],
    caption: str,
    label: str,
    settings: list[str] | None = None,
) -> str:
    """Returns the table of a comparison.

    Args:
      found: The comparison.
      better: Column → whether higher values are better; `None` if unknown, then none is bold.
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
    lines, notes = [], {}
    for row, method in found.methods.items():
        own = found.runs[found.runs.row == row].iloc[0]
        mark = ""
        if told := _missing_seeds(found, row):
            mark = f"$^{{{notes.setdefault(told, len(notes) + 1)}}}$"
        line = [escape(method) + mark, *(_setting(own[name]) for name in settings)]
        for column in found.columns:
            name = column["name"]
            line.append(cells[name][row])
            if name in paper:
                value = found.published.get(row, {}).get(name)
                line.append("" if value is None else "".join(_numbers(value, math.nan, column)))
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
            *(
                rf"  \par{{\footnotesize $^{{{number}}}$ {escape(told)}}}"
                for told, number in notes.items()
            ),
            r"\end{table}",
            "",
        ]
    )


def finished(found: "Comparison", row: str, column: str) -> np.ndarray:
    """Returns a row's values of a column on the seeds that have one, float `[seeds]`."""
    values = found.runs[found.runs.row == row][column].to_numpy(float)
    return values[np.isfinite(values)]


def fate(run: Any) -> str:
    """Returns in words why a run, a row of `Comparison.runs`, has no value."""
    folder = pathlib.Path(str(run["run"]))
    if (folder / outputs.DIVERGED).exists():
        return "diverged"
    if pd.isna(run.get("rounds", 0)):
        return "not run"
    # Without its folder, a run that did rounds and has no value is known to have diverged.
    return "no value" if folder.is_dir() else "diverged"


def _missing_seeds(found: "Comparison", row: str) -> str:
    """Returns a sentence on the seeds that a row's means lack; empty if it lacks none or all."""
    own = found.runs[found.runs.row == row]
    valued = own[[c["name"] for c in found.columns]].apply(np.isfinite).all(axis=1)
    if valued.all() or not valued.any():
        return ""
    fates = [fate(run) for _, run in own[~valued].iterrows()]
    told = ", ".join(f"{fates.count(one)} {one}" for one in dict.fromkeys(fates))
    return f"Mean over {int(valued.sum())} of {len(own)} seeds; {told}."


def _cells(found: Any, column: Any, more_is_better: bool | None) -> dict[str, str]:
    """Returns row → the two cells of a column; the table's format puts the sign between them."""
    of_row = {
        row: statistics.interval(finished(found, row, column["name"])) for row in found.methods
    }
    finite = {row: one for row, one in of_row.items() if math.isfinite(one.mean)}
    pick = max if more_is_better else min
    best = pick(finite.values(), key=lambda one: one.mean) if finite else None
    cells = {}
    for row, one in of_row.items():
        if best is None or row not in finite:
            fates = [fate(run) for _, run in found.runs[found.runs.row == row].iterrows()]
            told = "diverged" if "diverged" in fates else fates[0]
            cells[row] = rf"\multicolumn{{2}}{{c}}{{{told}}}"
            continue
        text, half, power = _numbers(one.mean, one.high - one.mean, column)
        if more_is_better is None:
            pass
        elif one.mean == best.mean:
            text = rf"\textbf{{{text}}}"
        elif best.low <= one.mean <= best.high:
            text = rf"\underline{{{text}}}"
        # A single seed has no interval, so the sign is left out, too.
        if not half:
            cells[row] = rf"\multicolumn{{2}}{{c}}{{{text}{power}}}"
        else:
            cells[row] = f"({text} & {half}){power}" if power else f"{text} & {half}"
    return cells


def _numbers(mean: float, half: float, column: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns a mean, half of its interval (empty if unknown) and the power of ten of both."""
    digits, most = column.get("digits"), max(abs(mean), abs(half) if math.isfinite(half) else 0)
    shown = digits is not None and (most == 0 or 10.0**-digits <= most)
    exponent = 0 if most == 0 else math.floor(math.log10(most))
    if most < 1e6 and (shown or exponent >= -3):
        exponent = 0
    if exponent or not shown:
        digits = max(0, exponent + _decimals(mean, half))
    factor = 10.0**-exponent
    text = f"{mean * factor:.{digits}f}"
    power = rf" $\times 10^{{{exponent}}}$" if exponent else ""
    return text, f"{half * factor:.{digits}f}" if math.isfinite(half) else "", power


def _decimals(mean: float, half: float) -> int:
    """Returns the decimals that show a half width to two digits, or else the mean to four."""
    if math.isfinite(half) and half > 0:
        return 1 - math.floor(math.log10(half))
    return 3 - math.floor(math.log10(abs(mean))) if mean else 1


def _setting(value: Any) -> str:
    return "" if pd.isna(value) else escape(format_value(value))
