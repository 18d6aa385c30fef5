"""What a paper claims in words, and whether the recorded results bear it out.

`papers/<paper>/claims.csv` has a line a claim:

    claim       in words
    source      where the paper says it
    setup       `<item>/<setup>`, whose recorded results the expression reads
    expression  what has to be true of them; blank for a claim that nothing here was run for
    remark      why nothing was, or what else must be said

An expression is Python's comparisons, `and`, `or`, `not`, numbers, + and -, over four functions of
the recorded means. Rows and columns are those of the set-up; `setup` is another `<item>/<setup>`.
What is declared and has no value yet leaves the claim untested.

    value(row, column, setup)   the mean
    first(row, column, *but)    whether the row is above all others but those named; the page then
                                shows by how much, beside the paper's own lead where published.csv
                                has it. Rows that diverged are passed over
    lowest(row, column, *but)   whether it is below them, likewise
    dominated(row, prefix, column, column)  whether some row whose name begins with the prefix is
                                below the row in both columns
"""

import ast
import csv
import operator
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
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub}


class Verdict(NamedTuple):
    """What became of a claim.

    Attributes:
      claim: The line of claims.csv.
      verdict: One of `VERDICTS`; it goes by the means alone.
      shown: The numbers that it goes by, or why there is none.
    """

    claim: Mapping[str, str]
    verdict: str
    shown: str


class _NotThereError(Exception):
    """A number that the item declares and no recorded run gives; its text says why."""


class _Results:
    """Recorded results as an expression sees them; notes what it looked at."""

    def __init__(self, paper, default):
        self._paper, self._default = paper, default
        self._tables = {}
        self.read: list[tuple[Setup, Mapping[str, str]]] = []
        self.leads: list[str] = []

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

    def _cell(self, row, column, name):
        setup, table = self._table(name)
        if (row, column) not in table:
            if row not in setup.rows or column not in {c["name"] for c in setup.columns}:
                raise ReproduceError(f"{self._paper}/{name} has no {column} of {row}.")
            why = self._status(row, name) or ("not yet run" if setup.planned else "not run")
            raise _NotThereError(f"on a stand-in, {why}" if setup.stand_in else why)
        self.read.append((setup, table[row, column]))
        return float(table[row, column]["value"])

    def _status(self, row, name):
        """Returns why a recorded row has no value; blank if it has one, or nothing is recorded."""
        setup, table = self._table(name)
        if any(r == row for r, _ in table):
            return ""
        lines = score.recorded(setup)
        return next((f"{row} {line['status']}" for line in lines if line["row"] == row), "")

    def value(self, row, column, setup=None):
        return self._cell(row, column, setup or self._default)

    def first(self, row, column, *but):
        return self._lead(row, column, but, 1)

    def lowest(self, row, column, *but):
        return self._lead(row, column, but, -1)

    def _lead(self, row, column, but, sign):
        setup, table = self._table(self._default)
        for name in but:
            if name not in setup.rows:
                raise ReproduceError(f"{self._paper}/{self._default} has no row {name}.")
        own = self._cell(row, column, self._default)
        others = {
            r: self._cell(r, column, self._default)
            for r in setup.rows
            if r not in (row, *but) and "diverged" not in self._status(r, self._default)
        }
        if not others:
            raise _NotThereError("all other rows diverged")
        best = max(others, key=lambda r: sign * others[r])
        lead = f"{row} {_number(own)}, {best} {_number(others[best])}"
        # Only where both have a spread: what one seed shows is said by the row itself.
        margin = score.margin(table[row, column], _as_published(table[best, column]))
        if margin is not None and abs(own - others[best]) <= margin:
            lead += ", within two standard errors"
        theirs = {
            r: float(line["value"])
            for (r, c), line in results.published(setup).items()
            if c == column
        }
        their_row = setup.published_rows.get(row, row)
        printed = theirs.pop(their_row, None)
        if printed is not None and theirs:
            next_best = max(theirs, key=lambda r: sign * theirs[r])
            lead += f" (paper: {_number(printed)}, {next_best} {_number(theirs[next_best])})"
        self.leads.append(lead)
        return sign * own > sign * others[best]

    def dominated(self, row, prefix, *columns):
        _, table = self._table(self._default)
        own = [self._cell(row, c, self._default) for c in columns]
        others = dict.fromkeys(r for r, _ in table if r.startswith(prefix))
        points = {r: [self._cell(r, c, self._default) for c in columns] for r in others}
        better = [r for r, p in points.items() if all(a < b for a, b in zip(p, own, strict=True))]
        by = f"by {better[0]}" if better else "by none"
        self.leads.append(f"{row} {by}")
        return bool(better)


def _as_published(record) -> dict[str, str]:
    count = str(len(record["seeds"].split()))
    return {"spread": record["spread"], "spread_kind": "deviation", "seeds": count}


def _number(value) -> str:
    return f"{value:.4g}"


def _evaluate(node, data: _Results) -> Any:
    match node:
        case ast.Expression(body=body):
            return _evaluate(body, data)
        case ast.Constant(value=int() | float() | str()):
            return node.value
        case ast.BoolOp(op=op, values=parts):
            # All parts, since each says what it read.
            told = [_evaluate(part, data) for part in parts]
            return all(told) if isinstance(op, ast.And) else any(told)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _evaluate(operand, data)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, data)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SUMS:
            return _SUMS[type(op)](_evaluate(left, data), _evaluate(right, data))
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            values = [_evaluate(part, data) for part in (left, *rest)]
            signs = [_COMPARISONS[type(op)] for op in ops]
            told = _number(values[0])
            for (_, sign), value in zip(signs, values[1:], strict=True):
                told += f" {sign} {_number(value)}"
            holds = all(
                compare(a, b) for (compare, _), a, b in zip(signs, values, values[1:], strict=False)
            )
            data.leads.append(told if holds else f"not {told}")
            return holds
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in (
            *("value", "first", "lowest", "dominated"),
        ):
            return getattr(data, name)(*(_evaluate(a, data) for a in arguments))
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
    shown = "; ".join([*data.leads, *remark])
    flaws = []
    if any(setup.stand_in for setup, _ in data.read):
        flaws.append("on a stand-in")
    if not all(score.is_whole(setup, record) for setup, record in data.read):
        flaws.append("on fewer rounds or seeds")
    if flaws:
        found = "it holds" if holds else "it does not hold"
        return Verdict(claim, UNTESTED, f"{', '.join(flaws)} {found}: {shown}")
    return Verdict(claim, HOLDS if holds else FAILS, shown)


def of_paper(paper: str) -> list[Verdict]:
    """Returns the verdict on each claim of a paper, in the order of claims.csv."""
    path = PAPERS / paper / "claims.csv"
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return [judge(paper, claim) for claim in csv.DictReader(f)]
