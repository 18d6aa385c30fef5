"""Papers as data: every flag file parses, and a table is what its runs say."""

import csv
import dataclasses
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import types

import pandas as pd
import pytest

import reproduce
from reproduction import columns, drawing, items, results, score, setups, study, sweep
from simulation import experiment_flags
from simulation.records import outputs

REPO = pathlib.Path(__file__).resolve().parent.parent
ITEMS = items.all_items()
SETUPS = [
    pytest.param(setup, id=f"{setup.paper}-{setup.item}-{setup.name}")
    for item in ITEMS
    for setup in item.setups.values()
]


def plan(setup, root, seeds=None):
    points = {row: setup.points(row) for row in setup.rows}
    return items.planned_runs(setup, setup.rows, points, seeds or setup.seeds, root=str(root))


def thin(setup, root):
    """A run for every row and point that differs from the first of its flag file in one setting."""
    rows, first = [], {}
    for row in setup.rows.values():
        start = first.setdefault(row.flagfile, row.settings)
        if sum(start[flag] != value for flag, value in row.settings.items()) <= 1:
            rows.append(row.name)
    points = {}
    for row in rows:
        start, *others = setup.points(row)
        near = [p for p in others if sum(start[k] != v for k, v in p.items()) == 1]
        points[row] = [start, *near]
    return items.planned_runs(setup, rows, points, [7], root=str(root))


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch):
    monkeypatch.chdir(REPO)


@pytest.mark.parametrize("setup", SETUPS)
def test_every_run_of_every_item_is_a_valid_command(tmp_path, setup):
    runs = thin(setup, tmp_path)
    assert len({r.folder for r in runs}) == len(runs), "two runs would share a folder"
    for run in runs:
        request = experiment_flags.parse(run.command)
        assert request.run["total_rounds"] == run.rounds == run.protocol_rounds
        assert run.rounds == setup.rows[run.row].settings.get("total_rounds", setup.rounds)
        assert request.run["seed"] == request.run["client_datasets_random_seed"] == run.seed
        for flag, value in {**setup.rows[run.row].settings, **run.point}.items():
            assert request.in_force[flag] == value
    drawing.check(setup, runs)
    rows = {run.row: setup.rows[run.row] for run in runs}
    columns.Check(dataclasses.replace(setup, rows=rows)).before()


def test_runs_are_planned_from_any_folder(tmp_path, monkeypatch):
    """With flag files that include others, which are named as from the suite's folder."""
    for item in ("fedda", "fig1"), ("adafedadam", "table5"):
        setup = next(iter(items.load_item(*item).setups.values()))
        here = [experiment_flags.parse(run.command) for run in thin(setup, tmp_path)]
        monkeypatch.chdir(tmp_path)
        assert [experiment_flags.parse(run.command) for run in thin(setup, tmp_path)] == here
        monkeypatch.chdir(REPO)


def test_equal_folders_hold_equal_runs(tmp_path):
    """Items share runs; a folder that two items would fill differently is a mistake in one."""
    seen = {}
    for param in SETUPS:
        for run in thin(*param.values, tmp_path):
            seen.setdefault(run.folder, set()).add(run.command)
    for folder, commands in seen.items():
        in_force = [experiment_flags.parse(c).in_force for c in commands if len(commands) > 1]
        assert all(flags == in_force[0] for flags in in_force), folder


@pytest.mark.parametrize("setup", SETUPS)
def test_items_are_whole(setup):
    columns = {c["name"] for c in setup.columns}
    assert {c["reading_of"] for c in setup.columns if "reading_of" in c} <= columns
    published = {row for row, _ in results.published(setup)}
    ours = {setup.published_rows.get(row, row) for row in setup.rows}
    # What does not count may be about some of a table's rows only.
    assert published <= ours or (not setup.counts and ours <= published), published ^ ours
    for (_, column), line in results.published(setup).items():
        assert column in columns
        float(line["value"]), float(line["spread"] or 0)
    if setup.draws:
        assert not setup.rows and any("{output}" in part for part in setup.draws)
        return
    assert setup.rows and setup.seeds and setup.columns
    assert {f["kind"] for f in setup.figures} <= set(drawing.KINDS)
    assert setup.grid.keys() <= setup.rows.keys()
    assert setup.published_rows.keys() <= setup.rows.keys()
    assert not setup.grid or setup.selection.keys() >= {"metric", "last_rounds"}


def toy_setup(**changes):
    fields = {
        "paper": "p",
        "item": "i",
        "name": "s",
        "title": "Toy",
        "rounds": 3,
        "seeds": [1, 2],
        "rows": {
            "a": items.Row("a", "papers/adafedadam/flags/table5_synthetic_fedavg.flags", {}),
            "b": items.Row("b", "papers/adafedadam/flags/table5_synthetic_fedadam.flags", {}),
        },
        "curve": "eval/accuracy",
        "curve_label": "accuracy",
        "selection": {"metric": "train/loss", "last_rounds": 2},
        "validation_fraction": 0.1,
        "home": items.PAPERS / "p",
        "search": {},
        "widen": {},
        "grid": {"a": {"server_learning_rate": [0.1, 1.0]}, "b": {"server_learning_rate": [0.5]}},
        "sample": {},
        "columns": [{"name": "acc", "metric": "eval/accuracy", "scale": 100}],
        "folder": "i/s",
        "published": "s",
        "published_rows": {},
        "counted_rows": {},
        "counts": True,
        "planned": False,
        "figures": [{"kind": "curves"}],
        "higher_is_better": True,
        "draws": [],
        "stand_in": "",
        "reasons": {},
        "seconds": {},
    }
    return items.Setup(**{**fields, **changes})


