"""What is recorded of Keras models, losses and metrics: any that differ differ in it, by name."""

import numpy as np
import pytest
import tensorflow as tf

from simulation import identity, model_identity
from tff_suite import code_digests

keras = tf.keras
layers = keras.layers


def looked_at(model):
    describer = code_digests.Describer([model_identity.look_at_library_object])
    return {"model": model_identity.of_model(model, describer), "code": describer.found.code}


def values(thing):
    describer = code_digests.Describer([model_identity.look_at_library_object])
    describer.look("it", thing)
    return describer.found.values


def sequential(*inner, seed=1):
    keras.utils.set_random_seed(seed)
    return keras.Sequential([keras.Input([4]), *inner, layers.Dense(2)])


def functional(join, order=(0, 1)):
    keras.utils.set_random_seed(1)
    x = keras.Input([4])
    arms = [layers.Dense(3, "relu")(x), layers.Dense(3, "tanh")(x)]
    return keras.Model(x, layers.Dense(2)(join([arms[i] for i in order])))


def times(factor):
    return lambda x: x * factor


class Own(layers.Layer):
    """A layer that does not tell its settings."""

    def __init__(self, units, slope=0.1, table=None):
        super().__init__()
        self.units, self.slope, self.table = units, slope, table

    def build(self, shape):
        self.kernel = self.add_weight("kernel", [shape[-1], self.units])

    def call(self, x):
        return tf.nn.leaky_relu(x @ self.kernel, self.slope)


class OwnModel(keras.Model):
    def __init__(self, factor, units=3):
        super().__init__()
        self.inner, self.factor = layers.Dense(units), factor

    def call(self, x):
        return self.factor * self.inner(x)


def built(model):
    keras.utils.set_random_seed(1)
    model.build([None, 4])
    return model


def with_weights(model, change):
    weights = model.get_weights()
    change(weights)
    model.set_weights(weights)
    return model


def frozen(trainable):
    model = sequential(layers.Dense(3))
    model.layers[0].trainable = trainable
    return model


def set_one(weights):
    weights[0][2, 1] += 0.01


def swap(weights):
    weights[0][[0, 1]] = weights[0][[1, 0]]


def first_dense(units=32, activation="relu", **changes):
    return lambda: sequential(layers.Dense(units, activation, **changes))


