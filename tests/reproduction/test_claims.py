"""What papers claim, judged by the recorded results."""

import csv
import dataclasses
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


def recomputed(paper, line):
    """The verdict by pandas and Python's own evaluation, from the files alone."""
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
        return lines.value

    def dominated(row, prefix, *names):
        points = pd.DataFrame({n: column(n) for n in names})
        others = points[points.index.str.startswith(prefix)]
        return bool((others < points.loc[row]).all(axis=1).any())

    def value(row, name, setup=line["setup"]):
        found = column(name, setup)[row]
        missing.append(pd.isna(found))
        return found

    def others(row, name, but):
        rest = column(name).drop([row, *but])
        missing.append(bool(rest.isna().any()))
        return rest

    known = {
        "value": value,
        "first": lambda row, name, *but: value(row, name) > others(row, name, but).max(),
        "lowest": lambda row, name, *but: value(row, name) < others(row, name, but).min(),
        "dominated": dominated,
    }
    try:
        holds = eval(line["expression"], known)
    except (FileNotFoundError, KeyError):
        return "untested here"
    if any(missing):
        return "untested here"
    if not all(whole):
        return "untested here"
    return "holds" if holds else "does not"


@pytest.mark.parametrize("paper", PAPERS)
def test_every_verdict_on_the_pages_is_what_the_results_say(paper):
    page = (items.PAPERS / paper / "README.md").read_text()
    block = page.split("<!-- begin claims -->")[1].split("<!-- end claims -->")[0]
    shown = re.findall(r"(?m)^\| (.*?) \| .*? \| \*(.*?)\* \|", block)
    expected = [(line["claim"], recomputed(p, line)) for p, line in LINES if p == paper]
    assert expected and shown == expected


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
        {"row": row, "column": column, "value": str(value), "spread": "", "seeds": "1 2 3"}
        | {"rounds": "1000", "protocol_rounds": "1000", "status": "complete"}
        for row, values in points.items()
        for column, value in zip(("avg", "std"), values, strict=True)
    ]
    monkeypatch.setattr(score, "recorded", lambda setup: lines)
    assert judge('dominated("own", "one", "avg", "std")').shown == "own by one both"
    monkeypatch.setattr(score, "recorded", lambda setup: lines[:-2])
    assert judge('dominated("own", "one", "avg", "std")').verdict == "does not"


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
        ('value("a", "avg") > value("b", "avg")', "holds", "3 > 2"),
        ('value("b", "avg") > value("a", "avg")', "does not", "not 2 > 3"),
        ('value("a", "avg") - value("b", "avg") <= 0.9', "does not", "not 1 <= 0.9"),
        ('1 < value("b", "avg") < 3', "holds", "1 < 2 < 3"),
        ('1 < value("b", "avg") < 2', "does not", "not 1 < 2 < 2"),
        ('first("a", "avg")', "holds", "a 3, c 2.95, within two standard errors"),
        ('first("c", "avg")', "does not", "c 2.95, a 3, within two standard errors"),
        ('lowest("b", "avg")', "holds", "b 2, c 2.95"),
        ('not lowest("a", "avg")', "holds", "a 3, b 2"),
        ('first("c", "avg", "a")', "holds", "c 2.95, b 2"),
        ('lowest("c", "avg", "b")', "holds", "c 2.95, a 3, within two standard errors"),
        ('first("a", "avg") and first("b", "avg")', "does not", None),
        ('first("a", "avg") or first("b", "avg")', "holds", None),
        ('dominated("a", "b", "avg")', "holds", "a by b"),
        ('dominated("b", "", "avg")', "does not", "b by none"),
    ],
)
def test_what_an_expression_comes_to(recorded, expression, verdict, shown):
    found = judge(expression)
    assert found.verdict == verdict
    assert shown is None or found.shown == shown


@pytest.mark.parametrize("expression", ['first("a", "avg")', 'value("a", "avg") > 2'])
def test_what_was_not_run_decides_nothing(recorded, expression):
    recorded.clear()
    assert judge(expression)[1:] == ("untested here", "not run")


def test_a_row_that_is_missing_is_no_row_that_is_beaten(recorded):
    del recorded[2]
    assert judge('value("a", "avg") > value("b", "avg")').verdict == "holds"
    assert judge('first("a", "avg")')[1:] == ("untested here", "not run")
    assert judge('first("a", "avg", "c")').verdict == "holds"


def test_a_row_that_diverged_is_passed_over_by_first_alone(recorded):
    recorded[2].update(value="", spread="", rounds="", status="diverged (seed 1)")
    assert judge('first("a", "avg")')[1:] == ("holds", "a 3, b 2")
    for expression in ('first("c", "avg")', 'value("a", "avg") > value("c", "avg")'):
        assert judge(expression)[1:] == ("untested here", "c diverged (seed 1)")


def test_a_row_is_first_of_others_only(recorded):
    for line in recorded[1:]:
        line.update(value="", spread="", rounds="", status="diverged (seed 1)")
    assert judge('first("a", "avg")')[1:] == ("untested here", "all other rows diverged")


def test_a_published_number_alone_leads_nothing(recorded, monkeypatch):
    monkeypatch.setattr(results, "published", lambda setup: {("a", "avg"): {"value": "3"}})
    assert judge('first("a", "avg")').shown == "a 3, c 2.95, within two standard errors"


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
    assert found.shown.startswith("on fewer rounds or seeds it holds: a 3, c 2.95")


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ('__import__("os").getcwd()', "can't hold"),
        ('value("a", "avg") * 2 > 1', "can't hold"),
        ("value.__class__", "can't hold"),
        ('value("a", "avg") is 3', "can't hold"),
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
