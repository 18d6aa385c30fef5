"""What columns of metrics.csv are, in the words and the unit of a figure's axis."""

import re
from typing import NamedTuple

# Metrics that are fractions in metrics.csv and percent in tables and figures.
_SHARE = re.compile(r"accuracy|recall|precision|fraction")
_OF_CLIENTS = re.compile(r"fairness/(\w+?)_(avg|std|error_rsd|worst\d\d|best\d\d)_([uwt])")
_FORMS = re.compile(r"fairness/(\w+)_(angle|kl)")
# Of one class: by its number, or as a task of named classes has it.
_OF_CLASS = re.compile(r"eval/accuracy_(?!without_)(\w+)")
_WEIGHTS = {"u": "", "w": ", weighted by test examples", "t": ", weighted by training examples"}


class Quantity(NamedTuple):
    """A quantity on an axis.

    Attributes:
      label: What it is, with its unit.
      factor: By which a number of metrics.csv is multiplied.
      bounds: The least and the largest value that it can have on the axis; `None` if there are no
        such values.
    """

    label: str
    factor: float = 1.0
    bounds: tuple[float, float] | None = None


def of_column(column: str, label: str | None = None) -> Quantity:
    """Returns the quantity that a column of metrics.csv or client_metrics.csv holds.

    Args:
      column: The column, e.g. `fairness/accuracy_worst30_w`.
      label: What it is, without a unit, where there are better words than the column's own.
    """
    words, statistic = _words(column)
    if _SHARE.search(column) and statistic not in ("error_rsd", "angle", "kl"):
        return Quantity(f"{label or words} (%)", 100.0, (0.0, 100.0))
    return Quantity(label or words)


def _words(column) -> tuple[str, str]:
    found = _OF_CLIENTS.fullmatch(column)
    if found:
        metric, statistic, weights = found.groups()
        metric = metric.replace("_", " ")
        words = {
            "avg": f"mean {metric} over clients",
            "std": f"standard deviation of clients' {metric}",
            "error_rsd": "standard deviation of clients' errors over their mean",
        }.get(statistic)
        if words is None:
            words = f"mean {metric} of the {statistic[:-2]} {int(statistic[-2:])} % of clients"
        return words + _WEIGHTS[weights], statistic
    found = _FORMS.fullmatch(column)
    if found:
        metric, form = found[1].replace("_", " "), found[2]
        if form == "kl":
            return f"KL divergence of clients' {metric} from a uniform one (nats)", form
        return f"angle between clients' {metric} and equal ones (degrees)", form
    part, _, metric = column.rpartition("/")
    found = _OF_CLASS.fullmatch(column)
    if found:
        return f"accuracy on {found[1].replace('_', ' ')}", ""
    kind = {"train": "training ", "fairness": "clients' "}.get(part, "")
    return kind + metric.replace("_", " "), ""
