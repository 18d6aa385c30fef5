"""The column of targets."""

import numpy as np

from tasks.tables.columns import (
    FEW,
    PLAINLY,
    categories,
    codes_of,
    most_are_numbers,
    numbers_of,
    report_rounding,
)
from tasks.tables.table import Table
from tasks.tables.told import report_alike
from tasks.task import TaskError
from tff_suite.user_warnings import warn

TARGET_TYPES = ("category", "number")
# What `pandas.api.types.infer_dtype` calls dates, times and durations.
_OF_TIME = ("datetime64", "datetime", "date", "timedelta64", "timedelta", "time", "period")


class Target:
    """The target column.

    Attributes:
      classes: Values of the classes in the order of their numbers; `None` for numbers.
    """

    def __init__(self, table: Table, name: str, target_type: str | None, has_loss: bool):
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
            raise TaskError(
                f"target {name!r} is {column.dtype}, not a number; convert it with {way}."
            )
        number = column.nunique()
        if target_type != "category" and not has_loss and is_number and number == 1:
            warn(f"target {name!r} is {column.iloc[0]} in every row: nothing to learn.")
        elif target_type is None and not has_loss and is_number and number <= FEW:
            # After missing values pandas holds whole numbers as floats.
            if (column % 1 == 0).all():
                warn(
                    f"target {name!r} has {number} different whole numbers and is treated as "
                    "a number (squared error); if they are classes, set target_type to category."
                )
        is_category = not is_number if target_type is None else target_type == "category"
        self.classes = categories(column) if is_category else None
        if self.classes is not None:
            if len(self.classes) < 2:
                raise TaskError(
                    f"target {name!r} has one value only, {self.classes[0]!r}: nothing to learn."
                )
            report_alike("classes", self.classes)
            table.report_rounded(name)
            most, other = most_are_numbers(column)
            if target_type is None and most and other is not None:
                warn(
                    f"target {name!r} has text such as {other!r} among numbers and is treated as "
                    f"classes; if it holds numbers, write them {PLAINLY}."
                )
            elif target_type is None and number > max(FEW, len(column) / 2):
                warn(
                    f"target {name!r} has {number} different values in {len(column)} rows and is "
                    "treated as classes; if they are numbers, convert them with pd.to_numeric."
                )
        # A loss of the caller's may take class numbers that are numbers already.
        self._whole = has_loss and target_type is None and types.is_integer_dtype(column)

    @property
    def is_category(self) -> bool:
        """Whether classes are learnt, and not a number."""
        return self.classes is not None

    def take(self, table: Table) -> np.ndarray:
        """Returns the targets of a table's rows."""
        column = table.frame[self.name]
        table.complete(self.name)
        if self.classes is not None:
            return codes_of(table, self.name, self.classes)
        found = numbers_of(table, self.name)
        if self._whole:
            return self._as_whole(table, found)
        with np.errstate(over="ignore"):
            values = found.astype(np.float32)
        if not np.isfinite(values).all():
            raise TaskError(f"{table.what}: target {self.name!r} is beyond float32; scale it.")
        report_rounding(f"{table.what}: target {self.name!r}", column)
        return values[:, None]

    def _as_whole(self, table: Table, found: np.ndarray) -> np.ndarray:
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
