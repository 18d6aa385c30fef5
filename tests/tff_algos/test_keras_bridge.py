"""The bridge from Keras: what it gets right, and what it refuses by name."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.client_data import Batch
from tff_algos.keras_bridge import from_keras
from tff_algos.model import ModelError

L = tf.keras.layers
NO_SEED = np.zeros(2, np.int32)


def cross_entropy(y, outputs):
    return tf.keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)


def sequential(*layers):
    return tf.keras.Sequential([L.InputLayer((6, 6, 2)), *layers, L.Flatten(), L.Dense(3)])


def batch(n=5, padding=0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6, 6, 2)).astype(np.float32)
    y = rng.integers(0, 3, n).astype(np.int32)
    mask = np.ones(n, np.float32)
    if padding:
        mask[-padding:] = 0
    return Batch(x, y, mask)


def other_weights(model):
    return [w * 1.5 + 0.1 for w in model.initial_weights]


def test_forward_uses_the_given_weights_and_leaves_the_model_alone():
    keras_model = sequential(L.Conv2D(4, 3), L.GroupNormalization(2))
    model = from_keras(keras_model, loss=cross_entropy)
    before = keras_model.get_weights()
    given, b = other_weights(model), batch()
    got = model.forward(given, b, training=False, seed=NO_SEED).objective
    for old, new in zip(before, keras_model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert isinstance(keras_model.layers[0].kernel, tf.Variable)
    keras_model.set_weights(given)
    want = tf.reduce_mean(cross_entropy(b.y, keras_model(b.x)))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_padding_weighs_nothing_even_where_its_loss_is_not_finite():
    model = from_keras(sequential(), loss=cross_entropy, metrics={"first": lambda y, o: o[:, 0]})
    b = batch(5, padding=2)
    b.x[-2:] = np.nan
    got = model.forward(other_weights(model), b, training=False, seed=NO_SEED)
    short = Batch(b.x[:3], b.y[:3], b.mask[:3])
    want = model.forward(other_weights(model), short, training=False, seed=NO_SEED)
    np.testing.assert_allclose(got.objective, want.objective, rtol=1e-6)
    for name in ("loss", "first"):
        np.testing.assert_allclose(got.metrics[name][0][:3], want.metrics[name][0], rtol=1e-6)
        np.testing.assert_array_equal(got.metrics[name][0][3:], 0)
        np.testing.assert_array_equal(got.metrics[name][1], [1, 1, 1, 0, 0])


def test_weighted_positions_of_an_example():
    """Loss values [[1, 2], [3, 4]] with weights [[1, 0], [1, 1]]: mean (1 + 3 + 4) / 3."""
    keras_model = tf.keras.Sequential([L.InputLayer((2,)), L.Dense(2, use_bias=False)])

    def loss(y, outputs):
        return y[..., 0] + 0 * outputs, y[..., 1]

    model = from_keras(keras_model, loss=loss, y_spec=tf.TensorSpec([None, 2, 2]))
    y = np.array([[[1, 1], [2, 0]], [[3, 1], [4, 1]]], np.float32)
    b = Batch(np.ones((2, 2), np.float32), y, np.ones(2))
    got = model.forward(model.initial_weights, b, training=False, seed=NO_SEED)
    np.testing.assert_allclose(got.objective, 8 / 3, rtol=1e-6)
    np.testing.assert_allclose(got.metrics["loss"][0], [1, 7])
    np.testing.assert_allclose(got.metrics["loss"][1], [1, 2])


def test_sum_reduction():
    model = from_keras(sequential(), loss=cross_entropy, loss_reduction="sum")
    mean = from_keras(sequential(), loss=cross_entropy)
    b = batch(4, padding=1)
    weights = other_weights(model)
    total = model.forward(weights, b, training=False, seed=NO_SEED).objective
    average = mean.forward(weights, b, training=False, seed=NO_SEED).objective
    np.testing.assert_allclose(total, 3 * average, rtol=1e-6)


def test_weight_regularisers_see_the_given_weights():
    """Keras's own `model.losses` would penalise the variables: here 0.1 * |w|^2 + 0.2 * |b|_1."""
    keras_model = sequential(
        L.Conv2D(4, 3, kernel_regularizer=tf.keras.regularizers.L2(0.1)),
        L.Dense(2, bias_regularizer=tf.keras.regularizers.L1(0.2)),
    )
    model = from_keras(keras_model, loss=cross_entropy)
    plain = from_keras(sequential(L.Conv2D(4, 3), L.Dense(2)), loss=cross_entropy)
    weights, b = other_weights(model), batch()
    penalty = 0.1 * np.sum(weights[0] ** 2) + 0.2 * np.sum(np.abs(weights[3]))
    got = model.forward(weights, b, training=True, seed=NO_SEED)
    want = plain.forward(weights, b, training=True, seed=NO_SEED)
    np.testing.assert_allclose(got.objective, want.objective + penalty, rtol=1e-6)
    np.testing.assert_allclose(got.metrics["loss"][0], want.metrics["loss"][0] + penalty, rtol=1e-5)
    with tf.GradientTape() as tape:
        weights = [tf.constant(w) for w in weights]
        tape.watch(weights)
        objective = model.forward(weights, b, training=True, seed=NO_SEED).objective
    gradient = tape.gradient(objective, weights)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        objective = plain.forward(weights, b, training=True, seed=NO_SEED).objective
    unpenalised = tape.gradient(objective, weights)
    np.testing.assert_allclose(gradient[0] - unpenalised[0], 0.2 * weights[0], atol=1e-5)
    np.testing.assert_allclose(gradient[3] - unpenalised[3], 0.2 * np.sign(weights[3]), atol=1e-5)


