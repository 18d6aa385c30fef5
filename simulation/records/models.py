"""The final model of a run, and the initial weights of one.

`model/final.keras` has Keras's own format: `tf.keras.models.load_model` reads it on either stack.
It needs only Keras if every layer is a Keras layer or one of the suite's faster versions of these,
which are saved under the names of Keras's own. For any other layer of the suite, run
`import tasks.layers.registered` first. If Keras cannot serialise a model, e.g. because a layer
lacks `get_config`, only the weights are saved, as `model/final.weights.h5`.

Both formats silently leave out weights of layers in nested containers, such as a list of lists. So
a file is read again before it is kept. If it lacks weights, all weights are saved as
`model/final.weights.npz` instead, in the model's order.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from simulation.errors import RunError
from simulation.records import files, outputs
from tasks.task import Task
from tff_suite import compat, writing

FOLDER = "model"
_HELD = (
    "Keras's format has only layers that are attributes or in flat lists of layers; hold them so"
)
_WHOLE, _WEIGHTS, _ARRAYS = "final.keras", "final.weights.h5", "final.weights.npz"
_NAMES = _WHOLE, _WEIGHTS, _ARRAYS
# Parts of a table's `encoding` by which numbers have their meaning.
_MEANINGS = "features categories subtracted_before mean deviation words classes".split()


class IncompleteError(RunError):
    """Keras's formats leave out some of a model's weights."""


def write(folder: str, keras_model: Any, weights: Sequence[np.ndarray]) -> str:
    """Writes a model with the given trainable weights.

    Args:
      folder: Folder of the experiment.
      keras_model: The Keras model; its own weights are restored afterwards.
      weights: One array per trainable weight.

    Returns:
      Path of the file.

    Raises:
      IncompleteError: After writing the weights alone, since Keras's file would lack some.
      OSError: If it cannot be written.
    """
    before = [v.numpy() for v in keras_model.weights]
    os.makedirs(os.path.join(folder, FOLDER), exist_ok=True)
    remove(folder)
    with tempfile.TemporaryDirectory() as temporary:
        _assign(keras_model, weights)
        arrays = [v.numpy() for v in keras_model.weights]
        try:
            name = _WHOLE
            keras_model.save(os.path.join(temporary, name))
        except OSError:
            raise
        except Exception:  # Users write `get_config`, which may raise anything.
            name = _WEIGHTS
            keras_model.save_weights(os.path.join(temporary, name))
        try:
            lacking = _load(keras_model, os.path.join(temporary, name))
        finally:
            # A file that lacks weights has left marks in their place.
            for variable, value in zip(keras_model.weights, before, strict=True):
                variable.assign(value)
        if lacking:
            held = io.BytesIO()
            np.savez(held, *arrays)
            files.write_atomically(os.path.join(folder, FOLDER, _ARRAYS), held.getvalue())
            raise IncompleteError(
                f"{FOLDER}/{name} is not written, since it would lack {lacking}. {_HELD}, or load "
                f"{_ARRAYS} with set_weights."
            )
        with open(os.path.join(temporary, name), "rb") as file:
            content = compat.for_both_stacks(file.read())
    path = os.path.join(folder, FOLDER, name)
    files.write_atomically(path, content)
    return path


def remove(folder: str) -> None:
    """Removes the model that an earlier end of the run wrote, if any."""
    for name in _NAMES:
        path = os.path.join(folder, FOLDER, name)
        if os.path.exists(path):
            os.remove(path)


def beginning_with(task: Task, seed: int, path: str) -> Task:
    """Returns a task whose model begins with the weights of a file.

    Args:
      task: The task.
      seed: The run's seed.
      path: `--initial_weights`: a `.keras`, `.h5` or `.npz` file, or the folder of a SavedModel or
        of a run.

    Raises:
      RunError: If the file cannot be read, or belongs to another model.
    """
    keras_model, found = task.keras_model(seed), find(path)
    try:
        _read(keras_model, found)
    except Exception as e:  # Keras, h5py and zipfile raise many types for files they can't read.
        reason = " ".join(str(e).split())[:200]
        raise RunError(
            f"--initial_weights={path} does not fit the model of {task.name}: {reason}"
        ) from e
    weights = keras_model.get_weights()
    if not all(np.all(np.isfinite(w)) for w in weights):
        raise RunError(f"--initial_weights={path} holds NaN or infinite numbers.")

    make = task.keras_model_fn
    assert make is not None  # It has just made a model.

    def with_weights(seed: int) -> Any:
        made = make(seed)
        made.set_weights(weights)
        return made

    # The identity of the run includes the code of the original function.
    functools.update_wrapper(with_weights, make, assigned=(), updated=())
    # As part of the data, so that a run does not resume with other initial weights.
    digested = {f"initial weight {i}": w for i, w in enumerate(weights)}
    return dataclasses.replace(
        task, keras_model_fn=with_weights, constants={**task.constants, **digested}
    )


def other_meanings(task: Task, path: str) -> list[str]:
    """Returns which parts of the encodings differ between a task and the run that left weights.

    Args:
      task: The task.
      path: `--initial_weights`.

    Returns:
      Names such as `words` or `classes`. None if task or weights come without an encoding.

    Raises:
      RunError: If `path` names no weights, or its run's `encoding.json` is damaged.
    """
    folder, inner = os.path.split(os.path.dirname(os.path.abspath(find(path))))
    before = outputs.read_json(os.path.join(folder, "encoding.json")) if inner == FOLDER else None
    if not before or not task.encoding:
        return []
    now = json.loads(writing.json_text(task.encoding))
    return [name for name in _MEANINGS if before.get(name) != now.get(name)]


def find(path: str) -> str:
    """Returns the file of weights, or the folder of a SavedModel, that `--initial_weights` names.

    Raises:
      RunError: If it does not exist or has another form.
    """

    def refuse(reason):
        raise RunError(f"--initial_weights={path} cannot be used: {reason}")

    found = os.path.expanduser(path)
    if not os.path.exists(found):
        refuse("there is no such file.")
    for name in _NAMES:
        if os.path.exists(os.path.join(found, FOLDER, name)):
            return os.path.join(found, FOLDER, name)
    if not os.path.isdir(found):
        if not found.endswith((".keras", ".h5", ".npz")):
            refuse("a file must end in .keras, .h5 or .npz.")
    elif not os.path.exists(os.path.join(found, "saved_model.pb")):
        refuse("the folder holds neither a SavedModel nor a finished run's model/.")
    return found


def load(path: str) -> Any:
    """Returns the Keras model of a `.keras` file from either stack.

    For a file that `write` has made, `tf.keras.models.load_model` is enough.
    """
    import tensorflow as tf

    with _for_this_stack(path) as readable:
        return tf.keras.models.load_model(readable)


@contextlib.contextmanager
def _for_this_stack(path):
    with tempfile.TemporaryDirectory() as temporary, open(path, "rb") as file:
        readable = os.path.join(temporary, os.path.basename(path))
        with open(readable, "wb") as copy:
            copy.write(compat.for_both_stacks(file.read()))
        yield readable


def _read(keras_model, path):
    import tensorflow as tf

    if path.endswith(".npz"):
        with np.load(path) as arrays:
            keras_model.set_weights([arrays[name] for name in arrays.files])
        return
    if not os.path.isdir(path):
        with _for_this_stack(path) as readable:
            lacking = _load(keras_model, readable)
        if lacking:
            raise ValueError(f"it lacks {lacking}. {_HELD}, and save it again.")
        return
    loaded = tf.saved_model.load(path)
    found: Any = getattr(loaded, "trainable_variables", None) or getattr(loaded, "variables", ())
    _assign(keras_model, [v.numpy() for v in found])


def _load(keras_model, path):
    """Loads weights from a file; returns which of the model's it lacks, as text, or blank."""
    # Keras says nothing of weights that a file lacks, so they are marked by a number.
    marked = [v for v in keras_model.weights if v.dtype.is_floating and v.shape.num_elements()]
    for variable in marked:
        variable.assign(np.full(variable.shape.as_list(), variable.dtype.min))
    keras_model.load_weights(path)
    lacking = [v.name for v in marked if np.all(v.numpy() == v.dtype.min)]
    if not lacking:
        return ""
    more = f" and {len(lacking) - 1} more weights" if len(lacking) > 1 else ""
    return f"{lacking[0]!r}{more}"


def _assign(keras_model, weights):
    variables = keras_model.trainable_variables
    shapes, found = [list(v.shape) for v in variables], [list(np.shape(w)) for w in weights]
    if shapes != found:
        raise ValueError(f"its trainable weights have shapes {found}, not {shapes}.")
    for variable, weight in zip(variables, weights, strict=True):
        variable.assign(weight)
