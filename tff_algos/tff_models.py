"""TFF's models as pure functions of their weights, and everything else `build` takes as a model.

A `FunctionalModel` is called on a batch's real examples only, since its loss need not be a mean
over single examples. A `VariableModel` is called likewise, with tensors in place of its variables.
Writes to the variables of its metrics are lost, and so are its metrics, which are not sums over
examples. Both models run in `tff` and `native`. Models that TFF made from a Keras model are
converted as by `from_keras` (`tff_algos.keras_bridge`).
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import keras_bridge
from tff_algos.keras_models import graphs
from tff_algos.keras_models.made_up import made_up_inputs, made_up_targets, or_none
from tff_algos.model import Forward, Model, ModelError
from tff_suite import compat, user_warnings

compile_utils = compat.keras_source("engine.compile_utils")
LossFunctionWrapper = compat.keras_source("losses").LossFunctionWrapper

_TFFS = "tensorflow_federated."
_FUNCTIONAL, _VARIABLE = tff.learning.models.FunctionalModel, tff.learning.models.VariableModel


def as_model(model: Any, has_optimizer: bool = True) -> Model:
    """Returns the model argument of `build` as a `Model`.

    Args:
      model: A `Model`, a compiled Keras model, a `tff.learning.models.FunctionalModel` or
        `VariableModel`, or a function without arguments that returns one of them.
      has_optimizer: Whether the clients' optimizer was named. If not, a compiled model's own may be
        the one that is expected.

    Raises:
      ModelError: If it is none of these, or cannot be a pure function of its weights.

    Warns:
      RuntimeWarning: If the optimizer of a compiled model does what clients will not do.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, tf.keras.Model):
        return _from_compiled(model, has_optimizer)
    if isinstance(model, _FUNCTIONAL):
        return from_functional(model)
    if isinstance(model, _VARIABLE):
        return from_variable(model)
    if callable(model):
        made = model()
        if not callable(made) or isinstance(made, tf.keras.Model):
            return as_model(made, has_optimizer)
    raise ModelError(
        "model must be a tff_algos.Model (from_keras makes one), a compiled Keras model, a "
        "FunctionalModel or VariableModel of tff.learning.models, or a function that makes one of "
        f"them; found a {type(model).__name__}."
    )


def _from_compiled(keras_model: tf.keras.Model, has_optimizer: bool) -> Model:
    losses = tf.nest.flatten(getattr(keras_model, "loss", None))
    if not losses or losses == [None]:
        raise ModelError(
            f"Keras model {keras_model.name!r} has no loss: compile it with one, or use "
            "tff_algos.from_keras(model, loss=...)."
        )
    if len(losses) != 1:
        raise ModelError(
            f"Keras model {keras_model.name!r} is compiled with {len(losses)} losses, and methods "
            "train on one: let the model give one tensor, and compile it with one loss."
        )
    weights = getattr(keras_model.compiled_loss, "_user_loss_weights", None)
    _refuse_loss_weights(keras_model, weights)
    container = keras_model.compiled_metrics
    if tf.nest.flatten(getattr(container, "_user_weighted_metrics", None) or ()):
        raise ModelError(
            f"Keras model {keras_model.name!r} is compiled with weighted_metrics=, for weights of "
            "examples, which clients' data do not have: compile it with metrics= instead."
        )
    metrics = tf.nest.flatten(getattr(container, "_user_metrics", None) or ())
    # Keras wraps functions, which settles what they get.
    loss = losses[0]
    if _is_function(loss):
        loss = LossFunctionWrapper(loss)
    wrapped = tf.keras.metrics.MeanMetricWrapper
    metrics = [
        wrapped(m, compile_utils.get_custom_object_name(m)) if _is_function(m) else m
        for m in metrics
        if m is not None
    ]
    model = keras_bridge.from_keras(keras_model, loss=loss, metrics=metrics)
    _warn_of_optimizer(keras_model, has_optimizer)
    return model


# What an optimizer of Keras does besides its step, in the order in which it is told.
_BESIDES_STEPS = ("clipnorm", "clipvalue", "global_clipnorm", "decay", "weight_decay", "use_ema")


