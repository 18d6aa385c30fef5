"""A user's own task, by `simulation.run`: as Keras has it, or one line that says what to do."""

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from simulation.errors import RunError
from tasks.models import losses
from tasks.task import ArrayFederatedData, DataError, Examples, Task, TaskError
from tests.simulation.one_round import one_round
from tests.tff_algos import shared
from tff_algos import tff_models
from tff_algos.keras_bridge import from_keras
from tff_algos.model import ModelError

pytestmark = pytest.mark.slow

L, K, M = tf.keras.layers, tf.keras.losses, tf.keras.metrics
RNG = np.random.default_rng(2)
X = RNG.normal(size=(30, 3)).astype(np.float32)
ROWS = [np.arange(4), np.arange(4, 30)]
RATE = 0.05


def linear(outputs=1, activation=None):
    layer = L.Dense(outputs, activation, kernel_initializer="zeros")
    return tf.keras.Sequential([L.InputLayer((3,)), layer])


def task_of(keras_model, y, loss, metrics, test=None, **options):
    train = options.pop("train", None) or ArrayFederatedData(X, y, ROWS)
    name = next(iter(metrics))
    return Task("mine", train, None, test, lambda seed: keras_model, loss, metrics, name, **options)


def run(task, folder, **changes):
    settings = {"client_batch_size": 30, "client_learning_rate": RATE, "runtime": "tff"}
    return one_round(task, folder, **(settings | changes))


# The reduction of the loss.


class _Focal(K.Loss):
    """As people write them."""

    def call(self, y_true, y_pred):
        return tf.square(y_true - y_pred) ** 2


@pytest.mark.parametrize(
    ("loss", "options", "summed"),
    [
        (K.MeanSquaredError(reduction="sum"), {}, True),
        (K.MeanSquaredError(), {}, False),
        (K.MeanSquaredError(reduction="sum"), {"loss_reduction": "mean"}, False),
        ("mse", {"loss_reduction": "sum"}, True),
        (_Focal(reduction="sum"), {}, True),
    ],
)
def test_the_reduction_of_a_loss_decides_in_a_task(loss, options, summed, tmp_path):
    """One step of each client from zero weights: -2 x y of each example, or -4 x y^3."""
    y = X.sum(1)
    weights = run(task_of(linear(), y, loss, {"mae": "mae"}, **options), tmp_path).weights
    slopes = 4 * y**3 if isinstance(loss, _Focal) else 2 * y
    kernel = 0
    for rows in ROWS:
        step = RATE * slopes[rows] @ X[rows] / (1 if summed else len(rows))
        kernel += len(rows) / 30 * step
    np.testing.assert_allclose(weights[0][:, 0], kernel, rtol=1e-5)


# Targets and tests.

KINDS = {
    "int64": np.int64, "bool": bool, "uint8": np.uint8, "float64": np.float64, "float32": np.float32
}  # fmt: skip


def _assert_measured_as_in_keras(trained, tested, folder):
    keras_model = linear(activation="sigmoid")
    metrics = {"acc": M.BinaryAccuracy(threshold=0.4), "by_shapes": "accuracy", "ce": "ce"}
    task = task_of(keras_model, trained, "binary_crossentropy", metrics, Examples(X, tested))
    result = run(task, folder)
    keras_model.set_weights(result.weights)
    keras_model.compile(loss="binary_crossentropy", metrics=list(metrics.values()))
    want = keras_model.evaluate(X, tested, verbose=0)
    columns = ["eval/loss", *(f"eval/{name}" for name in metrics)]
    got = [result.rounds[column].iloc[-1] for column in columns]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.quick_cases("int64-n", "bool-n1", "float64-n")
@pytest.mark.parametrize("form", ["n", "n1"])
@pytest.mark.parametrize("dtype", KINDS)
def test_labels_of_one_sigmoid(form, dtype, tmp_path):
    y = (X[:, 0] > 0.3).astype(KINDS[dtype])
    y = y if form == "n" else y[:, np.newaxis]
    _assert_measured_as_in_keras(y, y, tmp_path)


