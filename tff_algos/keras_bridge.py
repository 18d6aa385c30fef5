"""Keras 2 models as pure functions of their weights.

`functional_model_from_keras` of TFF only works inside TFF computations and hides the model from
`tf.vectorized_map`. Here the given tensors stand in for the model's variables while it is called.
What such a swap would get silently wrong is either made right (weight regularisers are computed on
the given weights, dropout draws from an explicit seed, frozen weights are constants) or refused by
name (anything that writes to a variable or draws from a stateful generator, losses added by hand).

A layer that draws random numbers in training takes where it gets them as an argument of its `call`,
`uniform`: a function of a shape that returns float32 in [0, 1), called once at most. Here it draws
from an explicit seed; by default, outside the suite, it may be `tf.random.uniform`.
"""

import collections
import contextlib
import functools
import inspect
import itertools
import operator
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry  # The only list of stateful ops.

from common import compat, memory
from tff_algos import random
from tff_algos.client_data import Batch
from tff_algos.model import Forward, Model, ModelError, elementwise

autocast_variable = compat.keras_source("mixed_precision.autocast_variable")
losses_utils = compat.keras_source("utils.losses_utils")

# Containers are declared stateful because of what they may hold; what they hold is looked at.
# Reading a variable changes nothing.
_HARMLESS_STATEFUL_OPS = frozenset(
    [
        "StatefulPartitionedCall",
        "While",
        "If",
        "Case",
        "Assert",
        "ReadVariableOp",
        "ResourceGather",
        "VarHandleOp",
    ]
)
_SIXTEEN_BITS = (tf.float16, tf.bfloat16)
_SPATIAL_DROPOUT = (
    tf.keras.layers.SpatialDropout1D,
    tf.keras.layers.SpatialDropout2D,
    tf.keras.layers.SpatialDropout3D,
)