def _warn_of_optimizer(keras_model, has_optimizer):
    """Warns of a compiled optimizer that does more than clients will, or another step.

    Nothing is said of `compile`'s default, RMSprop, nor of plain SGD.
    """
    optimizer = keras_model.optimizer
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # Of a loss scale.
    kind, config = type(optimizer).__name__, optimizer.get_config()
    lost = [f"{name}={config[name]!r}" for name in _BESIDES_STEPS if config.get(name)]
    if isinstance(config.get("learning_rate"), Mapping):
        lost.append(f"learning_rate={config['learning_rate'].get('class_name')}(...)")
    if not has_optimizer and kind == "SGD" and config.get("momentum"):
        lost.append(f"momentum={config['momentum']!r}")
    if lost or not (has_optimizer or kind in ("RMSprop", "SGD")):
        user_warnings.warn(
            f"Keras model {keras_model.name!r} is compiled with {kind}({', '.join(lost)}), which "
            "is not used: client_optimizer= and client_learning_rate= define the clients' steps."
        )


def _is_function(given):
    kinds = str, type, tf.keras.losses.Loss, tf.keras.metrics.Metric
    return callable(given) and not isinstance(given, kinds)


def _refuse_loss_weights(keras_model, weights):
    if any(w not in (None, 1) for w in tf.nest.flatten(weights)):
        raise ModelError(
            f"Keras model {keras_model.name!r} has loss_weights={weights!r}, which no method "
            "supports: leave them out, and let the loss return weighted values."
        )


def from_functional(model: tff.learning.models.FunctionalModel) -> Model:
    """Makes a `Model` from a `tff.learning.models.FunctionalModel`.

    Its non-trainable weights never change. The loss is its only metric. Weights in a dictionary
    keep its order.

    Raises:
      ModelError: If it was made from a Keras model that `from_keras` refuses.
    """
    predict = _closure_of_tffs(model._predict_on_batch_fn)
    if "keras_model" in predict:
        # TFF's function builds the Keras model anew at every call, and in graphs of TFF only; that
        # it did so once, too, has left the model itself unusable to Keras.
        keras_model = predict["keras_model"]
        if isinstance(keras_model, tf.keras.Model):
            keras_model = tf.keras.models.clone_model(keras_model)
        else:
            keras_model = keras_model()
        parts = keras_model.trainable_variables, keras_model.non_trainable_variables
        for variables, values in zip(parts, model.initial_weights, strict=True):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        _, y_spec = _specs(model.input_spec)
        keras_loss = _closure_of_tffs(model._loss_fn)["loss_fn"]
        return keras_bridge.from_keras(keras_model, loss=keras_loss, y_spec=y_spec)
    initial = model.initial_weights
    trainable, fixed = (
        tuple(map(np.asarray, w.values() if isinstance(w, Mapping) else w)) for w in initial
    )
    x_spec, y_spec = _specs(model.input_spec)

    def outputs(weights, x, training=False):
        given = (weights, tuple(map(tf.constant, fixed)))
        return model.predict_on_batch(tuple(map(_like, initial, given)), x, training)

    def loss(weights, x, y, training):
        return model.loss(outputs(weights, x, training), y)

    traced = _refuse_stateful_ops(type(model).__name__, loss, trainable, x_spec, y_spec)
    return _made(traced, trainable, x_spec, y_spec, loss, outputs, fixed)


