"""What papers claim, judged by the recorded results."""

import ast
import csv
import dataclasses
import functools
import operator
import re
import tomllib

import pandas as pd
import pytest

from reproduction import claims, items, results, score

PAPERS = sorted({item.paper for item in items.all_items()})
LINES = [
    (paper, line)
    for paper in PAPERS
    for line in csv.DictReader((items.PAPERS / paper / "claims.csv").read_text().splitlines())
]


class Number:
    """A mean with its squared standard error, or with the spread that a difference must exceed.

    Comparisons are pandas's: `pd.NA` where the numbers are too close, which `&` and `|` then obey.
    """

    def __init__(self, value, variance=0.0, spread=0.0):
        self.value, self.variance, self.spread = float(value), variance, spread

    def __sub__(self, other):
        other = other if isinstance(other, Number) else Number(other)
        spread = max(self.spread, other.spread)
        return Number(self.value - other.value, self.variance + other.variance, spread)

    def __add__(self, other):
        return self - (Number(0) - other)

    def _than(self, other, true):
        gap = self - other
        if abs(gap.value) <= max(2 * gap.variance**0.5, gap.spread):
            return pd.NA
        return bool(true(gap.value))

    def __lt__(self, other):
        return self._than(other, lambda gap: gap < 0)

    def __gt__(self, other):
        return self._than(other, lambda gap: gap > 0)

    def __le__(self, other):
        return self._than(other, lambda gap: gap <= 0)

    def __ge__(self, other):
        return self._than(other, lambda gap: gap >= 0)


class Kleene(ast.NodeTransformer):
    """Python's words for truths as pandas's signs, and a < b < c as (a < b) & (b < c)."""

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        sign = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        return functools.reduce(lambda a, b: ast.BinOp(a, sign, b), node.values)

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        is_not = isinstance(node.op, ast.Not)
        return ast.BinOp(node.operand, ast.BitXor(), ast.Constant(True)) if is_not else node

    def visit_Compare(self, node):
        terms = [node.left, *node.comparators]
        pairs = [
            ast.Compare(a, [op], [b]) for a, op, b in zip(terms, node.ops, terms[1:], strict=False)
        ]
        return functools.reduce(lambda a, b: ast.BinOp(a, ast.BitAnd(), b), pairs)


