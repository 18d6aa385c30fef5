"""Statistics against SciPy's tests, published examples and cases done by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from reproduction import results, statistics

VALUES = {
    "fedavg": {1: 0.50, 2: 0.52, 3: 0.49, 4: 0.55, 5: 0.51},
    "fedadam": {1: 0.58, 2: 0.61, 3: 0.50, 4: 0.56, 5: 0.60},
    "scaffold": {1: 0.51, 2: 0.50, 3: 0.52, 4: 0.55, 9: 0.70},
}


def test_every_pair_is_compared_as_by_scipy():
    pairs = statistics.compare(VALUES)
    names = [(pair.other, pair.one) for pair in pairs]
    assert names == list(itertools.combinations(VALUES, 2))
    for pair in pairs:
        a, b = ([VALUES[m][s] for s in pair.seeds] for m in (pair.one, pair.other))
        assert set(pair.seeds) == set(VALUES[pair.one]) & set(VALUES[pair.other])
        assert pair.p == pytest.approx(stats.ttest_rel(a, b).pvalue)
        change = np.subtract(a, b)
        oracle = stats.t.interval(0.95, len(change) - 1, change.mean(), stats.sem(change))
        assert (pair.difference.low, pair.difference.high) == pytest.approx(oracle)
    first = pairs[0]
    assert first.wins == 5 and statistics.compare(VALUES, False)[0].wins == 0
    assert pairs[1].wins == 2.5, "a tie counts half"


@pytest.mark.parametrize("seed", range(5))
def test_an_interval_holds_zero_where_the_test_does_not_reject(seed):
    change = np.random.default_rng(seed).normal(0.5, 1.0, size=6)
    low, high = statistics.interval(change)[1:]
    assert (low <= 0 <= high) == (stats.ttest_1samp(change, 0).pvalue >= 0.05)


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        # Done by hand, least first: 5 x 0.01, 4 x 0.02, ..., and none less than the one before.
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.03, 0.005, 0.04, 0.01], [0.06, 0.02, 0.06, 0.03]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([], []),
    ],
)
def test_holm(given, corrected):
    assert statistics.holm(given) == pytest.approx(corrected)


def test_holm_passes_over_what_is_no_test():
    corrected = statistics.holm([0.01, math.nan, 0.04])
    assert corrected[0] == pytest.approx(0.02) and math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.04)


def test_equal_differences_and_single_seeds():
    assert statistics.p_value([0.0, 0.0]) == 1 and statistics.p_value([0.5, 0.5]) == 0
    assert math.isnan(statistics.p_value([0.5])) and math.isnan(statistics.interval([0.5]).low)


def test_equal_values_have_no_spread():
    """A third of 0.7 + 0.7 + 0.7 is 0.6999999999999998, so NumPy finds a deviation of 1e-16."""
    assert np.std([0.7] * 3, ddof=1) > 0
    assert statistics.interval([0.7] * 3) == (0.7, 0.7, 0.7)
    assert results.mean_and_spread([0.7] * 3) == (0.7, 0.0)
    assert results.mean_and_spread([0.7]) == (0.7, None)
    assert all(map(math.isnan, results.mean_and_spread([math.nan] * 2)))
    assert results.mean_and_spread([1.0, 2.0])[1] == pytest.approx(0.5**0.5)


def test_what_is_not_finite_is_left_out():
    values = {"a": {1: 1.0, 2: math.nan, 3: 2.0}, "b": {1: 1.5, 2: 1.0, 3: 2.5}}
    (pair,) = statistics.compare(values)
    assert pair.seeds == (1, 3) and pair.difference.mean == 0.5


def test_clients_are_paired_within_their_seed():
    """Each seed's clients are shifted by the same amount, so drawing clients changes nothing."""
    clients = {
        "a": {1: {"x": 0.1, "y": 0.9, "z": 0.5}, 2: {"x": 0.3, "y": 0.2}},
        "b": {1: {"x": 0.3, "y": 1.1, "z": 0.7}, 2: {"x": 0.4, "y": 0.3, "other": 9.0}},
    }
    values = {name: {1: 0.0, 2: 0.0} for name in clients}
    (pair,) = statistics.compare(values, clients=clients)
    assert pair.clients == pytest.approx((0.15, 0.15, 0.15))
    del clients["b"][2]
    assert statistics.compare(values, clients=clients)[0].clients is None


def test_the_interval_over_clients_is_that_of_many_of_them():
    """Of one seed with many clients the bootstrap is the normal interval."""
    change = np.random.default_rng(3).normal(0.2, 1.0, size=400)
    found = statistics.over_clients([dict(zip(map(str, range(400)), change, strict=True))])
    half = 1.96 * change.std() / 20
    assert found.mean == pytest.approx(change.mean())
    assert found.low == pytest.approx(change.mean() - half, abs=0.2 * half)
    assert found.high == pytest.approx(change.mean() + half, abs=0.2 * half)