def from_variable(model: tff.learning.models.VariableModel) -> Model:
    """Makes a `Model` from a `tff.learning.models.VariableModel`.

    The current values of its variables become the initial weights; the model itself is not changed.
    The loss is its only metric.

    Raises:
      ModelError: If no attribute of the model holds a trainable variable, directly or in a list,
        tuple or dictionary, so that a tensor could replace it. Also if `forward_pass` reads one
        otherwise, or if its `num_examples` is not the number of rows of a batch.
    """
    if hasattr(model, "_keras_model"):
        return _from_tffs_keras_model(model)
    if hasattr(model, "_functional_model"):
        return from_functional(model._functional_model)
    x_spec, y_spec = _specs(model.input_spec)
    variables = list(model.trainable_variables)
    held = {id(v) for value in vars(model).values() for v in _leaves(value)}
    for variable in variables:
        if id(variable) not in held:
            raise ModelError(
                f"Variable {variable.name!r} of {type(model).__name__} is not stored in an "
                "attribute, so another weight cannot replace it; store it as `self.<name>`."
            )
    initial = tuple(np.asarray(v.read_value()) for v in variables)
    others = [(v, v.numpy()) for value in vars(model).values() for v in _leaves(value)]
    places = {id(v): i for i, v in enumerate(variables)}
    # The swap is visible to every thread that calls the model.
    lock = threading.RLock()

    @contextlib.contextmanager
    def swapped(weights):
        tensors = {id(v): _Written(tf.constant(value)) for v, value in others}
        tensors.update((key, weights[i]) for key, i in places.items())
        with lock:
            before = dict(vars(model))
            try:
                for name, value in before.items():
                    model.__dict__[name] = _replaced(value, tensors)
                yield
            finally:
                model.__dict__.update(before)

    # TFF's models wrap it in `tf.function`, whose traces hold the variables.
    forward_pass = inspect.getattr_static(type(model), "forward_pass")
    forward_pass = getattr(forward_pass, "python_function", forward_pass)

    def output(weights, x, y, training):
        with swapped(weights):
            return forward_pass(model, _batch(model.input_spec, x, y), training=training)

    def loss(*arguments):
        return output(*arguments).loss

    traced = _refuse_stateful_ops(type(model).__name__, loss, initial, x_spec, y_spec)
    captured = {id(tensor) for tensor in traced.captured_inputs}
    for variable in variables:
        if id(variable.handle) in captured:
            raise ModelError(
                f"forward_pass of {type(model).__name__} reads the weight {variable.name!r} in "
                "another way than by its attribute, so it would not train. Read weights as "
                "attributes of the model only, or wrap a Keras model with "
                "tff.learning.models.from_keras_model."
            )
    _refuse_other_counts(type(model).__name__, output, initial, x_spec, y_spec)
    frozen = tuple(np.asarray(v.read_value()) for v in model.non_trainable_variables)
    return _made(traced, initial, x_spec, y_spec, loss, None, frozen)


def _made(traced, weights, x_spec, y_spec, loss, outputs, frozen):
    """Returns the `Model` of a loss and of its graph, from `_refuse_stateful_ops`."""
    calls_python = graphs.calls_python(traced.graph.as_graph_def())
    return Model(
        weights,
        x_spec,
        y_spec,
        _forward(loss),
        outputs,
        ("loss",),
        frozen_weights=frozen,
        calls_python=calls_python,
    )


class _Written:
    """Replaces a variable that is not a weight; what is written to it is lost."""

    def __init__(self, value):
        self._value = value

    def read_value(self):
        return self._value

    value = numpy = read_value

    def assign(self, value, *args, **kwargs):
        return tf.convert_to_tensor(value)

    def assign_add(self, value, *args, **kwargs):
        return self._value + tf.cast(value, self._value.dtype)

    def assign_sub(self, value, *args, **kwargs):
        return self._value - tf.cast(value, self._value.dtype)

    def __getattr__(self, name):
        return getattr(self._value, name)


tf.register_tensor_conversion_function(
    _Written, lambda value, dtype=None, name=None, as_ref=False: value.read_value()
)


def _leaves(value: Any) -> list[tf.Variable]:
    """Returns the variables in an attribute's value."""
    if isinstance(value, tf.Variable):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return []
    return [v for element in value for v in _leaves(element)]


def _replaced(value, tensors):
    if isinstance(value, tf.Variable):
        return tensors[id(value)]
    if not _leaves(value):
        return value
    if isinstance(value, Mapping):
        return {key: _replaced(element, tensors) for key, element in value.items()}
    elements = [_replaced(element, tensors) for element in value]
    return value._make(elements) if hasattr(value, "_make") else type(value)(elements)