def recomputed(paper, line):
    """The verdict by pandas's three-valued logic, from the files alone."""
    if not line["expression"]:
        return "untested here"
    tables, whole, missing = {}, [], []

    def table(name=line["setup"]):
        item, setup = name.split("/")
        if name not in tables:
            tables[name] = pd.read_csv(items.PAPERS / paper / name / "results.csv")
            toml = tomllib.loads((items.PAPERS / paper / f"{item}.toml").read_text())
            whole.append("stand_in" not in {**toml, **toml["setups"][setup]})
        return tables[name]

    def column(name, setup=line["setup"]):
        lines = table(setup)[table(setup).column == name].set_index("row")
        whole.append(bool((lines.status == "complete").all()))
        missing.append(False)
        several = lines.seeds.astype(str).str.split().str.len()
        variances = (lines.spread**2 / several).where(several > 1)
        # All decided claims have several seeds; the rule for one has its own test.
        spread = lines.spread.where(several > 1).max()
        spread = float("inf") if pd.isna(spread) else spread
        return {
            row: None
            if pd.isna(value)
            else Number(value, variances[row])
            if not pd.isna(variances[row])
            else Number(value, 0.0, spread)
            for row, value in lines.value.items()
        }

    def value(row, name, setup=line["setup"]):
        found = column(name, setup)[row]
        missing.append(found is None)
        return found or Number(0)

    def others(row, name, but):
        rest = {r: n for r, n in column(name).items() if r not in (row, *but)}
        missing.extend(n is None for n in rest.values())
        return [n for n in rest.values() if n is not None]

    def every(truths):
        return functools.reduce(operator.and_, truths, True)

    def dominated(row, prefix, *names):
        columns = [column(name) for name in names]
        rows = [r for r in columns[0] if r.startswith(prefix)]
        below = (every(c[r] < c[row] for c in columns) for r in rows)
        return functools.reduce(operator.or_, below, False)

    def span(name):
        numbers = sorted(others(None, name, ()), key=lambda n: n.value)
        return numbers[-1] - numbers[0]

    def soonest(row, name, level):
        item, setup = line["setup"].split("/")
        toml = tomllib.loads((items.PAPERS / paper / f"{item}.toml").read_text())
        own = {**toml, **toml["setups"][setup]}
        figures = own.get("figures", [{"kind": "curves"}])
        drawn = [f.get("column", own["curve"]) for f in figures if f["kind"] == "curves"]
        places = [i for i, f in enumerate(figures) if f["kind"] == "curves"]
        place = places[drawn.index(name)]
        file = f"curves_{place + 1}.csv" if place else "curves.csv"
        curves = pd.read_csv(items.PAPERS / paper / line["setup"] / file)
        column(own["columns"][0]["name"])
        at = curves.assign(at=curves.round_num.where(curves.value >= level))
        rounds = at.groupby(["method", "seed"]).at.min().fillna(float("inf"))
        means = rounds.groupby("method").mean()
        missing.append(bool((means == float("inf")).all()))
        errors = rounds[rounds < float("inf")].groupby("method").sem() ** 2
        numbers = {r: Number(m, errors.get(r, 0.0)) for r, m in means.items()}
        return every(numbers[row] < n for r, n in numbers.items() if r != row)

    known = {
        "range": span,
        "soonest": soonest,
        "value": value,
        "first": lambda row, name, *but: every(
            value(row, name) > n for n in others(row, name, but)
        ),
        "lowest": lambda row, name, *but: every(
            value(row, name) < n for n in others(row, name, but)
        ),
        "dominated": dominated,
    }
    expression = ast.fix_missing_locations(
        Kleene().visit(ast.parse(line["expression"], mode="eval"))
    )
    try:
        holds = eval(compile(expression, "claims.csv", "eval"), known)
    except (FileNotFoundError, KeyError):
        return "untested here"
    if any(missing) or not all(whole):
        return "untested here"
    return "inconclusive" if holds is pd.NA else "holds" if holds else "does not hold"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_verdict_on_the_pages_is_what_the_results_say(paper):
    page = (items.PAPERS / paper / "README.md").read_text()
    block = page.split("<!-- begin claims -->")[1].split("<!-- end claims -->")[0]
    shown = re.findall(r"(?m)^\| (.*?) \| .*? \| \*(.*?)\* \|", block)
    expected = [(line["claim"], recomputed(p, line)) for p, line in LINES if p == paper]
    # What is untested is folded below what is decided.
    expected.sort(key=lambda one: one[1] == "untested here")
    assert expected and shown == expected
    assert "untested here" not in re.sub(r"(?s)<details.*?</details>", "", block)


def test_every_claim_has_a_source_and_a_condition_or_a_reason():
    for paper, line in LINES:
        assert line["claim"] and line["source"], (paper, line)
        assert bool(line["setup"]) == bool(line["expression"]), (paper, line)
        assert line["expression"] or line["remark"], (paper, line)
    names = [(paper, line["claim"]) for paper, line in LINES]
    assert len(set(names)) == len(names)


def test_dominated_means_below_in_every_column(monkeypatch):
    points = {"own": (2, 2), "one better": (1, 3), "one equal": (1, 2), "one both": (1, 1)}
    lines = [
        {"row": row, "column": column, "value": str(value), "spread": "0.1", "seeds": "1 2 3"}
        | {"rounds": "1000", "protocol_rounds": "1000", "status": "complete"}
        for row, values in points.items()
        for column, value in zip(("avg", "std"), values, strict=True)
    ]
    monkeypatch.setattr(score, "recorded", lambda setup: lines)
    assert judge('dominated("own", "one", "avg", "std")').shown == "avg, std: own by one both"
    monkeypatch.setattr(score, "recorded", lambda setup: lines[:-2])
    assert judge('dominated("own", "one", "avg", "std")').verdict == "inconclusive", "an equal one"
    monkeypatch.setattr(score, "recorded", lambda setup: lines[:-4])
    assert judge('dominated("own", "one", "avg", "std")').verdict == "does not hold"


