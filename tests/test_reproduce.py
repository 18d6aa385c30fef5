"""Papers as data: every flag file parses, and a table is what its runs say."""

import csv
import json
import pathlib
import subprocess
import sys
import types

import pytest

import reproduce
from simulation import experiment_flags

REPO = pathlib.Path(__file__).resolve().parent.parent
ITEMS = sorted((REPO / "papers").glob("*/*.toml"))
SETUPS = [
    pytest.param(path, name, setup, id=f"{path.parent.name}-{path.stem}-{name}")
    for path in ITEMS
    for name, setup in reproduce.load_item(path.parent.name, path.stem)["setups"].items()
]


def options(tmp_path, **changes):
    values = {"rows": None, "seeds": None, "data_dir": None, "root_output_dir": str(tmp_path)}
    return types.SimpleNamespace(**{**values, "max_minutes": None, **changes})


def plan(path, name, setup, tmp_path):
    paper, item = path.parent.name, path.stem
    rows, seeds = list(setup["rows"]), setup["seeds"]
    return list(reproduce.planned_runs(paper, item, name, setup, rows, seeds, options(tmp_path)))


@pytest.mark.parametrize(("path", "name", "setup"), SETUPS)
def test_every_run_of_every_item_is_a_valid_command(monkeypatch, tmp_path, path, name, setup):
    monkeypatch.chdir(REPO)
    runs = plan(path, name, setup, tmp_path)
    assert len({r.folder for r in runs}) == len(runs), "two runs would share a folder"
    for run in runs:
        request = experiment_flags.parse(run.command)
        assert request.run["total_rounds"] == setup["rounds"]
        assert request.run["algorithm"] == run.row
        assert request.run["seed"] == run.seed
        for setting, value in run.point.items():
            assert request.training[setting] == value


@pytest.mark.parametrize(("path", "name", "setup"), SETUPS)
def test_published_numbers_belong_to_the_item(path, name, setup):
    columns = {c["name"] for c in setup["columns"]}
    theirs = reproduce.published(path.parent.name, path.stem, name)
    for (_, column), (value, spread) in theirs.items():
        assert column in columns
        float(value), float(spread or 0)
    assert setup["rows"], "an item needs rows"
    if "grid" in setup:
        assert set(setup["grid"]) == set(setup["rows"]) and "selection" in setup


SETUP = {
    "title": "Toy",
    "rounds": 3,
    "rows": {"a": "a.flags", "b": "b.flags"},
    "curve": "eval/accuracy",
    "curve_label": "accuracy",
    "selection": {"metric": "train/loss", "last_rounds": 2},
    "grid": {"a": {"server_learning_rate": [0.1, 1.0]}, "b": {"server_learning_rate": [0.5]}},
    "columns": [{"name": "acc", "metric": "eval/accuracy", "scale": 100}],
}