class _Noise(L.Layer):
    """Adds noise in training; counts nothing, keeps nothing."""

    def call(self, inputs, training=None, uniform=tf.random.uniform):
        return inputs + uniform(tf.shape(inputs)) if training else inputs


def test_a_layer_that_takes_uniform_draws_from_the_seed():
    def forward(keras_model, seed, training=True):
        model = from_keras(keras_model, loss=lambda y, outputs: outputs[:, 0])
        seed = np.array(seed, np.int32)
        return model.forward(model.initial_weights, batch(), training, seed).metrics["loss"][0]

    keras_model = sequential(_Noise(), _Noise())
    first = forward(keras_model, [1, 2])
    np.testing.assert_array_equal(first, forward(keras_model, [1, 2]))
    for seed in ([1, 3], [2, 2]):
        assert not np.allclose(first, forward(keras_model, seed))
    evaluated = forward(keras_model, [1, 2], training=False)
    np.testing.assert_array_equal(evaluated, forward(keras_model, [7, 8], training=False))
    assert not np.allclose(first, evaluated)


class _Plain(L.Layer):
    """Draws in training and in tests."""

    def call(self, inputs, uniform=tf.random.uniform):
        return inputs + uniform(tf.shape(inputs))


class _Masked(L.Layer):
    def call(self, inputs, scale, mask=None, *, uniform=tf.random.uniform, training=None):
        noise = scale * uniform(tf.shape(inputs)) if training else 0.0
        return inputs + noise * tf.cast(mask[..., tf.newaxis], tf.float32)


@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_takes_uniform_may_have_other_arguments(training):
    inputs = tf.keras.Input((4,), dtype=tf.int32)
    embedded = L.Embedding(5, 3, mask_zero=True, embeddings_initializer="zeros")(inputs)
    outputs = L.Flatten()(_Plain()(_Masked()(embedded, 10.0)))
    seen = []
    model = from_keras(tf.keras.Model(inputs, outputs), loss=lambda y, o: seen.append(o) or o[:, 0])
    tokens = np.array([[1, 2, 0, 0]], np.int32)
    b = Batch(tokens, np.zeros(1, np.int32), np.ones(1, np.float32))
    model.forward(model.initial_weights, b, training, NO_SEED)
    real, masked = seen[-1].numpy().reshape(2, 6)
    assert np.all((masked > 0) & (masked < 1))
    assert np.any(real > 1) == training


