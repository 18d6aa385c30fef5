import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest

import tasks
from tasks import partitions, settings
from tff_suite.hparams import HparamError

_SEEDS = st.integers(0, 2**31)


def _labels(num_examples, num_classes, seed):
    return np.random.default_rng(seed).integers(0, num_classes, num_examples)


def _assert_deals_every_row_once(parts, num_rows):
    assert all(part.dtype == np.int64 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num_rows))


def _same(a, b):
    return all(np.array_equal(p, q) for p, q in zip(a, b, strict=True))


@hypothesis.given(st.integers(1, 400), st.integers(1, 40), _SEEDS)
@hypothesis.settings(max_examples=50, deadline=None)
def test_iid_deals_every_row_once_in_equal_sizes(num_rows, num_clients, seed):
    if num_clients > num_rows:
        with pytest.raises(HparamError, match="num_clients"):
            partitions.iid(num_rows, num_clients, seed)
        return
    parts = partitions.iid(num_rows, num_clients, seed)
    assert len(parts) == num_clients
    _assert_deals_every_row_once(parts, num_rows)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@hypothesis.given(
    st.integers(60, 600),
    st.integers(1, 10),
    st.integers(1, 8),
    st.floats(0.3, 100),
    st.integers(0, 3),
    _SEEDS,
)
@hypothesis.settings(max_examples=50, deadline=None)
def test_dirichlet_deals_every_row_once_and_keeps_the_least_size(
    num_rows, num_classes, num_clients, alpha, min_size, seed
):
    labels = _labels(num_rows, num_classes, seed)
    parts = partitions.dirichlet_by_class(labels, num_clients, alpha, seed, min_size)
    assert len(parts) == num_clients
    _assert_deals_every_row_once(parts, num_rows)
    assert min(len(part) for part in parts) >= min_size


@hypothesis.given(st.integers(40, 400), st.integers(1, 10), st.integers(1, 4), _SEEDS)
@hypothesis.settings(max_examples=50, deadline=None)
def test_shards_deals_every_row_once_in_equal_shards(num_rows, num_clients, per_client, seed):
    parts = partitions.shards(_labels(num_rows, 5, seed), num_clients, per_client, seed)
    assert len(parts) == num_clients
    _assert_deals_every_row_once(parts, num_rows)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= per_client


def test_shards_of_whole_classes_give_few_labels_to_a_client():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    parts = partitions.shards(labels, num_clients=100, shards_per_client=2, seed=3)
    counts = [np.bincount(labels[part], minlength=10) for part in parts]
    # 200 shards of 3: a client has two labels of 3 examples or one label of 6.
    assert {tuple(sorted(c[c > 0])) for c in counts} == {(3, 3), (6,)}


def _tree(num_rows, seed):
    """Returns coarse and fine labels: coarse label c has fine labels 3c, 3c + 1 and 3c + 2."""
    fine = np.random.default_rng(seed).integers(0, 12, num_rows)
    return fine // 3, fine


@hypothesis.given(
    st.integers(40, 300),
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.floats(0.01, 10),
    st.floats(0.01, 10),
    _SEEDS,
)
@hypothesis.settings(max_examples=50, deadline=None)
def test_pachinko_deals_no_row_twice_and_keeps_the_sizes(num_rows, sizes, alpha, beta, seed):
    coarse, fine = _tree(num_rows, seed)
    if sum(sizes) > num_rows:
        with pytest.raises(HparamError, match="num_clients"):
            partitions.pachinko(coarse, fine, sizes, alpha, beta, seed)
        return
    parts = partitions.pachinko(coarse, fine, sizes, alpha, beta, seed)
    assert [len(part) for part in parts] == sizes
    rows = np.concatenate(parts)
    assert len(set(rows)) == len(rows) and all(part.dtype == np.int64 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)


@hypothesis.given(st.integers(30, 200), st.integers(1, 6), st.floats(1e-3, 10), _SEEDS)
@hypothesis.settings(max_examples=30, deadline=None)
def test_all_rows_can_be_dealt_although_classes_are_used_up(num_rows, num_clients, alpha, seed):
    labels = _labels(num_rows, 10, seed)
    sizes = partitions.lognormal_sizes(num_rows, num_clients, 1.0, seed)
    parts = partitions.dirichlet_by_client(labels, sizes, alpha, seed)
    _assert_deals_every_row_once(parts, num_rows)
    assert [len(part) for part in parts] == sizes


