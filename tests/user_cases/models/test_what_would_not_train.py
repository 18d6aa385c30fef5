"""Weights, layers and steps that a model's own code hides: refused, or equal to Keras."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf

import simulation
import tasks
import tff_algos
from simulation import runtimes
from tff_algos.model import ModelError

K = tf.keras
L = K.layers
LOSS = K.losses.SparseCategoricalCrossentropy(from_logits=True)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4)).astype(np.float32)


def sequence(*layers):
    return K.Sequential([L.InputLayer([4]), *layers])


class OfLayers(K.Model):
    def __init__(self, *parts):
        super().__init__()
        self.parts = parts

    def call(self, x):
        for layer in self.parts:
            x = layer(x)
        return x


class Listed(L.Layer):
    """Reads its weight through a list."""

    def build(self, shape):
        self.a = self.add_weight("a", shape=(4, 3))
        self.all = [self.a]

    def call(self, x):
        return x @ self.all[0]


class OfTrainable(Listed):
    def call(self, x):
        return x @ self.trainable_weights[0]


class Traced(Listed):
    @tf.function
    def call(self, x):
        return x @ self.a


class TracedHelper(Listed):
    def call(self, x):
        return self.times(x)

    @tf.function
    def times(self, x):
        return x @ self.a


def tied():
    ids = K.Input([5], dtype="int32")
    embedding = L.Embedding(10, 4)
    hidden = L.Dense(4)(L.Flatten()(embedding(ids)))
    return K.Model(ids, tf.matmul(hidden, embedding.embeddings, transpose_b=True))


def regularised_by_another():
    first = L.Dense(3)
    first.build([None, 4])
    second = L.Dense(3, kernel_regularizer=lambda w: tf.reduce_sum((w - first.kernel[:3]) ** 2))
    return sequence(first, second)


@pytest.mark.parametrize(
    ("model", "refusal"),
    [
        (
            lambda: sequence(Listed()),
            "^The model reads the weight 'listed.*' from outside its layer",
        ),
        (lambda: sequence(OfTrainable()), "^The model reads the weight"),
        (regularised_by_another, "^The model reads the weight"),
        (lambda: sequence(Traced()), r"^Layer 'traced.*' \(Traced\) has @tf.function on call"),
        (lambda: sequence(TracedHelper()), "has @tf.function on times"),
    ],
    ids=["list", "trainable_weights", "regulariser", "traced", "traced helper"],
)
def test_a_weight_that_would_not_train_is_refused(model, refusal):
    with pytest.raises(ModelError, match=refusal):
        tff_algos.from_keras(model(), loss=LOSS)


class InferenceByWeights(L.Layer):
    """Reads its weights by position in inference only."""

    def build(self, shape):
        self.k = self.add_weight("k", shape=(4, 3))
        self.b = self.add_weight("b", shape=(3,), initializer="zeros")

    def call(self, x, training=False):
        if training:
            return x @ self.k + self.b
        k, b = self.weights
        return x @ k + b


class CountsInInference(Listed):
    def build(self, shape):
        super().build(shape)
        self.n = self.add_weight("n", shape=(), trainable=False, initializer="zeros")

    def call(self, x, training=None):
        if not training:
            self.n.assign_add(1.0)
        return x @ self.a


class DrawsInInference(Listed):
    def call(self, x, training=None):
        return x @ self.a if training else x @ self.a + tf.random.normal([3])


class AddsInInference(Listed):
    def call(self, x, training=None):
        if not training:
            self.add_loss(tf.reduce_mean(x**2))
        return x @ self.a


@pytest.mark.parametrize(
    ("layer", "refusal"),
    [
        (
            InferenceByWeights,
            "^The model reads the weight 'inference_by_weights.*' from outside its",
        ),
        (CountsInInference, "^Layer 'counts_in_inference.*' changes a variable while it runs"),
        (DrawsInInference, "^Layer 'draws_in_inference.*' uses the stateful operation"),
        (AddsInInference, "^Model '.*' adds losses while it is called"),
    ],
)
def test_what_a_layer_does_in_inference_only_is_refused_too(layer, refusal):
    """Evaluation used the initial weights throughout."""
    with pytest.raises(ModelError, match=refusal) as e:
        tff_algos.from_keras(sequence(layer()), loss=LOSS)
    assert "\n" not in str(e.value)


def test_a_loss_must_not_read_the_models_weights():
    model = sequence(L.Dense(3))

    def loss(y, outputs):
        penalty = tf.reduce_sum(model.trainable_variables[0] ** 2)
        return K.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True) + penalty

    with pytest.raises(ModelError, match=r"^The loss or a metric reads the weight 'dense"):
        tff_algos.from_keras(model, loss=loss)


def test_weights_tied_between_layers_train_as_in_keras():
    model, rate = tied(), 0.1
    x, y = RNG.integers(0, 10, (6, 5)).astype(np.int32), np.arange(6, dtype=np.int32)
    process = tff_algos.build(
        "fedavg", tff_algos.from_keras(model, loss=LOSS), client_learning_rate=rate
    )
    data = tff_algos.batch_client(x, y, batch_size=6)
    with runtimes.installed("vectorized"):
        bound = runtimes.bind(process)
        found = bound.next(bound.initialize(), [data]).state.weights
    model.compile(K.optimizers.SGD(rate), LOSS)
    model.fit(x, y, batch_size=6, verbose=0)
    for ours, keras in zip(found, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, keras, rtol=1e-5, atol=1e-6)


OWN_STEPS = ["fit", "make_train_function", "train_step", "compute_loss"]
OWN_TESTS = ["evaluate", "make_test_function", "test_step", "compute_metrics"]


@pytest.mark.parametrize("method", [*OWN_STEPS, *OWN_TESTS])
def test_a_models_own_steps_are_refused(method):
    own = type("Own", (K.Model,), {method: lambda self, *arguments, **named: None})
    x = K.Input([4])
    with pytest.raises(ModelError, match=rf"\(Own\) overrides {method}, which is never called"):
        tff_algos.from_keras(own(x, L.Dense(3)(x)), loss=LOSS)


@pytest.mark.parametrize("method", [*OWN_STEPS, *OWN_TESTS])
def test_steps_that_a_model_object_was_given_are_refused(method):
    """`fit` calls them, too."""
    model = sequence(L.Dense(3))
    setattr(model, method, types.MethodType(lambda self, *arguments, **named: None, model))
    with pytest.raises(ModelError, match=rf"\(Sequential\) overrides {method}, which is never"):
        tff_algos.from_keras(model, loss=LOSS)


class WithLosses(K.Sequential):
    @property
    def losses(self):
        return [*super().losses, tf.reduce_sum(self.trainable_variables[0] ** 2)]


class LayerWithLosses(L.Dense):
    @property
    def losses(self):
        return [tf.reduce_sum(self.kernel**2)]


def test_a_models_own_losses_are_refused():
    with pytest.raises(ModelError, match=r"\(WithLosses\) overrides losses, which is never"):
        tff_algos.from_keras(WithLosses([L.InputLayer([4]), L.Dense(3)]), loss=LOSS)


class Value(Listed):
    def call(self, x):
        return x @ self.a.value()


class OnATape(Listed):
    """A step of its own on its weight."""

    def call(self, x):
        with tf.GradientTape() as tape:
            size = tf.reduce_sum((x @ self.a) ** 2, axis=1)
        return x @ (self.a - 0.1 * tape.gradient(size, self.a))


class Assigns(Listed):
    def call(self, x):
        return x @ self.a.assign(tf.clip_by_norm(self.a, 1.0))


@pytest.mark.parametrize(
    ("layer", "refusal"),
    [
        (Value, "fails when tensors take .* calling layer 'value.* no attribute 'value'$"),
        (OnATape, "fails when tensors take the place of its variables; .* layer 'on_a_tape.*None"),
        (Assigns, "needs a tensor's value .* calling layer 'assigns.* no attribute 'assign'$"),
    ],
)
def test_a_weight_that_is_used_as_a_variable_is_refused(layer, refusal):
    with pytest.raises(ModelError, match=refusal) as e:
        tff_algos.from_keras(sequence(layer()), loss=LOSS)
    assert "\n" not in str(e.value)


class Recomputes(L.Layer):
    """Saves memory in training; `passes` says whether its weight is an argument."""

    def __init__(self, passes=False):
        super().__init__()
        self.passes = passes

    def build(self, shape):
        self.a = self.add_weight("a", shape=(4, 3))

    def call(self, x, training=None):
        def block(x, weight=None):
            return tf.tanh(x @ (self.a if weight is None else weight))

        block = tf.recompute_grad(block) if training else block
        return block(x, self.a) if self.passes else block(x)


class OwnGradient(Listed):
    def call(self, x):
        @tf.custom_gradient
        def product(x):
            def gradient(dy, variables=None):
                dx = dy @ tf.transpose(self.a)
                return (dx, [tf.transpose(x) @ dy]) if variables else dx

            return x @ self.a, gradient

        return product(x)


class WantsVariables(Listed):
    def call(self, x):
        @tf.custom_gradient
        def product(x):
            def gradient(dy, variables):
                return dy @ tf.transpose(self.a), [tf.transpose(x) @ dy for _ in variables]

            return x @ self.a, gradient

        return product(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sequence(Recomputes()),
        lambda: sequence(L.Dense(4), L.Dropout(0.5), Recomputes()),
        lambda: sequence(OwnGradient()),
        lambda: sequence(WantsVariables()),
        lambda: OfLayers(Recomputes(), L.Dense(3)),
    ],
    ids=["recomputes", "dropout", "own", "variables", "subclassed"],
)
def test_a_weight_that_an_own_gradient_leaves_out_is_refused(make):
    model = make()
    model(X)
    refusal = r"^Weight '.*a:0' of model .* would not train: .* as an argument\.$"
    with pytest.raises(ModelError, match=refusal):
        tff_algos.from_keras(model, loss=LOSS, x_spec=tf.TensorSpec([None, 4]))


class HoldsATensor(OfLayers):
    """The factor is an attribute of the model itself."""

    def __init__(self, *parts):
        super().__init__(*parts)
        self.factor = tf.constant(0.5)

    def call(self, x):
        return self.factor * super().call(x)


def tied_and_frozen():
    model = tied()
    model.layers[1].trainable = False
    return model


class OfOptions(Listed):
    """Its arguments have the names that the suite gives values, and another sense."""

    def call(self, x, uniform=False, real_examples=True):
        rows = tf.reduce_mean(x, -1, keepdims=True) @ self.a[:1] if uniform else x @ self.a
        return rows if real_examples is True else tf.zeros_like(rows)


IDS = RNG.integers(0, 10, (6, 5)).astype(np.int32)
TRAINED = {
    # That of a weight that is an argument, and those within Keras's activations.
    "own gradient": (lambda: sequence(L.Dense(4, "swish"), Recomputes(passes=True)), X),
    "tensor": (lambda: HoldsATensor(L.Dense(3)), X),
    "tied and frozen": (tied_and_frozen, IDS),
    "options": (lambda: sequence(OfOptions()), X),
    # `fit` does not read those of a layer.
    "losses of a layer": (lambda: sequence(LayerWithLosses(3)), X),
}


@pytest.mark.parametrize("runtime", ["per_client", "vectorized", "tff"])
@pytest.mark.parametrize("name", TRAINED)
def test_models_train_as_in_keras_in_every_runtime(name, runtime):
    (make, x), y, rate = TRAINED[name], np.arange(6, dtype=np.int32) % 3, 0.1
    model = make()
    model(x)
    spec = tf.TensorSpec([None, *x.shape[1:]], x.dtype)
    process = tff_algos.build(
        "fedavg", tff_algos.from_keras(model, loss=LOSS, x_spec=spec), client_learning_rate=rate
    )
    data = tff_algos.batch_client(x, y, batch_size=6)
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        found = bound.next(bound.initialize(), [data]).state.weights
    model.compile(K.optimizers.SGD(rate), LOSS)
    model.fit(x, y, batch_size=6, verbose=0)
    for ours, variable in zip(found, model.trainable_variables, strict=True):
        np.testing.assert_allclose(ours, variable, rtol=1e-5, atol=1e-6)


class AddsLoss(L.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_mean(x**2))
        return x


class AddsItself(OfLayers):
    def call(self, x):
        outputs = super().call(x)
        self.add_loss(tf.reduce_mean(outputs**2))
        return outputs


@pytest.mark.parametrize(
    "make",
    [
        lambda: AddsItself(L.Dense(3)),
        lambda: OfLayers(L.Dense(3), AddsLoss()),
        lambda: sequence(OfLayers(L.Dense(3), AddsLoss())),
    ],
    ids=["itself", "layer", "nested"],
)
def test_losses_that_a_call_adds_are_refused(make):
    model = make()
    model(X)
    with pytest.raises(ModelError, match=r"^Model '.*' adds losses while it is called"):
        tff_algos.from_keras(model, loss=LOSS, x_spec=tf.TensorSpec([None, 4]))


def scaled(weight, strength=1.0):
    return strength * tf.reduce_sum(weight**2)


def of_two(kernel, bias):
    return tf.reduce_sum(kernel**2) * tf.reduce_sum((bias - 1) ** 2)


def with_added(loss_of):
    layer = L.Dense(3)
    model = sequence(layer)
    layer.add_loss(loss_of(layer))
    return model


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda layer: functools.partial(scaled, layer.kernel, strength=0.01),
        lambda layer: functools.partial(scaled, layer.kernel, 0.01),
        lambda layer: functools.partial(of_two, layer.kernel, layer.bias),
        lambda layer: functools.partial(lambda layer: scaled(layer.kernel), layer),
        lambda layer: lambda: scaled(layer.kernel),
    ],
    ids=["keyword", "second", "two", "layer", "function"],
)
def test_an_added_loss_other_than_of_one_weight_is_refused(loss_of):
    """Its other arguments were lost, or it was a number without a gradient."""
    with pytest.raises(ModelError, match=r"adds a loss .*, or give the weight a regularizer=\.$"):
        tff_algos.from_keras(with_added(loss_of), loss=LOSS)


@pytest.mark.parametrize("runtime", ["per_client", "vectorized"])
def test_an_added_loss_of_one_weight_trains_as_in_keras(runtime):
    model, rate = with_added(lambda layer: functools.partial(scaled, layer.kernel)), 0.1
    y = np.arange(6, dtype=np.int32) % 3
    process = tff_algos.build(
        "fedavg", tff_algos.from_keras(model, loss=LOSS), client_learning_rate=rate
    )
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        data = tff_algos.batch_client(X, y, batch_size=6)
        found = bound.next(bound.initialize(), [data]).state.weights
    model.compile(K.optimizers.SGD(rate), LOSS)
    model.fit(X, y, batch_size=6, verbose=0)
    for ours, keras in zip(found, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, keras, rtol=1e-5, atol=1e-6)


class Twice(L.Dropout):
    def call(self, inputs, training=None):
        return 2 * super().call(inputs, training=training)


class Columns(L.Dropout):
    """Drops whole columns of a batch."""

    def _get_noise_shape(self, inputs):
        return tf.concat([[1], tf.shape(inputs)[1:]], 0)


@pytest.mark.parametrize("training", [False, True])
def test_a_dropouts_own_call_is_the_one_that_counts(training):
    model = sequence(L.Dense(4), Twice(0.0), L.Dense(3))
    made = tff_algos.from_keras(model, loss=LOSS)
    batch = tff_algos.Batch(X, np.zeros(6, np.int32), np.ones(6, np.float32))
    weights = tuple(map(tf.constant, made.initial_weights))
    found = made.forward(weights, batch, training, tf.zeros([2], tf.int32)).objective
    np.testing.assert_allclose(found, LOSS(batch.y, model(X, training=training)), rtol=1e-6)


def test_a_dropouts_own_call_that_draws_is_refused():
    with pytest.raises(ModelError, match=r"^Layer 'twice.*' uses the stateful operation"):
        tff_algos.from_keras(sequence(L.Dense(4), Twice(0.5), L.Dense(3)), loss=LOSS)


def test_a_dropouts_own_shape_of_noise_counts():
    made = tff_algos.from_keras(sequence(Columns(0.5)), loss=LOSS)
    ones = tff_algos.Batch(np.ones((6, 4), np.float32), np.zeros(6, np.int32), np.ones(6, "f"))
    seen = made.forward((), ones, True, tf.zeros([2], tf.int32)).metrics["loss"][0]
    # Every example loses the same columns.
    assert len(set(np.asarray(seen).tolist())) == 1


def missed(y, outputs):
    hit = tf.argmax(outputs, -1, output_type=tf.int32) == tf.cast(tf.reshape(y, [-1]), tf.int32)
    return 1.0 - tf.cast(hit, tf.float32)


RATES = {"client_learning_rate": 0.1}
WITHOUT_GRADIENT = {
    "loss": (lambda: sequence(L.Dense(3)), missed),
    "model": (lambda: sequence(L.Dense(3), L.Lambda(tf.round)), LOSS),
}


@pytest.mark.parametrize("runtime", ["per_client", "vectorized", "tff"])
@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_a_loss_without_a_gradient_is_refused(name, runtime):
    """`fit` raises "No gradients provided for any variable"."""
    make, loss = WITHOUT_GRADIENT[name]
    process = tff_algos.build("fedavg", tff_algos.from_keras(make(), loss=loss), **RATES)
    data = tff_algos.batch_client(X, np.arange(6, dtype=np.int32) % 3, batch_size=6)
    with (
        runtimes.installed(runtime),
        pytest.raises(ModelError, match=r"^The loss has no gradient with respect to any") as e,
    ):
        bound = runtimes.bind(process)
        bound.next(bound.initialize(), [data])
    assert "\n" not in str(e.value)


class PartlyUsed(Listed):
    """One of its weights has no effect."""

    def build(self, shape):
        super().build(shape)
        self.unused = self.add_weight("unused", shape=(2,))

    def call(self, x, training=None):
        outputs = x @ self.a
        return outputs if training else tf.round(outputs)


@pytest.mark.parametrize("runtime", ["per_client", "vectorized"])
@pytest.mark.parametrize("algorithm", ["fedavg", "qfedavg"])
def test_a_weight_without_an_effect_stays_as_it_is(algorithm, runtime):
    """And outputs may be rounded in inference, as those of some quantised models are."""
    model, y = sequence(PartlyUsed()), np.arange(6, dtype=np.int32) % 3
    made = tff_algos.from_keras(model, loss=LOSS)
    process = tff_algos.build(algorithm, made, **RATES)
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        data = tff_algos.batch_client(X, y, batch_size=6)
        found = bound.next(bound.initialize(), [data]).state.weights
    np.testing.assert_array_equal(found[1], made.initial_weights[1])
    if algorithm == "fedavg":
        model.compile(K.optimizers.SGD(0.1), LOSS)
        model.fit(X, y, batch_size=6, verbose=0)
        np.testing.assert_allclose(found[0], model.get_weights()[0], rtol=1e-5, atol=1e-6)


FACTOR = tf.Variable(2.0)


def scaled_by(factor):
    def loss(y, outputs):
        values = K.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
        return factor(values) * values

    return loss


class InPython(L.Layer):
    def call(self, x):
        return tf.ensure_shape(tf.numpy_function(np.copy, [x], tf.float32, stateful=False), x.shape)


def in_python(values):
    return tf.reshape(tf.py_function(lambda v: v + 1, [values], tf.float32), tf.shape(values))


@pytest.mark.parametrize(
    ("loss", "layers", "says"),
    [
        (scaled_by(lambda values: FACTOR), [], "reads a tensor, .* Make it a NumPy array"),
        (scaled_by(in_python), [], "calls Python .* write it with TensorFlow"),
        (LOSS, [InPython()], "calls Python .* write it with TensorFlow"),
    ],
    ids=["variable", "loss in python", "layer in python"],
)
def test_what_tffs_computations_cannot_hold_is_refused_there(loss, layers, says):
    """And trains in `per_client`."""
    model = tff_algos.from_keras(sequence(*layers, L.Dense(3)), loss=loss)
    data = tff_algos.batch_client(X, np.arange(6, dtype=np.int32) % 3, batch_size=6)

    def trained(runtime):
        process = tff_algos.build("fedavg", model, client_learning_rate=0.1)
        with runtimes.installed(runtime):
            bound = runtimes.bind(process)
            return bound.next(bound.initialize(), [data]).state.weights

    assert all(np.all(np.isfinite(w)) for w in trained("per_client"))
    with pytest.raises(ModelError, match=says) as e:
        trained("tff")
    assert "\n" not in str(e.value)


CLASS_WEIGHTS = {"few": [1.0, 2.0, 3.0], "many": np.arange(300.0)}


@pytest.mark.parametrize("runtime", ["per_client", "vectorized"])
@pytest.mark.parametrize("kind", CLASS_WEIGHTS)
def test_a_loss_may_hold_a_tensor(tmp_path, runtime, kind):
    users = np.repeat(np.arange(4), 6).astype(str)
    x, y = RNG.normal(size=(24, 4)).astype(np.float32), np.arange(24) % 3

    def ended(weights):
        def loss(y, outputs):
            values = K.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)
            return values * tf.gather(weights, tf.cast(y, tf.int32))

        task = tasks.from_arrays(
            x,
            y,
            users,
            model=lambda seed: sequence(L.Dense(3, kernel_initializer="ones")),
            loss=loss,
            target_type="category",
            name="own",
        )
        return simulation.run(
            task=task,
            algorithm="fedavg",
            total_rounds=2,
            clients_per_round=2,
            client_batch_size=3,
            client_learning_rate=0.1,
            runtime=runtime,
            root_output_dir=str(tmp_path / type(weights).__name__),
            progress=False,
        ).weights

    numbers = np.asarray(CLASS_WEIGHTS[kind], np.float32)
    for found, expected in zip(ended(tf.constant(numbers)), ended(numbers), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_numbers_that_a_layer_checks_change_nothing():
    losses = []
    for check in (lambda x: tf.debugging.check_numerics(x, "x"), tf.identity):
        tf.keras.utils.set_random_seed(1)
        model = tff_algos.from_keras(sequence(L.Dense(3), L.Lambda(check)), loss=LOSS)
        process = tff_algos.build("fedavg", model, client_learning_rate=0.1)
        client = tff_algos.batch_client(X, np.arange(6) % 3, batch_size=3)
        losses.append(process.next(process.initialize(), [client]).metrics["loss"])
    assert losses[0] == losses[1]


def test_checks_of_all_graphs_are_refused():
    """TFF's worker ended a round with a long error: it has no such operation."""
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(ModelError, match=r"call tf\.debugging\.disable_check_numerics before"):
            tff_algos.from_keras(sequence(L.Dense(3)), loss=LOSS)
    finally:
        tf.debugging.disable_check_numerics()
