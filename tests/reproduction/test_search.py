"""Beyond a grid's edges, and successive halving, on runs whose losses are written by hand."""

import csv
import dataclasses
import json

import pytest

from reproduction import items, places, results, score, search, study, sweep
from reproduction.items import ReproduceError
from tests.test_reproduce import toy_setup

RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
# Loss after r rounds of each rate; the last but one begins best and ends worst of the three.
FINAL = {rate: abs(i - 5) for i, rate in enumerate(RATES)}


def loss(rate, r):
    return FINAL[rate] + (10.0 / r if rate != 1.0 else -1.5 + r / 9)


def made(runs, losses=loss, examples=100.0):
    """Carries runs on to their rounds, as the sweep does."""
    for run in runs:
        run.folder.mkdir(parents=True, exist_ok=True)
        rate = run.point["client_learning_rate"]
        done = run.read().last_round if (run.folder / "metrics.csv").exists() else 0
        with open(run.folder / "metrics.csv", "w", newline="") as f:
            writer = csv.writer(f)
            writer.writerow(["round_num", "train/loss", "train/num_examples"])
            writer.writerow([0, "", ""])
            for r in range(1, max(done, run.rounds) + 1):
                writer.writerow([r, losses(rate, r), examples])
        summary = {"rounds": max(done, run.rounds), "final": {}}
        (run.folder / "summary.json").write_text(json.dumps(summary))


def setup_of(**how):
    return toy_setup(
        rounds=9,
        seeds=[1],
        grid={"a": {"client_learning_rate": RATES}},
        rows={"a": items.Row("a", "papers/adafedadam/flags/table5_synthetic_fedavg.flags", {})},
        search=how,
        selection={"metric": "train/loss", "last_rounds": 3},
    )


def searched(setup, root, **options):
    executed = []

    def plan(points, rounds):
        return items.planned_runs(setup, points, points, [1], root=str(root), max_rounds=rounds)

    def execute(runs):
        executed.append([(run.point["client_learning_rate"], run.rounds) for run in runs])
        made(runs, **options)

    return search.search(setup, ["a"], plan, execute)["a"], executed


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ((9, 81), [9, 27, 81]),
        ((72, 81), [3, 9, 27, 81]),
        ((2, 100), [100]),
        ((3, 100), [34, 100]),
        ((16, 100, 4), [7, 28, 100]),
        ((9, 100, 3, 20), [20, 60, 100]),
        ((9, 10, 3, 50), [10]),
    ],
)
def test_rungs(given, reached):
    assert search.rungs(*given) == reached


def test_a_third_goes_on_by_its_own_runs(tmp_path):
    """Losses at round 1: |i - 5| + 10, but -1.4 at rate 1.0; at round 3: its three neighbours."""
    found, executed = searched(setup_of(factor=3), tmp_path)
    assert executed[0] == [(rate, 1) for rate in RATES]
    assert executed[1] == [(1.0, 3), (0.3, 3), (0.1, 3)], "least loss first"
    assert len(executed[2]) == 1 and executed[2][0][1] == 9
    assert found.rungs == [(1, 9), (3, 3), (9, 1)]
    # 9 runs of a round, two further of 3, six further of 1.
    assert found.examples == 100 * (9 + 3 * 2 + 6)
    assert found.share == pytest.approx((9 + 6 + 6) / (9 * 9))
    assert not found.stopped
    assert search.planned_share(setup_of(factor=3), "a") == found.share
    assert search.planned_share(setup_of(), "a") == 1
    assert len(list((tmp_path / "p/i/s").iterdir())) == 9, "one folder a point"
    assert "25.9% of the rounds of the whole grid" in found.describe("a")