@pytest.mark.slow
def test_pachinko_shares_have_the_moments_of_both_distributions():
    # One client, rows in plenty: a coarse label's share has mean 1/4 and variance
    # (1/4)(3/4)/(4 alpha + 1), a fine label's share of it 1/3 and (1/3)(2/3)/(3 beta + 1).
    fine = np.repeat(np.arange(12), 500)
    alpha, beta = 0.5, 2.0
    roots, leaves = [], []
    for seed in range(400):
        part = partitions.pachinko(fine // 3, fine, [500], alpha, beta, seed)[0]
        counts = np.bincount(fine[part], minlength=12).reshape(4, 3)
        roots.append(counts.sum(axis=1) / 500)
        largest = counts[counts.sum(axis=1).argmax()]
        leaves.append(largest / largest.sum())
    roots, leaves = np.array(roots), np.array(leaves)
    np.testing.assert_allclose(roots.mean(axis=0), 0.25, atol=0.05)
    np.testing.assert_allclose(roots.var(axis=0).mean(), 3 / 16 / (4 * alpha + 1), rtol=0.1)
    np.testing.assert_allclose(leaves.mean(axis=0), 1 / 3, atol=0.04)
    np.testing.assert_allclose(leaves.var(axis=0).mean(), 2 / 9 / (3 * beta + 1), rtol=0.12)


def test_pachinko_gives_as_many_labels_as_fedopts_figure_14():
    # "Most clients having between 20 and 30, and some having over 40", of 500 clients.
    fine = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 500))
    parts = partitions.pachinko(fine // 5, fine, [100] * 500, 0.1, 10.0, seed=1)
    _assert_deals_every_row_once(parts, 50_000)
    unique = np.array([len(set(fine[part])) for part in parts])
    assert np.mean((unique >= 20) & (unique <= 30)) > 0.5
    assert np.sum(unique > 40) >= 1 and unique.min() < 10


def test_a_used_up_class_is_left_out_for_good():
    labels = np.array([0] * 3 + [1] * 50)
    for seed in range(50):
        parts = partitions.dirichlet_by_client(labels, [10] * 5, 1.0, seed)
        counts = np.array([np.bincount(labels[part], minlength=2) for part in parts])
        assert counts[:, 0].sum() <= 3 and counts[:, 1].sum() >= 47


def test_rows_of_a_label_are_taken_at_random():
    part = partitions.dirichlet_by_client(np.zeros(1000, int), [200], 1.0, seed=0)[0]
    assert 400 < np.median(part) < 600


def test_equal_sizes():
    assert partitions.equal_sizes(100, 3) == [33] * 3


@pytest.mark.parametrize(
    "sizes",
    [
        lambda: partitions.equal_sizes(100, 101),
        lambda: partitions.lognormal_sizes(100, 51, 1.0, 0),
        lambda: partitions.hold_out(10, 10, 0),
    ],
)
def test_more_rows_than_there_are_cannot_be_asked_for(sizes):
    with pytest.raises(HparamError, match="examples"):
        sizes()


@hypothesis.given(st.integers(1, 40), st.integers(0, 500), st.floats(0, 3), _SEEDS)
@hypothesis.settings(max_examples=50, deadline=None)
def test_lognormal_sizes_sum_up(num_clients, more, sigma, seed):
    num_rows = 2 * num_clients + more
    sizes = partitions.lognormal_sizes(num_rows, num_clients, sigma, seed)
    assert len(sizes) == num_clients and sum(sizes) == num_rows and min(sizes) >= 2
    if sigma == 0:
        assert max(sizes) - min(sizes) <= 2


def test_lognormal_sizes_spread_as_told():
    sizes = np.array(partitions.lognormal_sizes(10_000_000, 4000, 0.7, 3))
    np.testing.assert_allclose(np.log(sizes).std(), 0.7, rtol=0.05)


@hypothesis.given(st.integers(1, 30), st.integers(1, 5), _SEEDS)
@hypothesis.settings(max_examples=50, deadline=None)
def test_classes_each_gives_so_many_classes_and_all_rows(num_clients, per_client, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(5), 40))
    parts = partitions.classes_each(labels, num_clients, per_client, seed)
    assert [len(set(labels[part])) for part in parts] == [per_client] * num_clients
    rows = np.concatenate(parts)
    assert len(set(rows)) == len(rows)
    if num_clients * per_client >= 5:
        assert len(rows) == len(labels)
    holders = [sum(label in labels[part] for part in parts) for label in range(5)]
    assert max(holders) - min(holders) <= 1
    for label in range(5):
        held = [np.sum(labels[part] == label) for part in parts]
        held = [n for n in held if n]
        assert not held or max(held) - min(held) <= 1