@pytest.mark.parametrize("trained", ["row", "column"])
def test_tests_in_a_column_beside_training_in_a_row(trained, tmp_path):
    """And the other way round, as Keras takes them."""
    y = (X[:, 0] > 0.3).astype(np.int64)
    pair = (y, y[:, np.newaxis]) if trained == "row" else (y[:, np.newaxis], y)
    _assert_measured_as_in_keras(*pair, tmp_path)


class _Series:
    """Two clients, the second of which has longer examples."""

    client_ids, sizes = ["a", "b"], np.array([5, 9])

    def __init__(self, longer):
        self._longer = longer

    def examples(self, k):
        x, y = (np.ones((9, 3 + (k if what in self._longer else 0), 1)) for what in "xy")
        return Examples(x[: self.sizes[k]].astype(np.float32), y[: self.sizes[k]])


@pytest.mark.parametrize("longer", ["xy", "x", "y"])
def test_clients_of_unlike_length_are_refused(longer, tmp_path):
    net = tf.keras.Sequential([L.InputLayer((None, 1)), L.Dense(1)])
    task = task_of(net, None, "mse", {"mae": "mae"}, train=_Series(longer), higher_is_better=False)
    says = r"^client b has (inputs|targets) of shape \[4, 1\], and client a of shape \[3, 1\]; pad"
    with pytest.raises(DataError, match=says):
        run(task, tmp_path)


def test_a_model_that_a_method_refuses_is_a_line(tmp_path):
    task = task_of(linear(3), X, "mse", {"mae": "mae"}, higher_is_better=False)
    with pytest.raises(RunError, match="cannot be used: FedCorr needs a model that gives"):
        run(task, tmp_path, algorithm="fedcorr")


@pytest.mark.parametrize("layer", [L.Dense(1, trainable=False), L.Lambda(lambda x: x[:, :1])])
def test_a_model_without_trainable_weights_is_refused(layer, tmp_path):
    keras_model = tf.keras.Sequential([L.InputLayer((3,)), layer])
    task = task_of(keras_model, NUMBERS, "mse", {"mae": "mae"}, higher_is_better=False)
    with pytest.raises(RunError, match="cannot be used: The model has no trainable weights: let"):
        run(task, tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("fedavg", "num_examples"), ("fedavg", "clients_dropped"), ("fedexp", "server_rate")],
)
def test_a_metric_with_the_name_of_a_rounds_number_is_refused(algorithm, name, tmp_path):
    """Its column of training had that other number."""
    task = task_of(linear(), NUMBERS, "mse", {name: "mae"}, higher_is_better=False)
    with pytest.raises(RunError, match=f"Metric '{name}' has the name of .* of {algorithm}"):
        run(task, tmp_path, algorithm=algorithm)


# What is refused, by `from_keras` and in a run.


