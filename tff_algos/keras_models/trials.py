"""Refuses models, losses and metrics by what they do with examples."""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos import purity
from tff_algos.keras_models.graphs import refuse_read_weights
from tff_algos.keras_models.losses import named, shown
from tff_algos.keras_models.made_up import made_up_inputs, made_up_targets, or_none
from tff_algos.model import ModelError
from tff_suite import graph_defs

# Of six examples: the first two beside others, beside other others, the second behind another, and
# the two alone.
_PARTS = ([0, 1, 2, 3], [0, 1, 4, 5], [2, 1, 0], [0, 1])


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
def refuse_lost_gradients(
    keras_model: tf.keras.Model,
    apply: Callable,
    x_spec: tf.TensorSpec,
    examples: tuple[np.ndarray, np.ndarray] | None,
) -> None:
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
    for x in itertools.chain(rows, made_up_inputs(x_spec)):
        x = tf.constant(x.astype(x_spec.dtype.as_numpy_dtype))
        wanted = or_none(gradients, x, None)
        if wanted is None or not all(np.all(np.isfinite(g)) for g in wanted):
            continue
        tensors = list(map(tf.convert_to_tensor, variables))
        found = or_none(gradients, x, tensors) or [None] * len(wanted)
        for variable, one, other in zip(variables, wanted, found, strict=True):
            least = 1e-4 * np.max(np.abs(one), initial=0)
            if other is None or not np.allclose(one, other, rtol=1e-3, atol=least):
                raise ModelError(
                    f"Weight {variable.name!r} of model {keras_model.name!r} would not train: "
                    "tf.custom_gradient and tf.recompute_grad find variables only, and weights "
                    "are tensors here. Pass it to their function as an argument."
                )
        return


def refuse_targets(
    keras_model: tf.keras.Model,
    y_spec: tf.TensorSpec,
    outputs_spec: tf.TensorSpec,
    mask_spec: tf.TensorSpec | None,
    functions: Mapping[str, Callable],
) -> Any:
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
    targets, outputs = shown(y_spec), shown(outputs_spec)

    def refuse(name, error):
        told = " ".join(str(error).split())[:200]
        raise ModelError(
            f"{named(name)} does not take targets {y_spec.dtype.name} {targets} and outputs "
            f"{outputs_spec.dtype.name} {outputs} ({told}); tell from_keras what the targets are, "
            "such as y_spec=tf.TensorSpec([None], tf.float32), or change y of the Task."
        ) from error

    specs = [s for s in (y_spec, outputs_spec, mask_spec) if s is not None]
    # Sizes of a batch that are no size of an example, too.
    dims = {size for spec in specs for size in spec.shape[1:]}
    sizes = [size for size in (5, 7, 11, 13, 17, 19, 23, 29, 31, 37) if size not in dims][:2]
    traced, shapes = _shapes_of_values(functions, specs, sizes, refuse)
    refuse_read_weights(keras_model, traced, "The loss or a metric")
    if any(map(_is_impure, graph_defs.nodes(traced.graph.as_graph_def()))):
        _refuse_impure(functions, specs, sizes, refuse)
    for name, (one, other) in shapes.items():
        if not one.rank:
            cure = "it return one value per example, without tf.reduce_mean or with axis=-1"
            if outputs_spec.shape.rank == 1:
                cure = "the model give outputs [None, 1] in place of [None]"
            raise ModelError(
                f"{named(name)} gives one number for the whole batch, padding included; let {cure}."
            )
        if one[1:] != other[1:]:
            raise ModelError(
                f"{named(name)} compares the target of an example with the outputs of all: targets "
                f"{targets} and outputs {outputs} are broadcast; make their shapes equal, with "
                "from_keras's y_spec= or inside the function."
            )
        if [one[0], other[0]] != sizes:
            raise ModelError(
                f"{named(name)} returns values {one.as_list()} for {sizes[0]} examples with "
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
                f"{named(name)} {does} ({node.op}), so its values could not be repeated. Compute "
                "them from the targets and outputs alone."
            )


def is_nan_of_nan(loss: Callable, y_spec: tf.TensorSpec, outputs_spec: tf.TensorSpec) -> bool:
    """Returns whether a loss is NaN for every example with a NaN among its outputs."""
    if not outputs_spec.dtype.is_floating:
        return True
    shape = [4, *(size or 3 for size in outputs_spec.shape[1:])]
    outputs = np.full(shape, 0.5, outputs_spec.dtype.as_numpy_dtype)
    outputs.reshape(4, -1)[[0, 1, 2, 3], [0, 0, -1, -1]] = np.nan
    y = np.zeros([4, *(size or 3 for size in y_spec.shape[1:])], y_spec.dtype.as_numpy_dtype)
    if y_spec.dtype.is_floating or y_spec.dtype.is_integer:
        y[1::2] = 1
    result = or_none(loss, tf.constant(y), tf.constant(outputs))
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


@_without_tensor_float_32()
def refuse_mixed_examples(
    keras_model: tf.keras.Model,
    apply: Callable,
    x_spec: tf.TensorSpec,
    y_spec: tf.TensorSpec,
    functions: Mapping[str, Callable],
    examples: tuple[np.ndarray, np.ndarray] | None,
) -> None:
    """Refuses functions whose value for an example depends on the rest of the batch.

    The test runs in training mode and in test mode. Dropout is off, since it draws by an example's
    position.

    Args:
      keras_model: The model.
      apply: The model as a function, of `as_function`.
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
            found = [or_none(apply, weights, b, training, None) for b in batches(x, x_spec)]
            outputs = [f and f[0] for f in found]
            _refuse_unlike(f"Model {keras_model.name!r}{mode}", outputs)
            if any(o is None for o in outputs):
                return False
            finite &= all(np.all(np.isfinite(tf.cast(o, tf.float32))) for o in outputs)
        for y in targets:
            pairs = list(zip(batches(y, y_spec), outputs, strict=True))
            for name, function in functions.items():
                _refuse_unlike(named(name), [or_none(function, *pair) for pair in pairs])
        return finite

    if examples is not None and len(examples[1]) > 1:
        look_at(*_mixed_rows(*examples))
    # The first that the model takes.
    any(look_at(x, *made_up_targets(y_spec)) for x in made_up_inputs(x_spec))


def _mixed_rows(x, y):
    """Returns a batch of six drawn from two or more examples; targets differ if any do."""
    order = np.argsort(np.asarray(y).reshape(len(y), -1).sum(1), kind="stable")
    rows = order[np.array([0, -1, 1, 2, -2, -3]) % len(order)]
    return np.asarray(x)[rows], np.asarray(y)[rows]


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
