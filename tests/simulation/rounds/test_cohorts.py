import threading
import types

import numpy as np
import pytest
import tensorflow as tf

from simulation.rounds import cohorts
from tasks.task import ArrayFederatedData, DataError, Examples
from tff_algos import client_data
from tff_algos.registry import RoundPlan

SETTINGS = {
    "client_datasets_random_seed": 1,
    "seed": 0,
    "clients_per_round": 3,
    "client_batch_size": 4,
    "client_epochs_per_round": 2,
    "client_epochs_distribution": "fixed",
}


@pytest.fixture
def train():
    sizes = (5, 9, 1, 0, 12)
    ends = np.cumsum(sizes)
    x = np.arange(ends[-1], dtype=np.float32)[:, None]
    return ArrayFederatedData(x, np.arange(ends[-1]), np.split(np.arange(ends[-1]), ends[:-1]))


def cohort(train, round_index=0, plan=RoundPlan(), first=None, **changes):  # noqa: B008
    train = cohorts.first_examples(train, first)
    data = cohorts.cohort_data(train, plan, {**SETTINGS, **changes}, round_index)
    return [client_data.arrays(d) for d in data]


def equal(a, b):
    return all(
        np.array_equal(u, v) for x, y in zip(a, b, strict=True) for u, v in zip(x, y, strict=True)
    )


def test_cohort_data_is_pure_and_changes_by_round(train):
    assert equal(cohort(train, 3), cohort(train, 3))
    indices = {tuple(int(c.index) for c in cohort(train, r)) for r in range(8)}
    assert len(indices) > 4
    assert all(len(c) == 3 for c in indices)


def test_orders_and_dropout_follow_seed_and_cohort_follows_its_own(train):
    def indices(data):
        return [int(c.index) for c in data]

    plain, other_seed = cohort(train), cohort(train, seed=1)
    assert indices(plain) == indices(other_seed)
    assert not equal(plain, other_seed)
    assert all((a.seed != b.seed).any() for a, b in zip(plain, other_seed, strict=True))
    assert any(
        indices(cohort(train, r)) != indices(cohort(train, r, client_datasets_random_seed=2))
        for r in range(4)
    )


def test_order_and_dropout_change_by_round_and_client(train):
    everyone = RoundPlan(cohort="all")
    first, second = cohort(train, 0, everyone), cohort(train, 1, everyone)
    assert (first[4].y != second[4].y).any()
    seeds = {tuple(c.seed.tolist()) for c in first + second}
    assert len(seeds) == 10

    # Clients of equal data go through it in different orders.
    x = np.arange(20, dtype=np.float32)[:, None]
    twins = ArrayFederatedData(x, np.arange(20), [np.arange(20)] * 2)
    a, b = cohort(twins, 0, everyone)
    assert (a.y != b.y).any()


def test_whole_population_full_batches_and_steps(train):
    everyone = cohort(train, plan=RoundPlan(cohort="all", batches="full_batch"))
    assert [int(c.index) for c in everyone] == list(range(5))
    assert [c.mask.sum() for c in everyone] == [10, 18, 2, 0, 24]
    assert [len(c.mask) for c in everyone] == [2, 2, 2, 0, 2]
    stepped = cohort(train, plan=RoundPlan(cohort="all", local_steps=5))
    assert [len(c.mask) for c in stepped] == [5, 5, 5, 0, 5]