@memory.without_collection()
def from_keras(
    keras_model: tf.keras.Model,
    *,
    loss: Callable | str | tf.keras.losses.Loss,
    metrics: Mapping[str, Any] | Sequence[Any] | None = None,
    y_spec: tf.TensorSpec | None = None,
    x_spec: tf.TensorSpec | None = None,
    loss_reduction: str | None = None,
    loss_scale: float | None = None,
) -> Model:
    """Makes a pure-function model from a built Keras model with one input.

    The Keras model's weights at this moment become the initial weights. The model itself is never
    changed and may be shared between threads. A layer with an attribute `prepares_inputs` that is
    true is one that turns the inputs into what training is about.

    Args:
      keras_model: A built Keras 2 model with a single input tensor and a single output.
      loss: Elementwise loss `(y, outputs) -> values [batch, ...]` or `(values, weights)`, e.g.
        `tf.keras.losses.sparse_categorical_crossentropy` wrapped for logits; or the name of one of
        Keras's, or an object of theirs. Positions that a mask of Keras's leaves out of the outputs
        (padding of an `Embedding` with `mask_zero`, say) weigh nothing in losses and metrics of
        Keras's, and in no other.
      metrics: Elementwise metrics by name, in the same form, or a list of names and objects of
        Keras's metrics that are means over examples; reported as weighted means.
      y_spec: Batch of targets; by default what the loss asks for, where it is one of Keras's, and
        class labels, int32 `[None]`, for any other. Clients' targets may lack a last dimension of
        1 that it has, or have one that it lacks.
      x_spec: Batch of inputs, for a model that does not know it: a subclassed one that was called.
      loss_reduction: `mean` of the loss over a batch's examples (positions, where they have
        weights), or `sum`; by default that of a loss object, and the mean of any other.
      loss_scale: What gradients are multiplied by while they are taken back through the model, in
        which they vanish below 6e-8 where a layer computes in float16. Weights get them divided by
        it again, in float32. One that overflows is not finite: its client is dropped and counted.

    Returns:
      A `Model`.

    Raises:
      ModelError: If the model cannot be a pure function of its trainable weights, if what it, the
        loss or a metric gives for an example depends on the others of its batch, or if the loss or
        a metric does not take targets of `y_spec`.
    """
    if compat.is_keras_3(keras_model):
        raise ModelError(compat.KERAS_3)
    x_spec = x_spec or _inputs_of(keras_model)
    if not keras_model.built:
        raise ModelError(f"Model {keras_model.name!r} has no weights yet; call it once.")
    # Keras walks through all that the model holds to find them.
    layers = [m for m in keras_model.submodules if isinstance(m, tf.keras.layers.Layer)]
    _refuse_weights(keras_model, layers, loss_scale)
    given, loss, metrics = loss, _elementwise(loss), _metrics(metrics)
    if loss_reduction is None:
        summed = getattr(given, "reduction", None) == tf.keras.losses.Reduction.SUM
        loss_reduction = "sum" if summed else "mean"
    if loss_reduction not in ("mean", "sum"):
        raise ModelError(f"loss_reduction={loss_reduction!r} must be mean or sum.")
    if "loss" in metrics:
        raise ModelError("A metric must not be named 'loss': that is the training loss.")
    outputs_spec = _refuse_stateful_ops(keras_model, layers, x_spec)
    y_spec = y_spec or _targets_of(given, outputs_spec)
    apply = _functional(keras_model, layers)
    functions = {"loss": loss, **metrics}
    _refuse_targets(y_spec, outputs_spec, functions)
    _refuse_mixed_examples(keras_model, apply, x_spec, y_spec, functions)

    def forward(weights, batch: Batch, training: bool, seed, change=None) -> Forward:
        mask = tf.cast(batch.mask, tf.float32)
        outputs, penalty = apply(weights, batch.x, training, seed, change, loss_scale)
        sums, counts = elementwise(loss, batch.y, outputs, mask)
        total = tf.reduce_sum(sums)
        if loss_reduction == "mean":
            total = tf.math.divide_no_nan(total, tf.reduce_sum(counts))
        if loss_scale:
            total = _with_gradient_times(loss_scale, total)
        values = collections.OrderedDict(loss=(sums + penalty * counts, counts))
        for name, fn in metrics.items():
            values[name] = elementwise(fn, batch.y, outputs, mask)
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
            f"Model {keras_model.name!r} has {len(keras_model.inputs)} inputs; it must have one."
        )
    x = keras_model.inputs[0]
    return tf.TensorSpec([None, *x.shape[1:]], x.dtype)


def _refuse_weights(
    keras_model: tf.keras.Model,
    layers: Sequence[tf.keras.layers.Layer],
    loss_scale: float | None,
) -> None:
    for layer in layers:
        if getattr(layer, "compute_dtype", None) == "float16" and loss_scale is None:
            raise ModelError(
                f"Layer {layer.name!r} computes in float16, in which gradients vanish; give "
                "from_keras a loss_scale, such as 2.0**10, or make the model with "
                "tf.keras.mixed_precision's policy 'float32'."
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
                "no method keeps to; make its layer without."
            )


def _elementwise(loss: Any) -> Callable:
    """Returns the elementwise function of a loss."""
    if isinstance(loss, str):
        try:
            loss = tf.keras.losses.get(loss)
        except ValueError as e:
            raise ModelError(f"loss={loss!r} is not the name of one of Keras's losses.") from e
    if isinstance(loss, type):
        loss = loss()
    if isinstance(loss, tf.keras.losses.Loss):
        return _as_compiled(loss.call)
    if compat.is_of_keras(loss):
        return _as_compiled(loss)
    if not callable(loss):
        raise ModelError(
            "loss must be a function of (y, outputs), a loss of Keras's or its name; found a "
            f"{type(loss).__name__}."
        )
    return loss


