"""Every loss and metric of Keras, over kinds of targets: as `fit` and `evaluate` have them."""

import inspect

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import tff_models
from tff_algos.client_data import Batch
from tff_algos.keras_bridge import from_keras
from tff_algos.model import ModelError

pytestmark = pytest.mark.slow

L, LOSSES, METRICS = tf.keras.layers, tf.keras.losses, tf.keras.metrics
SIZE = 7
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(SIZE, 4, 3)).astype(np.float32)
SHARES = tf.nn.softmax(LOGITS).numpy()
CLASSES, YES = RNG.integers(0, 3, (SIZE, 4)), RNG.integers(0, 2, (SIZE, 4, 3))
# Outputs of a model, and targets that people have for them.
KINDS = {
    "one": (SHARES[:, 0, :1], {"n": YES[:, 0, 0], "n1": YES[:, 0, :1]}),
    "flat": (SHARES[:, 0, 0], {"n": YES[:, 0, 0], "n1": YES[:, 0, :1]}),
    "classes": (SHARES[:, 0], {"n": CLASSES[:, 0], "n1": CLASSES[:, :1],
                               "hot": np.eye(3)[CLASSES[:, 0]]}),
    "logits": (LOGITS[:, 0], {"n": CLASSES[:, 0], "hot": np.eye(3)[CLASSES[:, 0]]}),
    "labels": (SHARES[:, 0], {"nk": YES[:, 0]}),
    "numbers": (LOGITS[:, 0], {"nk": LOGITS[:, 1]}),
    "series": (SHARES, {"nt": CLASSES, "nt1": CLASSES[..., None], "hot": np.eye(3)[CLASSES]}),
    "series of one": (SHARES[..., :1], {"nt": YES[..., 0], "nt1": YES[..., :1]}),
}  # fmt: skip
DTYPES = ("int8", "uint8", "int32", "int64", "bool", "float16", "float32", "float64")
CASES = [
    pytest.param(kind, form, dtype, id=f"{kind}-{form}-{dtype}")
    for kind, (_, targets) in KINDS.items()
    for form in targets
    for dtype in (DTYPES if kind != "numbers" else DTYPES[-3:])
]
# Of no mean over examples.
NO_MEANS = {
    *("AUC", "BinaryIoU", "F1Score", "FBetaScore", "FalseNegatives", "FalsePositives", "IoU"),
    *("Mean", "MeanIoU", "MeanRelativeError", "MeanTensor", "OneHotIoU", "OneHotMeanIoU"),
    *("Precision", "PrecisionAtRecall", "R2Score", "Recall", "RecallAtPrecision"),
    *("RootMeanSquaredError", "SensitivityAtSpecificity", "SpecificityAtSensitivity", "Sum"),
    *("TrueNegatives", "TruePositives"),
}
_OF_A_KIND = {"Loss", "LossFunctionWrapper", "Metric", "MeanMetricWrapper"}


def _all_of(module, kind):
    """Returns the objects and functions of a module of Keras's, by name; of aliases the first."""
    found, seen = {}, set()
    for name, value in vars(module).items():
        if name in _OF_A_KIND or name in NO_MEANS or name.startswith("_") or id(value) in seen:
            continue
        seen.add(id(value))
        if inspect.isclass(value) and issubclass(value, kind):
            found[f"{name}()"] = value
        elif inspect.isfunction(value) and name not in ("get", "serialize", "deserialize"):
            found[name] = lambda value=value: value
    return found


