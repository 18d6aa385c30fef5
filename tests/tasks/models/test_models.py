import functools

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import models

_MAKERS = {
    "softmax_regression": (models.softmax_regression, 610),
    "mlp": (models.mlp, 199_210),
    "mlp_femnist": (functools.partial(models.mlp, hidden=(128,), num_classes=62), 108_478),
    "femnist_cnn": (models.femnist_cnn, 222_078),
    "femnist_cnn_letters": (functools.partial(models.femnist_cnn, num_classes=10), 215_370),
    "autoencoder": (models.autoencoder, 2_837_314),
    "emnist_cnn": (models.emnist_cnn, 1_206_590),
    "emnist_cnn_digits": (functools.partial(models.emnist_cnn, num_classes=10), 1_199_882),
}

_each_model = pytest.mark.parametrize("name", _MAKERS)


@_each_model
def test_parameters_are_as_many_as_the_papers(name):
    make, num_parameters = _MAKERS[name]
    model = make(0)
    assert model.count_params() == num_parameters
    assert sum(int(tf.size(w)) for w in model.trainable_variables) == num_parameters


@_each_model
def test_models_give_logits(name):
    model = _MAKERS[name][0](0)
    x = np.random.default_rng(0).random((3, *model.input_shape[1:]), np.float32) * 5
    sums = tf.reduce_sum(model(x), axis=1).numpy()
    assert not np.allclose(sums, 1, atol=1e-3)


@pytest.mark.quick_cases("torch-*")
@_each_model
@pytest.mark.parametrize("init", ["torch", "keras"])
def test_weights_are_a_function_of_the_seed_alone(name, init):
    make = functools.partial(_MAKERS[name][0], init=init)
    tf.random.set_seed(1)
    first = make(7).get_weights()
    tf.random.set_seed(2)
    make(3)
    again, other = make(7).get_weights(), make(8).get_weights()
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first, other, strict=True):
        if a.any():
            assert np.isclose(a, b).mean() < 0.1


def test_weights_in_a_graph_are_the_eager_ones():
    # TFF calls model functions while it builds a graph.
    eager = models.mlp(7).get_weights()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = models.mlp(7).trainable_variables
        session.run([v.initializer for v in variables])
        in_graph = session.run([v.read_value() for v in variables])
    for a, b in zip(eager, in_graph, strict=True):
        np.testing.assert_array_equal(a, b)


def _fans(kernel):
    receptive = int(np.prod(kernel.shape[:-2]))
    return kernel.shape[-2] * receptive, kernel.shape[-1] * receptive


@_each_model
def test_torch_weights_fill_their_bounds(name):
    weights = _MAKERS[name][0](0, init="torch").get_weights()
    for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
        bound = _fans(kernel)[0] ** -0.5
        for values in (kernel, bias):
            assert 0.75 * bound < np.abs(values).max() <= bound * (1 + 1e-6)
        assert abs(kernel.mean()) < 0.1 * bound
        np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.1)
        assert len(np.unique(bias)) == len(bias)


@_each_model
def test_keras_weights_are_glorots(name):
    weights = _MAKERS[name][0](0, init="keras").get_weights()
    for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
        bound = (6 / sum(_fans(kernel))) ** 0.5
        assert 0.9 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
        np.testing.assert_allclose(kernel.std(), bound / 3**0.5, rtol=0.1)
        assert not bias.any()


def test_layers_of_one_shape_start_differently():
    first, second = models.mlp(0, hidden=(30, 30, 30)).get_weights()[2:6:2]
    assert first.shape == second.shape
    assert np.isclose(first, second).mean() < 0.1


def test_names_do_not_depend_on_what_was_built_before():
    names = [v.name for v in models.emnist_cnn(0).trainable_variables]
    assert names == [v.name for v in models.emnist_cnn(0).trainable_variables]


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match="init"):
        models.mlp(0, init="zeros")


def test_dropout_is_on_in_training_only():
    model = models.emnist_cnn(0)
    x = np.random.default_rng(0).random((2, 28, 28, 1), np.float32)
    np.testing.assert_array_equal(model(x), model(x))
    assert not np.allclose(model(x, training=True), model(x, training=True))
    assert [m.rate for m in model.layers if isinstance(m, tf.keras.layers.Dropout)] == [0.25, 0.5]


@pytest.mark.parametrize(("only_digits", "num_classes"), [(False, 62), (True, 10)])
def test_emnist_cnn_is_tffs(only_digits, num_classes):
    from tensorflow_federated.python.simulation.baselines.emnist import emnist_models

    theirs = emnist_models.create_conv_dropout_model(only_digits=only_digits, debug_seed=1)
    ours = models.emnist_cnn(0, num_classes=num_classes)
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.1, w.shape).astype(np.float32) for w in theirs.get_weights()]
    theirs.set_weights(weights)
    ours.set_weights(weights)
    x = rng.random((8, 28, 28, 1), np.float32)
    expected = theirs(x).numpy()
    assert expected.std() > 0.01
    np.testing.assert_allclose(tf.nn.softmax(ours(x)), expected, rtol=1e-4, atol=1e-7)


def test_mlp_is_numpys():
    model = models.mlp(5)
    x = np.random.default_rng(0).random((4, 28, 28, 1), np.float32)
    hidden = x.reshape(4, -1)
    weights = model.get_weights()
    for i in (0, 2):
        hidden = np.maximum(hidden @ weights[i] + weights[i + 1], 0)
    np.testing.assert_allclose(model(x), hidden @ weights[4] + weights[5], rtol=1e-4, atol=1e-5)