SETUP = toy_setup()


@pytest.fixture
def runs(tmp_path):
    """Runs whose last two losses are 3, 1 (a at 0.1), 1.5, 1.7 (a at 1.0) and nan (b)."""
    losses = {
        ("a", 0.1): ["9", "3", "1"],
        ("a", 1.0): ["0", "1.5", "1.7"],
        ("b", 0.5): ["nan", "nan", "nan"],
    }
    accuracies = {("a", 0.1, 1): 0.5, ("a", 0.1, 2): 0.7, ("a", 1.0, 1): 0.8, ("a", 1.0, 2): 0.9}
    planned = plan(SETUP, tmp_path)
    for run in planned:
        run.folder.mkdir(parents=True)
        key = (run.row, run.point["server_learning_rate"])
        with open(run.folder / "metrics.csv", "w", newline="") as f:
            writer = csv.writer(f, lineterminator="\n")
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
    assert results.selection_value(runs[0], SETUP.selection) == 2.0
    assert results.selection_value(runs[-1], SETUP.selection) == float("inf")
    chosen = results.choose(runs, SETUP)
    assert chosen == {"a": {"server_learning_rate": 1.0}, "b": {"server_learning_rate": 0.5}}


def test_points_are_compared_after_equally_many_rounds(runs):
    """Rate 0.1 came to round 1 with a loss of 9, rate 1.0 to round 3: there it had 0."""
    for run in runs[:2]:
        path = run.folder / "metrics.csv"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    losses = "round_num,train/loss\n0,\n1,10\n2,1\n3,1\n"
    for run in runs[2:4]:
        (run.folder / "metrics.csv").write_text(losses)
    chosen = results.choose(runs, SETUP)
    assert chosen["a"] == {"server_learning_rate": 0.1}
    setup = toy_setup(columns=[])
    selections = [r["selection"] for r in results.grid_records(runs, setup, chosen)]
    assert selections[:4] == [9, 9, 10, 10]
    # A search may have dropped a point before its whole run began: it did not diverge.
    shutil.rmtree(runs[1].folder)
    (_, dropped, *_) = results.grid_records(runs, setup, chosen)
    assert dropped["rounds"] == "" and "selection" not in dropped
    without = toy_setup(columns=[], selection={"seeds": [1]})
    assert "selection" not in results.grid_records(runs, without, chosen)[0]


def test_a_rule_by_a_column_that_there_is_not_chooses_nothing(runs):
    wrong = dataclasses.replace(SETUP, selection={"metric": "train/los", "last_rounds": 2})
    with pytest.raises(items.ReproduceError, match=r"has no column train/los in metrics.csv"):
        results.choose(runs, wrong)


def test_a_metric_that_a_rows_runs_do_not_write_is_blank(runs):
    own = {"name": "other", "metric": "eval/other"}
    setup = dataclasses.replace(SETUP, columns=[*SETUP.columns, own])
    records = results.records(runs, setup, results.choose(runs, setup))
    assert [r["value"] for r in records if r["column"] == "other"] == [None, None]
    assert "nan" not in results.format_table(records, setup)


def test_a_run_that_diverged_is_never_chosen(runs):
    (runs[2].folder / "summary.json").unlink()
    assert results.selection_value(runs[2], SETUP.selection) == float("inf")
    chosen = results.choose(runs, SETUP)
    assert chosen["a"] == {"server_learning_rate": 0.1}
    grid = results.grid_records(runs, SETUP, chosen)
    assert grid[2]["rounds"] == 3 and "acc" not in grid[2] and not grid[2]["chosen"]
    (record,) = results.records(runs, SETUP, {"a": {"server_learning_rate": 1.0}})
    assert (record["value"], record["status"]) == (None, "diverged (seed 1)")
    assert "a: diverged (seed 1)." in results.caveats([record], SETUP)
    assert "diverged (seed 1)" in results.format_table([record], SETUP)