OPTIONS = {
    "smoothed": lambda: LOSSES.BinaryCrossentropy(label_smoothing=0.2),
    "smoothed classes": lambda: LOSSES.CategoricalCrossentropy(label_smoothing=0.2),
    "of logits": lambda: LOSSES.CategoricalCrossentropy(from_logits=True, reduction="sum"),
    "sparse of logits": lambda: LOSSES.SparseCategoricalCrossentropy(from_logits=True),
    "yes of logits": lambda: LOSSES.BinaryCrossentropy(from_logits=True),
    "ignoring": lambda: LOSSES.SparseCategoricalCrossentropy(ignore_class=1),
    "delta": lambda: LOSSES.Huber(delta=0.1, reduction="sum"),
    "balanced": lambda: LOSSES.BinaryFocalCrossentropy(apply_class_balancing=True, gamma=1.0),
    "focal": lambda: LOSSES.CategoricalFocalCrossentropy(alpha=[0.1, 0.2, 0.7]),
    "axis 1": lambda: LOSSES.CosineSimilarity(axis=1),
    "crossentropy's axis": lambda: LOSSES.CategoricalCrossentropy(axis=1),
}
ALL_LOSSES = _all_of(LOSSES, LOSSES.Loss) | OPTIONS
ALL_METRICS = {
    **{n.removesuffix("()"): m for n, m in _all_of(METRICS, METRICS.Metric).items()},
    **{name: lambda name=name: name for name in ("accuracy", "acc", "crossentropy", "ce")},
    "threshold": lambda: METRICS.BinaryAccuracy(threshold=0.3),
    "two_of_them": lambda: METRICS.TopKCategoricalAccuracy(k=2),
    "in_float64": lambda: METRICS.MeanSquaredError(dtype="float64"),
    "axis_1": lambda: METRICS.CosineSimilarity(axis=1),
}


def _nothing(y, outputs):
    return tf.zeros([tf.shape(outputs)[0]])


def _model(outputs):
    """A model without weights, whose inputs are the outputs."""
    return tf.keras.Sequential([L.InputLayer(outputs.shape[1:]), L.Activation("linear")])


def _forward(keras_model, outputs, y, **options):
    """What a batch with padding gives."""
    spec = tf.TensorSpec([None, *y.shape[1:]], y.dtype)
    model = from_keras(keras_model, y_spec=spec, **options)
    x, y = (np.concatenate([values, values[:2]]) for values in (outputs, y))
    batch = Batch(x, y, np.float32([1] * SIZE + [0] * 2))
    return model.forward([], batch, False, np.zeros(2, np.int32))


