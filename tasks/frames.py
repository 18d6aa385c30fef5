"""Tasks made from your own table or arrays.

`from_frame` takes a pandas table, `from_arrays` takes arrays. Both return a `tasks.task.Task`, and
check as much as possible before a run. Features are scaled only if `standardize` says so.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tasks import partitions
from tasks.tables.arguments import check_share, count
from tasks.tables.arrays import Arrays, of_arrays, refuse_other_columns
from tasks.tables.checked_model import CheckedModel
from tasks.tables.columns import for_json
from tasks.tables.doubts import (
    keys_of,
    report_copies,
    report_leaks,
    report_standardized_apart,
    report_strangers,
    report_users,
)
from tasks.tables.features import Features, feature_columns
from tasks.tables.images import Images
from tasks.tables.table import Table, check_ids
from tasks.tables.target import Target
from tasks.tables.texts import Texts
from tasks.tables.told import report_untrained
from tasks.task import ArrayFederatedData, Examples, Task, TaskError
from tff_suite import imports
from tff_suite.user_warnings import warn

with imports.when_used():
    from tasks.models import losses

if TYPE_CHECKING:
    import pandas as pd

PARTITIONS = ("dirichlet", "shards", "iid")


def from_frame(
    df: "pd.DataFrame",
    *,
    user: str | None,
    target: str,
    model: Callable[[int], Any],
    features: Sequence[str] | None = None,
    text: str | None = None,
    image: str | None = None,
    id: str | None = None,
    target_type: str | None = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
    higher_is_better: bool | None = None,
    test: float | None = 0.2,
    test_frame: "pd.DataFrame | None" = None,
    validation: "float | pd.DataFrame | None" = None,
    partition: str | None = None,
    num_clients: int | None = None,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    standardize: bool = False,
    vocabulary_size: int = 10_000,
    text_length: int = 64,
    image_dir: str = "",
    seed: int = 0,
    name: str = "frame",
) -> Task:
    """Makes a task from a table.

    Inputs are float32 `[n, number of features]`, int32 `[n, text_length]` of word numbers (0 is
    padding, 1 a word outside the vocabulary), or float32 `[n, height, width, channels]` in [0, 1].
    Targets are class numbers, int32 `[n]`, or float32 `[n, 1]`. If you pass `loss` but not
    `target_type`, whole numbers stay int32 `[n]`, since they may be class numbers. The task's
    `encoding` maps numbers to classes, categories or words; a run keeps it in `encoding.json`.

    Args:
      df: One row per example.
      user: Column of users, who are the clients; `None` if `partition` draws clients.
      target: Column of targets.
      model: Makes a built Keras model from a seed. With the default loss it returns logits, one for
        each class, or one number.
      features: Columns of inputs; by default all other columns of numbers. Columns of text or
        categories are one-hot encoded.
      text: Column of text, in place of `features`; words are numbered by frequency in training
        rows.
      image: Column of paths of images, in place of `features`; all of one size.
      id: Column of row names, which must differ, also from those of `test_frame`.
      target_type: `category` or `number`; by default text, categories and booleans are categories,
        and numbers are numbers.
      loss: As in `Task`; by default cross-entropy for categories, squared error for numbers.
      metrics: As in `Task`, the primary one first; by default accuracy, or mean squared and mean
        absolute error. If you pass `loss`, the default is that loss alone.
      higher_is_better: Whether more of the first of `metrics` is better; by default as in `Task`.
      test: Share of each client's rows used as its test, drawn by `seed` and the client's id; not
        used with `test_frame`.
      test_frame: A table of test rows. If it has the column `user`, its users are clients' own
        tests; all its rows are the central test.
      validation: Share of each client's training rows to choose settings by, or a table of them.
      partition: How clients are drawn without `user`: `dirichlet` (label proportions) or `shards`
        (sorted by label), both for categories; or `iid`.
      num_clients: Number of clients to draw.
      alpha: Concentration of `dirichlet`, above 0.
      shards_per_client: Shards per client with `shards`.
      standardize: Whether features are shifted and scaled to mean 0 and standard deviation 1 over
        all training rows. A real server would have to learn both from its clients.
      vocabulary_size: Maximum number of words of `text` that have a number. An embedding of them
        needs two more rows, for 0 and 1.
      text_length: Number of words kept of each text.
      image_dir: Folder to which paths of images are relative.
      seed: Seed of partition and splits, 0 or more.
      name: Name of the task, different from all registered ones.

    Raises:
      ValueError: If something is wrong; the message is one line that says how to fix it.
    """
    table = Table(df, "df", user, target, id)
    if sum(part is not None for part in (features, text, image)) > 1:
        raise TaskError("pass only one of features, text and image.")
    if standardize and (text is not None or image is not None):
        raise TaskError("standardize is used with features only.")
    inputs: _Inputs
    if text is not None:
        inputs = Texts(table, text, vocabulary_size, text_length)
    elif image is not None:
        inputs = Images(table, image, image_dir)
    else:
        inputs = Features(table, feature_columns(table, target, features), standardize)
    is_share = validation is None or isinstance(validation, numbers.Real)
    others = {
        what: None if frame is None else Table(frame, what, user, target, id, users_may_lack=True)
        for what, frame in (
            ("test_frame", test_frame),
            ("validation", None if is_share else validation),
        )
    }
    check_ids([table, *filter(None, others.values())])
    choices = _Choices(
        name=name,
        model=model,
        target=Target(table, target, target_type, loss is not None),
        inputs=inputs,
        loss=loss,
        metrics=metrics,
        higher_is_better=higher_is_better,
        test=test,
        validation=validation if is_share else None,
        clients=_Partition(partition, num_clients, alpha, shards_per_client),
        seed=seed,
    )
    return _task(table, others["test_frame"], others["validation"], choices)


def from_arrays(
    x: Any,
    y: Any,
    users: Sequence[Any] | None,
    *,
    model: Callable[[int], Any],
    target_type: str | None = None,
    loss: Any = None,
    metrics: Mapping[str, Any] | None = None,
    higher_is_better: bool | None = None,
    test: float | None = 0.2,
    test_arrays: Sequence[Any] | None = None,
    validation: float | None = None,
    partition: str | None = None,
    num_clients: int | None = None,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    seed: int = 0,
    name: str = "arrays",
) -> Task:
    """Makes a task from arrays; everything not described here is as in `from_frame`.

    Args:
      x: Inputs of the model, numbers `[n, ...]`, taken as they are. The task keeps a copy, except
        of a NumPy memory map.
      y: Targets `[n]`: classes (text, booleans, or numbers with `target_type="category"`) or
        numbers.
      users: User of each row, `[n]`; `None` if `partition` draws clients.
      model: See `from_frame`.
      target_type: See `from_frame`.
      loss: See `from_frame`.
      metrics: See `from_frame`.
      higher_is_better: See `from_frame`.
      test: See `from_frame`.
      test_arrays: `(x, y)` or `(x, y, users)` of the test rows, in place of `test`.
      validation: Share of each client's training rows to choose settings by.
      partition: See `from_frame`.
      num_clients: See `from_frame`.
      alpha: See `from_frame`.
      shards_per_client: See `from_frame`.
      seed: See `from_frame`.
      name: See `from_frame`.

    Raises:
      ValueError: As `from_frame`.
    """
    table = of_arrays("x, y and users", x, y, users)
    if test_arrays is not None and (
        not isinstance(test_arrays, Sequence) or len(test_arrays) not in (2, 3)
    ):
        raise TaskError("test_arrays must be (x, y) or (x, y, users).")
    test_table = None
    if test_arrays is not None:
        test_table = of_arrays("test_arrays", *test_arrays)
        refuse_other_columns(x, test_arrays[0])
    if not (validation is None or isinstance(validation, numbers.Real)):
        raise TaskError("validation must be a share of the rows.")
    choices = _Choices(
        name=name,
        model=model,
        target=Target(table, "y", target_type, loss is not None),
        inputs=Arrays(),
        loss=loss,
        metrics=metrics,
        higher_is_better=higher_is_better,
        test=test,
        validation=validation,
        clients=_Partition(partition, num_clients, alpha, shards_per_client),
        seed=seed,
    )
    return _task(table, test_table, None, choices)


class _Partition(NamedTuple):
    """How to draw clients for a table without users; see `from_frame`."""

    partition: str | None
    num_clients: int | None
    alpha: float
    shards_per_client: int

    def draw(self, y: np.ndarray, is_category: bool, seed: int) -> dict[str, np.ndarray]:
        """Returns client id → rows."""
        if self.partition is None:
            raise TaskError(
                "name the column of users with user=, or have clients drawn with "
                f"partition= ({', '.join(PARTITIONS)}) and num_clients=."
            )
        if self.partition not in PARTITIONS:
            raise TaskError(f"partition={self.partition!r} must be one of {', '.join(PARTITIONS)}.")
        if self.num_clients is None:
            raise TaskError(f"partition={self.partition!r} needs num_clients.")
        number = count("num_clients", self.num_clients)
        if self.partition != "iid" and not is_category:
            raise TaskError(
                f"partition={self.partition!r} divides rows by class, and the target is a number; "
                "take partition='iid', or name users."
            )
        if self.partition == "iid":
            parts = partitions.iid(len(y), number, seed)
        elif self.partition == "dirichlet":
            if not isinstance(self.alpha, numbers.Real) or not 0 < self.alpha < math.inf:
                raise TaskError(f"alpha={self.alpha!r} must be a finite number above 0.")
            parts = partitions.dirichlet_by_class(y, number, self.alpha, seed)
        else:
            parts = partitions.shards(
                y, number, count("shards_per_client", self.shards_per_client), seed
            )
        return {str(k): rows for k, rows in enumerate(parts)}


_Inputs = Features | Texts | Images | Arrays


class _Choices(NamedTuple):
    """The arguments that `from_frame` and `from_arrays` share."""

    name: str
    model: Callable[[int], Any]
    target: Target
    inputs: _Inputs
    loss: Any
    metrics: Mapping[str, Any] | None
    higher_is_better: bool | None
    test: float | None
    validation: float | None
    clients: _Partition
    seed: int


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Inputs and targets of the rows of a table.

    Attributes:
      x: Inputs, `[n, ...]`.
      y: Targets, `[n, ...]`.
      transform: Function of inputs that are used; `None` if they are used as they are.
    """

    x: np.ndarray
    y: np.ndarray
    transform: Callable[[np.ndarray], np.ndarray] | None

    def federated(self, parts: Mapping[str, np.ndarray]) -> ArrayFederatedData:
        """Returns clients by their rows."""
        return ArrayFederatedData(self.x, self.y, list(parts.values()), list(parts), self.transform)

    def central(self, at: Any = slice(None)) -> Examples:
        """Returns rows as one set, all by default."""
        x = self.x[at]
        return Examples(self.transform(x) if self.transform else x, self.y[at])

    @functools.cached_property
    def keys(self) -> np.ndarray:
        """From `keys_of`."""
        return keys_of(self.x, self.y)


