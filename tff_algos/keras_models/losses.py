"""Losses and metrics as functions of targets and outputs, as `fit` and `evaluate` call Keras's."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos.model import ModelError
from tff_suite import compat

compile_utils = compat.keras_source("engine.compile_utils")
losses_utils = compat.keras_source("utils.losses_utils")
LossFunctionWrapper = compat.keras_source("losses").LossFunctionWrapper

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


def as_compile_finds(loss: Any) -> Any:
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


def elementwise_loss(loss: Callable) -> Callable:
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
                "it targets with as many dimensions as the outputs"
            )
        weights *= tf.cast(mask, values.dtype)
    return values, weights


def reduction_of(loss: Any, wanted: str | None) -> str:
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


def by_name(metrics: Any) -> Mapping[str, Any]:
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


def elementwise_metric(name: str, metric: Any) -> Callable:
    """Returns the elementwise function of a metric, given as for `from_keras`."""
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


def targets_of(loss: Any, outputs: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of a batch of the targets that a loss expects."""
    of_keras = _is_of_keras(getattr(loss, "fn", loss))
    if not of_keras or takes_classes(loss):
        positions = outputs.shape[1:-1] if of_keras else []
        return tf.TensorSpec([None, *positions], tf.int32)
    return tf.TensorSpec([None, *outputs.shape[1:]], tf.float32)


def takes_classes(loss: Any) -> bool:
    """Returns whether a loss is Keras's cross-entropy with class numbers as targets."""
    function = getattr(loss, "fn", loss)
    name = getattr(getattr(function, "func", function), "__name__", "")
    return _is_of_keras(function) and name == "sparse_categorical_crossentropy"


def refuse_fractions(targets: np.ndarray) -> None:
    """Refuses class numbers that are not whole, such as those of a scaled column."""
    fractions = targets[targets % 1 != 0]
    fractions = fractions[np.isfinite(fractions)]
    if len(fractions):
        raise ModelError(
            f"The loss takes class numbers, but a target is {fractions[0]:g}, which Keras would "
            "cut to a whole number: give whole numbers, or a loss for numbers."
        )


def options_of(function: Any, width: int | None) -> tuple[str, Mapping[str, Any]]:
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


def named(name: str) -> str:
    """Returns how messages call a loss or metric."""
    return "The loss" if name == "loss" else f"Metric {name!r}"


def shown(spec: tf.TensorSpec) -> str:
    """Returns how messages write the shape of a batch."""
    return str(spec.shape.as_list())
