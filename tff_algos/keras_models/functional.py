"""A Keras model as a function of its weights: tensors take the place of its variables."""

import collections
import contextlib
import functools
import inspect
import itertools
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos import random
from tff_algos.model import ModelError
from tff_suite import compat
from tff_suite.compat import ops

autocast_variable = compat.keras_source("mixed_precision.autocast_variable")
losses_utils = compat.keras_source("utils.losses_utils")

_SIXTEEN_BITS = (tf.float16, tf.bfloat16)
# Part of the names of operations that draw by the seed.
DRAW = "draw_by_seed"
_ABSENT = object()


def take_back_from_graphs(layers: Sequence[tf.keras.layers.Layer]) -> None:
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


def as_function(
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
    preparing = [layer for layer in layers if prepares_inputs(layer)]
    choosing = [layer for layer in layers if _takes(layer, "real_examples", lambda d: d is None)]
    # The swap is visible to every thread that calls the same layers.
    lock = threading.RLock()

    def apply(weights, x, training, seed, change=None, loss_scale=None, real=None):
        swaps = weights is not None
        weights = list(map(tf.convert_to_tensor, weights if swaps else variables))
        scaled = weights
        if loss_scale:
            scaled = [with_gradient_times(1 / loss_scale, w) for w in weights]
        with lock, contextlib.ExitStack() as stack:
            take_back_from_graphs([keras_model, *layers])
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
            "layer, so another weight cannot replace it; store it as `self.<name>` in its layer."
        )
    return found


def with_gradient_times(factor: float, value: tf.Tensor) -> tf.Tensor:
    """Returns the value, with its gradient multiplied by `factor`."""

    def times(gradient):
        if isinstance(gradient, tf.IndexedSlices):  # Of an embedding: the rows that were read.
            rows, indices = gradient.values * factor, gradient.indices
            return tf.IndexedSlices(rows, indices, gradient.dense_shape)
        return gradient * factor

    return tf.custom_gradient(lambda x: (tf.identity(x), times))(value)


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


def prepares_inputs(layer: tf.keras.layers.Layer) -> bool:
    """Returns whether a layer prepares the inputs for training."""
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
    with tf.name_scope(DRAW):
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
    with tf.name_scope(DRAW):
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
