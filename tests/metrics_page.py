"""What docs/metrics.md defines: patterns of column names."""

import pathlib
import re
from collections.abc import Iterable

_PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_GROUPS = ("validation/", "train/", "eval/", "client_loss/", "noise/", "time/", "fairness/")


def _names() -> list[str]:
    """Returns the names in the first column of the tables, fairness' with a metric before them."""
    names, in_fairness = [], False
    for line in _PAGE.read_text().splitlines():
        if line.startswith("## "):
            in_fairness = "fairness/" in line
        if not line.startswith("| `"):
            continue
        for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
            if name == "improved_fraction":
                names.append("fairness/improved_fraction")
            elif not in_fairness:
                names.append(name)
            elif not name.startswith("_"):
                names.append(f"fairness/<metric>_{name}")
    assert all(name.startswith(_GROUPS) for name in names), names
    return names


def _pattern(name: str, metrics: str) -> str:
    known = {
        "<metric>": metrics,
        "<c>": r"\d+",
        "<name>": r"(?!class_\d)\w+",
        "<id>": ".+",
        "<path>": ".+",
    }
    parts = re.split(r"(<\w+>)", name)
    return "".join(known[p] if p in known else re.escape(p) for p in parts)


def undefined(columns: Iterable[str]) -> list[str]:
    """Returns those of the columns of metrics.csv that the page does not define."""
    names = _names()
    # Of a task: what is defined for evaluations.
    own = [n.removeprefix("eval/") for n in names if n.startswith("eval/")]
    metrics = "(?:" + "|".join(_pattern(name, "") for name in own) + ")"
    known = [re.compile(_pattern(name, metrics)) for name in names]
    if "`fairness_all/<metric>_<name>`" in _PAGE.read_text():
        # The same statistics over other examples.
        columns = [re.sub("^fairness_all/", "fairness/", c) for c in columns]
    return [c for c in columns if c != "round_num" and not any(k.fullmatch(c) for k in known)]
