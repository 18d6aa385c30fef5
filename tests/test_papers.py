"""The pages of papers/ are what the data beside them say."""

import csv

import pytest

from reproduction import items, readme, results

SETUP = items.load_item("adafedadam", "table5").setups["synthetic"]


def test_the_pages_are_up_to_date():
    """If this fails: python reproduce.py --write_readmes."""
    stale = [str(path) for path, text in readme.pages().items() if path.read_text() != text]
    assert not stale


def test_every_published_number_belongs_to_an_item():
    for paper in {item.paper for item in items.all_items()}:
        known = {
            (setup.item, setup.published)
            for item in items.all_items(paper)
            for setup in item.setups.values()
        }
        with open(items.PAPERS / paper / "published.csv", newline="") as f:
            lines = list(csv.DictReader(f))
        assert {(line["item"], line["setup"]) for line in lines} <= known
        keys = [(line["item"], line["setup"], line["row"], line["column"]) for line in lines]
        assert len(set(keys)) == len(keys), "a number is there twice"


def test_every_flag_file_belongs_to_an_item():
    used = {
        row.flagfile
        for item in items.all_items()
        for setup in item.setups.values()
        for row in setup.rows.values()
    }
    files = {str(p.relative_to(items.REPO)) for p in items.PAPERS.glob("*/flags/*.flags")}
    bases = set()
    for file in files:
        for line in (items.REPO / file).read_text().splitlines():
            if line.startswith("--flagfile="):
                bases.add(line.removeprefix("--flagfile="))
    assert used <= files and files - used <= bases


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (("90.0", "0.3"), ("90.9", "0.4"), True),  # 2 sqrt(0.09 + 0.16) = 1 > 0.9
        (("80.0", "0.3"), ("81.2", "0.4"), False),  # 1 and 1 % = 0.81 < 1.2
        (("80.0", ""), ("80.7", ""), True),
        (("80.0", ""), ("81.0", ""), False),
    ],
)
def test_when_numbers_agree(ours, theirs, same):
    named = [dict(zip(("value", "spread"), pair, strict=True)) for pair in (ours, theirs)]
    assert readme.agrees(*named) is same


@pytest.mark.parametrize(
    ("record", "changes", "status"),
    [
        ({"value": "90.1", "seeds": "1 2 3", "rounds": "1000"}, {}, "reproduced"),
        ({"value": "95.1", "seeds": "1 2 3", "rounds": "1000"}, {}, "not reproduced"),
        ({"value": "90.1", "seeds": "1", "rounds": "1000"}, {}, "partial"),
        ({"value": "90.1", "seeds": "1 2 3", "rounds": "500"}, {}, "partial"),
        (
            {"value": "90.1", "seeds": "1 2 3", "rounds": "1000"},
            {"stand_in": "other data"},
            "stand-in",
        ),
        ({"value": "", "seeds": "1 2 3", "rounds": ""}, {}, "not yet run"),
        ({"value": "", "seeds": "1", "rounds": ""}, {"not_here": "no data"}, "can't be run here"),
    ],
)
def test_statuses(monkeypatch, record, changes, status):
    import dataclasses

    setup = dataclasses.replace(SETUP, **changes)
    line = {"row": "fedavg", "column": "avg", "spread": "", "status": "", **record}
    monkeypatch.setattr(readme, "recorded", lambda setup: [line])
    published = {("fedavg", "avg"): {"value": "90.08", "spread": "0.12"}}
    monkeypatch.setattr(results, "published", lambda setup: published)
    assert readme.cell_statuses(setup) == {("fedavg", "avg"): status}


def test_a_figure_that_is_drawn_without_runs_says_that_it_stands_in():
    drawn = [
        (item, setup)
        for item in items.all_items()
        for setup in item.setups.values()
        if setup.stand_in and setup.draws and any(readme.recorded_folder(setup).glob("*.png"))
    ]
    assert drawn
    for item, setup in drawn:
        page = (readme.recorded_folder(setup).parents[1] / "README.md").read_text()
        assert f"- A stand-in, not the paper's experiment: {setup.stand_in}." in page, item.name


def test_two_forms_of_a_method_are_one_published_row(monkeypatch):
    """The better of q-FedAvg's two forms counts."""
    line = {"column": "avg", "spread": "", "status": "", "seeds": "1 2 3", "rounds": "1000"}
    lines = [
        {**line, "row": "qfedavg", "value": "50"},
        {**line, "row": "qfedavg_reweight", "value": "90.64"},
    ]
    monkeypatch.setattr(readme, "recorded", lambda setup: lines)
    published = {("qfedavg", "avg"): {"value": "90.64", "spread": "0.1"}}
    monkeypatch.setattr(results, "published", lambda setup: published)
    assert readme.cell_statuses(SETUP) == {("qfedavg", "avg"): "reproduced"}


def test_what_is_written_by_hand_stays():
    text = "# T\n\nby hand\n\n<!-- begin x -->\nold\n<!-- end x -->\n\nafter\n"
    new = readme._replace(text, "x", "new \\1")
    assert new == text.replace("old", "new \\1")
    assert readme._replace("# T\n", "x", "new") == "# T\n\n<!-- begin x -->\nnew\n<!-- end x -->\n"


def test_a_recorded_table_marks_what_differs(monkeypatch):
    line = {"row": "fedavg", "seeds": "1 2 3", "rounds": "1000", "status": "complete"}
    rows = [
        {**line, "column": "avg", "value": "90.1", "spread": "0.1"},
        {**line, "column": "std", "value": "20", "spread": "0.1"},
    ]
    published = {
        ("fedavg", "avg"): {"value": "90.08", "spread": "0.12"},
        ("fedavg", "std"): {"value": "14.23", "spread": "0.28"},
    }
    monkeypatch.setattr(results, "published", lambda setup: published)
    table = readme.side_by_side(SETUP, rows)
    assert "90.10 ± 0.10<br>paper 90.08 ± 0.12<br>+0.02 |" in table
    assert "20.00 ± 0.10<br>paper 14.23 ± 0.28<br>**+5.77** |" in table


# methods.md, section 6; what shows no experiment (notation, statistics of data, architectures, the
# settings used) is left out. FedOpt's Tables 8 and 9 are one grid.
SHOWN = {
    "adafedadam": {"table": [1, 2, 3, 5, 6, 7], "fig": [2, 3, 6]},
    "adaptive_federated_optimization": {"table": [1, 8, 10, 11], "fig": range(1, 15)},
    "adafed": {"table": [1, 2, 3, 4, *range(7, 20)], "fig": range(2, 8)},
    "fedcada": {"table": [1, 2, 3], "fig": range(2, 7)},
    "fedda": {"table": range(2, 12), "fig": range(1, 9)},
}


@pytest.mark.parametrize("paper", SHOWN)
def test_every_table_and_figure_is_an_item(paper):
    expected = {f"{kind}{n}" for kind, numbers in SHOWN[paper].items() for n in numbers}
    assert expected <= {item.name for item in items.all_items(paper)}
