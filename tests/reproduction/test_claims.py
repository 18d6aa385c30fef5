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

    def soonest(row, name, level):
        item, setup = line["setup"].split("/")
        toml = tomllib.loads((items.PAPERS / paper / f"{item}.toml").read_text())
        own = {**toml, **toml["setups"][setup]}
        drawn = [f.get("column", own["curve"]) for f in own["figures"] if f["kind"] == "curves"]
        places = [i for i, f in enumerate(own["figures"]) if f["kind"] == "curves"]
        place = places[drawn.index(name)]
        file = f"curves_{place + 1}.csv" if place else "curves.csv"
        curves = pd.read_csv(items.PAPERS / paper / line["setup"] / file)
        column(own["columns"][0]["name"])
        at = curves.assign(at=curves.round_num.where(curves.value >= level))
        rounds = at.groupby(["method", "seed"]).at.min().fillna(float("inf"))
        rounds = rounds.groupby("method").mean()
        missing.append(bool((rounds == float("inf")).all()))
        return rounds[row] < rounds.drop(row).min()

    known = {
        "range": lambda name: column(name).max() - column(name).min(),
        "soonest": soonest,
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
        ('value("a", "avg") > value("b", "avg")', "holds", "a 3 > b 2"),
        ('value("b", "avg") > value("a", "avg")', "does not", "not b 2 > a 3"),
        ('value("a", "avg") - value("b", "avg") <= 0.8', "does not", "not a 3 - b 2 = 1 <= 0.8"),
        ('value("b", "avg") < value("c", "avg") + -0.5', "holds", "b 2 < c 2.95 + -0.5 = 2.45"),
        ('1 < value("b", "avg") < 3', "holds", "1 < b 2 < 3"),
        ('1 < value("b", "avg") < 1.5', "does not", "not 1 < b 2 < 1.5"),
        (
            'value("c", "avg") < value("a", "avg")',
            "holds",
            "c 2.95 < a 3, within two standard errors",
        ),
        ('range("avg") > 0.8', "holds", "a 3 - b 2 = 1 > 0.8"),
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


@pytest.mark.parametrize(
    ("expression", "is_close"),
    [
        ('value("a", "avg") > value("b", "avg")', False),
        ('value("a", "avg") > value("c", "avg")', True),
        ('value("a", "avg") < value("c", "avg")', True),
        ('not first("a", "avg")', True),
        ('value("a", "avg") > 2.9', True),
        ('value("a", "avg") > 2.8', False),
        # The error of a difference is that of both: 0.163, where that of a and c alone is 0.115.
        ('value("a", "avg") - value("b", "avg") > 0.85', True),
        # One of several that holds may fall; all that do not must rise.
        ('first("a", "avg") and value("b", "avg") < 2.5', True),
        ('first("c", "avg") and value("b", "avg") < 2.5', True),
        ('first("c", "avg") and value("b", "avg") > 2.5', False),
        ('value("b", "avg") < value("c", "avg") < value("a", "avg")', True),
        ('value("b", "avg") > value("c", "avg") > value("a", "avg")', False),
        ('value("b", "avg") < value("a", "avg") < value("c", "avg")', True),
    ],
)
def test_whether_a_verdict_hangs_on_close_numbers(recorded, expression, is_close):
    assert judge(expression).is_close is is_close


def test_one_seed_or_no_spread_makes_nothing_close(recorded):
    recorded[2]["spread"] = ""
    assert not judge('value("a", "avg") > value("c", "avg")').is_close


def test_settings_that_all_rows_share_are_not_named(recorded, monkeypatch):
    rows = {"a x=1": None, "b x=1 y=2": None}
    setup = dataclasses.replace(ABC, rows=rows)
    item = dataclasses.replace(items.load_item("adafedadam", "table5"), setups={SETUP.name: setup})
    monkeypatch.setattr(items, "load_item", lambda paper, name: item)
    for line, row in zip(recorded, [*rows, "c"], strict=True):
        line["row"] = row
    assert judge('value("a x=1", "avg") > value("b x=1 y=2", "avg")').shown == "a 3 > b y=2 2"


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
        ("a", "0.5", "holds", "a 7.5, b 10, within two standard errors (rounds to 0.5)"),
        ("b", "0.5", "does not", "b 10, a 7.5, within two standard errors (rounds to 0.5)"),
        # A seed that never comes there has the row never come there.
        ("c", "0.5", "does not", "c never, a 7.5 (rounds to 0.5)"),
        ("a", "0.9", "holds", "a 15, b never (rounds to 0.9)"),
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
    assert found.verdict == "untested here" and "on fewer rounds or seeds it holds" in found.shown


@pytest.mark.parametrize("expression", ['first("a", "avg")', 'value("a", "avg") > 2'])
def test_what_was_not_run_decides_nothing(recorded, expression):
    recorded.clear()
    assert judge(expression)[1:] == ("untested here", "not run", False)


def test_a_row_that_is_missing_is_no_row_that_is_beaten(recorded):
    del recorded[2]
    assert judge('value("a", "avg") > value("b", "avg")').verdict == "holds"
    assert judge('first("a", "avg")')[1:3] == ("untested here", "not run")
    assert judge('first("a", "avg", "c")').verdict == "holds"


def test_a_row_that_diverged_is_passed_over_by_first_alone(recorded):
    recorded[2].update(value="", spread="", rounds="", status="diverged (seed 1)")
    assert judge('first("a", "avg")')[1:3] == ("holds", "a 3, b 2")
    for expression in ('first("c", "avg")', 'value("a", "avg") > value("c", "avg")'):
        assert judge(expression)[1:3] == ("untested here", "c diverged (seed 1)")


def test_a_row_is_first_of_others_only(recorded):
    for line in recorded[1:]:
        line.update(value="", spread="", rounds="", status="diverged (seed 1)")
    assert judge('first("a", "avg")')[1:3] == ("untested here", "all other rows diverged")


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
        ('value(value, "avg") > 1', "can't hold"),
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
