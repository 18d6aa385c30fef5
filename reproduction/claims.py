"""What a paper claims in words, and whether the recorded results bear it out.

`papers/<paper>/claims.csv` has a line a claim:

    claim       in words
    source      where the paper says it
    setup       `<item>/<setup>`, whose recorded results the expression reads
    expression  what has to be true of them; blank for a claim that nothing here was run for
    remark      why nothing was, or what else must be said

An expression is Python's comparisons, `and`, `or`, `not`, numbers, + and -, over six functions of
the recorded means. Rows and columns are those of the set-up; `setup` is another `<item>/<setup>`.
What is declared and has no value yet leaves the claim untested.

    value(row, column, setup)   the mean
    first(row, column, *but)    whether the row is above all others but those named; the page then
                                shows by how much, beside the paper's own lead where published.csv
                                has it. Rows that diverged are passed over
    lowest(row, column, *but)   whether it is below them, likewise
    dominated(row, prefix, column, column)  whether some row whose name begins with the prefix is
                                below the row in both columns
    range(column)               how far apart the highest and the lowest row are
    soonest(row, column, level) whether the row's curve of a column of metrics.csv, one that the
                                set-up draws, reaches the level in fewer rounds than all others': as
                                a mean over seeds, of the first round evaluated that is not below it

A verdict goes by the means alone. Beside it stands whether it hangs on numbers that are within two
standard errors of each other, where both have a spread over seeds.
"""

import ast
import csv
import math
import operator
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from reproduction import items, results, score
from reproduction.items import PAPERS, ReproduceError, Setup

HOLDS, FAILS, UNTESTED = "holds", "does not", "untested here"
VERDICTS = (HOLDS, FAILS, UNTESTED)

_COMPARISONS = {
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
}
_SIGNS = {ast.Add: 1, ast.Sub: -1}


class Verdict(NamedTuple):
    """What became of a claim.

    Attributes:
      claim: The line of claims.csv.
      verdict: One of `VERDICTS`; it goes by the means alone.
      shown: The numbers that it goes by, or why there is none.
      is_close: Whether it would be another if numbers moved within two standard errors.
    """

    claim: Mapping[str, str]
    verdict: str
    shown: str
    is_close: bool = False


class _Number(NamedTuple):
    """A number of an expression: its value, its standard error squared if known, and its words."""

    value: float
    variance: float | None
    told: str

    def is_close_to(self, other: "_Number") -> bool:
        if self.variance is None or other.variance is None:
            return False
        margin = score.STANDARD_ERRORS * math.sqrt(self.variance + other.variance)
        return abs(self.value - other.value) <= margin


class _Compared(NamedTuple):
    """A comparison: whether it is true, whether its numbers are close, and its words."""

    holds: bool
    is_close: bool
    told: str


class _NotThereError(Exception):
    """A number that the item declares and no recorded run gives; its text says why."""