SETUP = next(iter(items.load_item("adafedadam", "table5").setups.values()))
ABC = dataclasses.replace(SETUP, rows=dict.fromkeys("abc"), columns=[{"name": "avg"}])


@pytest.fixture
def recorded(monkeypatch):
    """Three rows of a set-up that was run whole: a 3 ± 0.1, b 2 ± 0.1, c 2.95 ± 0.1."""
    item = items.load_item("adafedadam", "table5")
    item = dataclasses.replace(item, setups={SETUP.name: ABC})
    monkeypatch.setattr(items, "load_item", lambda paper, name: item)
    lines = [
        {"row": row, "column": "avg", "value": value, "spread": "0.1", "seeds": "1 2 3"}
        | {"rounds": "500", "protocol_rounds": "500", "status": "complete"}
        for row, value in (("a", "3"), ("b", "2"), ("c", "2.95"))
    ]
    monkeypatch.setattr(score, "recorded", lambda setup: lines)
    monkeypatch.setattr(results, "published", lambda setup: {})
    return lines


def judge(expression):
    line = {"claim": "c", "source": "s", "setup": f"table5/{SETUP.name}", "remark": ""}
    return claims.judge("adafedadam", {**line, "expression": expression})


@pytest.mark.parametrize(
    ("expression", "verdict", "shown"),
    [
        ('value("a", "avg") > value("b", "avg")', "holds", "avg: a 3 > b 2"),
        ('value("b", "avg") > value("a", "avg")', "does not hold", "avg: b 2 <= a 3"),
        (
            'value("a", "avg") - value("b", "avg") <= 0.8',
            "does not hold",
            "avg: a 3 - b 2 = 1 > 0.8",
        ),
        (
            'value("b", "avg") < value("c", "avg") + -0.5',
            "holds",
            "avg: b 2 < c 2.95 + -0.5 = 2.45",
        ),
        ('1 < value("b", "avg") < 3', "holds", "avg: 1 < b 2 < 3"),
        ('1 < value("b", "avg") < 1.5', "does not hold", "avg: 1 < b 2 >= 1.5"),
        (
            'value("c", "avg") < value("a", "avg")',
            "inconclusive",
            "avg: c 2.95 < a 3, within two standard errors",
        ),
        ('range("avg") > 0.8', "holds", "avg: a 3 - b 2 = 1 > 0.8"),
        (
            'first("a", "avg")',
            "inconclusive",
            "avg: a 3, against c 2.95, within two standard errors",
        ),
        (
            'first("c", "avg")',
            "inconclusive",
            "avg: c 2.95, against a 3, within two standard errors",
        ),
        ('first("b", "avg")', "does not hold", "avg: b 2, against a 3"),
        ('lowest("b", "avg")', "holds", "avg: b 2, against c 2.95"),
        ('not lowest("a", "avg")', "holds", "avg: a 3, against b 2"),
        ('first("c", "avg", "a")', "holds", "avg: c 2.95, against b 2"),
        (
            'lowest("c", "avg", "b")',
            "inconclusive",
            "avg: c 2.95, against a 3, within two standard errors",
        ),
        ('first("a", "avg") and first("b", "avg")', "does not hold", None),
        ('first("a", "avg") or first("b", "avg")', "inconclusive", None),
        ('first("a", "avg") or lowest("b", "avg")', "holds", None),
        ('dominated("a", "b", "avg")', "holds", "avg: a by b"),
        ('dominated("b", "a", "avg")', "does not hold", "avg: b by none"),
        ('dominated("a", "c", "avg")', "inconclusive", "avg: a by c, within two standard errors"),
        ('dominated("c", "a", "avg")', "inconclusive", "avg: c by a, within two standard errors"),
        (
            "1 < 2 and " + " and ".join(['value("a", "avg") > value("b", "avg")'] * 3),
            "holds",
            "1 < 2\navg: a 3 > b 2\n2 more",
        ),
    ],
)
def test_what_an_expression_comes_to(recorded, expression, verdict, shown):
    found = judge(expression)
    assert found.verdict == verdict
    assert shown is None or found.shown == shown


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ('value("a", "avg") > value("b", "avg")', "holds"),
        ('value("a", "avg") > value("c", "avg")', "inconclusive"),
        ('value("a", "avg") < value("c", "avg")', "inconclusive"),
        ('not first("a", "avg")', "inconclusive"),
        ('not first("b", "avg")', "holds"),
        ('value("a", "avg") > 2.9', "inconclusive"),
        ('value("a", "avg") > 2.8', "holds"),
        # The error of a difference is that of both: 0.163, where that of a and c alone is 0.115.
        ('value("a", "avg") - value("b", "avg") > 0.85', "inconclusive"),
        ('range("avg") > 0.85', "inconclusive"),
        # One undecided part leaves a whole undecided unless another part decides it.
        ('first("a", "avg") and value("b", "avg") < 2.5', "inconclusive"),
        ('first("c", "avg") and value("b", "avg") < 2.5', "inconclusive"),
        ('first("c", "avg") and value("b", "avg") > 2.5', "does not hold"),
        ('first("c", "avg") or value("b", "avg") > 2.5', "inconclusive"),
        ('first("c", "avg") or value("b", "avg") < 2.5', "holds"),
        ('value("b", "avg") < value("c", "avg") < value("a", "avg")', "inconclusive"),
        ('value("b", "avg") > value("c", "avg") > value("a", "avg")', "does not hold"),
        ('value("b", "avg") < value("a", "avg") < value("c", "avg")', "inconclusive"),
    ],
)
def test_numbers_within_two_standard_errors_decide_nothing(recorded, expression, verdict):
    assert judge(expression).verdict == verdict


