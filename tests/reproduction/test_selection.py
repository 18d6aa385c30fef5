"""How an item's file decides what is chosen, named and compared."""

import dataclasses
import json
import math

import pytest

from reproduction import best_points, columns, items, results, search
from reproduction.items import ReproduceError
from tests.test_reproduce import toy_setup

ITEM = """
title = "t"
rounds = 3
seeds = [1]
{top}
[setups.s]
title = "s"
{setup}
[setups.s.rows]
{rows}
{tables}
"""
COLUMNS = 'columns = [{ name = "a", metric = "eval/accuracy" }]'
RATES = [0.00001, 0.1]
GRID = "[setups.s.grid]\nfedavg = { client_learning_rate = [0.00001, 0.1] }"
FLAGS = (
    "--task=synthetic\n--algorithm=fedavg\n--clients_per_round=2\n--client_batch_size=5\n"
    "--client_learning_rate=0.1\n"
)


def read(home, top=COLUMNS, setup="", rows='fedavg = "f.flags"', tables="", published=None):
    home.mkdir(exist_ok=True)
    (home / "f.flags").write_text(FLAGS)
    text = ITEM.format(top=top, setup=setup, rows=rows, tables=tables)
    (home / "item.toml").write_text(text)
    if published is not None:
        (home / "published.csv").write_bytes(published)
    return items.read_item(home / "item.toml").setups["s"]


def selected_by(metric, more=""):
    return f'selection = {{ metric = "{metric}", last_rounds = 2{more} }}'


def done(runs, column, value_of):
    """Leaves runs whose column has a run's value in all rounds."""
    for run in runs:
        run.folder.mkdir(parents=True)
        lines = [f"round_num,train/num_examples,{column}"]
        lines += [f"{r},10,{value_of(run)}" for r in range(run.rounds + 1)]
        (run.folder / "metrics.csv").write_text("\n".join(lines) + "\n")
        flags = dict(run.request().in_force)
        (run.folder / "hparams.json").write_text(json.dumps({"flags": flags}))
        summary = {"rounds": run.rounds, "final": {column: value_of(run)}}
        (run.folder / "summary.json").write_text(json.dumps(summary))


def planned(setup, root, points=None):
    points = points or {row: setup.points(row) for row in setup.rows}
    return items.planned_runs(setup, points, points, setup.seeds, root=str(root))


def by_rate(run):
    """Returns the rate, with which whatever is measured rises."""
    return run.point["client_learning_rate"]


@pytest.mark.parametrize(
    ("metric", "more", "best"),
    [
        ("validation/accuracy", "", 0.1),
        ("validation/loss", "", 0.00001),
        ("validation/top", ", higher_is_better = true", 0.1),
        ("validation/top", ", higher_is_better = false", 0.00001),
    ],
)
def test_the_best_point_is_the_one_with_most_where_more_is_better(tmp_path, metric, more, best):
    setup = read(tmp_path / "own", top=f"{COLUMNS}\n{selected_by(metric, more)}", tables=GRID)
    runs = planned(setup, tmp_path)
    done(runs, metric, by_rate)
    point = {"client_learning_rate": best}
    assert results.choose(runs, setup) == {"fedavg": point}
    chosen = best_points.best(setup, "fedavg", str(tmp_path))
    assert chosen is not None and chosen.point == point
    # The table of runs has the mean itself.
    records = results.grid_records(runs, dataclasses.replace(setup, columns=[]), {"fedavg": point})
    assert [r["selection"] for r in records] == pytest.approx(RATES)
    searching = dataclasses.replace(setup, search={"factor": 2, "rounds": 1})

    def plan(points, rounds):
        return planned(searching, tmp_path, points)

    found = search.search(searching, ["fedavg"], plan, lambda runs: None)["fedavg"]
    assert found.point == point


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_run_without_a_finite_mean_is_the_worst_where_more_is_better(tmp_path, value):
    rule = f"{COLUMNS}\n{selected_by('validation/accuracy')}"
    setup = read(tmp_path / "own", top=rule, tables=GRID)
    runs = planned(setup, tmp_path)
    done(runs, "validation/accuracy", lambda run: 0.2 if by_rate(run) < 0.1 else float(value))
    assert results.choose(runs, setup)["fedavg"] == {"client_learning_rate": 0.00001}


