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
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos.client_data import Batch
from tff_algos.keras_models.doubts import doubts_of, some_outputs
from tff_algos.keras_models.functional import (
    as_function,
    prepares_inputs,
    take_back_from_graphs,
    with_gradient_times,
)
from tff_algos.keras_models.graphs import calls_python, has_own_gradients, trace_model
from tff_algos.keras_models.losses import (
    as_compile_finds,
    by_name,
    elementwise_loss,
    elementwise_metric,
    reduction_of,
    refuse_fractions,
    takes_classes,
    targets_of,
)
from tff_algos.keras_models.trials import (
    is_nan_of_nan,
    refuse_lost_gradients,
    refuse_mixed_examples,
    refuse_targets,
)
from tff_algos.model import Forward, Model, ModelError, elementwise
from tff_suite import compat, memory

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
    take_back_from_graphs([keras_model, *layers])
    x_spec = x_spec or _inputs_of(keras_model)
    if not keras_model.built:
        raise ModelError(f"Model {keras_model.name!r} has no weights yet; call it once.")
    _refuse_own_steps(keras_model)
    _refuse_traced_methods([keras_model, *layers])
    _refuse_weights(keras_model, layers, loss_scale)
    given = as_compile_finds(loss)
    loss, given_metrics = elementwise_loss(given), by_name(metrics)
    metrics = {name: elementwise_metric(name, metric) for name, metric in given_metrics.items()}
    loss_reduction = reduction_of(given, loss_reduction)
    if "loss" in metrics:
        raise ModelError("A metric must not be named 'loss': that is the training loss.")
    graph_def, outputs_spec, mask_spec = trace_model(keras_model, layers, x_spec)
    y_spec = y_spec or targets_of(given, outputs_spec)
    if examples is not None and takes_classes(given):
        refuse_fractions(examples[1])
    frozen = tuple(v.numpy() for v in keras_model.non_trainable_variables)
    apply = as_function(keras_model, layers, frozen)
    if has_own_gradients(graph_def, layers):
        refuse_lost_gradients(keras_model, apply, x_spec, examples)
    functions = {"loss": loss, **metrics}
    of_functions = refuse_targets(keras_model, y_spec, outputs_spec, mask_spec, functions)
    refuse_mixed_examples(keras_model, apply, x_spec, y_spec, functions, examples)
    doubts = doubts_of(
        {"loss": given, **given_metrics},
        y_spec,
        outputs_spec,
        lambda: some_outputs(apply, x_spec, examples),
        examples,
    )
    loss_tells = is_nan_of_nan(loss, y_spec, outputs_spec)

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
            total = with_gradient_times(loss_scale, total)
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
        forward_on_changed=forward if any(map(prepares_inputs, layers)) else None,
        loss_reduction=loss_reduction,
        loss_scale=loss_scale,
        frozen_weights=frozen,
        calls_python=calls_python(graph_def) or calls_python(of_functions),
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