def test_existing_runs_are_compared_all_at_once(tmp_path, monkeypatch):
    """Comparing takes a process that loads the data, whatever the number of rows."""
    one = setup_of(factor=3)
    rows = {name: dataclasses.replace(one.rows["a"], name=name) for name in "ab"}
    both = dataclasses.replace(one, rows=rows, grid=dict.fromkeys(rows, one.grid["a"]))
    compared = []

    def compare(runs):
        compared.append(len(runs))
        return places.changes.Compared({}, [], {})

    monkeypatch.setattr(places.changes, "compare", compare)
    monkeypatch.setattr(study.sweep, "execute", lambda runs, *_: made(runs))
    monkeypatch.setattr(study.columns.Check, "after", lambda *_: None)
    asked = study.Study(both, ["a", "b"], [1], str(tmp_path), sweep.Resources(), say=str)
    alone, _ = searched(one, tmp_path / "alone")
    assert asked.carry_out().chosen == {"a": alone.point, "b": alone.point}
    assert list(filter(None, compared)) == [2 * len(RATES)]


def test_settings_of_a_grid_may_be_words():
    found = search.Found({"client_optimizer": "adam", "rate": 0.1}, [(9, 2)], 10.0, 1.0, False)
    assert found.describe("a").startswith("a: client_optimizer=adam, rate=0.1, found by")
    grid = {"a": {"client_optimizer": ["sgd", "adam"]}}
    setup = dataclasses.replace(setup_of(), grid=grid, search={})
    runs = [{"row": "a", "client_optimizer": "adam", "chosen": "True"}]
    runs += [{"row": "a", "client_optimizer": "sgd", "chosen": "False"}]
    assert score.place_in_grid(setup, "a", runs) == ""


def test_the_search_gives_the_grids_point_where_order_does_not_change(tmp_path):
    def steady(rate, r):
        return FINAL[rate] + 10.0 / r

    found, _ = searched(setup_of(factor=3), tmp_path, losses=steady)
    setup = setup_of()
    runs = items.planned_runs(setup, ["a"], {"a": setup.points("a")}, [1], root=str(tmp_path))
    made(runs, losses=steady)
    scores = {run.name: results.selection_value(run, setup.selection, 9) for run in runs}
    best = min(runs, key=lambda run: scores[run.name])
    assert found.point == best.point == {"client_learning_rate": 0.3}


def test_a_budget_ends_the_search_before_the_rung_that_exceeds_it(tmp_path):
    found, executed = searched(setup_of(factor=3, budget=1499), tmp_path)
    assert len(executed) == 1 and found.stopped and found.examples == 900
    found, executed = searched(setup_of(factor=3, budget=1500), tmp_path / "more")
    assert len(executed) == 2 and found.examples == 1500 and found.stopped
    assert found.describe("a").endswith("The budget ended the search.")


def test_what_diverged_goes_on_nowhere_and_what_has_more_rounds_is_judged_at_the_rung(tmp_path):
    setup = setup_of(factor=3)
    runs = items.planned_runs(setup, ["a"], {"a": setup.points("a")}, [1], root=str(tmp_path))
    made(runs)
    at_one = {
        r.point["client_learning_rate"]: results.selection_value(r, setup.selection, 1)
        for r in runs
    }
    assert at_one[0.3] == pytest.approx(10.0) and min(at_one, key=at_one.get) == 1.0
    short = runs[5]
    with open(short.folder / "metrics.csv", "w") as f:
        f.write("round_num,train/loss,train/num_examples\n0,,\n1,nan,100\n2,1.0,100\n")
    assert results.selection_value(short, setup.selection, 1) == float("inf")
    assert results.selection_value(short, setup.selection, 3) == float("inf")


def test_a_method_whose_rounds_depend_on_their_number_is_refused(tmp_path):
    flagfile = "papers/fedda/flags/mnist_writers_fedda_adam.flags"
    setup = dataclasses.replace(
        setup_of(factor=3), rounds=300, rows={"a": items.Row("a", flagfile, {})}
    )
    with pytest.raises(ReproduceError, match=r"a cannot be resumed for more rounds.* --full_grid"):
        searched(setup, tmp_path)


def test_runs_that_cannot_be_resumed_start_anew_where_the_item_says_so(tmp_path):
    flagfile = "papers/fedda/flags/mnist_writers_fedda_adam.flags"
    rows = {"a": items.Row("a", flagfile, {})}
    setup = dataclasses.replace(setup_of(factor=3, restart=True), rounds=300, rows=rows)
    found, executed = searched(setup, tmp_path)
    folders = {path.parent for path in tmp_path.rglob("metrics.csv")}
    # Each rung has runs of its own, from their first round.
    assert len(folders) == sum(map(len, executed))
    assert found.examples == 100.0 * sum(rounds for rung in executed for _, rounds in rung)
    whole = len(RATES) * 300
    assert found.share == sum(rounds for rung in executed for _, rounds in rung) / whole
    assert search.planned_share(setup, "a") == found.share
    resumed = dataclasses.replace(setup_of(factor=3, restart=True), rounds=300)
    assert search.planned_share(resumed, "a") < found.share


