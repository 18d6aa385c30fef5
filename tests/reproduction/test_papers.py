"""The pages of papers/ are what the data beside them say."""

import csv
import dataclasses
import itertools
import os
import pathlib
import types

import numpy as np
import pytest
from matplotlib import image

import reproduce
import tasks
import tff_algos
from reproduction import drawing, items, readme, results, score
from tests import canvas
from tff_suite import compat, figures

SETUP = items.load_item("adafedadam", "table5").setups["synthetic"]


def test_the_pages_are_up_to_date():
    """If this fails: python reproduce.py --write_readmes."""
    stale = [str(path) for path, text in readme.pages().items() if path.read_text() != text]
    assert not stale


@pytest.mark.parametrize("kind", ["method", "task"])
def test_a_page_says_which_rows_are_of_another_version(monkeypatch, kind):
    rows = score.recorded(SETUP)
    assert rows and results.told_versions(rows, SETUP) == []
    registry, name = (tff_algos, "fedadam") if kind == "method" else (tasks, "synthetic")
    get = registry.get
    later = dataclasses.replace(get(name), version=3, history=("One.", "Two."))
    monkeypatch.setattr(registry, "get", lambda n: later if n == name else get(n))
    told = f"Version of {kind} {name}: 1. Today's version is 3: One. Two."
    assert results.told_versions(rows, SETUP) == [told]
    assert f"- {told}\n" in readme.paper_page(SETUP.paper, "")
    newer = [{**r, f"{kind}_version": "3"} if r["row"] == "fedadam" else r for r in rows]
    if kind == "method":
        assert results.told_versions(newer, SETUP) == []
    else:
        (line,) = results.told_versions(newer, SETUP)
        assert "3 in fedadam" in line and line.endswith("Today's version is 3: One. Two.")
        assert "1 in fedavg, " in line


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
    ("value", "spread", "seeds", "kind", "same"),
    [
        # Published: 80 ± 0.9 of 9 seeds; ours over 4 seeds. 1 % is 0.8.
        ("80.8", "", "1", "unknown", True),
        ("80.81", "", "1", "unknown", False),
        ("80.81", "0.8", "1", "unknown", False),  # a single seed has no spread
        ("81.9", "0.8", "1 2 3 4", "unknown", True),  # 2 sqrt(0.16 + 0.81) = 1.970
        ("82.0", "0.8", "1 2 3 4", "unknown", False),
        ("81.9", "0.8", "1 2 3 4", "standard error", True),
        ("82.0", "0.8", "1 2 3 4", "standard error", False),
        ("80.9", "0.8", "1 2 3 4", "deviation", True),  # 2 sqrt(0.16 + 0.09) = 1
        ("81.1", "0.8", "1 2 3 4", "deviation", False),
        ("81.9", "3.55", "1 2 3 4", "unknown", True),  # 2 sqrt(3.15 + 0.81) = 3.98: under 5 %
        ("81.9", "3.65", "1 2 3 4", "unknown", False),  # 4.07: over 5 %, so it says nothing
        ("80.8", "3.65", "1 2 3 4", "unknown", True),
        ("78.1", "0.8", "1 2 3 4", "unknown", True),
    ],
)
def test_when_numbers_agree(value, spread, seeds, kind, same):
    ours = {"value": value, "spread": spread, "seeds": seeds}
    theirs = {"value": "80", "spread": "0.9", "seeds": "9", "spread_kind": kind}
    assert score.agrees(ours, theirs) is same


def test_without_a_published_spread_only_one_percent_counts():
    ours = {"value": "80.9", "spread": "1.5", "seeds": "1 2 3"}
    theirs = {"value": "80", "spread": "", "seeds": "5", "spread_kind": ""}
    assert not score.agrees(ours, theirs)
    assert score.agrees({**ours, "value": "80.8"}, theirs)


def published_lines():
    for paper in sorted({item.paper for item in items.all_items()}):
        with open(items.PAPERS / paper / "published.csv", newline="") as f:
            yield from ((paper, line) for line in csv.DictReader(f))


