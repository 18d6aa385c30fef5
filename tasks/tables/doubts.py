"""Warnings about rows and users that make results wrong or too good, though they are valid."""

from collections.abc import Mapping, Sequence

import numpy as np

from tasks import missing, partitions
from tasks.tables.columns import FEW, numbers_of
from tasks.tables.table import Table
from tasks.tables.target import Target
from tasks.tables.told import report_alike, warn

# Copies of training rows are reported if more than this share of the rows held out are such.
_MOST_COPIES = 0.01
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
