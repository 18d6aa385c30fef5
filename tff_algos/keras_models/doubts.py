"""What Keras takes without a word, though it is rarely meant."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algos.keras_models.losses import named, options_of, shown, takes_classes
from tff_algos.keras_models.made_up import made_up_inputs, or_none

# Functions of Keras's by what they take, unless it is logits.
_OF_PROBABILITIES = (
    "binary_crossentropy",
    "binary_focal_crossentropy",
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "sparse_categorical_crossentropy",
)
_OF_THRESHOLD = ("binary_accuracy", "binary_matches")


def some_outputs(
    apply: Callable, x_spec: tf.TensorSpec, examples: tuple[np.ndarray, np.ndarray] | None
) -> np.ndarray | None:
    """Returns the finite outputs for examples, or for made-up ones; `None` if there are none."""
    given = made_up_inputs(x_spec) if examples is None else [examples[0][:32]]
    for x in given:
        outputs = or_none(
            apply, None, tf.constant(x.astype(x_spec.dtype.as_numpy_dtype)), False, None
        )
        if outputs is not None:
            found = np.asarray(tf.cast(outputs[0], tf.float32))
            found = found[np.isfinite(found)]
            if found.size:
                return found
    return None


def doubts_of(
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
    known = {name: options_of(function, width) for name, function in functions.items()}
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
                f"{named(name)} takes probabilities, but an output of the model is {beyond:.3g}: "
                "set from_logits=True, or end the model with a sigmoid or softmax."
            )
        else:
            doubts.append(
                f"{named(name)} takes outputs above 0.5 for class 1, but an output of the model is "
                f"{beyond:.3g}: for logits give tf.keras.metrics.BinaryAccuracy(threshold=0.0)."
            )
    loss = known["loss"][0]
    beyond = None
    if loss in _OF_PROBABILITIES and not takes_classes(functions["loss"]) and examples is not None:
        beyond = _beyond(np.asarray(examples[1]))
    if beyond is not None:
        doubts.append(
            f"The loss takes targets from 0 to 1, but a target is {beyond:.3g}: number the two "
            "classes 0 and 1, or give one number per class."
        )
    if target.rank + 1 == output.rank:
        target = target + [1]  # As Keras does.
    if loss and not takes_classes(functions["loss"]) and target.rank == output.rank:
        pairs = zip(target, output, strict=True)
        if any(one != other and 1 in (one, other) for one, other in pairs if one and other):
            doubts.append(
                f"The loss compares targets {shown(y_spec)} with outputs {shown(outputs_spec)} "
                "by repeating the shorter ones: make their shapes equal if that is not meant."
            )
    return tuple(doubts)


def _beyond(numbers: np.ndarray | None) -> float | None:
    """Returns one of the numbers that is not from 0 to 1, as probabilities are."""
    if numbers is None or numbers.dtype.kind not in "iuf":
        return None
    numbers = numbers[~((numbers >= -1e-3) & (numbers <= 1 + 1e-3)) & np.isfinite(numbers)]
    return float(numbers[0]) if numbers.size else None