def test_every_published_number_says_its_seeds_and_what_its_spread_is():
    for paper, line in published_lines():
        assert line["seeds"] == "unknown" or int(line["seeds"]) > 0, (paper, line)
        assert line["source"], (paper, line)
        kinds = score.SPREAD_KINDS if line["spread"] else ("",)
        assert line["spread_kind"] in kinds, (paper, line)


def test_one_row_of_one_set_up_counts_for_a_published_cell():
    """Over all items: every published cell is counted, and by one set-up and row only."""
    counted = {}
    for item in items.all_items():
        for cell in score.cells(item):
            key = (item.paper, *cell[:4])
            assert key not in counted, key
            counted[key] = cell.status
    assert counted.keys() == {
        (paper, line["item"], line["setup"], line["row"], line["column"])
        for paper, line in published_lines()
    }


def test_of_several_rows_the_item_must_name_one():
    import dataclasses

    with pytest.raises(items.ReproduceError, match=r"qfedavg, qfedavg_reweight; .* counted_rows"):
        score.counted_row(dataclasses.replace(SETUP, counted_rows={}), "qfedavg")
    assert score.counted_row(SETUP, "qfedavg") == "qfedavg"
    assert score.counted_row(SETUP, "fedavg") == "fedavg"


def test_what_two_tables_show_is_counted_once():
    """AdaFedAdam's Table 7 repeats Table 5; Table 3 contradicts it in one row of three."""
    tables = {i.name: i for i in items.all_items("adafedadam")}
    seen = set()
    third = score.count(score.cells(tables["table3"]), seen)
    fifth = score.count(score.cells(tables["table5"]), seen)
    seventh = score.count(score.cells(tables["table7"]), seen)
    assert (third.repeated, fifth.repeated) == (0, 0)
    assert seventh.repeated == 18 + 6 and seventh.statuses.total() == 54 - 24
    # A row that was counted before is no row either: 18 less 6 and less AdaFedAdam's two.
    assert seventh.rows_compared == 10


def test_a_stand_in_is_of_the_papers_configuration():
    """Table 4's Shakespeare has a stand-in and Table 14's has none: four numbers are the same."""
    tables = {i.name: i for i in items.all_items("adafed")}
    seen = set()
    score.count(score.cells(tables["table4"]), seen)
    assert score.count(score.cells(tables["table14"]), seen).repeated == 4 + 4


def test_a_whole_row_needs_every_cell():
    def row(name, *statuses):
        return [score.Cell("t", "s", name, str(i), s, (name, i)) for i, s in enumerate(statuses)]

    found = score.count(
        row("a", "reproduced", "reproduced")
        + row("b", "reproduced", "not reproduced")
        + row("c", "reproduced", "partial")
        + row("d", "reproduced", "reproduced")
    )
    assert (found.rows, found.rows_compared) == (2, 3)
    assert found.statuses == {"reproduced": 6, "not reproduced": 1, "partial": 1}


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        (("0.1", "1"), "inside"),
        (("0.01", "1"), "edge: client_learning_rate 0.01 of 0.01, 0.1, 1"),
        (
            ("1.0", "3"),
            "edge: client_learning_rate 1 of 0.01, 0.1, 1; server_learning_rate 3 of 0.3, 1, 3",
        ),
    ],
)
def test_where_in_its_grid_a_point_lies(chosen, told):
    import dataclasses

    flags = ("client_learning_rate", "server_learning_rate")
    setup = dataclasses.replace(SETUP, grid={"fedavg": {key: [] for key in flags}})
    runs = [
        {"row": "fedavg", **dict(zip(flags, p, strict=True)), "chosen": str(p == chosen)}
        for p in itertools.product(("0.01", "0.1", "1.0"), ("0.3", "1", "3"))
    ]
    other = {"row": "fedadam", flags[0]: "9", flags[1]: "9", "chosen": "True"}
    assert score.place_in_grid(setup, "fedavg", [*runs, other]) == told
    assert score.place_in_grid(setup, "fedadam", [*runs, other]) == ""


