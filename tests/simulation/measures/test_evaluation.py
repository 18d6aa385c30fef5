import collections

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation.errors import NoWorkersError
from simulation.measures import evaluation
from tasks.task import ArrayFederatedData, Examples
from tests.oracles import problem as problem_lib
from tests.tff_algos import toy

SIZES = (3, 0, 45, 1, 20, 64)


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem(0, SIZES)


@pytest.fixture(scope="module")
def model(problem):
    return toy.toy_model(problem, dropout=0.5)


@pytest.fixture(scope="module")
def data(problem):
    return federated(problem)


def federated(problem):
    x = np.concatenate([x for x, _ in problem.clients]).astype(np.float32)
    y = np.concatenate([y for _, y in problem.clients]).astype(np.int32)
    ends = np.cumsum([len(y) for _, y in problem.clients])
    return ArrayFederatedData(x, y, np.split(np.arange(len(y)), ends[:-1]))


def evaluate(model, data):
    evaluator = evaluation.Evaluator(model)
    return evaluator(model.initial_weights, evaluator.prepare(data))


def test_every_client_as_the_closed_form_has_it(problem, model, data):
    result = evaluate(model, data)
    values = result.by_client()
    assert list(values) == ["loss", "accuracy"]
    assert result.sizes.tolist() == list(SIZES)
    for k, (x, y) in enumerate(problem.clients):
        if len(y) == 0:
            assert np.isnan(values["loss"][k])
            continue
        weights = problem.initial_weights
        assert values["loss"][k] == pytest.approx(problem_lib.mean_loss(weights, x, y), rel=1e-5)
        assert values["accuracy"][k] == pytest.approx(problem_lib.accuracy(weights, x, y))


def test_where_nobody_is_left_to_share_the_work_it_is_done_here(model, data):
    """The round before it is done, and can only be kept with its row."""

    def nobody(*_):
        raise NoWorkersError("No worker was there.")

    alone, left = evaluation.Evaluator(model), evaluation.Evaluator(model, spread=nobody)
    want, got = (e(model.initial_weights, e.prepare(data, name="test")) for e in (alone, left))
    assert all(np.array_equal(want.values[k], got.values[k]) for k in want.values)
    own = {k: [w + 1 for w in model.initial_weights] for k in (2, 4)}.get
    alone, left = (evaluation.PersonalEvaluator(model, s) for s in (None, nobody))
    want, got = (e(model.initial_weights, own, data, "test") for e in (alone, left))
    assert all(np.array_equal(want.values[k], got.values[k]) for k in want.values)


def test_pooled_weighs_examples(problem, model, data):
    pooled = evaluate(model, data).pooled()
    x = np.concatenate([x for x, _ in problem.clients])
    y = np.concatenate([y for _, y in problem.clients])
    assert pooled["loss"] == pytest.approx(
        problem_lib.mean_loss(problem.initial_weights, x, y), rel=1e-5
    )


@pytest.mark.parametrize("chunk", [1, 7, 64, 133, 134, 1000])
def test_chunks_and_cache_change_nothing(model, data, chunk, monkeypatch):
    want = evaluate(model, data)
    monkeypatch.setattr(evaluation, "_MIN_CHUNK", chunk)
    monkeypatch.setattr(evaluation, "_MAX_CHUNK", chunk)
    for cache_bytes in (0, 2**30):
        evaluator = evaluation.Evaluator(model)
        tests = evaluator.prepare(data, cache_bytes)
        for _ in range(2):
            got = evaluator(model.initial_weights, tests)
            for name in want.values:
                np.testing.assert_allclose(got.values[name], want.values[name], rtol=1e-6)
                np.testing.assert_array_equal(got.weights[name], want.weights[name])


