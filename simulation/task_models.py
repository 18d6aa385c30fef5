"""A task's model in the form that methods need."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

import tff_algos
from simulation.errors import RunError
from tasks import task as task_lib
from tasks.task import ElementwiseFn, FederatedData, Task

# A feature is reported if rounding changes it by more than this share of its standard deviation.
_COARSE = 0.05


class TaskModel(NamedTuple):
    """A task's model.

    Attributes:
      model: The model, a `tff_algos.model.Model`.
      num_outputs: Number of outputs for one example.
      keras_model: The Keras model behind it, in the run's precision.
      doubts: See `tff_algos.Model`, whose own are empty here: a run warns once.
    """

    model: "tff_algos.Model"
    num_outputs: int
    keras_model: Any
    doubts: tuple[str, ...] = ()


def build(
    task: Task,
    settings: Mapping[str, Any],
    further_metrics: Mapping[str, ElementwiseFn] | None = None,
) -> TaskModel:
    """Builds the model of a task.

    Args:
      task: The task.
      settings: The run's settings; uses `seed` (for initial weights), `precision` and `loss_scale`.
      further_metrics: Metrics by name, in addition to the task's.

    Raises:
      RunError: If methods do not support the model.
    """
    import tensorflow as tf

    x, y = task.train.examples(task_lib.first_with_examples(task.train))
    try:
        for name, values in (("inputs", x), ("targets", y)):
            if not isinstance(values, np.ndarray):
                kind = type(values).__name__
                raise tff_algos.ModelError(
                    f"{name} must be one array, not a {kind}: join several arrays into one, and "
                    "split it inside the model."
                )
            if values.dtype.kind not in "biuf":
                raise tff_algos.ModelError(f"{name} must be numbers, not {values.dtype}.")
            if values.dtype.kind == "f" and values.dtype.itemsize > 8:  # TensorFlow has none.
                raise tff_algos.ModelError(
                    f"{name} are {values.dtype}; make them float32, by astype."
                )
        made = keras_model(task, settings)
        _require_precision(made, settings["precision"])
        model = tff_algos.from_keras(
            made,
            loss=task.loss,
            metrics={**task.metrics, **(further_metrics or {})},
            x_spec=_input_spec(made, x),
            y_spec=tf.TensorSpec([None, *y.shape[1:]], y.dtype),
            loss_reduction=task.loss_reduction,
            loss_scale=settings["loss_scale"],
            examples=_varied_examples(task.train),
        )
        if not model.x_spec.shape[1:].is_compatible_with(x.shape[1:]):
            wanted, found = model.x_spec.shape[1:].as_list(), list(x.shape[1:])
            raise tff_algos.ModelError(f"it takes inputs {wanted}, but examples have {found}.")
    except tff_algos.ModelError as e:
        raise RunError(f"The model of task {task.name} cannot be used: {e}") from e
    shape = getattr(made, "output_shape", None)
    if shape is None or None in shape[1:]:
        shape = made.compute_output_shape(model.x_spec.shape)
    outputs = int(np.prod(shape[1:]))
    return TaskModel(model._replace(doubts=()), outputs, made, model.doubts)


def keras_model(task: Task, settings: Mapping[str, Any]) -> Any:
    """Returns the Keras model of a task with its initial weights.

    Args:
      task: The task.
      settings: The run's settings; uses `seed` and `precision`.
    """
    with _policy(settings["precision"]):
        return task.keras_model(settings["seed"])


def _varied_examples(
    train: FederatedData, most: int = 32, clients: int = 4
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns some inputs and targets `[n, ...]`, of clients until one has no new target.

    Args:
      train: Clients' examples.
      most: Most examples per client.
      clients: Most clients.
    """
    xs, ys, known = [], [], set()
    for client in np.flatnonzero(train.sizes)[:clients]:
        x, y = train.examples(int(client))[:2]
        if xs and (x.shape[1:], y.shape[1:]) != (xs[0].shape[1:], ys[0].shape[1:]):
            break  # Unequal shapes are refused when the client is read for a round.
        rows = np.unique(np.linspace(0, len(y) - 1, most).astype(int))
        xs.append(x[rows])
        ys.append(y[rows])
        before = len(known)
        known.update(target.tobytes() for target in ys[-1])
        if len(known) == before:
            break
    return (np.concatenate(xs), np.concatenate(ys)) if xs else None


def _input_spec(keras_model: Any, x: np.ndarray) -> Any:
    """Returns the spec of a batch of inputs; unknown dimensions are taken from the examples.

    Dimensions are unknown for sequences of any length, and for subclassed models, which do not know
    their input's shape.
    """
    import tensorflow as tf

    inputs = getattr(keras_model, "inputs", None)
    if not getattr(keras_model, "built", False) or (inputs and len(inputs) != 1):
        return None  # `tff_algos.from_keras` refuses it, and says what to do.
    if not inputs:
        return tf.TensorSpec([None, *x.shape[1:]], x.dtype)
    shape = inputs[0].shape
    if shape.rank == x.ndim:
        shape = [
            None,
            *(b if a is None else a for a, b in zip(shape[1:], x.shape[1:], strict=True)),
        ]
    return tf.TensorSpec(shape, inputs[0].dtype)


def _require_precision(keras_model: Any, name: str) -> None:
    """Refuses a model that was made beforehand with another precision."""
    from tensorflow.keras import mixed_precision

    if name == "float32":
        return
    found = {layer.compute_dtype for layer in keras_model.layers}
    if mixed_precision.Policy(name).compute_dtype not in found:
        raise tff_algos.ModelError(
            f"its layers compute in {', '.join(sorted(found))}, so --precision={name} has no "
            f"effect; make it with tf.keras.mixed_precision's policy {name!r} set."
        )


def lost_in_precision(model: TaskModel, train: FederatedData) -> str | None:
    """Returns what the model's precision loses of a feature, as text; `None` if little is lost.

    Looks at some examples of flat inputs `[n, features]`, such as years that are not standardized.

    Args:
      model: The model, in the run's precision.
      train: Clients' examples.
    """
    import tensorflow as tf

    layers = [k for k in model.keras_model.layers if type(k).__name__ != "InputLayer"]
    dtype = tf.as_dtype(layers[0].compute_dtype) if layers else tf.float32
    examples = _varied_examples(train)
    if examples is None or dtype.size > 2 or not model.model.x_spec.dtype.is_floating:
        return None
    x = examples[0].astype(np.float64)
    if x.ndim != 2 or not x.size:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        errors = np.abs(x.astype(np.float32).astype(dtype.as_numpy_dtype).astype(np.float64) - x)
        deviations = x.std(0)
        # Of features of one value, nothing is to be learnt.
        shares = np.where(deviations > 0, np.sqrt((errors**2).mean(0)) / deviations, 0.0)
    worst = int(np.argmax(shares))
    if not shares[worst] > _COARSE:
        return None
    return (
        f"{dtype.name} rounds feature {worst} by up to {errors[:, worst].max():.3g}, and its "
        f"standard deviation is {deviations[worst]:.3g}"
    )


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
    """Within this context, new layers get the Keras precision policy of that name."""
    from tensorflow.keras import mixed_precision

    before = mixed_precision.global_policy()
    mixed_precision.set_global_policy(name)
    try:
        yield
    finally:
        mixed_precision.set_global_policy(before)
