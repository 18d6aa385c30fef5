import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.measures import fairness

A = np.array([0.2, 0.8, 0.5, 0.9])
N = np.array([10, 30, 40, 20])
UNIT = st.floats(0, 1, allow_subnormal=False)


@st.composite
def clients(draw, value=UNIT):
    values = draw(st.lists(value, min_size=1, max_size=30))
    sizes = draw(st.lists(st.integers(1, 1000), min_size=len(values), max_size=len(values)))
    return np.array(values), np.array(sizes)


def test_literals():
    s = fairness.summarize(A, N)
    assert s["avg_u"] == pytest.approx(2.4 / 4)
    # (2 + 24 + 20 + 18) / 100.
    assert s["avg_w"] == pytest.approx(0.64)
    # Squared deviations from 0.6: 0.16, 0.04, 0.01, 0.09.
    assert s["std_u"] == pytest.approx(math.sqrt(0.30 / 4))
    # From 0.64: 0.1936, 0.0256, 0.0196, 0.0676 with weights 0.1, 0.3, 0.4, 0.2.
    assert s["std_w"] == pytest.approx(math.sqrt(0.01936 + 0.00768 + 0.00784 + 0.01352))
    # round(0.3 * 4) = 1 client.
    assert s["worst30_u"] == 0.2
    assert s["best30_u"] == 0.9
    # 10 % of the examples at 0.2, then 20 % of the 40 % at 0.5.
    assert s["worst30_w"] == pytest.approx((0.1 * 0.2 + 0.2 * 0.5) / 0.3)
    # 20 % at 0.9, then 10 % of the 30 % at 0.8.
    assert s["best30_w"] == pytest.approx((0.2 * 0.9 + 0.1 * 0.8) / 0.3)
    assert s["worst10_w"] == pytest.approx(0.2)
    assert s["worst05_u"] == 0.2
    # Errors 0.8, 0.2, 0.5, 0.1 have mean 0.4 and the same std.
    assert s["error_rsd_u"] == pytest.approx(math.sqrt(0.075) / 0.4)
    assert s["error_rsd_w"] == pytest.approx(math.sqrt(0.0484) / 0.36)
    # |a|^2 = 0.04 + 0.64 + 0.25 + 0.81 = 1.74.
    assert s["angle"] == pytest.approx(math.degrees(math.acos(2.4 / (2 * math.sqrt(1.74)))))
    shares = [1 / 12, 1 / 3, 5 / 24, 3 / 8]
    assert s["kl"] == pytest.approx(sum(p * math.log(4 * p) for p in shares))


def test_weighted_by_training_examples():
    t = np.array([3, 1, 4, 2])
    s = fairness.summarize(A, N, train_sizes=t)
    # (0.6 + 0.8 + 2.0 + 1.8) / 10.
    assert s["avg_t"] == pytest.approx(0.52)
    # From 0.52: 0.1024, 0.0784, 0.0004, 0.1444 with weights 0.3, 0.1, 0.4, 0.2.
    assert s["std_t"] == pytest.approx(math.sqrt(0.03072 + 0.00784 + 0.00016 + 0.02888))
    assert [s["worst30_t"], s["best30_t"]] == pytest.approx([0.2, 0.9])
    # The two lowest of four clients by number: 0.2 three times, 0.5 four times.
    assert fairness.tail_by_number(A, 0.5, t) == pytest.approx((0.6 + 2.0) / 7)
    assert fairness.tail_by_number(A, 0.5, t, highest=True) == pytest.approx((0.8 + 1.8) / 3)
    # Of the errors 0.8, 0.2, 0.5, 0.1.
    assert s["error_rsd_t"] == pytest.approx(s["std_t"] / 0.48)
    plain = fairness.summarize(A, N)
    assert plain.items() <= s.items() and all(name.endswith("_t") for name in s.keys() - plain)
    lower = fairness.summarize(A, N, train_sizes=t, higher_is_better=False)
    assert lower["worst30_t"] == pytest.approx(0.9)


@given(clients())
def test_equal_training_sizes_are_no_weights(data):
    a, n = data
    s = fairness.summarize(a, n, train_sizes=np.full(len(a), 3))
    for name in [name for name in s if name.endswith("_t")]:
        assert s[name] == pytest.approx(s[f"{name[:-2]}_u"], abs=1e-9, nan_ok=True), name


def test_clients_that_do_not_train_are_left_out_of_weighted_means():
    s = fairness.summarize(A, N, train_sizes=np.array([0, 1, 1, 0]))
    assert s["avg_t"] == pytest.approx(0.65) and math.isnan(s["worst30_t"])
    nobody = fairness.summarize(A, N, train_sizes=np.zeros(4))
    assert math.isnan(nobody["avg_t"]) and nobody["avg_u"] == pytest.approx(0.6)