def test_results_are_means_over_seeds_with_their_spread(runs, monkeypatch):
    """Accuracies 80 and 90: mean 85, sample standard deviation √50."""
    chosen = results.choose(runs, SETUP)
    records = results.records(runs, SETUP, chosen)
    assert [r["column"] for r in records] == ["acc", "seconds_per_round"] * 2
    first = records[0]
    assert first["value"] == pytest.approx(85) and first["spread"] == pytest.approx(50**0.5)
    assert (first["seeds"], first["rounds"]) == ("1 2", 2)
    assert first["status"] == "partial: runs of 2 to 3 rounds"
    assert "a: partial: runs of 2 to 3 rounds." in results.caveats(records, SETUP)
    told = results.caveats(records, SETUP)
    assert told[0].startswith("Fewer rounds than the protocol (a 2 of 3, b")
    assert not any("second half" in line for line in told)
    wide = toy_setup(columns=[{**SETUP.columns[0], "last_rounds": 2}])
    assert "Means of the last rounds" in results.caveats(records, wide)[1]
    # Of three rounds, rows 2 and 3 are the second half of rows 0 to 3.
    whole = [{**r, "rounds": 3, "status": "complete"} for r in records]
    assert not results.caveats(whole, wide)
    wide = toy_setup(columns=[{**SETUP.columns[0], "last_rounds": 3}])
    assert "Means of the last rounds" in results.caveats(whole, wide)[0]
    rows = pd.DataFrame(whole)
    label = drawing._column_label(wide, wide.columns[0], rows)
    assert label == "accuracy, mean of the last 2 rounds (%)"
    told = "± is one sample standard deviation over seeds{}. In table.tex it is half of a 95 % "
    told += "interval."
    assert results.spread_in_words(records, SETUP) == [told.format("")]
    assert not results.spread_in_words([{**r, "spread": None} for r in records], SETUP)
    theirs = {("a", "acc"): {"value": "91.5", "spread": "0.3"}}
    monkeypatch.setattr(results, "published", lambda setup: theirs)
    of_paper = ", in lines of the paper what it prints"
    assert results.spread_in_words(records, SETUP) == [told.format(of_paper)]
    table = results.format_table(records, SETUP)
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    assert lines[2] == ["a", "ours", "1", "2", "1 2", "85.00 ± 7.07", "0.25"]
    assert lines[3] == ["a", "paper", "", "3", "", "91.50 ± 0.30", ""]
    assert len(lines) == 5, "a row without published numbers has no second line"
    grid = results.grid_records(runs, SETUP, chosen)
    assert [r["chosen"] for r in grid] == [False, False, True, True, True, True]
    assert grid[0]["selection"] == 2.0


def test_results_have_the_versions_of_their_runs(runs):
    for run in runs:
        flags = {"task": "synthetic", "algorithm": "fedavg", "seed": run.seed}
        recorded = {
            "flags": flags,
            "num_clients": 1,
            "num_training_examples": 1,
            "start": {"device": "CPU", "git_commit": None},
            "identity": {"method": {"version": run.seed}, "task": {"version": 4}},
        }
        (run.folder / "hparams.json").write_text(json.dumps(recorded))
    chosen = results.choose(runs, SETUP)
    records = results.records(runs, SETUP, chosen)
    assert {(r["method_version"], r["task_version"]) for r in records} == {("1; 2", "4")}
    assert "version" not in results.format_table(records, SETUP), "no setting"
    grid = results.grid_records(runs, SETUP, chosen)
    assert [r["method_version"] for r in grid] == [run.seed for run in runs]
    assert grid[0].keys() - {"acc", *runs[0].point} <= {*setups.TAKEN}, "no column hides another"


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ({}, 0.8),
        ({"scale": -100, "offset": 100}, 20.0),
        ({"scale": 100, "power": 0.5}, 80**0.5),
        ({"last_rounds": 2}, 0.15),
        ({"last_rounds": 4}, 0.15),
        ({"best": "max"}, 0.2),
        ({"best": "min"}, 0.0),
    ],
)
def test_columns(runs, column, value):
    """A run with accuracy 0.1, 0, 0.1, 0.2 over rounds 0 to 3 and 0.8 on all tests at its end."""
    found = results.column_value(runs[2], {"name": "x", "metric": "eval/accuracy", **column})
    assert found == pytest.approx(value)


def test_the_best_of_a_run_is_a_number_if_there_is_one(runs):
    column = {"name": "x", "metric": "train/loss", "best": "min"}
    assert results.column_value(runs[0], column) == 1
    path = runs[0].folder / "metrics.csv"
    path.write_text(path.read_text().replace("1,9,", "1,nan,"))
    assert results.column_value(runs[0], column) == 1
    value = results.column_value(runs[-1], column)
    assert value != value