@pytest.mark.parametrize(
    ("clients", "per_client", "named"), [(3, 6, "5 classes"), (50, 5, "Class 0")]
)
def test_classes_each_refuses_what_it_cannot_give(clients, per_client, named):
    with pytest.raises(HparamError, match=named):
        partitions.classes_each(np.repeat(np.arange(5), 40), clients, per_client, 0)


@hypothesis.given(st.integers(100, 400), st.integers(1, 6), st.floats(0.2, 10), _SEEDS)
@hypothesis.settings(max_examples=30, deadline=None)
def test_tests_have_their_clients_label_distribution(num_test, num_clients, alpha, seed):
    labels, test_labels = _labels(600, 5, seed), _labels(num_test, 5, seed + 1)
    parts = partitions.dirichlet_by_class(labels, num_clients, alpha, seed)
    tests = partitions.tests_alike(labels, parts, test_labels, seed)
    _assert_deals_every_row_once(tests, num_test)
    for label in range(5):
        held = np.array([np.sum(labels[part] == label) for part in parts])
        own = np.array([np.sum(test_labels[test] == label) for test in tests])
        assert np.abs(own - held / held.sum() * own.sum()).max() <= 1


def test_tests_of_a_class_that_nobody_has_are_not_dealt():
    tests = partitions.tests_alike(np.array([0, 0, 1]), [np.array([0, 1])], np.array([0, 1, 1]), 0)
    np.testing.assert_array_equal(tests, [[0]])


def test_hold_out_splits_rows():
    stay, held = partitions.hold_out(50, 10, 1)
    assert len(held) == 10
    np.testing.assert_array_equal(np.sort(np.concatenate([stay, held])), np.arange(50))


@hypothesis.given(st.integers(30, 200), st.permutations(range(4)), st.integers(1, 4), _SEEDS)
@hypothesis.settings(max_examples=30, deadline=None)
def test_one_class_each_gives_all_of_a_class_and_nothing_else(num_rows, order, num, seed):
    labels = np.concatenate([np.arange(4), _labels(num_rows, 5, seed)])
    parts = partitions.one_class_each(labels, order[:num])
    assert len(parts) == num
    for label, part in zip(order, parts, strict=False):
        assert part.dtype == np.int64 and set(labels[part]) == {label}
        assert len(part) == np.sum(labels == label) and np.all(np.diff(part) > 0)


@pytest.mark.parametrize(("classes", "named"), [([1, 1], "twice"), ([0, 7], "class 7")])
def test_one_class_each_refuses_what_it_cannot_give(classes, named):
    with pytest.raises(HparamError, match=named):
        partitions.one_class_each(np.array([0, 1, 2]), classes)


