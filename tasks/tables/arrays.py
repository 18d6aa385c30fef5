"""Inputs that are an array beside a table of targets and users."""

import decimal
import numbers
from typing import Any

import numpy as np

from tasks.tables.columns import report_rounding
from tasks.tables.table import Table
from tasks.task import TaskError, indexes_differ, require_plain
from tff_suite.user_warnings import warn


class Arrays:
    """Inputs that are already numbers."""

    transform = None

    def fit(self, table: Table, rows: np.ndarray) -> None:
        """Learns nothing from training rows."""

    def take(self, table: Table) -> np.ndarray:
        """Returns the inputs unchanged."""
        x = table.x
        first = x.flat[0] if x.dtype == object and x.size else ""
        if not isinstance(first, str | numbers.Real | decimal.Decimal | None):
            raise TaskError(
                f"{table.what}: x must be one array of numbers, found a {type(first).__name__} in "
                "place of a number; combine rows that are arrays with np.stack(rows)."
            )
        if x.dtype.kind not in "biuf":
            raise TaskError(
                f"{table.what}: x must be numbers, found {x.dtype}; if it holds numbers, "
                "convert them with x.astype('float32')."
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
                report_rounding(f"{table.what}: column {column} of x", x[:, column])
        return x

    def encoding(self) -> dict[str, Any]:
        """Describes the inputs, for the record."""
        return {}


def of_arrays(what: str, x: Any, y: Any, users: Any = None) -> Table:
    """Returns a table of targets and users, with inputs beside it."""
    import pandas as pd

    columns = {"y": y} if users is None else {"y": y, "users": users}
    given = {"x": x, **columns}
    require_plain(what, given)
    if indexes_differ(*given.values()):
        warn(f"{what} are matched by position, though their indexes differ.")
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
    table = Table(frame, what, None if users is None else "users", "y", None)
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


def refuse_other_columns(x: Any, test_x: Any) -> None:
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