@pytest.mark.quick_cases("curves")
@pytest.mark.parametrize(
    "wanted",
    [
        {"kind": "curves"},
        {"kind": "curves", "column": "train/loss", "label": "loss"},
        {"kind": "density", "column": "accuracy"},
        {"kind": "rates"},
        {"kind": "best_rates"},
        {"kind": "setting", "setting": "server_learning_rate"},
    ],
    ids=lambda w: "-".join(w.values()),
)
def test_figures_are_drawn(runs, tmp_path, wanted):
    setup = toy_setup(figures=[wanted])
    for run in runs:
        flags = experiment_flags.parse(run.command).in_force
        (run.folder / "hparams.json").write_text(json.dumps({"flags": dict(flags)}))
        (run.folder / "client_metrics.csv").write_text(
            "client_id,train_examples,test_examples,accuracy\n0,1,1,0.5\n1,1,1,0.7\n"
        )
    (tmp_path / "plots").mkdir()
    for name in ("density_7.png", "density_of_mine.png"):
        (tmp_path / "plots" / name).touch()
    paths = drawing.draw(setup, runs, results.choose(runs, setup), tmp_path / "plots")
    assert not (tmp_path / "plots" / "density_7.png").exists(), "of figures asked for before"
    assert (tmp_path / "plots" / "density_of_mine.png").exists()
    assert [pathlib.Path(path).suffix for path in paths] == [".png", ".pdf"]
    contents = [pathlib.Path(path).read_bytes() for path in paths]
    assert [content[:4] for content in contents] == [b"\x89PNG", b"%PDF"]
    for run in runs:
        shutil.rmtree(run.folder)
    again = drawing.draw_again(setup, tmp_path / "plots")
    assert [pathlib.Path(path).read_bytes() for path in again] == contents, "from the CSV alone"


def test_figures_go_by_rows_of_which_no_run_diverged(runs, tmp_path):
    """Row a at 1.0 has no end with seed 1, and one round: no mean, no title, no worst loss."""
    (runs[2].folder / "summary.json").unlink()
    text = (runs[2].folder / "metrics.csv").read_text().splitlines(keepends=True)
    (runs[2].folder / "metrics.csv").write_text("".join(text[:3]))
    for run in runs:
        flags = experiment_flags.parse(run.command).in_force
        (run.folder / "hparams.json").write_text(json.dumps({"flags": dict(flags)}))
        (run.folder / "client_metrics.csv").write_text(
            "client_id,train_examples,test_examples,accuracy\n0,1,1,0.5\n1,1,1,0.7\n"
        )
    setup = toy_setup(
        figures=[{"kind": "density", "column": "accuracy"}, {"kind": "best_rates"}],
        columns=[{"name": "acc", "metric": "eval/accuracy", "scale": 100, "last_rounds": 2}],
    )
    chosen = {"a": {"server_learning_rate": 1.0}, "b": {"server_learning_rate": 0.5}}
    drawing.draw(setup, runs, chosen, tmp_path)
    assert set(pd.read_csv(tmp_path / "density.csv").method) == {"b"}
    points = pd.read_csv(tmp_path / "best_rates_2.csv")
    assert points.rounds.tolist() == [1, 3, 3, 3] and points.loss.isna().all()
    figure = dict(drawing.drawn(setup, tmp_path))["best_rates_2"]
    assert figure.axes[0].get_title("left") == "Toy; after 3 rounds"


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ({"kind": "curve"}, "kind curve is unknown; known: curves, "),
        ({"kind": "density"}, "density needs column, a text."),
        ({"kind": "setting"}, "setting needs setting, a text."),
        ({"kind": "setting", "setting": "rate"}, "setting needs a number as --rate of a."),
        ({"kind": "setting", "setting": "task"}, "setting needs a number as --task of a."),
        ({"kind": "tau"}, "tau needs a number as --fedavg_tau of a."),
        ({"kind": "pareto"}, "pareto needs a column mean_error."),
    ],
)
def test_figures_that_could_not_be_drawn_are_refused_before_the_runs(tmp_path, figure, says):
    setup = toy_setup(figures=[{"kind": "curves"}, figure])
    with pytest.raises(items.ReproduceError, match=f"i s: figures: {says}"):
        drawing.check(setup, plan(setup, tmp_path))


RATE = "client_learning_rate"


def test_a_swept_row_is_a_line_by_its_whole_name(tmp_path):
    """Rows `fedavg small` and `fedavg large` were one line, which showed their mean."""
    flagfile = "papers/adafedadam/flags/table5_synthetic_fedavg.flags"
    rows = {}
    for base in ("fedavg small", "fedavg large"):
        for rate in (0.01, 0.1):
            name = f"{base} {RATE}={rate}"
            rows[name] = items.Row(name, flagfile, {RATE: rate})
    setup = toy_setup(rows=rows, grid={})
    runs = plan(setup, tmp_path, [1])
    for kind in ("setting", "rates", "best_rates"):
        wanted = {"kind": kind} | ({"setting": RATE} if kind == "setting" else {})
        drawing.check(dataclasses.replace(setup, figures=[wanted]), runs)
        table = drawing.KINDS[kind].table(setup, runs, wanted)
        assert table.method.tolist() == ["fedavg small"] * 2 + ["fedavg large"] * 2


def test_a_figure_of_a_mean_over_settings_is_refused_before_the_runs(tmp_path):
    rows = {}
    for epochs in (1, 2):
        name = f"a client_epochs_per_round={epochs}"
        flagfile = "papers/adafedadam/flags/table5_synthetic_fedavg.flags"
        rows[name] = items.Row(name, flagfile, {"client_epochs_per_round": epochs})
    setup = toy_setup(rows=rows, grid={}, figures=[{"kind": "rates"}])
    says = "rates would draw the mean of a client_epochs_per_round=1 and a client_epochs"
    with pytest.raises(items.ReproduceError, match=says):
        drawing.check(setup, plan(setup, tmp_path))