def test_a_row_that_is_close_need_not_be_the_next_best(recorded):
    """a 3 ± 0.1 is clear of c's 2.5 ± 0.1 and not of b's 2 ± 2."""
    recorded[1]["spread"], recorded[2]["value"] = "2", "2.5"
    found = judge('first("a", "avg")')
    assert found[1:3] == (
        "inconclusive",
        "avg: a 3, against c 2.5, within two standard errors of b 2",
    )
    # c is below a beyond doubt, whatever b is.
    assert judge('first("c", "avg")').verdict == "does not hold"


@pytest.mark.parametrize("of_one_seed", [{"seeds": "1", "spread": ""}, {"spread": ""}])
@pytest.mark.parametrize(
    ("b_spread", "published", "c", "verdict"),
    [
        # The largest spread over seeds of another row, 0.1 or 0.3, must be exceeded.
        ("0.1", "", "2.95", "inconclusive"),
        ("0.1", "", "2.85", "holds"),
        ("0.3", "", "2.85", "inconclusive"),
        # A published spread is that row's deviation: 2 sqrt(0.1^2 / 3 + 0.2^2) = 0.416.
        ("0.3", "0.2", "2.6", "inconclusive"),
        ("0.5", "0.2", "2.55", "holds"),
    ],
)
def test_a_number_of_one_seed_goes_by_the_spread_of_others(
    recorded, monkeypatch, of_one_seed, b_spread, published, c, verdict
):
    monkeypatch.setattr(score, "is_whole", lambda setup, record: True)
    recorded[1]["spread"] = b_spread
    recorded[2].update(of_one_seed, value=c)
    if published:
        line = {"value": "3", "spread": published, "spread_kind": "deviation", "seeds": "3"}
        monkeypatch.setattr(results, "published", lambda setup: {("c", "avg"): line})
    told = "within the spread over seeds" if not published else "within two standard errors"
    found = judge('value("a", "avg") > value("c", "avg")')
    assert found.verdict == verdict
    assert (told in found.shown) is (verdict == "inconclusive")