def _as_compiled(function: Callable) -> Callable:
    """Returns a loss or metric of Keras's as a model that is compiled with it has it.

    Targets `[batch]` of outputs `[batch, n]` are `[batch, 1]`, dimensions of 1 that one side lacks
    are left out, and masks, the outputs' and that of `ignore_class`, become weights.
    """

    def compiled(y, outputs):
        y, of_outputs = tf.convert_to_tensor(y), losses_utils.get_mask(outputs)
        if y.shape.rank == 1 and outputs.shape.rank == 2:
            y = y[:, tf.newaxis]
        outputs, y = losses_utils.squeeze_or_expand_dimensions(outputs, y)
        values = function(y, outputs)
        masks = [m for m in (of_outputs, losses_utils.get_mask(values)) if m is not None]
        if not masks:
            return values
        if any(m.shape.rank != values.shape.rank for m in masks):
            raise ModelError(
                f"The outputs have a mask {masks[0].shape}, but a loss or metric of Keras's gave "
                f"values {values.shape}: give it targets of as many dimensions as the outputs."
            )
        return values, tf.cast(tf.reduce_all(masks, axis=0), values.dtype)

    return compiled


def _metrics(metrics: Any) -> Mapping[str, Callable]:
    """Returns elementwise metrics by name."""
    if not isinstance(metrics, Mapping):
        named = [(m if isinstance(m, str) else getattr(m, "name", None), m) for m in metrics or ()]
        metrics = {name or getattr(m, "__name__", str(m)): m for name, m in named}
    return {name: _elementwise_metric(name, metric) for name, metric in metrics.items()}


def _elementwise_metric(name, metric) -> Callable:
    if isinstance(metric, str):
        found = None if metric in ("accuracy", "acc") else getattr(tf.keras.metrics, metric, None)
        if not inspect.isfunction(found):
            raise ModelError(
                f"Metric {metric!r} is not the name of one of Keras's elementwise metrics, such as "
                "'sparse_categorical_accuracy'."
            )
        return _as_compiled(found)
    if isinstance(metric, type):
        metric = metric()
    if isinstance(metric, tf.keras.metrics.MeanMetricWrapper):
        return _as_compiled(functools.partial(metric._fn, **metric._fn_kwargs))
    if isinstance(metric, tf.keras.metrics.Metric) or not callable(metric):
        raise ModelError(
            f"Metric {name!r} ({type(metric).__name__}) is not a mean over examples, so clients' "
            "values cannot be added up; give an elementwise function of (y, outputs)."
        )
    return _as_compiled(metric) if compat.is_of_keras(metric) else metric