def test_a_figure_over_numbers_of_rounds_has_them_on_its_axis_alone(tmp_path):
    rows = [("a", 1, 50, 0.5, 50), ("a", 1, 1000, 0.7, 1000)]
    columns = ["method", "seed", "setting", "value", "rounds"]
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / "setting.csv", index=False)
    setup = toy_setup(figures=[{"kind": "setting", "setting": "total_rounds"}], rounds=1500)
    ((_, figure),) = drawing.drawn(setup, tmp_path)
    assert figure.axes[0].get_title("left") == "Toy"


def test_a_results_figure_is_drawn_from_the_records(runs, tmp_path):
    setup = toy_setup(figures=[])
    chosen = results.choose(runs, setup)
    results.write_csv(tmp_path / "results.csv", results.records(runs, setup, chosen))
    results.write_csv(tmp_path / "runs.csv", results.grid_records(runs, setup, chosen))
    paths = drawing.draw(setup, runs, chosen, tmp_path)
    assert [pathlib.Path(path).name for path in paths] == ["results.png", "results.pdf"]
    swept = toy_setup(figures=[{"kind": "rates"}])
    assert drawing.draw_again(swept, tmp_path) == [], "the heat map shows them"


@pytest.mark.parametrize(
    ("title", "heading"),
    [
        (
            "Synthetic: 100 clients; test accuracy over clients, in percent",
            "Synthetic: 100 clients",
        ),
        (
            "CIFAR-10: 500 clients, 10 a round, 1,000 rounds, rate 1; accuracy in percent, mean",
            "CIFAR-10: 500 clients, 10 a round, rate 1",
        ),
        ("Synthetic, test accuracy in percent; local solver: SGD", "Synthetic; local solver: SGD"),
        ("40 % of the labels, E = 5; percent", "40 % of the labels, E = 5"),
        ("EMNIST AE: 3,400 writers; mean squared error x 1000", "EMNIST AE: 3,400 writers"),
    ],
)
def test_a_figures_title_leaves_units_and_rounds_to_the_axes(title, heading):
    assert toy_setup(title=title, rounds=1000).heading == heading


def test_a_run_is_done_if_its_settings_are_the_same(tmp_path):
    """Any difference counts, but of settings that a resumed run may change."""
    run = plan(toy_setup(grid={}), tmp_path, [1])[0]
    flags = dict(experiment_flags.parse(run.command).in_force)
    summary = {"finished": True, "rounds": run.rounds}

    def done(**changes):
        recorded = {k: v for k, v in {**flags, **changes}.items() if v != "absent"}
        with outputs.ExperimentFolder(str(run.folder.parent), run.name) as folder:
            folder.write_with_checksum("hparams.json", {"flags": recorded})
            folder.write_with_checksum("summary.json", summary)
        return sweep.is_done(run)

    assert not sweep.is_done(run)
    assert done() and done(rounds_per_checkpoint=7, stop_at="absent")
    assert not done(client_learning_rate=0.02)
    assert not done(rounds_per_eval="absent")
    assert not done(stop_at="eval/loss<1")
    summary |= {"rounds": 1, "stopped": "eval/loss<1"}
    assert not done() and not done(stop_at="eval/loss<1")
    summary |= {"rounds": run.rounds + 1}
    assert not done(), "the protocol has fewer rounds"
    summary = {"finished": True, "rounds": run.rounds}
    (run.folder / "summary.json").write_text(json.dumps(summary))
    assert not sweep.is_done(run), "it has no checksum"
    summary["finished"] = False
    assert not done()


def test_what_a_row_still_costs(runs):
    """Seconds 4, 2, 3 of row a's runs: median 3; b has none and takes the item's, or a's."""
    for run in runs:
        with open(run.folder / "metrics.csv", "w") as f:
            f.write("round_num,time/round_seconds\n0,\n")
            if run.row == "a":
                f.write("1,4\n2,2\n3,3\n")
    a, b = sweep.estimate(runs, {"*": 0.5})
    assert (a.row, a.runs, a.rounds, a.seconds, a.source) == ("a", 4, 0, 3, "measured")
    assert (b.row, b.runs, b.rounds, b.seconds, b.source) == ("b", 2, 6, 0.5, "item")
    assert sweep.estimate(runs, {})[1].source == "measured, other rows"


def test_the_number_that_differs_most_is_told_with_its_reason(monkeypatch):
    """Of 80 to 79 and 30 to 40, the second; rows with all rounds come before those without."""
    rows = [
        {"row": "a", "column": "acc", "value": 80.0, "rounds": 3, "protocol_rounds": 3},
        {"row": "b", "column": "acc", "value": 30.0, "rounds": 3, "protocol_rounds": 3},
    ]
    theirs = {("a", "acc"): {"value": "79"}, ("b", "acc"): {"value": "40"}}
    monkeypatch.setattr(results, "published", lambda setup: theirs)
    told = "The largest difference is b's acc: 30.00, paper 40.00."
    assert results.largest_difference(rows, SETUP) == told
    explained = toy_setup(reasons={"acc": "Because."})
    assert results.largest_difference(rows, explained) == f"{told} Because."
    explained = toy_setup(reasons={"acc": "A is B's. B is small. Adam is not."})
    assert results.largest_difference(rows[1:], explained) == f"{told} B is small. Adam is not."
    rows[1]["rounds"] = 2
    assert "a's acc" in results.largest_difference(rows, SETUP)
    rows[0]["rounds"] = 2
    told = "The largest difference, after fewer rounds, is b's acc: 30.00, paper 40.00."
    assert results.largest_difference(rows, SETUP) == told
    assert results.largest_difference([], SETUP) == ""
    assert results.columns_in_words(SETUP) == ["acc `eval/accuracy` × 100"]