def test_a_metric_that_does_not_say_which_is_refused(tmp_path):
    rule = f"{COLUMNS}\n{selected_by('train/num_clients')}"
    setup = read(tmp_path / "own", top=rule, tables=GRID)
    with pytest.raises(ReproduceError, match="item s: selection: set higher_is_better to true"):
        columns.Check(setup).before()
    named = {**setup.selection, "higher_is_better": False}
    columns.Check(dataclasses.replace(setup, selection=named)).before()
    columns.Check(dataclasses.replace(setup, grid={})).before()
    run = planned(toy_setup(), tmp_path)[0]
    with pytest.raises(ReproduceError, match="set higher_is_better"):
        results.selection_value(run, {"metric": "validation/score", "last_rounds": 2})


@pytest.mark.parametrize(
    ("metric", "tells"),
    [("eval/accuracy", True), ("eval/loss", True), ("validation/accuracy", False)],
)
def test_a_choice_by_test_data_is_told(tmp_path, metric, tells):
    setup = read(tmp_path, top=f"{COLUMNS}\n{selected_by(metric)}", tables=GRID)
    lines = results.caveats([], setup)
    assert any(f"Tuned on test data: selection.metric is {metric}" in x for x in lines) == tells
    # Without a choice the rule is not used.
    assert not results.caveats([], dataclasses.replace(setup, grid={}))


def test_final_runs_tell_that_their_points_were_chosen_by_test_data(tmp_path):
    rule = f"{COLUMNS}\n{selected_by('eval/accuracy')}"
    source = read(tmp_path / "own", top=rule, tables=GRID)
    done(planned(source, tmp_path), "eval/accuracy", by_rate)
    final = ITEM.format(
        top=f'{COLUMNS}\npoints_of = "item"', setup="", rows='fedavg = "f.flags"', tables=""
    )
    (tmp_path / "own" / "final.toml").write_text(final)
    setup = items.read_item(tmp_path / "own" / "final.toml").setups["s"]
    setup, told = best_points.settled(setup, ["fedavg"], str(tmp_path), print)
    assert setup.points("fedavg") == [{"client_learning_rate": 0.1}]
    assert told[0] == "item chose its points by test data: eval/accuracy."


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tables": "[setups.s.sweep]\nfedavg = { seed = [1, 2] }"},
         "sweep.fedavg: seed cannot vary here; list the seeds in seeds"),
        ({"top": f"{COLUMNS}\n{selected_by('train/loss')}",
          "tables": "[setups.s.grid]\nfedavg = { client_datasets_random_seed = [1, 2] }"},
         "grid.fedavg: client_datasets_random_seed cannot vary here"),
        ({"rows": 'fedavg = "f.flags --seed=2"'}, "rows.fedavg: leave out --seed=2"),
        ({"tables": "[setups.s.sweep]\nfedavg = { client_learning_rate = [0.1234561, 0.1234564] }"},
         "sweep.fedavg: another row is also named fedavg client_learning_rate=0.123456"),
        ({"rows": 'fedavg = "f.flags"\n"fedavg client_learning_rate=0.5" = "f.flags"',
          "tables": "[setups.s.sweep]\nfedavg = { client_learning_rate = [0.5, 0.1] }"},
         "another row is also named fedavg client_learning_rate=0.5"),
        ({"top": 'columns = [{ name = "a", metric = "eval/loss" }, '
                 '{ name = "a", metric = "eval/accuracy" }]'},
         "columns: a is there twice"),
        ({"top": 'columns = [{ name = "seconds_per_round", metric = "time/round_seconds" }]'},
         "columns: runs.csv has its own seconds_per_round; give the column another name"),
        ({"top": 'columns = [{ name = "client_learning_rate", metric = "eval/loss" }]\n'
                 f"{selected_by('train/loss')}",
          "tables": GRID},
         "columns: runs.csv has its own client_learning_rate"),
        ({"top": 'columns = [{ name = "a", metric = "eval/loss", best = "max", last_rounds = 1 }]'},
         "columns.a: set best or last_rounds, not both"),
        ({"top": 'columns = [{ name = "a", metric = "eval/loss", offset = inf }]'},
         "columns must be a list of tables"),
    ],
)  # fmt: skip
def test_rows_and_columns_that_would_be_lost_are_refused(tmp_path, given, says):
    with pytest.raises(ReproduceError, match=says) as error:
        read(tmp_path, **given)
    assert "\n" not in str(error.value)