# Two models, and what is said.
PAIRS = {
    "units": (first_dense(), first_dense(64), "model: layer 1 (dense), units 32 → 64"),
    "activation": (first_dense(), first_dense(activation="tanh"), "activation 'relu' → 'tanh'"),
    "bias": (first_dense(), first_dense(use_bias=False), "use_bias True → False"),
    "layers": (
        first_dense(),
        lambda: sequential(layers.Dense(32, "relu"), layers.Dropout(0.5)),
        "layers inputlayer, dense, dense → inputlayer, dense, dropout, dense",
    ),
    "dropout": (
        lambda: sequential(layers.Dropout(0.2)),
        lambda: sequential(layers.Dropout(0.3)),
        "layer 1 (dropout), rate 0.2 → 0.3",
    ),
    "regularizer": (
        first_dense(kernel_regularizer=keras.regularizers.L2(0.01)),
        first_dense(kernel_regularizer=keras.regularizers.L2(0.02)),
        "kernel_regularizer",
    ),
    "frozen": (lambda: frozen(True), lambda: frozen(False), "trainable True → False"),
    "seed": (
        lambda: sequential(),
        lambda: sequential(seed=2),
        "initial weights of layer 1 (dense)",
    ),
    "one weight": (
        lambda: sequential(),
        lambda: with_weights(sequential(), set_one),
        "initial weights of layer 1 (dense)",
    ),
    "two rows of weights": (
        lambda: sequential(),
        lambda: with_weights(sequential(), swap),
        "initial weights of layer 1 (dense)",
    ),
    "order of a concatenation": (
        lambda: functional(layers.Concatenate()),
        lambda: functional(layers.Concatenate(), (1, 0)),
        "model: layer 1 (dense), activation 'relu' → 'tanh'",
    ),
    "kind of a join": (
        lambda: functional(layers.Add()),
        lambda: functional(layers.Multiply()),
        "layers inputlayer, dense, dense, add, dense → ",
    ),
    "a number in the wiring": (
        lambda: functional(lambda arms: arms[0] + 2.0 * arms[1]),
        lambda: functional(lambda arms: arms[0] + 3.0 * arms[1]),
        "model: wiring",
    ),
    "a lambda's number": (
        lambda: sequential(layers.Lambda(times(2.0))),
        lambda: sequential(layers.Lambda(times(3.0))),
        "factor 2.0 → 3.0",
    ),
    "an own activation's number": (
        lambda: sequential(layers.Dense(3, times(2.0))),
        lambda: sequential(layers.Dense(3, times(3.0))),
        "factor 2.0 → 3.0",
    ),
    "an own layer's number": (
        lambda: sequential(Own(3)),
        lambda: sequential(Own(3, slope=0.2)),
        "layer 1 (own), slope 0.1 → 0.2",
    ),
    "an own layer's table": (
        lambda: sequential(Own(3, table=np.arange(3.0))),
        lambda: sequential(Own(3, table=np.arange(3.0) + 1)),
        "layer 1 (own), table has other content",
    ),
    "an own model's number": (
        lambda: built(OwnModel(2.0)),
        lambda: built(OwnModel(3.0)),
        "the model itself, factor 2.0 → 3.0",
    ),
    "inside a model in it": (
        lambda: sequential(keras.Sequential([layers.Dense(3), layers.ReLU()])),
        lambda: sequential(keras.Sequential([layers.Dense(3), layers.ReLU(max_value=1.0)])),
        "max_value",
    ),
    "inside a wrapper": (
        lambda: sequential(layers.Reshape([2, 2]), layers.Bidirectional(layers.LSTM(3))),
        lambda: sequential(
            layers.Reshape([2, 2]), layers.Bidirectional(layers.LSTM(3, activation="relu"))
        ),
        "activation 'tanh' → 'relu'",
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_models_that_differ(kind):
    one, other, said = PAIRS[kind]
    before = looked_at(one())
    changes = identity.differences(before, looked_at(other()))
    assert said in identity.in_words(changes)
    # Names of layers count up in a process.
    assert not identity.differences(before, looked_at(one()))


def test_last_bits_of_initial_weights_make_no_difference():
    def last_bits(weights):
        weights[0] = np.nextafter(weights[0], np.float32(9))

    before, now = sequential(), with_weights(sequential(), last_bits)
    assert not identity.differences(looked_at(before), looked_at(now))


def test_a_model_that_was_loaded_without_its_classes(tmp_path):
    def loaded(name, factor):
        model = built(OwnModel(factor))
        model(np.zeros([1, 4], np.float32))
        model.save(tmp_path / name, save_format="tf")
        return looked_at(keras.models.load_model(tmp_path / name, compile=False))

    one, other = loaded("one", 2.0), loaded("other", 3.0)
    assert identity.differences(one, other)
    assert not identity.differences(one, loaded("again", 2.0))


# Losses and metrics.


class OwnLoss(keras.losses.Loss):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y, p):
        return self.factor * (y - p)


def of_constant(value):
    table = tf.constant([1.0, value])
    return lambda y, p: table * (y - p)


def of_variable(value):
    table = tf.Variable([1.0, value])
    return lambda y, p: table * (y - p)


def of_teacher(value):
    teacher = with_weights(sequential(), lambda w: w[-1].fill(value))
    return lambda y, p: teacher(y) - p


def traced(value):
    return tf.function(lambda y, p: value * (y - p))


def graph(value):
    function = tf.function(lambda y: value * tf.reduce_sum(y))
    return function.get_concrete_function(tf.TensorSpec([None]))


LOSSES = {
    "Keras's": lambda v: keras.losses.Huber(delta=v),
    "smoothing": lambda v: keras.losses.CategoricalCrossentropy(label_smoothing=v / 10),
    "own": OwnLoss,
    "tensor": of_constant,
    "variable": of_variable,
    "teacher": of_teacher,
    "tf.function": traced,
    "graph": graph,
    "metric": lambda v: keras.metrics.BinaryAccuracy(threshold=v / 10),
    "schedule": lambda v: keras.optimizers.schedules.ExponentialDecay(v, 10, 0.5),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_losses_that_differ(kind):
    make = LOSSES[kind]
    assert values(make(2.0)) == values(make(2.0))
    assert values(make(2.0)) != values(make(3.0))


@pytest.mark.parametrize(
    "function", [keras.losses.mean_squared_error, keras.metrics.sparse_categorical_accuracy]
)
def test_kerass_functions_are_known_by_name(function):
    assert values(function) == {"it": f"keras {function.__name__}()"}