@pytest.mark.parametrize(
    "expression",
    [
        'value("a", "avg") > value("b", "avg")',
        'value("a", "avg") > 1',
        'range("avg") > 0.1',
        'first("a", "avg")',
        'dominated("a", "b", "avg")',
    ],
)
def test_one_seed_of_all_rows_decides_nothing(recorded, monkeypatch, expression):
    monkeypatch.setattr(score, "is_whole", lambda setup, record: True)
    for line in recorded:
        line.update(seeds="1", spread="")
    assert judge(expression).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("kind", "seeds", "deviation"),
    [("standard error", "9", 0.6), ("standard error", "unknown", 0.2), ("deviation", "9", 0.2)],
)
def test_what_deviation_a_published_spread_is(kind, seeds, deviation):
    line = {"spread": "0.2", "spread_kind": kind, "seeds": seeds}
    assert score.deviation(line) == pytest.approx(deviation)


def test_settings_that_all_rows_share_are_not_named(recorded, monkeypatch):
    rows = {"a x=1": None, "b x=1 y=2": None}
    setup = dataclasses.replace(ABC, rows=rows)
    item = dataclasses.replace(items.load_item("adafedadam", "table5"), setups={SETUP.name: setup})
    monkeypatch.setattr(items, "load_item", lambda paper, name: item)
    for line, row in zip(recorded, [*rows, "c"], strict=True):
        line["row"] = row
    assert judge('value("a x=1", "avg") > value("b x=1 y=2", "avg")').shown == "avg: a 3 > b y=2 2"


@pytest.fixture
def drawn(recorded, monkeypatch, tmp_path):
    """Curves of the three rows, evaluated every 5 rounds, two seeds each."""
    setup = dataclasses.replace(
        ABC,
        curve="eval/accuracy",
        figures=[{"kind": "curves", "column": "train/loss"}, {"kind": "curves"}],
    )
    item = dataclasses.replace(items.load_item("adafedadam", "table5"), setups={SETUP.name: setup})
    monkeypatch.setattr(items, "load_item", lambda paper, name: item)
    monkeypatch.setattr(score, "recorded_folder", lambda setup: tmp_path)
    lines = [
        f"{row},{seed},{5 * i},{value}"
        for row, seed, values in (
            *(("a", 1, (0.1, 0.5, 0.4, 0.9)), ("a", 2, (0.1, 0.2, 0.5, 0.9))),
            *(("b", 1, (0.1, 0.2, 0.6, 0.6)), ("b", 2, (0.1, 0.2, 0.6, 0.6))),
            *(("c", 1, (0.6, 0.2, 0.2, 0.2)), ("c", 2, (0.1, 0.2, 0.2, 0.2))),
        )
        for i, value in enumerate(values)
    ]
    (tmp_path / "curves_2.csv").write_text("\n".join(["method,seed,round_num,value", *lines]))


@pytest.mark.parametrize(
    ("row", "level", "verdict", "shown"),
    [
        (
            "a",
            "0.5",
            "inconclusive",
            "rounds to 0.5: a 7.5, against b 10, within two standard errors",
        ),
        (
            "b",
            "0.5",
            "inconclusive",
            "rounds to 0.5: b 10, against a 7.5, within two standard errors",
        ),
        # A seed that never comes there has the row never come there.
        ("c", "0.5", "does not hold", "rounds to 0.5: c never, against a 7.5"),
        ("a", "0.9", "holds", "rounds to 0.9: a 15, against b never"),
        ("a", "0.95", "untested here", "no row reaches 0.95"),
    ],
)
def test_rounds_to_a_level(drawn, row, level, verdict, shown):
    assert judge(f'soonest("{row}", "eval/accuracy", {level})')[1:3] == (verdict, shown)


