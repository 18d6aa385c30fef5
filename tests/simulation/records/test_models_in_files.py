"""Every task's model, as Keras loads it from the file that a run leaves."""

import json
import zipfile

import numpy as np
import pytest
import tensorflow as tf

import tasks
from simulation.records import models as files
from tasks import layers
from tasks.layers import registered
from tasks.models import image_models, models
from tests.tasks.test_registry import OWN, RESNETS
from tff_suite import compat

# Their model has a layer that Keras has no like of.
_WITH_SUITE = (*RESNETS, "fixed_batch_normalization", "prepare_images")


_DRAWING = (tf.keras.layers.Dropout, layers.images.PrepareImages)


def _fixed_batch_normalization(seed):
    inputs = tf.keras.Input((4,))
    x = layers.normalization.FixedBatchNormalization(name="norm")(inputs)
    return tf.keras.Model(inputs, models.softmax_regression(seed, num_inputs=4)(x))


_VECTORS = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
_SMALL = {
    "fixed_batch_normalization": _fixed_batch_normalization,
    "prepare_images": lambda seed: image_models.of_bytes(
        seed,
        model_fn=lambda seed, input_shape: image_models.conv_net(
            seed, convolutions=(2, "pool"), padding="same", input_shape=input_shape
        ),
        shape=(6, 6, 3),
        crop=4,
        distort=True,
        scaling="standardize",
    ),
    "sent140_lstm": lambda seed: models.sent140_lstm(
        seed, vocab_size=9, length=5, vectors=_VECTORS, embedding_size=3, units=2
    ),
    "shakespeare_lstm": lambda seed: models.shakespeare_lstm(
        seed, vocab_size=9, length=5, num_layers=1, units=2, init="torch"
    ),
}


def _written(folder, keras_model):
    """Writes the model with other weights, which it has afterwards, too; returns the path."""
    rng = np.random.default_rng(1)
    variables = keras_model.trainable_variables
    weights = [v.numpy() + rng.normal(0, 0.1, v.shape).astype(np.float32) for v in variables]
    path = files.write(str(folder), keras_model, weights)
    assert path.endswith("final.keras")
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
    return path


def _inputs(keras_model):
    shape, dtype = keras_model.input_shape[1:], keras_model.inputs[0].dtype.as_numpy_dtype
    x = np.random.default_rng(2).integers(1, 9, (3, *shape)).astype(dtype)
    if dtype == np.int32:
        x[1, 2:] = 0  # Padding.
    return x


def _assert_alike(before, after, x):
    for training in (False, True):
        if training and any(isinstance(m, _DRAWING) for m in before.submodules):
            continue
        wanted, got = (np.asarray(model(x, training=training)) for model in (before, after))
        if wanted.ndim > 2:
            wanted, got = wanted[x > 0], got[x > 0]  # Outputs at padding mean nothing.
        assert np.ptp(wanted) > 0
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.ptp(wanted))
    for a, b in zip(before.get_weights(), after.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture
def without_suite(monkeypatch):
    """Keras knows nothing of the suite."""
    for layer in registered.LAYERS:
        monkeypatch.delitem(tf.keras.utils.get_custom_objects(), layer.__name__)


def _assert_loaded(name, folder, keras_model, x):
    loaded = tf.keras.models.load_model(_written(folder, keras_model))
    _assert_alike(keras_model, loaded, x)
    if name not in _WITH_SUITE:
        for layer in loaded.submodules:
            of_tensorflow = type(layer).__module__.startswith("tensorflow.")
            assert of_tensorflow or compat.is_of_keras(type(layer)), type(layer)


@pytest.mark.parametrize("name", _SMALL)
def test_layers_are_loaded(name, request, tmp_path):
    if name not in _WITH_SUITE:
        request.getfixturevalue("without_suite")
    keras_model = _SMALL[name](0)
    _assert_loaded(name, tmp_path, keras_model, _inputs(keras_model))


@pytest.mark.quick_cases("emnist_character", "fashion_mnist", "stackexchange", "synthetic")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OWN)
def test_every_tasks_model_is_loaded(name, request, tmp_path):
    if name not in _WITH_SUITE:
        request.getfixturevalue("without_suite")
    settings = {"num_clients": 2} if name == "clothing1m" else {}
    task = tasks.load(name, use_synthetic_data=True, **settings)
    _assert_loaded(name, tmp_path, task.keras_model_fn(0), task.train.examples(0).x[:3])


def test_a_file_holds_the_words_vectors_once(tmp_path):
    path = _written(tmp_path, _SMALL["sent140_lstm"](0))
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    (embedding,) = (c for c in config["config"]["layers"] if c["class_name"] == "Embedding")
    initializer = embedding["config"]["embeddings_initializer"]
    assert initializer["class_name"] == "Zeros" and initializer["config"] == {}
