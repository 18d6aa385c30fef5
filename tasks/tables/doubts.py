"""Warnings about rows and users that make results wrong or too good, though they are valid."""

from collections.abc import Mapping, Sequence

import numpy as np

from tasks import missing, partitions
from tasks.tables.columns import FEW, numbers_of
from tasks.tables.table import Table
from tasks.tables.target import Target
from tasks.tables.told import report_alike
from tff_suite.user_warnings import warn

# Copies of training rows are reported if more than this share of the rows held out are such.
_MOST_COPIES = 0.01
# How far float32 may take a mean from 0 and a variance from 1.
_ROUNDED = 1e-5
# Rows that are looked at together.
_TOGETHER = 4096


def report_users(table: Table, parts: Mapping[str, np.ndarray], y: np.ndarray | None) -> None:
    """Warns about users that may not be what the caller intended."""
    column = table.frame[table.user]
    table.report_rounded(table.user)
    if hasattr(column.dtype, "categories"):
        without = [str(u) for u in column.cat.categories if str(u) not in parts]
        if without:
            warn(
                f"left out: {missing.clients(without)} of column {table.user!r}, without any rows."
            )
    report_alike("users", parts)
    one_class = [name for name, rows in parts.items() if y is not None and len(set(y[rows])) == 1]
    if one_class:
        warn(f"{missing.clients(one_class)} of {len(parts)} have rows of one class only.")


def report_leaks(table: Table, columns: Sequence[str], target: Target, y: np.ndarray) -> None:
    """Warns of features that are the target under other names, or in another unit."""
    import pandas as pd
    from pandas.api import types

    # Of classes of one row each, any column of different values has a value for each.
    if len(y) < max(FEW, 2 * len(target.classes or ())):
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
                warn(
                    f"{table.what}: feature {name!r} has one value for each class of target "
                    f"{target.name!r}; if it is made from the target, such as by get_dummies, "
                    "leave it out."
                )
        elif types.is_any_real_numeric_dtype(column):
            x = numbers_of(table, name)
            with np.errstate(all="ignore"):
                x = x - x.mean()
                leaks = np.abs(x @ y) > (1 - 1e-12) * np.sqrt(x @ x) * np.sqrt(y @ y) > 0
        else:
            leaks = False
        if leaks:
            warn(
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


def report_strangers(table: Table, own: Mapping, training: Mapping) -> None:
    """Warns of users of another table who have no training rows."""
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
        warn(
            f"{missing.clients(strangers)} of {len(own)} in {table.what} have no training rows; "
            f"they are tested with the others.{way}"
        )


def keys_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns a number for each row, int64 `[n]`, alike where inputs and target are alike."""
    keys = np.empty(len(y), np.int64)
    for start in range(0, len(y), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        inputs = np.asarray(x[part], np.float32).reshape(len(y[part]), -1)
        targets = np.asarray(y[part], np.float32).reshape(len(inputs), -1)
        keys[part] = [hash(row.tobytes()) for row in np.concatenate([inputs, targets], axis=1)]
    return keys


def report_copies(purpose: str, held: np.ndarray, training: np.ndarray) -> None:
    """Warns of held-out rows that are training rows as well, by their `keys_of`."""
    copies = int(np.isin(held, training).sum())
    if copies > _MOST_COPIES * len(held):
        warn(
            f"{copies} of {len(held)} {purpose} rows have the inputs and target of a training row; "
            "if they are copies, remove them: they make results look better than they are."
        )


def report_standardized_apart(
    purpose: str, held: np.ndarray, x: np.ndarray, rows: np.ndarray
) -> None:
    """Warns of rows that are standardised by their own statistics, as training rows are by theirs.

    Args:
      purpose: What the rows are held out for.
      held: Their inputs, `[m, ...]`.
      x: Inputs of the training table, `[n, ...]`.
      rows: Its training rows.
    """
    if held.ndim != 2 or min(len(held), len(rows)) < FEW:
        return
    alone = _are_standardized(held, np.arange(len(held)))
    if not alone.any():  # The training rows, which are many, need not be read.
        return
    scaled = _are_standardized(x, rows)
    if scaled.any() and alone[scaled].all():
        warn(
            f"{purpose} rows have a mean of 0 and a deviation of 1 by themselves, as training rows "
            "do; standardize them by the mean and deviation of the training rows."
        )


def _are_standardized(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns for each column whether its mean is 0 and its variance 1, of a sample or in all."""
    total, squares = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for start in range(0, len(rows), _TOGETHER):
        part = x[rows[start : start + _TOGETHER]].astype(np.float64)
        total += part.sum(0)
        squares += (part**2).sum(0)
    mean = total / len(rows)
    variance = squares / len(rows) - mean**2
    alike = [np.abs(variance - wanted) < _ROUNDED for wanted in (1, 1 - 1 / len(rows))]
    return (np.abs(mean) < _ROUNDED) & np.any(alike, axis=0)
