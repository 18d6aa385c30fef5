import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks.models import losses, models
from tests.tasks.datasets import test_emnist_character as tffs
from tff_suite.hparams import HparamError


def test_examples_are_tffs(tmp_path):
    from tensorflow_federated.python.simulation import baselines
    from tensorflow_federated.python.simulation.baselines.emnist import emnist_preprocessing

    tffs._write(tmp_path / tffs._NAME)
    task = tasks.load("emnist_autoencoder", data_dir=str(tmp_path))
    spec = baselines.ClientSpec(num_epochs=1, batch_size=100, shuffle_buffer_size=1)
    preprocess = emnist_preprocessing.create_preprocess_fn(spec, "autoencoder")
    assert task.train.client_ids == sorted(tffs._IDS) and task.test.sizes.tolist() == [1, 1, 1]
    for index, client in enumerate((1, 2, 0)):
        pixels = [tffs._pixels(client, i).reshape(28, 28) for i in range(task.train.sizes[index])]
        ((x, y),) = preprocess(
            tf.data.Dataset.from_tensor_slices({"pixels": np.array(pixels, np.float32)})
        ).as_numpy_iterator()
        ours = task.train.examples(index)
        assert ours.x.dtype == ours.y.dtype == np.float32
        np.testing.assert_array_equal(ours.x, x)
        np.testing.assert_array_equal(ours.y, y)
    assert task.central_test.x.shape == task.central_test.y.shape == (3, 784)


@pytest.mark.parametrize("code", ["linear", "sigmoid"])
def test_the_model_is_tffs_but_for_the_code(code, monkeypatch):
    from tensorflow_federated.python.simulation.baselines.emnist import emnist_models

    # TFF asks it for a number up to 1e9, a float, which CPython 3.12 and later refuse.
    monkeypatch.setattr(emnist_models.random, "randint", lambda low, high: 1)
    theirs = emnist_models.create_autoencoder_model()
    ours = models.autoencoder(0, code=code)
    assert ours.count_params() == theirs.count_params() == 2_837_314
    rng = np.random.default_rng(0)
    weights = [rng.normal(0, 0.1, w.shape).astype(np.float32) for w in theirs.get_weights()]
    theirs.set_weights(weights)
    ours.set_weights(weights)
    if code == "sigmoid":  # As the paper's table prints it.
        theirs.layers[3].activation = tf.keras.activations.sigmoid
    x = rng.random((5, 784), np.float32)
    expected = theirs(x).numpy()
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5)
    other = models.autoencoder(0, code={"linear": "sigmoid", "sigmoid": "linear"}[code])
    other.set_weights(weights)
    assert not np.allclose(other(x), expected, rtol=1e-5)


def test_loss_and_metrics_are_numpys_and_kerass():
    rng = np.random.default_rng(0)
    y, restored = rng.random((2, 6, 784), np.float32)
    mse = np.mean((y.astype(np.float64) - restored) ** 2, axis=1)
    mae = np.mean(np.abs(y.astype(np.float64) - restored), axis=1)
    np.testing.assert_allclose(losses.squared_error(y, restored), mse, rtol=1e-5)
    np.testing.assert_allclose(losses.absolute_error(y, restored), mae, rtol=1e-5)
    keras = tf.keras.losses.MeanSquaredError()(y, restored)
    np.testing.assert_allclose(np.mean(losses.squared_error(y, restored)), keras, rtol=1e-5)
    task = tasks.load("emnist_autoencoder", use_synthetic_data=True)
    assert task.primary_metric == "mse" and not task.higher_is_better
    assert task.metrics.keys() == {"mse", "mae"} and task.loss is losses.squared_error


def test_mnist_is_the_same_way_round(data_dir):
    task = tasks.load("emnist_autoencoder", source="mnist", data_dir=str(data_dir), seed=2)
    digits = tasks.load("mnist_writers", data_dir=str(data_dir), seed=2)
    assert len(task.train.client_ids) == 539
    np.testing.assert_array_equal(task.test.sizes, digits.test.sizes)
    for k in (0, 300):
        x, y = task.train.examples(k)
        np.testing.assert_array_equal(x, y)
        np.testing.assert_allclose(
            x.reshape(-1, 28, 28, 1), 1 - digits.train.examples(k).x, atol=1e-7
        )
    # MNIST's test images average 0.1325 with a background of 0.
    np.testing.assert_allclose(task.central_test.x.mean(dtype=np.float64), 0.1325, atol=1e-3)


def test_the_background_is_zero():
    for source in ("emnist", "mnist"):
        task = tasks.load("emnist_autoencoder", source=source, use_synthetic_data=True)
        x = task.train.examples(0).x
        assert 0 <= x.min() and x.max() <= 1 and x.mean() < 0.5


def test_settings_of_mnist_are_refused_elsewhere():
    for setting in ({"test_fraction": 0.1}, {"partition_seed": 1}):
        with pytest.raises(HparamError, match="source=mnist"):
            tasks.load("emnist_autoencoder", use_synthetic_data=True, **setting)