@pytest.fixture()
def runs(tmp_path):
    """Runs whose last two losses are 3, 1 (a at 0.1), 1.5, 1.7 (a at 1.0) and nan (b)."""
    losses = {
        ("a", 0.1): ["9", "3", "1"],
        ("a", 1.0): ["0", "1.5", "1.7"],
        ("b", 0.5): ["nan", "nan", "nan"],
    }
    accuracies = {("a", 0.1, 1): 0.5, ("a", 0.1, 2): 0.7, ("a", 1.0, 1): 0.8, ("a", 1.0, 2): 0.9}
    planned = list(
        reproduce.planned_runs("p", "i", "s", SETUP, ["a", "b"], [1, 2], options(tmp_path))
    )
    for run in planned:
        run.folder.mkdir(parents=True)
        key = (run.row, run.point["server_learning_rate"])
        with open(run.folder / "metrics.csv", "w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["round_num", "train/loss", "eval/accuracy"])
            writer.writerow([0, "", 0.1])
            writer.writerows([i + 1, v, 0.1 * i] for i, v in enumerate(losses[key]))
        summary = {
            "rounds": 3 if run.seed == 1 else 2,
            "mean_round_seconds": 0.25,
            "final": {"eval/accuracy": accuracies.get((*key, run.seed), 0.2)},
        }
        (run.folder / "summary.json").write_text(json.dumps(summary))
    return planned


def test_the_stated_rule_picks_the_point(runs):
    """Last two rounds: (3 + 1) / 2 = 2 against (1.5 + 1.7) / 2 = 1.6, so the rate is 1.0."""
    assert reproduce.selection_value(runs[0], SETUP["selection"]) == 2.0
    assert reproduce.selection_value(runs[-1], SETUP["selection"]) == float("inf")
    chosen = reproduce.choose(runs, SETUP)
    assert chosen == {"a": {"server_learning_rate": 1.0}, "b": {"server_learning_rate": 0.5}}


def test_a_run_that_diverged_is_never_chosen(runs):
    (runs[2].folder / "summary.json").unlink()
    assert reproduce.selection_value(runs[2], SETUP["selection"]) == float("inf")
    chosen = reproduce.choose(runs, SETUP)
    assert chosen["a"] == {"server_learning_rate": 0.1}
    grid = reproduce.grid_records(runs, SETUP, chosen)
    assert grid[2]["rounds"] == 3 and "acc" not in grid[2] and not grid[2]["chosen"]
    with pytest.raises(reproduce.ReproduceError, match="a diverged at"):
        reproduce.results(runs, SETUP, {"a": {"server_learning_rate": 1.0}})


def test_results_are_means_over_seeds_with_their_spread(runs):
    """Accuracies 80 and 90: mean 85, sample standard deviation √50."""
    chosen = reproduce.choose(runs, SETUP)
    records = reproduce.results(runs, SETUP, chosen)
    assert [r["column"] for r in records] == ["acc", "seconds_per_round"] * 2
    first = records[0]
    assert first["value"] == pytest.approx(85) and first["spread"] == pytest.approx(50**0.5)
    assert (first["seeds"], first["rounds"], first["status"]) == ("1 2", 2, "partial")
    table = reproduce.format_table(records, {("a", "acc"): ("91.5", "0.3")}, SETUP)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert lines[2] == ["a", "ours", "1", "2", "1 2", "85.00 ± 7.07", "0.25"]
    assert lines[3] == ["a", "paper", "", "3", "", "91.50 ± 0.30", ""]
    assert len(lines) == 5, "a row without published numbers has no second line"
    grid = reproduce.grid_records(runs, SETUP, chosen)
    assert [r["chosen"] for r in grid] == [False, False, True, True, True, True]
    assert grid[0]["selection"] == 2.0


def test_plot_is_drawn(runs, tmp_path):
    path = tmp_path / "plots" / "curves.png"
    reproduce.plot(path, runs, SETUP, reproduce.choose(runs, SETUP))
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--paper=nothing", "--item=x"], "--paper=nothing is unknown; known: adafedadam", 1),
        (["--paper=adafedadam", "--item=table99"], "adafedadam has: table5", 1),
        (["--paper=adafedadam", "--item=table5", "--setup=x"], "known: synthetic", 1),
        (
            ["--paper=adafedadam", "--item=table5", "--rows=fedsgd"],
            "'fedsgd' is no row of table5 synthetic",
            1,
        ),
        (["--paper=adafedadam", "--item=table5", "--seeds=one"], "whole numbers", 1),
        (["--paper=adafedadam"], "--paper and --item must be set", 1),
        (["--papier=adafedadam"], "papier", 2),
        (["adafedadam"], "only flags", 1),
    ],
)
def test_wrong_requests_end_with_one_line(arguments, says, code):
    done = subprocess.run(
        [sys.executable, "reproduce.py", *arguments], cwd=REPO, capture_output=True, text=True
    )
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1 and says in done.stderr
    assert done.stderr.startswith("error: ")


def test_list_names_every_item():
    done = subprocess.run(
        [sys.executable, "reproduce.py", "--list"], cwd=REPO, capture_output=True, text=True
    )
    for path in ITEMS:
        assert f"--paper={path.parent.name} --item={path.stem}" in done.stdout


def test_rows_are_run_and_a_table_comes_out(tmp_path):
    """The whole way, cut short by its time, as `make run` goes it."""
    done = subprocess.run(
        [
            sys.executable,
            "reproduce.py",
            "--paper=adafedadam",
            "--item=table5",
            "--rows=fedavg",
            "--max_minutes=0.02",
            f"--root_output_dir={tmp_path}",
        ],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "| fedavg   | ours" in done.stdout and "| fedavg   | paper" in done.stdout
    assert "The rounds differ" in done.stdout
    folder = tmp_path / "adafedadam" / "table5" / "synthetic"
    assert (folder / "curves.png").read_bytes()[:4] == b"\x89PNG"
    with open(folder / "results.csv", newline="") as f:
        assert {r["status"] for r in csv.DictReader(f)} == {"partial"}