def test_what_make_run_shows_has_a_reason_for_the_number_that_differs_most():
    """By its recorded runs, whose numbers are the reason's; for its rows and for all of them."""
    (command,) = re.findall(r"^RUN := .*reproduce\.py (.*)$", (REPO / "Makefile").read_text(), re.M)
    asked = dict(part.removeprefix("--").split("=") for part in command.split())
    setups = items.load_item(asked["paper"], asked["item"]).setups
    setup = setups[asked["setup"]]
    rows = [{**r, "rounds": int(r["rounds"])} for r in score.recorded(setup)]
    rows = [{**r, "protocol_rounds": setup.rounds} for r in rows]
    shown = [r for r in rows if r["row"] in asked["rows"].split(",")]
    assert {r["row"] for r in shown} == set(asked["rows"].split(","))
    for compared in (shown, rows):
        told = results.largest_difference(compared, setup)
        column = re.match(r"The largest difference is \w+'s (\w+):", told).group(1)
        reason = setup.reasons.get(column, "no reason")
        if compared is shown:
            reason = reason[: reason.index(" With the mu")]
        assert told.endswith(reason), told
    for recorded in (rows, score.recorded(setups["synthetic_splits"])):
        (tail,) = [r for r in recorded if (r["row"], r["column"]) == ("fedadam", "worst30")]
        told = f"{float(tail['value']):.1f} ± {float(tail['spread']):.1f} over "
        assert told in setup.reasons["worst30"]


def test_what_the_flag_file_has_is_not_in_the_folders_name(tmp_path):
    """Table 5's FedAdam has rate 0.001, so a sweep's point 0.001 is that very run."""
    grid = {"b": {"server_learning_rate": [0.001, 0.1], "fedadam_tau": [1e-8]}}
    names = [run.name for run in plan(toy_setup(grid=grid), tmp_path, [4]) if run.row == "b"]
    assert names == ["b_seed4", "b_server_learning_rate=0.1_seed4"]


def test_a_budget_of_rounds_is_part_of_a_run_whose_plan_depends_on_them(tmp_path):
    fedda = items.Row("fedda", "papers/fedda/flags/mnist_writers_fedda_adam.flags", {})
    rows = {"fedda": fedda, "a": SETUP.rows["a"]}
    setup = toy_setup(rounds=300, rows=rows, grid={})
    points = {row: [{}] for row in rows}
    short = items.planned_runs(setup, rows, points, [1], root=str(tmp_path), max_rounds=100)
    assert [run.name for run in short] == ["fedda_rounds=100_seed1", "a_seed1"]
    assert all("--total_rounds=100" in run.command and run.rounds == 100 for run in short)
    whole = items.planned_runs(setup, rows, points, [1], root=str(tmp_path), max_rounds=400)
    assert [(run.name, run.rounds) for run in whole] == [("fedda_seed1", 300), ("a_seed1", 300)]


@pytest.mark.parametrize(
    ("parts", "budget"),
    [
        (None, (None, None)),
        (["rounds=50"], (50, None)),
        (["rounds=50", "hours=1.5"], (50, 90.0)),
        (["minutes=3"], (None, 3.0)),
    ],
)
def test_budgets(parts, budget):
    assert reproduce.parse_budget(parts) == budget


@pytest.fixture
def clock(monkeypatch):
    """Minutes that have passed, for `reproduce`."""
    passed = [0.0]
    time = types.SimpleNamespace(monotonic=lambda: 60 * passed[0])
    for module in (reproduce, study):
        monkeypatch.setattr(module, "time", time)
    return passed


def test_time_of_a_budget_is_shared_by_set_ups(monkeypatch, clock):
    shares = []

    def run(setup, options, minutes):
        shares.append(minutes)
        clock[0] += (6, 14, 50, 1, 1)[len(shares) - 1]

    monkeypatch.setattr(reproduce, "reproduce", run)
    table = ["--paper=adafedadam", "--item=table7"]  # Of five set-ups.
    assert reproduce.main([*table, "--budget=minutes=50"]) == 0
    assert shares == [10, 11, 10, 0, 0]
    shares.clear()
    assert reproduce.main(table) == 0 and shares == [None] * 5


