"""Inputs that are columns of numbers and categories."""

import collections
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.missing import some
from tasks.tables.columns import (
    FEW,
    PLAINLY,
    categories,
    codes_of,
    for_json,
    most_are_numbers,
    numbers_of,
    origin_of,
    report_rounding,
)
from tasks.tables.table import Table
from tasks.tables.told import report_alike, report_untrained
from tasks.task import TaskError
from tff_suite.user_warnings import warn

# A feature column of text with more values than this is not one-hot encoded.
MOST_CATEGORIES = 100
# A deviation below this share of the mean is rounding noise, as of 0.1 + 0.2 beside 0.3.
_NOISE = 1e-12


def feature_columns(table: Table, target: str, features: Sequence[str] | None) -> list[str]:
    """Returns the columns of inputs: those named, or all other columns of numbers."""
    from pandas.api import types

    if features is None:
        others = [c for c in table.frame.columns if c not in (table.user, table.id, target)]
        columns = [c for c in others if types.is_numeric_dtype(table.frame[c])]
        left_out = [c for c in others if c not in columns]
        as_text = [c for c in left_out if most_are_numbers(table.frame[c])[0]]
        if not columns:
            way = f"write {as_text[0]!r} {PLAINLY}, or " if as_text else ""
            raise TaskError(
                f"{table.what} has no column of numbers beside user and target; {way}name "
                "features, text or image."
            )
        if as_text:
            warn(
                f"{table.what}: numbers written as text are left out: column "
                f"{some(list(map(repr, as_text)))}; write them {PLAINLY}."
            )
        rest = [str(c) for c in left_out if c not in as_text]
        if rest:
            warn(
                f"non-numeric columns are left out: {', '.join(rest)}; name them in features "
                "to include them."
            )
        counting = [repr(c) for c in columns if _numbers_rows(table.frame[c])]
        if counting:
            warn(
                f"{table.what}: column {some(counting)} seems to number the rows and is used as a "
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
    if len(column) < FEW or not (types.is_any_real_numeric_dtype(column) and column.is_unique):
        return False
    return bool((column % 1 == 0).all() and column.max() - column.min() == len(column) - 1)


class Features:
    """Columns of numbers, and of categories that are one-hot encoded.

    Attributes:
      columns: Their names.
    """

    transform = None

    def __init__(self, table: Table, columns: Sequence[str], standardize: bool):
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
            values = categories(column)
            if len(values) > MOST_CATEGORIES:
                raise TaskError(
                    f"features: {name!r} has {len(values)} different texts, more than "
                    f"{MOST_CATEGORIES}; name it as the column of text, or leave it out."
                )
            self._categories[name] = values
            report_alike(f"categories of feature {name!r}", values)
        self._standardize = standardize
        # What is subtracted from whole numbers before, and then the mean and deviation.
        self._origins: dict[str, int] = {}
        self._scale: tuple[np.ndarray, np.ndarray] | None = None

    def fit(self, table: Table, rows: np.ndarray) -> None:
        """Learns means and deviations from training rows."""
        for name, values in self._categories.items():
            found = codes_of(table, name, values)
            report_untrained(f"feature {name!r}", values, found[rows])
        if self._standardize:
            for name in self.columns:
                origin = origin_of(table.frame[name].iloc[rows])
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
                warn(
                    f"{table.what}: {some(self._of(noise))} differs by rounding errors only and "
                    "is standardized as a constant; leave it out."
                )
            varies &= ~noise
            self._scale = np.where(varies, mean, x[0]), np.where(varies, deviation, 1.0)
            if not np.isfinite(self._scale).all():
                raise TaskError(f"{table.what}: features are too large to standardize; scale them.")

    def take(self, table: Table) -> np.ndarray:
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

    def _unscaled(self, table: Table) -> np.ndarray:
        """Returns the inputs of a table's rows before any scaling, float64 where needed."""
        parts: list[np.ndarray] = []
        for name in self.columns:
            table.require(name, "features")
            table.complete(name)
            if name in self._categories:
                values = self._categories[name]
                part = np.eye(len(values), dtype=np.float32)[codes_of(table, name, values)]
            else:
                part = numbers_of(table, name, self._origins.get(name, 0))[:, None]
                if not self._standardize:
                    what = f"{table.what}: column {name!r}"
                    way = "subtract its minimum, or standardize it"
                    report_rounding(what, table.frame[name], way)
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
            found["categories"] = {str(k): for_json(v) for k, v in self._categories.items()}
        if self._scale is not None:
            mean, deviation = self._scale
            found |= {"mean": mean.tolist(), "deviation": deviation.tolist()}
            if self._origins:
                found["subtracted_before"] = {str(k): v for k, v in self._origins.items()}
        return found


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
    most, other = most_are_numbers(column)
    if most:
        beside = "every value reads" if other is None else f"most values read, unlike {other!r},"
        way = "convert them with pd.to_numeric" if other is None else f"write them {PLAINLY}"
        warn(
            f"feature {column.name!r} is text, though {beside} as a number, and is one-hot "
            f"encoded; if it holds numbers, {way}."
        )