@pytest.mark.parametrize("alike", [True, False], ids=["the same clients", "other clients"])
def test_the_interval_over_clients_covers_the_mean_in_95_of_100_cases(alike):
    """A client's effect is the same on all seeds that have it; the true mean is 0."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        seeds = []
        effect = generator.normal(size=25)
        for seed in range(4):
            effect = effect if alike else generator.normal(size=25)
            change = effect + 0.3 * generator.normal(size=25)
            seeds.append({f"{0 if alike else seed}-{i}": d for i, d in enumerate(change)})
        found = statistics.over_clients(seeds)
        covered += found.low <= 0 <= found.high
    # A percentile bootstrap of 25 clients covers a little less than it says.
    assert 0.89 <= covered / 200 <= 0.985


def test_clients_of_all_seeds_are_drawn_together_whatever_their_order():
    """Drawing means over seeds is the same, since all weights are equal."""
    change = np.random.default_rng(0).normal(size=(3, 12))
    seeds = [{f"c{i:02}": d for i, d in enumerate(some)} for some in change]
    turned = [seeds[0], dict(reversed(seeds[1].items())), seeds[2]]
    found = statistics.over_clients(turned)
    means = {f"c{i:02}": d for i, d in enumerate(change.mean(axis=0))}
    assert found == pytest.approx(statistics.over_clients([means]))
    oracle = stats.bootstrap(
        (change.mean(axis=0),), np.mean, method="percentile", n_resamples=20_000, rng=1
    ).confidence_interval
    assert found.low == pytest.approx(oracle.low, abs=0.05)
    assert found.high == pytest.approx(oracle.high, abs=0.05)
    apart = statistics.over_clients([*seeds[:2], {f"d{k}": d for k, d in seeds[2].items()}])
    assert apart.mean == pytest.approx(found.mean) and apart != found


def test_the_interval_over_clients_is_of_the_mean_weighted_by_test_examples():
    """One client has most examples, so the mean is above 0, though most clients are below."""
    change = {"big": 0.5, **{f"small{i}": -0.4 for i in range(7)}}
    weights = {"big": 200.0, **{f"small{i}": 10.0 for i in range(7)}}
    found = statistics.over_clients([change], [weights])
    pooled = (200 * 0.5 - 70 * 0.4) / 270
    assert found.mean == pytest.approx(pooled)
    values, shares = np.array([*change.values()]), np.array([*weights.values()])
    oracle = stats.bootstrap(
        (values, shares),
        lambda v, w, axis: (v * w).sum(axis) / w.sum(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=20_000,
        rng=1,
    ).confidence_interval
    # An end of the interval is one of few possible values: how often "big" is drawn.
    assert found.low == pytest.approx(oracle.low, abs=0.02)
    assert found.high == pytest.approx(oracle.high, abs=0.02)
    clients = {"a": {1: dict.fromkeys(change, 0.0)}, "b": {1: change}}
    values_of = {"a": {1: 0.0}, "b": {1: pooled}}
    of_both = {method: {1: weights} for method in clients}
    (pair,) = statistics.compare(values_of, clients=clients, weights=of_both)
    assert pair.clients == found and pair.clients.mean == pytest.approx(pair.difference.mean)


def test_wins_are_unknown_where_the_direction_is():
    assert all(math.isnan(pair.wins) for pair in statistics.compare(VALUES, None))


def test_equal_differences_are_known_as_such():
    def pair(*differences):
        values = {"a": dict.fromkeys(range(9), 0.1), "b": {}}
        values["b"] = {seed: 0.1 + d for seed, d in enumerate(differences)}
        return statistics.compare(values)[0]

    assert pair(2.0, 2.0).without_spread and pair(0.0, 0.0).without_spread
    assert pair(0.2, 0.2 + 1e-16).without_spread, "up to rounding"
    assert not pair(2.0, 2.1).without_spread and not pair(2.0).without_spread


def test_the_interquartile_mean_is_that_of_the_middle_half():
    scores = np.array([[0.0, 10.0], [2.0, 4.0], [3.0, 100.0], [1.0, 5.0]])
    # Sorted: 0 1 2 3 4 5 10 100; the middle four are 2 3 4 5.
    found = statistics.interquartile_mean(scores)
    assert found.mean == 3.5 and found.low <= 3.5 <= found.high


def test_the_probability_of_improvement_is_over_all_pairs_of_seeds():
    one = np.array([[3.0, 1.0], [1.0, 1.0]])
    other = np.array([[2.0, 1.0], [0.0, 2.0], [1.0, 0.0]])
    # First task: 3 beats all three; 1 beats 0 and ties 1: 4.5 of 6. Second: of 1 with 1, 2 and 0
    # half of them, twice: 3 of 6.
    by_scipy = [stats.mannwhitneyu(one[:, t], other[:, t])[0] / 6 for t in (0, 1)]
    assert by_scipy == [0.75, 0.5]
    assert statistics.probability_of_improvement(one, other).mean == pytest.approx(0.625)
    sure = statistics.probability_of_improvement(one + 10, other)
    assert sure == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("seeds", "says"),
    [
        (1, "cannot decide"),
        (3, "± 4.3 standard errors: use at least 5"),
        (5, "± 2.8 standard errors."),
    ],
)
def test_what_seeds_can_show_is_said(seeds, says):
    assert says in statistics.told_of_seeds(seeds)