def test_curves_that_are_not_drawn_or_not_there(drawn, tmp_path):
    with pytest.raises(items.ReproduceError, match="draws no curves of eval/loss"):
        judge('soonest("a", "eval/loss", 0.5)')
    (tmp_path / "curves_2.csv").unlink()
    assert judge('soonest("a", "eval/accuracy", 0.5)')[1:3] == ("untested here", "not run")


def test_curves_of_fewer_rounds_decide_nothing(drawn, recorded):
    recorded[1]["rounds"] = "499"
    found = judge('soonest("a", "eval/accuracy", 0.5)')
    assert found.verdict == "untested here"
    assert "on fewer rounds or seeds it is inconclusive" in found.explained


@pytest.mark.parametrize("expression", ['first("a", "avg")', 'value("a", "avg") > 2'])
def test_what_was_not_run_decides_nothing(recorded, expression):
    recorded.clear()
    assert judge(expression)[1:3] == ("untested here", "not run")


def test_a_row_that_is_missing_is_no_row_that_is_beaten(recorded):
    del recorded[2]
    assert judge('value("a", "avg") > value("b", "avg")').verdict == "holds"
    assert judge('first("a", "avg")')[1:3] == ("untested here", "not run")
    assert judge('first("a", "avg", "c")').verdict == "holds"


def test_a_row_that_diverged_is_passed_over_by_first_alone(recorded):
    recorded[2].update(value="", spread="", rounds="", status="diverged (seed 1)")
    assert judge('first("a", "avg")')[1:3] == ("holds", "avg: a 3, against b 2")
    for expression in ('first("c", "avg")', 'value("a", "avg") > value("c", "avg")'):
        assert judge(expression)[1:3] == ("untested here", "c diverged (seed 1)")


def test_a_row_is_first_of_others_only(recorded):
    for line in recorded[1:]:
        line.update(value="", spread="", rounds="", status="diverged (seed 1)")
    assert judge('first("a", "avg")')[1:3] == ("untested here", "all other rows diverged")


def test_a_published_number_alone_leads_nothing(recorded, monkeypatch):
    monkeypatch.setattr(results, "published", lambda setup: {("a", "avg"): {"value": "3"}})
    assert (
        judge('first("a", "avg")').shown == "avg: a 3, against c 2.95, within two standard errors"
    )


def test_what_is_no_number_decides_nothing(recorded):
    recorded[2]["value"] = "nan"
    assert judge('first("a", "avg")').verdict == "untested here"
    assert judge('value("a", "avg") > value("c", "avg")').verdict == "untested here"


@pytest.mark.parametrize("change", [{"seeds": "1"}, {"rounds": "499"}])
def test_what_is_not_the_whole_protocol_decides_nothing(recorded, change):
    recorded[2].update(change)
    assert judge('value("a", "avg") > value("b", "avg")').verdict == "holds"
    found = judge('first("a", "avg")')
    assert found.verdict == "untested here"
    assert found.explained.startswith(
        "on fewer rounds or seeds it is inconclusive:\navg: a 3, against c 2.95"
    )


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('__import__("os").getcwd()', "cannot contain"),
        ('value("a", "avg") * 2 > 1', "cannot contain"),
        ("value.__class__", "cannot contain"),
        ('value(value, "avg") > 1', "cannot contain"),
        ('value("a", "avg") is 3', "cannot contain"),
        ('value("d", "avg") > 1', "no avg of d"),
        ('value("a", "std") > 1', "no std of a"),
        ('first("a", "avg", "d")', "no row d"),
        ('value("a", "avg", "table5/other") > 1', "no set-up other"),
        ('value("a", "avg") >', "claims.csv of adafedadam"),
    ],
)
def test_what_an_expression_may_not_hold(recorded, expression, said):
    with pytest.raises(items.ReproduceError, match=said):
        judge(expression)