def _or_none(function):
    try:
        return function()
    except Exception:  # What it raises is Keras's.
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.quick_cases(
    "one-n-int64", "flat-n-bool", "classes-n1-uint8", "labels-nk-float64", "series-nt-int64"
)
@pytest.mark.parametrize(("kind", "form", "dtype"), CASES)
def test_every_loss_is_that_of_fit(kind, form, dtype):
    outputs, targets = KINDS[kind]
    y, keras_model = targets[form].astype(dtype), _model(outputs)
    equal = 0
    for name, make in ALL_LOSSES.items():
        keras_model.compile(loss=make())
        want = _or_none(
            lambda: float(keras_model.compiled_loss(tf.constant(y), tf.constant(outputs)))
        )
        if want is None:
            continue
        try:
            got = _forward(keras_model, outputs, y, loss=make()).objective
        except ModelError as e:
            assert "\n" not in str(e)
            # Of outputs [n] most losses are one number for the batch.
            assert kind == "flat", (name, e)
            continue
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)
        equal += 1
    assert kind == "flat" or equal >= 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.quick_cases(
    "one-n1-bool", "classes-n-int64", "logits-hot-int32", "labels-nk-uint8", "series of one-nt-bool"
)
@pytest.mark.parametrize(("kind", "form", "dtype"), CASES)
def test_every_metric_is_that_of_evaluate(kind, form, dtype):
    outputs, targets = KINDS[kind]
    y, keras_model = targets[form].astype(dtype), _model(outputs)
    wanted, refused = {}, {}
    for name, make in ALL_METRICS.items():
        keras_model.compile(metrics=[make()])
        container = keras_model.compiled_metrics

        def measured(container=container):
            container.update_state(tf.constant(y), tf.constant(outputs))
            return float(container.metrics[0].result())

        value = _or_none(measured)
        if value is not None:
            wanted[name] = value
    found = None
    while found is None:
        metrics = {name: ALL_METRICS[name]() for name in wanted if name not in refused}
        try:
            found = _forward(keras_model, outputs, y, loss=_nothing, metrics=metrics).metrics
        except ModelError as e:
            (name,) = (name for name in metrics if f"'{name}'" in str(e) or f'"{name}"' in str(e))
            refused[name] = str(e)
    assert kind == "flat" or not refused
    for name in metrics:
        values, weights = found[name]
        got = np.sum(values) / np.sum(weights)
        np.testing.assert_allclose(got, wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert kind == "flat" or len(metrics) >= 10


def _no_mean(name):
    kind = getattr(METRICS, name)
    needed = {
        "num_classes": 2, "target_class_ids": [1], "normalizer": [1.0], "recall": 0.5,
        "precision": 0.5, "specificity": 0.5, "sensitivity": 0.5,
    }  # fmt: skip
    signature = inspect.signature(kind.__init__).parameters.values()
    return kind(**{p.name: needed[p.name] for p in signature if p.name in needed})


@pytest.mark.parametrize("name", sorted(NO_MEANS & set(dir(METRICS))))
def test_metrics_other_than_means_are_refused(name):
    with pytest.raises(ModelError, match=rf"^Metric 'm' \({name}\) is not a mean .* with Keras"):
        from_keras(_model(SHARES[:, 0]), loss="mse", metrics={"m": _no_mean(name)})


def test_each_metric_of_keras_is_one_or_the_other():
    """A later Keras may have more."""
    for name, kind in vars(METRICS).items():
        if not inspect.isclass(kind) or not issubclass(kind, METRICS.Metric):
            continue
        mean = issubclass(kind, METRICS.MeanMetricWrapper)
        assert mean != (name in NO_MEANS) or name in _OF_A_KIND, name


def _own(y, outputs):
    """As people write them for `compile`, which settles ranks and dtypes."""
    return tf.reduce_mean(tf.square(tf.cast(y, outputs.dtype) - outputs), axis=-1)


@pytest.mark.parametrize("form", ["n", "n1"])
@pytest.mark.parametrize("dtype", ["int64", "float64", "bool"])
def test_functions_of_a_compiled_model_get_what_keras_gives_them(form, dtype):
    outputs, targets = KINDS["one"]
    y, keras_model = targets[form].astype(dtype), _model(outputs)
    keras_model.compile(loss="mse", metrics=[_own, {"activation": "mae"}["activation"]])
    want = keras_model.evaluate(outputs, y, verbose=0)
    model = tff_models.as_model(keras_model)
    assert model.metric_names == ("loss", "_own", "mae")
    batch = Batch(outputs, y.reshape(-1, 1).astype(np.float32), np.ones(SIZE, np.float32))
    found = model.forward([], batch, False, np.zeros(2, np.int32)).metrics
    got = [np.sum(values) / np.sum(weights) for values, weights in found.values()]
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("loss", [["mse"], {"activation": "mse"}, [LOSSES.MeanSquaredError()]])
def test_the_only_loss_of_a_list_is_the_loss(loss):
    outputs, targets = KINDS["numbers"]
    keras_model = _model(outputs)
    keras_model.layers[-1]._name = "activation"
    keras_model.compile(loss=loss, metrics=[["mae"]])
    model = tff_models.as_model(keras_model)
    batch = Batch(outputs, targets["nk"], np.ones(SIZE, np.float32))
    forward = model.forward([], batch, False, np.zeros(2, np.int32))
    np.testing.assert_allclose(forward.objective, np.mean((outputs - targets["nk"]) ** 2), 1e-5)
    assert model.metric_names == ("loss", "mae")


@pytest.mark.parametrize("own", [False, True])
def test_a_mask_of_the_outputs_counts_in_every_loss_and_metric(own):
    """In losses of one's own, too, unless they return weights."""
    tokens = np.array([[1, 2, 0], [3, 0, 0], [2, 3, 1]], np.int32)
    y = RNG.normal(size=(3, 3, 1)).astype(np.float32)
    layers = [L.InputLayer((3,), dtype=tf.int32), L.Embedding(4, 2, mask_zero=True), L.Dense(1)]
    keras_model = tf.keras.Sequential(layers)
    loss, metric = (_own, lambda y, p: tf.abs(y - p)) if own else ("mse", "mae")
    keras_model.compile(loss=loss, metrics=[metric])
    want = keras_model.evaluate(tokens, y, verbose=0)
    spec = tf.TensorSpec([None, 3, 1])
    model = from_keras(keras_model, loss=loss, metrics={"m": metric}, y_spec=spec)
    batch = Batch(tokens, y, np.ones(3, np.float32))
    weights = keras_model.get_weights()
    found = model.forward(weights, batch, False, np.zeros(2, np.int32)).metrics
    got = [np.sum(values) / np.sum(weights) for values, weights in found.values()]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    weighted = from_keras(
        keras_model, loss=lambda y, p: (_own(y, p), tf.ones_like(y[..., 0])), y_spec=spec
    )
    each = (keras_model(tokens).numpy() - y) ** 2
    forward = weighted.forward(keras_model.get_weights(), batch, False, np.zeros(2, np.int32))
    np.testing.assert_allclose(forward.objective, each.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "is_refused"),
    [
        ("sparse_categorical_crossentropy", True),
        (LOSSES.SparseCategoricalCrossentropy(from_logits=True), True),
        ("mse", False),
        (lambda y, p: tf.abs(y - p[:, 0]), False),
    ],
    ids=["name", "object", "numbers", "own"],
)
def test_class_numbers_with_fractions_are_refused(loss, is_refused):
    """Keras cuts them to whole numbers in silence, for instance those of a scaled column."""
    keras_model = tf.keras.Sequential([L.Dense(1 if loss == "mse" else 3, input_shape=(2,))])
    x, y = RNG.normal(size=(6, 2)).astype(np.float32), np.arange(6, dtype=np.float32) % 3
    spec = tf.TensorSpec([None])
    from_keras(keras_model, loss=loss, y_spec=spec, examples=(x, y))
    y[3] = 0.5
    if not is_refused:
        from_keras(keras_model, loss=loss, y_spec=spec, examples=(x, y))
        return
    with pytest.raises(ModelError, match=r"takes class numbers, but a target is 0\.5"):
        from_keras(keras_model, loss=loss, y_spec=spec, examples=(x, y))