DIVERGED = {"value": "", "seeds": "1 2 3", "rounds": "", "status": "diverged (seed 2)"}


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
        ({"value": "", "seeds": "1 2 3", "rounds": ""}, {"planned": True}, "not yet run"),
        ({"value": "", "seeds": "1 2 3", "rounds": ""}, {}, "needs data or hours"),
        (DIVERGED, {}, "not reproduced"),
        ({**DIVERGED, "seeds": "1"}, {}, "partial"),
        ({**DIVERGED, "chosen_by": "search"}, {}, "partial"),
        (DIVERGED, {"stand_in": "other data"}, "stand-in"),
    ],
)
def test_statuses(monkeypatch, record, changes, status):
    import dataclasses

    setup = dataclasses.replace(SETUP, **changes)
    line = {"row": "fedavg", "column": "avg", "spread": "", "status": "", **record}
    monkeypatch.setattr(score, "recorded", lambda setup: [line])
    published = {("fedavg", "avg"): {"value": "90.08", "spread": "0.12"}}
    monkeypatch.setattr(results, "published", lambda setup: published)
    assert score.cell_statuses(setup) == {("fedavg", "avg"): status}


RECORDED = [
    pytest.param(setup, id=f"{setup.paper}-{setup.item}-{setup.name}")
    for item in items.all_items()
    for setup in item.setups.values()
    if score.recorded_folder(setup).exists() and not setup.draws
]


# Of each item its first set-up.
FIRST = {(param.values[0].paper, param.values[0].item): param.id for param in reversed(RECORDED)}


def _alike(path, recorded):
    """Whether all but one in a hundred points of two pictures are the same."""
    ours, theirs = (image.imread(p) for p in (path, recorded))
    return ours.shape == theirs.shape and np.mean(np.any(ours != theirs, axis=-1)) < 0.01


@pytest.mark.slow
@pytest.mark.quick_cases(*FIRST.values())
@pytest.mark.parametrize("setup", RECORDED)
def test_recorded_figures_come_from_the_data_beside_them_and_can_be_seen(setup, tmp_path):
    """A picture stands beside its data."""
    folder = score.recorded_folder(setup)
    names = set()
    for name, figure in drawing.drawn(setup, folder):
        names.add(name)
        (path,) = figures.save(figure, str(tmp_path / name), [".png"])
        recorded = folder / f"{name}.png"
        if compat.stack() == compat.PUBLISHED:
            same = pathlib.Path(path).read_bytes() == recorded.read_bytes()
        else:  # Drawn with the published stack; SciPy's densities differ in their last digits.
            same = _alike(path, recorded)
        assert same, "draw it again: reproduce.py --redraw"
        # After the picture: to look at a figure lays it out once more, and that may move a panel.
        assert canvas.hidden(figure) == []
    assert {path.stem for path in folder.glob("*.png")} == names


BY_COMMAND = [
    pytest.param(setup, id=f"{setup.paper}-{setup.item}-{setup.name}")
    for item in items.all_items()
    for setup in item.setups.values()
    if score.recorded_folder(setup).exists() and setup.draws
]


@pytest.mark.parametrize("setup", BY_COMMAND)
def test_pictures_drawn_by_a_command_are_as_recorded_and_can_be_seen(setup, tmp_path, monkeypatch):
    """A partition is drawn from the counts beside it, so that no data are needed."""
    from reproduction import adjustments
    from tasks import plot
    from tasks.task import ArrayFederatedData

    folder = score.recorded_folder(setup)
    recorded = folder / f"{setup.name}.csv"

    def load(*unused, **settings):
        with open(recorded, newline="") as file:
            header, *rows = csv.reader(file)
        labels = np.array([int(name.removeprefix("label_")) for name in header[2:]])
        counts = np.array([row[2:] for row in rows], int)
        of_clients = [np.repeat(labels, own) for own in counts]
        ends = np.cumsum([len(own) for own in of_clients])[:-1]
        y = np.concatenate(of_clients)
        ids = [row[0] for row in rows]
        data = ArrayFederatedData(y, y, np.split(np.arange(len(y)), ends), ids)
        return types.SimpleNamespace(train=data)

    drawn = []
    save = figures.save
    monkeypatch.setattr(
        figures, "save", lambda figure, *a: drawn.append(figure) or save(figure, *a)
    )
    monkeypatch.setattr(plot.tasks, "load", load)
    known = {"output": str(tmp_path / f"{setup.name}.png"), "data_dir": str(tmp_path)}
    _, module, *arguments = (part.format(**known) for part in setup.draws)
    main = {"tasks.plot": plot.main, "reproduction.adjustments": adjustments.main}[module]
    assert main(arguments) == 0
    for path in sorted(folder.iterdir()):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), "draw it again"
    (figure,) = drawn
    assert canvas.hidden(figure) == []


