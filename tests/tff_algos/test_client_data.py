"""Batching is a pure function of its seeds, loses nothing and invents nothing."""

import contextlib
import functools
import pickle
import types
import warnings
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from simulation.engine import batching
from simulation.tff import process as tff_process
from tff_algos import client, random
from tff_algos.client_data import (
    arrays,
    batch_client,
    batch_cohort,
    check_plan,
    from_dataset,
    of_model,
)
from tff_algos.method_spec import RoundPlan
from tff_suite import memory
from tff_suite.hparams import HparamError


def examples(n):
    return np.arange(1, n + 1, dtype=np.float32)[:, None] * [1.0, 2.0], np.arange(1, n + 1)


@hypothesis.given(
    n=st.integers(0, 23), size=st.integers(1, 9), epochs=st.integers(1, 3), seed=st.integers(0, 99)
)
@hypothesis.settings(deadline=None)
def test_every_epoch_holds_every_example_once(n, size, epochs, seed):
    x, y = examples(n)
    data = batch_client(x, y, batch_size=size, epochs=epochs, order_seed=(seed,))
    steps = -(-n // size)
    assert data.mask.shape == (epochs * steps, size) and data.steps_per_epoch == steps
    for e in range(epochs):
        part = slice(e * steps, (e + 1) * steps)
        real = data.mask[part].astype(bool)
        np.testing.assert_array_equal(np.sort(data.y[part][real]), y)
        np.testing.assert_array_equal(data.x[part][real][:, 1], 2 * data.y[part][real])
        # Only the last batch of an epoch may be partial. Its first example fills it up.
        assert np.all(real.reshape(-1)[:n]) and not np.any(real.reshape(-1)[n:])
        for values in (data.x[part], data.y[part]):
            np.testing.assert_array_equal(values[~real], values[-1:, 0].repeat((~real).sum(), 0))
    assert float(client.num_examples(data)) == n


def test_order_depends_on_seed_and_epoch_alone():
    x, y = examples(50)
    orders = [
        batch_client(x, y, batch_size=50, epochs=2, order_seed=seed).y
        for seed in ((1, 2), (1, 2), (1, 3))
    ]
    np.testing.assert_array_equal(orders[0], orders[1])
    assert np.any(orders[0] != orders[2]) and np.any(orders[0][0] != orders[0][1])
    still = batch_client(x, y, batch_size=50, epochs=2, shuffle=False)
    np.testing.assert_array_equal(still.y, [y, y])


@pytest.mark.parametrize(("steps", "want_steps"), [(1, 1), (3, 3), (7, 7)])
def test_exact_number_of_steps_repeats_or_cuts(steps, want_steps):
    x, y = examples(5)
    data = batch_client(x, y, batch_size=2, steps=steps, order_seed=(0,))
    whole = batch_client(x, y, batch_size=2, epochs=3, order_seed=(0,))
    assert data.mask.shape == (want_steps, 2)
    np.testing.assert_array_equal(data.y, whole.y[:steps])


@hypothesis.given(
    n=st.integers(1, 17),
    size=st.integers(1, 9),
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
@hypothesis.settings(deadline=None)
def test_pieces_of_a_series_of_epochs_make_the_whole(n, size, lengths):
    x, y = examples(n)
    whole = batch_client(x, y, batch_size=size, steps=sum(lengths), order_seed=(3,))
    start = 0
    for steps in lengths:
        piece = batch_client(x, y, batch_size=size, steps=steps, first_step=start, order_seed=(3,))
        for name in ("x", "y", "mask"):
            want = getattr(whole, name)[start : start + steps]
            np.testing.assert_array_equal(getattr(piece, name), want)
        start += steps


def test_a_place_in_the_series_needs_a_number_of_steps():
    with pytest.raises(ValueError, match="first_step=2 needs steps"):
        batch_client(*examples(5), batch_size=2, first_step=2)


@pytest.mark.parametrize(
    "asked",
    [
        {"epochs": 2},
        {"epochs": [1, 3, 2, 1, 2]},
        {"epochs": [2, 1, 1, 3, 1], "shuffle": False},
        {"steps": 4, "first_step": 5},
        {"full_batch": True},
    ],
)
def test_a_cohort_is_its_clients(asked):
    clients = [examples(n) for n in (5, 0, 9, 8, 1)]
    batches = [np.repeat(x[:, None], 2, axis=1) for x, _ in clients]
    clients = [(x, y) for x, (_, y) in zip(batches, clients, strict=True)]
    together = batch_cohort(
        clients,
        batch_size=4,
        order_seeds=[(7, k) for k in range(5)],
        dropout_seeds=[(8, k) for k in range(5)],
        indices=[4, 3, 2, 1, 0],
        participates=[True, False, True, True, False],
        **asked,
    )
    for k, data in enumerate(together):
        epochs = asked.get("epochs", 1)
        alone = batch_client(
            *clients[k],
            batch_size=4,
            order_seed=(7, k),
            dropout_seed=(8, k),
            index=4 - k,
            participates=k not in (1, 4),
            **{**asked, "epochs": epochs if isinstance(epochs, int) else epochs[k]},
        )
        for name, got, want in zip(data._fields, arrays(data), alone, strict=True):
            assert got.dtype == want.dtype and got.shape == want.shape, name
            np.testing.assert_array_equal(got, want, name)
        for values in (data.x, data.y):
            assert values.shape[:2] == data.mask.shape
            place = np.full([9, 9, *values.shape[2:]], -1, values.dtype)
            # An array that is only a part of another one's memory, as in a ragged cohort.
            part = place[: values.shape[0], : values.shape[1]]
            values.into(part)
            np.testing.assert_array_equal(part, np.asarray(values))
            assert np.all(place[values.shape[0] :] == -1)
            assert np.all(place[:, values.shape[1] :] == -1)


def test_full_batch_is_one_step():
    x, y = examples(5)
    data = batch_client(x, y, batch_size=2, full_batch=True)
    np.testing.assert_array_equal(data.y, [y])
    np.testing.assert_array_equal(data.mask, np.ones((1, 5)))


def test_refuses_nonsense():
    x, y = examples(5)
    masked = np.ma.masked_array(x, np.arange(x.size).reshape(x.shape) == 3)
    with pytest.raises(ValueError, match="x or y has masked values; drop or fill them"):
        batch_client(masked, y, batch_size=2)
    with pytest.raises(ValueError, match="x has 4 examples but y has 5"):
        batch_client(x[:4], y, batch_size=2)
    with pytest.raises(ValueError, match="must be positive"):
        batch_client(x, y, batch_size=0)


def test_a_cohort_is_not_laid_out_before_its_clients_work(monkeypatch):
    """Ten clients of 400 kB: refused is what is too large for one of them, or where it is made."""
    monkeypatch.setattr(memory, "_UNASKED", 0)
    monkeypatch.setattr(memory, "available", lambda: 500_000)
    x, y = np.zeros((100, 1000), np.float32), np.zeros(100, np.int32)
    seeds = [(k,) for k in range(10)]

    def cohort(epochs):
        return batch_cohort(
            [(x, y)] * 10,
            batch_size=10,
            epochs=epochs,
            order_seeds=seeds,
            dropout_seeds=seeds,
            indices=range(10),
        )

    clients = cohort(1)
    with pytest.raises(HparamError, match=r"^What the clients of a round work on would take "):
        cohort(2)
    model = types.SimpleNamespace(
        x_spec=tf.TensorSpec([None, 1000]),
        y_spec=tf.TensorSpec([None], tf.int32),
        initial_weights=[np.zeros(3)],
    )
    assert batching.prepare(clients[:1], model).blocks[0].x.shape == (1, 10, 10, 1000)
    with pytest.raises(HparamError, match=r"^The examples of 10 clients at once would take "):
        batching.prepare(clients, model)
    with pytest.raises(HparamError, match=r"^The examples of 10 clients at once, here and in TFF"):
        tff_process.as_arrays(clients)


def test_dropout_seed_and_index_travel():
    x, y = examples(2)
    a = batch_client(x, y, batch_size=2, dropout_seed=(1, 2), index=7)
    b = batch_client(x, y, batch_size=2, dropout_seed=(1, 3))
    assert a.index == 7 and a.seed.dtype == np.int32 and a.seed.shape == (2,)
    assert np.any(a.seed != b.seed)


def test_clients_without_a_seed_draw_by_round_and_position():
    """As if the data sets were given to `next`; a seed that is given stays."""
    x, y = examples(4)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    model = _OfTargets(tf.TensorSpec([None], y.dtype), tf.TensorSpec([None, *x.shape[1:]], x.dtype))
    given = [
        lambda: dataset,
        lambda: from_dataset(dataset, index=3),
        lambda: pickle.loads(pickle.dumps(batch_client(x, y, batch_size=2))),
    ]
    seeds = [
        [tuple(d.seed) for r in range(3) for d in of_model([make(), make()], model, r)]
        for make in given
    ]
    assert seeds[0] == seeds[1] == seeds[2] and len(set(seeds[0])) == 6
    own = [
        batch_client(x, y, batch_size=2, dropout_seed=(7,)),
        from_dataset(dataset, dropout_seed=(7,)),
    ]
    of_rounds = [tuple(d.seed) for r in range(2) for d in of_model(own, model, r)]
    assert len(set(of_rounds)) == 1 and of_rounds[0] not in seeds[0]


def test_a_warning_names_steps_that_always_leave_the_same_examples_out():
    x, y = examples(5)
    with pytest.warns(RuntimeWarning, match=r"^steps=2 takes the same minibatches .* order_seed"):
        batch_client(x, y, batch_size=2, steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for settings in ({"steps": 3}, {"steps": 1, "full_batch": True}):
            batch_client(x, y, batch_size=2, **settings)
        batch_client(x, y, batch_size=2, steps=2, shuffle=False)


PLANS = {
    "a number of steps": (RoundPlan(local_steps=3), {"steps": 3}, {}, "has 2 steps, not 3; give"),
    "full batches": (
        RoundPlan(batches="full_batch"),
        {"full_batch": True, "epochs": 2},
        {},
        "has minibatches, not full ones; give batch_client the steps and full_batch that it req",
    ),
}


@pytest.mark.parametrize("what", PLANS)
def test_a_warning_names_clients_that_do_other_work_than_the_plan(what):
    """They run a different method."""
    plan, right, wrong, says = PLANS[what]
    x, y = examples(4)
    make = functools.partial(batch_client, x, y, batch_size=2, order_seed=(0,))
    without_examples = batch_client(x[:0], y[:0], batch_size=2)
    absent = make(participates=False)
    with pytest.warns(RuntimeWarning, match=f"^Client 1 of the cohort {says}"):
        check_plan("it", [plan, plan], [make(**right), make(**wrong)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_plan("it", [plan, plan], [make(**right), without_examples, absent])
        # The last rounds of a method may differ.
        check_plan("it", [plan, RoundPlan()], [make(**wrong)])


def test_a_method_of_one_client_warns_of_several():
    plan = RoundPlan("pooled")
    data = batch_client(*examples(4), batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_plan("centralized", [plan, plan], [data])
    with pytest.warns(
        RuntimeWarning, match=r"^centralized trains on one client .* found 2 clients"
    ):
        check_plan("centralized", [plan, plan], [data, data])


def test_an_infinite_dataset_is_refused():
    dataset = tf.data.Dataset.from_tensor_slices(examples(5)).batch(2)
    with pytest.raises(ValueError, match=r"dataset is infinite: give repeat\(\) a number"):
        from_dataset(dataset.repeat())
    assert from_dataset(dataset.repeat(2)).num_examples == 10


def test_from_dataset_equals_unshuffled_batches():
    x, y = examples(5)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    got, want = from_dataset(dataset), batch_client(x, y, batch_size=2, shuffle=False)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="no batch"):
        from_dataset(dataset.take(0))


@pytest.mark.parametrize("keys", ["xy", "yx"])
def test_from_dataset_takes_a_dictionary_of_x_and_y_for_a_pair(keys):
    pair = dict(zip("xy", examples(5), strict=True))
    of_dictionaries = tf.data.Dataset.from_tensor_slices({key: pair[key] for key in keys})
    of_pairs = tf.data.Dataset.from_tensor_slices((pair["x"], pair["y"]))
    want = from_dataset(of_pairs.batch(2))
    for a, b in zip(from_dataset(of_dictionaries.batch(2)), want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "made",
    [
        "of inputs alone",
        "of dictionaries",
        "of weighted dictionaries",
        "of dictionaries without batches",
        "without batches",
    ],
)
def test_from_dataset_says_what_it_takes(made):
    x, y = examples(5)
    parts = {
        "of inputs alone": x,
        "of dictionaries": {"pixels": x, "label": y},
        "of weighted dictionaries": {"x": x, "y": y, "weight": y},
        "of dictionaries without batches": {"x": x, "y": y},
        "without batches": (x, y),
    }
    dataset = tf.data.Dataset.from_tensor_slices(parts[made])
    if not made.endswith("without batches"):
        dataset = dataset.batch(2)
    with pytest.raises(ValueError, match=r"pair .* of batched arrays.*label") as e:
        from_dataset(dataset)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_batches_of_a_dataset_that_a_filter_left_empty_are_no_steps(dtype):
    """A client takes as many steps as have examples, from the first on."""
    x, y = examples(8)
    kept = (y >= 0) & (np.arange(8) // 2 != 1) & (np.arange(8) != 7)

    def filtered(keep):
        pairs = tf.data.Dataset.from_tensor_slices((x.astype(dtype), y, keep)).batch(2)
        return pairs.map(lambda x, y, k: (tf.boolean_mask(x, k), tf.boolean_mask(y, k)))

    for keep in (kept, kept & (np.arange(8) > 1)):
        batches = list(filtered(keep).as_numpy_iterator())
        assert [len(b) for _, b in batches].count(0) == 1 + (not keep[0])
        got = from_dataset(filtered(keep))
        want = batch_client(x[keep].astype(dtype), y[keep], batch_size=2, shuffle=False)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
    assert from_dataset(filtered(y < 0)).num_examples == 0


class _OfTargets(NamedTuple):
    y_spec: tf.TensorSpec
    x_spec: tf.TensorSpec = tf.TensorSpec([None, 2])


@pytest.mark.parametrize(
    ("y", "spec", "want"),
    [
        (np.arange(3.0), tf.TensorSpec([None, 1]), [[0], [1], [2]]),
        (np.arange(3), tf.TensorSpec([None, 1]), [[0], [1], [2]]),
        (np.arange(3)[:, np.newaxis], tf.TensorSpec([None], tf.int32), [0, 1, 2]),
        (np.eye(3), tf.TensorSpec([None, None]), np.eye(3)),
        (np.array([b"a", b"bc"]), tf.TensorSpec([None], tf.string), [b"a", b"bc"]),
    ],
)
def test_targets_take_the_form_of_their_spec(y, spec, want):
    data = batch_client(np.zeros((len(y), 2)), y, batch_size=len(y), shuffle=False)
    (got,) = of_model([data], _OfTargets(spec), 0)
    assert got.y.dtype.kind == np.dtype(spec.dtype.as_numpy_dtype).kind or spec.dtype == tf.string
    np.testing.assert_array_equal(got.y, [want])


@pytest.mark.parametrize(
    ("y", "spec", "says"),
    [
        (
            np.arange(3.0),
            tf.TensorSpec([None], tf.int32),
            r"y_spec=tf.TensorSpec.\[None\], tf.float32",
        ),
        (np.eye(3), tf.TensorSpec([None, 1]), r"float32 \[None, 3\], .* for float32 \[None, 1\]"),
        (np.eye(3), tf.TensorSpec([None]), r"for float32 \[None\]; give from_keras y_spec="),
        (
            np.arange(3.0),
            tf.TensorSpec([None, 2]),
            r"Client 0: targets are .* for float32 \[None, 2",
        ),
    ],
)
def test_targets_that_do_not_fit_name_the_cure(y, spec, says):
    data = batch_client(np.zeros((3, 2)), y, batch_size=3)
    with pytest.raises(ValueError, match=says) as e:
        of_model([data], _OfTargets(spec), 0)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (np.zeros((3, 2, 1)), r"float32 \[None, 2, 1\], but the model takes float32 \[None, 2\]"),
        # It would be broadcast.
        (np.zeros((3, 1)), r"float32 \[None, 1\], but the model"),
        (np.zeros(3), r"float32 \[None\], but the model"),
        (np.array([["a", "b"]] * 3), r"<U1 \[None, 2\], but the model"),
        (np.zeros((3, 2), complex), r"complex128 \[None, 2\], but the model"),
    ],
    ids=["more", "one", "flat", "text", "complex"],
)
def test_inputs_that_do_not_fit_are_refused(x, says):
    data = batch_client(x, np.zeros(3), batch_size=3)
    with pytest.raises(ValueError, match=f"^Client 0: inputs are {says}"):
        of_model([data], _OfTargets(tf.TensorSpec([None])), 0)
    for fits in (np.ones((3, 2), bool), np.ones((3, 2), np.uint8), np.ones((3, 2))):
        (got,) = of_model(
            [batch_client(fits, np.zeros(3), batch_size=3)], _OfTargets(tf.TensorSpec([None])), 0
        )
        assert got.x.dtype == np.float32 and np.all(got.x == 1)


@pytest.mark.parametrize("what", [iter(()), None, {"x": 1}, np.zeros(3)])
def test_what_is_no_client_is_refused(what):
    with pytest.raises(ValueError, match=r"^Client 0 is a \w+; give batch_client"):
        of_model([what], _OfTargets(tf.TensorSpec([None])), 0)


@pytest.mark.parametrize("gather", [tuple, list, lambda arrays: list(zip(*arrays, strict=True))])
def test_arrays_in_place_of_a_client_name_the_cure(gather):
    with pytest.raises(ValueError, match=r"Client 0 is a (tuple|list); give batch_client\(x, y, "):
        of_model([gather(examples(4))], _OfTargets(tf.TensorSpec([None])), 0)


@pytest.mark.parametrize("stacked", [False, True])
def test_masked_out_step_changes_nothing(stacked):
    x, y = examples(4)
    data = batch_client(x, y, batch_size=2, shuffle=False)
    padded = data._replace(
        x=np.concatenate([data.x, np.full_like(data.x[:1], np.nan)]),
        y=np.concatenate([data.y, data.y[:1]]),
        mask=np.concatenate([data.mask, np.zeros((1, 2), np.float32)]),
    )

    def count(carry, batch, seed):
        steps, total = carry
        return steps + 1, total + tf.reduce_sum(tf.cast(batch.x, tf.float32))

    for given in (data, padded):
        with client.stacked_clients() if stacked else contextlib.nullcontext():
            steps, total = client.for_each_batch(count, (0, 0.0), given)
        assert int(steps) == 2
        np.testing.assert_allclose(total, np.sum(x))


def test_padding_of_a_minibatch_is_left_out_in_pairs_but_of_stacked_clients():
    x, y = examples(31)
    data = batch_client(x, y, batch_size=10, shuffle=False, epochs=2)

    def run():
        sizes = []

        def step(carry, batch, seed):
            sizes.append(batch.x.shape[0])
            assert batch.x.shape[0] == batch.y.shape[0] == batch.mask.shape[0]
            total, real = carry
            real += tf.reduce_sum(batch.mask)
            values = tf.cast(batch.x, tf.float32) * batch.mask[:, None]
            return total + tf.reduce_sum(values), real

        return sizes, client.for_each_batch(step, (0.0, 0.0), data)

    sizes, (total, real) = run()
    # The last of an epoch has one example.
    assert sizes == 2 * [10, 10, 10, 2]
    assert real == 62
    np.testing.assert_allclose(total, 2 * np.sum(x), rtol=1e-6)
    with client.stacked_clients():
        assert run()[0] == 8 * [10]


def test_steps_have_seeds_of_their_own():
    seeds = {
        tuple(random.fold_in(tf.constant([5, 6]), step=s, layer=k).numpy().tolist())
        for s in range(50)
        for k in range(50)
    }
    assert len(seeds) == 2500


def test_uniform():
    draw = random.uniform([20_000], tf.constant([1, 2])).numpy()
    assert 0 <= draw.min() and draw.max() < 1 and abs(draw.mean() - 0.5) < 0.01


@pytest.mark.parametrize("rate", [0.2, 0.25, 0.5, 9 / 256, 247 / 256])
def test_dropout(rate):
    """The rate is that asked for, and no entry has anything to do with those beside it."""
    seed = tf.constant([1, 2])
    kept = random.dropout(tf.ones([3, 40_001]), rate, seed).numpy()
    np.testing.assert_allclose(np.unique(kept), [0, 1 / (1 - rate)], rtol=1e-6)
    dropped = (kept == 0).ravel().astype(float) - rate
    deviation = (rate * (1 - rate)) ** 0.5
    assert abs(dropped.mean()) < 4 * deviation / dropped.size**0.5
    for lag in range(1, 9):
        correlation = np.mean(dropped[lag:] * dropped[:-lag]) / deviation**2
        assert abs(correlation) < 4 / dropped.size**0.5


def test_dropout_by_bytes_is_what_numpy_makes_of_the_random_words():
    seed = tf.constant([3, -4])
    words = tf.raw_ops.StatelessRandomUniformFullInt(shape=[25], seed=seed, dtype=tf.int32)
    keep = words.numpy().view(np.int8)[:99].reshape(9, 11) >= 64 - 128
    x = np.random.default_rng(0).normal(size=(9, 11)).astype(np.float32)
    got = random.dropout(tf.constant(x), 0.25, seed)
    np.testing.assert_array_equal(got, x * (keep * np.float32(1 / 0.75)))


def test_seeds_draw_what_numpy_draws_from_them():
    x = np.arange(50.0, dtype=np.float32)[:, None]
    for seed in ((0, 3), (5, 1 << 40, 2)):
        data = batch_client(x, x, batch_size=50, order_seed=seed, dropout_seed=seed)
        order = np.random.default_rng([*seed, 0]).permutation(50)
        np.testing.assert_array_equal(data.x[0], x[order])
        words = np.random.SeedSequence(list(seed)).generate_state(2, np.uint32)
        np.testing.assert_array_equal(data.seed, words.view(np.int32))


@pytest.mark.parametrize("shape", [(4, 4, 3), (5, 3), (8,), (), (0,)])
def test_a_step_of_stacked_bytes_is_that_step(shape):
    """With 48, 15, 8, 1 and 0 numbers an example, of which eights are gathered as one."""
    values = np.random.default_rng(0).integers(0, 256, (3, 2, *shape), np.uint8)
    spec = tf.TensorSpec([None, None, *shape], tf.uint8)

    @tf.function(input_signature=[spec, tf.TensorSpec([], tf.int32)])
    def step(values, i):
        return client._step_of_stacked(values, i)

    for i in range(3):
        np.testing.assert_array_equal(step(values, i), values[i])