@pytest.mark.parametrize("chunk", [1, 7, 64, 133, 134])
def test_who_shares_the_chunks_out_finds_the_same_bits(model, data, chunk):
    """Two evaluators of their own, each of which reads only its chunks, in any order."""
    want = evaluation.Evaluator(model, chunk=chunk)
    want = want(model.initial_weights, want.prepare(data))
    asked = []

    def spread(name, weights, number, size):
        asked.append((name, number, size))
        halves, found = (range(number // 2), range(number // 2, number)), {}
        for part in reversed(halves):
            other = evaluation.Evaluator(model, chunk=chunk)
            tests = other.prepare(data, name="clients")
            for _ in range(2):
                found[part] = list(other.sums(weights, tests, part))
        return [sums for part in halves for sums in found[part]]

    evaluator = evaluation.Evaluator(model, chunk=chunk, spread=spread)
    got = evaluator(model.initial_weights, evaluator.prepare(data, name="clients"))
    assert asked == [("clients", -(-int(np.sum(data.sizes)) // chunk), chunk)]
    for name in want.values:
        assert got.values[name].tobytes() == want.values[name].tobytes()
        assert got.weights[name].tobytes() == want.weights[name].tobytes()
    evaluator(model.initial_weights, evaluator.prepare(data))
    assert len(asked) == 1


def test_data_is_read_once_if_it_fits(model, data):
    class Counting:
        client_ids, sizes = data.client_ids, data.sizes
        reads = 0

        def examples(self, index):
            self.reads += 1
            return data.examples(index)

    cached, streamed = Counting(), Counting()
    for counting, cache_bytes in ((cached, 2**30), (streamed, 0)):
        evaluator = evaluation.Evaluator(model)
        tests = evaluator.prepare(counting, cache_bytes)
        evaluator(model.initial_weights, tests)
        evaluator(model.initial_weights, tests)
    assert cached.reads == 5
    assert streamed.reads == 10


def test_positions_of_sequences_weigh_by_their_number():
    # One example has 1 real position, the other 3: the mean is over positions.
    def forward(weights, batch, training, seed):
        del weights, training, seed
        real = tf.cast(batch.y >= 0, tf.float32)
        values = tf.reduce_sum(real * tf.cast(batch.y, tf.float32), 1) * batch.mask
        counts = tf.reduce_sum(real, 1) * batch.mask
        metrics = collections.OrderedDict(loss=(values, counts))
        return tff_algos.model.Forward(tf.zeros([]), metrics)

    model = tff_algos.Model(
        (np.zeros(1, np.float32),),
        tf.TensorSpec([None, 1], tf.float32),
        tf.TensorSpec([None, 3], tf.int32),
        forward,
    )
    y = np.array([[6, -1, -1], [1, 2, 3]], np.int32)
    examples = Examples(np.zeros((2, 1), np.float32), y)
    result = evaluate(model, evaluation.OneClient(examples))
    assert result.pooled()["loss"] == pytest.approx((6 + 1 + 2 + 3) / 4)


def test_central_examples_can_be_a_part(data):
    examples = data.examples(5)
    part = evaluation.OneClient(examples, np.array([1, 5, 6]))
    assert part.sizes.tolist() == [3]
    np.testing.assert_array_equal(part.examples(0).x, examples.x[[1, 5, 6]])
    assert evaluation.OneClient(examples, np.arange(64)).sizes.tolist() == [64]


def test_same_examples(data):
    x = np.concatenate([data.examples(k).x for k in range(6)])
    y = np.concatenate([data.examples(k).y for k in range(6)])
    assert evaluation.same_examples(Examples(x, y), data)
    assert not evaluation.same_examples(Examples(x[1:], y[1:]), data)
    assert not evaluation.same_examples(Examples(x[::-1], y[::-1]), data)
    assert not evaluation.same_examples(Examples(x, np.roll(y, 1)), data)


def test_no_examples_at_all_is_an_error(model):
    empty = ArrayFederatedData(np.zeros((0, 3), np.float32), np.zeros(0, np.int32), [np.arange(0)])
    with pytest.raises(ValueError, match="no examples"):
        evaluate(model, empty)


def test_sizes_that_are_not_the_datas_are_an_error(model, data):
    class Wrong:
        client_ids, sizes = data.client_ids, data.sizes + 1
        examples = data.examples

    with pytest.raises(ValueError, match="Client 0 has 3 examples, not 4"):
        evaluate(model, Wrong())
