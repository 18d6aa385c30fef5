"""A model as pure functions of its weights, the form that methods use."""

from __future__ import annotations

import collections
import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_suite.errors import FedError


class ModelError(FedError, ValueError):
    """A model that cannot be used as a pure function; the text names the part and the remedy."""


# TensorFlow's messages on a CPU. On a GPU the loss becomes NaN instead, and the client is dropped.
BEYOND_THE_MODEL = re.compile(
    r"Received a label value of -?\d+ which is outside the valid range of \[0, \d+\)"
    r"|indices\[[\d,]*\] = -?\d+ is not in \[0, \d+\)"
)
_CHANNELS_FIRST = re.compile(r"\w+( \w+)* only supports (the )?NHWC[^.\n]*")


@contextlib.contextmanager
def unfit_explained() -> Iterator[None]:
    """A context in which TensorFlow runs a model on clients' examples.

    Raises:
      ModelError: For TensorFlow's errors about labels or tokens out of the model's range, and about
        layers with `channels_first` on a CPU.
    """
    try:
        yield
    except Exception as e:
        beyond, first = (p.search(str(e)) for p in (BEYOND_THE_MODEL, _CHANNELS_FIRST))
        if beyond:
            raise ModelError(f"Examples of a client do not fit the model: {beyond[0]}.") from e
        if first:
            raise ModelError(
                "A layer has data_format='channels_first', which TensorFlow cannot train on a CPU "
                f"({first[0]}): set it to 'channels_last'."
            ) from e
        raise


class Forward(NamedTuple):
    """The result of one forward pass.

    Attributes:
      objective: Scalar that training minimises: mean (or sum) loss of the batch's real examples,
        regularisers included.
      metrics: Name → (values `[batch]`, weights `[batch]`), float32; `loss` comes first. A value is
        the weighted *sum* over the positions of an example; a metric over many examples is the sum
        of values over the sum of weights. Padding has value and weight zero.
    """

    objective: tf.Tensor
    metrics: collections.OrderedDict[str, tuple[tf.Tensor, tf.Tensor]]


class Model(NamedTuple):
    """Pure functions over the trainable weights.

    Attributes:
      initial_weights: One array per trainable variable, in the model's order.
      x_spec: `tf.TensorSpec` of a batch of inputs, `[None, ...]`.
      y_spec: `tf.TensorSpec` of a batch of targets, `[None, ...]`.
      forward: `(weights, batch, training, seed) -> Forward`; `seed` is int32 `[2]` and only used in
        training.
      outputs: `(weights, x) -> outputs [batch, ...]`, the argument of the loss, with dropout off;
        `None` if the model does not expose it.
      metric_names: Names of the metrics of `forward`, in its order; `None` if only tracing a
        forward pass reveals them.
      forward_on_changed: `(weights, batch, training, seed, change) -> Forward`: as `forward`, but
        `change` is applied to the prepared inputs first, for example to cropped and scaled images.
        `None` if the model uses its inputs as they are.
      loss_reduction: Whether `objective` is the `mean` or the `sum` of the metric `loss` over a
        batch.
      loss_scale: Factor on the gradient of `objective` alone, while it passes back through layers
        of 16 bits; `None` if there is no such factor.
      frozen_weights: One array per non-trainable variable, in the model's order. `forward` holds
        them as constants.
      calls_python: Whether `forward` runs Python code at every call, as `tf.py_function` does.
      doubts: Texts about a loss or metric whose numbers may not be what they are taken for, such as
        a cross-entropy of probabilities that gets logits. `tff_algos.build` warns of them.
    """

    initial_weights: tuple[np.ndarray, ...]
    x_spec: tf.TensorSpec
    y_spec: tf.TensorSpec
    forward: Callable[..., Forward]
    outputs: Callable[..., tf.Tensor] | None = None
    metric_names: tuple[str, ...] | None = None
    forward_on_changed: Callable[..., Forward] | None = None
    loss_reduction: str = "mean"
    loss_scale: float | None = None
    frozen_weights: tuple[np.ndarray, ...] = ()
    calls_python: bool = False
    doubts: tuple[str, ...] = ()


def elementwise(
    fn: Callable, y: tf.Tensor, outputs: Any, mask: tf.Tensor, differentiated: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Applies an elementwise loss or metric and sums it over the positions of each example.

    Args:
      fn: `(y, outputs) -> values [batch, ...]` or `(values, weights)`.
      y: Targets, `[batch, ...]`.
      outputs: The model's outputs for the batch.
      mask: float32 `[batch]`.
      differentiated: Whether the gradient of the sums will be taken. Positions of weight zero then
        add zero to it, even if their own gradient is not finite.

    Returns:
      Sums of weighted values and sums of weights, each float32 `[batch]`, zero for padding. Values
      of weight zero need not be finite.

    Raises:
      ModelError: If the function does not return values for each example.
    """
    result = fn(y, outputs)
    if isinstance(result, tuple) and differentiated:
        # Called again now that the weights are known; the first values are never computed.
        result = fn(y, _guarded(outputs, result[1]))
    values, weights = result if isinstance(result, tuple) else (result, None)
    values = tf.cast(values, tf.float32)
    if values.shape.rank == 0:
        raise ModelError(
            "A loss or metric gave one number for the whole batch, padding included; it must give "
            "one for every example: take the mean over its own numbers only."
        )
    positions = list(range(1, values.shape.rank))
    if weights is None:
        weights = tf.ones_like(values)
    else:
        weights = tf.cast(weights, tf.float32)
        # The value may not be finite there, and 0 * inf is not 0.
        values = tf.where(tf.equal(weights, 0.0), tf.zeros_like(values), values)
    real = mask > 0
    sums = tf.reduce_sum(values * weights, positions)
    return (
        tf.where(real, sums, tf.zeros_like(sums)),
        tf.where(real, tf.reduce_sum(weights, positions), tf.zeros_like(sums)),
    )


def _guarded(outputs: tf.Tensor, weights: Any) -> tf.Tensor:
    """Returns the outputs, with gradient 0 where it is not finite and all weights are zero.

    Zero times the slope of a function is not zero if that slope is infinite.

    Args:
      outputs: `[batch, ...]`.
      weights: Weights of the values, `[batch, ...]`.
    """
    counts = tf.not_equal(tf.cast(weights, tf.float32), 0.0)
    while not outputs.shape[: counts.shape.rank].is_compatible_with(counts.shape):
        counts = tf.reduce_any(counts, axis=-1)
    counts = tf.reshape(
        counts, tf.concat([tf.shape(counts), [1] * (outputs.shape.rank - counts.shape.rank)], 0)
    )

    @tf.custom_gradient
    def guarded(values: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            dy = tf.convert_to_tensor(dy)
            return tf.where(counts | tf.math.is_finite(dy), dy, tf.zeros_like(dy))

        return tf.identity(values), gradient

    result = guarded(outputs)
    # Keras and the layers leave things with a tensor: its mask, the logits that it comes from.
    for name, value in vars(outputs).items():
        if name not in vars(result):
            alike = tf.is_tensor(value) and value.dtype == outputs.dtype
            setattr(result, name, guarded(value) if alike else value)
    return result
