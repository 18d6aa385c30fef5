"""A user's own sweeps: items in a folder of their own, and what is said of those that are wrong."""

import csv
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

import reproduce
from reproduction import items
from reproduction.items import ReproduceError
from simulation import experiment_flags
from tools import items_table

REPO = pathlib.Path(__file__).resolve().parent.parent.parent
EXAMPLE = REPO / "examples" / "own_sweep"
PAGE = (REPO / "docs" / "items.md").read_text()


def test_the_example_is_an_item_of_whole_commands(tmp_path):
    (item,) = items.own_items(str(EXAMPLE))
    (setup,) = item.setups.values()
    assert (item.paper, item.name, setup.home) == ("own_sweep", "blobs", EXAMPLE)
    points = {row: setup.points(row) for row in setup.rows}
    runs = items.planned_runs(setup, setup.rows, points, [1], root=str(tmp_path))
    assert len(runs) == 4 and {run.home for run in runs} == {str(EXAMPLE)}
    for run in runs:
        request = experiment_flags.parse(run.command)
        assert request.run["total_rounds"] == setup.rounds, "the item's, not the flag file's"
        assert request.run["task"] == "moving_blobs"
    assert runs[-1].folder == tmp_path / "own_sweep/blobs/blobs" / runs[-1].name


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("blob,blobs,fedavg,{column},1", "there is no item blob; known: blobs"),
        ("blobs,main,fedavg,{column},1", "there is no setup main; known: blobs"),
        ("blobs,blobs,FedAvg,{column},1", "there is no row FedAvg; known: {row}"),
        ("blobs,blobs,{row},accuracies,1", "there is no column accuracies; known: .*{column}"),
    ],
)
def test_published_numbers_that_no_table_shows_are_refused(tmp_path, line, says):
    home = tmp_path / "own_sweep"
    shutil.copytree(EXAMPLE, home)
    (setup,) = items.own_items(str(home))[0].setups.values()
    names = {"row": next(iter(setup.rows)), "column": setup.columns[0]["name"]}
    right = "item,setup,row,column,value\nblobs,blobs,{row},{column},1\n".format(**names)
    (home / "published.csv").write_text(right)
    assert items.own_items(str(home))
    (home / "published.csv").write_text(right + line.format(**names) + "\n")
    with pytest.raises(ReproduceError, match=f"number 2: {says.format(**names)}"):
        items.own_items(str(home))
    # Of two numbers for one cell, the last would count.
    (home / "published.csv").write_text(right + right.splitlines()[1] + "\n")
    with pytest.raises(ReproduceError, match=r"line 3: line 2 has blobs, blobs, .* already"):
        items.own_items(str(home))


@pytest.mark.parametrize("root", [".", "own_sweep/blobs/blobs"])
def test_runs_are_not_recorded_over_themselves(tmp_path, capsys, root):
    home = tmp_path / "own_sweep"
    shutil.copytree(EXAMPLE, home)
    made = tmp_path / root / "own_sweep" / "blobs" / "blobs" / "run" / "hparams.json"
    made.parent.mkdir(parents=True)
    made.touch()
    flags = [f"--items={home}", "--item=blobs", "--record", f"--root_output_dir={tmp_path / root}"]
    assert reproduce.main([*flags, "--dry_run"]) == 1
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "choose another --root_output_dir" in error
    assert made.exists()


def test_the_page_shows_the_example_and_names_every_field():
    shown = tomllib.loads(re.search(r"```toml\n(.*?)```", PAGE, re.S).group(1))
    whole = tomllib.loads((EXAMPLE / "blobs.toml").read_text())
    shown_setup, setup = shown["setups"]["blobs"], whole["setups"]["blobs"]
    assert shown_setup.pop("columns") == setup["columns"][:1]
    assert all(setup[key] == value for key, value in shown_setup.items())
    fields = PAGE.split("## Fields")[1].split("## Search")[0]
    named = {
        n
        for line in fields.splitlines()
        if line.startswith("| `")
        for n in re.findall(r"`(\w+)`", line.split("|")[1])
    }
    assert named == set(items.FIELDS)
    assert items_table.written(PAGE) == PAGE, "run python tools/items_table.py"


