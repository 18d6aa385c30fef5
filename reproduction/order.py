"""Compares the order of methods, and the differences between them, with the published ones.

`reproduction.score` compares cells one by one. If all numbers of a column are close to each other,
they agree there regardless of the methods. So this module compares columns as a whole.
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from reproduction import results, score
from reproduction.items import Item, Setup

# Up to this number of methods all orders are tried; beyond it, this number of random ones.
_MOST_FOR_ALL = 8
_RANDOM_ORDERS = 9_999


class Comparison(NamedTuple):
    """A column of a table, ours compared with the paper's.

    Attributes:
      setup: The set-up that the scoreboard counts.
      column: The metric.
      methods: Number of rows that both have.
      tau: Kendall's tau-b of the two orders, -1 to 1; NaN if all rows are equal on one side.
      p: Share of all orders whose tau-b is at least as far from 0: 0 to 1.
      slope: Change of our difference to FedAvg per unit of the paper's: least squares through
        FedAvg's own point, (0, 0). NaN without a row of FedAvg.
      rank: Spearman's correlation of the other rows' differences to FedAvg, -1 to 1; NaN without
        FedAvg, or with fewer than two other rows.
    """

    setup: Setup
    column: str
    methods: int
    tau: float
    p: float
    slope: float
    rank: float


def of_item(item: Item) -> list[Comparison]:
    """Compares each published column of an item for which we have three or more rows.

    It compares only set-ups and rows that the scoreboard counts. Stand-ins are included.
    """
    found = []
    for setup in item.setups.values():
        if not setup.counts:
            continue
        ours = {
            (r["row"], r["column"]): float(r["value"])
            for r in score.recorded(setup)
            if r["value"] not in ("", "nan")
        }
        columns = {}
        for (row, column), theirs in results.published(setup).items():
            own = score.counted_row(setup, row)
            if (own, column) in ours:
                pair = float(theirs["value"]), ours[own, column]
                columns.setdefault(column, {})[row] = pair
        for column, pairs in columns.items():
            if len(pairs) > 2:
                found.append(compare(setup, column, pairs))
    return found


def compare(setup: Setup, column: str, pairs: dict[str, tuple[float, float]]) -> Comparison:
    """Returns the comparison of a column.

    Args:
      setup: The set-up.
      column: The metric.
      pairs: Published row → the paper's number and ours.
    """
    paper, ours = (np.array(numbers) for numbers in zip(*pairs.values(), strict=True))
    slope = rank = math.nan
    if "fedavg" in pairs:
        others = [i for i, row in enumerate(pairs) if row != "fedavg"]
        x, y = (
            side[others] - own for side, own in zip((paper, ours), pairs["fedavg"], strict=True)
        )
        slope = float(x @ y / (x @ x)) if x.any() else math.nan
        rank = spearman(x, y)
    return Comparison(setup, column, len(pairs), *kendall(paper, ours), slope, rank)


def kendall(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Returns Kendall's tau-b of two sides and its two-sided permutation p-value.

    With more than eight rows the p-value is estimated from 9,999 random orders, which are the same
    in every call.

    Args:
      x: Numbers of one side.
      y: Numbers of the other; of equal length.
    """
    a, b = (np.sign(np.subtract.outer(side, side)).astype(int) for side in (x, y))
    # Ties contribute to neither sum under the root, and permutations do not change these sums.
    roots = math.sqrt((a * a).sum() * (b * b).sum())
    if not roots:
        return math.nan, math.nan
    orders, is_all = _orders(len(a))
    sums = sum(
        a[i, j] * b[orders[:, i], orders[:, j]] for i, j in itertools.combinations(range(len(a)), 2)
    )
    observed = (a * b).sum() // 2
    extreme = int((abs(sums) >= abs(observed)).sum())
    p = extreme / len(orders) if is_all else (extreme + 1) / (len(orders) + 1)
    return 2 * observed / roots, p


@functools.cache
def _orders(rows: int) -> tuple[np.ndarray, bool]:
    """Returns orders of rows as an array `[orders, rows]`, and whether these are all orders."""
    if rows <= _MOST_FOR_ALL:
        return np.array(list(itertools.permutations(range(rows)))), True
    generator = np.random.default_rng(0)
    return np.array([generator.permutation(rows) for _ in range(_RANDOM_ORDERS)]), False


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Returns Spearman's rank correlation; NaN for fewer than two rows, or all equal on a side."""
    ranks = [_ranks(np.asarray(side)) for side in (x, y)]
    a, b = (r - r.mean() for r in ranks) if len(ranks[0]) else ranks
    roots = math.sqrt((a @ a) * (b @ b))
    return float(a @ b) / roots if roots else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns ranks from 0; equal values get the mean of their ranks."""
    below = (values[:, None] > values).sum(axis=1)
    equal = (values[:, None] == values).sum(axis=1)
    return below + (equal - 1) / 2
