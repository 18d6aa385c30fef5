"""The order of methods and their differences, beside single cells."""

import csv
import itertools

import numpy as np
import pytest
import scipy.stats

from reproduction import items, order, readme, results, score

SETUP = items.load_item("fedcada", "table1").setups["fashion_mnist_silo_iid"]


@pytest.mark.parametrize(
    ("x", "y", "tau", "p"),
    [
        # One of six pairs is turned: (5 - 1) / 6. Eight of 24 orders have at most one pair turned,
        # or at most one not turned.
        ([1, 2, 3, 4], [1, 3, 2, 4], 4 / 6, 8 / 24),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1, 2 / 24),
        # A tie: two pairs of three count on one side, sqrt(2 * 3); 4 of 6 orders leave the largest
        # or the smallest beside the 2.
        ([1, 1, 2], [1, 2, 3], 2 / 6**0.5, 4 / 6),
        ([1, 1, 1], [1, 2, 3], np.nan, np.nan),
    ],
)
def test_kendall_by_hand(x, y, tau, p):
    assert order.kendall(x, y) == pytest.approx((tau, p), nan_ok=True)


@pytest.mark.parametrize("rows", [3, 5, 8, 9, 20])
def test_kendall_and_spearman_are_scipys(rows):
    random = np.random.default_rng(rows)
    for x, y in (random.normal(size=(2, rows)), random.integers(0, 4, size=(2, rows))):
        tau, p = order.kendall(x, y)
        # Only without ties are SciPy's p-values those of all orders.
        exact = len(set(x)) == len(set(y)) == rows
        theirs = scipy.stats.kendalltau(x, y, method="exact" if exact else "auto")
        assert tau == pytest.approx(theirs[0])
        if exact:
            # Of 9,999 random orders the standard error is at most 0.005.
            assert p == pytest.approx(theirs[1], abs=1e-9 if rows <= 8 else 0.025)
        assert order.spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y)[0])
    assert order.kendall(x, y) == (tau, p)


def test_a_permutation_p_value_counts_orders_with_ties():
    x, y = [1, 1, 2, 3, 3], [2, 1, 1, 5, 4]
    tau, p = order.kendall(x, y)
    taus = [scipy.stats.kendalltau(x, z)[0] for z in itertools.permutations(y)]
    assert p == pytest.approx(np.mean(np.abs(taus) >= abs(tau) - 1e-9))


def test_differences_to_fedavg_by_hand():
    """Differences 2, 3, -1 in the paper and 1, 3, -2 here: (2 + 9 + 2) / (4 + 9 + 1)."""
    pairs = {"a": (82, 71), "fedavg": (80, 70), "b": (83, 73), "c": (79, 68)}
    found = order.compare(SETUP, "best", pairs)
    assert (found.methods, found.slope, found.rank) == (4, pytest.approx(13 / 14), 1)
    del pairs["fedavg"]
    assert np.isnan(order.compare(SETUP, "best", pairs)[-2:]).all()


def test_fedcadas_cross_silo_iid_column_does_not_tell_methods_apart():
    """It spans 89.09 to 89.20: a constant would score six of six."""
    (found,) = (
        c for c in order.of_item(items.load_item("fedcada", "table1")) if c.setup.name == SETUP.name
    )
    # By hand: of 15 pairs 5 have the paper's order.
    assert (found.methods, found.tau) == (6, pytest.approx((5 - 10) / 15))
    published = results.published(SETUP)
    assert score.indiscriminate(SETUP) == set(published)
    constant = {"value": "89.2", "spread": "0.1", "seeds": "1 2 3"}
    assert all(score.agrees(constant, theirs) for theirs in published.values())
    table = readme.side_by_side(SETUP, score.recorded(SETUP))
    assert table.count(" n.d. |") == 6
    cells = [
        cell
        for cell in score.cells(items.load_item("fedcada", "table1"))
        if cell.setup == SETUP.name
    ]
    counted = score.count(cells)
    assert counted.statuses == {"reproduced": 5, "not reproduced": 1}, "they keep their columns"
    assert not counted.discriminating


def test_every_cell_that_does_not_discriminate_is_flagged():
    """By the files alone: the range of a published column is at most a cell's tolerance."""
    flagged = 0
    for item in items.all_items():
        with open(items.PAPERS / item.paper / "published.csv", newline="") as f:
            lines = [r for r in csv.DictReader(f) if r["item"] == item.name]
        setups = {s.published: s for s in item.setups.values() if s.counts}
        for cell in score.cells(item):
            if cell.status not in ("reproduced", "not reproduced"):
                assert not cell.discriminates
                continue
            setup = setups[cell.setup]
            column = [
                r for r in lines if (r["setup"], r["column"]) == (setup.published, cell.column)
            ]
            (theirs,) = (r for r in column if r["row"] == cell.row)
            (ours,) = (
                r
                for r in score.recorded(setup)
                if (r["row"], r["column"]) == (score.counted_row(setup, cell.row), cell.column)
            )
            numbers = [float(r["value"]) for r in column]
            published = float(theirs["value"])
            width = 0.01 * abs(published)
            if theirs["spread"] and ours["spread"] and len(ours["seeds"].split()) > 1:
                error = float(theirs["spread"])
                if theirs["spread_kind"] == "deviation" and theirs["seeds"] != "unknown":
                    error /= int(theirs["seeds"]) ** 0.5
                own = float(ours["spread"]) ** 2 / len(ours["seeds"].split())
                errors = 2 * (own + error**2) ** 0.5
                width = max(width, errors if errors <= 0.05 * abs(published) else 0)
            assert cell.discriminates is (width < max(numbers) - min(numbers)), cell
            flagged += not cell.discriminates
    assert flagged


def test_the_scoreboard_counts_with_and_without():
    cell = score.Cell("t", "s", "a", "c", "reproduced", (1,))
    blind = cell._replace(row="b", identity=(2,), discriminates=False)
    found = score.count([cell, blind, cell._replace(row="d", status="stand-in", identity=(3,))])
    assert found.statuses == {"reproduced": 2, "stand-in": 1}
    assert found.discriminating["reproduced"] == 1