def _targets_of(loss: Any, outputs: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of a batch of the targets that a loss asks for."""
    if isinstance(loss, str):
        loss = tf.keras.losses.get(loss)
    if isinstance(loss, type):
        loss = loss()
    function = getattr(loss, "fn", loss)
    sparse = tf.keras.losses.sparse_categorical_crossentropy
    of_keras = compat.is_of_keras(function)
    if not of_keras or getattr(function, "__name__", "") == sparse.__name__:
        positions = outputs.shape[1:-1] if of_keras else []
        return tf.TensorSpec([None, *positions], tf.int32)
    return tf.TensorSpec([None, *outputs.shape[1:]], tf.float32)


def _functional(
    keras_model: tf.keras.Model, layers: Sequence[tf.keras.layers.Layer], freeze: bool = True
) -> Callable:
    """Returns `(weights, x, training, seed, change, loss_scale) -> (outputs, penalty)`.

    With `change`, that is applied to the outputs of the layers that prepare the inputs; with
    `loss_scale`, the gradient of the outputs by the weights is divided by it. The penalty is that
    of the weights' regularisers. Outputs of 16 bits become float32.

    Args:
      keras_model: The model.
      layers: All its layers.
      freeze: Whether non-trainable weights become constants; otherwise they stay variables.
    """
    held = _held_variables([keras_model, *layers])
    trainable = [_holders(keras_model, held, v) for v in keras_model.trainable_variables]
    frozen = [
        (_holders(keras_model, held, v), v.numpy())
        for v in keras_model.non_trainable_variables
        if freeze
    ]
    penalties = _weight_penalties(keras_model, layers)
    constants = _constants(layers)
    drawing = [layer for layer in layers if _draws(layer)]
    preparing = [layer for layer in layers if _prepares(layer)]
    # The swap is visible to every thread that calls the same layers.
    lock = threading.RLock()

    def apply(weights, x, training, seed, change=None, loss_scale=None):
        weights = [tf.convert_to_tensor(w) for w in weights]
        with lock, contextlib.ExitStack() as stack:
            for holders, weight in zip(trainable, weights, strict=True):
                if loss_scale:
                    weight = _with_gradient_times(1 / loss_scale, weight)
                _swap(stack, holders, weight)
            for holders, value in frozen:
                _swap(stack, holders, tf.constant(value))
            for holder, key, value in constants:
                _swap_item(stack, holder, key, tf.constant(value))
            for place, layer in enumerate(drawing):
                # One for each time that the model calls the layer.
                places = itertools.count(place + 1, len(drawing))
                seeds = (random.fold_in(seed, layer=p) for p in places)
                _swap(stack, [(layer, "call")], _seeded_call(layer, seeds, training))
            for layer in preparing if change else ():
                _swap(stack, [(layer, "call")], _changed_call(layer.call, change))
            outputs = keras_model(x, training=training)
        if getattr(outputs, "dtype", None) in _SIXTEEN_BITS:
            mask = losses_utils.get_mask(outputs)
            outputs = tf.cast(outputs, tf.float32)
            outputs._keras_mask = mask
        penalty = tf.add_n([tf.zeros([])] + [fn(weights[i]) for i, fn in penalties])
        return outputs, penalty

    return apply


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
    """Returns the value, of which the gradient is `factor` times as large."""

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


def _constants(layers) -> list[tuple[Any, Any, np.ndarray]]:
    """Returns the tensors that layers hold: in what, at which place, and their values.

    Such as the mean of an adapted `Normalization`, or the factor in `0.5 * x` between layers. They
    belong to the process that made them; a graph of TFF's takes constants only.
    """
    found = []
    for layer in layers:
        holders = [layer.__dict__, *(n._flat_arguments for n in layer._inbound_nodes)]
        for holder in holders:
            items = holder.items() if isinstance(holder, dict) else enumerate(holder)
            for key, value in items:
                if isinstance(value, tf.__internal__.EagerTensor):
                    found.append((holder, key, value.numpy()))
    return found


def _swap_item(stack, holder, key, value):
    stack.callback(operator.setitem, holder, key, holder[key])
    holder[key] = value


def _draws(layer):
    return (
        isinstance(layer, tf.keras.layers.Dropout)
        or "uniform" in inspect.signature(layer.call).parameters
    )


def _prepares(layer):
    return getattr(layer, "prepares_inputs", False)


def _changed_call(call, change):
    def changed(inputs, **kwargs):
        return change(call(inputs, **kwargs))

    return changed


def _seeded_call(layer, seeds, in_training):
    """Returns what takes the place of the layer's `call`."""
    if isinstance(layer, tf.keras.layers.Dropout):
        return functools.partial(_dropout_call, layer, seeds, in_training)
    call = layer.call

    def seeded(inputs, training=None):
        training = in_training if training is None else training
        uniform = functools.partial(random.uniform, seed=next(seeds))
        return call(inputs, training=training, uniform=uniform)

    return seeded


def _dropout_call(layer, seeds, in_training, inputs, training=None):
    # Who makes a model may have settled it for a part of it, `base(x, training=False)`.
    training = in_training if training is None else training
    if not training or layer.rate == 0:
        return tf.identity(inputs)
    seed = next(seeds)
    if isinstance(layer, _SPATIAL_DROPOUT) or layer.noise_shape is not None:
        return random.dropout(inputs, layer.rate, seed, layer._get_noise_shape(inputs))
    return random.dropout(inputs, layer.rate, seed)


def _weight_penalties(keras_model, layers):
    """Returns (index of the trainable weight, regulariser) pairs; refuses other added losses."""
    index = {id(v): i for i, v in enumerate(keras_model.trainable_variables)}
    penalties = []
    for layer in layers:
        if getattr(layer, "activity_regularizer", None) is not None:
            raise ModelError(
                f"Layer {layer.name!r} has an activity regulariser, which is not supported; "
                "add the penalty to the loss function."
            )
        for added in getattr(layer, "_callable_losses", []):
            # Keras keeps a weight's regulariser as partial(tag, partial(fn, variable)).
            inner = added.args[0] if isinstance(added, functools.partial) and added.args else None
            if not isinstance(inner, functools.partial) or not inner.args:
                raise ModelError(
                    f"Layer {layer.name!r} adds a loss that is not a weight regulariser, which is "
                    "not supported; add it to the loss function."
                )
            variable = inner.args[0]
            if id(variable) in index:
                penalties.append((index[id(variable)], inner.func))
    return penalties


def _refuse_stateful_ops(keras_model, layers, x_spec):
    # Non-trainable weights stay variables here, so that an assignment to one shows as such.
    apply = _functional(keras_model, layers, freeze=False)
    weight_specs = [tf.TensorSpec(v.shape, v.dtype) for v in keras_model.trainable_variables]
    try:
        traced = tf.function(
            lambda weights, x, seed: apply(weights, x, True, seed)[0], autograph=False
        ).get_concrete_function(weight_specs, x_spec, tf.TensorSpec([2], tf.int32))
    except (tf.errors.OperatorNotAllowedInGraphError, AttributeError) as e:
        if not compat.is_about_a_tensors_value(e):
            raise
        raise ModelError(
            f"Model {keras_model.name!r} asks for the value of a tensor that has none yet, so "
            f"it is no function of its weights; replace the layer: {str(e).splitlines()[0]}"
        ) from e
    outputs = traced.structured_outputs
    if not isinstance(outputs, tf.TensorSpec) and not tf.is_tensor(outputs):
        raise ModelError(
            f"Model {keras_model.name!r} has {len(tf.nest.flatten(outputs))} outputs; it must have "
            "one tensor, which the loss is a function of: concatenate them."
        )
    if any(getattr(layer, "_losses", None) for layer in layers):
        raise ModelError(
            f"Model {keras_model.name!r} adds losses while it is called, which is not supported; "
            "add them to the loss function."
        )
    refuse_stateful_ops(traced.graph, {layer.name for layer in layers})
    return tf.TensorSpec(outputs.shape, outputs.dtype)


def _refuse_targets(y_spec, outputs_spec, functions):
    """Refuses functions that don't take such targets, or compare each with all examples' outputs.

    Args:
      y_spec: Batch of targets.
      outputs_spec: Batch of outputs.
      functions: Losses and metrics by name.
    """

    def refuse(name, error):
        told = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{_what(name)} does not take targets {y_spec.dtype.name} {_shown(y_spec)} and outputs "
            f"{outputs_spec.dtype.name} {_shown(outputs_spec)} ({told}); tell from_keras what the "
            "targets are, such as y_spec=tf.TensorSpec([None], tf.float32)."
        ) from error

    specs = y_spec, outputs_spec
    for name, shape in _shapes_of_values(functions, specs, refuse).items():
        if not shape.rank or None not in shape[1:]:
            continue
        sized = [
            _shapes_of_values(
                {name: functions[name]},
                [tf.TensorSpec([size, *s.shape[1:]], s.dtype) for s in specs],
            )
            for size in (5, 7)
        ]
        if sized[0] and sized[1] and sized[0][name][1:] != sized[1][name][1:]:
            raise ModelError(
                f"{_what(name)} compares the target of an example with the outputs of all: targets "
                f"{_shown(y_spec)} and outputs {_shown(outputs_spec)} are broadcast; give it equal "
                "shapes, by from_keras's y_spec= or in the function."
            )