def test_recording_replaces_what_was_there(tmp_path, monkeypatch):
    setup = RECORDED[0].values[0]
    made, target = tmp_path / "made", tmp_path / "recorded"
    for folder in (made, target / "folder"):
        folder.mkdir(parents=True)
    for name in ("results.csv", "curves.csv", "curves.png", "curves.pdf", "table.md"):
        (made / name).touch()
    (target / "folder" / "curves.png").touch()
    monkeypatch.setattr(readme, "recorded_folder", lambda _: target)
    readme.record(setup, made)
    assert {p.name for p in target.iterdir()} == {"results.csv", "curves.csv", "curves.png"}


@pytest.mark.parametrize(
    ("recorded", "new", "lost"),
    [
        (["fedavg,1 2 3,1000", "fedadam,1 2 3,1000"], ["fedavg,1 2 3,1000"], "its row fedadam"),
        (["fedavg,1 2 3,1000"], ["fedavg,1 2 4,1000"], "seeds of fedavg"),
        (["fedavg,1 2 3,1000"], ["fedavg,1 2 3,999"], "rounds of fedavg"),
        (["fedavg,1,60"], ["fedavg,1 2 3,1000", "fedadam,1 2 3,1000"], None),
        (["former,1 2 3,1000"], ["fedavg,1,60"], None),
        (["fedavg,1 2 3,1000"], ["fedavg,1 2 3,"], None),  # diverged
        (["fedavg,1 2 3,"], ["fedavg,1 2 3,1000"], None),
    ],
)
def test_a_part_does_not_replace_the_whole(tmp_path, monkeypatch, recorded, new, lost):
    made, target = tmp_path / "made", tmp_path / "recorded"
    for folder, lines in ((made, new), (target, recorded)):
        folder.mkdir()
        (folder / "results.csv").write_text("\n".join(["row,seeds,rounds", *lines]))
    monkeypatch.setattr(readme, "recorded_folder", lambda _: target)
    if lost is None:
        readme.record(SETUP, made)
        assert (target / "results.csv").read_text() == (made / "results.csv").read_text()
        return
    with pytest.raises(items.ReproduceError, match=f"{lost} would be lost"):
        readme.record(SETUP, made)
    assert recorded[0] in (target / "results.csv").read_text()


@pytest.mark.parametrize(
    ("part", "lost"),
    [
        ("--rows=fedavg", "its row fedadam"),
        ("--seeds=1", "seeds of fedavg"),
        ("--budget=rounds=999", "rounds of fedavg"),
        ("--budget=hours=1", "seeds of fedavg"),
    ],
)
def test_a_part_of_what_is_recorded_is_refused_before_it_is_run(capsys, part, lost):
    flags = ["--paper=adafedadam", "--item=table5", "--setup=synthetic", part]
    assert reproduce.main([*flags, "--record", "--dry_run"]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and f"and {lost} would be lost" in error


def test_a_page_that_cannot_be_written_stays(tmp_path, monkeypatch):
    """On a full disk what is written by hand is not lost."""
    page = tmp_path / "README.md"
    page.write_text("by hand")
    monkeypatch.setattr(readme, "pages", lambda: {page: "by hand, and a table"})
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: os.write(-1, b""))
        with pytest.raises(OSError, match="Bad file descriptor"):
            readme.write()
    assert page.read_text() == "by hand"
    assert readme.write() == [page] and page.read_text() == "by hand, and a table"