def _task(
    table: Table, test_table: Table | None, validation_table: Table | None, choices: _Choices
) -> Task:
    target, inputs, seed = choices.target, choices.inputs, count("seed", choices.seed, 0)
    if not callable(choices.model) or hasattr(choices.model, "trainable_weights"):
        raise TaskError(
            f"model must be a function from a seed to a new Keras model, found a "
            f"{type(choices.model).__name__}; write lambda seed: build_model(seed)."
        )
    for what in ("test", "validation"):
        check_share(what, getattr(choices, what))
    y = target.take(table)
    parts = _clients(table, y, choices, seed)
    held_out: dict[str, dict[str, np.ndarray]] = {}
    shares = {
        "test": None if test_table is not None else choices.test,
        "validation": None if validation_table is not None else choices.validation,
    }
    for purpose, share in shares.items():
        if share:
            parts, held_out[purpose] = partitions.split_by_id(parts, share, seed, purpose)
    rows = np.sort(np.concatenate(list(parts.values())))
    if target.classes is not None:
        report_untrained(f"target {target.name!r}", target.classes, y[rows])
    if isinstance(inputs, Features):
        report_leaks(table, inputs.columns, target, y)
    inputs.fit(table, rows)
    given = _Rows(inputs.take(table), y, inputs.transform)
    sets: dict[str, Any] = {"test": None, "validation": None, "central_test": None}
    for purpose, own in held_out.items():
        if not any(map(len, own.values())):
            warn(f"{purpose}={shares[purpose]} holds out nothing: clients have too few rows.")
            continue
        sets[purpose] = given.federated(own)
        at = np.concatenate(list(own.values()))
        report_copies(purpose, given.keys[at], given.keys[rows])
        if purpose == "test":
            sets["central_test"] = given.central(np.sort(at))
    for purpose, other in (("test", test_table), ("validation", validation_table)):
        if other is not None:
            others, sets[purpose] = _others(purpose, other, parts, choices)
            report_copies(purpose, others.keys, given.keys[rows])
            report_standardized_apart(purpose, others.x, given.x, rows)
            if purpose == "test":
                sets["central_test"] = others.central()
    encoding = {"target": target.name, **inputs.encoding()}
    if target.classes is not None:
        encoding["classes"] = for_json(target.classes)
    most_word = int(given.x.max()) if isinstance(inputs, Texts) else None
    return Task(
        name=choices.name,
        train=given.federated(parts),
        keras_model_fn=CheckedModel(choices.model, target, choices.loss is None, most_word),
        encoding=encoding,
        **_measured(choices),
        **sets,
    )