class _Results:
    """Recorded results as an expression sees them; notes what it looked at."""

    def __init__(self, paper, default):
        self._paper, self._default = paper, default
        self._tables = {}
        self.read: list[tuple[Setup, Mapping[str, str]]] = []
        self.compared: list[_Compared] = []

    def _table(self, name) -> tuple[Setup, dict[tuple[str, str], Mapping[str, str]]]:
        if name not in self._tables:
            item, _, setup = name.partition("/")
            setups = items.load_item(self._paper, item).setups
            if setup not in setups:
                raise ReproduceError(f"{self._paper}/{item} has no set-up {setup}.")
            lines = score.recorded(setups[setup])
            missing = ("", "nan", None)
            found = {(r["row"], r["column"]): r for r in lines if r["value"] not in missing}
            self._tables[name] = setups[setup], found
        return self._tables[name]

    def _cell(self, row, column, name) -> _Number:
        setup, table = self._table(name)
        if (row, column) not in table:
            if row not in setup.rows or column not in {c["name"] for c in setup.columns}:
                raise ReproduceError(f"{self._paper}/{name} has no {column} of {row}.")
            why = self._status(row, name) or ("not yet run" if setup.planned else "not run")
            raise _NotThereError(f"on a stand-in, {why}" if setup.stand_in else why)
        record = table[row, column]
        self.read.append((setup, record))
        value, seeds, variance = float(record["value"]), len(record["seeds"].split()), None
        if seeds > 1 and record["spread"]:
            variance = float(record["spread"]) ** 2 / seeds
        elsewhere = "" if name == self._default else f" of {name}"
        return _Number(value, variance, f"{_short(row, setup)}{elsewhere} {_number(value)}")

    def _status(self, row, name):
        """Returns why a recorded row has no value; blank if it has one, or nothing is recorded."""
        setup, table = self._table(name)
        if any(r == row for r, _ in table):
            return ""
        lines = score.recorded(setup)
        return next((f"{row} {line['status']}" for line in lines if line["row"] == row), "")

    def _others(self, row, column, but=()) -> dict[str, _Number]:
        """Returns the other rows' numbers, but for those that diverged."""
        setup, _ = self._table(self._default)
        for name in but:
            if name not in setup.rows:
                raise ReproduceError(f"{self._paper}/{self._default} has no row {name}.")
        others = {
            r: self._cell(r, column, self._default)
            for r in setup.rows
            if r not in (row, *but) and "diverged" not in self._status(r, self._default)
        }
        if not others:
            raise _NotThereError("all other rows diverged")
        return others

    def value(self, row, column, setup=None):
        return self._cell(row, column, setup or self._default)

    def range(self, column):
        numbers = self._others(None, column)
        low, high = (f(numbers.values(), key=lambda n: n.value) for f in (min, max))
        return _sum(high, low, -1)

    def first(self, row, column, *but):
        return self._lead(row, column, but, 1)

    def lowest(self, row, column, *but):
        return self._lead(row, column, but, -1)

    def _lead(self, row, column, but, sign):
        setup, _ = self._table(self._default)
        own, others = self._cell(row, column, self._default), self._others(row, column, but)
        best = max(others.values(), key=lambda n: sign * n.value)
        theirs = {
            r: float(line["value"])
            for (r, c), line in results.published(setup).items()
            if c == column
        }
        printed = theirs.pop(setup.published_rows.get(row, row), None)
        of_paper = ""
        if printed is not None and theirs:
            next_best = max(theirs, key=lambda r: sign * theirs[r])
            of_paper = f" (paper: {_number(printed)}, {next_best} {_number(theirs[next_best])})"
        return self._compare(sign * own.value > sign * best.value, own, best, of_paper)

    def soonest(self, row, column, level):
        setup, _ = self._table(self._default)
        self._others(None, setup.columns[0]["name"])  # For the rounds and seeds of each row.
        curves = _curves(setup, column)
        rounds = {r: _rounds_to(curves, level, r) for r in setup.rows}
        own = rounds.pop(row)
        best = min(rounds.values(), key=lambda n: n.value)
        if math.isinf(min(own.value, best.value)):
            raise _NotThereError(f"no row reaches {_number(level)}")
        return self._compare(own.value < best.value, own, best, f" (rounds to {_number(level)})")

    def _compare(self, holds, own, best, of_paper):
        is_close = own.is_close_to(best)
        told = f"{own.told}, {best.told}" + ", within two standard errors" * is_close + of_paper
        self.compared.append(_Compared(holds, is_close, told))
        return holds

    def dominated(self, row, prefix, *columns):
        _, table = self._table(self._default)
        own = [self._cell(row, c, self._default).value for c in columns]
        others = dict.fromkeys(r for r, _ in table if r.startswith(prefix))
        points = {r: [self._cell(r, c, self._default).value for c in columns] for r in others}
        better = [r for r, p in points.items() if all(a < b for a, b in zip(p, own, strict=True))]
        by = f"by {better[0]}" if better else "by none"
        self.compared.append(_Compared(bool(better), False, f"{row} {by}"))
        return bool(better)

    def is_close(self, holds) -> bool:
        """Returns whether a verdict hangs on numbers that are close to each other."""
        # Where the whole is false, what is false in it decides, if anything is.
        against = [c for c in self.compared if not c.holds]
        if holds or not against:
            return any(c.is_close for c in self.compared)
        return all(c.is_close for c in against)


def _curves(setup, column) -> list[dict[str, str]]:
    """Returns the lines of the CSV of a set-up's curves of a column of metrics.csv."""
    for name, figure in setup.named_figures():
        if figure["kind"] == "curves" and figure.get("column", setup.curve) == column:
            lines = score.lines_of(score.recorded_folder(setup) / f"{name}.csv")
            if not lines:
                raise _NotThereError("not run")
            return lines
    raise ReproduceError(f"{setup.paper}/{setup.item}/{setup.name} draws no curves of {column}.")


