"""Claims that papers make in words, and whether the recorded results support them.

`papers/<paper>/claims.csv` has one line per claim:

    claim       in words
    source      where the paper says it
    setup       `<item>/<setup>`, whose recorded results the expression reads
    expression  condition that these results must meet; blank if nothing was run for the claim
    remark      why nothing was run, or another note

`papers/main_claims.csv` lists the claims that together make up a paper's main claim.

An expression consists of Python's comparisons, `and`, `or`, `not`, numbers, + and -, and of six
functions of the recorded means. Rows and columns are those of the set-up; the argument `setup`
names another `<item>/<setup>`. If a declared row or column has no value yet, the claim is untested.

    value(row, column, setup)   the mean
    first(row, column, *but)    whether the row is above all others except those in `but`. The page
                                shows by how much, beside the paper's own lead if published.csv has
                                it. Diverged rows are ignored
    lowest(row, column, *but)   whether the row is below all others, with the same rules
    dominated(row, prefix, column, column)  whether some row whose name begins with the prefix is
                                below the row in both columns
    range(column)               the highest row's mean minus the lowest row's
    soonest(row, column, level) whether the row's curve reaches the level in fewer rounds than all
                                others'. The column of metrics.csv must be one whose curves the
                                set-up draws. The number compared is the first evaluated round at
                                or above the level, as a mean over seeds

A comparison is decided only if its numbers are more than two standard errors apart. Otherwise it is
undecided, and so is a claim whose truth depends on it: the verdict is *inconclusive*. A number from
one seed has no standard error, so the spread that the paper prints stands in for it. If the paper
prints none, the difference must exceed the largest spread over seeds of any row in the same column
of the same table.
"""

import ast
import csv
import math
import operator
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from reproduction import items, results, score
from reproduction.items import PAPERS, ReproduceError, Setup

HOLDS, FAILS, INCONCLUSIVE = "holds", "does not hold", "inconclusive"
UNTESTED = "untested here"
VERDICTS = (HOLDS, FAILS, INCONCLUSIVE, UNTESTED)
# Truth of an expression → the verdict.
_OUTCOMES = {True: HOLDS, False: FAILS, None: INCONCLUSIVE}
# Verdict → what is said of one claim, and of several.
_SAID = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    INCONCLUSIVE: ("is inconclusive", "are inconclusive"),
    UNTESTED: ("is untested", "are untested"),
}
# How many of a claim's comparisons its text shows.
_SHOWN = 2

_COMPARISONS = {
    ast.Lt: (operator.lt, "<"),
    ast.LtE: (operator.le, "<="),
    ast.Gt: (operator.gt, ">"),
    ast.GtE: (operator.ge, ">="),
}
_OPPOSITES = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
_SIGNS = {ast.Add: 1, ast.Sub: -1}


class Verdict(NamedTuple):
    """The verdict on a claim.

    Attributes:
      claim: The line of claims.csv.
      verdict: One of `VERDICTS`.
      shown: The numbers that it goes by, or why there is none; a line for each comparison and
        remark.
      read: The set-ups whose results were read, each with a recorded line.
      outcome: What the results at hand say, also where they decide nothing: one of the other
        verdicts; blank without results.
      flaws: Why the results at hand decide nothing, e.g. `on a stand-in`; blank if they do.
    """

    claim: Mapping[str, str]
    verdict: str
    shown: str
    read: Sequence[tuple[Setup, Mapping[str, str]]] = ()
    outcome: str = ""
    flaws: str = ""

    @property
    def explained(self) -> str:
        """`shown`, after the outcome if that is not the verdict."""
        if not self.flaws:
            return self.shown
        return f"{self.flaws} it {_SAID[self.outcome][0]}:\n{self.shown}"


class _Number(NamedTuple):
    """A number of an expression.

    Attributes:
      value: Its value.
      variance: Its squared standard error; 0 if unknown.
      told: The text that shows it.
      spread: For a number without a standard error, the difference to exceed; else 0.
      column: The column of a recorded number.
    """

    value: float
    variance: float
    told: str
    spread: float = 0.0
    column: str = ""

    def is_close_to(self, other: "_Number") -> bool:
        difference = abs(self.value - other.value)
        margin = score.STANDARD_ERRORS * math.sqrt(self.variance + other.variance)
        spread = max(self.spread, other.spread)
        return difference <= margin or difference <= spread

    def told_close_to(self, other: "_Number") -> str:
        spread = max(self.spread, other.spread)
        if math.isinf(spread):
            return "one seed, so undecided"
        return "within the spread over seeds" if spread else "within two standard errors"


def _all(parts: Iterable[bool | None]) -> bool | None:
    """Returns `False` if any part is false, else `None` if any is undecided, else `True`."""
    parts = list(parts)
    return False if False in parts else None if None in parts else True


