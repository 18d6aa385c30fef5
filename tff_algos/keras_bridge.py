"""Keras 2 models as pure functions of their weights.

`functional_model_from_keras` of TFF only works inside TFF computations and hides the model from
`tf.vectorized_map`. Here the given tensors replace the model's variables while it is called.

Some parts of a model would silently go wrong under such a swap. Three of them are corrected: weight
regularisers are computed on the given weights, dropout draws from an explicit seed, and frozen
weights are constants. Everything else raises an error that names the part: writing to a variable,
drawing from a stateful generator, losses added by hand.

A layer that draws random numbers in training takes their source as an argument of its `call`,
`uniform`. That is a function of a shape that returns float32 in [0, 1), and the layer calls it at
most once. Here it draws from an explicit seed; outside the suite its default may be
`tf.random.uniform`. An argument `uniform` with a default that is not a function is the layer's own.

A layer whose `call` takes `real_examples`, with the default `None` or without one, gets bool
`[batch]` there, false for padding. Its outputs for padding are never used, so it may skip that
work.
"""

import collections
import contextlib
import functools
import inspect
import itertools
import operator
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos import purity, random
from tff_algos.client_data import Batch
from tff_algos.model import Forward, Model, ModelError, elementwise
from tff_suite import code_digests, compat, graph_defs, memory
from tff_suite.compat import op_def_registry, ops  # The only list of stateful ops.

autocast_variable = compat.keras_source("mixed_precision.autocast_variable")
compile_utils = compat.keras_source("engine.compile_utils")
losses_utils = compat.keras_source("utils.losses_utils")
LossFunctionWrapper = compat.keras_source("losses").LossFunctionWrapper

# Containers are declared stateful because of what they may hold; what they hold is looked at.
# Reading a variable changes nothing, nor does `tf.debugging.check_numerics`.
_HARMLESS_STATEFUL_OPS = frozenset(
    [
        "StatefulPartitionedCall",
        "While",
        "If",
        "Case",
        "Assert",
        "CheckNumerics",
        "ReadVariableOp",
        "ResourceGather",
        "VarHandleOp",
    ]
)
_SIXTEEN_BITS = (tf.float16, tf.bfloat16)
# Part of the names of operations that draw by the seed.
_DRAW = "draw_by_seed"
# What `fit` and `evaluate` call, and no method does.
_OWN_STEPS = (
    *("fit", "make_train_function", "train_step", "compute_loss", "losses"),
    *("evaluate", "make_test_function", "test_step", "compute_metrics"),
)


@memory.without_collection()
def from_keras(
    keras_model: tf.keras.Model,
    *,
    loss: Callable | str | tf.keras.losses.Loss,
    metrics: Mapping[str, Any] | Sequence[Any] | Callable | str | None = None,
    y_spec: tf.TensorSpec | None = None,
    x_spec: tf.TensorSpec | None = None,
    loss_reduction: str | None = None,
    loss_scale: float | None = None,
    examples: tuple[np.ndarray, np.ndarray] | None = None,
) -> Model:
    """Makes a pure-function model from a built Keras model with one input.

    The Keras model's current weights become the initial weights. The model itself is never changed
    and may be shared between threads. A layer with a true attribute `prepares_inputs` is taken as
    one that prepares the inputs for training, for example by cropping images.

    Args:
      keras_model: A built Keras 2 model with a single input tensor and a single output.
      loss: A Keras loss (its name, function or object), called as `fit` calls it. Or your own
        function, `(y, outputs) -> values [batch, ...]` or `(values, weights)`, which gets targets
        in the shape of `y_spec`. Positions that a Keras mask excludes from the outputs (for example
        padding of an `Embedding` with `mask_zero`) have weight 0, unless the function returns
        weights.
      metrics: Metrics by name, a list of names and objects, or one. Keras metrics are called as
        `evaluate` calls them and must be means over examples; functions are as for `loss`. They are
        reported as weighted means. `"accuracy"` and `"crossentropy"` are resolved by the shapes of
        targets and outputs, as `compile` does.
      y_spec: Spec of a batch of targets. By default it is what a Keras loss expects, and class
        labels, int32 `[None]`, for any other loss. Clients' targets may have or lack a last
        dimension of 1.
      x_spec: Spec of a batch of inputs, for a model that does not know it: a subclassed one that
        was called.
      loss_reduction: `mean` of the loss over a batch's values (weighted, if they have weights), or
        `sum`; by default that of a loss object, and `mean` for any other loss.
      loss_scale: Factor on gradients during backpropagation, for layers that compute in float16,
        where gradients below 6e-8 vanish. The weights' gradients are divided by it again, in
        float32. If a scaled gradient overflows, the client is dropped and reported as dropped.
      examples: A few inputs and targets of the training data, `[n, ...]` each, as varied as
        possible. They are used, next to made-up ones, to test whether the examples of a batch
        influence each other, and whether class numbers are whole.

    Returns:
      A `Model`.

    Raises:
      ModelError: If the model cannot be a pure function of its trainable weights. Also if the value
        of an output, the loss or a metric for one example depends on the rest of the batch. Also if
        the loss or a metric does not take targets of `y_spec`, or class numbers are not whole.
    """
    if compat.is_keras_3(keras_model):
        raise ModelError(compat.KERAS_3)
    if not isinstance(keras_model, tf.keras.Model):
        raise ModelError(f"The model must be a Keras model; found a {type(keras_model).__name__}.")
    # Keras walks through all that the model holds to find them.
    layers = [m for m in keras_model.submodules if isinstance(m, tf.keras.layers.Layer)]
    _take_back_from_graphs([keras_model, *layers])
    x_spec = x_spec or _inputs_of(keras_model)
    if not keras_model.built:
        raise ModelError(f"Model {keras_model.name!r} has no weights yet; call it once.")
    _refuse_own_steps(keras_model)
    _refuse_traced_methods([keras_model, *layers])
    _refuse_weights(keras_model, layers, loss_scale)
    given = _as_compile_finds(loss)
    loss, given_metrics = _elementwise(given), _by_name(metrics)
    metrics = {name: _elementwise_metric(name, metric) for name, metric in given_metrics.items()}
    loss_reduction = _reduction(given, loss_reduction)
    if "loss" in metrics:
        raise ModelError("A metric must not be named 'loss': that is the training loss.")
    graph_def, outputs_spec, mask_spec = _refuse_stateful_ops(keras_model, layers, x_spec)
    y_spec = y_spec or _targets_of(given, outputs_spec)
    if examples is not None and _takes_classes(given):
        _refuse_fractions(examples[1])
    frozen = tuple(v.numpy() for v in keras_model.non_trainable_variables)
    apply = _functional(keras_model, layers, frozen)
    if _has_own_gradients(graph_def, layers):
        _refuse_lost_gradients(keras_model, apply, x_spec, examples)
    functions = {"loss": loss, **metrics}
    of_functions = _refuse_targets(keras_model, y_spec, outputs_spec, mask_spec, functions)
    _refuse_mixed_examples(keras_model, apply, x_spec, y_spec, functions, examples)
    doubts = _doubts(
        {"loss": given, **given_metrics},
        y_spec,
        outputs_spec,
        lambda: _some_outputs(apply, x_spec, examples),
        examples,
    )
    loss_tells = _is_nan_of_nan(loss, y_spec, outputs_spec)

    def forward(
        weights: Any, batch: Batch, training: bool, seed: tf.Tensor, change: Callable | None = None
    ) -> Forward:
        mask = tf.cast(batch.mask, tf.float32)
        outputs, penalty = apply(weights, batch.x, training, seed, change, loss_scale, mask > 0)
        sums, counts = elementwise(loss, batch.y, outputs, mask, differentiated=True)
        total = tf.reduce_sum(sums)
        if loss_reduction == "mean":
            total = tf.math.divide_no_nan(total, tf.reduce_sum(counts))
        if loss_scale:
            total = _with_gradient_times(loss_scale, total)
        values = collections.OrderedDict(loss=(sums + penalty * counts, counts))
        # The largest of outputs that are not numbers is the first, which would hit class 0.
        unknown = tf.math.is_nan(sums)
        if not loss_tells:
            unknown |= tf.reduce_any(tf.math.is_nan(outputs), list(range(1, outputs.shape.rank)))
        for name, fn in metrics.items():
            totals, number = elementwise(fn, batch.y, outputs, mask)
            nan = tf.fill(tf.shape(totals), float("nan"))
            values[name] = tf.where(unknown & (number > 0), nan, totals), number
        return Forward(objective=total + penalty, metrics=values)

    def outputs(weights, x):
        return apply(weights, x, False, tf.zeros([2], tf.int32))[0]

    # Not `v.numpy()`, which copies: a variable whose value is in use elsewhere is not overwritten.
    weights = tuple(np.asarray(v.read_value()) for v in keras_model.trainable_variables)
    return Model(
        weights,
        x_spec,
        y_spec,
        forward,
        outputs,
        ("loss", *metrics),
        forward_on_changed=forward if any(map(_prepares, layers)) else None,
        loss_reduction=loss_reduction,
        loss_scale=loss_scale,
        frozen_weights=frozen,
        calls_python=_calls_python(graph_def) or _calls_python(of_functions),
        doubts=doubts,
    )