def test_a_figure_that_is_drawn_without_runs_says_that_it_stands_in():
    drawn = [
        (item, setup)
        for item in items.all_items()
        for setup in item.setups.values()
        if setup.stand_in and setup.draws and any(score.recorded_folder(setup).glob("*.png"))
    ]
    assert drawn
    for item, setup in drawn:
        page = (score.recorded_folder(setup).parents[1] / "README.md").read_text()
        assert f"- A stand-in, not the paper's experiment: {setup.stand_in}." in page, item.name


def test_of_two_forms_of_a_method_the_one_that_the_item_names_counts(monkeypatch):
    """Not the better of q-FedAvg's two forms."""
    line = {"column": "avg", "spread": "", "status": "", "seeds": "1 2 3", "rounds": "1000"}
    lines = [
        {**line, "row": "qfedavg", "value": "50"},
        {**line, "row": "qfedavg_reweight", "value": "90.64"},
    ]
    monkeypatch.setattr(score, "recorded", lambda setup: lines)
    published = {("qfedavg", "avg"): {"value": "90.64", "spread": "0.1"}}
    monkeypatch.setattr(results, "published", lambda setup: published)
    assert score.cell_statuses(SETUP) == {("qfedavg", "avg"): "not reproduced"}


def test_what_is_written_by_hand_stays():
    text = "# T\n\nby hand\n\n<!-- begin x -->\nold\n<!-- end x -->\n\nafter\n"
    new = readme._replace(text, "x", "new \\1")
    assert new == text.replace("old", "new \\1")
    assert readme._replace("# T\n", "x", "new") == "# T\n\n<!-- begin x -->\nnew\n<!-- end x -->\n"


def test_a_block_without_content_goes():
    """A reading that counts by now leaves the notes."""
    text = "# T\n\n<!-- begin x -->\nold\n<!-- end x -->\n"
    assert readme._replace(text, "x", "") == "# T\n"
    assert readme._replace(text + "\nafter\n", "x", "") == "# T\n\nafter\n"
    assert readme._replace("# T\n", "x", "") == "# T\n"


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
    monkeypatch.setattr(score, "recorded", lambda *_: [])
    monkeypatch.setattr(results, "published", lambda setup: published)
    table = readme.side_by_side(SETUP, rows).replace("\u00a0", " ")
    assert "90.10 ± 0.10<br>paper 90.08 ± 0.12<br>+0.02 |" in table
    assert "20.00 ± 0.10<br>paper 14.23 ± 0.28<br>**+5.77** |" in table


def test_a_column_that_is_another_reading_stands_beside_the_same_number(monkeypatch):
    """FedCAda's number may be the best of a run or its last; it counts once, as the best."""
    setup = items.load_item("fedcada", "table1").setups["fashion_mnist_device_iid"]
    line = {"row": "fedavg", "seeds": "1 2 3", "rounds": "200", "status": "complete"}
    rows = [
        {**line, "column": "best", "value": "88.2", "spread": "0.1"},
        {**line, "column": "last", "value": "80", "spread": "0.1"},
    ]
    monkeypatch.setattr(score, "recorded", lambda setup, name="": rows if not name else [])
    table = readme.side_by_side(setup, rows).replace("\u00a0", " ")
    assert "88.20 ± 0.10<br>paper 88.18<br>+0.02 |" in table
    assert "80.00 ± 0.10<br>paper 88.18<br>**-8.18** |" in table
    assert score.cell_statuses(setup)["fedavg", "best"] == "reproduced"


def test_a_page_says_which_set_up_and_row_count():
    page = (items.PAPERS / "adafedadam" / "README.md").read_text()
    notes = (items.PAPERS / "adafedadam" / "notes.md").read_text()
    assert "- The scoreboard counts the set-up `momentum_reset` instead." in notes
    assert "- The scoreboard counts `qfedavg` as the paper's qfedavg, not the other form." in page


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