def test_number_of_clients_in_a_tail():
    a = np.arange(20.0)
    assert fairness.tail(a, 0.1) == 0.5  # 2 clients.
    assert fairness.tail(a, 0.05) == 0.0
    assert fairness.tail(a, 0.3) == 2.5  # 6 clients: 0 to 5.
    assert fairness.tail(a[:3], 0.1) == 0.0  # Never fewer than one.
    assert fairness.tail(a, 1.0) == 9.5


def test_lower_is_better_turns_worst_and_error_round():
    s = fairness.summarize(A, N, higher_is_better=False)
    assert s["worst30_u"] == 0.9 and s["best30_u"] == 0.2
    assert s["error_rsd_u"] == pytest.approx(math.sqrt(0.075) / 0.6)


def test_clients_without_test_examples_are_left_out():
    with_empty = fairness.summarize(np.append(A, np.nan), np.append(N, 0))
    assert with_empty == fairness.summarize(A, N)


@pytest.mark.parametrize(
    ("values", "sizes"), [([], []), ([0.5], [0]), ([0.5, np.nan], [1, 1]), ([np.inf], [1])]
)
def test_undefined_is_nan_throughout(values, sizes):
    s = fairness.summarize(np.array(values), np.array(sizes))
    assert s.keys() == fairness.summarize(A, N).keys()
    assert all(math.isnan(v) for v in s.values())


def test_where_only_some_are_undefined():
    zeros = fairness.summarize(np.zeros(3), np.ones(3))
    assert math.isnan(zeros["angle"]) and math.isnan(zeros["kl"])
    assert zeros["avg_u"] == 0 and zeros["error_rsd_u"] == 0
    assert math.isnan(fairness.summarize(np.ones(3), np.ones(3))["error_rsd_u"])


@given(clients())
def test_bounds(data):
    a, n = data
    s = fairness.summarize(a, n)
    eps = 1e-9
    for w in "uw":
        tails = [s[f"worst{q}_{w}"] for q in ("05", "10", "30")]
        tails += [s[f"avg_{w}"], *(s[f"best{q}_{w}"] for q in ("30", "10", "05"))]
        assert a.min() - eps <= tails[0] and tails[-1] <= a.max() + eps
        assert all(x <= y + eps for x, y in itertools.pairwise(tails))
        # Popoviciu: no spread beyond half the range.
        assert s[f"std_{w}"] <= (a.max() - a.min()) / 2 + eps
    # The weighted tail w and std s bound the mean: m <= w + 0.7 s / sqrt(0.21).
    assert s["avg_w"] <= s["worst30_w"] + 0.7 * s["std_w"] / math.sqrt(0.21) + 1e-6
    if a.sum() > 1e-6:
        assert -eps <= s["kl"] <= math.log(len(a)) + eps
        assert -eps <= s["angle"] <= math.degrees(math.acos(1 / math.sqrt(len(a)))) + 1e-4


@given(clients(), st.randoms())
def test_order_of_clients_does_not_matter(data, random):
    a, n = data
    order = list(range(len(a)))
    random.shuffle(order)
    mixed, plain = fairness.summarize(a[order], n[order]), fairness.summarize(a, n)
    for name, value in plain.items():
        assert mixed[name] == pytest.approx(value, abs=1e-6, nan_ok=True), name


@given(clients())
def test_equal_sizes_make_averages_and_deviations_equal(data):
    a, _ = data
    s = fairness.summarize(a, np.full(len(a), 7))
    assert s["avg_w"] == pytest.approx(s["avg_u"])
    assert s["std_w"] == pytest.approx(s["std_u"], abs=1e-9)


@given(clients(st.floats(0.01, 1)), st.floats(0.1, 10))
def test_angle_and_kl_ignore_scale(data, factor):
    a, _ = data
    assert fairness.angle(factor * a) == pytest.approx(fairness.angle(a), abs=1e-4)
    assert fairness.kl_from_uniform(factor * a) == pytest.approx(
        fairness.kl_from_uniform(a), abs=1e-9
    )


@given(UNIT, st.integers(1, 20))
def test_equal_clients_are_fair(value, num_clients):
    a = np.full(num_clients, value)
    s = fairness.summarize(a, np.arange(1, num_clients + 1))
    assert s["std_u"] == pytest.approx(0, abs=1e-9) and s["std_w"] == pytest.approx(0, abs=1e-9)
    assert s["worst10_u"] == pytest.approx(s["best10_w"])
    if value > 1e-6:
        assert s["kl"] == pytest.approx(0, abs=1e-9)
        assert s["angle"] == pytest.approx(0, abs=1e-5)