@pytest.mark.parametrize(
    "assign",
    [
        lambda labels, seed: partitions.iid(len(labels), 7, seed),
        lambda labels, seed: partitions.dirichlet_by_class(labels, 7, 0.5, seed),
        lambda labels, seed: partitions.shards(labels, 7, 2, seed),
        lambda labels, seed: partitions.split_train_test([np.arange(len(labels))], 0.3, seed)[0],
        lambda labels, seed: partitions.pachinko(labels // 2, labels, [50] * 4, 1, 1, seed),
        lambda labels, seed: partitions.dirichlet_by_client(labels, [50] * 4, 1, seed),
        lambda labels, seed: [np.array(partitions.lognormal_sizes(len(labels), 5, 1, seed))],
        lambda labels, seed: partitions.classes_each(labels, 7, 2, seed),
        lambda labels, seed: partitions.hold_out(len(labels), 50, seed),
        lambda labels, seed: partitions.tests_alike(
            labels, np.split(np.arange(500), 5), labels, seed
        ),
    ],
    ids=[
        "iid",
        "dirichlet",
        "shards",
        "split",
        "pachinko",
        "dirichlet_by_client",
        "lognormal",
        "classes",
        "hold_out",
        "tests",
    ],
)
def test_a_partition_is_a_function_of_its_seed(assign):
    labels = _labels(500, 5, 0)
    np.random.seed(0)
    first = assign(labels, 11)
    np.random.seed(1)
    assert _same(first, assign(labels, 11))
    assert not _same(first, assign(labels, 12))


def test_dirichlet_shares_have_the_distributions_moments():
    # One class: a client's share has mean 1/N and variance (1/N)(1 - 1/N)/(N alpha + 1).
    num_clients, alpha, num_rows = 5, 0.5, 4000
    labels = np.zeros(num_rows, np.int64)
    shares = np.array(
        [
            [len(p) / num_rows for p in partitions.dirichlet_by_class(labels, 5, alpha, seed, 0)]
            for seed in range(500)
        ]
    )
    np.testing.assert_allclose(shares.mean(axis=0), 0.2, atol=0.04)
    expected = 0.2 * 0.8 / (num_clients * alpha + 1)
    np.testing.assert_allclose(shares.var(axis=0).mean(), expected, rtol=0.1)


def test_dirichlet_draws_each_class_for_itself():
    labels = np.repeat([0, 1], 1000)
    shares = []
    for seed in range(200):
        first = partitions.dirichlet_by_class(labels, 2, 0.5, seed, min_size=0)[0]
        shares.append([np.mean(first < 1000) * len(first), np.mean(first >= 1000) * len(first)])
    assert abs(np.corrcoef(np.array(shares).T)[0, 1]) < 0.25


def test_dirichlet_takes_a_classes_rows_at_random():
    labels = np.zeros(1000, np.int64)
    part = partitions.dirichlet_by_class(labels, 2, 100.0, seed=0)[0]
    assert 350 < np.median(part) < 650


@pytest.mark.parametrize(("num_clients", "alpha", "min_size"), [(4, 1.0, 30), (50, 0.001, 2)])
def test_an_impossible_dirichlet_partition_is_refused(num_clients, alpha, min_size):
    with pytest.raises(HparamError, match=f"alpha={alpha:g}.*num_clients={num_clients}"):
        partitions.dirichlet_by_class(np.zeros(100, int), num_clients, alpha, 0, min_size)


def test_more_shards_than_rows_are_refused():
    with pytest.raises(HparamError, match="shards"):
        partitions.shards(np.zeros(9, int), 5, 2, 0)


@hypothesis.given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.floats(0, 0.95), _SEEDS)
@hypothesis.settings(max_examples=50, deadline=None)
def test_split_keeps_each_clients_rows_apart(sizes, fraction, seed):
    rows = np.random.default_rng(0).permutation(sum(sizes))
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    train, test = partitions.split_train_test(parts, fraction, seed)
    for part, a, b in zip(parts, train, test, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([a, b])), np.sort(part))
        assert len(a) >= 1
        assert abs(len(b) - fraction * len(part)) <= 1
        if fraction == 0:
            assert not len(b)


@pytest.mark.parametrize(
    ("size", "fraction", "num_train"),
    [(5, 0.2, 4), (6, 0.2, 4), (25, 0.56, 11), (1, 0.2, 1), (2, 0.9, 1)],
)
def test_split_sizes(size, fraction, num_train):
    # floor(0.8 * 6) = 4 as in LEAF; (1 - 0.56) * 25 is 10.999... in floating point.
    train, _ = partitions.split_train_test([np.arange(size)], fraction, 0)
    assert len(train[0]) == num_train


def test_a_clients_split_does_not_depend_on_the_others():
    mine = np.arange(100, 140)
    alone = partitions.split_train_test([np.arange(3), mine], 0.25, 5)
    among = partitions.split_train_test([np.arange(50), mine, np.arange(200, 220)], 0.25, 5)
    np.testing.assert_array_equal(alone[0][1], among[0][1])
    first, second = partitions.split_train_test([mine, mine], 0.25, 5)[0]
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("concentration", settings.CONCENTRATIONS.values())
def test_the_ends_of_ranges_can_be_drawn(concentration):
    coarse, fine = _tree(60, 0)
    for parts in (
        partitions.dirichlet_by_class(fine, 4, concentration, 0, min_size=0),
        partitions.pachinko(coarse, fine, [15] * 4, concentration, concentration, 0),
        partitions.some_classes_dirichlet(fine, 1, 1e-4, concentration, 0),
        partitions.some_classes_dirichlet(fine, 1, 1.0, concentration, 0),
    ):
        assert all(np.all(np.diff(part) > 0) for part in parts) and sum(map(len, parts))
    assert sum(partitions.lognormal_sizes(60, 4, 100.0, 0)) == 60


def test_every_concentration_is_one_that_can_be_drawn():
    found = [
        (h.minimum, h.maximum)
        for name in tasks.names()
        for h in tasks.get(name).hparams
        if "oncentration" in h.help
    ]
    assert len(found) >= 7 and set(found) == {tuple(settings.CONCENTRATIONS.values())}


def test_without_a_least_size_the_first_draw_is_taken():
    labels = np.repeat(np.arange(3), 10)
    parts = partitions.dirichlet_by_class(labels, 20, 0.01, 0, min_size=0)
    assert len(parts) == 20 and min(map(len, parts)) == 0
    _assert_deals_every_row_once(parts, 30)
    with pytest.raises(HparamError, match=r"at least 1 of 30 .* num_clients or min_size"):
        partitions.dirichlet_by_class(labels, 20, 0.01, 0)