def _from_tffs_keras_model(model: Any) -> Model:
    if len(model._loss_fns) != 1:
        raise ModelError(
            f"Model {model._keras_model.name!r} has {len(model._loss_fns)} losses; it must have "
            "one: make a Model of one loss over all outputs."
        )
    _refuse_loss_weights(model._keras_model, model._loss_weights)
    x_spec, y_spec = _specs(model.input_spec)
    # TFF adds its own: the loss and counts, which every round of ours reports anyway.
    metrics = [m for m in model._metrics if not type(m).__module__.startswith(_TFFS)]
    return keras_bridge.from_keras(
        model._keras_model, loss=model._loss_fns[0], metrics=metrics, y_spec=y_spec, x_spec=x_spec
    )


def _closure_of_tffs(function: Any) -> Mapping[str, Any]:
    """Returns the variables that a function of TFF's closes over; nothing for the user's."""
    function = getattr(function, "python_function", function)
    if not inspect.isfunction(function) or not function.__module__.startswith(_TFFS):
        return {}
    return inspect.getclosurevars(function).nonlocals


def _like(structure: Any, values: Any) -> Any:
    """Returns values in a dictionary with the keys of another, or in a tuple."""
    if isinstance(structure, Mapping):
        return collections.OrderedDict(zip(structure, values, strict=True))
    return tuple(values)


def _specs(input_spec: Any) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Returns the specs of a batch of inputs and of targets, with unknown batch sizes."""
    x, y = (input_spec["x"], input_spec["y"]) if _named(input_spec) else input_spec
    for name, spec in (("x", x), ("y", y)):
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank in (0, None):
            raise ModelError(
                f"input_spec: {name} must be one batch, a tf.TensorSpec [None, ...]; found {spec}."
            )
    return tuple(tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) for spec in (x, y))


def _named(input_spec: Any) -> bool:
    return isinstance(input_spec, Mapping)


def _batch(input_spec, x, y):
    return collections.OrderedDict(x=x, y=y) if _named(input_spec) else (x, y)


def _refuse_stateful_ops(name, loss, weights, x_spec, y_spec):
    specs = tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
    for spec in specs:
        if spec.dtype != tf.float32:
            raise ModelError(
                f"A weight of this {name} is {spec.dtype.name}; methods compute in float32."
            )
    traced = tf.function(
        lambda weights, x, y: [loss(weights, x, y, training) for training in (True, False)],
        autograph=False,
    ).get_concrete_function(specs, x_spec, y_spec)
    graphs.refuse_stateful_ops(traced.graph, [])
    return traced


def _refuse_other_counts(name, output, weights, x_spec, y_spec):
    """Refuses a model whose `num_examples` is not the number of rows, by which methods weight."""

    @tf.function(autograph=False)
    def count(x, y):
        number = output(tuple(map(tf.constant, weights)), x, y, True).num_examples
        return () if number is None else number

    inputs, targets = made_up_inputs(x_spec), made_up_targets(y_spec)
    for (x, y), rows in itertools.product(itertools.product(inputs, targets), (6, 3)):
        batch = tf.cast(x[:rows], x_spec.dtype), tf.cast(y[:rows], y_spec.dtype)
        found = or_none(count, *batch)
        if found is not None and np.any(np.not_equal(found, rows)):
            raise ModelError(
                f"forward_pass of {name} returned num_examples={np.asarray(found)} for a batch of "
                f"{rows} rows, but methods weight a client by its rows: return the number of rows, "
                "or None."
            )


def _forward(loss: Callable) -> Callable:
    """Returns `Model.forward` for `(weights, x, y, training) -> mean loss of a batch`."""

    def forward(weights, batch, training, seed):
        del seed  # It draws nothing, or it had been refused.
        real = tf.ensure_shape(batch.mask, [None]) > 0
        x, y = tf.boolean_mask(batch.x, real), tf.boolean_mask(batch.y, real)
        objective = tf.cast(loss(tuple(weights), x, y, training), tf.float32)
        # A batch without a real example has none, and takes no part.
        objective = tf.where(tf.reduce_any(real), objective, 0.0)
        counts = tf.cast(real, tf.float32)
        return Forward(objective, collections.OrderedDict(loss=(objective * counts, counts)))

    return forward
