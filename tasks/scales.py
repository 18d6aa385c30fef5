"""Whether inputs of tests are scaled as those of training are, and how large numbers are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.task import FederatedData, Task

# At most so many clients and examples of each part are looked at.
_CLIENTS = 20
_ROWS = 100
# Pixels that are scaled, or standardised, lie within this.
_MOST_SCALED = 10
# Features are taken for raw if half of their absolute values are above this.
_LEAST_RAW = 10
# Numbers whose root mean square is above this are too large for usual learning rates.
_LARGE = 10
# Layers of Keras that take large numbers.
_SCALING = "Rescaling Normalization BatchNormalization Embedding".split()
# Standardised features have means of 0 and deviations of 1, and those of some clients about that.
_STANDARDIZED_MEAN = 1
_STANDARDIZED_DEVIATIONS = 0.3, 3
_FEWEST_ROWS = 8


def in_tests(task: Task) -> list[str]:
    """Returns a line for each part that is scaled while training is not, or the reverse."""
    lines = []
    train = _of_clients(task.train)[0]
    for part in ("test", "validation"):
        data = getattr(task, part)
        if data is not None:
            lines.append(_difference(part, _of_clients(data)[0], train))
    if task.central_test is not None:
        lines.append(_difference("central_test", _first(task.central_test.x), train))
    return list(filter(None, lines))


def large_numbers(task: Task) -> dict[str, float]:
    """Returns the largest absolute values of training inputs and targets that are large floats.

    Whole numbers are classes, words or pixels, and are not looked at.

    Args:
      task: The task.

    Returns:
      `inputs`, `targets`, both or neither → the largest absolute value.
    """
    large = {}
    for what, values in zip(("inputs", "targets"), _of_clients(task.train), strict=True):
        if values is None or values.dtype.kind != "f" or not np.all(np.isfinite(values)):
            continue
        # By feature, since a large one is enough.
        if np.any(np.sqrt(np.mean(_by_feature(values) ** 2, axis=0)) > _LARGE):
            large[what] = float(np.abs(values).max())
    return large


def in_training(large: Mapping[str, float], keras_model: Any) -> str:
    """Returns a line that names large inputs and targets; empty if there are none.

    Args:
      large: See `large_numbers`.
      keras_model: The task's model, if it could be made. Inputs are not named if one of its layers
        scales them or looks them up.
    """
    scales = any(type(layer).__name__ in _SCALING for layer in _layers(keras_model))
    scaled = {"inputs"} if scales else set()
    named = {what: most for what, most in large.items() if what not in scaled}
    told = " and ".join(f"{what} as large as {most:.3g}" for what, most in named.items())
    return told and (
        f"training has {told}; unless the model or loss scales them, many learning rates diverge, "
        "and adaptive methods learn slowly"
    )


def _layers(keras_model: Any) -> Iterator[Any]:
    """Yields a model's layers, and those of models inside it."""
    for layer in getattr(keras_model, "layers", ()):
        yield layer
        yield from _layers(layer)


def cure(large: Mapping[str, float]) -> str:
    """Returns advice for training that diverged on large numbers; empty if there are none.

    Args:
      large: See `large_numbers`.
    """
    told = " and the ".join(f"{what} (up to {most:.3g})" for what, most in large.items())
    return told and f"scale the {told}, or lower the learning rate"


def _of_clients(data: FederatedData) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns inputs and targets `[n, ...]` of some clients, or `None` for what is not numbers."""
    filled = np.flatnonzero(data.sizes)
    if not filled.size:
        return None, None
    at = np.linspace(0, len(filled) - 1, min(_CLIENTS, len(filled))).astype(int)
    number = _ROWS // len(at)
    found = [[_first(v, number) for v in data.examples(int(k))[:2]] for k in filled[at]]
    x, y = map(_joined, zip(*found, strict=True))
    return x, y


def _joined(found: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Returns the values that have the first ones' shape, if those are numbers."""
    first = found[0]
    if first is None:
        return None
    return np.concatenate([x for x in found if x is not None and x.shape[1:] == first.shape[1:]])


def _first(values: Any, number: int = _ROWS) -> np.ndarray | None:
    """Returns the first values if they are numbers."""
    found = np.asarray(values[:number])
    return found if found.size and found.dtype.kind in "iuf" else None


def _difference(part: str, own: np.ndarray | None, train: np.ndarray | None) -> str:
    if own is None or train is None:
        return ""
    pairs = (own, part, train, "train"), (train, "train", own, part)
    for raw, of, scaled, other in pairs:
        if _are_pixels(raw) and _are_scaled(scaled):
            return (
                f"inputs of {of} are pixels up to {raw.max():g}, and those of {other} are "
                f"fractions up to {scaled.max():.3g}; scale both alike"
            )
    if own.shape[1:] != train.shape[1:] or min(len(own), len(train)) < _FEWEST_ROWS:
        return ""
    for raw, of, scaled, other in pairs:
        raw, scaled = _by_feature(raw), _by_feature(scaled)
        differs = _are_raw(raw) & _are_standardized(scaled)
        if differs.any():
            k = int(np.argmax(differs))
            return (
                f"{f'input {k}' if len(differs) > 1 else 'the input'} has a median of "
                f"{np.median(raw[:, k]):.3g} in {of}, and in {other} it looks standardized, with a "
                f"deviation of {scaled[:, k].std():.2g}; scale both alike"
            )
    return ""


def _are_pixels(x: np.ndarray) -> bool:
    """Returns whether numbers are pixels up to 255; those of resized images may be fractions."""
    are_whole = np.all(x == np.floor(x)) or (x.ndim > 2 and np.mean(x) > _MOST_SCALED)
    return bool(x.min() >= 0 and 100 < x.max() <= 255 and are_whole)


def _are_scaled(x: np.ndarray) -> bool:
    return bool(np.abs(x).max() <= _MOST_SCALED and np.any(x != np.floor(x)))


def _by_feature(x: np.ndarray) -> np.ndarray:
    """Returns a column for each feature; images and sequences are one feature."""
    return x.reshape(-1, x.shape[1] if x.ndim == 2 else 1).astype(np.float64)


def _are_raw(x: np.ndarray) -> np.ndarray:
    return np.median(np.abs(x), axis=0) > _LEAST_RAW


def _are_standardized(x: np.ndarray) -> np.ndarray:
    least, most = _STANDARDIZED_DEVIATIONS
    deviations = x.std(0)
    near_1 = (least <= deviations) & (deviations <= most)
    return near_1 & (x.min(0) < 0) & (np.abs(x.mean(0)) <= _STANDARDIZED_MEAN)
