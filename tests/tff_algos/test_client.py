"""What clients of many methods do alike, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from tests.oracles import problem as problem_lib
from tests.tff_algos import toy
from tff_algos import client, registry
from tff_algos.method import ClientState
from tff_algos.purity import MethodError
from tff_algos.vector import Vector


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem()


@pytest.mark.parametrize("k", range(5))
def test_full_loss_is_that_of_the_whole_local_set(problem, k):
    """Whatever the batches and epochs: the mean over the client's examples, each once."""
    model = toy.toy_model(problem, dropout=0.5)
    x, y = problem.clients[k]
    got = client.full_loss(model, model.initial_weights, toy.client_data(problem, 0, k))
    np.testing.assert_allclose(
        got.loss, problem_lib.mean_loss(problem.initial_weights, x, y), rtol=1e-5
    )
    want = problem_lib.gradient(problem.initial_weights, x, y)
    for g, w in zip(got.gradient, want, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-6)


def _regularised(problem, **settings):
    layers = [
        tf.keras.layers.InputLayer((3,)),
        tf.keras.layers.Dense(3, kernel_regularizer=tf.keras.regularizers.L2(0.1)),
    ]
    keras_model = tf.keras.Sequential(layers)
    keras_model.set_weights([w.astype(np.float32) for w in problem.initial_weights])
    return tff_algos.from_keras(keras_model, loss=toy.cross_entropy, **settings)


def test_full_loss_counts_regularisers_once(problem):
    model = _regularised(problem)
    x, y = problem.clients[4]
    kernel, bias = problem.initial_weights
    got = client.full_loss(model, model.initial_weights, toy.client_data(problem, 0, 4))
    want = problem_lib.mean_loss((kernel, bias), x, y) + 0.1 * np.sum(kernel**2)
    np.testing.assert_allclose(got.loss, want, rtol=1e-5)
    gradient = problem_lib.gradient((kernel, bias), x, y)
    np.testing.assert_allclose(got.gradient[0], gradient[0] + 0.2 * kernel, atol=1e-6)


def test_full_gradient_of_a_summed_loss_is_of_the_scale_of_minibatches(problem):
    """Σ n_b ∇(sum of b) / n, a regulariser once; the loss stays a mean."""
    model = _regularised(problem, loss_reduction="sum")
    x, y = problem.clients[4]
    kernel, bias = problem.initial_weights
    got = client.full_loss(model, model.initial_weights, toy.client_data(problem, 0, 4))
    want = problem_lib.mean_loss((kernel, bias), x, y) + 0.1 * np.sum(kernel**2)
    np.testing.assert_allclose(got.loss, want, rtol=1e-5)
    epoch = toy.batch_orders(problem, [(4,)])[0][4][:4]
    assert [len(b) for b in epoch] == [3, 3, 3, 1]
    gradient = [0.2 * kernel, 0.0]
    for b in epoch:
        of_batch = problem_lib.gradient((kernel, bias), x[b], y[b])
        gradient = [g + len(b) ** 2 / 10 * c for g, c in zip(gradient, of_batch, strict=True)]
    for g, w in zip(got.gradient, gradient, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-5)
    scaled = client.objective(model, got.loss, toy.client_data(problem, 0, 4))
    np.testing.assert_allclose(scaled, want * (3 * 3**2 + 1) / 10, rtol=1e-5)


def test_counts(problem):
    data = toy.client_data(problem, 0, 4)
    assert float(client.num_examples(data)) == 10
    assert int(client.num_steps(data)) == 8, "two epochs of ceil(10 / 3) steps"


def test_a_client_without_examples_has_loss_zero(problem):
    model = toy.toy_model(problem)
    empty = tff_algos.batch_client(
        np.zeros((0, 3), np.float32), np.zeros((0,), np.int32), batch_size=3
    )
    got = client.full_loss(model, model.initial_weights, empty)
    assert float(got.loss) == 0 and not any(np.any(g) for g in got.gradient)
    assert float(client.num_examples(empty)) == 0 and int(client.num_steps(empty)) == 0


def test_training_uses_dropout_and_its_seed(problem):
    local = client.LocalTraining(
        registry.resolve_training(registry.get("fedavg"), {"client_learning_rate": 0.3})
    )

    def kernel(dropout, round_num):
        model = toy.toy_model(problem, dropout)
        data = toy.client_data(problem, 0, 4)
        data = data._replace(seed=toy.client_data(problem, round_num, 4).seed)
        rate = local.learning_rate(tf.constant(0))
        trained = client.train(model, local.optimizer(), rate, model.initial_weights, data)
        return trained.weights[0].numpy()

    np.testing.assert_array_equal(kernel(0.5, 1), kernel(0.5, 1))
    assert np.abs(kernel(0.5, 1) - kernel(0.0, 1)).max() > 1e-3
    assert np.abs(kernel(0.5, 1) - kernel(0.5, 2)).max() > 1e-3


def test_names_of_metrics_are_told_or_found_by_tracing(problem):
    model = toy.toy_model(problem)
    assert model.metric_names == ("loss", "accuracy")
    for same in (model, model._replace(metric_names=None)):
        assert client.metric_names(same) == ["loss", "accuracy"]


def _stored(visits):
    kept = {"h": (tf.constant([1.0, 2.0]), tf.constant([3.0]))}
    return ClientState(tf.constant(visits), kept)


@pytest.mark.parametrize("visits", [0, 1])
def test_recall_takes_vectors_in_a_dictionary(visits):
    """A stored one is a plain tuple there."""
    stored = _stored(visits)
    first = {"h": Vector((tf.zeros([2]), tf.zeros([1])))}
    found = client.recall(stored, first)["h"]
    assert isinstance(found, Vector)
    np.testing.assert_array_equal(np.concatenate(found), [visits * n for n in (1, 2, 3)])


def test_recall_refuses_another_structure_in_one_line():
    stored = _stored(1)
    says = r"^client\.recall cannot put {h: \(\[2\],\)} in place of .* {h: \(\[2\], \[1\]\)}: give"
    with pytest.raises(MethodError, match=says) as e:
        client.recall(stored, {"h": (tf.zeros([2]),)})
    assert "\n" not in str(e.value)