def _not(part: bool | None) -> bool | None:
    return None if part is None else not part


def _any(parts: Iterable[bool | None]) -> bool | None:
    return _not(_all(map(_not, parts)))


class _NotThereError(Exception):
    """A number that the item declares but that is not recorded; the text says why."""


class _Results:
    """Recorded results as an expression sees them; notes what the expression reads."""

    def __init__(self, paper, default):
        self._paper, self._default = paper, default
        self._tables = {}
        self.read: list[tuple[Setup, Mapping[str, str]]] = []
        # Comparisons: outcome, what the means alone say, and text.
        self.told: list[tuple[bool | None, bool, str]] = []

    def _table(self, name: str) -> tuple[Setup, dict[tuple[str, str], Mapping[str, str]]]:
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

    def _cell(self, row: str, column: str, name: str) -> _Number:
        setup, table = self._table(name)
        if (row, column) not in table:
            if row not in setup.rows or column not in {c["name"] for c in setup.columns}:
                raise ReproduceError(f"{self._paper}/{name} has no {column} of {row}.")
            why = self._status(row, name) or ("not yet run" if setup.planned else "not run")
            raise _NotThereError(f"on a stand-in, {why}" if setup.stand_in else why)
        record = table[row, column]
        self.read.append((setup, record))
        value, deviation = float(record["value"]), _deviation(record)
        elsewhere = "" if name == self._default else f" of {name}"
        told = f"{results.short_name(row, setup)}{elsewhere} {_number(value)}"
        if deviation is not None:
            error = deviation**2 / len(record["seeds"].split())
            return _Number(value, error, told, column=column)
        published = results.published(setup).get((setup.published_rows.get(row, row), column))
        if published and published["spread"]:
            return _Number(value, score.deviation(published) ** 2, told, column=column)
        others = (_deviation(r) for (_, c), r in table.items() if c == column)
        return _Number(value, 0.0, told, _largest(others), column)

    def _status(self, row, name):
        """Returns why a recorded row has no value; blank if it has one or is not recorded."""
        setup, table = self._table(name)
        if any(r == row for r, _ in table):
            return ""
        lines = score.recorded(setup)
        return next((f"{row} {line['status']}" for line in lines if line["row"] == row), "")

    def _others(
        self, row: str | None, column: str, but: Collection[str] = ()
    ) -> dict[str, _Number]:
        """Returns the numbers of the other rows that did not diverge."""
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
        theirs = {
            r: float(line["value"])
            for (r, c), line in results.published(setup).items()
            if c == column
        }
        printed = theirs.pop(setup.published_rows.get(row, row), None)
        of_paper = ""
        if printed is not None and theirs:
            next_best = max(theirs, key=lambda r: sign * theirs[r])
            of_paper = (
                f" (paper: {_number(printed)}, against {next_best} {_number(theirs[next_best])})"
            )
        return self._is_ahead(column, own, others.values(), sign, of_paper)

    def soonest(self, row, column, level):
        setup, _ = self._table(self._default)
        self._others(None, setup.columns[0]["name"])  # Notes that all rows' records are read.
        rounds = _rounds_to(_curves(setup, column), level, setup.rows)
        own = rounds.pop(row)
        if math.isinf(min(own.value, *(n.value for n in rounds.values()))):
            raise _NotThereError(f"no row reaches {_number(level)}")
        return self._is_ahead(f"rounds to {_number(level)}", own, rounds.values(), -1)

    def _is_ahead(
        self, what: str, own: _Number, others: Any, sign: int, more: str = ""
    ) -> bool | None:
        """Returns whether a number is above (`sign` 1) or below (-1) all others."""
        ordered = sorted(others, key=lambda n: -sign * n.value)
        close = [n for n in ordered if own.is_close_to(n)]
        ahead = _all(None if n in close else sign * own.value > sign * n.value for n in ordered)
        told = f"{what}: {own.told}, against {ordered[0].told}"
        if ahead is None:
            # The best of the close numbers need not be the best of all.
            other = "" if close[0] is ordered[0] else f" of {close[0].told}"
            told += f", {own.told_close_to(close[0])}{other}"
        self.told.append((ahead, sign * own.value > sign * ordered[0].value, told + more))
        return ahead

    def dominated(self, row, prefix, *columns):
        _, table = self._table(self._default)
        own = [self._cell(row, c, self._default) for c in columns]
        better, found = {}, dict.fromkeys(r for r, _ in table if r.startswith(prefix))
        for r in found:
            pairs = zip((self._cell(r, c, self._default) for c in columns), own, strict=True)
            better[r] = _all(None if a.is_close_to(b) else a.value < b.value for a, b in pairs)
        outcome = _any(better.values())
        by = next((r for r in found if outcome is not False and better[r] is outcome), "none")
        perhaps = ", within two standard errors" if outcome is None else ""
        self.told.append((outcome, by != "none", f"{', '.join(columns)}: {row} by {by}{perhaps}"))
        return outcome


