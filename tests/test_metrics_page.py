"""docs/metrics.md defines every column that a run can write.

Methods' columns are looked at where every method is run (tests/tff_algos/test_methods.py), those of
each task with it (tests/test_every_task.py).
"""

import pathlib
import re

import numpy as np
import pytest

from reproduction import items
from simulation.measures import fairness
from tests import metrics_page

REPO = pathlib.Path(__file__).resolve().parent.parent


def test_every_statistic_over_clients_is_defined():
    values = np.array([0.5, 0.25, 1.0])
    names = fairness.summarize(values, np.ones(3), train_sizes=np.ones(3))
    assert len(names) > 25
    assert metrics_page.undefined(f"fairness/accuracy_{name}" for name in names) == []
    assert metrics_page.undefined([f"fairness_all/accuracy_{name}" for name in names]) == []
    assert metrics_page.undefined(["train/aggregator/clipping/0"]) == []
    assert metrics_page.undefined(["fairness/accuracy_median_u", "fairness/accuracy_std"]) == [
        "fairness/accuracy_median_u",
        "fairness/accuracy_std",
    ]


def test_every_metric_that_a_data_set_names_is_defined():
    named = set()
    for path in (REPO / "tasks").rglob("*.py"):
        named |= set(re.findall(r'"(\w+)": losses\.', path.read_text()))
    assert {"accuracy", "mse", "recall_at_5", "loss"} <= named
    assert metrics_page.undefined(f"{kind}/{n}" for n in named for kind in ("eval", "train")) == []
    assert metrics_page.undefined(["eval/accuracy_class_3", "eval/accuracy_pullover"]) == []


def test_every_column_that_an_item_shows_is_defined():
    columns = {
        column["metric"]
        for item in items.all_items()
        for setup in item.setups.values()
        for column in setup.columns
    }
    assert metrics_page.undefined(columns) == []


@pytest.mark.parametrize("column", ["train/anything", "eval/auc", "time/seconds", "other"])
def test_what_is_not_defined_is_noticed(column):
    assert metrics_page.undefined([column]) == [column]
