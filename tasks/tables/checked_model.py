"""Models that are checked against target and texts."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.tables.target import Target
from tasks.task import TaskError


class CheckedModel:
    """A model function whose models are checked against target and texts.

    Args:
      make: The model function.
      target: The target.
      decides_loss: Whether the loss is the target's default.
      most_word: The largest number of a word, if inputs are texts.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        target: Target,
        decides_loss: bool,
        most_word: int | None = None,
    ):
        self.__wrapped__ = make
        self._name, self._classes, self._decides_loss = target.name, target.classes, decides_loss
        self._most_word = most_word

    def __call__(self, seed: int) -> Any:
        """Returns the model of a seed after checking it."""
        model = self.__wrapped__(seed)
        if self._most_word is not None:
            rows = _embedding_rows(model)
            # On a GPU, TensorFlow would take zeros for words without a row.
            if rows is not None and rows <= self._most_word:
                raise TaskError(
                    f"the model's embedding has {rows} rows, but texts have words of numbers up to "
                    f"{self._most_word}: give it vocabulary_size + 2 rows."
                )
        shape = getattr(model, "output_shape", None)
        if not self._decides_loss or not isinstance(shape, tuple) or shape[-1] is None:
            return model
        wanted = 1 if self._classes is None else len(self._classes)
        if shape[-1] != wanted:
            what = "is a number" if self._classes is None else f"has {wanted} classes"
            raise TaskError(
                f"the model gives {shape[-1]} outputs, but target {self._name!r} {what}: give its "
                f"last layer {wanted} unit{'s' * (wanted > 1)}."
            )
        kind = _last_activation(model)
        if self._classes is not None and kind in ("softmax", "sigmoid"):
            raise TaskError(
                f"the model's last layer has a {kind}, but the default loss of target "
                f"{self._name!r} takes logits: remove it, or give "
                "loss='sparse_categorical_crossentropy'."
            )
        return model


def _embedding_rows(model: Any) -> int | None:
    """Returns the number of rows of the embedding with which a model begins, if one does."""
    layers = [model]
    while layers and getattr(layers[0], "layers", None):
        layers = [x for x in layers[0].layers if type(x).__name__ != "InputLayer"]
    begins = bool(layers) and type(layers[0]).__name__ == "Embedding"
    return layers[0].input_dim if begins else None


def _last_activation(model: Any) -> str:
    """Returns the name of the activation with which a model ends, or of its last layer."""
    last = model
    while getattr(last, "layers", None):
        last = last.layers[-1]
    function = getattr(last, "activation", None)
    found = getattr(function, "__name__", type(last).__name__).lower()
    if found in ("softmax", "sigmoid") or not _gives_shares(model):
        return found
    return "softmax"


def _gives_shares(model: Any) -> bool:
    """Returns whether a model's outputs are shares that add up to 1, for made-up inputs.

    A softmax can be in a function, or before a layer that only changes the shape.
    """
    try:
        (x,) = model.inputs
        shape = (4, *(size or 3 for size in x.shape[1:]))
        made_up = np.random.default_rng(0).uniform(0, 2, shape)
        outputs = np.asarray(model(made_up.astype(x.dtype.as_numpy_dtype), training=False))
        sums = outputs.astype(np.float64).sum(-1)
    # The model is the caller's, and need not take every value.
    except Exception:
        return False
    return bool(np.all(outputs >= 0) and np.allclose(sums, 1, atol=1e-2))