WHOLE = """
title = "T"
[setups.s]
title = "S"
rounds = 3
seeds = [1]
columns = [{ name = "a", metric = "eval/accuracy" }]
selection = { metric = "train/loss", last_rounds = 2 }
[setups.s.rows]
fedavg = "a.flags"
[setups.s.grid]
fedavg = { client_learning_rate = [0.1, 0.2] }
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rounds = 3", "rounds = 0", "rounds must be a whole number above 0, found 0"),
        ("rounds = 3", "", "rounds is missing"),
        ("rounds = 3", "round = 3", "unknown key round. Did you mean rounds?"),
        ("seeds = [1]", 'seeds = "1"', "seeds must be a list of whole numbers"),
        ('name = "a", ', "", "columns must be a list of tables with name and metric"),
        ('name = "a", ', 'name = "a", last_round = 2, ', "columns must be a list of tables"),
        ('name = "a", ', 'name = "a", best = "most", ', "columns must be a list of tables"),
        ('name = "a", ', 'name = "a", scale = "100", ', "columns must be a list of tables"),
        ('"a.flags"', '"b.flags"', "rows.fedavg: there is no flag file"),
        ('"eval/accuracy" }', '"a", digit = 1 }', "columns must be a list of tables with name"),
        ('"eval/accuracy" }', '"a", best = "most" }', "columns must be a list of tables with name"),
        ("[0.1, 0.2]", "0.1", "grid must be a table row = { flag = [values] }"),
        ("fedavg = {", "fedadam = {", "grid.fedadam: there is no such row"),
        (
            "[setups.s.grid]",
            "[setups.s.sweep]\nfedavg = { mu = [4] }\n[setups.s.grid]",
            "grid.fedavg: there is no such row. Did you mean fedavg mu=4?",
        ),
        (
            "rounds = 3",
            'rounds = 3\nwiden = { times = 1, flags = ["client_rate"] }',
            "widen.flags: no grid has numbers of client_rate",
        ),
        ("seeds = [1]", "seeds = [1]\nsearch = { factor = 1 }", "search must be a table of factor"),
        ("[0.1, 0.2] }", "[0.1] }\n[setups.s.search]\nfactor = 2", "search needs a grid"),
        (
            "seeds = [1]",
            "seeds = [1]\nsearch = { restart = 1 }",
            "search must be a table of factor",
        ),
        ("[0.1, 0.2]", "{ log = [0.1, 1] }", "grid.fedavg: client_learning_rate is a range, so"),
        (
            "[0.1, 0.2] }",
            "{ log = [1, 0.1] } }\n[setups.s.sample]\npoints = 4",
            "grid.fedavg: client_learning_rate must have two ends, the lower one first",
        ),
        ("rounds = 3", "rounds = 3\nsample = { seed = 1 }", "sample must be a table of points"),
        ("rounds = 3", "rounds = 3\nsample = { points = 0 }", "sample must be a table of points"),
        (
            "rounds = 3",
            'rounds = 3\nsample = {points = 2}\nwiden = { times = 1, flags = ["a"] }',
            "widen cannot be combined with sample",
        ),
        ('"a.flags"', '"a.flags algorithm=fedavg"', "rows.fedavg: algorithm=fedavg must be --flag"),
        ("rounds = 3", "rounds = 3\nwiden = { times = 1 }", "widen must be a table of times"),
        (
            "rounds = 3",
            'rounds = 3\nsearch = {factor = 2}\nwiden = { times = 1, flags = ["a"] }',
            "widen cannot be combined with search",
        ),
        (
            "rounds = 3",
            'rounds = 3\nsearch = {}\nwiden = { times = 1, flags = ["client_learning_rate"] }',
            "widen cannot be combined with search",
        ),
        ("[0.1, 0.2] }", "[0.1, 0.2] }\n[setups.s.search]\nbudget = true", "search must be a"),
        ("seeds = [1]", "seeds = [true]", "seeds must be a list of whole numbers"),
        ("_rounds = 2 }", '_rounds = 2, seeds = ["x"] }', "selection must be a table of metric"),
        ("_rounds = 2 }", "_rounds = 2, seeds = [] }", "selection must be a table of metric"),
        ("_rounds = 2 }", "_rounds = 2, seeds = [1, 2] }", "selection.seeds: 2 is not among"),
        ('title = "S"', "title = 3", "title must be a text, found 3"),
        ('title = "T"', "title = ", "cannot be read"),
        (
            '"a.flags"',
            '"a.flags --client_learning_rate=5"',
            "grid.fedavg: the row sets client_learning_rate already; leave it out in one place",
        ),
        (
            "[setups.s.grid]\nfedavg",
            '[setups.s.sweep]\nfedavg = { client_learning_rate = [1] }\n[setups.s.grid]\n"fedavg '
            'client_learning_rate=1"',
            "the row sets client_learning_rate already",
        ),
        ('"a.flags"', '"a.flags --total_rounds=9"', "leave out --total_rounds=9; set rounds, or"),
        ("[setups.s", '[setups."../s"', "setups.../s: '../s' must be a path without .."),
        ("rounds = 3", 'rounds = 3\nfolder = "/tmp"', "setups.s.folder: '/tmp' must be a path"),
        ("[setups.s", "[other.s", "a table [setups.NAME] is missing"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, capsys, old, new, says):
    (tmp_path / "a.flags").write_text("--task=synthetic\n")
    assert old in WHOLE
    text = WHOLE.replace(old, new)
    (tmp_path / "x.toml").write_text(text)
    assert reproduce.main([f"--items={tmp_path}", "--item=x", "--dry_run"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path}/x.toml") and says in line


RUN = (
    "--task=synthetic\n--algorithm=fedavg\n--clients_per_round=2\n--client_batch_size=5\n"
    "--client_learning_rate=0.1\n"
)


@pytest.mark.slow
def test_a_search_may_leave_everything_to_its_defaults(tmp_path, capsys):
    (tmp_path / "a.flags").write_text(RUN)
    three = WHOLE.replace("[0.1, 0.2]", "[0.1, 0.2, 0.4]")
    (tmp_path / "x.toml").write_text(three.replace("rounds = 3", "rounds = 3\nsearch = {}"))
    root = f"--root_output_dir={tmp_path}"
    assert reproduce.main([f"--items={tmp_path}", "--item=x", "--dry_run", root]) == 0
    assert (
        "[search] needs this share of the rounds of whole grids: fedavg 55.6%"
        in capsys.readouterr().out
    )


def test_rows_share_a_file_and_try_the_same_values_of_what_they_share(tmp_path):
    (tmp_path / "a b.flags").write_text(RUN.replace("--algorithm=fedavg\n", ""))
    rows = "".join(f"{m} = '\"a b.flags\" --algorithm={m}'\n" for m in ("fedavg", "fedprox"))
    rates = "client_learning_rate = { log = [0.01, 1] }"
    grid = f"fedavg = {{ {rates} }}\nfedprox = {{ {rates}, fedprox_mu = {{ log = [0.001, 1] }} }}\n"
    text = WHOLE.replace('fedavg = "a.flags"\n', rows)
    text = text.replace("fedavg = { client_learning_rate = [0.1, 0.2] }\n", grid)
    (tmp_path / "x.toml").write_text(text + "[setups.s.sample]\npoints = 8\nseed = 3\n")
    (item,) = items.own_items(str(tmp_path))
    (setup,) = item.setups.values()
    points = {row: setup.points(row) for row in setup.rows}
    runs = items.planned_runs(setup, setup.rows, points, [1], root=str(tmp_path))
    assert len({run.folder for run in runs}) == len(runs) == 16
    requests = [experiment_flags.parse(run.command) for run in runs]
    assert [r.run["algorithm"] for r in requests] == ["fedavg"] * 8 + ["fedprox"] * 8
    rates = [r.in_force["client_learning_rate"] for r in requests]
    assert rates[:8] == rates[8:] and len(set(rates)) == 8
    assert len({r.method["mu"] for r in requests[8:]}) == 8
    assert runs[0].name == f"fedavg_client_learning_rate={rates[0]:g}_seed1"


@pytest.mark.long
def test_seeds_that_the_rule_has_not_choose_where_no_other_is_run(tmp_path, capsys):
    (tmp_path / "a.flags").write_text(RUN)
    rule = WHOLE.replace("last_rounds = 2", "last_rounds = 2, seeds = [1]")
    (tmp_path / "x.toml").write_text(rule.replace("seeds = [1]\n", "seeds = [1, 2]\n"))
    own = [f"--items={tmp_path}", "--item=x", "--dry_run", f"--root_output_dir={tmp_path}"]
    said = "Points of grids are chosen on seed 4 5, since none of the item's selection.seeds (1)"
    # Two points on each seed; on the rule's alone, and then the chosen one on the other.
    for seeds, runs in (("4,5", 4), ("1,5", 3), ("1,2", 3)):
        assert reproduce.main([*own, f"--seeds={seeds}"]) == 0
        told = capsys.readouterr().out
        assert f"| fedavg | {runs} " in told
        assert (said in told) == (seeds == "4,5")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--items={folder}", "--item=y"], "--item=y is unknown; {folder} has: x."),
        (["--items={folder}", "--paper=adafed", "--item=x"], "set one of them"),
        (["--items={folder}/nowhere", "--item=x"], "has no .toml file"),
    ],
)
def test_flags_that_name_nothing(tmp_path, capsys, flags, says):
    (tmp_path / "a.flags").write_text("--task=synthetic\n")
    (tmp_path / "x.toml").write_text(WHOLE)
    assert reproduce.main([flag.format(folder=tmp_path) for flag in flags]) == 2
    assert says.format(folder=tmp_path) in capsys.readouterr().err


def test_a_whole_item_is_listed_from_anywhere(tmp_path, capsys):
    (tmp_path / "a.flags").write_text("--task=synthetic\n")
    (tmp_path / "x.toml").write_text(WHOLE)
    assert reproduce.main([f"--items={tmp_path}", "--list"]) == 0
    assert f"--items={tmp_path} --item=x: T" in capsys.readouterr().out
    with pytest.raises(ReproduceError, match="is unknown"):
        items.load_item(tmp_path.name, "x")


_SWEPT = """
title = "T"
[setups.s]
title = "S"
rounds = 2
seeds = [1, 2]
curve = "eval/accuracy"
columns = [{ name = "a", metric = "eval/accuracy" }]
selection = { metric = "validation/loss", last_rounds = 1 }
[setups.s.rows]
fedavg = "a.flags --algorithm=fedavg"
fedprox = "a.flags --algorithm=fedprox --fedprox_mu=0.1"
"plain" = "a.flags --algorithm=fedavg --client_learning_rate=0.2"
[setups.s.grid]
fedavg = { client_learning_rate = [0.1, 0.2] }
fedprox = { client_learning_rate = [0.1, 0.2] }
"""
_SWEPT_FLAGS = "--task=synthetic\n--clients_per_round=2\n--client_batch_size=50\n"


@pytest.mark.long
def test_a_table_keeps_its_other_rows(tmp_path, capsys):
    """With their seeds and rounds; a row that is not done as the item says now is named."""
    (tmp_path / "x.toml").write_text(_SWEPT)
    (tmp_path / "a.flags").write_text(_SWEPT_FLAGS)
    folder = tmp_path / "runs" / tmp_path.name / "x" / "s"

    def rows_after(*flags):
        at = [f"--items={tmp_path}", f"--root_output_dir={tmp_path / 'runs'}", "--jobs=2"]
        assert reproduce.main([*at, *flags]) == 0
        with open(folder / "results.csv", newline="") as f:
            lines = [r for r in csv.DictReader(f) if r["column"] == "a"]
        return {r["row"]: (r["seeds"], r["rounds"], r["value"]) for r in lines}

    first = rows_after("--rows=plain,fedavg", "--seeds=1", "--budget=rounds=1")
    assert list(first) == ["plain", "fedavg"]
    capsys.readouterr()
    second = rows_after("--rows=fedprox")
    told = capsys.readouterr()
    assert second.keys() == {"fedavg", "fedprox", "plain"} and second.items() >= first.items()
    assert first["fedavg"][:2] == ("1", "1") and second["fedprox"][:2] == ("1 2", "2")
    assert "The files keep the rows that were there: fedavg, plain." in told.out
    table = told.out.partition("| method")[2]
    assert "| fedprox" in table and "| fedavg" not in table, "what was asked for"
    for name in ("table.md", "runs.csv", "curves.csv"):
        text = (folder / name).read_text()
        assert [row for row in second if row not in text] == [], name

    # Other settings have other runs, so the old numbers are not of this table.
    (tmp_path / "x.toml").write_text(_SWEPT.replace("learning_rate=0.2", "learning_rate=0.3"))
    third = rows_after("--rows=fedprox", "--seeds=1")
    assert third.keys() == {"fedavg", "fedprox"} and third["fedavg"] == first["fedavg"]
    told = capsys.readouterr()
    assert "warning: The files no longer have plain: their runs have not ended" in told.err
    assert len(rows_after()) == 3


@pytest.mark.slow
def test_the_example_is_searched_and_resumed(tmp_path):
    """Three points to round 3, one of them to round 9 in its own folder, by its own checkpoint."""
    command = [sys.executable, str(REPO / "reproduce.py"), f"--items={EXAMPLE}", "--item=blobs"]
    command += ["--rows=clipped_fedavg", "--seeds=1", f"--root_output_dir={tmp_path / 'runs'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())  # Lines are wrapped.
    told = re.search(r"clipped_fedavg: \S+, found by successive halving \((.*?)\)", said)
    assert told and told.group(1) == "3 to round 3, 1 to round 9"
    folder = tmp_path / "runs/own_sweep/blobs/blobs"
    rounds = {
        path.parent.name: json.loads(path.read_text())["rounds"]
        for path in folder.glob("*/summary.json")
    }
    assert sorted(rounds.values()) == [3, 3, 9]
    (best,) = (name for name, reached in rounds.items() if reached == 9)
    hparams = json.loads((folder / best / "hparams.json").read_text())
    assert [start["round_num"] for start in hparams["resumed"]] == [3]
    with open(folder / "results.csv", newline="") as f:
        assert {row["chosen_by"] for row in csv.DictReader(f)} == {"search"}


def test_own_grids_are_chosen_on_held_out_examples_unless_they_say_otherwise(tmp_path):
    home = tmp_path / "own_sweep"
    shutil.copytree(EXAMPLE, home)
    text = (home / "blobs.toml").read_text()
    rule = next(line for line in text.splitlines() if line.startswith("selection"))

    def commands(selection, flags=""):
        (home / "blobs.toml").write_text(text.replace(rule, selection))
        (home / "fedavg.flags").write_text((EXAMPLE / "fedavg.flags").read_text() + flags)
        (item,) = items.own_items(str(home))
        (setup,) = item.setups.values()
        points = {row: setup.points(row) for row in setup.rows}
        runs = items.planned_runs(setup, setup.rows, points, [1], root=str(tmp_path))
        given = [experiment_flags.parse(run.command).run["validation_fraction"] for run in runs]
        return setup.selection, given

    default = {"metric": "validation/loss", "last_rounds": 5}
    assert commands("") == (default, [0.1] * 4)
    assert commands("validation_fraction = 0.25") == (default, [0.25] * 4)
    assert commands('selection = { metric = "train/loss" }')[1] == [0.0] * 4
    assert commands("", "\n--validation_fraction=0.4\n")[1] == [0.4, 0.1, 0.1, 0.1]
    assert commands("", "\n--validation_clients=0.2\n")[1][0] == 0.0