def test_time_of_a_budget_is_for_a_grid_and_what_lies_beyond_its_edges(
    tmp_path, monkeypatch, clock
):
    given = []

    def execute(runs, resources, minutes, check):
        given.append(minutes)
        clock[0] += 4

    def whole_grid(setup, points, plan, execute):
        for _ in range(3):
            execute([])
        raise items.ReproduceError("enough is seen")

    monkeypatch.setattr(reproduce.sweep, "execute", execute)
    monkeypatch.setattr(study.search, "whole_grid", whole_grid)
    table = ["--paper=fedcada", "--item=table1", "--setup=fashion_mnist_device_iid"]
    root = f"--root_output_dir={tmp_path}"
    assert reproduce.main([*table, "--budget=minutes=10", root]) == 1
    assert given == [10, 6, 2]


@pytest.mark.quick_cases("arguments[12568]-*", "arguments1[012]-*")
@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (["--paper=nothing", "--item=x"], "--paper=nothing is unknown; known: adafed", 2),
        (["--paper=adafedadam", "--item=table99"], "adafedadam has: table1", 2),
        (
            ["--paper=adafedadam", "--item=table5", "--setup=x"],
            "known: femnist",
            2,
        ),
        (
            ["--paper=adafedadam", "--item=table5", "--setup=synthetic", "--rows=fedsgd"],
            "table5 synthetic has no row 'fedsgd'; its rows: fedavg",
            2,
        ),
        (
            ["--paper=adafedadam", "--item=table3", "--seeds=one"],
            "whole numbers",
            2,
        ),
        (
            ["--paper=adafedadam", "--item=table3", "--budget=days=1"],
            "rounds=N, hours=H",
            2,
        ),
        (["--paper=adafedadam"], "--paper and --item must be set", 2),
        (["--papier=adafedadam"], "Did you mean --paper?", 2),
        (["adafedadam"], "Unexpected argument", 2),
        (["--compare", "nowhere"], "nowhere holds no run", 1),
        (["--compare", "nowhere", "--record"], "--record is not used with --compare", 2),
        (["--lst"], "Did you mean --list?", 2),
        (["--column=x", "--paper=adafed"], "--column is not used without --compare", 2),
        (["--paper=adafedadam", "--item=fig6"], "set --data_dir", 2),
        (["--list", "--root_output_dir=gs://b/x"], "gs://b/x is an address", 2),
    ],
)
def test_wrong_requests_end_with_one_line(arguments, says, code):
    done = subprocess.run(
        [sys.executable, "reproduce.py", *arguments], cwd=REPO, capture_output=True, text=True
    )
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1 and says in done.stderr
    assert done.stderr.startswith("error: ")