class _WithCall(K.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return tf.reduce_mean(tf.square(y_pred))


class _EndsInAMean(K.Loss):
    def call(self, y_true, y_pred):
        return tf.reduce_mean(tf.square(y_true - y_pred[:, 0]))


def mean(y, outputs):
    return tf.reduce_mean(tf.square(tf.cast(y, tf.float32) - outputs[:, 0]))


def two_inputs():
    a, b = L.Input((3,)), L.Input((3,))
    return tf.keras.Model([a, b], L.Dense(1)(a + b))


def two_outputs():
    inputs = L.Input((3,))
    return tf.keras.Model(inputs, [L.Dense(1)(inputs), L.Dense(1)(inputs)])


def in_a_row():
    inputs = L.Input((3,))
    return tf.keras.Model(inputs, L.Dense(1)(inputs)[:, 0])


STEPS = tf.Variable(0.0)


def squares(y, outputs):
    return (tf.reshape(y, [-1]) - outputs[:, 0]) ** 2


def drawing(y, outputs):
    return squares(y, outputs + tf.random.normal([1]))


def counting(y, outputs):
    return squares(y, outputs) * STEPS.assign_add(1.0)


def named_output():
    inputs = tf.keras.Input([3])
    return tf.keras.Model(inputs, {"out": L.Dense(1)(inputs)})


NUMBERS, CLASSES = X[:, 0], np.arange(30) % 3
ONE_NUMBER = "gives one number for the whole batch, .* one value per example"
# Model, targets, loss, metrics, what is said.
REFUSED = {
    "loss of one number": (linear, NUMBERS, mean, {}, f"^The loss {ONE_NUMBER}"),
    "loss object of one number": (linear, NUMBERS, _EndsInAMean(), {}, f"^The loss {ONE_NUMBER}"),
    "metric of one number": (linear, NUMBERS, "mse", {"m": mean}, f"^Metric 'm' {ONE_NUMBER}"),
    "outputs in a row": (in_a_row, NUMBERS, "mse", {}, r"model give outputs \[None, 1\]"),
    "mean over examples": (
        linear, NUMBERS, lambda y, p: tf.reduce_mean((y[:, None] - p) ** 2, 0), {},
        r"returns values \[1\] for 5 examples .* one value per example",
    ),
    "cosine over examples": (
        lambda: linear(3), X, K.CosineSimilarity(axis=0), {}, "one value per example"
    ),
    "of all": (linear, NUMBERS, lambda y, p: y - p, {}, "compares .* with the outputs of all"),
    "numbers of classes": (
        lambda: linear(3), NUMBERS, lambda y, p: y - p, {}, "^The loss does not take targets"
    ),
    "no reduction": (linear, NUMBERS, K.Huber(reduction="none"), {}, "'sum_over_batch_size' or"),
    "call": (linear, NUMBERS, _WithCall(), {}, r"overrides __call__.* Override `call"),
    "list": (linear, NUMBERS, ["mse", "mae"], {}, "^loss must be .* found a list"),
    "metric as loss": (linear, NUMBERS, M.MeanSquaredError(), {}, "^loss must be .* found a Mean"),
    "loss as metric": (
        linear, NUMBERS, "mse", {"m": K.MeanSquaredError()}, "is a loss, .* tf.keras.metrics"
    ),
    "class that wants arguments": (
        linear, NUMBERS, "mse", {"m": M.MeanIoU}, "is the class MeanIoU; pass an instance"
    ),
    "AUC": (linear, NUMBERS > 0, "mse", {"m": M.AUC()}, "is not a mean over examples"),
    "AUC by name": (linear, NUMBERS > 0, "mse", {"m": "AUC"}, "is not a mean over examples"),
    "accuracy of values": (
        lambda: linear(3), CLASSES, "sparse_categorical_crossentropy", {"m": M.Accuracy()},
        "^Metric 'm' does not take targets",
    ),
    "a class of one output": (
        lambda: linear(1, "sigmoid"), NUMBERS > 0, "binary_crossentropy",
        {"m": losses.accuracy_of_class(1)}, "the model has one output, and classes need one each",
    ),
    "a class of multi-label": (
        lambda: linear(3, "sigmoid"), (X > 0).astype(int), "binary_crossentropy",
        {"m": losses.accuracy_of_class(1)}, "^Metric 'm' does not take targets",
    ),
    "two words": (linear, NUMBERS, "mse", {"top 5": "mae"}, "'top 5': its name must be of"),
    "no model": (lambda: None, NUMBERS, "mse", {}, "must be a Keras model; found a NoneType"),
    "a layer": (lambda: L.Dense(1), NUMBERS, "mse", {}, "must be a Keras model; found a Dense"),
    "two inputs": (two_inputs, NUMBERS, "mse", {}, "has 2 inputs; .* split that inside"),
    "named output": (
        named_output, NUMBERS, "mse", {},
        "returns its output within a dict; let it return the tensor itself",
    ),
    "loss that draws": (
        linear, NUMBERS, drawing, {}, r"^The loss draws random numbers \(RandomStandardNormal\), "
    ),
    "metric that draws": (
        linear, NUMBERS, "mse", {"fine": "mae", "m": drawing}, "^Metric 'm' draws random numbers"
    ),
    "loss that counts": (
        linear, NUMBERS, counting, {}, r"^The loss changes a variable \(AssignAddVariableOp\), so"
    ),
    "two outputs": (two_outputs, NUMBERS, "mse", {}, "has 2 outputs; .* concatenate them"),
}  # fmt: skip


def test_a_loss_that_is_refused_was_not_called():
    before = STEPS.numpy()
    with pytest.raises(ModelError, match=r"^The loss changes a variable"):
        from_keras(linear(), loss=counting, y_spec=tf.TensorSpec([None]))
    assert before == STEPS.numpy()


@pytest.mark.parametrize("name", REFUSED)
def test_refused_at_build(name):
    make, y, loss, metrics, says = REFUSED[name]
    spec = tf.TensorSpec([None, *y.shape[1:]], y.dtype)
    with pytest.raises(ModelError, match=says) as e:
        from_keras(make(), loss=loss, metrics=metrics, y_spec=spec)
    assert "\n" not in str(e.value)


@pytest.mark.quick_cases("loss of one number", "a class of one output", "two inputs", "list")
@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_a_run(name, tmp_path):
    make, y, loss, metrics, says = REFUSED[name]
    # Of a task that cannot be right, the task itself says so.
    with pytest.raises((RunError, TaskError), match=says.removeprefix("^")) as e:
        run(task_of(make(), y, loss, metrics or {"mae": "mae"}), tmp_path)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (two_outputs, {"loss": ["mse", "mae"]}, "is compiled with 2 losses, .* one tensor"),
        (two_outputs, {"loss": "mse"}, "has 2 outputs; it must have one tensor"),
        (linear, {"loss": None}, "has no loss: compile it"),
        (linear, {"loss": "mse", "weighted_metrics": ["mae"]}, "weighted_metrics=, .* metrics="),
        (linear, {"loss": "mse", "metrics": [M.Precision()]}, "'precision'.* is not a mean"),
        (
            linear,
            {"loss": "mse", "metrics": ["mae", M.MeanAbsoluteError(name="mae")]},
            "^Metrics are named mae, mae: give each its own name",
        ),
    ],
)
def test_compiled_models_that_are_refused(make, options, says):
    keras_model = make()
    keras_model.compile(**options)
    with pytest.raises(ModelError, match=says) as e:
        tff_models.as_model(keras_model)
    assert "\n" not in str(e.value)