def _shapes_of_values(functions, specs, refuse=None) -> dict[str, tf.TensorShape]:
    """Returns the shapes of what losses and metrics give, by name.

    Args:
      functions: Losses and metrics by name.
      specs: Batches of targets and of outputs.
      refuse: Called with the name of one that fails and its error; else that one is left out.
    """
    shapes = {}

    # All in one graph: what takes time is to make one.
    @tf.function(autograph=False)
    def trace(y, outputs):
        for name, function in functions.items():
            try:
                values = function(y, outputs)
                values = tf.convert_to_tensor(values[0] if isinstance(values, tuple) else values)
            except Exception as e:  # It is the user's, and may raise anything.
                if refuse:
                    refuse(name, e)
            else:
                shapes[name] = values.shape

    trace.get_concrete_function(*specs)
    return shapes


def _what(name):
    return "The loss" if name == "loss" else f"Metric {name!r}"


def _shown(spec):
    return str(spec.shape.as_list())


def _refuse_mixed_examples(keras_model, apply, x_spec, y_spec, functions):
    """Refuses what gives other values for an example with others beside it in its batch.

    Args:
      keras_model: The model.
      apply: The model as a function, of `_functional`.
      x_spec: Batch of inputs.
      y_spec: Batch of targets.
      functions: Losses and metrics by name.
    """
    shape = [size or 3 for size in x_spec.shape[1:]]
    if x_spec.dtype.is_floating:
        rows = np.random.default_rng(0).normal(size=(3, *shape))
    elif x_spec.dtype.is_integer:
        rows = np.stack([np.full(shape, i) for i in (0, 1, 0)])
    else:
        return
    rows = rows.astype(x_spec.dtype.as_numpy_dtype)
    weights, seed = keras_model.trainable_variables, tf.zeros([2], tf.int32)
    one, other = (
        # The same draws in both.
        _or_none(apply, weights, tf.constant(rows[[0, i]]), False, seed)
        for i in (1, 2)
    )
    if one is None or other is None:
        return
    _refuse_unlike(f"Model {keras_model.name!r}", one[0], other[0])
    y = tf.zeros([2, *(size or 3 for size in y_spec.shape[1:])], y_spec.dtype)
    for name, function in functions.items():
        values = [_or_none(function, y, outputs) for outputs in (one[0], other[0])]
        _refuse_unlike(_what(name), *(v[0] if isinstance(v, tuple) else v for v in values))