def _inputs_of(keras_model: tf.keras.Model) -> tf.TensorSpec:
    """Returns the spec of a batch of a model's inputs."""
    if not keras_model.built or not getattr(keras_model, "inputs", None):
        raise ModelError(
            f"Model {keras_model.name!r} has no known input shape; give it an Input layer, or "
            "from_keras an x_spec if it is subclassed and was called."
        )
    if len(keras_model.inputs) != 1:
        raise ModelError(
            f"Model {keras_model.name!r} has {len(keras_model.inputs)} inputs; it must have one: "
            "join them in one array and split that inside the model."
        )
    x = keras_model.inputs[0]
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)


def _take_back_from_graphs(layers: Sequence[tf.keras.layers.Layer]) -> None:
    """Makes layers valid again that a layer made later in a graph has invalidated.

    TFF's `build_weighted_fed_avg` makes the model in a graph. Keras then puts TF1's classes below
    the classes of all layers of these kinds. It takes them away when a layer is made eagerly.
    """
    changed: set[Any] = {type(layer) for layer in layers if _is_of_graphs(type(layer))}
    if changed:
        # The caller may be in a graph; a new thread is in none.
        thread = threading.Thread(target=lambda: [kind.__new__(kind) for kind in changed])
        thread.start()
        thread.join()


def _is_of_graphs(kind: type) -> bool:
    """Returns whether TF1's classes are below a class of layers."""
    of_keras = (c.__module__ for c in kind.__mro__ if compat.is_of_keras(c))
    return any(name.endswith((".training_v1", ".base_layer_v1")) for name in of_keras)


def _refuse_own_steps(keras_model: tf.keras.Model) -> None:
    """Refuses a model with its own `train_step` or measures, which no method calls.

    They may be those of its class, or set on the model itself.
    """
    kind, usual = type(keras_model), tf.keras.Model
    own = [
        name
        for name in _OWN_STEPS
        if name in vars(keras_model) or getattr(kind, name, None) is not getattr(usual, name, None)
    ]
    if own:
        raise ModelError(
            f"Model {keras_model.name!r} ({kind.__name__}) overrides {own[0]}, which "
            "is never called here: put what it computes into loss= and metrics=, and pass a model "
            "without it, such as tf.keras.Model(model.inputs, model.outputs)."
        )


def _refuse_traced_methods(layers: Sequence[tf.keras.layers.Layer]) -> None:
    """Refuses `@tf.function`: it keeps the weights of its first call, so they would not train."""
    for layer in layers:
        own = (c for c in type(layer).__mro__ if not compat.is_of_keras(c))
        for name, value in itertools.chain.from_iterable(vars(c).items() for c in own):
            if hasattr(value, "get_concrete_function"):
                raise ModelError(
                    f"Layer {layer.name!r} ({type(layer).__name__}) has @tf.function on {name}, "
                    "which would keep the weights of its first call: remove the decorator. Rounds "
                    "are traced without it, too."
                )


def _refuse_weights(
    keras_model: tf.keras.Model,
    layers: Sequence[tf.keras.layers.Layer],
    loss_scale: float | None,
) -> None:
    for layer in layers:
        computes = not isinstance(layer, tf.keras.layers.InputLayer)
        if computes and layer.compute_dtype == "float16" and loss_scale is None:
            raise ModelError(
                f"Layer {layer.name!r} computes in float16, in which gradients vanish. Give "
                "from_keras a loss_scale, such as 2.0**10, or create the model with "
                "tf.keras.mixed_precision's policy 'float32'."
            )
    parts = *keras_model.trainable_variables, *keras_model.non_trainable_variables
    if {id(v) for v in keras_model.weights} - {id(v) for v in parts}:
        raise ModelError(
            f"Model {keras_model.name!r} ({type(keras_model).__name__}) overrides its lists of "
            "variables, so some weights are neither trainable nor frozen. Freeze weights by "
            "`trainable = False` of their layers instead."
        )
    for variable in keras_model.trainable_variables:
        if variable.dtype != tf.float32:
            raise ModelError(
                f"Variable {variable.name!r} of model {keras_model.name!r} is "
                f"{variable.dtype.name}, but methods compute in float32; make the model with "
                "tf.keras.backend.set_floatx('float32')."
            )
        if variable.constraint is not None:
            raise ModelError(
                f"Variable {variable.name!r} of model {keras_model.name!r} has a constraint, which "
                "no method supports; create its layer without one."
            )


def _as_compile_finds(loss: Any) -> Any:
    """Returns a loss's object or function, resolved as `compile` resolves it."""
    if isinstance(loss, str | Mapping):
        try:
            loss = tf.keras.losses.get(loss)
        except ValueError as e:
            raise ModelError(f"loss={loss!r} is not the name of one of Keras's losses.") from e
    loss = _made("loss", loss)
    if isinstance(loss, tf.keras.metrics.Metric) or not callable(loss):
        raise ModelError(
            "loss must be a function of (y, outputs), a Keras loss or its name; found a "
            f"{type(loss).__name__}."
        )
    return loss


def _made(what: str, given: Any) -> Any:
    """Returns `given`, or an object of it if it is a class."""
    if not isinstance(given, type):
        return given
    try:
        return given()
    except TypeError as e:
        raise ModelError(
            f"{what} is the class {given.__name__}; pass an instance, {given.__name__}(...)."
        ) from e