def test_one_class_for_each_output_is_asked_of_evaluate_classes(tmp_path):
    y = (NUMBERS > 0).astype(np.int64)
    task = task_of(
        linear(1, "sigmoid"), y, "binary_crossentropy", {"acc": "accuracy"}, Examples(X, y)
    )
    with pytest.raises(RunError, match="the model has one output, and classes need one each"):
        run(task, tmp_path, evaluate_classes=True)


def test_the_metrics_of_tffs_model_other_than_means_are_refused():
    """They were left out without a word."""
    import tensorflow_federated as tff

    model = tff.learning.models.from_keras_model(
        linear(activation="sigmoid"),
        loss=K.BinaryCrossentropy(),
        input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1], tf.int64)),
        metrics=[M.BinaryAccuracy(), M.AUC()],
    )
    with pytest.raises(ModelError, match=r"Metric 'auc.* is not a mean over examples"):
        tff_algos.build("fedavg", model, client_learning_rate=0.1)


@pytest.mark.parametrize("runtime", ["tff", "vectorized"])
@pytest.mark.parametrize("algorithm", ["fedavg", "mimelite"])  # A step, and a pass over all.
def test_a_kernel_of_one_number_in_a_series_trains(algorithm, runtime):
    """TensorFlow loses the shape of its gradient where that of the examples is open."""
    keras_model = tf.keras.Sequential([L.InputLayer((5, 1)), L.Dense(1)])
    keras_model.compile(tf.keras.optimizers.SGD(RATE), "mse")
    x = RNG.normal(size=(6, 5, 1)).astype(np.float32)
    process = tff_algos.build(algorithm, keras_model, client_learning_rate=RATE)
    client = tff_algos.batch_client(x, x**2, batch_size=6, shuffle=False)
    with shared.installed(runtime):
        bound = runtimes.bind(process)
        got = bound.next(bound.initialize(), [client, client]).state.weights
    keras_model.fit(x, x**2, batch_size=6, verbose=0)
    for one, other in zip(got, keras_model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