@pytest.mark.parametrize(
    ("share", "least"), [(0.0, 0), (1e-9, 2), (0.01, 2), (0.05, 5), (0.5, 50), (0.501, 51)]
)
def test_a_share_of_the_average_stands_for_a_least_size(share, least):
    assert partitions.least_size(1000, 10, share) == least


@pytest.mark.parametrize("name", ["fashion_mnist", "cifar10_image"])
def test_empty_clients_are_what_min_share_says(name):
    def sizes(**more):
        of_all = {"partition": "dirichlet", "num_clients": 20, "alpha": 0.01, **more}
        task = tasks.load(name, use_synthetic_data=True, **of_all)
        return np.array(task.train.sizes)

    assert sizes(min_share=0.0).min() == 0
    assert sizes(alpha=100.0).min() > 0


_BY_LABELS = {
    "dirichlet_by_class": lambda y: partitions.dirichlet_by_class(y, 2, 1.0, 0),
    "dirichlet_by_client": lambda y: partitions.dirichlet_by_client(y, [2, 2], 1.0, 0),
    "pachinko": lambda y: partitions.pachinko(y, y, [2, 2], 1.0, 1.0, 0),
    "classes_each": lambda y: partitions.classes_each(y, 2, 2, 0),
    "some_classes_dirichlet": lambda y: partitions.some_classes_dirichlet(y, 2, 1.0, 10.0, 0),
    "shards": lambda y: partitions.shards(y, 2, 2, 0),
    "one_class_each": lambda y: partitions.one_class_each(y, [0, 1]),
    "tests_alike": lambda y: partitions.tests_alike(y, [[0, 1], [2, 3]], y, 0),
}


@pytest.mark.parametrize("assign", _BY_LABELS.values(), ids=_BY_LABELS)
def test_labels_that_are_missing_or_no_labels_are_refused(assign):
    whole = np.array([0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1])
    assert _same(assign(whole[:, None]), assign(whole))
    for missing in (np.nan, None):
        labels = whole.astype(object if missing is None else float)
        labels[5] = missing
        with pytest.raises(ValueError, match="1 of 12 labels are missing values"):
            assign(labels)
    with pytest.raises(ValueError, match="labels has masked values; drop or fill them"):
        assign(np.ma.masked_array(whole, np.arange(12) == 5))
    with pytest.raises(ValueError, match=r"found shape \[12, 2\]; for one-hot labels, pass"):
        assign(np.eye(2)[whole])


def test_users_that_are_bytes_are_refused():
    with pytest.raises(ValueError, match=r"users are bytes; convert them to text: \[user.decode"):
        partitions.by_user(np.array([b"ann", b"bob", b"ann"]))


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("column", [np.asarray, pd.Series])
def test_users_that_floats_have_made_one_are_told(kind, column):
    """pandas makes floats of whole numbers beside a missing value."""
    first = 2 ** (np.finfo(kind).nmant + 1)
    users = column(np.arange(first, first + 4).astype(kind))
    with pytest.warns(RuntimeWarning, match=rf"^users are {kind.__name__}, which rounds whole num"):
        assert len(partitions.by_user(users)) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(partitions.by_user(column(np.arange(first - 4, first).astype(kind)))) == 4
        exact = column(np.arange(2**53, 2**53 + 4))
        assert len(partitions.by_user(exact)) == 4


def test_arguments_that_cannot_be_right():
    table = pd.DataFrame({"u": list("ab")})
    for users in (table, "ab"):
        with pytest.raises(ValueError, match="users must be a column, found a"):
            partitions.by_user(users)
    for share in (20, 1.0, -0.2):
        with pytest.raises(HparamError, match=r"test_fraction=.* must be in \[0, 1\)"):
            partitions.split_train_test([np.arange(50)], share, 0)
        with pytest.raises(HparamError, match=r"fraction=.* must be in \[0, 1\)"):
            partitions.split_by_id({"a": np.arange(50)}, share, 0, "test")
    for alpha in (np.inf, np.nan, 0.0):
        with pytest.raises(HparamError, match="must be a finite number above 0"):
            partitions.dirichlet_by_class(np.arange(8) % 2, 2, alpha, 0)
    with pytest.raises(HparamError, match=r"alpha=1e\+308 is too large"):
        partitions.dirichlet_by_class(np.arange(8) % 2, 2, 1e308, 0)
