"""Labels and units of the columns of metrics.csv on a figure's axis."""

import re
from typing import NamedTuple

# Metrics that are fractions in metrics.csv but percentages in tables and figures.
_SHARE = re.compile(r"accuracy|recall|precision|fraction")
_OF_CLIENTS = re.compile(r"fairness/(\w+?)_(avg|std|error_rsd|worst\d\d|best\d\d)_([uwt])")
_FORMS = re.compile(r"fairness/(\w+)_(angle|kl)")
# Accuracy on one class, given by its number or name.
_OF_CLASS = re.compile(r"eval/accuracy_(?!without_)(\w+)")
_WEIGHTS = {"u": "", "w": ", weighted by test examples", "t": ", weighted by training examples"}


class Quantity(NamedTuple):
    """A quantity on an axis.

    Attributes:
      label: Its name, with its unit.
      factor: Factor on the numbers of metrics.csv.
      bounds: The smallest and the largest possible value on the axis; `None` if unbounded.
    """

    label: str
    factor: float = 1.0
    bounds: tuple[float, float] | None = None


def is_share(metric: str) -> bool:
    """Returns whether a metric is a fraction that tables and figures show as a percentage."""
    return bool(_SHARE.search(metric))


def of_column(column: str, label: str | None = None) -> Quantity:
    """Returns the quantity that a column of metrics.csv or client_metrics.csv holds.

    Args:
      column: The column, e.g. `fairness/accuracy_worst30_w`.
      label: A label without a unit, to replace the one derived from the column's name.
    """
    words, statistic = _words(column)
    if is_share(column) and statistic not in ("error_rsd", "angle", "kl"):
        return Quantity(f"{label or words} (%)", 100.0, (0.0, 100.0))
    return Quantity(label or words)


def _words(column: str) -> tuple[str, str]:
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