def test_two_layers_that_draw_differ():
    keras_model = tf.keras.Sequential([L.InputLayer((6, 6, 2)), _Noise(), _Noise(), L.Flatten()])
    model = from_keras(keras_model, loss=lambda y, outputs: outputs)
    b = batch()
    values = []
    forward = from_keras(
        keras_model, loss=lambda y, outputs: values.append(outputs) or outputs[:, 0]
    ).forward
    forward(model.initial_weights, b, True, np.array([3, 4], np.int32))
    noise = values[-1].numpy() - b.x.reshape(5, -1)
    # The sum of two independent uniform draws has variance 1/6, twice the same one 1/3.
    np.testing.assert_allclose([noise.mean(), noise.var()], [1, 1 / 6], atol=0.06)


@pytest.mark.parametrize("layer", [L.Dropout, L.SpatialDropout2D])
def test_dropout_is_a_function_of_the_seed(layer):
    """Kept entries are scaled by 1 / (1 - rate); the same seed drops the same entries."""
    keras_model = tf.keras.Sequential([L.InputLayer((6, 6, 200)), layer(0.25)])
    keras_model.add(L.GlobalAveragePooling2D())
    keras_model.add(L.Dense(1, kernel_initializer="ones"))
    seen = []
    model = from_keras(keras_model, loss=lambda y, o: seen.append(o) or o[:, 0])
    b = Batch(np.ones((8, 6, 6, 200), np.float32), np.zeros(8, np.int32), np.ones(8, np.float32))

    def run(seed, training=True):
        model.forward(model.initial_weights, b, training, np.array(seed, np.int32))
        return seen.pop().numpy()

    np.testing.assert_array_equal(run([3, 4]), run([3, 4]))
    assert np.any(run([3, 4]) != run([4, 4])) and np.any(run([3, 4]) != run([3, 5]))
    np.testing.assert_allclose(run([3, 4], training=False), 200, rtol=1e-6)
    assert abs(run([3, 4]).mean() / 200 - 1) < 0.05
    if layer is L.SpatialDropout2D:
        # Whole feature maps survive or go, so each output is a count of maps times 1 / 0.75.
        kept = run([3, 4]) * 0.75
        np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)


def test_dropout_layers_of_a_model_draw_differently():
    keras_model = tf.keras.Sequential([L.InputLayer((500,)), L.Dropout(0.5), L.Dropout(0.5)])
    seen = []
    model = from_keras(keras_model, loss=lambda y, o: seen.append(o) or o[:, 0])
    b = Batch(np.ones((1, 500), np.float32), np.zeros(1, np.int32), np.ones(1, np.float32))
    model.forward([], b, training=True, seed=NO_SEED)
    kept = np.mean(seen.pop().numpy() > 0)
    assert 0.18 < kept < 0.32, "a quarter survives two independent halvings"


@pytest.mark.parametrize("layer", [L.Dropout(0.5), _Noise()], ids=["dropout", "uniform"])
def test_a_layer_that_is_used_twice_draws_twice(layer):
    inputs = L.Input((500,))
    keras_model = tf.keras.Model(inputs, L.Concatenate()([layer(inputs), layer(inputs)]))
    seen = []
    model = from_keras(keras_model, loss=lambda y, o: seen.append(o) or o[:, 0])
    b = Batch(np.ones((1, 500), np.float32), np.zeros(1, np.int32), np.ones(1, np.float32))
    for _ in range(2):
        model.forward([], b, training=True, seed=NO_SEED)
    first, again = (o.numpy().reshape(2, 500) for o in seen[-2:])
    np.testing.assert_array_equal(first, again)
    assert abs(np.corrcoef(first)[0, 1]) < 0.2


class _OneByOne(L.Layer):
    """Calls a layer on one example after the other."""

    def __init__(self, layer, over=tf.map_fn):
        super().__init__()
        self.layer, self.over = layer, over

    def call(self, inputs, training=None):
        return self.over(lambda x: self.layer(x, training=training), inputs)


class _Cell(L.Layer):
    """Sums up its inputs; a layer comes before."""

    state_size = 4

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, inputs, states, training=None):
        total = states[0] + self.layer(inputs, training=training)
        return total, [total]


