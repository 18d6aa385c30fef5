"""Tasks made from your own table or arrays.

`from_frame` takes a pandas table, `from_arrays` takes arrays. Both return a `tasks.task.Task`, and
check as much as possible before a run. Features are scaled only if `standardize` says so.
"""

import collections
import decimal
import functools
import math
import numbers
import os
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tasks import missing, partitions
from tasks.task import (
    ArrayFederatedData,
    Examples,
    Task,
    TaskError,
    indexes_differ,
    mixes_booleans,
    require_plain,
)
from tff_suite import imports, memory

with imports.when_used():
    from tasks.models import losses

if TYPE_CHECKING:
    import pandas as pd

PARTITIONS = ("dirichlet", "shards", "iid")
TARGET_TYPES = ("category", "number")
# The key of a table's `attrs` for its name in messages, such as its file.
NAME = "tasks.frames.name"
# A feature column of text with more values than this is not one-hot encoded.
MOST_CATEGORIES = 100
# Whole numbers with at most this many values may have been meant as classes.
_FEW = 20
# What `pandas.api.types.infer_dtype` calls dates, times and durations.
_OF_TIME = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")
# Text that may stand for a missing value: what `astype(str)` makes of one, and how files write it.
# pandas reads most of these as missing, but not "?", "-" and ".".
_MISSING_MARKS = ("", *"nan None <NA> NaT NaN NA N/A n/a n.a. #N/A null NULL ? - -- .".split())
# A column is reported if float32 rounds it by more than this share of its standard deviation.
_COARSE = 0.01
# A deviation below this share of the mean is rounding noise, as of 0.1 + 0.2 beside 0.3.
_NOISE = 1e-12
# float64 holds every whole number up to this one.
_MOST_WHOLE = 2**53
# Copies of training rows are reported if more than this share of the rows held out are such.
_MOST_COPIES = 0.01
# Rows that are looked at together.
_TOGETHER = 4096
_PADDING, _UNKNOWN = 0, 1
# Pillow's modes of images in grey, and of pixels that do not fit into a byte.
_GREY, _DEEP = ("1", "L", "LA", "La"), ("I", "F")
# Chinese characters and Japanese kana, which stand without blanks between words.
_WORDS_OF_THEIR_OWN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"


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
    table = _Table(df, "df", user, target, id)
    if sum(part is not None for part in (features, text, image)) > 1:
        raise TaskError("pass only one of features, text and image.")
    if standardize and (text is not None or image is not None):
        raise TaskError("standardize is used with features only.")
    inputs: _Inputs
    if text is not None:
        inputs = _Texts(table, text, vocabulary_size, text_length)
    elif image is not None:
        inputs = _Images(table, image, image_dir)
    else:
        inputs = _Features(table, _columns(table, target, features), standardize)
    is_share = validation is None or isinstance(validation, numbers.Real)
    others = {
        what: None if frame is None else _Table(frame, what, user, target, id, users_may_lack=True)
        for what, frame in (
            ("test_frame", test_frame),
            ("validation", None if is_share else validation),
        )
    }
    _check_ids([table, *filter(None, others.values())])
    choices = _Choices(
        name=name,
        model=model,
        target=_Target(table, target, target_type, loss is not None),
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
    table = _of_arrays("x, y and users", x, y, users)
    if test_arrays is not None and (
        not isinstance(test_arrays, Sequence) or len(test_arrays) not in (2, 3)
    ):
        raise TaskError("test_arrays must be (x, y) or (x, y, users).")
    test_table = None
    if test_arrays is not None:
        test_table = _of_arrays("test_arrays", *test_arrays)
        _refuse_other_columns(x, test_arrays[0])
    if not (validation is None or isinstance(validation, numbers.Real)):
        raise TaskError("validation must be a share of the rows.")
    choices = _Choices(
        name=name,
        model=model,
        target=_Target(table, "y", target_type, loss is not None),
        inputs=_Arrays(),
        loss=loss,
        metrics=metrics,
        higher_is_better=higher_is_better,
        test=test,
        validation=validation,
        clients=_Partition(partition, num_clients, alpha, shards_per_client),
        seed=seed,
    )
    return _task(table, test_table, None, choices)


def _of_arrays(what: str, x: Any, y: Any, users: Any = None) -> "_Table":
    """Returns a table of targets and users, with inputs beside it."""
    import pandas as pd

    columns = {"y": y} if users is None else {"y": y, "users": users}
    given = {"x": x, **columns}
    require_plain(what, given)
    if indexes_differ(*given.values()):
        _warn(f"{what} are matched by position, though their indexes differ.")
    lengths = {name: _length(what, name, values) for name, values in given.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{number} in {name}" for name, number in lengths.items())
        raise TaskError(f"{what} differ in rows: {told}; give one row per example in each.")
    for name, values in columns.items():
        if np.ndim(values) != 1:
            raise TaskError(
                f"{what}: {name} must be flat, found shape {list(np.shape(values))}; take ravel() "
                "of one column, argmax(axis=1) of one-hot rows, or a tasks.task.Task for several "
                "targets a row."
            )
    # By place: pandas would go by the index of a column.
    try:
        frame = pd.DataFrame({name: pd.Series(values).array for name, values in columns.items()})
    except UnicodeEncodeError as e:  # Of a pandas that keeps text in UTF-8.
        raise TaskError(f"{what}: {e.object!r} has an unpaired surrogate; rename it.") from e
    table = _Table(frame, what, None if users is None else "users", "y", None)
    try:
        x = x.to_numpy() if hasattr(x, "to_numpy") else x
        # The central test is a copy. Without one here, a later change by the caller would reach
        # training alone.
        table.x = np.asarray(x) if isinstance(x, np.memmap) else np.array(x)
    except ValueError as e:
        raise TaskError(f"{what}: x is not an array: {e}") from e
    if not table.x.dtype.isnative:
        table.x = table.x.astype(table.x.dtype.newbyteorder("="))
    return table


def _refuse_other_columns(x: Any, test_x: Any) -> None:
    """Refuses test inputs whose columns have other names, or another order, than training's."""
    if not (hasattr(x, "columns") and hasattr(test_x, "columns")):
        return
    wanted, found = list(x.columns), list(test_x.columns)
    if found != wanted and set(found) == set(wanted):
        raise TaskError("test_arrays: x has its columns in another order; give test_x[x.columns].")
    if found != wanted:
        other = next(c for c in [*found, *wanted] if (c in found) != (c in wanted))
        raise TaskError(
            f"test_arrays: only one of both x has the column {other!r}; give both the same columns."
        )


def _length(what: str, name: str, values: Any) -> int:
    """Returns the number of rows of something that should be an array."""
    try:
        return len(values)
    except TypeError as e:
        kind = type(values).__name__
        raise TaskError(
            f"{what}: {name} must be an array with a row for each example, found a {kind}."
        ) from e


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
        number = _count("num_clients", self.num_clients)
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
                y, number, _count("shards_per_client", self.shards_per_client), seed
            )
        return {str(k): rows for k, rows in enumerate(parts)}


def _count(name: str, value: Any, least: int = 1) -> int:
    """Returns a whole number after checking that it is at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise TaskError(f"{name}={value!r} must be a whole number, {least} or more.")
    return int(value)


class _Table:
    """A table that names itself in error messages.

    Attributes:
      what: Its name in error messages.
      x: Inputs, if they are not columns.
    """

    x: np.ndarray

    def __init__(
        self,
        frame: Any,
        what: str,
        user: Any,
        target: Any,
        id: Any,
        users_may_lack: bool = False,
    ):
        self.frame, self.id = frame, id
        self._told: set[Any] = set()
        self.what = what = getattr(frame, "attrs", {}).get(NAME, what)
        if not hasattr(frame, "columns") or not hasattr(frame, "iloc"):
            raise TaskError(
                f"{what} must be a pandas DataFrame, found a {type(frame).__name__}; from_arrays "
                "takes arrays."
            )
        if not len(frame):
            raise TaskError(f"{what} has no rows.")
        # Numbers that pandas holds as objects, for instance after a merge.
        self.frame = frame = _in_usual_types(frame).infer_objects()
        twice = frame.columns[frame.columns.duplicated()].tolist()
        if twice:
            raise TaskError(f"{what} has two columns named {twice[0]!r}; rename one.")
        self.user = None if users_may_lack and user not in frame.columns.tolist() else user
        for column in frame.columns.tolist():
            if column not in (user, id) and _are_exact_numbers(frame[column]):
                frame[column] = self._floats(column)
        for column, role in ((self.user, "user"), (target, "target"), (id, "id")):
            if column is not None:
                self.require(column, role)
        used = [c for c in (user, target, id) if c is not None]
        if len(set(used)) < len(used):
            raise TaskError("user, target and id must be three different columns.")

    def _floats(self, name: Any) -> list[float]:
        """Returns a column of `_are_exact_numbers`; missing values are NaN."""
        column = self.frame[name]
        known = column.notna()
        try:
            return [float(v) if k else math.nan for v, k in zip(column, known, strict=True)]
        except OverflowError as e:
            raise TaskError(f"{self.what}: column {name!r} is beyond float64; scale it.") from e

    def require(self, column: str, role: str) -> None:
        """Refuses a missing column."""
        # Of columns with several levels, an index also finds the name of one level.
        if column not in self.frame.columns.tolist():
            known = ", ".join(map(str, self.frame.columns[:20]))
            if column in self.frame.index.names:
                known += ", and reset_index() makes columns of its index"
            raise TaskError(f"{role}: {self.what} has no column {column!r}; it has {known}.")

    def values(self, name: Any) -> list[Any]:
        """Returns a column's values after checking that none is missing."""
        self.complete(name)
        return self.frame[name].tolist()

    def complete(self, name: str) -> None:
        """Refuses a column with missing or infinite values; warns once of text that may be such."""
        column = self.frame[name]
        wrong = column.isna().to_numpy(bool)
        kind = "missing values"
        if not wrong.any() and getattr(column.dtype, "kind", "") == "f":
            wrong, kind = np.isinf(column.to_numpy(float)), "infinite values"
        if kind == "missing values" and wrong.all():
            raise TaskError(
                f"{self.what}: column {name!r} has no values; drop the column, or name others."
            )
        if wrong.any():
            raise TaskError(
                f"{self.what}: column {name!r} has {int(wrong.sum())} {kind}, the first in row "
                f"{int(np.argmax(wrong))}; drop these rows or fill in the values."
            )
        self._report_missing_marks(name, column)
        if hasattr(column.dtype, "categories") and column.dtype.categories.dtype == object:
            column = column.astype(object)
        if column.dtype != object:
            return
        single = column.map(lambda value: isinstance(value, Hashable)).to_numpy(bool)
        if not single.all():
            row = int(np.argmin(single))
            raise TaskError(
                f"{self.what}: column {name!r} has a {type(column.iloc[row]).__name__} in row "
                f"{row}; it must have one text or number in each row."
            )
        # HDF5 and NumPy keep text as bytes, which differ from the same text.
        if column.map(type).eq(bytes).any():
            raise TaskError(
                f"{self.what}: column {name!r} has bytes; make them text, by "
                "[value.decode() for value in column]."
            )

    def _report_missing_marks(self, name: str, column: Any) -> None:
        from pandas.api import types

        if name in self._told or types.is_numeric_dtype(column):
            return
        self._told.add(name)
        bare = column.map(lambda value: value.strip() if isinstance(value, str) else value)
        lost = bare.isin(_MISSING_MARKS).to_numpy(bool)
        if lost.any():
            row = int(np.argmax(lost))
            _warn(
                f"{self.what}: column {name!r} has {column.iloc[row]!r} in {int(lost.sum())} rows, "
                f"the first in row {row}; if it stands for a missing value, drop these rows."
            )


def _in_usual_types(frame: Any) -> Any:
    """Returns a table in types that pandas and TensorFlow take for everything.

    Types of PyArrow's answer differently from NumPy's. pandas does not count or sort numbers in
    another byte order than the machine's, in which FITS and IDX files keep them.
    """
    import pandas as pd

    changed = {
        k: object if isinstance(dtype, pd.ArrowDtype) else dtype.newbyteorder("=")
        for k, dtype in enumerate(frame.dtypes)
        if isinstance(dtype, pd.ArrowDtype) or (isinstance(dtype, np.dtype) and not dtype.isnative)
    }
    if not changed:
        return frame
    columns = [frame.iloc[:, k] for k in range(frame.shape[1])]
    for k, dtype in changed.items():
        columns[k] = columns[k].astype(dtype)
    made = pd.concat(columns, axis=1)
    made.attrs = frame.attrs
    return made


def _are_exact_numbers(column: Any) -> bool:
    """Returns whether a column holds numbers as objects, such as decimals of a database."""
    if column.dtype != object:
        return False
    given = column[column.notna()]
    # Whole numbers that NumPy cannot hold may be names of classes.
    return not all(isinstance(value, int) for value in given) and all(
        isinstance(value, numbers.Real | decimal.Decimal) and not isinstance(value, bool)
        for value in given
    )


def _check_ids(tables: Sequence[_Table]) -> None:
    """Refuses rows of the same name, within one table or in two."""
    seen: dict[Any, str] = {}
    written: dict[str, Any] = {}
    alike = []
    for table in tables if tables[0].id is not None else ():
        table.complete(table.id)
        _report_rounded(table, table.id)
        for row, name in enumerate(table.values(table.id)):
            place = f"row {row} of {table.what}"
            other = written.setdefault(str(name), name)
            if other != name and name not in seen:
                alike.append(f"{other!r} in {seen[other]} and {name!r} in {place}")
            if name in seen:
                raise TaskError(
                    f"id: {seen[name]} and {place} both have {name!r}; drop one (drop_duplicates)."
                )
            seen[name] = place
    if alike:
        _warn(f"id: text and numbers name different rows: {alike[0]}; make both text.")


def _columns(table: _Table, target: str, features: Sequence[str] | None) -> list[str]:
    """Returns the columns of inputs: those named, or all other columns of numbers."""
    from pandas.api import types

    if features is None:
        others = [c for c in table.frame.columns if c not in (table.user, table.id, target)]
        columns = [c for c in others if types.is_numeric_dtype(table.frame[c])]
        left_out = [str(c) for c in others if c not in columns]
        if not columns:
            raise TaskError(
                f"{table.what} has no column of numbers beside user and target; name features, "
                "text or image."
            )
        if left_out:
            _warn(
                f"non-numeric columns are left out: {', '.join(left_out)}; name them in features "
                "to include them."
            )
        counting = [repr(c) for c in columns if _numbers_rows(table.frame[c])]
        if counting:
            _warn(
                f"{table.what}: column {_some(counting)} seems to number the rows and is used as a "
                "feature; if it is a saved index, drop it, or name features."
            )
        return columns
    columns = [] if isinstance(features, str) else list(features)
    if not columns:
        raise TaskError(f"features must be a list of columns, found {features!r}.")
    if len(set(columns)) < len(columns):
        raise TaskError("features names a column twice.")
    if target in columns:
        raise TaskError(f"features includes the target {target!r}; leave it out.")
    for column in columns:
        table.require(column, "features")
    return columns


def _numbers_rows(column: Any) -> bool:
    """Returns whether a column of numbers seems to be an index, by its name or its values."""
    from pandas.api import types

    # pandas's names of an index without one, from `read_csv` and `reset_index`.
    if re.fullmatch(r"Unnamed: \d+|index|level_\d+", str(column.name)):
        return True
    if column.isna().any():
        return False
    first = column.iloc[0]
    if first in (0, 1) and (column == np.arange(len(column)) + first).all():
        return True
    # In another order, or from another number on. In a short table this may be chance.
    if len(column) < _FEW or not (types.is_any_real_numeric_dtype(column) and column.is_unique):
        return False
    return bool((column % 1 == 0).all() and column.max() - column.min() == len(column) - 1)


class _Target:
    """The target column.

    Attributes:
      classes: Values of the classes in the order of their numbers; `None` for numbers.
    """

    def __init__(self, table: _Table, name: str, target_type: str | None, has_loss: bool):
        from pandas.api import types

        column = table.frame[name]
        self.name = name
        table.complete(name)
        kind = types.infer_dtype(column)
        if kind in _OF_TIME or types.is_complex_dtype(column):
            found = kind if column.dtype == object else column.dtype
            raise TaskError(f"target {name!r} is {found}; make it a number or text.")
        is_number = types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
        if target_type not in (None, *TARGET_TYPES):
            raise TaskError(f"target_type={target_type!r} must be category or number.")
        if target_type == "number" and not is_number:
            # `pd.to_numeric` leaves booleans as they are.
            way = ".astype(int)" if types.is_bool_dtype(column) else "pd.to_numeric"
            raise TaskError(f"target {name!r} is {column.dtype}, not a number; {way} makes it so.")
        number = column.nunique()
        if target_type != "category" and not has_loss and is_number and number == 1:
            _warn(f"target {name!r} is {column.iloc[0]} in every row: nothing to learn.")
        elif target_type is None and not has_loss and is_number and number <= _FEW:
            # After missing values pandas holds whole numbers as floats.
            if (column % 1 == 0).all():
                _warn(
                    f"target {name!r} has {number} different whole numbers and is treated as "
                    "a number (squared error); if they are classes, set target_type to category."
                )
        is_category = not is_number if target_type is None else target_type == "category"
        self.classes = _categories(column) if is_category else None
        if self.classes is not None:
            if len(self.classes) < 2:
                raise TaskError(
                    f"target {name!r} has one value only, {self.classes[0]!r}: nothing to learn."
                )
            _report_alike("classes", self.classes)
            _report_rounded(table, name)
            most, other = _most_are_numbers(column)
            if target_type is None and most and other is not None:
                _warn(
                    f"target {name!r} has text such as {other!r} among numbers and is treated as "
                    "classes; if it is a number, pd.to_numeric makes it so."
                )
            elif target_type is None and number > max(_FEW, len(column) / 2):
                _warn(
                    f"target {name!r} has {number} different values in {len(column)} rows and is "
                    "treated as classes; if they are numbers, pd.to_numeric makes them so."
                )
        # A loss of the caller's may take class numbers that are numbers already.
        self._whole = has_loss and target_type is None and types.is_integer_dtype(column)

    @property
    def is_category(self) -> bool:
        """Whether classes are learnt, and not a number."""
        return self.classes is not None

    def take(self, table: _Table) -> np.ndarray:
        """Returns the targets of a table's rows."""
        column = table.frame[self.name]
        table.complete(self.name)
        if self.classes is not None:
            return _codes(table, self.name, self.classes)
        found = _numbers(table, self.name)
        if self._whole:
            return self._as_whole(table, found)
        with np.errstate(over="ignore"):
            values = found.astype(np.float32)
        if not np.isfinite(values).all():
            raise TaskError(f"{table.what}: target {self.name!r} is beyond float32; scale it.")
        _report_rounding(f"{table.what}: target {self.name!r}", column)
        return values[:, None]

    def _as_whole(self, table: _Table, found: np.ndarray) -> np.ndarray:
        """Returns whole numbers as int32 after checking that they are."""
        limits = np.iinfo(np.int32)
        if (found % 1 != 0).any():
            raise TaskError(
                f"{table.what}: target {self.name!r} has fractions, but the training table has "
                "whole numbers; set target_type to number."
            )
        if found.min() < limits.min or found.max() > limits.max:
            raise TaskError(
                f"{table.what}: target {self.name!r} is beyond int32; set target_type to number, "
                "or to category."
            )
        return found.astype(np.int32)


def _categories(column: Any) -> list[Any]:
    """Returns the values that occur in a column of categories, in their order."""
    if hasattr(column.dtype, "categories"):
        return [v for v in column.cat.categories.tolist() if (column == v).any()]
    values = column.unique().tolist()
    try:
        if column.dtype == object and mixes_booleans(column):
            raise TypeError
        return sorted(values)
    except TypeError as e:
        raise TaskError(
            f"column {column.name!r} mixes values of several types; astype(str) makes them text."
        ) from e


def _codes(table: _Table, name: str, values: Sequence[Any]) -> np.ndarray:
    """Returns the position of each of a column's values, int32 `[n]`."""
    place = {value: k for k, value in enumerate(values)}
    found = table.frame[name].tolist()
    unknown = sorted({repr(v) for v in found if v not in place})
    if unknown:
        raise TaskError(
            f"{table.what}: column {name!r} has {_some(unknown)}, which the training table lacks "
            f"(it has {_some(list(map(repr, values)))}); remove these rows, or write them as there."
        )
    return np.array([place[v] for v in found], np.int32)


def _numbers(table: _Table, name: str, origin: int = 0) -> np.ndarray:
    """Returns a column of numbers, less `origin`, as float64 `[n]`.

    Whole numbers are subtracted exactly, also those that float64 would round. Text that reads as
    numbers is converted. Dates, durations and complex numbers are refused, which NumPy would
    convert as well.
    """
    from pandas.api import types

    column = table.frame[name]
    if hasattr(column.dtype, "categories"):
        # Dates that are categories would become numbers of nanoseconds.
        column = column.astype(column.dtype.categories.dtype)
    if getattr(column.dtype, "kind", "") in "mMc":
        raise TaskError(f"{table.what}: column {name!r} is {column.dtype}, not a number.")
    if origin and types.is_integer_dtype(column):
        return np.array([value - origin for value in column.tolist()], np.float64)
    try:
        found = column.to_numpy(np.float64)
    except (TypeError, ValueError) as e:
        raise TaskError(f"{table.what}: column {name!r} is not a number: {e}") from e
    if not np.isfinite(found).all():  # Of text: `complete` has refused numbers that are not finite.
        row = int(np.argmin(np.isfinite(found)))
        raise TaskError(
            f"{table.what}: column {name!r} has {column.iloc[row]!r} in row {row}, which is not a "
            "finite number; drop these rows or fill in the values."
        )
    return found - origin


def _origin(column: Any) -> int:
    """Returns the least of whole numbers if float64 would round some of them, otherwise 0."""
    from pandas.api import types

    if not types.is_integer_dtype(column):
        return 0
    least, most = int(column.min()), int(column.max())
    return least if max(-least, most) > _MOST_WHOLE else 0


def _require_text(column: Any) -> None:
    """Refuses a feature that is neither a number nor text, and warns of text that is numbers."""
    if not column.map(type).eq(str).all():
        found = column.dtype if column.dtype != object else type(column.iloc[0]).__name__
        if column.map(type).eq(int).all():
            raise TaskError(
                f"features: {column.name!r} has whole numbers beyond 64 bits; .astype(float) "
                "rounds them."
            )
        raise TaskError(f"features: {column.name!r} is {found}; make it a number.")
    most, other = _most_are_numbers(column)
    if most:
        beside = "every value reads" if other is None else f"most values read, unlike {other!r},"
        _warn(
            f"feature {column.name!r} is text, though {beside} as a number, and is one-hot "
            "encoded; pd.to_numeric makes it a number."
        )


# What stands in numbers beside what Python reads: units, marks and groups of three digits.
_OF_NUMBERS = re.compile(r"[\s%<>≤≥~≈$€£']|(?<=\d),(?=\d{3}(\D|$))")


def _most_are_numbers(column: Any) -> tuple[bool, str | None]:
    """Returns whether most values of a column of text are numbers, and the first that is not plain.

    Numbers may be written in other ways than Python's: `1,5`, `1,234`, `<0.1`, `5%`.
    """
    values = [value for value in column.unique() if isinstance(value, str)]
    plain = [_reads_as_number(value) for value in values]
    bare = (_OF_NUMBERS.sub("", v).replace(",", ".").replace("\N{MINUS SIGN}", "-") for v in values)
    read = sum(map(_reads_as_number, bare))
    other = None if all(plain) else values[plain.index(False)]
    return 2 * read > len(values), other


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _report_rounding(what: str, values: Any, way: str = "subtract its minimum") -> None:
    """Warns of numbers that differ by little more than float32 can tell apart.

    Args:
      what: Their name.
      values: A series or array; text is skipped.
      way: What to do about it.
    """
    from pandas.api import types

    if not types.is_any_real_numeric_dtype(values) or values.min() == values.max():
        return
    least = values.min()
    # Whole numbers are exact here, also where float64 is not.
    exact = np.asarray(values - least, np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.asarray(values, np.float32).astype(np.float64) - float(least)
        error, deviation = np.abs(rounded - exact).max(), exact.std()
    if np.isfinite(error) and error > _COARSE * deviation:
        _warn(
            f"{what}: float32 rounds it by up to {error:.3g}, and its standard deviation is "
            f"{deviation:.3g}; {way}."
        )


class _Features:
    """Columns of numbers, and of categories that are one-hot encoded.

    Attributes:
      columns: Their names.
    """

    transform = None

    def __init__(self, table: _Table, columns: Sequence[str], standardize: bool):
        from pandas.api import types

        alike = collections.Counter(map(str, columns)).most_common(1)[0]
        if alike[1] > 1:
            raise TaskError(
                f"features: {alike[1]} columns are {alike[0]!r} as text, by which encoding.json "
                "knows them; rename one."
            )
        self.columns, self._categories = columns, {}
        for name in columns:
            table.complete(name)
            column = table.frame[name]
            if types.is_numeric_dtype(column) and not types.is_complex_dtype(column):
                continue
            if not hasattr(column.dtype, "categories"):
                _require_text(column)
            values = _categories(column)
            if len(values) > MOST_CATEGORIES:
                raise TaskError(
                    f"features: {name!r} has {len(values)} different texts, more than "
                    f"{MOST_CATEGORIES}; name it as the column of text, or leave it out."
                )
            self._categories[name] = values
            _report_alike(f"categories of feature {name!r}", values)
        self._standardize = standardize
        # What is subtracted from whole numbers before, and then the mean and deviation.
        self._origins: dict[str, int] = {}
        self._scale: tuple[np.ndarray, np.ndarray] | None = None

    def fit(self, table: _Table, rows: np.ndarray) -> None:
        """Learns means and deviations from training rows."""
        for name, values in self._categories.items():
            found = _codes(table, name, values)
            _report_untrained(f"feature {name!r}", values, found[rows])
        if self._standardize:
            for name in self.columns:
                origin = _origin(table.frame[name].iloc[rows])
                if origin and name not in self._categories:
                    self._origins[name] = origin
            x = self._unscaled(table)[rows].astype(np.float64)
            # A column of one value stays at 0, whatever its mean is rounded to.
            varies = x.min(0) < x.max(0)
            with np.errstate(over="ignore", invalid="ignore"):
                mean, deviation = x.mean(0), x.std(0)
                # Whole numbers are not rounded.
                noise = varies & (deviation < _NOISE * np.abs(mean)) & (x % 1 != 0).any(0)
            if noise.any():
                _warn(
                    f"{table.what}: {_some(self._of(noise))} differs by rounding errors only and "
                    "is standardized as a constant; leave it out."
                )
            varies &= ~noise
            self._scale = np.where(varies, mean, x[0]), np.where(varies, deviation, 1.0)
            if not np.isfinite(self._scale).all():
                raise TaskError(f"{table.what}: features are too large to standardize; scale them.")

    def take(self, table: _Table) -> np.ndarray:
        """Returns the inputs of a table's rows, float32."""
        x = self._unscaled(table)
        if self._scale is not None:
            mean, deviation = self._scale
            x = (x - mean) / deviation
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise TaskError(f"{table.what}: features hold numbers beyond float32; scale them.")
        return x

    def _unscaled(self, table: _Table) -> np.ndarray:
        """Returns the inputs of a table's rows before any scaling, float64 where needed."""
        parts: list[np.ndarray] = []
        for name in self.columns:
            table.require(name, "features")
            table.complete(name)
            if name in self._categories:
                values = self._categories[name]
                part = np.eye(len(values), dtype=np.float32)[_codes(table, name, values)]
            else:
                part = _numbers(table, name, self._origins.get(name, 0))[:, None]
                if not self._standardize:
                    what = f"{table.what}: column {name!r}"
                    way = "subtract its minimum, or standardize it"
                    _report_rounding(what, table.frame[name], way)
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def _of(self, chosen: np.ndarray) -> list[str]:
        """Returns the names of columns by whether each input is chosen."""
        inputs = [c for c in self.columns for _ in self._categories.get(c, [None])]
        return [f"column {c!r}" for c, told in zip(inputs, chosen, strict=True) if told]

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        found: dict[str, Any] = {"features": list(map(str, self.columns))}
        if self._categories:
            found["categories"] = {str(k): _for_json(v) for k, v in self._categories.items()}
        if self._scale is not None:
            mean, deviation = self._scale
            found |= {"mean": mean.tolist(), "deviation": deviation.tolist()}
            if self._origins:
                found["subtracted_before"] = {str(k): v for k, v in self._origins.items()}
        return found


class _Texts:
    """A column of text as numbers of words, padded to one length."""

    transform = None

    def __init__(self, table: _Table, name: str, size: int, length: int):
        table.require(name, "text")
        self._name = name
        self._size, self._length = _count("vocabulary_size", size), _count("text_length", length)
        self._words: list[str] = []

    def fit(self, table: _Table, rows: np.ndarray) -> None:
        """Numbers the words of training rows by how often they occur, then by the alphabet."""
        texts = self._split(table)
        counts = collections.Counter(word for row in rows for word in texts[row])
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self._words = ranked[: self._size]

    def take(self, table: _Table) -> np.ndarray:
        """Returns the word numbers of a table's rows, int32 `[n, length]`."""
        place = {word: k for k, word in enumerate(self._words, _UNKNOWN + 1)}
        texts = self._split(table)
        x = np.full((len(texts), self._length), _PADDING, np.int32)
        for row, words in zip(x, texts, strict=True):
            numbered = [place.get(word, _UNKNOWN) for word in words[: self._length]]
            row[: len(numbered)] = numbered
        return x

    def _split(self, table: _Table) -> list[list[str]]:
        table.require(self._name, "text")
        texts = table.values(self._name)
        wrong = next((row for row, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong is not None:
            raise TaskError(
                f"{table.what}: column {self._name!r} has {texts[wrong]!r} in row {wrong}; it must "
                "be text."
            )
        words = _words()
        return [words.findall(unicodedata.normalize("NFC", text.lower())) for text in texts]

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        return {
            "text": self._name,
            "form": "lower case, then NFC",
            "pattern": _words().pattern,
            "length": self._length,
            "words": self._words,
            "first_word": _UNKNOWN + 1,
        }


@functools.cache
def _words() -> re.Pattern[str]:
    """Returns what finds the words and marks of a text."""
    # For `re`, the vowel signs of Indian scripts are not part of a word.
    signs = {k for k in range(0x300, 0x20000) if unicodedata.category(chr(k))[0] == "M"}
    # As ranges, since `encoding.json` has the pattern.
    starts = sorted(k for k in signs if k - 1 not in signs)
    ends = sorted(k for k in signs if k + 1 not in signs)
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a, b in zip(starts, ends, strict=True))
    own = f"[{_WORDS_OF_THEIR_OWN}]"
    return re.compile(rf"{own}|(?:(?!{own})[\w{ranges}])+|[^\w\s]")


class _Images:
    """A column of paths of images of one size, kept as bytes."""

    def __init__(self, table: _Table, name: str, folder: str):
        table.require(name, "image")
        self._name, self._folder = name, os.path.expanduser(folder)
        self._shape: tuple[int, ...] | None = None

    def fit(self, table: _Table, rows: np.ndarray) -> None:
        """Learns nothing from training rows."""

    def take(self, table: _Table) -> np.ndarray:
        """Returns the images of a table's rows, uint8 `[n, height, width, channels]`."""
        from PIL import ExifTags, Image

        table.require(self._name, "image")
        _require_paths(table, self._name)
        images: np.ndarray | None = None
        transparent, of_several, turned = [], [], []
        for row, path in enumerate(table.values(self._name)):
            place = f"{table.what}: column {self._name!r}, row {row}"
            path = os.path.join(self._folder, path)
            try:
                with Image.open(path) as file:
                    if _is_deep(file):
                        raise TaskError(
                            f"{place}: {path} has pixels of more than 8 bits (mode {file.mode}), "
                            "which would be cut off at 255; scale them to 8 bits, or give arrays "
                            "to from_arrays."
                        )
                    # A palette may have a transparent colour.
                    clear = "transparency" in file.info
                    seen = file.convert("RGBA") if clear else file
                    # The A of LAB is a colour.
                    has_alpha = "A" in seen.getbands() and seen.mode != "LAB"
                    alpha = seen.getchannel("A") if has_alpha else None
                    pixels = np.asarray(file.convert("L" if file.mode in _GREY else "RGB"))
                    # MPO is a camera's JPEG with previews of the same picture.
                    several = getattr(file, "is_animated", False) and file.format != "MPO"
                    is_turned = file.getexif().get(ExifTags.Base.Orientation, 1) != 1
            except TaskError:
                raise
            # Pillow does not say what its decoders raise.
            except Exception as e:
                raise TaskError(f"{place}: {path} cannot be read as an image: {e}") from e
            pixels = pixels.reshape(*pixels.shape[:2], -1)
            self._shape = self._shape or pixels.shape
            if pixels.shape != self._shape:
                raise TaskError(
                    f"{place}: {path} is {_size(pixels.shape)}, others are {_size(self._shape)}; "
                    "make all images alike."
                )
            if images is None:
                number = len(table.frame)
                memory.require(
                    number * float(pixels.size), f"Holding {number:,} images", "use fewer rows"
                )
                images = np.empty((number, *pixels.shape), np.uint8)
            images[row] = pixels
            if alpha is not None and np.asarray(alpha).min() < 255:
                transparent.append(os.path.basename(path))
            if several:
                of_several.append(os.path.basename(path))
            if is_turned:
                turned.append(os.path.basename(path))
        if of_several:
            _warn(
                f"{table.what}: {len(of_several)} images have several frames or pages, of which "
                f"only the first is used: {_some(of_several)}."
            )
        if transparent:
            _warn(
                f"{table.what}: {len(transparent)} images have transparent pixels, whose hidden "
                f"colours are used: {_some(transparent)}."
            )
        if turned:
            _warn(
                f"{table.what}: {len(turned)} images are shown turned (EXIF orientation) but read "
                f"as they are stored: {_some(turned)}; to turn them, save them again after "
                "PIL.ImageOps.exif_transpose."
            )
        assert images is not None  # A table has rows.
        return images

    @staticmethod
    def transform(x: np.ndarray) -> np.ndarray:
        """Returns float32 pixels in [0, 1]."""
        return x / np.float32(255)

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        return {"image": self._name, "shape": list(self._shape or ())}


def _require_paths(table: _Table, name: str) -> None:
    """Refuses a column of images themselves, of which tables of data hubs consist."""
    column = table.frame[name]
    for row, (value, is_missing) in enumerate(zip(column.tolist(), column.isna(), strict=True)):
        if is_missing or isinstance(value, str | os.PathLike):
            continue
        if isinstance(value, bytes | bytearray | Mapping):
            way = "write the bytes to files and give their paths"
        else:
            way = "from_arrays takes arrays"
        raise TaskError(
            f"{table.what}: column {name!r}, row {row} has a {type(value).__name__}, which is not "
            f"a path; {way}."
        )


def _is_deep(file: Any) -> bool:
    """Returns whether an image has pixels that do not fit into a byte; before they are read."""
    # Of several channels of 16 bits Pillow keeps the upper bytes, in a mode of 8 bits.
    arguments = [tile[3] if isinstance(tile[3], tuple) else (tile[3],) for tile in file.tile]
    raw = [a for some in arguments for a in some if isinstance(a, str)]
    return file.mode.startswith(_DEEP) or any(re.search(r";16", a) for a in raw)


def _size(shape: Sequence[int]) -> str:
    height, width, channels = shape
    return f"{width}x{height} with {channels} channel{'s' * (channels > 1)}"


class _Arrays:
    """Inputs that are already numbers."""

    transform = None

    def fit(self, table: _Table, rows: np.ndarray) -> None:
        """Learns nothing from training rows."""

    def take(self, table: _Table) -> np.ndarray:
        """Returns the inputs unchanged."""
        x = table.x
        first = x.flat[0] if x.dtype == object and x.size else ""
        if not isinstance(first, str | numbers.Real | decimal.Decimal | None):
            raise TaskError(
                f"{table.what}: x must be one array of numbers, found a {type(first).__name__} in "
                "place of a number; of rows that are arrays, np.stack(rows) makes one."
            )
        if x.dtype.kind not in "biuf":
            raise TaskError(
                f"{table.what}: x must be numbers, found {x.dtype}; if it holds numbers, "
                "x.astype('float32') makes them so."
            )
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            finite = np.isfinite(x.reshape(len(x), -1)).all(1)
            raise TaskError(
                f"{table.what}: x has {int(np.sum(~finite))} rows with missing or infinite values, "
                f"the first is row {int(np.argmin(finite))}; drop or fill them."
            )
        if x.dtype.kind == "f" and np.abs(x).max(initial=0) > np.finfo(np.float32).max:
            raise TaskError(f"{table.what}: x holds numbers beyond float32; scale them.")
        if x.ndim == 2 and x.dtype.kind in "iuf" and not np.can_cast(x.dtype, np.float32):
            for column in range(x.shape[1]):
                _report_rounding(f"{table.what}: column {column} of x", x[:, column])
        return x

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        return {}


_Inputs = _Features | _Texts | _Images | _Arrays


class _Choices(NamedTuple):
    """The arguments that `from_frame` and `from_arrays` share."""

    name: str
    model: Callable[[int], Any]
    target: _Target
    inputs: _Inputs
    loss: Any
    metrics: Mapping[str, Any] | None
    higher_is_better: bool | None
    test: float | None
    validation: float | None
    clients: _Partition
    seed: int


def _task(  # noqa: C901
    table: _Table, test_table: _Table | None, validation_table: _Table | None, choices: _Choices
) -> Task:
    target, inputs, seed = choices.target, choices.inputs, _count("seed", choices.seed, 0)
    if not callable(choices.model) or hasattr(choices.model, "trainable_weights"):
        raise TaskError(
            f"model must be a function from a seed to a new Keras model, found a "
            f"{type(choices.model).__name__}; write lambda seed: build_model(seed)."
        )
    for what in ("test", "validation"):
        _check_share(what, getattr(choices, what))
    y = target.take(table)
    if table.user is None:
        parts = choices.clients.draw(y, target.is_category, seed)
    else:
        if choices.clients.partition is not None or choices.clients.num_clients is not None:
            raise TaskError(
                "partition and num_clients are not used with user, whose values are the clients."
            )
        parts = _by_user(table)
        _report_users(table, parts, y if target.is_category else None)
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
        _report_untrained(f"target {target.name!r}", target.classes, y[rows])
    if isinstance(inputs, _Features):
        _report_leaks(table, inputs.columns, target, y)
    inputs.fit(table, rows)
    x, transform = inputs.take(table), inputs.transform

    def federated(parts: Mapping[str, np.ndarray]) -> ArrayFederatedData:
        return ArrayFederatedData(x, y, list(parts.values()), list(parts), transform)

    def of(other: _Table, own: Mapping[str, np.ndarray]) -> ArrayFederatedData:
        return ArrayFederatedData(*arrays(other), list(own.values()), list(own), transform)

    @functools.cache
    def arrays(other: _Table) -> tuple[np.ndarray, np.ndarray]:
        return inputs.take(other), target.take(other)

    @functools.cache
    def keys() -> np.ndarray:
        return _keys(x, y)

    sets: dict[str, Any] = {"test": None, "validation": None, "central_test": None}
    for purpose, own in held_out.items():
        if any(map(len, own.values())):
            sets[purpose] = federated(own)
            at = np.concatenate(list(own.values()))
            _report_copies(purpose, keys()[at], keys()[rows])
        else:
            _warn(f"{purpose}={shares[purpose]} holds out nothing: clients have too few rows.")
    if sets["test"] is not None:
        at = np.sort(np.concatenate(list(held_out["test"].values())))
        sets["central_test"] = Examples(transform(x[at]) if transform else x[at], y[at])
    for purpose, other in (("test", test_table), ("validation", validation_table)):
        if other is None:
            continue
        if other.user is not None:
            own = _by_user(other)
            _report_strangers(other, own, parts)
            sets[purpose] = of(other, own)
        elif purpose == "validation":
            raise TaskError("validation must have the column of users, as the training table has.")
        _report_copies(purpose, _keys(*arrays(other)), keys()[rows])
        if purpose == "test":
            other_x, other_y = arrays(other)
            sets["central_test"] = Examples(transform(other_x) if transform else other_x, other_y)
    most_word = int(x.max()) if isinstance(inputs, _Texts) else None
    encoding = {"target": target.name, **inputs.encoding()}
    if target.classes is not None:
        encoding["classes"] = _for_json(target.classes)
    return Task(
        name=choices.name,
        train=federated(parts),
        keras_model_fn=_Checked(choices.model, target, choices.loss is None, most_word),
        encoding=encoding,
        **_measured(choices),
        **sets,
    )


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


class _Checked:
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
        target: _Target,
        decides_loss: bool,
        most_word: int | None = None,
    ):
        self.__wrapped__ = make
        self._name, self._classes, self._decides_loss = target.name, target.classes, decides_loss
        self._most_word = most_word

    def __call__(self, seed: int) -> Any:
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
                f"the model's last layer has a {kind}, but the loss that target {self._name!r} "
                "decides takes logits: remove it, or give "
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


def _check_share(what: str, share: Any) -> None:
    if share is None:
        return
    is_number = isinstance(share, numbers.Real) and not isinstance(share, bool)
    if not is_number or not 0 <= share < 1:
        raise TaskError(f"{what}={share!r} must be a share of the rows, in [0, 1).")


def _by_user(table: _Table) -> dict[str, np.ndarray]:
    try:
        return partitions.by_user(table.values(table.user))
    except TaskError:
        raise
    except ValueError as e:
        raise TaskError(f"{table.what}: column {table.user!r}: {e}") from e


def _report_users(table: _Table, parts: Mapping[str, np.ndarray], y: np.ndarray | None) -> None:
    """Warns about users that may not be what the caller intended."""
    column = table.frame[table.user]
    _report_rounded(table, table.user)
    if hasattr(column.dtype, "categories"):
        without = [str(u) for u in column.cat.categories if str(u) not in parts]
        if without:
            _warn(
                f"left out: {missing.clients(without)} of column {table.user!r}, without any rows."
            )
    _report_alike("users", parts)
    one_class = [name for name, rows in parts.items() if y is not None and len(set(y[rows])) == 1]
    if one_class:
        _warn(f"{missing.clients(one_class)} of {len(parts)} have rows of one class only.")


def _report_rounded(table: _Table, name: Any) -> None:
    """Warns of a column of names that are floats, of which several may have become one."""
    fault = partitions.rounded(table.frame[name])
    if fault:
        _warn(f"{table.what}: values of column {name!r} are {fault}")


def _report_leaks(table: _Table, columns: Sequence[str], target: _Target, y: np.ndarray) -> None:
    """Warns of features that are the target under other names, or in another unit."""
    import pandas as pd
    from pandas.api import types

    # Of classes of one row each, any column of different values has a value for each.
    if len(y) < max(_FEW, 2 * len(target.classes or ())):
        return
    if not target.is_category:
        y = y.ravel().astype(np.float64)
        y -= y.mean()
    for name in columns:
        column = table.frame[name]
        if target.is_category:
            codes = pd.factorize(np.asarray(column))[0]
            leaks = np.array_equal(codes, pd.factorize(y)[0])
            if not leaks and _follows(codes, y):
                _warn(
                    f"{table.what}: feature {name!r} has one value for each class of target "
                    f"{target.name!r}; if it is made from the target, such as by get_dummies, "
                    "leave it out."
                )
        elif types.is_any_real_numeric_dtype(column):
            x = _numbers(table, name)
            with np.errstate(all="ignore"):
                x = x - x.mean()
                leaks = np.abs(x @ y) > (1 - 1e-12) * np.sqrt(x @ x) * np.sqrt(y @ y) > 0
        else:
            leaks = False
        if leaks:
            _warn(
                f"{table.what}: feature {name!r} determines target {target.name!r} exactly; if it "
                "is made from the target, leave it out."
            )


def _follows(codes: np.ndarray, y: np.ndarray) -> bool:
    """Returns whether a feature with several values is a function of the class."""
    classes = len(np.unique(y))
    # Of few rows a class this may be chance.
    if len(y) < 10 * classes or len(np.unique(codes)) < 2:
        return False
    return len(np.unique(np.stack([codes, y], 1), axis=0)) == classes


def _report_untrained(what: str, values: Sequence[Any], codes: np.ndarray) -> None:
    """Warns of classes or categories that no training row has, by the rows' codes."""
    without = [repr(values[k]) for k in np.setdiff1d(np.arange(len(values)), codes)]
    if without:
        _warn(
            f"{what}: only rows held out have {_some(without)}, so no client learns it; drop these "
            "rows, or draw others with seed."
        )


def _report_alike(kind: str, names: Iterable[Any]) -> None:
    """Warns of names that a reader would take for one."""
    names = [name for name in names if isinstance(name, str)]
    for how, read in (
        ("differ only in capitals, blanks or the form of Unicode", _folded),
        ("are the same number", partitions.as_number),
    ):
        written: dict[Any, list[str]] = {}
        for name in names:
            written.setdefault(read(name), []).append(name)
        written.pop(None, None)
        # Two forms of one character look the same unless they are spelt out.
        alike = [" and ".join(map(ascii, same)) for same in written.values() if len(same) > 1]
        if alike:
            _warn(f"{kind} whose names {how} are different {kind}: {_some(alike)}.")


def _folded(name: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())


def _report_strangers(table: _Table, own: Mapping, training: Mapping) -> None:
    strangers = [name for name in own if name not in training]
    known = {partitions.as_number(name): name for name in training}
    known.pop(None, None)
    alike = [(name, known[n]) for name in strangers if (n := partitions.as_number(name)) in known]
    if strangers:
        way = ""
        if alike:
            way = (
                f" {alike[0][0]!r} may be {alike[0][1]!r} of the training table; write both alike."
            )
        _warn(
            f"{missing.clients(strangers)} of {len(own)} in {table.what} have no training rows; "
            f"they are tested with the others.{way}"
        )


def _keys(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns a number for each row, int64 `[n]`, alike where inputs and target are alike."""
    keys = np.empty(len(y), np.int64)
    for start in range(0, len(y), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        inputs = np.asarray(x[part], np.float32).reshape(len(y[part]), -1)
        targets = np.asarray(y[part], np.float32).reshape(len(inputs), -1)
        keys[part] = [hash(row.tobytes()) for row in np.concatenate([inputs, targets], axis=1)]
    return keys


def _report_copies(purpose: str, held: np.ndarray, training: np.ndarray) -> None:
    """Warns of held-out rows that are training rows as well, by their `_keys`."""
    copies = int(np.isin(held, training).sum())
    if copies > _MOST_COPIES * len(held):
        _warn(
            f"{copies} of {len(held)} {purpose} rows have the inputs and target of a training row; "
            "if they are copies, remove them: they make results look better than they are."
        )


def _some(texts: Sequence[str]) -> str:
    shown = ", ".join(texts[:5])
    return f"{shown} and {len(texts) - 5} more" if len(texts) > 5 else shown


def _for_json(values: Sequence[Any]) -> list[Any]:
    values = [v.item() if isinstance(v, np.generic) else v for v in values]
    # What NumPy keeps of numbers with more digits than Python's.
    values = [float(v) if isinstance(v, np.floating) and float(v) == v else v for v in values]
    return [v if isinstance(v, bool | int | float | str) else str(v) for v in values]


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=_levels())


def _levels() -> int:
    """Returns how many frames of this file a warning must skip to name the caller's line."""
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None and frame.f_code.co_filename == __file__:
        frame, level = frame.f_back, level + 1
    return level