def _clients(table: Table, y: np.ndarray, choices: _Choices, seed: int) -> dict[str, np.ndarray]:
    """Returns client → rows: users, or clients that are drawn."""
    is_category = choices.target.is_category
    if table.user is None:
        return choices.clients.draw(y, is_category, seed)
    if choices.clients.partition is not None or choices.clients.num_clients is not None:
        raise TaskError(
            "partition and num_clients are not used with user, whose values are the clients."
        )
    parts = table.by_user()
    report_users(table, parts, y if is_category else None)
    return parts


def _others(
    purpose: str, table: Table, training: Mapping[str, np.ndarray], choices: _Choices
) -> tuple[_Rows, ArrayFederatedData | None]:
    """Returns the rows of a table beside the training table, and its clients if it has users."""
    if table.user is None and purpose == "validation":
        raise TaskError("validation must have the column of users, as the training table has.")
    parts = None if table.user is None else table.by_user()
    if parts is not None:
        report_strangers(table, parts, training)
    inputs = choices.inputs
    rows = _Rows(inputs.take(table), choices.target.take(table), inputs.transform)
    return rows, None if parts is None else rows.federated(parts)


def _measured(choices: _Choices) -> dict[str, Any]:
    """Returns loss and metrics: the caller's, or the target's defaults."""
    is_category = choices.target.is_category
    loss, metrics, higher = choices.loss, choices.metrics, choices.higher_is_better
    if metrics is None:
        # Of metrics that are not the caller's, the caller says nothing.
        higher, metrics = None, {}
        if loss is None and is_category:
            metrics = {"accuracy": losses.sparse_accuracy}
        elif loss is None:
            metrics = {"mse": losses.squared_error, "mae": losses.absolute_error}
    if loss is None:
        loss = losses.sparse_softmax_cross_entropy if is_category else losses.squared_error
    primary = next(iter(metrics)) if isinstance(metrics, Mapping) and metrics else "loss"
    return {
        "loss": loss,
        "metrics": metrics,
        "primary_metric": primary,
        "higher_is_better": None if primary == "loss" else higher,
    }