@pytest.mark.parametrize("make", [lambda: L.Dropout(0.5), _Noise], ids=["dropout", "uniform"])
@pytest.mark.parametrize(
    "loop",
    [
        _OneByOne,
        lambda layer: L.RNN(_Cell(layer)),
        lambda layer: _OneByOne(_OneByOne(layer)),
        lambda layer: _OneByOne(layer, tf.vectorized_map),
    ],
    ids=["map_fn", "recurrent", "nested", "vectorized_map"],
)
def test_a_layer_that_draws_within_a_loop_is_refused(loop, make):
    """All steps would draw the same."""
    layer = make()
    keras_model = tf.keras.Sequential([L.InputLayer((5, 4)), loop(layer), L.Flatten(), L.Dense(3)])
    with pytest.raises(ModelError, match=f"^Layer {layer.name!r} draws within a loop"):
        from_keras(keras_model, loss=cross_entropy)


def test_a_cell_that_draws_at_each_unrolled_step_draws_anew():
    cell = _Cell(_Noise())
    keras_model = tf.keras.Sequential(
        [L.InputLayer((5, 4)), L.RNN(cell, return_sequences=True, unroll=True)]
    )
    seen = []
    model = from_keras(keras_model, loss=lambda y, o: seen.append(o) or o[:, 0])
    b = Batch(np.zeros((1, 5, 4), np.float32), np.zeros(1, np.int32), np.ones(1, np.float32))
    model.forward([], b, training=True, seed=NO_SEED)
    steps = np.diff(seen[-1].numpy()[0], axis=0)
    assert len({step.tobytes() for step in steps}) == len(steps)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("layer", [L.Dropout(0.5), _Noise()], ids=["dropout", "uniform"])
def test_whether_a_part_is_in_training_may_be_settled(layer, settled):
    """As Keras has it, whose frozen models are called with `training=False`."""
    inputs = L.Input((500,))
    part = tf.keras.Sequential([L.InputLayer((500,)), layer])
    keras_model = tf.keras.Model(inputs, part(inputs, training=settled))
    seen = []
    model = from_keras(keras_model, loss=lambda y, o: seen.append(o) or o[:, 0])
    b = Batch(np.ones((1, 500), np.float32), np.zeros(1, np.int32), np.ones(1, np.float32))
    for training in (True, False):
        model.forward([], b, training=training, seed=NO_SEED)
        assert np.any(seen.pop() != 1) == settled == np.any(keras_model(b.x, training) != 1)


def test_a_frozen_embedding_is_constant():
    keras_model = tf.keras.Sequential(
        [L.InputLayer((4,), dtype=tf.int32), L.Embedding(5, 2, trainable=False), L.Flatten()]
    )
    keras_model.add(L.Dense(3))
    model = from_keras(keras_model, loss=cross_entropy)
    assert [w.shape for w in model.initial_weights] == [(8, 3), (3,)]
    b = Batch(np.arange(8, dtype=np.int32).reshape(2, 4) % 5, np.array([0, 2]), np.ones(2))
    want = tf.reduce_mean(cross_entropy(b.y, keras_model(b.x)))
    keras_model.layers[0].embeddings.assign_add(tf.ones([5, 2]))
    got = model.forward(model.initial_weights, b, training=True, seed=NO_SEED)
    np.testing.assert_allclose(got.objective, want, rtol=1e-6)


def test_frozen_weights_are_constants():
    keras_model = sequential(L.Conv2D(4, 3, trainable=False), L.BatchNormalization(trainable=False))
    model = from_keras(keras_model, loss=cross_entropy)
    assert len(model.initial_weights) == 2
    b = batch()
    want = tf.reduce_mean(cross_entropy(b.y, keras_model(b.x, training=True)))
    got = model.forward(model.initial_weights, b, training=True, seed=NO_SEED).objective
    np.testing.assert_allclose(got, want, rtol=1e-6)
    keras_model.layers[0].kernel.assign(keras_model.layers[0].kernel * 2)
    again = model.forward(model.initial_weights, b, training=True, seed=NO_SEED).objective
    np.testing.assert_array_equal(got, again)