def _rounds_to(curves, level, row) -> _Number:
    firsts = {line["seed"]: math.inf for line in curves if line["method"] == row}
    for line in curves:
        if line["method"] == row and float(line["value"]) >= level:
            seed = line["seed"]
            firsts[seed] = min(firsts[seed], float(line["round_num"]))
    mean = statistics.fmean(firsts.values())
    if not math.isfinite(mean):
        return _Number(math.inf, None, f"{row} never")
    number = len(firsts)
    variance = statistics.variance(firsts.values()) / number if number > 1 else None
    return _Number(mean, variance, f"{row} {mean:.3g}")


def _short(row, setup) -> str:
    """Returns a row's name without the settings that all rows of its set-up share."""
    shared = set.intersection(*(set(r.split()[1:]) for r in setup.rows))
    return " ".join(word for word in row.split() if word not in shared)


def _number(value) -> str:
    return f"{value:.4g}"


def _sum(left, right, sign=1) -> _Number:
    value = left.value + sign * right.value
    known = left.variance is not None and right.variance is not None
    told = f"{left.told} {'+' if sign > 0 else '-'} {right.told} = {_number(value)}"
    return _Number(value, left.variance + right.variance if known else None, told)


def _evaluate(node, data: _Results) -> Any:
    match node:
        case ast.Expression(body=body):
            return _evaluate(body, data)
        case ast.Constant(value=int() | float() as value):
            return _Number(value, 0.0, _number(value))
        case ast.BoolOp(op=op, values=parts):
            # All parts, since each says what it read.
            told = [_evaluate(part, data) for part in parts]
            return all(told) if isinstance(op, ast.And) else any(told)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, data)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _Number(-value, 0.0, _number(-value))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            return _sum(_evaluate(left, data), _evaluate(right, data), _SIGNS[type(op)])
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            numbers = [_evaluate(part, data) for part in (left, *rest)]
            pairs = list(zip(ops, numbers, numbers[1:], strict=False))
            told = numbers[0].told + "".join(
                f" {_COMPARISONS[type(op)][1]} {right.told}" for op, _, right in pairs
            )
            truths = [_COMPARISONS[type(op)][0](a.value, b.value) for op, a, b in pairs]
            closes = [a.is_close_to(b) for _, a, b in pairs]
            holds = all(truths)
            # One of a chain makes it true no longer; it takes all that are false to make it true.
            is_close = (
                any(closes) if holds else all(c or t for c, t in zip(closes, truths, strict=True))
            )
            told = told if holds else f"not {told}"
            told += ", within two standard errors" * is_close
            data.compared.append(_Compared(holds, is_close, told))
            return holds
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in (
            *("value", "first", "lowest", "dominated", "range", "soonest"),
        ):
            return getattr(data, name)(*(_argument(a) for a in arguments))
    raise ReproduceError(f"an expression of a claim can't hold {ast.unparse(node)!r}.")


def _argument(node) -> str | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return node.value
    raise ReproduceError(f"an expression of a claim can't hold {ast.unparse(node)!r}.")


def judge(paper: str, claim: Mapping[str, str]) -> Verdict:
    """Returns what the recorded results say of a claim; untested if a number is still missing.

    Only rows with all rounds and seeds of the protocol, on the paper's data and model, decide. What
    others show is reported, and the claim stays untested.

    Args:
      paper: Folder under papers/.
      claim: A line of claims.csv.

    Raises:
      ReproduceError: If the expression is none, or names what no item declares.
    """
    if not claim["expression"]:
        return Verdict(claim, UNTESTED, claim["remark"])
    data = _Results(paper, claim["setup"])
    remark = [claim["remark"]] if claim["remark"] else []
    try:
        holds = _evaluate(ast.parse(claim["expression"], mode="eval"), data)
    except _NotThereError as why:
        return Verdict(claim, UNTESTED, "; ".join([str(why), *remark]))
    except SyntaxError as error:
        raise ReproduceError(
            f"{claim['expression']!r} in claims.csv of {paper}: {error}."
        ) from None
    shown = "; ".join([*(c.told for c in data.compared), *remark])
    flaws = []
    if any(setup.stand_in for setup, _ in data.read):
        flaws.append("on a stand-in")
    if not all(score.is_whole(setup, record) for setup, record in data.read):
        flaws.append("on fewer rounds or seeds")
    if flaws:
        found = "it holds" if holds else "it does not hold"
        return Verdict(claim, UNTESTED, f"{', '.join(flaws)} {found}: {shown}")
    return Verdict(claim, HOLDS if holds else FAILS, shown, data.is_close(holds))


def of_paper(paper: str) -> list[Verdict]:
    """Returns the verdict on each claim of a paper, in the order of claims.csv."""
    path = PAPERS / paper / "claims.csv"
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return [judge(paper, claim) for claim in csv.DictReader(f)]