def _or_none(function, *arguments):
    """Returns a function's value, or `None` where it does not take what we made up."""
    try:
        return function(*arguments)
    except Exception:  # It is the user's, and may not take every value.
        return None


def _refuse_unlike(what: str, one, other) -> None:
    """Refuses batches whose first examples are the same and have other values."""
    if one is None or other is None or not np.ndim(one) or not np.ndim(other):
        return
    if not np.allclose(one[0], other[0], rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ModelError(
            f"{what} mixes the examples of a batch: the value of one changes with the others, and "
            "so with the padding of a client's last batch; compute it from the example alone."
        )


def refuse_stateful_ops(graph: tf.Graph, names: Collection[str]) -> None:
    """Refuses operations that change variables or draw from generators without a seed.

    Args:
      graph: What a model does.
      names: Names of its layers, for the text.

    Raises:
      ModelError: If there is such an operation.
    """
    graph = graph.as_graph_def()
    bodies = {f.signature.name: f.node_def for f in graph.library.function}
    for node in [*graph.node, *(n for body in bodies.values() for n in body)]:
        # Keras calls cuDNN's recurrent layers without dropout, so nothing in them is random.
        if node.op in bodies or node.op in _HARMLESS_STATEFUL_OPS or "CudnnRNN" in node.op:
            continue
        if not op_def_registry.get(node.op).is_stateful:
            continue
        path = [part for part in node.name.split("/") if part in names]
        layer = path[-1] if path else node.name
        if "Assign" in node.op:
            raise ModelError(
                f"Layer {layer!r} changes a variable while it runs ({node.op}), so the model is "
                "not a function of its trainable weights: replace the layer (BatchNormalization "
                "by GroupNormalization, say) or set its `trainable` to False."
            )
        if "LookupTable" in node.op:
            raise ModelError(
                f"Layer {layer!r} reads a table ({node.op}), which lies outside of the model; "
                "apply it to the data before."
            )
        raise ModelError(
            f"Layer {layer!r} uses the stateful operation {node.op}, which no seed controls: "
            "replace the layer (Dropout, SpatialDropout and layers whose `call` takes `uniform` "
            "are supported) or remove it."
        )