def test_training_the_keras_model_leaves_the_initial_weights_alone():
    keras_model = tf.keras.Sequential(
        [L.InputLayer((4,), dtype=tf.int32), L.Embedding(5, 2), L.Flatten(), L.Dense(3)]
    )
    model = from_keras(keras_model, loss=cross_entropy)
    before = [w.copy() for w in model.initial_weights]
    keras_model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    keras_model.fit(np.arange(8).reshape(2, 4) % 5, np.array([0, 2]), verbose=0)
    for v in keras_model.trainable_variables:
        v.scatter_sub(tf.IndexedSlices(tf.ones_like(v)[:1], tf.constant([0])))
        v.assign_add(tf.ones_like(v))
    for kept, w, v in zip(
        before, model.initial_weights, keras_model.trainable_variables, strict=True
    ):
        assert np.all(v.numpy() != w)
        np.testing.assert_array_equal(w, kept)
    with pytest.raises(ValueError, match="read-only"):
        model.initial_weights[0][0] = 0


class _Held(L.Layer):
    """A layer whose variable hides in a list, where nothing can be put in its place."""

    def build(self, shape):
        self.hidden = [self.add_weight("hidden", (1,))]

    def call(self, x):
        return x * self.hidden[0]


class _AddsLoss(L.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(x))
        return x


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (lambda: L.BatchNormalization(name="bn"), "'bn'.*GroupNormalization"),
        (lambda: L.GaussianNoise(0.1, name="noise"), "'noise'.*RandomStandardNormal"),
        (lambda: L.AlphaDropout(0.1, name="alpha"), "'alpha'.*no seed controls"),
        (lambda: L.RandomFlip(name="flip"), "'flip'.*stateful"),
        (lambda: L.Dense(2, activity_regularizer="l2", name="act"), "'act'.*activity"),
        (lambda: _AddsLoss(name="adds"), "adds losses"),
        (lambda: _Held(name="held"), "hidden.*attribute"),
    ],
)
def test_refused_by_name(layer, says):
    with pytest.raises(ModelError, match=says):
        from_keras(sequential(layer()), loss=cross_entropy)


def test_refused_shapes():
    with pytest.raises(ModelError, match="no known input shape"):
        from_keras(tf.keras.Sequential([L.Dense(3)]), loss=cross_entropy)
    a, b = L.Input((2,)), L.Input((2,))
    two = tf.keras.Model([a, b], L.Dense(3)(a + b))
    with pytest.raises(ModelError, match="2 inputs"):
        from_keras(two, loss=cross_entropy)
    with pytest.raises(ModelError, match="mean or sum"):
        from_keras(sequential(), loss=cross_entropy, loss_reduction="none")
    with pytest.raises(ModelError, match="named 'loss'"):
        from_keras(sequential(), loss=cross_entropy, metrics={"loss": cross_entropy})


def test_many_threads_may_call_one_model():
    """Each thread puts its own weights in; none may see another's."""
    keras_model = sequential(L.Conv2D(8, 3), L.Dropout(0.5))
    model = from_keras(keras_model, loss=cross_entropy)
    b = batch()

    def run(k):
        weights = [w + 0.01 * k for w in model.initial_weights]
        return [
            float(model.forward(weights, b, True, np.array([k, 0], np.int32)).objective)
            for _ in range(5)
        ]

    alone = [run(k) for k in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(run, range(8)))
    np.testing.assert_array_equal(alone, together)
    assert len({a[0] for a in alone}) == 8


def test_recurrent_and_shared_layers():
    shared = L.Dense(4)
    x = L.Input((5,), dtype=tf.int32)
    h = L.Embedding(7, 4)(x)
    h = shared(shared(h))
    keras_model = tf.keras.Model(x, L.Dense(7)(L.LSTM(3, return_sequences=True)(h)))
    model = from_keras(keras_model, loss=cross_entropy, y_spec=tf.TensorSpec([None, 5], tf.int32))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 7, (3, 5)).astype(np.int32)
    b = Batch(tokens, tokens, np.ones(3, np.float32))
    given = other_weights(model)
    got = model.forward(given, b, training=False, seed=NO_SEED).objective
    keras_model.set_weights(given)
    np.testing.assert_allclose(
        got, tf.reduce_mean(cross_entropy(tokens, keras_model(tokens))), rtol=1e-5
    )