def _elementwise(loss: Callable) -> Callable:
    """Returns the elementwise function of a loss."""
    if not isinstance(loss, tf.keras.losses.Loss):
        if not _is_of_keras(loss):
            return _own(loss)
        loss = LossFunctionWrapper(loss)
    if type(loss).__call__ is not tf.keras.losses.Loss.__call__:
        raise ModelError(
            f"The loss ({type(loss).__name__}) overrides __call__, so its value need not be a mean "
            "or sum over examples. Override `call(y_true, y_pred)` instead."
        )

    def in_fit(y, outputs):
        y, outputs, _ = compile_utils.match_dtype_and_rank(tf.convert_to_tensor(y), outputs, None)
        return _without_masked(loss.call(y, outputs), outputs)  # type: ignore[attr-defined]

    return in_fit


def _own(function: Callable) -> Callable:
    """Returns a user's elementwise function; float targets get the outputs' width, as in `fit`."""

    def own(y, outputs):
        y = tf.convert_to_tensor(y)
        if y.dtype.is_floating and outputs.dtype.is_floating:
            y = tf.cast(y, outputs.dtype)
        values = function(y, outputs)
        return values if isinstance(values, tuple) else _without_masked(values, outputs)

    return own


def _is_of_keras(function: Any) -> bool:
    return compat.is_of_keras(getattr(function, "func", function))  # Of a partial.


def _without_masked(values, outputs):
    """Returns values, or (values, weights) with weight 0 where a Keras mask excludes a position.

    The masks are that of the outputs and that of the values (`ignore_class`).
    """
    masks = [
        m for m in (losses_utils.get_mask(outputs), losses_utils.get_mask(values)) if m is not None
    ]
    if not masks:
        return values
    values = tf.convert_to_tensor(values)
    weights = tf.ones_like(values)
    for mask in masks:
        if values.shape.rank - mask.shape.rank == 1:
            mask = mask[..., tf.newaxis]
        elif mask.shape.rank - values.shape.rank == 1 and mask.shape[-1] == 1:
            mask = mask[..., 0]
        if mask.shape.rank != values.shape.rank:
            raise ModelError(
                f"the outputs have a mask {mask.shape}, but it gives values {values.shape}: give "
                "it targets of as many dimensions as the outputs"
            )
        weights *= tf.cast(mask, values.dtype)
    return values, weights


def _reduction(loss: Any, wanted: str | None) -> str:
    """Returns whether a batch's loss is the mean or the sum of its values."""
    if wanted is None:
        wanted = getattr(loss, "reduction", None)
        if wanted == tf.keras.losses.Reduction.NONE:
            raise ModelError(
                "The loss has reduction='none', which leaves open whether to train on the mean or "
                "on the sum: give it 'sum_over_batch_size' or 'sum', or set loss_reduction."
            )
        wanted = "sum" if wanted == tf.keras.losses.Reduction.SUM else "mean"
    if wanted not in ("mean", "sum"):
        raise ModelError(f"loss_reduction={wanted!r} must be mean or sum.")
    return wanted


def _by_name(metrics: Any) -> Mapping[str, Any]:
    """Returns metrics by name, as they were given."""
    if not isinstance(metrics, Mapping):
        # One metric instead of a list; a name would be taken letter by letter.
        metrics = [metrics] if isinstance(metrics, str) or callable(metrics) else metrics
        metrics = [_made("A metric", m) for m in metrics or ()]
        named: list[tuple[Any, Any]] = [
            (m if isinstance(m, str) else getattr(m, "name", None), m) for m in metrics
        ]
        named = [(name or getattr(m, "__name__", str(m)), m) for name, m in named]
        metrics = dict(named)
        if len(metrics) < len(named):
            raise ModelError(
                f"Metrics are named {', '.join(name for name, _ in named)}: give each its own name."
            )
    for name in metrics:
        if not isinstance(name, str) or not re.fullmatch(r"[\w./>-]+", name, re.ASCII):
            raise ModelError(
                f"Metric {name!r}: its name must be of letters, digits and _ . / > - only, such as "
                "'top_5', since it names a part of TFF's graphs."
            )
    return metrics


# By targets and outputs: for one output, for classes as numbers, for classes one-hot.
_BY_SHAPES = {
    "accuracy": ("binary_accuracy", "sparse_categorical_accuracy", "categorical_accuracy"),
    "crossentropy": (
        "binary_crossentropy",
        "sparse_categorical_crossentropy",
        "categorical_crossentropy",
    ),
}
_BY_SHAPES["acc"], _BY_SHAPES["ce"] = _BY_SHAPES["accuracy"], _BY_SHAPES["crossentropy"]


def _elementwise_metric(name: str, metric: Any) -> Callable:
    if isinstance(metric, str) and metric.lower() in _BY_SHAPES:
        return _by_shapes(_BY_SHAPES[metric.lower()])
    if isinstance(metric, str | Mapping):
        with contextlib.suppress(ValueError):
            metric = tf.keras.metrics.get(metric)
        if isinstance(metric, str | Mapping):  # What some unknown names come back as.
            raise ModelError(
                f"Metric {metric!r} is not the name of one of Keras's metrics, such as "
                "'sparse_categorical_accuracy'."
            )
    metric = _made(f"Metric {name!r}", metric)
    if _is_mean(metric):
        return _in_evaluate(metric._fn, metric._fn_kwargs, metric.dtype)
    if isinstance(metric, tf.keras.metrics.Metric) or not callable(metric):
        raise ModelError(
            f"Metric {name!r} ({type(metric).__name__}) is not a mean over examples, so values "
            "of clients cannot be combined. Pass a function of (y, outputs) that returns a value "
            "or (value, weight) per example, or compute it with Keras on the final weights."
        )
    if isinstance(metric, tf.keras.losses.Loss):
        raise ModelError(
            f"Metric {name!r} ({type(metric).__name__}) is a loss, which Keras averages over "
            "batches; give the metric of its kind in tf.keras.metrics, or its function."
        )
    return _in_evaluate(metric, {}) if _is_of_keras(metric) else _own(metric)


def _is_mean(metric):
    """Returns whether a Keras metric is the mean of a function's values."""
    mean, kind = tf.keras.metrics.MeanMetricWrapper, type(metric)
    return (
        isinstance(metric, mean)
        and not isinstance(metric._fn, tf.keras.losses.Loss)
        and all(getattr(kind, n) is getattr(mean, n) for n in ("update_state", "result"))
    )


def _in_evaluate(
    function: Callable, options: Mapping[str, Any], dtype: str = "float32"
) -> Callable:
    """Returns a function as `MeanMetricWrapper` calls it within `evaluate`."""

    def in_evaluate(y, outputs):
        y, given, _ = compile_utils.match_dtype_and_rank(tf.convert_to_tensor(y), outputs, None)
        y, given = tf.cast(y, dtype), tf.cast(given, dtype)
        given, y = losses_utils.squeeze_or_expand_dimensions(given, y)
        return _without_masked(function(y, given, **options), outputs)

    return in_evaluate


def _by_shapes(names: Sequence[str]) -> Callable:
    binary, sparse, one_hot = (_in_evaluate(getattr(tf.keras.metrics, name), {}) for name in names)

    def resolved(y, outputs):
        y = tf.convert_to_tensor(y)
        last = outputs.shape[-1]
        column = y.shape.rank > 0 and y.shape[-1] == 1 and (last or 0) > 1
        if last == 1:
            return binary(y, outputs)
        return (sparse if y.shape.rank < outputs.shape.rank or column else one_hot)(y, outputs)

    return resolved