def test_the_scoreboard_counts_whole_grids_only():
    record = {"rounds": "9", "protocol_rounds": "9", "seeds": "1"}
    assert score.is_whole(setup_of(), record)
    assert not score.is_whole(setup_of(), {**record, "chosen_by": "search"})


def widened(root, losses, times=2, flags=("client_learning_rate",), rounds=9):
    """Runs the grid 0.1, 0.3 and what lies beyond; returns rates by rung and the chosen point."""
    setup = dataclasses.replace(
        setup_of(),
        search={},
        grid={"a": {"client_learning_rate": [0.1, 0.3]}},
        widen={"times": times, "flags": list(flags)},
    )
    executed = []

    def execute(runs):
        executed.append([run.point["client_learning_rate"] for run in runs])
        made([dataclasses.replace(run, rounds=rounds) for run in runs], losses=losses)
        for run in runs:
            summary = {"rounds": rounds, "mean_round_seconds": 1, "final": {}}
            (run.folder / "summary.json").write_text(json.dumps(summary))

    def plan(points):
        return items.planned_runs(setup, points, points, [1], root=str(root))

    _, chosen = search.whole_grid(setup, {"a": setup.points("a")}, plan, execute)
    return executed, chosen["a"]


@pytest.mark.parametrize(
    ("best", "times", "rungs", "chosen"),
    [
        (0.9, 2, [[0.1, 0.3], [0.1, 0.3, 0.9], [0.1, 0.3, 0.9, 2.7]], 0.9),
        (0.9, 1, [[0.1, 0.3], [0.1, 0.3, 0.9]], 0.9),
        (0.25, 2, [[0.1, 0.3], [0.1, 0.3, 0.9]], 0.3),
        (0.001, 1, [[0.1, 0.3], [0.1, 0.3, 0.0333333]], 0.0333333),
        (9.0, 2, [[0.1, 0.3], [0.1, 0.3, 0.9], [0.1, 0.3, 0.9, 2.7]], 2.7),
    ],
)
def test_a_grid_is_widened_until_its_best_point_lies_inside(tmp_path, best, times, rungs, chosen):
    executed, point = widened(tmp_path, lambda rate, r: abs(rate - best), times)
    assert executed == rungs
    assert point == {"client_learning_rate": chosen}


def test_a_grid_that_time_cut_short_is_not_widened(tmp_path):
    """Its best point so far need not be the best, and what lies beyond would get no time."""
    executed, _ = widened(tmp_path, lambda rate, r: rate, rounds=5)
    assert executed == [[0.1, 0.3]]


def test_what_the_item_does_not_name_is_not_widened(tmp_path):
    executed, _ = widened(tmp_path, lambda rate, r: rate, flags=["server_learning_rate"])
    assert executed == [[0.1, 0.3]]


def test_each_setting_at_an_edge_gives_a_point_beside_the_best():
    flags = {"client_learning_rate": [0.01, 0.1], "fedcada_beta1": [0.1, 0.9], "x": [0.5, 1.0, 2.0]}
    setup = dataclasses.replace(
        setup_of(), grid={"a": flags}, widen={"times": 3, "flags": ["client_learning_rate", "x"]}
    )
    best = {"client_learning_rate": 0.1, "fedcada_beta1": 0.9, "x": 0.5}
    assert search.beyond(setup, "a", setup.points("a"), best) == [
        {**best, "client_learning_rate": 1.0},
        {**best, "x": 0.25},
    ]
    assert search.beyond(setup, "a", setup.points("a"), {**best, "x": 1.0}) == [
        {**best, "x": 1.0, "client_learning_rate": 1.0}
    ]
    assert search.most_beyond(setup, "a") == 6
