"""What a column holds: numbers, classes, or text that may have been meant as numbers."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.missing import some
from tasks.tables.table import Table
from tasks.task import TaskError, mixes_booleans
from tff_suite.user_warnings import warn

# Whole numbers with at most this many values may have been meant as classes.
FEW = 20
# How to write numbers that are text, such as 1,234 or 5%.
PLAINLY = "as plain numbers, such as 1234.5"
# A column is reported if float32 rounds it by more than this share of its standard deviation.
_COARSE = 0.01
# float64 holds every whole number up to this one.
_MOST_WHOLE = 2**53
# What stands in numbers beside what Python reads: units, marks and groups of three digits.
_OF_NUMBERS = re.compile(r"[\s%<>≤≥~≈$€£']|(?<=\d),(?=\d{3}(\D|$))")


def categories(column: Any) -> list[Any]:
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
            f"column {column.name!r} mixes values of several types; convert them with astype(str)."
        ) from e


def codes_of(table: Table, name: str, values: Sequence[Any]) -> np.ndarray:
    """Returns the position of each of a column's values, int32 `[n]`."""
    place = {value: k for k, value in enumerate(values)}
    found = table.frame[name].tolist()
    unknown = sorted({repr(v) for v in found if v not in place})
    if unknown:
        raise TaskError(
            f"{table.what}: column {name!r} has {some(unknown)}, which the training table lacks "
            f"(it has {some(list(map(repr, values)))}); remove these rows, or write them as there."
        )
    return np.array([place[v] for v in found], np.int32)


def numbers_of(table: Table, name: str, origin: int = 0) -> np.ndarray:
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


def origin_of(column: Any) -> int:
    """Returns the least of whole numbers if float64 would round some of them, otherwise 0."""
    from pandas.api import types

    if not types.is_integer_dtype(column):
        return 0
    least, most = int(column.min()), int(column.max())
    return least if max(-least, most) > _MOST_WHOLE else 0


def most_are_numbers(column: Any) -> tuple[bool, str | None]:
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


def report_rounding(what: str, values: Any, way: str = "subtract its minimum") -> None:
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
        warn(
            f"{what}: float32 rounds it by up to {error:.3g}, and its standard deviation is "
            f"{deviation:.3g}; {way}."
        )


def for_json(values: Sequence[Any]) -> list[Any]:
    """Returns values as JSON has them: numbers and booleans as they are, all others as text."""
    values = [v.item() if isinstance(v, np.generic) else v for v in values]
    # What NumPy keeps of numbers with more digits than Python's.
    values = [float(v) if isinstance(v, np.floating) and float(v) == v else v for v in values]
    return [v if isinstance(v, bool | int | float | str) else str(v) for v in values]
