"""What users put into Keras models: works in a round of TFF's, or is refused in one line."""

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tests.tff_algos import shared
from tff_algos import client
from tff_algos.client_data import Batch
from tff_algos.keras_bridge import from_keras
from tff_algos.model import ModelError

pytestmark = pytest.mark.slow

L = tf.keras.layers
X = np.random.default_rng(0).normal(2.0, 3.0, (7, 4)).astype(np.float32)
Y = np.array([0, 1, 2, 0, 1, 2, 1], np.int32)
RATE = 0.1


def dense(**options):
    return L.Dense(3, kernel_initializer="ones", **options)


def normalized():
    layer = L.Normalization()
    layer.adapt(X)
    return tf.keras.Sequential([L.InputLayer((4,)), layer, dense()])


def with_constants():
    inputs = tf.keras.Input((4,))
    scaled = 0.5 * inputs + tf.constant([1.0, 2.0, 3.0, 4.0])
    return tf.keras.Model(inputs, dense()(tf.concat([scaled, inputs], axis=1)))


class _Subclassed(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.last = L.Dense(5, kernel_initializer="ones"), dense()

    def call(self, inputs, training=None):
        return self.last(tf.nn.relu(self.first(inputs)))


def subclassed():
    model = _Subclassed()
    model(X)
    return model


def one_step(model, x=X, y=Y, runtime="tff", padding=0, clients=1):
    """The weights after a round of clients alike that take one step on all examples."""
    process = tff_algos.build("fedavg", model, client_learning_rate=RATE)
    data = tff_algos.batch_client(x, y, batch_size=len(x) + padding, shuffle=False)
    with shared.installed(runtime):
        bound = runtimes.bind(process)
        return bound.next(bound.initialize(), [data] * clients).state.weights


def step_of_keras(keras_model, loss, x=X, y=Y):
    with tf.GradientTape() as tape:
        value = loss(y, keras_model(x, training=True))
    variables = keras_model.trainable_variables
    gradient = tape.gradient(value, variables, unconnected_gradients="zero")
    pairs = zip(variables, map(tf.convert_to_tensor, gradient), strict=True)
    return [v.numpy() - RATE * g.numpy() for v, g in pairs]


@pytest.mark.quick_cases("normalized-vectorized", "subclassed-tff", "with_constants-tff")
@pytest.mark.parametrize("runtime", ["tff", "vectorized"])
@pytest.mark.parametrize("make", [normalized, with_constants, subclassed])
def test_models_train_as_in_keras(make, runtime):
    keras_model = make()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = tf.TensorSpec([None, 4]) if make is subclassed else None
    got = one_step(from_keras(keras_model, loss=loss, x_spec=spec), runtime=runtime)
    for a, b in zip(got, step_of_keras(keras_model, loss), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


LOSSES = {
    "mse": ("mse", tf.keras.losses.MeanSquaredError()),
    "class": (tf.keras.losses.MeanAbsoluteError, tf.keras.losses.MeanAbsoluteError()),
    "summed": (
        tf.keras.losses.MeanSquaredError(reduction="sum"),
        tf.keras.losses.MeanSquaredError(reduction="sum"),
    ),
    "function": (tf.keras.losses.mean_squared_error, tf.keras.losses.MeanSquaredError()),
}


@pytest.mark.quick_cases("summed", "function")
@pytest.mark.parametrize("kind", LOSSES)
def test_regression_without_a_spec_of_targets(kind):
    """Float64 targets, which NumPy makes, become the model's."""
    keras_model = tf.keras.Sequential([L.InputLayer((4,)), dense()])
    given, loss = LOSSES[kind]
    model = from_keras(keras_model, loss=given)
    assert model.y_spec == tf.TensorSpec([None, 3], tf.float32)
    y = np.random.default_rng(1).normal(size=(7, 3))
    got = one_step(model, X.astype(np.float64), y)
    for a, b in zip(got, step_of_keras(keras_model, loss, y=y.astype(np.float32)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def _one_number():
    return tf.keras.Sequential([L.InputLayer((4,)), L.Dense(1, activation="sigmoid")])


def _evaluated(model, x, y, padding=2):
    """Returns loss and metrics of a batch with some padding, and its gradient."""
    mask = np.ones(len(x) + padding, np.float32)
    mask[len(x) :] = 0
    filled = [np.concatenate([a, np.ones_like(a[:1]).repeat(padding, 0)]) for a in (x, y)]
    batch = Batch(*map(tf.constant, [*filled, mask]))
    weights = [tf.constant(w) for w in model.initial_weights]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        forward = model.forward(weights, batch, True, tf.zeros([2], tf.int32))
    means = [tf.reduce_sum(v) / tf.reduce_sum(w) for v, w in forward.metrics.values()]
    np.testing.assert_allclose(forward.objective, means[0], rtol=1e-6)
    return means, list(map(tf.convert_to_tensor, tape.gradient(forward.objective, weights)))


@pytest.mark.parametrize(
    "loss",
    ["mse", tf.keras.losses.mean_absolute_error, "binary_crossentropy", tf.keras.losses.Huber()],
    ids=["name", "function", "crossentropy", "object"],
)
def test_a_number_an_example_is_compared_with_its_own_target(loss):
    """Targets `[batch]` of outputs `[batch, 1]`, which a compiled model of Keras's takes."""
    keras_model, y = _one_number(), np.array([1, 0, 0, 1, 1, 0, 1], np.float32)
    metrics = ["binary_accuracy", tf.keras.metrics.MeanAbsoluteError(name="mae")]
    keras_model.compile(loss=loss, metrics=metrics)
    wanted = keras_model.evaluate(X, y, batch_size=len(X), verbose=0)
    model = from_keras(keras_model, loss=loss, metrics=metrics, y_spec=tf.TensorSpec([None]))
    np.testing.assert_allclose(_evaluated(model, X, y)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("ignored", [None, 3])
def test_what_keras_masks_weighs_nothing_in_its_losses(ignored, policy):
    lengths = np.array([[5], [2], [0], [3]])
    tokens = np.random.default_rng(0).integers(1, 6, (4, 5)) * (np.arange(5) < lengths)
    tokens = tokens.astype(np.int32)
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        layers = [L.InputLayer((5,), dtype=tf.int32), L.Embedding(6, 4, mask_zero=True), L.Dense(6)]
        keras_model = tf.keras.Sequential(layers)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)
    metrics = ["sparse_categorical_accuracy"]
    model = from_keras(keras_model, loss=loss, metrics=metrics)
    (value, accuracy), (_, kernel, _) = _evaluated(model, tokens, tokens)

    counted, real = (tokens > 0) & (tokens != ignored), tokens > 0
    logits = tf.cast(keras_model(tokens), tf.float32)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens, logits).numpy()
    digits = 1e-5 if policy == "float32" else 1e-2
    np.testing.assert_allclose(value, each[counted].mean(), rtol=digits)
    hits = logits.numpy().argmax(-1) == tokens
    np.testing.assert_allclose(accuracy, hits[real].mean(), rtol=1e-6)
    errors = (tf.nn.softmax(logits) - tf.one_hot(tokens, 6)).numpy() * counted[..., None]
    embedded = keras_model.layers[0](tokens).numpy().astype(np.float32)
    expected = np.einsum("bti,btj->ij", embedded, errors) / counted.sum()
    np.testing.assert_allclose(kernel, expected, atol=digits * np.abs(expected).max())


@pytest.mark.parametrize(
    "loss",
    [tf.keras.losses.SparseCategoricalCrossentropy(), tf.keras.losses.BinaryCrossentropy()],
    ids=["softmax", "sigmoid"],
)
def test_a_softmax_of_16_bits_that_is_0_or_1_trains_as_in_keras(loss):
    """Keras's cross-entropy takes the logits that it finds with the outputs."""
    sparse = isinstance(loss, tf.keras.losses.SparseCategoricalCrossentropy)
    kernel = tf.keras.initializers.Constant(np.arange(12).reshape(4, 3)[:, : 3 if sparse else 1])
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        units, activation = (3, "softmax") if sparse else (1, "sigmoid")
        layer = L.Dense(units, activation, kernel_initializer=kernel)
        keras_model = tf.keras.Sequential([L.InputLayer((4,)), layer])
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    y = Y if sparse else (Y[:, np.newaxis] > 0).astype(np.float32)
    spec = tf.TensorSpec([None, *y.shape[1:]], y.dtype)
    got = one_step(from_keras(keras_model, loss=loss, y_spec=spec), y=y)
    want = step_of_keras(keras_model, loss, y=y)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=2e-3)


def test_a_mask_that_does_not_fit_is_refused():
    layers = [L.InputLayer((5,), dtype=tf.int32), L.Embedding(6, 4, mask_zero=True), L.Dense(1)]
    spec = tf.TensorSpec([None, 5])
    with pytest.raises(ModelError, match=r"have a mask .* targets with as many dimensions"):
        from_keras(tf.keras.Sequential(layers), loss="mse", y_spec=spec)


@pytest.mark.quick_cases("*-float32-tff-10", "logarithm-float32-vectorized-2")
@pytest.mark.parametrize("width", [10, 2])
@pytest.mark.parametrize("runtime", ["tff", "vectorized"])
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(
    "prepare",
    [lambda x: x / tf.reduce_sum(x, -1, keepdims=True), tf.math.log],
    ids=["shares", "logarithm"],
)
def test_models_that_do_not_take_zeros_train_on_padded_batches(prepare, dtype, runtime, width):
    to_float = L.Lambda(lambda x: prepare(tf.cast(x, tf.float32)))
    keras_model = tf.keras.Sequential([L.InputLayer((4,), dtype=dtype), to_float, dense()])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = np.random.default_rng(0).integers(1, 9, (7, 4)).astype(dtype)
    # In one step, in which the second client has two examples only.
    clients = [tff_algos.batch_client(x, Y, batch_size=10, shuffle=False)]
    clients.append(tff_algos.batch_client(x[:2], Y[:2], batch_size=width, shuffle=False))
    process = tff_algos.build(
        "fedavg", from_keras(keras_model, loss=loss), client_learning_rate=RATE
    )
    with shared.installed(runtime):
        bound = runtimes.bind(process)
        after = bound.next(bound.initialize(), clients)
    assert float(after.metrics["clients_dropped"]) == 0
    alone = [step_of_keras(keras_model, loss, x[:n], Y[:n]) for n in (7, 2)]
    for got, first, second in zip(after.state.weights, *alone, strict=True):
        np.testing.assert_allclose(got, (7 * first + 2 * second) / 9, rtol=2e-5, atol=2e-6)


def test_models_that_do_not_take_zeros_train_on_data_sets_padded_within_tff():
    logarithm = L.Lambda(tf.math.log)
    keras_model = tf.keras.Sequential([L.InputLayer((4,)), logarithm, dense()])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = np.random.default_rng(0).uniform(1, 9, (7, 4)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, Y)).batch(5)
    process = tff_algos.build(
        "fedavg", from_keras(keras_model, loss=loss), client_learning_rate=RATE
    )
    taking = tff_algos.from_datasets(process, 5)
    with shared.installed("tff"):
        want = process.next(process.initialize(), [dataset])
        got = taking.next(taking.initialize(), [dataset])
    assert float(got.metrics["clients_dropped"]) == 0
    for one, other in zip(got.state.weights, want.state.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_loss_of_ones_own_has_the_targets_that_it_is_told():
    model = from_keras(_one_number(), loss=regression, y_spec=tf.TensorSpec([None]))
    y = np.linspace(0, 1, len(X), dtype=np.float32)
    wanted = np.mean((y - model.outputs(model.initial_weights, X)[:, 0]) ** 2)
    np.testing.assert_allclose(_evaluated(model, X, y)[0], [wanted], rtol=1e-5)


def test_a_loss_that_does_not_take_every_label_is_taken():
    def of_ranks(y, outputs):
        with tf.control_dependencies([tf.debugging.assert_positive(y)]):
            return outputs[:, 0] * tf.cast(y, tf.float32)

    assert from_keras(_one_number(), loss=of_ranks).y_spec == tf.TensorSpec([None], tf.int32)


@pytest.mark.parametrize("runtime", ["tff", "vectorized"])
def test_targets_without_the_outputs_dimension_of_one(runtime):
    """A compiled model takes targets `[n]` of outputs `[n, 1]`, whole numbers too, as in Keras."""
    keras_model, y = _one_number(), Y % 2
    keras_model.compile(loss="binary_crossentropy", metrics=["binary_accuracy"])
    got = one_step(keras_model, X, y, runtime)
    loss = tf.keras.losses.BinaryCrossentropy()
    for a, b in zip(got, step_of_keras(keras_model, loss, y=y[:, np.newaxis]), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_targets_of_classes():
    keras_model = tf.keras.Sequential([L.InputLayer((4,)), dense(activation="softmax")])
    for loss in ("sparse_categorical_crossentropy", lambda y, outputs: outputs[:, 0]):
        assert from_keras(keras_model, loss=loss).y_spec == tf.TensorSpec([None], tf.int32)


def test_metrics_by_name_and_as_objects():
    kernel = tf.keras.initializers.GlorotUniform(seed=1)  # No two outputs are equal.
    layer = L.Dense(3, activation="softmax", kernel_initializer=kernel)
    keras_model = tf.keras.Sequential([L.InputLayer((4,)), layer])
    metrics = [
        "sparse_categorical_accuracy",
        tf.keras.metrics.SparseTopKCategoricalAccuracy(k=2, name="top_2"),
    ]
    model = from_keras(keras_model, loss="sparse_categorical_crossentropy", metrics=metrics)
    assert model.metric_names == ("loss", "sparse_categorical_accuracy", "top_2")
    outputs = keras_model(X).numpy()
    process = tff_algos.build("fedavg", model, client_learning_rate=0.0)
    data = tff_algos.batch_client(X, Y.astype(np.int64), batch_size=3)
    with shared.installed("tff"):
        got = process.next(process.initialize(), [data]).metrics
    order = np.argsort(-outputs, axis=1)
    assert float(got["sparse_categorical_accuracy"]) == pytest.approx(np.mean(order[:, 0] == Y))
    assert float(got["top_2"]) == pytest.approx(np.mean(np.any(order[:, :2] == Y[:, None], 1)))


def of_policy(name):
    policy = tf.keras.mixed_precision.Policy(name)
    return tf.keras.Sequential([L.InputLayer((4,)), dense(dtype=policy)])


@pytest.mark.quick_cases("mixed_float16-*-tff", "mixed_bfloat16-*-vectorized")
@pytest.mark.parametrize("runtime", ["tff", "vectorized"])
@pytest.mark.parametrize(
    ("policy", "loss_scale", "digits"),
    [("mixed_float16", 1024.0, 2e-3), ("mixed_bfloat16", None, 2e-2)],
)
def test_layers_that_compute_in_16_bits(policy, loss_scale, digits, runtime):
    """The step is float32's to their digits, and weights and what is kept of it are float32."""
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = from_keras(of_policy(policy), loss=loss, loss_scale=loss_scale)
    got, start = one_step(model, runtime=runtime), model.initial_weights
    for a, b, w in zip(got, step_of_keras(of_policy("float32"), loss), start, strict=True):
        assert a.dtype == np.float32 and np.any(a != b)
        np.testing.assert_allclose(a - w, b - w, atol=digits * np.abs(b - w).max())


def _gradients(keras_model, loss_scale, x):
    def loss(y, outputs):
        return 1e-6 * tf.reduce_sum(outputs, -1)

    model = from_keras(keras_model, loss=loss, loss_scale=loss_scale)
    batch = Batch(tf.constant(x), tf.zeros([len(x)], tf.int32), tf.ones([len(x)]))
    weights = [tf.constant(w) for w in model.initial_weights]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        objective = model.forward(weights, batch, True, tf.zeros([2], tf.int32)).objective
    return float(objective), [tf.convert_to_tensor(g) for g in tape.gradient(objective, weights)]


def test_a_loss_scale_keeps_gradients_that_float16_does_not_hold():
    x = np.ones((10, 4), np.float32)  # The gradient of an example's output is 1e-7.
    values = {s: _gradients(of_policy("mixed_float16"), s, x) for s in (1.0, 2.0**15, 2.0**40)}
    for scale, (objective, gradients) in values.items():
        assert objective == values[1.0][0], "the loss itself is not scaled"
        assert all(g.dtype == tf.float32 for g in gradients)
        right = np.allclose(gradients[0], 1e-6, rtol=0.01)
        assert right == (scale == 2.0**15), (scale, gradients)
    assert not np.all(np.isfinite(values[2.0**40][1][1])), "what overflows shows"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("policy", "loss_scale", "digits"),
    [
        ("float32", None, 1e-6),
        ("float32", 1024.0, 1e-6),
        ("mixed_float16", 1024.0, 2e-3),
        ("mixed_bfloat16", None, 2e-2),
    ],
)
def test_the_full_gradient_of_one_minibatch_is_that_of_its_step(
    policy, loss_scale, digits, reduction
):
    """Of inputs so large that float16 does not hold the scaled gradients of all added up."""
    layer = dense(
        dtype=tf.keras.mixed_precision.Policy(policy),
        kernel_regularizer=tf.keras.regularizers.L2(0.1),
    )
    model = from_keras(
        tf.keras.Sequential([L.InputLayer((4,)), layer]),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        loss_scale=loss_scale,
        loss_reduction=reduction,
    )
    x = (X * (60 / np.abs(X).max())).astype(np.float32)
    data = tff_algos.batch_client(x, Y, batch_size=10, shuffle=False)
    batch = Batch(data.x[0], data.y[0], data.mask[0])
    weights = tuple(map(tf.constant, model.initial_weights))
    with tf.GradientTape() as tape:
        tape.watch(weights)
        objective = model.forward(weights, batch, True, tf.zeros([2], tf.int32)).objective
    want = tape.gradient(objective, weights)
    for a, b in zip(client.full_loss(model, weights, data).gradient, want, strict=True):
        np.testing.assert_allclose(a, b, atol=digits * np.abs(b).max())


def test_the_rows_of_an_embedding_have_a_loss_scale():
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        layers = [L.InputLayer((4,), dtype=tf.int32), L.Embedding(5, 3), L.GlobalAveragePooling1D()]
        keras_model = tf.keras.Sequential(layers)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    (gradient,) = _gradients(keras_model, 1024.0, np.array([[0, 1, 1, 3]], np.int32))[1]
    np.testing.assert_allclose(
        gradient, 1e-6 * np.outer([1, 2, 0, 1, 0], np.ones(3)) / 4, rtol=1e-3
    )


def two_outputs():
    inputs = tf.keras.Input((4,))
    return tf.keras.Model(inputs, [dense()(inputs), dense()(inputs)])


def constrained():
    return tf.keras.Sequential([L.InputLayer((4,)), dense(kernel_constraint="non_neg")])


def spectral():
    return tf.keras.Sequential([L.InputLayer((4,)), L.SpectralNormalization(dense())])


def looked_up():
    words = L.IntegerLookup(vocabulary=[1, 2])
    layers = [L.InputLayer((4,), dtype=tf.int64), words, L.Embedding(3, 2), L.Flatten()]
    return tf.keras.Sequential(layers)


def centred(dtype=tf.float32):
    inputs = tf.keras.Input((4,), dtype=dtype)
    x = L.Embedding(3, 2)(inputs) if dtype == tf.int32 else inputs
    return tf.keras.Model(inputs, dense()(L.Flatten()(x - tf.reduce_mean(x, axis=0))))


def regression(y, outputs):
    return tf.square(y - outputs[:, 0])


def broadcast(y, outputs):
    return tf.square(tf.cast(y, tf.float32) - outputs)


@pytest.fixture
def tensor_float_32():
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


@pytest.mark.usefixtures("tensor_float_32")
def test_mixed_examples_are_looked_for_in_full_float32():
    seen, enabled = [], tf.config.experimental.tensor_float_32_execution_enabled

    def loss(y, outputs):
        if tf.executing_eagerly():
            seen.append(enabled())
        return tf.keras.losses.sparse_categorical_crossentropy(y, outputs)

    tff_algos.from_keras(normalized(), loss=loss)
    assert False in seen  # Other checks compare no values.
    assert enabled()


def among_others(y, outputs):
    return tf.nn.softmax(outputs[:, 0] + tf.cast(y, tf.float32))


PLAIN = {"loss": "sparse_categorical_crossentropy"}


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (lambda: of_policy("mixed_float16"), PLAIN, "computes in float16, .* Give .* a loss_scale"),
        (lambda: of_policy("float16"), PLAIN | {"loss_scale": 2.0}, "is float16, .*set_floatx"),
        (lambda: of_policy("float64"), PLAIN, "is float64, .*set_floatx.'float32'"),
        (constrained, PLAIN, "has a constraint, which no method supports"),
        (spectral, PLAIN, "not a pure function of its weights; replace the layer: .*spectral_norm"),
        (looked_up, PLAIN, "Layer 'integer_lookup' reads a table .*; apply it to the data before"),
        (centred, PLAIN, "Model .* mixes the examples of a batch, or .* from the example alone"),
        (normalized, {"loss": among_others}, "^The loss mixes the examples of a batch"),
        (normalized, {**PLAIN, "metrics": {"m": among_others}}, "^Metric 'm' mixes the examples"),
        (lambda: centred(tf.int32), PLAIN, "mixes the examples of a batch"),
        (
            _one_number,
            {"loss": regression},
            r"^The loss does not take targets int32 \[None\] .* such as y_spec=tf.TensorSpec",
        ),
        (
            normalized,
            {**PLAIN, "metrics": {"m": regression}},
            "^Metric 'm' does not take targets int32",
        ),
        (
            _one_number,
            {"loss": broadcast},
            r"^The loss compares .* outputs of all: targets \[None\] and outputs \[None, 1\] are",
        ),
        (
            _one_number,
            {"loss": "mse", "metrics": {"m": regression}},
            "^Metric 'm' compares the target of an example with the outputs of all",
        ),
        (two_outputs, PLAIN, "has 2 outputs; it must have one tensor"),
        (subclassed, PLAIN, "no known input shape; .* x_spec if it is subclassed"),
        (_Subclassed, {**PLAIN, "x_spec": tf.TensorSpec([None, 4])}, "no weights yet; call it"),
        (normalized, {"loss": "msee"}, "loss='msee' is not the name of one of Keras's losses"),
        (normalized, {"loss": 3}, "loss must be a function of .y, outputs., .* found a int"),
        (normalized, {**PLAIN, "metrics": ["acuracy"]}, "Metric 'acuracy' is not the name of"),
        (
            normalized,
            {**PLAIN, "metrics": [tf.keras.metrics.AUC(name="auc")]},
            "Metric 'auc' .AUC. is not a mean over examples",
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_cure(make, options, says):
    with pytest.raises(ModelError, match=says) as e:
        from_keras(make(), **options)
    assert "\n" not in str(e.value)