@pytest.mark.parametrize(
    ("loss", "is_told"),
    [
        ("binary_crossentropy", True),
        (tf.keras.losses.BinaryCrossentropy(from_logits=True), True),
        (tf.keras.losses.BinaryFocalCrossentropy(), True),
        (tf.keras.losses.categorical_crossentropy, True),
        ("hinge", False),
        ("mse", False),
    ],
    ids=["name", "object", "focal", "categorical", "hinge", "numbers"],
)
@pytest.mark.parametrize("classes", [(-1, 1), (0, 255)])
def test_targets_of_a_cross_entropy_outside_0_to_1_are_told(loss, is_told, classes):
    """For them Keras's binary cross-entropy falls below 0 in silence."""
    units = 3 if getattr(loss, "__name__", "").startswith("categorical") else 1
    keras_model = tf.keras.Sequential([L.Dense(units, input_shape=(2,))])
    x = RNG.normal(size=(6, 2)).astype(np.float32)
    y = np.array(classes, np.float32)[np.arange(6 * units) % 2].reshape(6, units)
    spec = tf.TensorSpec([None, units])

    def told(targets):
        found = from_keras(keras_model, loss=loss, y_spec=spec, examples=(x, targets)).doubts
        return [text for text in found if "targets from 0 to 1" in text]

    assert not told(np.clip(y, 0, 1))
    outside = next(k for k in classes if not 0 <= k <= 1)
    assert [f"a target is {outside}:" in text for text in told(y)] == [True] * is_told


@pytest.mark.parametrize(
    "metric", ["mae", tf.keras.metrics.mean_absolute_error, tf.keras.metrics.MeanAbsoluteError()]
)
def test_one_metric_needs_no_list(metric):
    """A name was taken letter by letter."""
    keras_model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    one, several = (
        from_keras(keras_model, loss="mse", metrics=given).metric_names
        for given in (metric, [metric])
    )
    assert one == several
