import math

import numpy as np
import pytest

from reproduction import points

_RATES = {"client": {"log": [1e-3, 1.0]}, "server": {"log": [0.003, 3.0]}}


def test_lists_give_all_combinations_in_order():
    assert points.of_space({"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]
    assert points.of_space({}) == points.of_space({}, samples=16) == [{}]


@pytest.mark.parametrize("seed", range(5))
def test_a_power_of_two_of_points_has_one_in_each_stratum(seed):
    """The property that sets a Sobol sequence apart from independent draws; a shift keeps it."""
    sample = points.of_space(_RATES, samples=16, seed=seed)
    shift = np.random.default_rng(seed).random(2)
    for flag, offset in zip(_RATES, shift, strict=True):
        low, high = _RATES[flag]["log"]
        unit = np.array([math.log(p[flag] / low) / math.log(high / low) for p in sample])
        strata = np.floor((unit - offset) % 1.0 * 16 + 1e-2).astype(int) % 16
        assert sorted(strata) == list(range(16))


def test_seeds_differ_and_repeat():
    first = points.of_space(_RATES, samples=16, seed=1)
    assert first == points.of_space(_RATES, samples=16, seed=1)
    assert first != points.of_space(_RATES, samples=16, seed=2)


def test_rows_share_the_values_of_the_settings_they_share():
    more = points.of_space({**_RATES, "mu": {"linear": [0, 1]}}, samples=16, seed=3)
    shared = [{flag: point[flag] for flag in _RATES} for point in more]
    assert shared == points.of_space(_RATES, samples=16, seed=3)


def test_values_lie_in_their_range_and_lists_are_drawn_evenly():
    sample = points.of_space({"q": {"linear": [-1, 1]}, "t": [5, 6, 7, 8]}, samples=16, seed=0)
    assert all(-1 <= p["q"] < 1 for p in sample)
    assert sorted(p["t"] for p in sample) == [5] * 4 + [6] * 4 + [7] * 4 + [8] * 4


@pytest.mark.parametrize(
    ("space", "samples", "named"),
    [
        ({"a": 3}, None, "a must be a list"),
        ({"a": []}, None, "a must be a list"),
        ({"a": [0.1, math.nan]}, None, "a has nan; its values must be finite"),
        ({"a": [0.1, math.inf]}, 4, "a has inf; its values must be finite"),
        ({"a": [0.1, "0.1"]}, None, "0.1 as a number and as a text"),
        ({"a": {"log": [1, 2]}}, None, "samples"),
        ({"a": {"logarithmic": [1, 2]}}, 4, "log ="),
        ({"a": {"log": [1, 2], "linear": [1, 2]}}, 4, "log ="),
        ({"a": {}}, 4, "log ="),
        ({"a": {"log": [2, 1]}}, 4, "lower one first"),
        ({"a": {"log": [0, 1]}}, 4, "above 0"),
        ({"a": {"linear": [0, "1"]}}, 4, "two ends"),
        ({"a": {"linear": [0, math.inf]}}, 4, "two ends"),
        ({"a": {"linear": [True, 2]}}, 4, "two ends"),
    ],
    ids=str,
)
def test_faulty_spaces_are_refused(space, samples, named):
    with pytest.raises(ValueError, match=named):
        points.of_space(space, samples)


def test_no_point_is_tried_twice():
    space = {"rate": [0.001, 0.03, 0.5]}
    for samples in (4, 16, 64):
        found = [point["rate"] for point in points.of_space(space, samples)]
        assert sorted(found) == space["rate"]
    assert points.of_space({"rate": [0.1, 0.1, 1, 1.0]}) == [{"rate": 0.1}, {"rate": 1}]
