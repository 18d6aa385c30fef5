"""A pandas table that checks its columns and names itself in messages."""

import decimal
import math
import numbers
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from tasks import partitions
from tasks.task import TaskError
from tff_suite.user_warnings import warn

# The key of a table's `attrs` for its name in messages, such as its file.
NAME = "tasks.frames.name"
# Text that may stand for a missing value: what `astype(str)` makes of one, and how files write it.
# pandas reads most of these as missing, but not "?", "-" and ".".
_MISSING_MARKS = ("", *"nan None <NA> NaT NaN NA N/A n/a n.a. #N/A null NULL ? - -- .".split())


class Table:
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
        columns = self.frame.columns.tolist()
        if column not in columns:
            several = column.split(",") if isinstance(column, str) else column
            if isinstance(several, list) and all(one in columns for one in several):
                cure = "a tasks.task.Task takes several" if role == "target" else "join them"
                found = ", ".join(map(str, several))
                raise TaskError(f"{role} must be one column, found {found}; {cure}.")
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
                f"{self.what}: column {name!r} has bytes; convert them to text: "
                "[value.decode() for value in column]."
            )

    def by_user(self) -> dict[str, np.ndarray]:
        """Returns user → rows, in the order of `partitions.by_user`."""
        try:
            return partitions.by_user(self.values(self.user))
        except TaskError:
            raise
        except ValueError as e:
            raise TaskError(f"{self.what}: column {self.user!r}: {e}") from e

    def report_rounded(self, name: Any) -> None:
        """Warns of a column of names that are floats, of which several may have become one."""
        fault = partitions.rounded(self.frame[name])
        if fault:
            warn(f"{self.what}: values of column {name!r} are {fault}")

    def _report_missing_marks(self, name: str, column: Any) -> None:
        from pandas.api import types

        if name in self._told or types.is_numeric_dtype(column):
            return
        self._told.add(name)
        bare = column.map(lambda value: value.strip() if isinstance(value, str) else value)
        lost = bare.isin(_MISSING_MARKS).to_numpy(bool)
        if lost.any():
            row = int(np.argmax(lost))
            warn(
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


def check_ids(tables: Sequence[Table]) -> None:
    """Refuses rows of the same name, within one table or in two."""
    seen: dict[Any, str] = {}
    written: dict[str, Any] = {}
    alike = []
    for table in tables if tables[0].id is not None else ():
        table.complete(table.id)
        table.report_rounded(table.id)
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
        warn(f"id: text and numbers name different rows: {alike[0]}; make both text.")