def test_epochs_drawn_for_each_client_and_round(train):
    everyone = RoundPlan(cohort="all")
    drawn = [cohort(train, r, everyone, client_epochs_distribution="uniform_1_3") for r in range(9)]
    again = cohort(train, 4, everyone, client_epochs_distribution="uniform_1_3")
    assert equal(drawn[4], again)
    epochs = [len(c.mask) // int(c.steps_per_epoch) for data in drawn for c in data if len(c.mask)]
    counts = np.bincount(epochs, minlength=4)
    assert counts[0] == 0 and len(counts) == 4 and min(counts[1:]) >= 4
    assert len({tuple(len(c.mask) for c in data) for data in drawn}) > 5, "rounds must differ"


def test_all_clients_take_part_where_losses_of_all_are_asked_for(train):
    data = cohort(train, 2, RoundPlan(losses="all"))
    assert [int(c.index) for c in data] == list(range(5))
    drawn = {int(c.index) for c in cohort(train, 2)}
    assert {int(c.index) for c in data if c.participates} == drawn and len(drawn) == 3
    plain = {int(c.index): c for c in cohort(train, 2)}
    for c in data:
        if c.participates:
            assert equal([c], [plain[int(c.index)]])
        else:
            assert len(c.mask) == int(c.steps_per_epoch), "one pass is all that a loss takes"


def test_clients_of_the_last_rounds_take_part_where_they_are_asked_for(train):
    def drawn(r):
        return {int(c.index) for c in cohort(train, r)}

    asked = set()
    for r in range(8):
        data = cohort(train, r, RoundPlan(recent=2))
        absent = [int(c.index) for c in data if not c.participates]
        before = set().union(*map(drawn, range(max(r - 2, 0), r)))
        assert sorted(absent) == sorted(before - drawn(r)), "each once"
        assert equal([c for c in data if c.participates], cohort(train, r))
        assert all(len(c.mask) == 0 for c in data if not c.participates), "they have no work"
        steps = cohorts.Cohorts(train, SETTINGS, lambda r: RoundPlan(recent=2)).steps(r)
        assert [n > 0 for n in steps] == [len(c.mask) > 0 for c in data]
        asked |= {len(absent)}
    assert asked >= {0, 1, 2}


def test_number_of_examples_counts_those_that_no_step_holds(train):
    stepped = cohort(train, plan=RoundPlan(cohort="all", local_steps=1))
    assert [int(c.num_examples) for c in stepped] == [5, 9, 1, 0, 12]


@pytest.mark.parametrize(
    ("plan", "most"),
    [
        (RoundPlan(cohort="all"), 12),
        (RoundPlan(cohort="all", local_steps=3), 12),
        (RoundPlan(cohort="pooled"), 27),
    ],
)
def test_a_batch_size_beyond_all_data_is_all_of_a_client_without_padding(train, plan, most):
    data = cohort(train, plan=plan, client_batch_size=10**6)
    assert {d.x.shape[1] for d in data} == {most}
    assert equal(data, cohort(train, plan=plan, client_batch_size=most))
    assert sum(d.mask[:1].sum() for d in data) == 27, "each step has all examples"
    settings = {**SETTINGS, "client_batch_size": 10**6, "total_rounds": 1}
    at_least = cohorts.Cohorts(train, settings, lambda r: plan).examples(0)
    assert (at_least <= [d.mask.size for d in data]).all(), "no more is asked for than is laid out"


def test_first_examples_of_a_client_only(train):
    for data in cohort(train, plan=RoundPlan(cohort="all"), first=3):
        seen = set(data.y[data.mask > 0].tolist())
        assert seen == set(train.examples(int(data.index)).y[:3].tolist())


def test_pooled_examples_are_those_of_all_clients_in_one(train):
    plan = RoundPlan(cohort="pooled")
    (first,), (second,) = cohort(train, 0, plan), cohort(train, 1, plan)
    assert first.mask.sum() == 2 * 27 and first.mask.shape == (14, 4)
    for epoch in (slice(0, 7), slice(7, 14)):
        real = first.mask[epoch] > 0
        assert sorted(first.y[epoch][real].tolist()) == list(range(27))
        np.testing.assert_array_equal(first.x[epoch][real][:, 0], first.y[epoch][real])
    assert (first.y[:7] != first.y[7:]).any() and (first.y != second.y).any()
    assert equal([first], cohort(train, 0, plan))
    (some,) = cohort(train, 0, plan, first=2)
    assert set(some.y[some.mask > 0].tolist()) == {0, 1, 5, 6, 14, 15, 16}
    everyone = cohorts.cohort(5, plan, SETTINGS, 0)
    assert everyone.tolist() == [0, 1, 2, 3, 4]


def test_rounds_can_go_on_in_the_epoch_where_the_last_one_stopped(train):
    def steps(r):
        plan = RoundPlan(cohort="pooled", local_steps=3, first_step=3 * r)
        (data,) = cohort(train, r, plan)
        return [tuple(y[m > 0].tolist()) for y, m in zip(data.y, data.mask, strict=True)]

    # 7 minibatches an epoch: rounds 0, 1 and the first step of round 2 make the first one.
    series = [batch for r in range(5) for batch in steps(r)]
    assert all(len(batch) == 4 for batch in series[:6]) and len(series[6]) == 3
    first, second = (sorted(i for b in series[a : a + 7] for i in b) for a in (0, 7))
    assert first == second == list(range(27))
    assert series[:7] != series[7:14]


def test_what_the_next_round_takes_is_made_while_one_is_under_way():
    made = [threading.Event() for _ in range(6)]

    def make(r):
        assert threading.current_thread() is not threading.main_thread()
        made[r].set()
        return 10 * r

    with cohorts.Ahead(make, 4) as ahead:
        for r in (1, 2, 3):
            assert ahead(r) == 10 * r
            if r < 3:
                assert made[r + 1].wait(30), "nothing is made ahead"
            assert not any(event.is_set() for event in made[r + 2 :])
        # What is not asked for in order is made all the same.
        assert ahead(1) == 10
    assert not made[4].is_set()


def test_failure_to_make_what_a_round_takes_is_told_in_its_turn():
    def make(r):
        if r == 2:
            raise DataError("gone")
        return r

    with cohorts.Ahead(make, 4) as ahead:
        assert [ahead(0), ahead(1)] == [0, 1]
        with pytest.raises(DataError, match="gone"):
            ahead(2)


def _model(dtype, targets):
    """What is looked at of a model: its specs of inputs and targets."""
    return types.SimpleNamespace(
        x_spec=tf.TensorSpec([None, 1], dtype), y_spec=tf.TensorSpec([None, *targets])
    )


def test_inputs_of_another_width_become_the_models_or_are_told():
    x = np.array([[1], [2**40]])
    data = ArrayFederatedData(x, x, [[0], [1]], ["a", "b"])

    def taken(dtype):
        return cohorts.as_model_takes(data, _model(dtype, [1]))

    assert taken(np.int64).examples(1).x.dtype == np.int64
    assert taken(np.float32).examples(1).x.dtype == np.float32
    narrow = taken(np.int32)
    assert narrow.examples(0).x.dtype == np.int32 and narrow.client_ids == data.client_ids
    with pytest.raises(DataError, match="client b has inputs that do not fit into int32"):
        narrow.examples(1)


def test_a_number_beyond_the_models_type_is_told():
    """As float32 it would be infinite. What is infinite already stays so, for the check of it."""
    x = np.array([[1.0], [1e300], [np.inf]])
    data = ArrayFederatedData(x, np.zeros(3, np.int32), [[0], [1], [2]], ["a", "b", "c"])
    taken = cohorts.as_model_takes(data, _model(np.float32, [1]))
    assert taken.examples(0).x.dtype == np.float32
    with pytest.raises(DataError, match="client b has inputs that do not fit into float32"):
        taken.examples(1)
    assert np.isinf(taken.examples(2).x)


def test_a_number_of_the_central_test_beyond_the_models_type_is_told():
    """Class 256 would be class 0 as uint8, and count as a hit."""
    model = types.SimpleNamespace(
        x_spec=tf.TensorSpec([None, 1]), y_spec=tf.TensorSpec([None], np.uint8)
    )
    x, y = np.zeros((2, 1), np.uint8), np.array([[0], [1]])
    taken = cohorts.central_as_model_takes(Examples(x, y), model)
    assert taken.x is x and taken.y.dtype == np.uint8 and taken.y.shape == (2,)
    beyond = "central_test has (inputs|targets) that do not fit into (uint8|float32), the type"
    for wrong in (Examples(x, y + 255), Examples(x, y - 1), Examples(x + 1e300, y)):
        with pytest.raises(DataError, match=beyond):
            cohorts.central_as_model_takes(wrong, model)


def test_another_kind_of_numbers_is_told_by_client():
    class Mixed:
        client_ids, sizes = ["a", "b"], [1, 1]

        def __init__(self, x=np.float32, y=np.float32):
            self._dtypes = x, y

        def examples(self, index):
            x, y = self._dtypes if index else (np.float32, np.float32)
            return Examples(np.zeros((1, 1), x), np.zeros(1, y))

    def second(**dtypes):
        return cohorts.as_model_takes(Mixed(**dtypes), _model(np.float32, [])).examples(1)

    assert second(x=np.float64, y=np.int64).y.dtype == np.float32
    with pytest.raises(DataError, match="client b has inputs of object, not of float32"):
        second(x=object)
    with pytest.raises(DataError, match="client b has targets of complex64, not of float32"):
        second(y=np.complex64)


@pytest.mark.parametrize(("targets", "wanted"), [([], []), ([1], []), ([], [1]), ([1], [1])])
def test_targets_get_or_lose_a_last_dimension_of_one(targets, wanted):
    x, y = np.zeros((3, 1), np.float32), np.arange(3, dtype=np.float32).reshape([3, *targets])
    data = cohorts.as_model_takes(
        ArrayFederatedData(x, y, [[0, 1], [2]]), _model(np.float32, wanted)
    )
    np.testing.assert_array_equal(data.examples(1).y, np.full([1, *wanted], 2.0))


@pytest.mark.parametrize("what", ["inputs", "targets"])
def test_clients_whose_examples_differ_in_shape_are_told(what):
    class Series:
        client_ids, sizes = ["a", "none", "b"], np.array([2, 0, 2])

        def examples(self, index):
            length = {0: 4, 1: 7, 2: 5}[index]
            x, y = np.zeros((self.sizes[index], length)), np.zeros((self.sizes[index], 4))
            return Examples(x, y) if what == "inputs" else Examples(y, x)

    data = cohorts.as_model_takes(Series(), _model(np.float32, [4]))
    assert len(data.examples(0).y) == 2 and not len(data.examples(1).y)
    says = rf"^client b has {what} of shape \[5\], and client a of shape \[4\]; pad them all"
    with pytest.raises(DataError, match=says):
        data.examples(2)


class Own:
    """Data of one's own: a client's examples may be none, or others than its size says."""

    def __init__(self, sizes, *examples):
        self.client_ids, self.sizes = [str(k) for k in range(len(sizes))], np.array(sizes)
        self._examples = examples

    def examples(self, index):
        return Examples(*self._examples[index])


def _some(number):
    return np.ones((number, 4), np.float32), np.zeros(number, np.int32)


def test_clients_without_examples_need_no_shape_or_type():
    none = np.array([]), np.array([])
    model = _model(np.float32, [])
    for examples in ((none, _some(2)), (_some(2), none)):
        sizes = [len(y) for _, y in examples]
        data = cohorts.as_model_takes(Own(sizes, *examples), model)
        (without,) = np.flatnonzero(np.array(sizes) == 0)
        read = data.examples(int(without))
        assert read.x.shape == (0, 4) and read.y.dtype == np.float32


@pytest.mark.parametrize("size", [1, 5])
def test_a_size_that_is_not_the_number_of_examples_is_told(size):
    data = Own([2, size], _some(2), _some(3))
    says = f"client '1' has 3 examples, but its size is {size}"
    for read in (
        cohorts.as_model_takes(data, _model(np.float32, [])),
        cohorts.first_examples(data, 4),
    ):
        with pytest.raises(DataError, match=says):
            read.examples(1)


@pytest.mark.parametrize("swap", [False, True])
def test_clients_of_bytes_beside_clients_of_floats_are_told(swap):
    # As matplotlib reads JPEG files, and PNG files.
    examples = [(_some(2)[0].astype(np.uint8), _some(2)[1]), _some(2)]
    data = cohorts.as_model_takes(
        Own([2, 2], *(examples[::-1] if swap else examples)), _model(np.float32, [])
    )
    data.examples(0)
    with pytest.raises(DataError, match=r"client 1 has inputs of .*; scale bytes as the others"):
        data.examples(1)


def test_tests_of_bytes_beside_training_examples_of_floats_are_told():
    x, y = np.ones((4, 3), np.uint8), np.arange(4)
    rows = [[], [0, 1, 2, 3]]
    scaled = ArrayFederatedData(x, y, rows, transform=lambda x: x / np.float32(255))
    as_read = ArrayFederatedData(x, y, rows)

    def parts(train, **others):
        none = {"test": None, "validation": None, "central_test": None}
        return types.SimpleNamespace(**{"train": train, **none, **others})

    alike = {"test": as_read, "validation": as_read, "central_test": Examples(x, y)}
    cohorts.check_bytes(parts(as_read, **alike))
    cohorts.check_bytes(parts(scaled, central_test=Examples(x.astype(np.int64), y)))
    for part, data in alike.items():
        with pytest.raises(DataError, match=f"{part} has inputs of uint8, and train of float32"):
            cohorts.check_bytes(parts(scaled, **{part: data}))