def test_a_tilde_is_the_home_that_the_shell_left_it_to_be(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    reproduce._parse(["--root_output_dir=~/runs", "--data_dir=~"])
    found = reproduce.FLAGS.root_output_dir, reproduce.FLAGS.data_dir, reproduce.FLAGS.items
    assert found == ("/home/me/runs", "/home/me", None)


@pytest.fixture
def listed(capsys):
    def said(*flags, code=0):
        assert reproduce.main(["--list", *flags]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return said


def test_list_and_dry_run_as_json(listed, capsys, tmp_path):
    setups = json.loads(listed("--json"))
    assert {(s["paper"], s["item"]) for s in setups} == {(i.paper, i.name) for i in ITEMS}
    table5 = ("--paper=adafedadam", "--item=table5", "--setup=synthetic")
    (setup,) = json.loads(listed(*table5, "--json"))
    assert {"fedavg", "fedadam"} <= set(setup["rows"]) and setup["recorded"]
    root = f"--root_output_dir={tmp_path}"
    assert reproduce.main([*table5, "--rows=fedavg", "--dry_run", "--json", root]) == 0
    out, err = capsys.readouterr()
    (answer,) = json.loads(out)
    assert not err and [row["row"] for row in answer["rows"]] == ["fedavg"]
    assert answer["rows"][0]["runs"] == 3 and answer["rows"][0]["rounds"] == 3000


def test_list_names_every_item_and_no_heat_maps_points(listed):
    text = listed()
    for item in ITEMS:
        assert f"--paper={item.paper} --item={item.name}" in text
    assert len(max(text.splitlines(), key=len)) < 1_000


def test_list_is_of_the_paper_the_item_and_the_set_up_that_are_asked_for(listed):
    text = listed("--paper=fedda")
    assert {line.split()[0] for line in text.splitlines() if line[0] != " "} == {"--paper=fedda"}
    fig2 = ("--paper=adaptive_federated_optimization", "--item=fig2")
    assert "... and 213 more, which --list with this --setup names: " in listed(*fig2)
    assert listed(*fig2, "--setup=so_nwp").count("server_learning_rate=") == 216
    for wrong in (["--paper=x"], ["--item=fig2"], [*fig2, "--setup=x"]):
        error = listed(*wrong, code=2)
        assert len(error.splitlines()) == 1, error


def reproduce_table5(tmp_path, *flags):
    return subprocess.run(
        [
            sys.executable,
            "reproduce.py",
            "--paper=adafedadam",
            "--item=table5",
            "--setup=synthetic",
            f"--root_output_dir={tmp_path}",
            *flags,
        ],
        cwd=REPO,
        capture_output=True,
        text=True,
    )


def test_a_budget_of_time_is_for_all_runs_together(tmp_path, monkeypatch):
    """Seven rows, one of five points: 11 runs of seed 1 to choose by, 14 of the other two seeds."""
    given, now = [], [0.0]

    def execute(runs, resources, max_minutes, check):
        given.append((len(runs), round(max_minutes, 6)))
        now[0] += 60 * max_minutes
        if len(given) > 1:
            raise items.ReproduceError("enough")

    monkeypatch.setattr(sweep, "execute", execute)
    monkeypatch.setattr(reproduce.time, "monotonic", lambda: now[0])
    table = ["--paper=adafedadam", "--item=table5", "--setup=synthetic", "--seeds=1,2,3"]
    reproduce.main([*table, f"--root_output_dir={tmp_path}", "--budget=minutes=25"])
    assert given == [(11, 11), (21, 14)]


@pytest.mark.slow
def test_rows_are_run_and_a_table_comes_out(tmp_path):
    """The whole way, cut short by its time, as `make run` goes it."""
    done = reproduce_table5(tmp_path, "--rows=fedavg", "--budget=minutes=0.02")
    assert done.returncode == 0, done.stderr
    assert "| fedavg   | ours" in done.stdout and "| fedavg   | paper" in done.stdout
    assert "Fewer rounds than the protocol" in done.stdout
    assert "The largest difference, after fewer rounds, is fedavg's" in done.stdout
    assert "Columns (docs/metrics.md): avg `fairness/accuracy_avg_t` × 100; std" in done.stdout
    (header,) = [line for line in done.stdout.splitlines() if line.startswith("| method")]
    cells = [cell.strip() for cell in header.strip("|").split("|")]
    assert cells == ["method", "", "rounds", "avg", "std", "worst30"]
    text = done.stdout.split("Next:\n")[1]
    commands = [shlex.split(c.split(":", 1)[1]) for c in text.replace("\\\n", " ").splitlines()]
    of = ["--setup=synthetic", f"--root_output_dir={tmp_path}"]
    for command, row in zip(commands, ("fedavg", "fedadam"), strict=True):
        assert command[-3:] == [*of, f"--rows={row}"]
    assert max(map(len, text.splitlines())) <= max(100, len(str(tmp_path)) + 50)
    told = [line for line in done.stdout.splitlines() if line not in text]
    assert max(map(len, told)) <= 100 + len(str(tmp_path))
    assert not any(name in " ".join(told) for name in ("q-FedAvg", "qfedavg", "AdaFedAdam"))
    again = reproduce_table5(tmp_path, "--rows=fedavg", "--budget=minutes=0.02", "--json")
    (answer,) = json.loads(again.stdout)
    assert answer["item"] == "table5" and answer["records"][0]["row"] == "fedavg"
    assert {"results.csv", "table.md"} <= set(answer["files"])
    folder = tmp_path / "adafedadam" / "table5" / "synthetic"
    for name in ("curves", "results"):
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    with open(folder / "curves.csv", newline="") as f:
        assert {r["method"] for r in csv.DictReader(f)} == {"fedavg"}
    assert "Fewer rounds than the protocol" in (folder / "table.md").read_text()
    assert "% Fewer rounds than the protocol" in (folder / "table.tex").read_text()
    with open(folder / "results.csv", newline="") as f:
        assert {r["status"] for r in csv.DictReader(f)} == {"partial"}


@pytest.mark.long
def test_two_runs_at_a_time_and_none_that_is_done(tmp_path):
    flags = ("--rows=fedavg", "--seeds=1,2", "--budget=rounds=2", "--jobs=2")
    done = reproduce_table5(tmp_path, *flags)
    assert done.returncode == 0, done.stderr
    for seed in (1, 2):
        folder = tmp_path / "adafedadam" / "table5" / "synthetic" / f"fedavg_seed{seed}"
        assert json.loads((folder / "summary.json").read_text())["rounds"] == 2
        assert "After 2 rounds" in (folder / sweep.LOG).read_text()
    again = reproduce_table5(tmp_path, *flags)
    assert "2 of 2 runs are done already" in again.stdout
    assert "starts" not in again.stdout


@pytest.mark.long
def test_runs_that_fail_are_named(tmp_path):
    """A folder that holds another experiment stops its own run only."""
    folder = tmp_path / "adafedadam" / "table5" / "synthetic" / "fedavg_seed1"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("round_num\n3\n")
    flags = ("--rows=fedavg", "--seeds=1,2", "--budget=rounds=1", "--retries=1")
    done = reproduce_table5(tmp_path, *flags)
    assert done.returncode == 1
    (told,) = done.stderr.splitlines()
    assert told.startswith("error: 1 of 2 runs failed: fedavg_seed1 (exit code 1: error: ")
    assert "holds results but no hparams.json" in told
    assert done.stdout.count("fedavg_seed1 failed and will be restarted") == 1
    assert (folder.parent / "fedavg_seed2" / "summary.json").exists()
