import importlib
import inspect
import pkgutil

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl import api

from tasks import layers
from tasks.layers import registered
from tasks.layers.as_written import AsWritten
from tasks.models import image_models, models


def _ours():
    modules = [
        importlib.import_module(f"tasks.layers.{found.name}")
        for found in pkgutil.iter_modules(layers.__path__)
    ]
    ours = [
        cls
        for module in modules
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if cls.__module__ == module.__name__ and issubclass(cls, tf.keras.layers.Layer)
    ]
    assert len(ours) > 5
    return ours


def test_all_our_layers_are_as_written():
    for cls in _ours():
        assert cls.__mro__[1] is AsWritten, cls


def test_keras_finds_all_our_layers_by_the_names_in_a_file():
    for cls in _ours():
        base = getattr(tf.keras.layers, cls.__name__, None)
        assert issubclass(cls, base) if base else cls in registered.LAYERS, cls


@pytest.mark.parametrize("make", [models.emnist_cnn, image_models.resnet18, models.word_lstm])
def test_autograph_rewrites_nothing_of_our_models(make, monkeypatch):
    rewritten = []
    convert = api._convert_actual

    def recording(entity, context):
        rewritten.append(entity.__module__)
        return convert(entity, context)

    class Doubled(tf.keras.layers.Layer):
        def call(self, inputs):
            return 2 * inputs

    monkeypatch.setattr(api, "_convert_actual", recording)
    make(0)
    assert not rewritten
    # The layers of others are rewritten as ever.
    Doubled()(tf.keras.Input([1]))
    assert __name__ in rewritten