def _targets_of(loss: Any, outputs: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of a batch of the targets that a loss expects."""
    of_keras = _is_of_keras(getattr(loss, "fn", loss))
    if not of_keras or _takes_classes(loss):
        positions = outputs.shape[1:-1] if of_keras else []
        return tf.TensorSpec([None, *positions], tf.int32)
    return tf.TensorSpec([None, *outputs.shape[1:]], tf.float32)


def _takes_classes(loss: Any) -> bool:
    """Returns whether a loss is Keras's cross-entropy with class numbers as targets."""
    function = getattr(loss, "fn", loss)
    name = getattr(getattr(function, "func", function), "__name__", "")
    return _is_of_keras(function) and name == "sparse_categorical_crossentropy"


def _refuse_fractions(targets: np.ndarray) -> None:
    """Refuses class numbers that are not whole, such as those of a scaled column."""
    fractions = targets[targets % 1 != 0]
    fractions = fractions[np.isfinite(fractions)]
    if len(fractions):
        raise ModelError(
            f"The loss takes class numbers, but a target is {fractions[0]:g}, which Keras would "
            "cut to a whole number: give whole numbers, or a loss for numbers."
        )


def _options(function: Any, width: int | None) -> tuple[str, Mapping[str, Any]]:
    """Returns the name of a loss or metric of Keras's, and its options; blank for other functions.

    Args:
      function: As given to `from_keras`.
      width: Last dimension of the outputs, by which `"accuracy"` is resolved.
    """
    if isinstance(function, str):
        # One output or several: probabilities of a single class, or of all.
        names = _BY_SHAPES.get(function.lower())
        if names is not None:
            return names[0] if width == 1 else names[2], {}
        function = tf.keras.metrics.get(function)
    function, options = _made("", function), {}
    of_object = isinstance(function, tf.keras.losses.Loss | tf.keras.metrics.Metric)
    if of_object and not compat.is_of_keras(type(function)):
        return "", options  # Its `call` may do anything.
    for inner in ("fn", "_fn", "func"):  # Of a loss, of a metric, and of a partial in one.
        for given in ("_fn_kwargs", "keywords"):
            options |= getattr(function, given, None) or {}
        function = getattr(function, inner, function)
    return getattr(function, "__name__", "") if _is_of_keras(function) else "", options


# Functions of Keras's by what they take, unless it is logits.
_OF_PROBABILITIES = (
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "sparse_categorical_crossentropy",
)
_OF_THRESHOLD = ("binary_accuracy", "binary_matches")


def _some_outputs(
    apply: Callable, x_spec: tf.TensorSpec, examples: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray | None:
    """Returns the finite outputs for examples, or for made-up ones; `None` if there are none."""
    given = _made_up_inputs(x_spec) if examples is None else [examples[0][:32]]
    for x in given:
        outputs = _or_none(
            apply, None, tf.constant(x.astype(x_spec.dtype.as_numpy_dtype)), False, None
        )
        if outputs is not None:
            found = np.asarray(tf.cast(outputs[0], tf.float32))
            found = found[np.isfinite(found)]
            if found.size:
                return found
    return None


def _doubts(
    functions: Mapping[str, Any],
    y_spec: tf.TensorSpec,
    outputs_spec: tf.TensorSpec,
    outputs: Callable[[], np.ndarray | None],
    examples: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[str, ...]:
    """Returns texts about losses and metrics of Keras's that get what they are not made for.

    Keras takes it without a word, so the numbers are what Keras gives.

    Args:
      functions: Losses and metrics by name, as given to `from_keras`.
      y_spec: Batch of targets.
      outputs_spec: Batch of outputs.
      outputs: Function that returns some numbers of it.
      examples: As for `from_keras`.
    """
    target, output = y_spec.shape[1:], outputs_spec.shape[1:]
    width = output[-1] if output.rank else None
    known = {name: _options(function, width) for name, function in functions.items()}
    doubts = []
    taken = [
        name
        for name, (function, options) in known.items()
        if (function in _OF_PROBABILITIES and not options.get("from_logits"))
        or (function in _OF_THRESHOLD and options.get("threshold", 0.5) == 0.5)
    ]
    beyond = _beyond(outputs()) if taken else None
    for name in taken if beyond is not None else ():
        if known[name][0] in _OF_PROBABILITIES:
            doubts.append(
                f"{_what(name)} takes probabilities, but an output of the model is {beyond:.3g}: "
                "set from_logits=True, or end the model with a sigmoid or softmax."
            )
        else:
            doubts.append(
                f"{_what(name)} takes outputs above 0.5 for class 1, but an output of the model is "
                f"{beyond:.3g}: for logits give tf.keras.metrics.BinaryAccuracy(threshold=0.0)."
            )
    loss = known["loss"][0]
    beyond = None
    if loss in _OF_PROBABILITIES and not _takes_classes(functions["loss"]) and examples is not None:
        beyond = _beyond(np.asarray(examples[1]))
    if beyond is not None:
        doubts.append(
            f"The loss takes targets from 0 to 1, but a target is {beyond:.3g}: number the two "
            "classes 0 and 1, or give one number per class."
        )
    if target.rank + 1 == output.rank:
        target = target + [1]  # As Keras does.
    if loss and not _takes_classes(functions["loss"]) and target.rank == output.rank:
        pairs = zip(target, output, strict=True)
        if any(one != other and 1 in (one, other) for one, other in pairs if one and other):
            doubts.append(
                f"The loss compares targets {_shown(y_spec)} with outputs {_shown(outputs_spec)} "
                "by repeating the shorter ones: make their shapes equal if that is not meant."
            )
    return tuple(doubts)


def _beyond(numbers: np.ndarray | None) -> float | None:
    """Returns one of the numbers that is not from 0 to 1, as probabilities are."""
    if numbers is None or numbers.dtype.kind not in "iuf":
        return None
    numbers = numbers[~((numbers >= -1e-3) & (numbers <= 1 + 1e-3)) & np.isfinite(numbers)]
    return float(numbers[0]) if numbers.size else None


def _functional(
    keras_model: tf.keras.Model,
    layers: Sequence[tf.keras.layers.Layer],
    frozen: Sequence[np.ndarray] | None = None,
) -> Callable:
    """Returns `(weights, x, training, seed, change, loss_scale, real) -> (outputs, penalty)`.

    `change` is applied to the outputs of the layers that prepare the inputs. `loss_scale` divides
    the gradient of the outputs with respect to the weights. `real`, bool `[batch]`, lets layers
    that support it skip all other examples. All three are optional. Weights of `None` are the
    model's own variables.

    The penalty is that of the weights' regularisers, including those of frozen weights. Outputs of
    16 bits become float32. If `seed` is `None`, dropout is off and layers that draw in [0, 1) get
    0.5.

    Args:
      keras_model: The model.
      layers: All its layers.
      frozen: Non-trainable weights, which become constants; by default they stay variables.
    """
    held = _held_variables([keras_model, *layers])
    variables = keras_model.trainable_variables
    trainable = [_holders(keras_model, held, v) for v in variables]
    between = _between_layers(variables, layers)
    fixed, constants = [], _constants([keras_model, *layers])
    if frozen is not None:
        others = keras_model.non_trainable_variables
        holders = (_holders(keras_model, held, v) for v in others)
        fixed = list(zip(holders, frozen, strict=True))
        constants += [(a, place, frozen[n]) for a, place, n in _between_layers(others, layers)]
    penalties, fixed_penalty = _weight_penalties(keras_model, [keras_model, *layers])
    drawing = [layer for layer in layers if _draws(layer)]
    preparing = [layer for layer in layers if _prepares(layer)]
    choosing = [layer for layer in layers if _takes(layer, "real_examples", lambda d: d is None)]
    # The swap is visible to every thread that calls the same layers.
    lock = threading.RLock()

    def apply(weights, x, training, seed, change=None, loss_scale=None, real=None):
        swaps = weights is not None
        weights = list(map(tf.convert_to_tensor, weights if swaps else variables))
        scaled = weights
        if loss_scale:
            scaled = [_with_gradient_times(1 / loss_scale, w) for w in weights]
        with lock, contextlib.ExitStack() as stack:
            _take_back_from_graphs([keras_model, *layers])
            for holders, weight in zip(trainable, scaled, strict=True) if swaps else ():
                _swap(stack, holders, weight)
            for arguments, place, number in between if swaps else ():
                _swap_item(stack, arguments, place, scaled[number])
            for holders, value in fixed:
                _swap(stack, holders, tf.constant(value))
            for holder, key, value in constants:
                _swap_item(stack, holder, key, tf.constant(value))
            for place, layer in enumerate(drawing):
                # One for each time that the model calls the layer.
                places = itertools.count(place + 1, len(drawing))
                seeds = (None if seed is None else random.fold_in(seed, layer=p) for p in places)
                _swap(stack, [(layer, "call")], _seeded_call(layer, seeds, training))
            for layer in preparing if change else ():
                _swap(stack, [(layer, "call")], _changed_call(layer.call, change))
            for layer in choosing if real is not None else ():
                _swap(stack, [(layer, "call")], functools.partial(layer.call, real_examples=real))
            outputs = keras_model(x, training=training)
        if getattr(outputs, "dtype", None) in _SIXTEEN_BITS:
            outputs = _in_32_bits(outputs)
        penalty = tf.add_n([tf.constant(fixed_penalty)] + [fn(weights[i]) for i, fn in penalties])
        return outputs, penalty

    return apply


def _in_32_bits(outputs):
    """Returns the outputs as float32, with their mask and the logits of which they are a softmax.

    Keras's cross-entropies use these logits, since a softmax of 16 bits is often exactly 0 or 1.
    """
    result = tf.cast(outputs, tf.float32)
    result._keras_mask = losses_utils.get_mask(outputs)
    if hasattr(outputs, "_keras_logits"):
        result._keras_logits = tf.cast(outputs._keras_logits, tf.float32)
    return result


def _held_variables(layers):
    """Returns the layers and attributes that hold each variable, by the variable's id."""
    held = collections.defaultdict(list)
    for layer in layers:
        for name, value in vars(layer).items():
            if isinstance(value, tf.Variable):
                held[id(value)].append((layer, name))
    return held


def _holders(keras_model, held, variable):
    """Finds the layers and attributes that hold a variable."""
    found = held.get(id(variable))
    if not found:
        raise ModelError(
            f"Variable {variable.name!r} of model {keras_model.name!r} is not an attribute of any "
            "layer, so no other weight can take its place; hold it as `self.<name>` in its layer."
        )
    return found


def _with_gradient_times(factor: float, value: tf.Tensor) -> tf.Tensor:
    """Returns the value, with its gradient multiplied by `factor`."""

    def times(gradient):
        if isinstance(gradient, tf.IndexedSlices):  # Of an embedding: the rows that were read.
            rows, indices = gradient.values * factor, gradient.indices
            return tf.IndexedSlices(rows, indices, gradient.dense_shape)
        return gradient * factor

    return tf.custom_gradient(lambda x: (tf.identity(x), times))(value)


_ABSENT = object()


def _swap(stack, holders, value):
    # Through __dict__, since Keras's __setattr__ would track the tensor.
    for layer, attribute in holders:
        old = layer.__dict__.get(attribute, _ABSENT)
        if isinstance(old, autocast_variable.AutoCastVariable):
            # As Keras does whenever the layer reads it.
            value = tf.cast(value, layer.compute_dtype)

        def restore(layer=layer, attribute=attribute, old=old):
            if old is _ABSENT:
                layer.__dict__.pop(attribute, None)
            else:
                layer.__dict__[attribute] = old

        stack.callback(restore)
        layer.__dict__[attribute] = value


def _constants(layers: Sequence[Any]) -> list[tuple[Any, Any, np.ndarray]]:
    """Returns the tensors that layers hold, as (holder, key, value).

    Examples are the mean of an adapted `Normalization`, or the factor in `0.5 * x` between layers.
    These tensors belong to the process that made them, but a TFF graph accepts only constants.
    """
    found = []
    for layer in layers:
        holders = [layer.__dict__, *(n._flat_arguments for n in layer._inbound_nodes)]
        for holder in holders:
            items = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key, value in items:
                if isinstance(value, ops.EagerTensor):
                    found.append((holder, key, value.numpy()))
    return found


def _between_layers(variables, layers):
    """Returns where weights are arguments between layers, as in `x @ embedding.embeddings`.

    The result is a list of (arguments, place, number of the variable).
    """
    number = {id(v): i for i, v in enumerate(variables)}
    return [
        (node._flat_arguments, place, number[id(value)])
        for layer in layers
        for node in layer._inbound_nodes
        for place, value in enumerate(node._flat_arguments)
        if id(value) in number
    ]


def _swap_item(stack, holder, key, value):
    stack.callback(operator.setitem, holder, key, holder[key])
    holder[key] = value


def _draws(layer):
    return _is_dropout(layer) or _takes(layer, "uniform", callable)


def _is_dropout(layer):
    """Returns whether a layer is one of Keras's dropout; a subclass may have its own `call`."""
    dropout = tf.keras.layers.Dropout
    return isinstance(layer, dropout) and type(layer).call is dropout.call


def _takes(layer, name, may_be_default):
    """Returns whether `call` has this argument, with a default as the suite means it or without."""
    found = inspect.signature(layer.call).parameters.get(name)
    return found is not None and (found.default is found.empty or may_be_default(found.default))


def _prepares(layer):
    return getattr(layer, "prepares_inputs", False)


def _changed_call(call, change):
    def changed(*given, **named):
        return change(call(*given, **named))

    return changed


def _seeded_call(layer, seeds, in_training):
    """Returns a replacement for the layer's `call`."""
    if _is_dropout(layer):
        return functools.partial(_dropout_call, layer, seeds, in_training)
    call, signature = layer.call, inspect.signature(layer.call)

    def seeded(*given, **named):
        bound = signature.bind_partial(*given, **named)
        if "training" in signature.parameters and bound.arguments.get("training") is None:
            bound.arguments["training"] = in_training
        seed = next(seeds)
        uniform = _half if seed is None else functools.partial(_uniform, seed)
        bound.arguments["uniform"] = uniform
        return call(*bound.args, **bound.kwargs)

    return seeded


def _uniform(seed, shape):
    with tf.name_scope(_DRAW):
        return random.uniform(shape, seed)


def _half(shape):
    return tf.fill(shape, 0.5)


def _dropout_call(layer, seeds, in_training, inputs, training=None):
    # Who makes a model may have settled it for a part of it, `base(x, training=False)`.
    training = in_training if training is None else training
    if not training or layer.rate == 0:
        return tf.identity(inputs)
    seed = next(seeds)
    if seed is None:
        return tf.identity(inputs)
    # `None`, unless the layer or its kind gives another shape than the inputs'.
    noise_shape = layer._get_noise_shape(inputs)
    with tf.name_scope(_DRAW):
        return random.dropout(inputs, layer.rate, seed, noise_shape)


def _weight_penalties(keras_model, layers):
    """Returns (index of the trainable weight, regulariser) pairs, and the penalty of the others.

    Refuses other added losses.
    """
    index = {id(v): i for i, v in enumerate(keras_model.trainable_variables)}
    penalties, fixed = [], 0.0
    for layer in layers:
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ModelError(
                f"Layer {layer.name!r} has an activity regulariser, which is not supported; "
                "add the penalty to the loss function."
            )
        for added in getattr(layer, "_callable_losses", []):
            # Keras keeps a weight's regulariser as partial(tag, partial(fn, variable)).
            inner: Any = next(iter(getattr(added, "args", ())), None)
            given = inner.args if isinstance(inner, functools.partial) else ()
            if len(given) != 1 or not isinstance(given[0], tf.Variable) or inner.keywords:
                raise ModelError(
                    f"Layer {layer.name!r} adds a loss that is not a weight regulariser, which is "
                    "not supported; add it to the loss function, or give the weight a regularizer=."
                )
            variable = given[0]
            if id(variable) in index:
                penalties.append((index[id(variable)], inner.func))
            else:
                fixed += float(inner.func(variable))
    return penalties, np.float32(fixed)


def _refuse_stateful_ops(keras_model, layers, x_spec):
    # Non-trainable weights stay variables here, so that an assignment to one shows as such.
    apply, masks, adds_losses = _functional(keras_model, layers), [], []
    weight_specs = [tf.TensorSpec(v.shape, v.dtype) for v in keras_model.trainable_variables]

    def called(weights, x, seed):
        found = []
        for training in (True, False):  # A layer may do something in inference only.
            outputs, _ = apply(weights, x, training, seed)
            found.append(outputs)
            masks.append(losses_utils.get_mask(outputs))
            # Those of a functional model's own graph, and those of the call.
            for layer in (keras_model, *layers):
                adds_losses.extend(getattr(layer, "_losses", ()))
                adds_losses.extend(getattr(layer, "_eager_losses", ()))
        return found

    try:
        traced = tf.function(called, autograph=False).get_concrete_function(
            weight_specs, x_spec, tf.TensorSpec([2], tf.int32)
        )
    except Exception as e:  # It is the user's, and may raise anything.
        # Keras puts the arguments of the call behind what went wrong.
        told = " ".join(str(e).partition("Call arguments received")[0].split())[:300]
        tensors_value = tf.errors.OperatorNotAllowedInGraphError, AttributeError
        if isinstance(e, tensors_value) and compat.is_about_a_tensors_value(e):
            raise ModelError(
                f"Model {keras_model.name!r} needs a tensor's value while it is traced, so it is "
                f"not a pure function of its weights; replace the layer: {told}"
            ) from e
        raise ModelError(
            f"Model {keras_model.name!r} fails when tensors take the place of its variables; let "
            f"`call` use weights as tensors, without value(), numpy() or a tape on them: {told}"
        ) from e
    for outputs in traced.structured_outputs:
        if not isinstance(outputs, tf.TensorSpec) and not tf.is_tensor(outputs):
            number = len(tf.nest.flatten(outputs))
            if number == 1:
                raise ModelError(
                    f"Model {keras_model.name!r} returns its output within a "
                    f"{type(outputs).__name__}; let it return the tensor itself."
                )
            raise ModelError(
                f"Model {keras_model.name!r} has {number} outputs; it must have one tensor, which "
                "the loss is a function of: concatenate them."
            )
    if adds_losses:
        raise ModelError(
            f"Model {keras_model.name!r} adds losses while it is called, which is not supported; "
            "add them to the loss function."
        )
    _refuse_read_weights(keras_model, traced, "The model")
    names, graph_def = {layer.name for layer in layers}, traced.graph.as_graph_def()
    refuse_stateful_ops(traced.graph, names)
    _refuse_draws_in_loops(graph_def, names)
    outputs, mask = traced.structured_outputs[0], masks[0]
    mask_spec = None if mask is None else tf.TensorSpec(mask.shape, mask.dtype)
    return graph_def, tf.TensorSpec(outputs.shape, outputs.dtype), mask_spec


def _has_own_gradients(graph_def, layers):
    """Returns whether code of the user defines gradients; that of others passes weights to them."""
    names = {layer.name for layer in layers}
    own = {layer.name for layer in layers if not _is_of_others(type(layer))}
    for node in graph_defs.nodes(graph_def):
        # TensorFlow leaves the gradient's name at an operation without effect.
        if node.attr["_gradient_op_type"].s.startswith(b"CustomGradient"):
            path = [part for part in node.name.split("/") if part in names]
            if not path or path[-1] in own:
                return True
    return False


def _is_of_others(kind):
    """Returns whether a layer's class is Keras's or the suite's, and holds no user's code."""
    if compat.is_of_keras(kind):
        return not issubclass(kind, tf.keras.layers.Lambda)
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return code_digests.is_suites(kind.__module__, path)


def _refuse_draws_in_loops(graph_def, names):
    """Refuses layers that draw by the seed within a loop, whose steps would all draw the same."""
    for node in _nodes_in_loops(graph_def):
        path = node.name.split("/")
        if _DRAW in path:
            layer = [node.name, *(part for part in path if part in names)][-1]
            raise ModelError(
                f"Layer {layer!r} draws within a loop of TensorFlow (tf.map_fn, tf.while_loop, "
                "a recurrent layer), whose steps would all draw the same numbers. Draw before "
                "the loop, or set unroll=True of a recurrent layer."
            )


def _nodes_in_loops(graph_def):
    bodies = {f.signature.name: f.node_def for f in graph_def.library.function}
    called, seen = [], set()
    for node in graph_defs.nodes(graph_def):
        if "While" in node.op:
            called.append(node.attr["body"].func.name)
        # Of `tf.vectorized_map`, which leaves no loop.
        if any(part.startswith("loop_body") for part in node.name.split("/")):
            yield node
    while called:
        body = called.pop()
        if body not in seen:
            seen.add(body)
            yield from bodies[body]
            attributes = (a for node in bodies[body] for a in node.attr.values())
            called += [a.func.name for a in attributes if a.func.name in bodies]


def _calls_python(graph_def):
    return any("PyFunc" in node.op for node in graph_defs.nodes(graph_def))


@contextlib.contextmanager
def _without_tensor_float_32():
    """Makes a GPU multiply float32 as such, where values are compared.

    By TensorFlow's default it rounds factors to 11 bits. The kernel that does so depends on the
    size of the batch, so that equal values would seem to differ.
    """
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        yield
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)


@_without_tensor_float_32()
def _refuse_lost_gradients(keras_model, apply, x_spec, examples):
    """Refuses gradients by `tf.custom_gradient` or `tf.recompute_grad` that leave out a weight.

    Such a function finds the variables that it reads, but not the tensors that take their place.
    """
    variables = keras_model.trainable_variables

    # Traced as rounds are: eager code finds more.
    @tf.function(autograph=False)
    def gradients(x, given):
        weights = variables if given is None else given
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, _ = apply(given, x, True, None)
            # Slopes that differ, since those of a softmax cancel.
            slopes = tf.cos(tf.range(tf.size(outputs, tf.int32), dtype=outputs.dtype))
            total = tf.reduce_sum(outputs * tf.reshape(slopes, tf.shape(outputs)))
        found = tape.gradient(total, weights, unconnected_gradients="zero")
        return list(map(tf.convert_to_tensor, found))

    rows = [] if examples is None else [examples[0][:6]]
    for x in itertools.chain(rows, _made_up_inputs(x_spec)):
        x = tf.constant(x.astype(x_spec.dtype.as_numpy_dtype))
        wanted = _or_none(gradients, x, None)
        if wanted is None or not all(np.all(np.isfinite(g)) for g in wanted):
            continue
        tensors = list(map(tf.convert_to_tensor, variables))
        found = _or_none(gradients, x, tensors) or [None] * len(wanted)
        for variable, one, other in zip(variables, wanted, found, strict=True):
            least = 1e-4 * np.max(np.abs(one), initial=0)
            if other is None or not np.allclose(one, other, rtol=1e-3, atol=least):
                raise ModelError(
                    f"Weight {variable.name!r} of model {keras_model.name!r} would not train: "
                    "tf.custom_gradient and tf.recompute_grad find variables only, and weights "
                    "are tensors here. Pass it to their function as an argument."
                )
        return


def _refuse_read_weights(keras_model, traced, what):
    """Refuses a graph that reads a trainable weight itself and not the one that it is given.

    That weight would stay as it is: it would get no gradient, and nothing would tell.
    """
    captured = {id(tensor) for tensor in traced.captured_inputs}
    for variable in keras_model.trainable_variables:
        if id(variable.handle) in captured:
            raise ModelError(
                f"{what} reads the weight {variable.name!r} around its layer, so it would not "
                "train. Read it only as an attribute of a layer, in that layer's `call`."
            )


def _refuse_targets(keras_model, y_spec, outputs_spec, mask_spec, functions):
    """Refuses functions that do not accept such targets or do not return a value per example.

    Args:
      keras_model: The model, whose weights they must not read.
      y_spec: Batch of targets.
      outputs_spec: Batch of outputs.
      mask_spec: Batch of Keras's mask of the outputs; `None` if they have none.
      functions: Losses and metrics by name.

    Returns:
      The definition of their graph.
    """
    targets, outputs = _shown(y_spec), _shown(outputs_spec)

    def refuse(name, error):
        told = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{_what(name)} does not take targets {y_spec.dtype.name} {targets} and outputs "
            f"{outputs_spec.dtype.name} {outputs} ({told}); tell from_keras what the targets are, "
            "such as y_spec=tf.TensorSpec([None], tf.float32), or change y of the Task."
        ) from error

    specs = [s for s in (y_spec, outputs_spec, mask_spec) if s is not None]
    # Sizes of a batch that are no size of an example, too.
    dims = {size for spec in specs for size in spec.shape[1:]}
    sizes = [size for size in (5, 7, 11, 13, 17, 19, 23, 29, 31, 37) if size not in dims][:2]
    traced, shapes = _shapes_of_values(functions, specs, sizes, refuse)
    _refuse_read_weights(keras_model, traced, "The loss or a metric")
    if any(map(_is_impure, graph_defs.nodes(traced.graph.as_graph_def()))):
        _refuse_impure(functions, specs, sizes, refuse)
    for name, (one, other) in shapes.items():
        if not one.rank:
            cure = "it return one value per example, without tf.reduce_mean or with axis=-1"
            if outputs_spec.shape.rank == 1:
                cure = "the model give outputs [None, 1] in place of [None]"
            raise ModelError(
                f"{_what(name)} gives one number for the whole batch, padding included; let {cure}."
            )
        if one[1:] != other[1:]:
            raise ModelError(
                f"{_what(name)} compares the target of an example with the outputs of all: targets "
                f"{targets} and outputs {outputs} are broadcast; make their shapes equal, with "
                "from_keras's y_spec= or inside the function."
            )
        if [one[0], other[0]] != sizes:
            raise ModelError(
                f"{_what(name)} returns values {one.as_list()} for {sizes[0]} examples with "
                f"targets {targets} and outputs {outputs}; it must return one value per example."
            )
    return traced.graph.as_graph_def()


def _is_impure(node):
    """Returns whether a node of a graph draws without a seed, or changes a variable."""
    return purity.is_unseeded(node.op) or "Assign" in node.op


def _refuse_impure(functions, specs, sizes, refuse):
    """Refuses by name a loss or metric that draws or changes a variable; as `_shapes_of_values`."""
    for name, function in functions.items():
        traced, _ = _shapes_of_values({name: function}, specs, sizes, refuse)
        for node in filter(_is_impure, graph_defs.nodes(traced.graph.as_graph_def())):
            does = "changes a variable" if "Assign" in node.op else "draws random numbers"
            raise ModelError(
                f"{_what(name)} {does} ({node.op}), so its values could not be repeated. Compute "
                "them from the targets and outputs alone."
            )


def _is_nan_of_nan(loss: Callable, y_spec: tf.TensorSpec, outputs_spec: tf.TensorSpec) -> bool:
    """Returns whether a loss is NaN for every example with a NaN among its outputs."""
    if not outputs_spec.dtype.is_floating:
        return True
    shape = [4, *(size or 3 for size in outputs_spec.shape[1:])]
    outputs = np.full(shape, 0.5, outputs_spec.dtype.as_numpy_dtype)
    outputs.reshape(4, -1)[[0, 1, 2, 3], [0, 0, -1, -1]] = np.nan
    y = np.zeros([4, *(size or 3 for size in y_spec.shape[1:])], y_spec.dtype.as_numpy_dtype)
    if y_spec.dtype.is_floating or y_spec.dtype.is_integer:
        y[1::2] = 1
    result = _or_none(loss, tf.constant(y), tf.constant(outputs))
    if isinstance(result, tuple):
        result = result[0] * tf.cast(result[1], result[0].dtype)
    if result is None or np.ndim(result) == 0:
        return False
    found = np.isnan(np.asarray(tf.cast(result, tf.float32)))
    return bool(found.reshape(len(found), -1).any(1).all())


def _shapes_of_values(functions, specs, sizes, refuse):
    """Returns a trace of losses and metrics, and the shapes of their values for two sizes by name.

    Args:
      functions: Losses and metrics by name.
      specs: Batches of targets and of outputs, and of the outputs' mask if there is one.
      sizes: Numbers of examples.
      refuse: Called with the name and the error of a function that fails.
    """
    shapes = {}

    # All in one graph: what takes time is to make one.
    @tf.function(autograph=False)
    def trace(*batches):
        for y, outputs, *mask in batches:
            if mask:
                outputs._keras_mask = mask[0]
            for name, function in functions.items():
                try:
                    values = function(y, outputs)
                    values = tf.convert_to_tensor(
                        values[0] if isinstance(values, tuple) else values
                    )
                except Exception as e:  # It is the user's, and may raise anything.
                    refuse(name, e)
                shapes.setdefault(name, []).append(values.shape)

    traced = trace.get_concrete_function(
        *([tf.TensorSpec([n, *s.shape[1:]], s.dtype) for s in specs] for n in (None, *sizes))
    )
    known = {name: found[1:] for name, found in shapes.items() if found[1].rank is not None}
    return traced, known


def _what(name):
    return "The loss" if name == "loss" else f"Metric {name!r}"


def _shown(spec):
    return str(spec.shape.as_list())


@_without_tensor_float_32()
def _refuse_mixed_examples(keras_model, apply, x_spec, y_spec, functions, examples):
    """Refuses functions whose value for an example depends on the rest of the batch.

    The test runs in training mode and in test mode. Dropout is off, since it draws by an example's
    position.

    Args:
      keras_model: The model.
      apply: The model as a function, of `_functional`.
      x_spec: Batch of inputs.
      y_spec: Batch of targets.
      functions: Losses and metrics by name.
      examples: As for `from_keras`.
    """
    weights = keras_model.trainable_variables
    computed_in = {getattr(m, "compute_dtype", None) for m in keras_model.submodules}
    # The size of a batch shows in the rounding, and 16 bits make that large.
    sizes = slice(2) if computed_in & {"float16", "bfloat16"} else slice(None)

    def batches(rows, spec):
        rows = rows.astype(spec.dtype.as_numpy_dtype)
        return [tf.constant(rows[part]) for part in _PARTS[sizes]]

    def look_at(x, *targets):
        """Returns whether the outputs were finite, so that a difference would have shown."""
        finite = True
        for mode, training in (("", False), (", in training,", True)):
            found = [_or_none(apply, weights, b, training, None) for b in batches(x, x_spec)]
            outputs = [f and f[0] for f in found]
            _refuse_unlike(f"Model {keras_model.name!r}{mode}", outputs)
            if any(o is None for o in outputs):
                return False
            finite &= all(np.all(np.isfinite(tf.cast(o, tf.float32))) for o in outputs)
        for y in targets:
            pairs = list(zip(batches(y, y_spec), outputs, strict=True))
            for name, function in functions.items():
                _refuse_unlike(_what(name), [_or_none(function, *pair) for pair in pairs])
        return finite

    if examples is not None and len(examples[1]) > 1:
        look_at(*_mixed_rows(*examples))
    # The first that the model takes.
    any(look_at(x, *_made_up_targets(y_spec)) for x in _made_up_inputs(x_spec))


# Of six examples: the first two beside others, beside other others, the second behind another, and
# the two alone.
_PARTS = ([0, 1, 2, 3], [0, 1, 4, 5], [2, 1, 0], [0, 1])


def _mixed_rows(x, y):
    """Returns a batch of six drawn from two or more examples; targets differ if any do."""
    order = np.argsort(np.asarray(y).reshape(len(y), -1).sum(1), kind="stable")
    rows = order[np.array([0, -1, 1, 2, -2, -3]) % len(order)]
    return np.asarray(x)[rows], np.asarray(y)[rows]


def _made_up_inputs(spec):
    """Yields inputs of six examples each; a model may accept only some of them."""
    rng, shape = np.random.default_rng(0), (6, *(size or 3 for size in spec.shape[1:]))
    if spec.dtype.is_floating:
        yield rng.normal(size=shape)
        yield rng.uniform(0.5, 1.5, shape)  # Of which there is a logarithm.
    elif spec.dtype.is_integer:
        for most in (100, 2):  # A vocabulary may be small.
            yield rng.integers(1, most + 1, shape)
    if spec.dtype.is_integer or spec.dtype.is_bool:
        yield rng.integers(0, 2, shape)


def _made_up_targets(spec):
    """Returns targets of six examples, as two sets: one of two classes, one of a single class."""
    if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
        return ()
    shape = [size or 3 for size in spec.shape[1:]]
    # Not more classes: Keras's hinge losses take 0 for -1 unless a batch has other labels than 0
    # and 1.
    return [
        np.stack([np.full(shape, label) for label in labels])
        for labels in ((0, 1, 1, 1, 0, 0), (0, 0, 0, 0, 0, 0))
    ]


def _or_none(function, *arguments):
    """Returns a function's value, or `None` if it does not accept made-up inputs."""
    try:
        return function(*arguments)
    except Exception:  # It is the user's, and may not take every value.
        return None


def _refuse_unlike(what: str, batches: Sequence[Any]) -> None:
    """Refuses batches that share examples in their first two places but differ in their values.

    Args:
      what: What produced the values, for the message.
      batches: For each of the first `_PARTS` the values, or the values and weights, or `None`.
    """
    if any(b is None for b in batches):
        _refuse_fixed_sizes(what, batches)
        return
    first, *others = (b if isinstance(b, tuple) else (b,) for b in batches)
    for part, other in zip(_PARTS[1:], others, strict=False):
        shared = slice(0 if part[0] == 0 else 1, 2)
        for one, two in zip(first, other, strict=True):
            if not np.ndim(one) or not np.ndim(two):
                continue
            one, two = (np.asarray(tf.cast(v[shared], tf.float64)) for v in (one, two))
            # Beside large values small ones are rounded more.
            most = np.max(np.abs(one), where=np.isfinite(one), initial=0.1)
            if one.shape == two.shape and not np.allclose(
                one, two, rtol=1e-3, atol=1e-4 * most, equal_nan=True
            ):
                raise ModelError(
                    f"{what} mixes the examples of a batch, or draws random numbers: the value of "
                    "one depends on the others, even on padding. Compute it from the example alone."
                )


def _refuse_fixed_sizes(what: str, batches: Sequence[Any]) -> None:
    """Refuses what takes a batch but not some of its examples; arguments as `_refuse_unlike`."""
    parts = list(zip(_PARTS, batches, strict=False))
    for (part, taken), (fewer, other) in itertools.product(parts, repeat=2):
        if taken is not None and other is None and set(fewer) < set(part):
            raise ModelError(
                f"{what} takes {len(part)} examples but not {len(fewer)} of them, and batches are "
                "of any size. Compute every example on its own, without a fixed number of them in "
                "a shape."
            )


def refuse_stateful_ops(graph: tf.Graph, names: Collection[str]) -> None:
    """Refuses operations that change variables or draw from generators without a seed.

    Args:
      graph: Graph of a model.
      names: Names of its layers, for the message.

    Raises:
      ModelError: If the graph has such an operation.
    """
    graph = graph.as_graph_def()
    bodies = {f.signature.name for f in graph.library.function}
    for node in graph_defs.nodes(graph):
        # Keras calls cuDNN's recurrent layers without dropout, so nothing in them is random.
        if node.op in bodies or node.op in _HARMLESS_STATEFUL_OPS or "CudnnRNN" in node.op:
            continue
        if not op_def_registry.get(node.op).is_stateful:
            continue
        if node.op == "CheckNumericsV2":
            raise ModelError(
                "TFF's workers do not have the operations that tf.debugging.enable_check_numerics "
                "adds to every graph: call tf.debugging.disable_check_numerics before. A round's "
                "metric clients_dropped counts clients whose numbers are not finite."
            )
        path = [part for part in node.name.split("/") if part in names]
        layer = path[-1] if path else node.name
        if "Assign" in node.op:
            raise ModelError(
                f"Layer {layer!r} changes a variable while it runs ({node.op}), so the model is "
                "not a function of its trainable weights. Replace the layer (for example "
                "BatchNormalization by GroupNormalization), set its `trainable` to False, or "
                "leave out stateful=True of a recurrent layer."
            )
        if "LookupTable" in node.op:
            raise ModelError(
                f"Layer {layer!r} reads a table ({node.op}), which is not part of the model; "
                "apply it to the data before."
            )
        raise ModelError(
            f"Layer {layer!r} uses the stateful operation {node.op}, which no seed controls: "
            "replace the layer (Dropout, SpatialDropout and layers whose `call` takes `uniform` "
            "are supported) or remove it."
        )