def test_a_seed_given_twice_is_refused(tmp_path):
    with pytest.raises(ReproduceError, match="seeds: 1 is there twice"):
        read(tmp_path, setup="seeds = [1, 2, 1]")


HEADER = b"item,setup,row,column,value,spread\n"


def test_published_numbers_may_come_from_excel(tmp_path):
    text = b"\xef\xbb\xbfitem,setup,row,column,value\r\nitem,s,fedavg,a,0.9\r\n"
    setup = read(tmp_path, published=text)
    line = results.published(setup)["fedavg", "a"]
    assert (line["value"], line["spread"]) == ("0.9", "")
    record = {"row": "fedavg", "column": "a", "value": 0.5, "spread": None, "rounds": 3}
    table = results.format_table([{**record, "seeds": "1", "protocol_rounds": 3}], setup)
    assert "| 0.9 " in table


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEADER + b"item,s,fedavg,a,90%,\n", r"published.csv, line 2: value must be .* 90%"),
        (HEADER + b"item,s,fedavg,a,0.9,\nitem,s,b,a,0.9,x\n", "line 3: spread must be a number"),
        (HEADER + b"item,s,fedavg\n", "line 2: value must be a number .* found nothing"),
        (HEADER + b"item,s,fedavg,a,nan,\n", "line 2: value must be a number .* found nan"),
        (HEADER.replace(b",", b";"), "has no column item, setup, row, column, value; .* commas"),
        (b"item,setup,row,value\n", "has no column column"),
        (b"\xff\xfe" + HEADER, "cannot be read: .*UTF-8"),
    ],
)
def test_wrong_published_numbers_are_refused_with_the_item(tmp_path, text, says):
    with pytest.raises(ReproduceError, match=says) as error:
        read(tmp_path, published=text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "how"),
    [
        (1.0, "offset = -50, power = 0.5"),
        (0.0, "power = -1"),
        (10.0, "power = 1000"),
        (1e300, "scale = 1e300"),
    ],
)
def test_a_column_without_a_finite_number_stops_after_the_first_run(tmp_path, value, how):
    top = f'columns = [{{ name = "a", metric = "eval/loss", {how} }}]'
    setup = read(tmp_path / "own", top=top)
    runs = planned(setup, tmp_path)
    done(runs, "eval/loss", lambda run: value)
    with pytest.raises(ReproduceError, match="scale, offset and power give no finite number"):
        columns.Check(setup).after(runs[0])


def test_a_value_that_is_not_a_number_stays_so(tmp_path):
    column = {"name": "a", "metric": "eval/loss", "offset": -50, "power": 0.5}
    (run, *_) = planned(toy_setup(), tmp_path)
    done([run], "eval/loss", lambda run: None)
    assert math.isnan(results.column_value(run, column))


def widened(home, root, flag, values, best):
    """Returns the values tried beyond those of a grid, whose loss is the distance to `best`."""
    setup = read(
        home,
        top=f"{COLUMNS}\n{selected_by('train/loss')}",
        rows='fedavg = "f.flags --client_optimizer=sgdm"',
        tables=f"[setups.s.grid]\nfedavg = {{ {flag} = {values} }}\n"
        f'[setups.s.widen]\ntimes = 1\nflags = ["{flag}"]',
    )
    tried = []

    def execute(runs):
        new = [run for run in runs if not run.folder.exists()]
        done(new, "train/loss", lambda run: abs(run.point[flag] - best))
        tried.extend(run.point[flag] for run in new)

    search.whole_grid(
        setup,
        {"fedavg": setup.points("fedavg")},
        lambda points: planned(setup, root, points),
        execute,
    )
    return tried[len(values) :]


@pytest.mark.parametrize(
    ("flag", "values", "best", "further"),
    [
        ("client_batch_size", [4, 6], 0, [3]),
        ("client_batch_size", [4, 6], 20, [9]),
        ("client_batch_size", [1, 2], 0, []),  # No batch is smaller.
        ("client_learning_rate", [1, 10], 0, [0.1]),  # A rate may be written as 1.
        ("client_learning_rate", [0.1, 0.3], 0, [0.0333333]),
        ("client_momentum", [0.5, 0.9], 1, []),  # 1.62 is no momentum.
    ],
)
def test_whole_numbers_and_bounds_are_kept_beyond_a_grid(tmp_path, flag, values, best, further):
    assert widened(tmp_path / "own", tmp_path, flag, values, best) == further