def _deviation(record: Mapping[str, str]) -> float | None:
    """Returns a recorded number's standard deviation over seeds; `None` for a single seed."""
    several = len(record["seeds"].split()) > 1 and record["spread"]
    return float(record["spread"]) if several else None


def _largest(deviations: Iterable[float | None]) -> float:
    """Returns the largest known deviation; infinity, which no difference exceeds, without any."""
    return max((d for d in deviations if d is not None), default=math.inf)


def _curves(setup: Setup, column: str) -> list[dict[str, str]]:
    """Returns the CSV lines behind a set-up's curves of a column of metrics.csv."""
    for name, figure in setup.named_figures():
        if figure["kind"] == "curves" and figure.get("column", setup.curve) == column:
            lines = score.lines_of(score.recorded_folder(setup) / f"{name}.csv")
            if not lines:
                raise _NotThereError("not run")
            return lines
    raise ReproduceError(f"{setup.paper}/{setup.item}/{setup.name} draws no curves of {column}.")


def _rounds_to(
    curves: Sequence[Mapping[str, str]], level: float, rows: Iterable[str]
) -> dict[str, _Number]:
    """Returns row → the round in which its curve first reaches a level, as a mean over seeds."""
    firsts = {row: {} for row in rows}
    for line in curves:
        of_row = firsts.get(line["method"], {})
        reached = of_row.setdefault(line["seed"], math.inf)
        if float(line["value"]) >= level:
            of_row[line["seed"]] = min(reached, float(line["round_num"]))
    found, deviations = {}, {}
    for row, of_row in firsts.items():
        mean = statistics.fmean(of_row.values()) if of_row else math.inf
        if math.isfinite(mean) and len(of_row) > 1:
            deviations[row] = statistics.stdev(of_row.values())
        told = f"{row} {mean:.3g}" if math.isfinite(mean) else f"{row} never"
        found[row] = _Number(mean, deviations.get(row, 0) ** 2 / max(len(of_row), 1), told)
    spread = _largest(deviations.values())
    return {
        row: number if len(firsts[row]) > 1 else number._replace(spread=spread)
        for row, number in found.items()
    }


def _number(value: Any) -> str:
    return f"{value:.4g}"


def _sum(left: _Number, right: _Number, sign: int = 1) -> _Number:
    value = left.value + sign * right.value
    told = f"{left.told} {'+' if sign > 0 else '-'} {right.told} = {_number(value)}"
    spread = max(left.spread, right.spread)
    column = left.column or right.column
    return _Number(value, left.variance + right.variance, told, spread, column)


def _evaluate(node: Any, data: _Results) -> Any:
    match node:
        case ast.Expression(body=body):
            return _evaluate(body, data)
        case ast.Constant(value=int() | float() as value):
            return _Number(value, 0.0, _number(value))
        case ast.BoolOp(op=op, values=parts):
            # No short-circuit: every part notes what it reads.
            truths = [_evaluate(part, data) for part in parts]
            return _all(truths) if isinstance(op, ast.And) else _any(truths)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _not(_evaluate(operand, data))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return _Number(-value, 0.0, _number(-value))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            return _sum(_evaluate(left, data), _evaluate(right, data), _SIGNS[type(op)])
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(
            type(op) in _COMPARISONS for op in ops
        ):
            numbers = [_evaluate(part, data) for part in (left, *rest)]
            pairs = list(zip(ops, numbers, numbers[1:], strict=False))
            truths = [_COMPARISONS[type(op)][0](a.value, b.value) for op, a, b in pairs]
            # As it is: of a comparison that is false, the opposite.
            signs = [
                _COMPARISONS[type(op) if true else _OPPOSITES[type(op)]][1]
                for (op, _, _), true in zip(pairs, truths, strict=True)
            ]
            told = numbers[0].told + "".join(
                f" {sign} {right.told}" for sign, (_, _, right) in zip(signs, pairs, strict=True)
            )
            closes = [a.is_close_to(b) for _, a, b in pairs]
            outcome = _all(None if c else t for c, t in zip(closes, truths, strict=True))
            margins = dict.fromkeys(a.told_close_to(b) for _, a, b in pairs if a.is_close_to(b))
            columns = ", ".join(dict.fromkeys(n.column for n in numbers if n.column))
            told = f"{columns}: {told}" if columns else told
            data.told.append((outcome, all(truths), ", ".join([told, *margins])))
            return outcome
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in (
            *("value", "first", "lowest", "dominated", "range", "soonest"),
        ):
            return getattr(data, name)(*(_argument(a) for a in arguments))
    raise ReproduceError(f"the expression of a claim cannot contain {ast.unparse(node)!r}.")


def _argument(node: Any) -> str | float:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
        return node.value
    raise ReproduceError(f"the expression of a claim cannot contain {ast.unparse(node)!r}.")


def judge(paper: str, claim: Mapping[str, str]) -> Verdict:
    """Returns the verdict of the recorded results on a claim; untested if a number is missing.

    Only rows with all rounds and seeds of the protocol, on the paper's data and model, decide. For
    others the outcome is reported, but the claim stays untested.

    Args:
      paper: Folder under papers/.
      claim: A line of claims.csv.

    Raises:
      ReproduceError: If the expression is invalid, or names a row, column or set-up that no item
        declares.
    """
    if not claim["expression"]:
        return Verdict(claim, UNTESTED, claim["remark"])
    data = _Results(paper, claim["setup"])
    remark = [claim["remark"]] if claim["remark"] else []
    try:
        outcome = _evaluate(ast.parse(claim["expression"], mode="eval"), data)
    except _NotThereError as why:
        return Verdict(claim, UNTESTED, "\n".join([str(why), *remark]))
    except SyntaxError as error:
        raise ReproduceError(
            f"{claim['expression']!r} in claims.csv of {paper}: {error}."
        ) from None
    found = _OUTCOMES[outcome]
    # The deciding comparisons come first, e.g. the single false one of ten. Of undecided ones,
    # those that speak against the claim do.
    ordered = sorted(data.told, key=lambda one: (one[0] is not outcome, one[1] and outcome is None))
    told = [text for *_, text in ordered]
    more = [f"{len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    shown = "\n".join([*told[:_SHOWN], *more, *remark])
    flaws = []
    if any(setup.stand_in for setup, _ in data.read):
        flaws.append("on a stand-in")
    if not all(score.is_whole(setup, record) for setup, record in data.read):
        flaws.append("on fewer rounds or seeds")
    return Verdict(claim, UNTESTED if flaws else found, shown, data.read, found, ", ".join(flaws))


def of_paper(paper: str) -> list[Verdict]:
    """Returns the verdict on each claim of a paper, in the order of claims.csv."""
    path = PAPERS / paper / "claims.csv"
    if not path.exists():
        return []
    with open(path, newline="") as f:
        return [judge(paper, claim) for claim in csv.DictReader(f)]


class MainClaim(NamedTuple):
    """A paper's main claim.

    Attributes:
      sentence: The claim as one sentence.
      parts: The verdicts on the claims of claims.csv that make it up.
    """

    sentence: str
    parts: Sequence[Verdict]

    @property
    def verdict(self) -> str:
        """The verdict if all parts share it, else `in part` if any holds, else the worst one."""
        verdicts, total = Counter(part.verdict for part in self.parts), len(self.parts)
        if len(verdicts) > 1:
            whole = "in part" if verdicts[HOLDS] else next(v for v in VERDICTS if verdicts[v])
            return f"{whole}: {_numbers(verdicts, total)}"
        (verdict,) = verdicts
        outcomes = Counter(part.outcome or UNTESTED for part in self.parts)
        if verdict == UNTESTED and len(outcomes) > (UNTESTED in outcomes):
            return f"{verdict}; with stand-ins or partial runs, {_numbers(outcomes, total)}"
        return verdict


def _numbers(verdicts: Mapping[str, int], total: int) -> str:
    """Returns how many of a main claim's parts have which verdict, as part of a sentence."""
    told = []
    for verdict, (one, several) in _SAID.items():
        if number := verdicts[verdict]:
            of = "" if told else f" of {total}"
            told.append(f"{number}{of} {one if number == 1 else several}")
    return ", ".join(told)


def main_claim(paper: str) -> MainClaim:
    """Returns a paper's main claim.

    Raises:
      ReproduceError: If main_claims.csv has none for the paper, or names an unknown claim.
    """
    verdicts = {verdict.claim["claim"]: verdict for verdict in of_paper(paper)}
    lines = [r for r in score.lines_of(PAPERS / "main_claims.csv") if r["paper"] == paper]
    unknown = [line["part"] for line in lines if line["part"] not in verdicts]
    if unknown or len({line["main claim"] for line in lines}) != 1:
        raise ReproduceError(
            f"main_claims.csv: {paper} needs one main claim, whose parts are in its claims.csv"
            + (f"; {unknown[0]!r} is missing there." if unknown else ".")
        )
    return MainClaim(lines[0]["main claim"], [verdicts[line["part"]] for line in lines])
